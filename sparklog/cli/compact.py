"""`sparklog compact`: keep the last record of each key, in topics whose cleanup.policy has compact.

Not here: what stays and what goes (sparklog/maintenance), freeing the storage (vacuum).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from sparklog.cli.group import OnceCommand
from sparklog.cli.maintenance_words import chosen_topics, topics_argument
from sparklog.cli.notes import note
from sparklog.cli.output import Column, show_json, show_rows, tell
from sparklog.cli.progress import byte_bar
from sparklog.cli.settings import common_options, current

if TYPE_CHECKING:
    from sparklog.maintenance import CompactedTopic, CompactionReport

COLUMNS = (
    Column("topic", "TOPIC"),
    Column("partitions", "PARTITIONS", number=True),
    Column("dirty_bytes", "DIRTY", number=True, bytes=True),
    Column("clean_bytes", "CLEAN", number=True, bytes=True),
    Column("records_read", "RECORDS", number=True),
    Column("superseded", "SUPERSEDED", number=True),
    Column("keyless", "KEYLESS", number=True),
    Column("tombstones_removed", "TOMBSTONES-GONE", number=True),
    Column("tombstones_kept", "KEPT", number=True),
    Column("bytes_before", "BYTES", number=True, bytes=True),
    Column("bytes_after", "NOW", number=True, bytes=True),
)
_OF_DRY_RUN = 4  # of the columns
_MAX_REASONS = 10  # for people; in JSON each has its own


@click.command("compact", cls=OnceCommand)
@topics_argument
@click.option("--dry-run", is_flag=True, help="Only show which topics have anything to compact.")
@click.option(
    "--due",
    "only_due",
    is_flag=True,
    help="Only where min.cleanable.dirty.ratio or max.compaction.lag.ms say so, and without the newest "
    "extent of a partition; default: whatever can be compacted.",
)
@common_options
def compact(topics: tuple[str, ...], dry_run: bool, only_due: bool) -> None:
    """Compact TOPICs, or all, whose cleanup.policy has compact: the last record of each key stays.

    Offsets, records and timestamps of what stays are what they were; tombstones stay for delete.retention.ms
    from their first compaction on; records without a key go. Readers and writers go on meanwhile.
    `sparklog vacuum` frees the space.
    """
    from sparklog.maintenance import CompactionLimits, why_not_due
    from sparklog.maintenance import compact as clean

    log = current().open_log()
    chosen = chosen_topics(
        log, topics, lambda name: "compact" in log.describe_topic(name).config.cleanup_policy
    )
    limits = CompactionLimits(only_due=only_due)
    with byte_bar("compacting") as show:
        report = clean(
            log.metadata,
            log.clock,
            chosen,
            limits,
            dry_run=dry_run,
            progress=lambda progress: show(progress.done_bytes, progress.total_bytes),
        )
    reasons = {
        name: why_not_due(log.image, name, log.clock.now_ms(), limits)
        for name, one in report.topics.items()
        if not one.partitions and name in log.image.topics
    }
    show_report(report, dry_run=dry_run, reasons=reasons)


def show_report(report: CompactionReport, *, dry_run: bool, reasons: Mapping[str, str]) -> None:
    """A line a topic, and in JSON a document; `reasons`: why nothing was due, by topic."""
    import dataclasses

    rows = [
        {"topic": name, "outcome": _outcome(one, dry_run=dry_run), "reason": reasons.get(name, "")}
        | dataclasses.asdict(one)
        for name, one in report.topics.items()
    ]
    if current().json:
        show_json({"dry_run": dry_run, "topics": rows})
        return
    shown = [row for row in rows if row["partitions"]]
    if not shown:
        tell("Nothing to compact.")
        for name, reason in list(reasons.items())[:_MAX_REASONS]:
            if reason:
                note(f"{name}: {reason}.")
        return
    show_rows(COLUMNS[:_OF_DRY_RUN] if dry_run else COLUMNS, shown)
    keyless = sum(one.keyless for one in report.topics.values())
    if keyless:
        told = (
            "1 record had no key, and is gone."
            if keyless == 1
            else f"{keyless} records had no key, and are gone."
        )
        note(told)
    left_out = sum(one.left_out for one in report.topics.values())
    if left_out:
        note(f"{left_out} rounds were left out: others changed the partition meanwhile.")


def _outcome(one: CompactedTopic, *, dry_run: bool) -> str:
    if not one.partitions:
        return "nothing_due"
    return "due" if dry_run else "compacted" if one.rounds else "left_out"
