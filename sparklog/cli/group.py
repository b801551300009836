"""Commands, and groups that import a command only when it runs, so that `--help` starts at once.

Invariants: listing commands imports none of them; a hidden command is found but not listed; a
misspelt name is answered with the nearest ones, a tool of Kafka's with what does its work.
What is typed counts or is refused: of an option with one value that is given twice, neither is dropped.
Not here: which commands there are (main.py).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import click

from sparklog.cli.kafka_words import why_no_command

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
    given anywhere, and there the last one wins (settings.py).
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
