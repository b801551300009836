"""`sparklog groups`: which groups committed offsets, how far, and how far behind they are.

Headings are those of kafka-consumer-groups. Without a broker groups have no members, so the last
three columns are dashes, and left out on a terminal.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from sparklog.cli.framework import Group, current, did_you_mean, dry_run_option, note
from sparklog.cli.inputs import DURATION, parse_duration
from sparklog.cli.output import Row, show, show_json, show_rows
from sparklog.errors import UnknownTopicError

if TYPE_CHECKING:
    from sparklog.client import SparkLog

COLUMNS = "group topic partition current_offset log_end_offset lag consumer_id host client_id"
SILENT_COLUMNS = "group offsets committed_ms:LAST-COMMIT:time"


@click.group("groups", cls=Group)
def groups() -> None:
    """Consumer groups: committed offsets and lag."""


@groups.command("list")
def list_groups() -> None:
    """List the groups that have committed offsets."""
    found = sorted(current().open_log().groups())
    if not found:
        note("No group has committed offsets.")
    show([{"group": name} for name in found], *found)


@groups.command("describe")
@click.option("--group", "-g", "names", multiple=True, metavar="NAME", help="A group.")
@click.option("--all-groups", is_flag=True, help="Every group.")
@click.option("--offsets", "unused", is_flag=True, expose_value=False, hidden=True)  # Kafka's default, too
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
    metavar=DURATION,
    required=True,
    help="Groups that have committed nothing for so long.",
)
@click.option("--group", "-g", "names", multiple=True, metavar="NAME", help="Only this group.")
@dry_run_option
@click.option("--force", is_flag=True, help="Also where a broker has served the root, and is gone for good.")
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
    else:
        show_rows(SILENT_COLUMNS, rows, empty="No group is older than that.")


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
