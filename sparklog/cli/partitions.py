"""`sparklog partitions`: who leads partitions, and who may.

What is shown is the root's; what is changed is asked of the controller, which alone may decide it.
Not here: what asks the controller (reassign.py, elect.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import TYPE_CHECKING

import click

from sparklog.cli.group import LazyCommand, LazyGroup
from sparklog.cli.moments import Moment, at_option, image_of
from sparklog.cli.near_names import require_topics
from sparklog.cli.output import Column, show_rows
from sparklog.cli.settings import common_options, current

if TYPE_CHECKING:
    from sparklog.client.cluster_view import PartitionView
    from sparklog.metadata import Image

PARTITION_COLUMNS = (
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", number=True),
    Column("leader", "LEADER", number=True),
    Column("leader_epoch", "LEADER-EPOCH", number=True),
    Column("replicas", "REPLICAS"),
    Column("isr", "ISR"),
    Column("adding", "ADDING", optional=True),
    Column("removing", "REMOVING", optional=True),
)
Document = dict[str, object]


class PartitionsGroup(LazyGroup):
    """Those that ask the controller are in modules of their own."""

    lazy = {  # noqa: RUF012 - as declared there
        "reassign": LazyCommand(
            "sparklog.cli.reassign", "reassign", "Have other brokers as replicas. Nothing is copied."
        ),
        "elect": LazyCommand("sparklog.cli.elect", "elect", "Have leaders elected."),
    }


@click.group("partitions", cls=PartitionsGroup)
def partitions() -> None:
    """Who leads partitions, and who may: list, reassign, elect."""


@partitions.command("list")
@click.option("--topic", "-t", "names", multiple=True, metavar="NAME", help="A topic; default: all.")
@click.option("--under-replicated", is_flag=True, help="Only those one of whose replicas is fenced.")
@click.option("--unavailable", is_flag=True, help="Only those that no broker leads.")
@click.option("--not-preferred", is_flag=True, help="Only those that another than their first replica leads.")
@at_option
@common_options
def list_partitions(
    names: tuple[str, ...],
    under_replicated: bool,
    unavailable: bool,
    not_preferred: bool,
    moment: Moment | None,
) -> None:
    """List leaders, replicas, and which of those are in sync."""
    log = current().open_log()
    if moment is None:
        require_topics(log, names)
    rows = partition_rows(
        image_of(log, moment),
        names,
        under_replicated=under_replicated,
        unavailable=unavailable,
        not_preferred=not_preferred,
    )
    show_rows(PARTITION_COLUMNS, rows)


def partition_rows(
    image: Image,
    names: Collection[str],
    *,
    under_replicated: bool = False,
    unavailable: bool = False,
    not_preferred: bool = False,
) -> list[Document]:
    """Those for which one of the conditions that are asked for holds; without any, all."""
    from sparklog.client.cluster_view import describe_partitions, is_served

    is_asked = under_replicated or unavailable or not_preferred
    found = []
    for one in describe_partitions(image):
        if names and one.topic not in names:
            continue
        if (
            not is_asked
            or (under_replicated and one.is_under_replicated)
            or (unavailable and one.is_unavailable and is_served(image))
            or (not_preferred and one.is_not_preferred)
        ):
            found.append(partition_row(one))
    return found


def partition_row(one: PartitionView) -> Document:
    """A partition in one row."""
    from sparklog.metadata import NO_NODE

    row = dataclasses.asdict(one)
    lists = {key: list(value) for key, value in row.items() if isinstance(value, tuple)}
    return {**row, **lists, "leader": None if one.leader == NO_NODE else one.leader}
