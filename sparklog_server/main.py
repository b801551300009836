"""The command `sparklog-server`: settings, logs, the event loop, signals, exit codes.

Exit codes: 0 stopped as asked, 1 failed, 2 wrong settings, 3 stopped at once by a second signal.
Ready: one line per listener on stdout, `sparklog-server: listening on PLAINTEXT://127.0.0.1:40123`, once
clients are accepted; so a port of 0 can be used by whoever starts the broker.
Not here: what a broker does (broker.py).
"""

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import click

from sparklog.allocator import keep_freed_memory
from sparklog.client.log import open_log
from sparklog.clock import SystemClock
from sparklog.errors import SparklogError
from sparklog_server.broker import Broker, BrokerState
from sparklog_server.config import ServerConfig
from sparklog_server.logs import close_logs, configure_logs
from sparklog_server.settings_sources import CONFIG_VARIABLE, load_config

EXIT_FAILED = 1
EXIT_SETTINGS = 2
EXIT_AT_ONCE = 3
_log = logging.getLogger("sparklog_server")


@click.command("sparklog-server", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--root", metavar="DIR", help="The root (log.dirs); made if it is not there.")
@click.option("--listeners", metavar="LIST", help="Where to listen, such as PLAINTEXT://localhost:9092.")
@click.option(
    "--config",
    "file",
    metavar="FILE",
    envvar=CONFIG_VARIABLE,
    type=click.Path(path_type=Path, dir_okay=False),
    help="A server.properties; see conf/server.properties.",
)
@click.option("--override", "overrides", metavar="KEY=VALUE", multiple=True, help="Any setting; repeatable.")
@click.version_option(package_name="sparklog", prog_name="sparklog-server")
def cli(root: str | None, listeners: str | None, file: Path | None, overrides: tuple[str, ...]) -> None:
    """Serve a root to Kafka clients.

    Settings come from flags, else from the environment (SPARKLOG_SERVER_NUM_PARTITIONS for num.partitions),
    else from --config, else they have the defaults of conf/server.properties.
    """
    config = load_config(file=file, environment=os.environ, flags=_flag_settings(root, listeners, overrides))
    if not config.log_dirs or "," in config.log_dirs:
        raise click.UsageError("Give exactly one root: --root DIR, or log.dirs=DIR.")
    code = run(config)
    if code == EXIT_FAILED:
        # A thread may hang in the storage that has just failed; Python would wait for it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def run(config: ServerConfig) -> int:
    """Run a broker until it is asked to stop; the exit code."""
    # Requests of some megabytes come and go: without this glibc would map and unmap each of them, and the
    # first touch of every fresh page is very slow on virtual machines (figures: allocator.py).
    keep_freed_memory()
    _allow_many_files()
    handlers = configure_logs(config)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(serve(config))
    except (SparklogError, OSError) as error:
        _log.critical("cannot start: %s %s", error, " ".join(getattr(error, "__notes__", ())))
        return EXIT_FAILED
    finally:
        close_logs(handlers)


async def serve(config: ServerConfig) -> int:
    """Run a broker until it is asked to stop; the exit code."""
    clock = SystemClock()
    with open_log(config.log_dirs, create=True, clock=clock) as log:
        broker = Broker(config, log, clock)
        _handle_signals(broker)
        try:
            await broker.start()
            gc.collect()
            gc.freeze()  # what is there now stays: collections need not look at it again
            for listener in broker.network.listeners:
                click.echo(f"sparklog-server: listening on {listener.address}")
            await broker.wait_for_stop()
        finally:
            await broker.stop()
    return EXIT_FAILED if broker.state is BrokerState.FAILED else 0


def main() -> None:
    """Console script."""
    try:
        cli(prog_name="sparklog-server")
    except SparklogError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_SETTINGS)


def _flag_settings(root: str | None, listeners: str | None, overrides: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for one in overrides:
        key, found, value = one.partition("=")
        if not found:
            raise click.UsageError(f"--override: found {one!r}, expected key=value.")
        settings[key.strip()] = value.strip()
    given = {"log.dirs": root, "listeners": listeners}
    return settings | {key: flag for key, flag in given.items() if flag is not None}


def _handle_signals(broker: Broker) -> None:
    """The first SIGTERM or SIGINT stops gracefully, the second at once: what was acknowledged is durable."""

    def stop(name: str) -> None:
        if broker.is_stop_requested:
            _log.warning("%s again: stopping at once", name)
            logging.shutdown()
            os._exit(EXIT_AT_ONCE)
        _log.info("%s: stopping", name)
        broker.request_stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number.name)


def _allow_many_files() -> None:
    """Every connection is an open file; systems often start processes with room for 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - there is none for every platform
    except ImportError:
        return None
    return uvloop.new_event_loop
