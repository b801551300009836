"""`sparklog quotas`: how much users, client ids and addresses may do at brokers.

The quotas are in the root, so no broker is asked; every broker follows them.
Sources: Kafka ConfigCommand (entity types users, clients, ips).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from sparklog.cli.framework import Group, current, dry_run_option
from sparklog.cli.output import Row, show_json, show_rows, tell

if TYPE_CHECKING:
    from sparklog.metadata import QuotaEntity

COLUMNS = "user client_id ip quota value"
KAFKA = "kafka-configs"
_WORDS = {"user": "user-principal", "client-id": "client-id", "ip": "ip"}
DEFAULT = "<default>"


@click.group("quotas", cls=Group)
def quotas() -> None:
    """How much clients may do at brokers: list, alter."""


@quotas.command("list")
@click.option("--as", "tool", type=click.Choice([KAFKA]), hidden=True)
def list_quotas(tool: str | None) -> None:
    """List the quotas of all entities."""
    found = current().open_root().image.quotas
    if tool is not None and not current().json:
        for entity, own in sorted(found.items(), key=str):
            values = ", ".join(f"{key}={value}" for key, value in sorted(own.items()))
            tell(f"Quota configs for {', '.join(map(_kafka_words, reversed(entity)))} are {values}")
        return
    rows = [
        _row(entity) | {"quota": key, "value": value}
        for entity, own in sorted(found.items(), key=str)
        for key, value in sorted(own.items())
    ]
    show_rows(COLUMNS, rows, empty="There are no quotas.")


def _kafka_words(part: tuple[str, str | None]) -> str:
    kind, name = part
    return f"the default {_WORDS[kind]}" if name is None else f"{_WORDS[kind]} '{name}'"


def _row(entity: QuotaEntity) -> dict[str, object]:
    names = {kind: DEFAULT if name is None else name for kind, name in entity}
    return {"user": names.get("user"), "client_id": names.get("client-id"), "ip": names.get("ip")}


@quotas.command("alter")
@click.option("--user", metavar="NAME", help="Of this user: the name without User:.")
@click.option("--user-defaults", is_flag=True, help="Of each user without a quota of its own.")
@click.option("--client-id", metavar="NAME", help="Of this client id.")
@click.option("--client-defaults", is_flag=True, help="Of each client id without a quota of its own.")
@click.option("--ip", metavar="ADDRESS", help="Of this address.")
@click.option("--ip-defaults", is_flag=True, help="Of each address without a quota of its own.")
@click.option("--quota", "changes", multiple=True, metavar="KEY=NUMBER", help="Set a quota.")
@click.option("--delete-quota", "deleted", multiple=True, metavar="KEY", help="Remove a quota.")
@dry_run_option
def alter(changes: tuple[str, ...], deleted: tuple[str, ...], dry_run: bool, **given: Any) -> None:
    """Set and remove quotas of a user, a client id, both, or an address."""
    from sparklog.metadata import plan_set_quotas

    entity = _entity(given)
    wanted: dict[str, float | None] = dict.fromkeys(deleted)
    for change in changes:
        key, _, text = change.partition("=")
        try:
            wanted[key.strip()] = float(text)
        except ValueError:
            raise click.BadParameter(f"{change!r}: expected KEY=NUMBER.", param_hint="--quota") from None
    if not wanted:
        raise click.UsageError("give --quota KEY=NUMBER, or --delete-quota KEY.")
    log = current().open_root()
    if dry_run:
        plan_set_quotas(log.image, {entity: wanted})
        own: Mapping[str, float] = {
            key: value
            for key, value in (dict(log.image.quotas.get(entity, {})) | wanted).items()
            if value is not None
        }
    else:
        log.metadata.publish(lambda image: plan_set_quotas(image, {entity: wanted}))
        own = log.image.quotas.get(entity, {})
    rows: list[Row] = [_row(entity) | {"quota": key, "value": value} for key, value in sorted(own.items())]
    if current().json:
        show_json({"dry_run": dry_run, **_row(entity), "quotas": dict(own)})
    else:
        show_rows(COLUMNS, rows, empty="No quota is left.")


def _entity(given: Mapping[str, Any]) -> QuotaEntity:
    found: list[tuple[str, str | None]] = []
    for kind, option, default in (
        ("client-id", "client_id", "client_defaults"),
        ("ip", "ip", "ip_defaults"),
        ("user", "user", "user_defaults"),
    ):
        if given[option] is not None and given[default]:
            raise click.UsageError(f"give --{option.replace('_', '-')} or --{default.replace('_', '-')}.")
        if given[option] is not None or given[default]:
            found.append((kind, given[option]))
    if not found:
        raise click.UsageError("give --user, --client-id or --ip, or one of their defaults.")
    return tuple(found)
