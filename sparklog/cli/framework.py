"""What all commands share: their options, the text they may print, and how they report errors.

A group imports a command only when it runs, so that `--help` starts quickly. An option that takes one value
is refused when it is given twice: click would let the last one win and drop the others silently.
Not here: the list of commands (main.py), tables and JSON (output.py), Kafka's names (kafka.py).
"""

from __future__ import annotations

import difflib
import importlib
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, ClassVar, NamedTuple

import click

from sparklog.cli import kafka
from sparklog.errors import SparklogError, UnknownTopicError
from sparklog.wording import plain

if TYPE_CHECKING:
    from sparklog.client import OpenedRoot, SparkLog
    from sparklog.client.brokers import ControllerClient
    from sparklog.client.group_coordinators import GroupCoordinators
    from sparklog.client.security import ClientSecurity

# --- text --------------------------------------------------------------------------------------------
#
# A printed line shows characters that a terminal acts on as escapes (sparklog/wording.py). JSON holds the
# exact text, and no such character.

# What JSON does not escape: DEL and C1 controls, direction marks, line separators, lone surrogates.
OBEYED = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def json_text(
    document: object, *, indent: int | None = None, separators: tuple[str, str] | None = None
) -> str:
    """A document as JSON, in UTF-8 except for characters that a terminal acts on."""
    text = json.dumps(document, indent=indent, ensure_ascii=False, separators=separators)
    return OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def note(message: str, *, end: str = "\n") -> None:
    """Print a message to stderr. Never raises: a command must not stop because nobody reads stderr."""
    try:
        click.echo(plain(message, keep="\n\r\t") + end, err=True, nl=False)
    except BrokenPipeError:
        # Python flushes stderr again at exit, and would fail then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    except (OSError, ValueError):  # the terminal is gone; the stream is closed
        pass


def is_terminal(stream: IO[Any] | None) -> bool:
    """True if a person may read or type there. The stream is None where its descriptor is closed."""
    return stream is not None and stream.isatty()


def show_warnings() -> None:
    """Print warnings of sparklog's modules to stderr from now on."""
    import logging

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            note(f"Warning: {plain(record.getMessage())}.")

    logger = logging.getLogger("sparklog")
    if not any(type(handler).__name__ == Notes.__name__ for handler in logger.handlers):
        logger.addHandler(Notes(logging.WARNING))


# --- settings ----------------------------------------------------------------------------------------


class Settings:
    """The options of every command. They stand before the command or after it; the last one wins."""

    root: str | None = None
    bootstrap_server: str | None = None
    cluster_id: str | None = None
    command_config: str | None = None
    output: str = "table"
    debug: bool = False
    watch_seconds: float | None = None
    watched: OpenedRoot | None = None

    @property
    def json(self) -> bool:
        """True if the result is a document: JSON, or the same in another format (output.py)."""
        return self.output not in {"table", "wide"}

    def named_root(self) -> str | None:
        """The root of --root, or of the broker of --bootstrap-server, or of SPARKLOG_ROOT."""
        if self.root and self.bootstrap_server:
            raise click.UsageError(
                "--root and --bootstrap-server both say where the log is: give one of them."
            )
        if self.bootstrap_server:
            from sparklog.client.brokers import find_broker_root
            from sparklog.storage.root_rules import root_rules

            rules = root_rules(self.cluster_id, None, os.environ)
            return find_broker_root(self.bootstrap_server, rules=rules, security=self.security()).root
        return self.root or os.environ.get("SPARKLOG_ROOT")

    def security(self) -> ClientSecurity:
        """How to connect to brokers: the settings of --command-config, else without TLS and SASL."""
        from sparklog.client.security import PLAINTEXT, read_client_security

        return PLAINTEXT if self.command_config is None else read_client_security(self.command_config)

    def open_log(self, *, create: bool = False) -> SparkLog:
        """Open the log; imports the engine, so `--help` does not pay for it."""
        from sparklog.client import SparkLog

        opened = self.open_root(create=create)
        return SparkLog(opened.store, opened.metadata, opened.clock)

    def open_root(self, *, create: bool = False) -> OpenedRoot:
        """Open the metadata, for a command that reads no records: half the imports."""
        from sparklog.client import open_root

        if self.watched is not None:
            self.watched.refresh(force=True)
            return self.watched
        show_warnings()
        root = self.named_root()
        if not root:
            raise click.UsageError(
                "no root is named: give --root DIR, or set SPARKLOG_ROOT=DIR, "
                "or name a broker with --bootstrap-server HOST:PORT."
            )
        opened = open_root(root, create=create, cluster_id=self.cluster_id)
        if self.watch_seconds is not None:
            self.watched = opened
        return opened

    def controller(self, log: OpenedRoot) -> ControllerClient:
        """A client of the controller: through --bootstrap-server, or the brokers that the root names."""
        from sparklog.client.brokers import ControllerClient

        return ControllerClient(
            log.image, log.clock, bootstrap_servers=self.bootstrap_server, security=self.security()
        )

    def coordinators(self, log: SparkLog, *, timeout_ms: int) -> GroupCoordinators | None:
        """A client of the groups' coordinators, through --bootstrap-server; None without it."""
        if self.bootstrap_server is None:
            return None
        from sparklog.client.group_coordinators import GroupCoordinators

        return GroupCoordinators(
            log.cluster_id,
            log.clock,
            self.bootstrap_server,
            timeout_ms=timeout_ms,
            security=self.security(),
        )


def current() -> Settings:
    """The settings of the running command."""
    settings = click.get_current_context().find_object(Settings)
    assert settings is not None
    return settings


def _store(ctx: click.Context, parameter: click.Parameter, value: object) -> None:
    settings = ctx.ensure_object(Settings)
    if value == "":  # an unset variable of a script: without this, another root would be used
        raise click.BadParameter("it is empty: give it a value, or leave it out.", ctx=ctx, param=parameter)
    if parameter.name == "allow_unsafe_filesystem" and value:
        os.environ["SPARKLOG_ALLOW_UNSAFE_FILESYSTEM"] = "true"  # also for processes that a command starts
    elif value is not None and parameter.name is not None:
        setattr(settings, parameter.name, value)


_COMMON: Sequence[tuple[str, dict[str, Any]]] = (
    (
        "--root",
        {"metavar": "DIR", "help": "The log: a directory, or the URL of a bucket. [env: SPARKLOG_ROOT]"},
    ),
    (
        "--bootstrap-server",
        {"metavar": "HOST:PORT", "help": "A broker, which names its root; all else goes to the storage."},
    ),
    (
        "--command-config",
        {
            "metavar": "FILE",
            "help": "How to connect to brokers: security.protocol, sasl.*, ssl.* as of Kafka's clients.",
        },
    ),
    ("--cluster-id", {"metavar": "ID", "help": "Refuse any other log (`root describe` shows the id)."}),
    (
        "--allow-unsafe-filesystem",
        {
            "is_flag": True,
            "default": None,
            "help": "Open a root on NFS, SMB, FUSE or a shared folder; see docs/filesystems.md. "
            "[env: SPARKLOG_ALLOW_UNSAFE_FILESYSTEM]",
        },
    ),
    (
        "--output",
        {
            "type": click.Choice(["table", "wide", "json", "jsonl", "csv", "yaml"]),
            "help": "Format; wide: every field; JSON field names are stable.",
        },
    ),
    ("--debug", {"is_flag": True, "default": None, "help": "Show the traceback of an error."}),
)


def common_options(*, hidden: bool = False) -> list[click.Parameter]:
    return [
        click.Option([name], callback=_store, expose_value=False, hidden=hidden, **attributes)
        for name, attributes in _COMMON
    ]


def _watch_option() -> click.Option:
    return click.Option(
        ["--watch", "watch_seconds"],
        callback=_store,
        expose_value=False,
        is_flag=False,
        flag_value="2",
        type=click.FloatRange(min=0.1, max=86_400),
        metavar="[SECONDS]",
        help="Show it again after so many seconds (2), until Ctrl-C.",
    )


# --- commands ----------------------------------------------------------------------------------------


class LazyCommand(NamedTuple):
    """Where a command lives, and its line in the list of commands."""

    module: str
    attribute: str
    help: str


_POSITIONAL = ("-t", "-g", "--transactional-id")


class Command(click.Command):
    """A command with the common options, which only `sparklog --help` lists."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        if self.name in {"list", "describe"}:
            self.params.append(_watch_option())
        self.params += common_options(hidden=True)

    def invoke(self, ctx: click.Context) -> Any:
        seconds = current().watch_seconds
        if seconds is None:
            return super().invoke(ctx)
        watching = importlib.import_module("sparklog.cli.watching")  # which imports this module
        return watching.watch(ctx, lambda: super(Command, self).invoke(ctx), seconds)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            words = self.make_parser(ctx).parse_args([*args])[1]
            name = self._positional()
            if words and name is not None:  # they stay among `args`, too, and are ignored there
                args = [*(part for word in words for part in (name, word)), *args]
                ctx.allow_extra_args = True
            given = [one for one in self.make_parser(ctx).parse_args([*args])[2] if _has_one_value(one)]
            twice = next((one for one in given if given.count(one) > 1), None)
            if twice is not None:
                raise click.BadParameter("it is given more than once, and takes one value.", ctx, twice)
        return super().parse_args(ctx, args)

    def _positional(self) -> str | None:
        """The option of which a word alone is the value: `consume orders`. None in commands that delete."""
        options = {name for parameter in self.params for name in parameter.opts}
        if "--yes" in options or any(isinstance(one, click.Argument) for one in self.params):
            return None
        return next((name for name in _POSITIONAL if name in options), None)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        formatter.write_paragraph()
        formatter.write_text("Every command also takes --root, --output json, ...: see sparklog --help.")


def _has_one_value(parameter: click.Parameter) -> bool:
    return (
        isinstance(parameter, click.Option)
        and parameter.expose_value
        and not (parameter.multiple or parameter.is_flag or parameter.count)
    )


class Group(click.Group):
    """A group whose commands may stand in a table, and are imported when they run."""

    command_class = Command
    lazy: ClassVar[Mapping[str, LazyCommand]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.lazy, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        found = self.lazy[cmd_name]
        command = getattr(importlib.import_module(found.module), found.attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-") and not ctx.resilient_parsing:
            raise click.exceptions.NoSuchCommand(name, possibilities=self.known_names(ctx), ctx=ctx)
        return super().resolve_command(ctx, args)

    def known_names(self, ctx: click.Context) -> list[str]:
        return self.list_commands(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._short_help(ctx, name)) for name in self.list_commands(ctx)])

    def _short_help(self, ctx: click.Context, name: str) -> str:
        if name in self.lazy:
            return self.lazy[name].help
        command = super().get_command(ctx, name)
        return command.get_short_help_str(limit=100) if command else ""


class TopGroup(Group):
    """The top command, which also knows Kafka's names."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        return super().resolve_command(ctx, args if ctx.resilient_parsing else kafka.translate(args))

    def known_names(self, ctx: click.Context) -> list[str]:
        return [*self.list_commands(ctx), *kafka.TOOLS]


# --- names and confirmations -------------------------------------------------------------------------


def require_topics(log: OpenedRoot, names: Iterable[str]) -> None:
    """Raise UnknownTopicError TOPIC_MISSING for the first topic that does not exist, with a near name."""
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


internal_option = click.option(
    "--include-internal/--exclude-internal",
    "with_internal",
    default=False,
    help="Also Kafka's own topics. By default they are left out.",
)
force_option = click.option(
    "--force", is_flag=True, help="Also where a broker has served the root, and is gone for good."
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Only show what would be done.")
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


def confirm(question: str, *, yes: bool, warning: str = "", required: bool = False) -> None:
    """Ask at a terminal, unless `yes`. Elsewhere nobody can be asked: go on, or if `required`, refuse.

    Raises:
        click.Abort: the answer is no.
        click.UsageError: nobody can be asked, and `required`.
    """
    if yes:
        return
    if is_terminal(sys.stdin):
        if warning:
            note(warning)
        click.confirm(question, abort=True, err=True)
    elif required:
        raise click.UsageError(f"nobody can be asked without a terminal: give --yes. {warning}".rstrip())


# --- failures ----------------------------------------------------------------------------------------
#
# An error goes to stderr, as text, or after `--output json` as a JSON object, whose fields are API
# (docs/cli.md). On a terminal the fix has a line of its own, and the SQLSTATE is left out.

_FIXES = {  # in the words of the shell, where the exception has Python's
    "BROKER_UNREACHABLE": "check the address, and that sparklog-server runs there; no broker is needed "
    "where the root is at hand: --root DIR",
    "ROOT_NOT_FOUND": "check the path, or make a root there: sparklog topics create",
}


def asks_for_json(arguments: Sequence[str]) -> bool:
    """True if a command line says `--output json`, jsonl or yaml. It may be one that cannot be parsed."""
    formats = ("json", "jsonl", "yaml")  # JSON is YAML
    asked = False
    for word, value in zip(arguments, [*arguments[1:], ""], strict=True):
        if word == "--":
            break
        if word == "--output" or word.startswith("--output="):
            asked = (value if word == "--output" else word.removeprefix("--output=")) in formats
    return asked


def in_shell_words(error: Exception) -> Exception:
    """The same error, with a fix that can be typed in a shell."""
    if isinstance(error, SparklogError) and error.code in _FIXES:
        return type(error)(error.code, error.message, fix=_FIXES[error.code])
    return error


def show_failure(error: Exception, message: str, *, as_json: bool) -> None:
    """Report an error; `message` is its text."""
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
        code = f"SPARKLOG_{error.code}"
        return {"code": code, "message": error.message, "fix": error.fix, "sqlstate": error.sqlstate}
    code = "USAGE" if isinstance(error, click.UsageError) else "FAILED"
    return {"code": code, "message": message, "fix": None, "sqlstate": None}
