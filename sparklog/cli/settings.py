"""What every command takes: where the log is, how to print, how much to say of an error.

The options may stand before the command or after it; the last one wins. `Settings` travels in
click's context object.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from sparklog.client import SparkLog

F = TypeVar("F", bound=Callable[..., object])


@dataclass(slots=True)
class Settings:
    """Options common to all commands."""

    root: str | None = None
    output: str = "table"
    debug: bool = False

    @property
    def json(self) -> bool:
        return self.output == "json"

    def required_root(self) -> str:
        """The root to work on; a usage error when none was named."""
        root = self.root or os.environ.get("SPARKLOG_ROOT")
        if not root:
            raise click.UsageError("no root is named: give --root DIR, or set SPARKLOG_ROOT=DIR.")
        return root

    def open_log(self, *, create: bool = False) -> SparkLog:
        """Open the log; imports the engine, so `--help` does not pay for it."""
        import sparklog

        return sparklog.open(self.required_root(), create=create)


def current() -> Settings:
    """The settings of the command that runs."""
    settings = click.get_current_context().find_object(Settings)
    assert settings is not None
    return settings


def _store(ctx: click.Context, parameter: click.Parameter, value: object) -> None:
    settings = ctx.ensure_object(Settings)
    if value is not None and parameter.name is not None:
        setattr(settings, parameter.name, value)


def _refuse_servers(ctx: click.Context, _parameter: click.Parameter, value: object) -> None:
    if value is not None:
        raise click.UsageError(
            "--bootstrap-server names a broker, and this log has none: it is a directory. "
            "Name it with --root DIR, or SPARKLOG_ROOT=DIR.",
            ctx=ctx,
        )


def common_options(function: F) -> F:
    """Add --root, --output and --debug (and the refusal of --bootstrap-server)."""
    for option in reversed(
        (
            click.option(
                "--root",
                metavar="DIR",
                callback=_store,
                expose_value=False,
                help="Directory of the log. [env: SPARKLOG_ROOT]",
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
                "--bootstrap-server",
                "--broker-list",
                hidden=True,
                is_eager=True,
                callback=_refuse_servers,
                expose_value=False,
            ),
        )
    ):
        function = option(function)
    return function
