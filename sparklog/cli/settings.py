"""What every command takes: where the log is, how to print, how much to say of an error.

These options may stand before the command or after it; the last one wins. `Settings` travels in
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
    from sparklog.client.controller import ControllerClient

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
            from sparklog.client.broker_root import find_broker_root
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
        from sparklog.cli.notes import show_warnings
        from sparklog.client import open_log

        show_warnings()
        return open_log(self.required_root(), create=create, cluster_id=self.cluster_id)

    def controller(self, log: SparkLog) -> ControllerClient:
        """Who may decide for the brokers of a log that is open: asked for by the broker that was named, or by
        those that the root knows.
        """
        from sparklog.client.controller import ControllerClient

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
