"""The entry point: the table of commands, and what becomes of errors.

Exit codes: 0 done, 1 failure, 2 usage. Errors go to stderr as one message; `--debug` adds the
traceback. A reader of stdout that goes away (`sparklog consume ... | head`) is a normal end; any other pipe
that breaks is not.
Not here: any command (a module per noun beside this one).
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn, TypeVar

import click

from sparklog.cli.framework import (
    LazyCommand,
    LazyGroup,
    Settings,
    asks_for_json,
    common_options,
    in_shell_words,
    note,
    show_failure,
)
from sparklog.cli.kafka_words import in_our_words
from sparklog.cli.output import prepare_stdout, reader_left

R = TypeVar("R")
_AS_JSON = "sparklog.failures_as_json"
_ABORTED = "aborted"
COMMANDS = {
    "topics": LazyCommand(
        "sparklog.cli.topics", "topics", "Create, list, describe, alter and delete topics."
    ),
    "root": LazyCommand(
        "sparklog.cli.root", "root", "The root's identity and settings: describe, alter; sweep."
    ),
    "metadata": LazyCommand(
        "sparklog.cli.metadata", "metadata", "Brokers, topics and leaders at any commit: tree, log, show."
    ),
    "brokers": LazyCommand("sparklog.cli.brokers", "brokers", "Brokers: list, describe, unregister."),
    "partitions": LazyCommand("sparklog.cli.partitions", "partitions", "Leaders: list, reassign, elect."),
    "controller": LazyCommand(
        "sparklog.cli.brokers", "controller", "Who controls the brokers, and what waits for it."
    ),
    "produce": LazyCommand("sparklog.cli.produce", "produce", "Write lines from stdin as records."),
    "consume": LazyCommand("sparklog.cli.consume", "consume", "Print records, and follow the log."),
    "offsets": LazyCommand(
        "sparklog.cli.groups", "offsets", "First, next and by-time offsets of partitions."
    ),
    "groups": LazyCommand("sparklog.cli.groups", "groups", "Consumer groups: committed offsets and lag."),
    "transactions": LazyCommand(
        "sparklog.cli.transactions", "transactions", "Transactional ids: list, describe, abort, find-hanging."
    ),
    "optimize": LazyCommand(
        "sparklog.cli.maintenance", "optimize", "Merge small extents into large segments."
    ),
    "compact": LazyCommand("sparklog.cli.maintenance", "compact", "Keep the last record of each key."),
    "expire": LazyCommand(
        "sparklog.cli.maintenance", "expire", "Remove records past their topic's retention."
    ),
    "vacuum": LazyCommand("sparklog.cli.maintenance", "vacuum", "Remove the files that nothing refers to."),
    "maintain": LazyCommand(
        "sparklog.cli.maintenance", "maintain", "Expire, compact, optimize and vacuum, as is due."
    ),
    "dump-log": LazyCommand("sparklog.cli.dump_log", "dump_log", "What a segment or index file holds."),
    "doctor": LazyCommand("sparklog.cli.doctor", "doctor", "Check Python, Java, Spark and a root."),
    "demo": LazyCommand("sparklog.cli.demo", "demo", "Exactly once, on real data, under SIGKILL."),
    "kafka-topics": LazyCommand("sparklog.cli.kafka_tools", "kafka_topics", "", hidden=True),
    "kafka-consumer-groups": LazyCommand(
        "sparklog.cli.kafka_tools", "kafka_consumer_groups", "", hidden=True
    ),
    "kafka-configs": LazyCommand("sparklog.cli.kafka_tools", "kafka_configs", "", hidden=True),
    "kafka-reassign-partitions": LazyCommand(
        "sparklog.cli.kafka_tools", "kafka_reassign_partitions", "", hidden=True
    ),
    "kafka-leader-election": LazyCommand(
        "sparklog.cli.kafka_tools", "kafka_leader_election", "", hidden=True
    ),
    "kafka-get-offsets": LazyCommand("sparklog.cli.kafka_tools", "kafka_get_offsets", "", hidden=True),
    "kafka-console-producer": LazyCommand("sparklog.cli.produce", "produce", "", hidden=True),
    "kafka-console-consumer": LazyCommand("sparklog.cli.consume", "consume", "", hidden=True),
    "kafka-transactions": LazyCommand("sparklog.cli.kafka_tools", "kafka_transactions", "", hidden=True),
    "kafka-dump-log": LazyCommand("sparklog.cli.dump_log", "dump_log", "", hidden=True),
}


class RootGroup(LazyGroup):
    """The top command; turns what went wrong into a message and an exit code."""

    lazy = COMMANDS

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_AS_JSON] = asks_for_json(args)
        parse = super().parse_args
        return _telling_failures(ctx, lambda: parse(ctx, args))  # --help and --version print, too

    def invoke(self, ctx: click.Context) -> object:
        invoke = super().invoke
        return _telling_failures(ctx, lambda: invoke(ctx))


def _telling_failures(ctx: click.Context, run: Callable[[], R]) -> R:
    """Run a part of a command; whatever goes wrong ends it, with a message and an exit code."""
    from sparklog.errors import SparklogError

    try:
        result = run()
        sys.stdout.flush()
    except click.exceptions.Exit:
        raise
    except (click.Abort, KeyboardInterrupt):
        if ctx.meta[_AS_JSON]:
            _report(ctx, click.ClickException(_ABORTED), _ABORTED)
        raise click.Abort from None
    except click.ClickException as error:
        told = in_our_words(error)
        if isinstance(told, click.UsageError) and not ctx.meta[_AS_JSON]:
            raise told from None  # click shows the usage, too
        _report(ctx, told, told.format_message(), exit_code=told.exit_code)
    except BrokenPipeError as error:
        if not reader_left(sys.stdout):
            _report(ctx, error, str(error))
        _drop_what_stdout_did_not_take()
        ctx.exit(0)
    except (SparklogError, OSError) as error:
        failure = in_shell_words(error)
        _report(ctx, failure, str(failure))
    except Exception as error:  # noqa: BLE001 - the last line of defence
        text = f"unexpected {type(error).__name__}: {error}. Run it again with --debug, and report it."
        _report(ctx, error, text)
    return result


def _report(ctx: click.Context, error: Exception, message: str, exit_code: int = 1) -> NoReturn:
    """Print the error being handled, and leave."""
    settings = ctx.find_object(Settings)
    if settings is not None and settings.debug:
        note(traceback.format_exc(), end="")
    show_failure(error, message, as_json=ctx.meta[_AS_JSON])
    _drop_what_stdout_did_not_take()
    ctx.exit(exit_code)


def _drop_what_stdout_did_not_take() -> None:
    """Python flushes stdout once more on its way out, and where that fails its exit code is 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _show_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        from importlib.metadata import version

        click.echo(f"sparklog {version('sparklog')}")
        ctx.exit()


@click.command("sparklog", cls=RootGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
@common_options
def cli() -> None:
    """sparklog: a Kafka-style commit log native to PySpark, on a directory.

    \b
    Start with:  sparklog demo
    On a log:    sparklog --root DIR topics list        (or SPARKLOG_ROOT=DIR)
    """  # noqa: D301 - click looks for the character, not for a backslash and a b


def main() -> None:
    """Console script."""
    if not prepare_stdout():
        note("Error: stdout is closed. Open it, or send it to /dev/null.")
        sys.exit(1)
    cli(prog_name="sparklog")
