"""The command `sparklog-server`: settings, logs, the event loop, signals, exit codes.

Exit codes: 0 stopped as asked, 1 failed, 2 usage or settings.
Not here: what a broker does (broker.py).
"""

import asyncio
import signal
import sys

import click

from sparklog.client.log import open_log
from sparklog.clock import SystemClock
from sparklog.errors import SparklogError
from sparklog_server.broker import Broker, BrokerState
from sparklog_server.config import ServerConfig


@click.command("sparklog-server", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--root", help="The root: a directory.")
@click.option("--listeners", help="As listeners in server.properties.")
def cli(root: str | None, listeners: str | None) -> None:
    """Serve a root to Kafka clients."""
    given = {"log.dirs": root, "listeners": listeners}
    config = ServerConfig.parse({key: value for key, value in given.items() if value is not None})
    sys.exit(asyncio.run(serve(config)))


async def serve(config: ServerConfig) -> int:
    """Run a broker until it is asked to stop."""
    clock = SystemClock()
    with open_log(config.log_dirs, create=True, clock=clock) as log:
        broker = Broker(config, log, clock)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, broker.request_stop)
        await broker.start()
        for listener in broker.network.listeners:
            click.echo(f"sparklog-server: listening on {listener.address}")
        await broker.wait_for_stop()
        await broker.stop()
    return 1 if broker.state is BrokerState.FAILED else 0


def main() -> None:
    """Console script."""
    try:
        cli(prog_name="sparklog-server")
    except SparklogError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)
