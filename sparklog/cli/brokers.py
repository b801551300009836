"""`sparklog brokers` and `sparklog controller`: who serves a root, as the root says it.

Not here: partitions and their leaders (partitions.py), what brokers did (`sparklog metadata log`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import click

from sparklog.cli.framework import Group, LazyCommand, confirm, current, yes_option
from sparklog.cli.inputs import Moment, at_option, image_of
from sparklog.cli.output import SETTING_COLUMNS, Document, setting_row, show, show_fields, show_rows
from sparklog.errors import InvalidRequestError
from sparklog.wording import human_age

if TYPE_CHECKING:
    from sparklog.client import OpenedRoot
    from sparklog.client.cluster_view import BrokerView
    from sparklog.metadata import Image

BROKER_COLUMNS = "id state controller address rack leads epoch seen_ms:SEEN:age"
BROKER_LABELS = {
    "id": "Broker",
    "state": "State",
    "controller": "Controller",
    "rack": "Rack",
    "epoch": "Broker epoch",
    "incarnation_id": "Incarnation",
    "leads": "Leads",
    "preferred": "Preferred leader of",
    "replicas": "Replica of",
    "seen": "Seen",
    "listener": "Listener",
}
CONTROLLER_LABELS = {
    "controller": "Controller",
    "controller_epoch": "Controller epoch",
    "brokers": "Brokers",
    "fenced_brokers": "Fenced brokers",
    "stopping_brokers": "Stopping brokers",
    "partitions": "Partitions",
    "unavailable_partitions": "Without a leader",
    "under_replicated_partitions": "Under-replicated",
    "not_preferred_partitions": "Not led by preferred",
    "reassignments": "Reassignments",
}
NOT_SEEN: Mapping[int, int] = MappingProxyType({})


@click.group("controller", cls=Group)
def controller() -> None:
    """The broker that controls the others: describe."""


@controller.command("describe")
@at_option
def describe_controller(moment: Moment | None) -> None:
    """Show who is controller, and what waits for it."""
    found = controller_document(image_of(current().open_root(), moment))
    at = f"broker {found['id']} at {found['address'] or 'no address'}"
    shown = found if current().json else {**found, "controller": "none" if found["id"] is None else at}
    show_fields(CONTROLLER_LABELS, shown)


def controller_document(image: Image) -> Document:
    """The controller, and counts of what it looks after."""
    from sparklog.client import cluster_view
    from sparklog.metadata import NO_NODE

    found = cluster_view.describe_controller(image)
    registered = cluster_view.describe_brokers(image)
    partitions = list(cluster_view.describe_partitions(image))
    is_served = cluster_view.is_served(image)
    return {
        "id": None if found.node_id == NO_NODE else found.node_id,
        "address": next((one.address for one in registered if one.node_id == found.node_id), None),
        "controller_epoch": found.controller_epoch,
        "broker_epoch": None if found.node_id == NO_NODE else found.broker_epoch,
        "brokers": len(registered),
        "fenced_brokers": sum(one.is_fenced for one in registered),
        "stopping_brokers": sum(one.in_controlled_shutdown for one in registered),
        "partitions": len(partitions),
        "unavailable_partitions": sum(one.is_unavailable for one in partitions) if is_served else 0,
        "under_replicated_partitions": sum(one.is_under_replicated for one in partitions),
        "not_preferred_partitions": sum(one.is_not_preferred for one in partitions),
        "reassignments": sum(1 for one in partitions if one.adding or one.removing),
    }


class _Brokers(Group):
    lazy = MappingProxyType(
        {
            "api-versions": LazyCommand(
                "sparklog.cli.api_versions", "api_versions", "Versions of Kafka's APIs that brokers serve."
            )
        }
    )


@click.group("brokers", cls=_Brokers)
def brokers() -> None:
    """The brokers that serve a root: list, describe, unregister."""


@brokers.command("list")
@at_option
def list_brokers(moment: Moment | None) -> None:
    """List the registered brokers."""
    log = current().open_root()
    image = image_of(log, moment)
    rows = broker_rows(image, _last_seen(log, image, moment))
    show_rows(BROKER_COLUMNS, rows, empty="No broker is registered.")


@brokers.command("describe")
@click.argument("node_id", metavar="ID", type=click.IntRange(min=0))
@click.option("--all", "with_settings", is_flag=True, help="Also its settings, as far as the root has them.")
@at_option
def describe(node_id: int, with_settings: bool, moment: Moment | None) -> None:
    """Show a broker: its addresses and epoch, and how many partitions it leads and may lead."""
    from sparklog.client.admin import effective_broker_configs
    from sparklog.client.cluster_view import describe_partitions

    log = current().open_root()
    image = image_of(log, moment)
    one = require_broker(image, node_id)
    partitions = list(describe_partitions(image))
    row = _row(one, _last_seen(log, image, moment))
    found = {
        **row,
        "incarnation_id": one.incarnation_id,
        "listeners": [{"host": at.host, "port": at.port} for at in one.listeners],
        "preferred": sum(1 for led in partitions if led.replicas[:1] == (node_id,)),
        "replicas": sum(1 for led in partitions if node_id in led.replicas),
    }
    settings = effective_broker_configs(image, node_id) if with_settings else []
    if with_settings and current().json:
        found["settings"] = list(map(dataclasses.asdict, settings))
    if not current().json:
        seen_ms = row["seen_ms"]
        found["seen"] = human_age(seen_ms) if isinstance(seen_ms, int) else None
        found["listener"] = [f"{at.host}:{at.port}" for at in one.listeners]
    show_fields(BROKER_LABELS, found)
    if with_settings and not current().json:
        show_rows(SETTING_COLUMNS, list(map(setting_row, settings)))


@brokers.command("unregister")
@click.argument("node_id", metavar="ID", type=click.IntRange(min=0))
@yes_option
def unregister(node_id: int, yes: bool) -> None:
    """Forget a fenced broker that will not come back."""
    log = current().open_root()
    require_broker(log.image, node_id)
    confirm(f"Unregister broker {node_id}?", yes=yes)
    answer = current().controller(log).unregister(node_id)
    if answer.error_code:
        message = f": {answer.message}" if answer.message else ""
        raise click.ClickException(f"broker {node_id}: {answer.error}{message}")
    show({"unregistered": node_id}, f"Broker {node_id} is no longer registered.")


def _last_seen(log: OpenedRoot, image: Image, moment: Moment | None) -> Mapping[int, int]:
    """The age of each broker's last heartbeat in ms; unknown for the past."""
    from sparklog.client.cluster_view import last_seen_ms

    return last_seen_ms(log.store, log.clock) if moment is None and image.brokers else NOT_SEEN


def broker_rows(image: Image, seen: Mapping[int, int] = NOT_SEEN) -> list[Document]:
    from sparklog.client.cluster_view import describe_brokers

    return [_row(one, seen) for one in describe_brokers(image)]


def _row(one: BrokerView, seen: Mapping[int, int]) -> Document:
    return {
        "id": one.node_id,
        "state": one.state,
        "controller": one.is_controller,
        "address": one.address,
        "rack": one.rack or None,
        "leads": one.leads,
        "epoch": one.broker_epoch,
        "seen_ms": seen.get(one.node_id),
    }


def require_broker(image: Image, node_id: int) -> BrokerView:
    """The broker of this id; raise InvalidRequestError BROKER_MISSING if there is none."""
    from sparklog.client.cluster_view import describe_brokers

    known = {one.node_id: one for one in describe_brokers(image)}
    if node_id not in known:
        nodes = ", ".join(map(str, known)) or "none"
        raise InvalidRequestError(
            "BROKER_MISSING",
            f"broker {node_id}: not registered; registered: {nodes}",
            fix="`sparklog brokers list` shows those that are; name one of them",
        )
    return known[node_id]
