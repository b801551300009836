"""`sparklog groups`: which groups committed offsets, how far, and how far behind they are.

Headings are those of kafka-consumer-groups. Without a broker groups have no members, so the last
three columns are dashes, and left out on a terminal.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from sparklog.cli.durations import METAVAR, parse_duration
from sparklog.cli.group import LazyGroup
from sparklog.cli.near_names import did_you_mean
from sparklog.cli.output import Column, Row, show_json, show_rows, tell
from sparklog.cli.settings import common_options, current
from sparklog.errors import UnknownTopicError

if TYPE_CHECKING:
    from sparklog.client import SparkLog

COLUMNS = (
    Column("group", "GROUP"),
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", number=True),
    Column("current_offset", "CURRENT-OFFSET", number=True),
    Column("log_end_offset", "LOG-END-OFFSET", number=True),
    Column("lag", "LAG", number=True),
    Column("consumer_id", "CONSUMER-ID", optional=True),
    Column("host", "HOST", optional=True),
    Column("client_id", "CLIENT-ID", optional=True),
)

SILENT_COLUMNS = (
    Column("group", "GROUP"),
    Column("offsets", "OFFSETS", number=True),
    Column("committed_ms", "LAST-COMMIT", number=True),
)


@click.group("groups", cls=LazyGroup)
def groups() -> None:
    """Consumer groups: committed offsets and lag."""


@groups.command("list")
@common_options
def list_groups() -> None:
    """List the groups that have committed offsets."""
    found = sorted(current().open_log().groups())
    if current().json:
        show_json([{"group": name} for name in found])
    else:
        for name in found:
            tell(name)


@groups.command("describe")
@click.option("--group", "-g", "names", multiple=True, metavar="NAME", help="A group.")
@click.option("--all-groups", is_flag=True, help="Every group.")
@click.option("--offsets", "unused", is_flag=True, expose_value=False, hidden=True)  # Kafka's default, too
@common_options
def describe(names: tuple[str, ...], all_groups: bool) -> None:
    """Show committed offsets, log end offsets and lag."""
    if bool(names) == all_groups:
        raise click.UsageError("give --group NAME (as often as needed) or --all-groups.")
    log = current().open_log()
    wanted = sorted(log.groups()) if all_groups else list(names)
    rows = [row for name in wanted for row in group_rows(log, name)]
    missing = [name for name in names if not any(row["group"] == name for row in rows)]
    if rows or not missing:
        show_rows(COLUMNS, rows)
    if missing:
        hint = did_you_mean(missing[0], sorted(log.groups())).removeprefix("; d")
        raise click.ClickException(
            f"Consumer group '{missing[0]}' does not exist: it has committed no offsets."
            + (f" D{hint}" if hint else "")
        )


@groups.command("expire")
@click.option(
    "--older-than",
    "retention_ms",
    callback=parse_duration,
    metavar=METAVAR,
    required=True,
    help="Groups that have committed nothing for so long.",
)
@click.option("--group", "-g", "names", multiple=True, metavar="NAME", help="Only this group.")
@click.option("--dry-run", is_flag=True, help="Only show which groups would go.")
@click.option("--force", is_flag=True, help="Also where a broker has served the root, and is gone for good.")
@common_options
def expire(retention_ms: int, names: tuple[str, ...], dry_run: bool, force: bool) -> None:
    """Remove the offsets of groups that are silent: a consumer that comes back begins anew.

    A broker does that by itself, by offsets.retention.minutes.
    """
    from sparklog.client.group_expiry import expire_groups

    log = current().open_log()
    gone = expire_groups(log, retention_ms, names or None, force=force, dry_run=dry_run)
    rows = [dataclasses.asdict(one) for one in gone]
    if current().json:
        show_json({"dry_run": dry_run, "groups": rows})
    elif rows:
        show_rows(SILENT_COLUMNS, rows)
    else:
        tell("No group is older than that.")


def group_rows(log: SparkLog, group: str) -> list[Row]:
    """One row for each partition that the group committed an offset of."""
    rows: list[Row] = []
    for (topic, partition), offset in sorted(log.committed_offsets(group).items()):
        try:
            end_offset: int | None = log.log_end_offset(topic, partition)
        except UnknownTopicError:  # deleted since; the group's offset stays
            end_offset = None
        rows.append(
            {
                "group": group,
                "topic": topic,
                "partition": partition,
                "current_offset": offset,
                "log_end_offset": end_offset,
                "lag": None if end_offset is None else max(0, end_offset - offset),
                "consumer_id": None,
                "host": None,
                "client_id": None,
            }
        )
    return rows
