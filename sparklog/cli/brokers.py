"""`sparklog brokers`: which brokers serve a root, and how they are.

What is shown is the root's: a broker that was killed is shown as running until the controller fences it, and
for ever if it was the last one; when it was seen tells more.
Not here: what a broker leads in detail (partitions.py), who is controller in detail (controller.py).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import click

from sparklog.cli.group import LazyGroup
from sparklog.cli.moments import Moment, at_option, image_of
from sparklog.cli.notes import is_terminal
from sparklog.cli.output import Column, human_age, show_json, show_rows, tell
from sparklog.cli.settings import common_options, current
from sparklog.errors import InvalidRequestError

if TYPE_CHECKING:
    from sparklog.client import SparkLog
    from sparklog.client.cluster_view import BrokerView
    from sparklog.metadata import Image

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
    from sparklog.client.signs_of_life import last_seen_ms

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
