"""`sparklog controller`: who controls the brokers of a root, and what waits for it.

Not here: what it has done (`sparklog metadata log`), how it is elected (sparklog_server/cluster).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sparklog.cli.group import LazyGroup
from sparklog.cli.moments import Moment, at_option, image_of
from sparklog.cli.output import show_json, tell
from sparklog.cli.settings import common_options, current

if TYPE_CHECKING:
    from sparklog.metadata import Image

Document = dict[str, object]


@click.group("controller", cls=LazyGroup)
def controller() -> None:
    """The broker that controls the others: describe."""


@controller.command("describe")
@at_option
@common_options
def describe(moment: Moment | None) -> None:
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
