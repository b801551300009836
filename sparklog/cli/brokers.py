"""`sparklog brokers`: which brokers serve a root, and how they are.

What is shown is the root's: a broker that was killed is shown as running until the controller fences it, and
for ever if it was the last one; when it was seen tells more.
Not here: what a broker leads in detail (partitions.py).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import click

from sparklog.cli.framework import LazyGroup, common_options, current, is_terminal
from sparklog.cli.output import Column, Moment, at_option, human_age, image_of, show_json, show_rows, tell
from sparklog.errors import InvalidRequestError

if TYPE_CHECKING:
    from sparklog.client import SparkLog
    from sparklog.client.cluster_view import BrokerView
    from sparklog.metadata import Image

# --- controller --------------------------------------------------------------------------------------
#
# `sparklog controller`: who controls the brokers of a root, and what waits for it.
#
# Not here: what it has done (`sparklog metadata log`), how it is elected (sparklog_server/cluster).


@click.group("controller", cls=LazyGroup)
def controller() -> None:
    """The broker that controls the others: describe."""


@controller.command("describe")
@at_option
@common_options
def describe_controller(moment: Moment | None) -> None:
    """Show who is controller, and what waits for it."""
    found = controller_document(image_of(current().open_log(), moment))
    if current().json:
        show_json(found)
        return
    if found["id"] is None:
        tell("Controller:               none")
    else:
        tell(f"Controller:               broker {found['id']} at {found['address'] or 'no address'}")
    for label, key in (
        ("Controller epoch", "controller_epoch"),
        ("Brokers", "brokers"),
        ("Fenced brokers", "fenced_brokers"),
        ("Stopping brokers", "stopping_brokers"),
        ("Partitions", "partitions"),
        ("Without a leader", "unavailable_partitions"),
        ("Under-replicated", "under_replicated_partitions"),
        ("Not led by preferred", "not_preferred_partitions"),
        ("Reassignments", "reassignments"),
    ):
        tell(f"{label + ':':<26}{found[key]}")


def controller_document(image: Image) -> Document:
    """Who it is, and counts of what it looks after."""
    from sparklog.client.cluster_view import (
        describe_brokers,
        describe_controller,
        describe_partitions,
        is_served,
    )
    from sparklog.metadata import NO_NODE

    found = describe_controller(image)
    registered = describe_brokers(image)
    address = next((one.address for one in registered if one.node_id == found.node_id), None)
    led = list(describe_partitions(image))
    return {
        "id": None if found.node_id == NO_NODE else found.node_id,
        "address": address,
        "controller_epoch": found.controller_epoch,
        "broker_epoch": None if found.node_id == NO_NODE else found.broker_epoch,
        "brokers": len(registered),
        "fenced_brokers": sum(one.is_fenced for one in registered),
        "stopping_brokers": sum(one.in_controlled_shutdown for one in registered),
        "partitions": len(led),
        "unavailable_partitions": sum(one.is_unavailable for one in led) if is_served(image) else 0,
        "under_replicated_partitions": sum(one.is_under_replicated for one in led),
        "not_preferred_partitions": sum(one.is_not_preferred for one in led),
        "reassignments": sum(1 for one in led if one.adding or one.removing),
    }


# --- brokers -----------------------------------------------------------------------------------------


BROKER_COLUMNS = (
    Column("id", "ID", number=True),
    Column("state", "STATE"),
    Column("controller", "CONTROLLER"),
    Column("address", "ADDRESS"),
    Column("rack", "RACK", optional=True),
    Column("leads", "LEADS", number=True),
    Column("epoch", "EPOCH", number=True),
    Column("seen_ms", "SEEN", number=True, optional=True, age=True),
)
Document = dict[str, object]
NOT_SEEN: Mapping[int, int] = MappingProxyType({})


@click.group("brokers", cls=LazyGroup)
def brokers() -> None:
    """The brokers that serve a root: list, describe, unregister."""


@brokers.command("list")
@at_option
@common_options
def list_brokers(moment: Moment | None) -> None:
    """List the brokers that are registered."""
    from sparklog.client.cluster_view import describe_brokers

    log = current().open_log()
    image = image_of(log, moment)
    seen = last_seen(log, image, moment)
    found = [broker_row(one, seen) for one in describe_brokers(image)]
    if found or current().json:
        show_rows(BROKER_COLUMNS, found)
    else:
        tell("No broker is registered.")


@brokers.command("describe")
@click.argument("node_id", metavar="ID", type=click.IntRange(min=0))
@at_option
@common_options
def describe(node_id: int, moment: Moment | None) -> None:
    """Show a broker: where it is, since when, what it leads and may lead."""
    log = current().open_log()
    image = image_of(log, moment)
    found = broker_document(image, node_id, last_seen(log, image, moment))
    if current().json:
        show_json(found)
        return
    for label, key in (
        ("Broker", "id"),
        ("State", "state"),
        ("Controller", "controller"),
        ("Rack", "rack"),
        ("Broker epoch", "epoch"),
        ("Incarnation", "incarnation_id"),
        ("Leads", "leads"),
        ("Preferred leader of", "preferred"),
        ("Replica of", "replicas"),
        ("Seen", "seen_ms"),
    ):
        if found[key] is not None:
            value = found[key]
            text = ("yes" if value else "no") if isinstance(value, bool) else value
            text = human_age(value) if key == "seen_ms" and isinstance(value, int) else text
            tell(f"{label + ':':<21}{text}")
    listeners = found["listeners"]
    assert isinstance(listeners, list)
    for one in listeners:
        tell(f"{'Listener:':<21}{one['host']}:{one['port']}")


@brokers.command("unregister")
@click.argument("node_id", metavar="ID", type=click.IntRange(min=0))
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@common_options
def unregister(node_id: int, yes: bool) -> None:
    """Forget a broker that will not come back."""
    log = current().open_log()
    require_broker(log.image, node_id)
    if not yes and is_terminal(sys.stdin):
        click.confirm(f"Unregister broker {node_id}?", abort=True, err=True)
    answer = current().controller(log).unregister(node_id)
    if answer.error_code:
        message = f": {answer.message}" if answer.message else ""
        raise click.ClickException(f"broker {node_id}: {answer.error}{message}")
    if current().json:
        show_json({"unregistered": node_id})
    else:
        tell(f"Broker {node_id} is no longer registered.")


def last_seen(log: SparkLog, image: Image, moment: Moment | None) -> Mapping[int, int]:
    """How long ago each broker gave a sign of life; of the past nothing is known."""
    from sparklog.client.cluster_view import last_seen_ms

    return last_seen_ms(log.store, log.clock) if moment is None and image.brokers else {}


def broker_row(one: BrokerView, seen: Mapping[int, int] = NOT_SEEN) -> Document:
    """A broker in one row."""
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


def broker_document(image: Image, node_id: int, seen: Mapping[int, int] = NOT_SEEN) -> Document:
    """All that an image says of a broker.

    Raises:
        InvalidRequestError: BROKER_MISSING.
    """
    from sparklog.client.cluster_view import describe_partitions

    one = require_broker(image, node_id)
    found = list(describe_partitions(image))
    return {
        **broker_row(one, seen),
        "incarnation_id": one.incarnation_id,
        "listeners": [{"host": at.host, "port": at.port} for at in one.listeners],
        "preferred": sum(1 for led in found if led.replicas[:1] == (node_id,)),
        "replicas": sum(1 for led in found if node_id in led.replicas),
    }


def require_broker(image: Image, node_id: int) -> BrokerView:
    """The broker.

    Raises:
        InvalidRequestError: BROKER_MISSING, no broker of this id is registered.
    """
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
