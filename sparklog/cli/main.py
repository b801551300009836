"""The entry point: the table of commands, and how an error ends one.

Exit codes: 0 done, 1 failure, 2 usage. An error is one message on stderr; `--debug` adds the traceback. A
reader of stdout that leaves (`sparklog consume ... | head`) is a normal end; any other broken pipe an error.
Not here: the commands, a module per noun.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn, TypeVar

import click

from sparklog.cli.framework import (
    LazyCommand,
    Settings,
    TopGroup,
    asks_for_json,
    common_options,
    in_shell_words,
    note,
    show_failure,
)
from sparklog.cli.kafka import in_our_words
from sparklog.cli.output import prepare_stdout, reader_left

R = TypeVar("R")
_AS_JSON = "sparklog.failures_as_json"
_ABORTED = "aborted"
COMMANDS = {
    name: LazyCommand(f"sparklog.cli.{module}", name.replace("-", "_"), text)
    for name, module, text in (
        ("topics", "topics", "Create, list, describe, alter and delete topics."),
        ("produce", "produce", "Write lines from stdin as records."),
        ("consume", "consume", "Print records, and follow the log."),
        ("offsets", "offsets", "Offsets of partitions."),
        ("groups", "groups", "Consumer groups: offsets, lag, members; reset and delete."),
        ("acls", "acls", "Who may do what at brokers: list, add, remove."),
        ("quotas", "quotas", "How much clients may do at brokers: list, alter."),
        ("grants", "grants", "What the storage must allow so that it agrees with the ACLs."),
        ("records", "records", "Delete the records before an offset."),
        ("root", "root", "The root's identity and settings; sweep and restore it."),
        ("metadata", "metadata", "Commits, and what the metadata says after any of them."),
        ("brokers", "brokers", "Brokers: list, describe, unregister."),
        ("users", "users", "Users with a password: list, create, delete."),
        ("controller", "brokers", "The controller, and what waits for it."),
        ("partitions", "partitions", "Leaders and replicas of partitions: list, reassign, elect."),
        ("transactions", "transactions", "Transactional ids: list, describe, abort, forget, find-hanging."),
        ("maintain", "maintenance", "Expire, compact, optimize and vacuum, as is due."),
        ("optimize", "maintenance", "Merge small extents into large segments."),
        ("compact", "maintenance", "Keep the last record of each key."),
        ("expire", "maintenance", "Remove records past their topic's retention."),
        ("vacuum", "maintenance", "Remove the files that nothing refers to."),
        ("perf", "perf", "Measure producing, consuming and end-to-end latency."),
        ("verify", "verify", "Produce and consume with a JSON line for each event, for tests."),
        ("mirror", "mirror", "Copy topics, records and groups' offsets from a Kafka cluster."),
        ("top", "top", "Topics, groups and due maintenance, live."),
        ("dump-log", "dump_log", "Show what a segment or index file holds."),
        ("cost", "cost", "What a load costs on an object store in a month."),
        ("doctor", "doctor", "Check Python, Java, Spark and a root."),
        ("completion", "completion", "Print the script by which a shell completes commands and options."),
        ("console", "console", "Look at a root in a browser."),
        ("demo", "demo", "See exactly-once delivery on real data, while processes are killed."),
    )
}


# Errors of a write without a file's name: the root's storage has its own errors, so it is stdout's disk.
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class RootGroup(TopGroup):
    """The top command; turns an exception into a message and an exit code."""

    lazy = COMMANDS

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_AS_JSON] = asks_for_json(args)
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        parse = super().parse_args
        return _reporting_failures(ctx, lambda: parse(ctx, args))  # --help and --version print, too

    def invoke(self, ctx: click.Context) -> object:
        invoke = super().invoke
        return _reporting_failures(ctx, lambda: invoke(ctx))


def _reporting_failures(ctx: click.Context, run: Callable[[], R]) -> R:
    """Run a part of a command; an error ends it with a message and an exit code."""
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
        shown = in_our_words(error)
        if isinstance(shown, click.UsageError) and not ctx.meta[_AS_JSON]:
            raise shown from None  # click shows the usage, too
        _report(ctx, shown, shown.format_message(), exit_code=shown.exit_code)
    except BrokenPipeError as error:
        if not reader_left(sys.stdout):
            _report(ctx, error, str(error))
        _drop_what_stdout_did_not_take()
        ctx.exit(0)
    except (SparklogError, OSError) as error:
        failure = in_shell_words(error)
        is_of_stdout = isinstance(error, OSError) and error.filename is None and error.errno in _FULL
        _report(ctx, failure, f"stdout: {failure}" if is_of_stdout else str(failure))
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


@click.group("sparklog", cls=RootGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(None, "--version", "-V", package_name="sparklog", message="sparklog %(version)s")
def cli() -> None:
    """sparklog: a Kafka-style commit log native to PySpark, on a directory.

    \b
    Start with:  sparklog demo
    On a log:    sparklog --root DIR topics list        (or SPARKLOG_ROOT=DIR)
    Details:     sparklog help topics create
    """  # noqa: D301 - click looks for the character, not for a backslash and a b


cli.params += common_options()


def main() -> None:
    """Console script."""
    # NumPy's linear algebra is not used, and starts a thread for each core: 40 ms of CPU.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if not prepare_stdout():
        note("Error: stdout is closed. Open it, or send it to /dev/null.")
        sys.exit(1)
    cli(prog_name="sparklog")
