"""`sparklog users`: users who authenticate with SCRAM or PLAIN, as those of `kafka-configs`.

A change is a commit of the metadata log, which brokers follow: none is asked. A password is read from a
terminal or a file, never from the command line, where other users of the machine would see it.
Not here: the exchange (client/scram.py), permissions.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

import click

from sparklog.cli.framework import Group, confirm, current, is_terminal, yes_option
from sparklog.cli.output import show, show_rows
from sparklog.errors import InvalidRequestError

if TYPE_CHECKING:
    from sparklog.metadata import Action, Image

COLUMNS = "user mechanism iterations"
_NAMES = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_mechanism_option = click.option(
    "--mechanism",
    "names",
    multiple=True,
    type=click.Choice(_NAMES),
    help="Only for this one; repeatable. By default for both.",
)


@click.group("users", cls=Group)
def users() -> None:
    """Users with a password (SCRAM, PLAIN)."""


@users.command("list")
def list_users() -> None:
    """List the users, and the mechanisms for which each has a credential."""
    image = current().open_root().refresh()
    rows: list[dict[str, object]] = [
        {"user": user, "mechanism": mechanism, "iterations": one.iterations}
        for user, own in sorted(image.scram.credentials.items())
        for mechanism, one in sorted(own.items())
    ]
    show_rows(COLUMNS, rows)


@users.command("create")
@click.argument("user", metavar="NAME")
@_mechanism_option
@click.option("--iterations", type=click.IntRange(4096, 16_384), default=4096, show_default=True)
@click.option(
    "--password-file",
    "file",
    type=click.File("r"),
    metavar="FILE",
    help="Its first line is the password; - is stdin. By default it is asked for.",
)
@click.option("--replace", is_flag=True, help="Also where the user exists: it gets a new password.")
def create(user: str, names: tuple[str, ...], iterations: int, file: TextIO | None, replace: bool) -> None:
    """Create a user, or give one a new password."""
    from sparklog.client.scram import Mechanism, new_credential
    from sparklog.metadata import plan_scram_feature, plan_set_scram_credential

    root = current().open_root()
    _refuse_existing(root.refresh(), user, replace=replace)
    mechanisms = [Mechanism(name) for name in names or _NAMES]
    password = _password(file)
    credentials = {one: new_credential(one, password, iterations) for one in mechanisms}

    def plan(image: Image) -> list[Action]:
        _refuse_existing(image, user, replace=replace)
        first = plan_scram_feature(image)
        changes = [
            plan_set_scram_credential(image, user, one.value, found) for one, found in credentials.items()
        ]
        return [*changes] if first is None else [first, *changes]

    root.metadata.publish(plan)
    show(
        {"user": user, "mechanisms": [one.value for one in mechanisms]},
        f"User {user} can log in with {' and '.join(one.value for one in mechanisms)}.",
    )


@users.command("delete")
@click.argument("user", metavar="NAME")
@_mechanism_option
@yes_option
def delete(user: str, names: tuple[str, ...], yes: bool) -> None:
    """Delete a user, or one mechanism of it. Its connections go on until they have to authenticate again."""
    from sparklog.metadata import plan_delete_scram_credential

    root = current().open_root()
    own = sorted(root.refresh().scram.credentials.get(user, {}))
    wanted = [*names] or own
    if not own:
        raise InvalidRequestError(
            "USER_MISSING", f"user {user!r}: not found", fix="`sparklog users list` shows the users"
        )
    confirm(f"Delete user {user} ({', '.join(wanted)})?", yes=yes)
    root.metadata.publish(lambda image: [plan_delete_scram_credential(image, user, one) for one in wanted])
    show({"user": user, "deleted": wanted}, f"User {user} can no longer log in with {' or '.join(wanted)}.")


def _refuse_existing(image: Image, user: str, *, replace: bool) -> None:
    if user in image.scram.credentials and not replace:
        raise InvalidRequestError(
            "INVALID_USER", f"user {user!r} exists", fix="--replace gives it a new password"
        )


def _password(file: TextIO | None) -> str:
    if file is not None:
        return file.readline().rstrip("\r\n")
    if not is_terminal(sys.stdin):
        raise click.UsageError("nobody can be asked without a terminal: give --password-file FILE.")
    return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
