"""Commands, and groups that import a command only when it runs, so that `--help` starts at once.

Invariants: listing commands imports none of them; a hidden command is found but not listed; a
misspelt name is answered with the nearest ones, a tool of Kafka's with what does its work.
What is typed counts or is refused: of an option with one value that is given twice, neither is dropped.
Not here: which commands there are (main.py).
"""

from __future__ import annotations

import difflib
import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, ClassVar, TypeVar

import click

from sparklog.cli.kafka_words import why_no_command
from sparklog.errors import SparklogError, UnknownTopicError

if TYPE_CHECKING:
    from sparklog.client import SparkLog
    from sparklog.client.brokers import ControllerClient

# --- near names --------------------------------------------------------------------------------------
#
# Names of topics and groups that were meant: "did you mean".
#
# Looked for here and not where a topic is missed, since the broker looks topics up for whoever asks, and
# comparing a name with thousands of others takes long.


def require_topics(log: SparkLog, names: Iterable[str]) -> None:
    """Refuse a topic that does not exist, with the name of one that does.

    Raises:
        UnknownTopicError: TOPIC_MISSING.
    """
    from sparklog.metadata import why_illegal_topic_name

    known = log.topics(include_internal=True)
    for name in names:
        if name not in known:
            fix = f"correct the name, or create it: sparklog topics create --topic {name}"
            if (why := why_illegal_topic_name(name)) is not None:
                fix = (
                    f"correct the name: {why}; `topics list`, `describe`, `delete` and `offsets get` take a "
                    "regular expression with --pattern"
                )
            raise UnknownTopicError(
                "TOPIC_MISSING", f"topic {name!r}: not found{did_you_mean(name, known)}", fix=fix
            )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'flights'?`, or nothing."""
    near = difflib.get_close_matches(name, known, n=3)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


# --- plain text --------------------------------------------------------------------------------------
#
# Text of others as a line of ours: names of groups, values of settings, answers of brokers.
#
# Whoever may commit an offset chooses a name, and its characters: a line feed would make a row of it in
# somebody's table, an escape sequence drive his terminal, an override of direction turn the rest of the line.
# Invariants: what is printed in a line stays in it, and what cannot be seen is seen, as an escape. JSON says
#     the same text exactly, and has in it no character that a terminal obeys.
# Not here: the records of `consume`, which are bytes for whoever asked for them.
# Concurrency: pure.
# Sources: https://trojansource.codes; ECMA-48 (C1, as which U+009B begins a sequence like ESC [ does).


# What JSON does not escape by itself: DEL and C1, marks and overrides of direction, separators of lines,
# halves of pairs (as which Python has the bytes of names that are not UTF-8).
OBEYED = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def plain(text: str, *, keep: str = "") -> str:
    r"""The text in one line: `\n`, `\u001b`, `\u202e` for what is not to be printed.

    Args:
        keep: characters that are meant.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else _escape(one) for one in text)


def json_text(
    document: object, *, indent: int | None = None, separators: tuple[str, str] | None = None
) -> str:
    """A document as JSON, in UTF-8 where that is harmless."""
    text = json.dumps(document, indent=indent, ensure_ascii=False, separators=separators)
    return OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escape(character: str) -> str:
    """As in JSON, so that a text which is JSON stays it."""
    escaped = json.dumps(character)[1:-1]
    return escaped if escaped != character else f"\\u{ord(character):04x}"


# --- notes -------------------------------------------------------------------------------------------
#
# What a command tells the user beside its result, on stderr.
#
# Invariants: telling never raises. A command's work is not given up, midway and maybe half counted, because
# nobody reads stderr any more.
# Not here: results (output.py).


_MEANT = "\n\r\t"  # in messages of ours; others' words in them are made plain where they are put in


def note(message: str, *, end: str = "\n") -> None:
    """Tell the user something that is not a result, if there is somebody to be told."""
    try:
        click.echo(f"{plain(message, keep=_MEANT)}{end}", err=True, nl=False)
    except BrokenPipeError:
        # Python flushes stderr once more on its way out, and its exit code would be that of a failure.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    except (OSError, ValueError):  # such as a terminal that is gone; a stream that is closed
        pass


def is_terminal(stream: IO[Any] | None) -> bool:
    """Does a person sit there? Python has no stream where the descriptor is closed."""
    return stream is not None and stream.isatty()


def show_warnings() -> None:
    """From now on, what sparklog's modules warn of goes to stderr."""
    import logging

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            note(f"Warning: {plain(record.getMessage())}.")

    logger = logging.getLogger("sparklog")
    if not any(type(one).__name__ == Notes.__name__ for one in logger.handlers):
        logger.addHandler(Notes(logging.WARNING))


# --- settings ----------------------------------------------------------------------------------------
#
# What every command takes: where the log is, how to print, how much to say of an error.
#
# These options may stand before the command or after it; the last one wins. `Settings` travels in
# click's context object.


F = TypeVar("F", bound=Callable[..., object])


@dataclass(slots=True)
class Settings:
    """Options common to all commands."""

    root: str | None = None
    bootstrap_server: str | None = None
    cluster_id: str | None = None
    output: str = "table"
    debug: bool = False

    @property
    def json(self) -> bool:
        return self.output == "json"

    def named_root(self) -> str | None:
        """The root to work on: --root, or that of the broker of --bootstrap-server, or SPARKLOG_ROOT."""
        if self.root and self.bootstrap_server:
            raise click.UsageError(
                "--root and --bootstrap-server both say where the log is: give one of them."
            )
        if self.bootstrap_server:
            from sparklog.client.brokers import find_broker_root
            from sparklog.storage.root_rules import root_rules

            rules = root_rules(self.cluster_id, None, os.environ)
            return find_broker_root(self.bootstrap_server, rules=rules).root
        return self.root or os.environ.get("SPARKLOG_ROOT")

    def required_root(self) -> str:
        """The root to work on; a usage error when none was named."""
        root = self.named_root()
        if not root:
            raise click.UsageError(
                "no root is named: give --root DIR, or set SPARKLOG_ROOT=DIR, "
                "or name a broker with --bootstrap-server HOST:PORT."
            )
        return root

    def open_log(self, *, create: bool = False) -> SparkLog:
        """Open the log; imports the engine, so `--help` does not pay for it."""
        from sparklog.client import open_log

        show_warnings()
        return open_log(self.required_root(), create=create, cluster_id=self.cluster_id)

    def controller(self, log: SparkLog) -> ControllerClient:
        """Who may decide for the brokers of a log that is open: asked for by the broker that was named, or by
        those that the root knows.
        """
        from sparklog.client.brokers import ControllerClient

        return ControllerClient(log.image, log.clock, bootstrap_servers=self.bootstrap_server)


def current() -> Settings:
    """The settings of the command that runs."""
    settings = click.get_current_context().find_object(Settings)
    assert settings is not None
    return settings


def _store(ctx: click.Context, parameter: click.Parameter, value: object) -> None:
    settings = ctx.ensure_object(Settings)
    if value == "":  # a variable of a script that is not set: another root would be taken instead
        raise click.BadParameter("it is empty: give it a value, or leave it out.", ctx=ctx, param=parameter)
    if value is not None and parameter.name is not None:
        setattr(settings, parameter.name, value)


def _allow_unsafe(_ctx: click.Context, _parameter: click.Parameter, value: object) -> None:
    """By the environment, so that it also holds for processes that a command starts."""
    if value:
        os.environ["SPARKLOG_ALLOW_UNSAFE_FILESYSTEM"] = "true"


def common_options(function: F) -> F:
    """Add --root, --bootstrap-server, --cluster-id, --allow-unsafe-filesystem, --output and --debug."""
    return _with_options(function, "--bootstrap-server", "--broker-list")


def common_options_without_broker_list(function: F) -> F:
    """The same for a command that has a --broker-list of its own: ids of brokers, as Kafka has it there."""
    return _with_options(function, "--bootstrap-server")


def _with_options(function: F, *names_of_servers: str) -> F:
    for option in reversed(
        (
            click.option(
                "--root",
                metavar="DIR",
                callback=_store,
                expose_value=False,
                help="Directory of the log, or s3://bucket/prefix. [env: SPARKLOG_ROOT]",
            ),
            click.option(
                "--output",
                type=click.Choice(["table", "json"]),
                callback=_store,
                expose_value=False,
                help="How to print results; JSON field names are stable.",
            ),
            click.option(
                "--debug",
                is_flag=True,
                default=None,
                callback=_store,
                expose_value=False,
                help="Show the traceback of an error.",
            ),
            click.option(
                "--allow-unsafe-filesystem",
                is_flag=True,
                default=None,
                callback=_allow_unsafe,
                expose_value=False,
                help="Open a root also where names are cached (NFS, SMB, FUSE, shared folders); see "
                "docs/filesystems.md. [env: SPARKLOG_ALLOW_UNSAFE_FILESYSTEM]",
            ),
            click.option(
                *names_of_servers,
                metavar="HOST:PORT",
                callback=_store,
                expose_value=False,
                help="A broker of the log: it is asked for its root, everything else goes to the storage.",
            ),
            click.option(
                "--cluster-id",
                metavar="ID",
                callback=_store,
                expose_value=False,
                help="The log that is meant (root describe shows it): any other is refused, none is made.",
            ),
        )
    ):
        function = option(function)
    return function


# --- failures ----------------------------------------------------------------------------------------
#
# How a failure is told: on stderr, as text, or as one JSON object where JSON was asked for.
#
# The object's fields are API (docs/cli.md). On a terminal the fix has a line of its own, and the SQLSTATE is
# left out; in a pipe the message is that of the exception, as it stands in logs. Where what to do next is
# said in Python's words, the shell has its own.
# Not here: which failures there are (sparklog/errors.py), exit codes (main.py).


USAGE = "USAGE"
FAILED = "FAILED"
_FIXES = {
    "BROKER_UNREACHABLE": "check the address, and that sparklog-server runs there; no broker is needed "
    "where the root is at hand: --root DIR",
    "ROOT_NOT_FOUND": "check the path, or make a root there: sparklog topics create",
}


def asks_for_json(arguments: Sequence[str]) -> bool:
    """Does a command line say `--output json`? Its words are looked at, for it may be past parsing."""
    asked = False
    for word, value in zip(arguments, [*arguments[1:], ""], strict=True):
        if word == "--":
            break
        if word == "--output":
            asked = value == "json"
        elif word.startswith("--output="):
            asked = word == "--output=json"
    return asked


def in_shell_words(error: Exception) -> Exception:
    """The same error, with what to do next as it can be typed."""
    if isinstance(error, SparklogError) and error.code in _FIXES:
        return type(error)(error.code, error.message, fix=_FIXES[error.code])
    return error


def show_failure(error: Exception, message: str, *, as_json: bool) -> None:
    """Tell of an error; `message` is its text."""
    if as_json:
        note(json_text({"error": _document(error, message)}))
    elif isinstance(error, SparklogError) and is_terminal(sys.stderr):
        fix = error.fix.rstrip(".")
        problem, _, _ = message.rpartition(f" Fix: {fix}. ")
        note(f"Error: {plain(problem)}\nFix: {plain(fix)}.")
    else:
        note(f"Error: {plain(message)}")


def _document(error: Exception, message: str) -> dict[str, str | None]:
    if isinstance(error, SparklogError):
        return {
            "code": f"SPARKLOG_{error.code}",
            "message": error.message,
            "fix": error.fix,
            "sqlstate": error.sqlstate,
        }
    code = USAGE if isinstance(error, click.UsageError) else FAILED
    return {"code": code, "message": message, "fix": None, "sqlstate": None}


# --- group -------------------------------------------------------------------------------------------


_KAFKA = "kafka-"  # who begins so means one of Kafka's names, which are hidden


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """Where a command lives, and what the list of commands says about it."""

    module: str
    attribute: str
    help: str
    hidden: bool = False

    def load(self) -> click.Command:
        command = getattr(importlib.import_module(self.module), self.attribute)
        assert isinstance(command, click.Command)
        return command


class OnceCommand(click.Command):
    """A command that refuses an option given twice, unless it takes several values: click would let the last
    one win, and forget the others without a word. Kafka's tools refuse it, too. The common options may be
    given anywhere, and there the last one wins.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            given = [one for one in self.make_parser(ctx).parse_args([*args])[2] if _has_one_value(one)]
            twice = next((one for one in given if given.count(one) > 1), None)
            if twice is not None:
                raise click.BadParameter("it is given more than once, and takes one value.", ctx, twice)
        return super().parse_args(ctx, args)


def _has_one_value(parameter: click.Parameter) -> bool:
    return (
        isinstance(parameter, click.Option)
        and parameter.expose_value
        and not (parameter.multiple or parameter.is_flag or parameter.count)
    )


class LazyGroup(click.Group):
    """A group whose commands may be named in a table, to be imported when used."""

    command_class = OnceCommand
    lazy: ClassVar[Mapping[str, LazyCommand]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        listed = [name for name, command in self.lazy.items() if not command.hidden]
        return sorted({*listed, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.lazy:
            return self.lazy[cmd_name].load()
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing and not name.startswith("-"):
            if (why := why_no_command(name)) is not None:
                raise click.UsageError(f"{name} is not known here: {why}.", ctx=ctx)
            meant = self.list_commands(ctx)
            if name.startswith(_KAFKA):
                meant = [known for known in self.lazy if known.startswith(_KAFKA)]
            raise click.exceptions.NoSuchCommand(name, possibilities=meant, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, self._short_help(ctx, name)) for name in self.list_commands(ctx)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def _short_help(self, ctx: click.Context, name: str) -> str:
        if name in self.lazy:
            return self.lazy[name].help
        command = super().get_command(ctx, name)
        return command.get_short_help_str(limit=100) if command else ""
