"""`sparklog optimize`: put small extents together, so that reading is as fast as after one large write.

Not here: what is merged and how (sparklog/maintenance).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sparklog.cli.group import OnceCommand
from sparklog.cli.maintenance_words import (
    chosen_topics,
    min_input_files_option,
    topics_argument,
)
from sparklog.cli.notes import note
from sparklog.cli.output import Column, show_json, show_rows, tell
from sparklog.cli.progress import byte_bar
from sparklog.cli.settings import common_options, current

if TYPE_CHECKING:
    from sparklog.maintenance import Report

COLUMNS = (
    Column("topic", "TOPIC"),
    Column("extents_before", "EXTENTS", number=True),
    Column("merged_extents", "MERGED", number=True),
    Column("merged_bytes", "READ", number=True, bytes=True),
    Column("added_extents", "INTO", number=True),
    Column("added_bytes", "WRITTEN", number=True, bytes=True),
    Column("extents_after", "EXTENTS-NOW", number=True),
)


@click.command("optimize", cls=OnceCommand)
@topics_argument
@click.option("--dry-run", is_flag=True, help="Only show what would be merged.")
@click.option(
    "--target-file-size-bytes",
    "target_bytes",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Size of the segments; default, and most: the topic's segment.bytes.",
)
@min_input_files_option(
    None, "Merge only where there are so many extents of about one size; default: wherever there are two."
)
@common_options
def optimize(topics: tuple[str, ...], dry_run: bool, target_bytes: int | None, fan_in: int | None) -> None:
    """Merge small extents of TOPICs, or of all, into large segments.

    Offsets, records and timestamps stay what they are; readers and writers go on meanwhile. What was merged
    stays on the storage until `sparklog vacuum` removes it.
    """
    from sparklog.maintenance import MergeLimits
    from sparklog.maintenance import optimize as merge

    log = current().open_log()
    chosen = chosen_topics(log, topics)
    with byte_bar("merging") as show:
        report = merge(
            log.metadata,
            log.clock,
            chosen,
            MergeLimits(fan_in=fan_in, target_bytes=target_bytes),
            dry_run=dry_run,
            progress=lambda progress: show(progress.done_bytes, progress.total_bytes),
        )
    show_report(report, dry_run=dry_run)


def show_report(report: Report, *, dry_run: bool) -> None:
    """A line a topic, and in JSON a document."""
    import dataclasses

    rows = [{"topic": name, **dataclasses.asdict(one)} for name, one in report.topics.items()]
    if current().json:
        show_json({"dry_run": dry_run, "topics": rows})
        return
    shown = [row for row in rows if row["merged_extents"]]
    if not shown:
        tell("Nothing to merge.")
        return
    dropped = {"added_extents", "added_bytes", "extents_after"} if dry_run else set()
    show_rows([column for column in COLUMNS if column.field not in dropped], shown)
    left_out = sum(one.left_out for one in report.topics.values())
    if left_out:
        note(f"{left_out} pieces were left out: others changed them meanwhile, or they cannot be fewer.")
