"""Runs a broker as a process: logs, the event loop, signals.

The packages of the extra `server` are imported here, not in main.py: so the command can report a missing one,
and `--help` is fast.
Not here: the broker (broker.py), the command's options (main.py).
"""

import asyncio
import gc
import logging
import os
import resource
import signal
from collections.abc import Callable

import click

from sparklog.allocator import keep_freed_memory
from sparklog.client.log import open_log
from sparklog.clock import SystemClock
from sparklog.errors import SparklogError
from sparklog.storage.filesystems import OPTION as ALLOW_UNSAFE
from sparklog_server.broker import Broker
from sparklog_server.runtime.log_files import close_logs, configure_logs
from sparklog_server.settings.config import ServerConfig
from sparklog_server.settings.sources import load_config

__all__ = ["EXIT_FAILED", "EXIT_IMMEDIATELY", "load_config", "run", "serve"]

EXIT_FAILED = 1
EXIT_IMMEDIATELY = 3
_log = logging.getLogger("sparklog_server")


def run(config: ServerConfig) -> int:
    """Run a broker until it is asked to stop; return the exit code."""
    # Without this glibc would map and unmap memory for each request of some megabytes, and the first access
    # to a fresh page is very slow on virtual machines (figures: allocator.py).
    keep_freed_memory()
    _allow_many_files()
    handlers = configure_logs(config.logs)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(serve(config))
    except (SparklogError, OSError) as error:
        _log.critical("cannot start: %s", "; ".join([str(error), *getattr(error, "__notes__", ())]))
        return EXIT_FAILED
    except Exception:  # noqa: BLE001 - a bug: the exit must not wait for threads either (main.py)
        _log.critical("the broker has ended", exc_info=True)
        return EXIT_FAILED
    finally:
        close_logs(handlers)


async def serve(config: ServerConfig) -> int:
    """Run a broker until it is asked to stop; return the exit code."""
    clock = SystemClock()
    with open_log(
        config.broker.log_dirs,
        storage_options={ALLOW_UNSAFE: True} if config.broker.allow_unsafe_filesystem else None,
        clock=clock,
        cluster_id=config.broker.cluster_id or None,
    ) as log:
        broker = Broker(config, log, clock)
        _handle_signals(broker)
        try:
            await broker.start()
            gc.collect()
            gc.freeze()  # these objects live as long as the process: exempt them from collections
            for listener in broker.network.listeners:
                click.echo(f"sparklog-server: listening on {listener.address}")
            await broker.lifecycle.wait_for_stop()
        except SparklogError as error:
            if broker.lifecycle.has_failed or not broker.lifecycle.is_stop_requested:
                raise
            _log.info("stopped before it had started: %s", error)  # it waited for another process to end
        finally:
            await broker.stop()
    return EXIT_FAILED if broker.lifecycle.has_failed else 0


def _handle_signals(broker: Broker) -> None:
    """Stop gracefully with the first SIGTERM or SIGINT, immediately with the second (acks are durable)."""

    def stop(name: str) -> None:
        if broker.lifecycle.is_stop_requested:
            _log.warning("%s again: stopping immediately", name)
            logging.shutdown()
            os._exit(EXIT_IMMEDIATELY)
        _log.info("%s: stopping", name)
        broker.lifecycle.request_stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number.name)


def _allow_many_files() -> None:
    """Raise the limit of open files, one per connection: the default is often 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - not available for every platform
    except ImportError:
        return None
    return uvloop.new_event_loop
