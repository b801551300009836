"""`sparklog vacuum`: remove the files that nothing refers to any more, and free their space.

Not here: which these are, and why nothing can refer to them again (sparklog/maintenance/sweep.py).
"""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

import click

from sparklog.cli.durations import METAVAR, parse_duration
from sparklog.cli.group import OnceCommand
from sparklog.cli.notes import is_terminal, note
from sparklog.cli.output import Column, human_bytes, show_json, show_rows
from sparklog.cli.progress import byte_bar
from sparklog.cli.settings import common_options, current

if TYPE_CHECKING:
    from sparklog.maintenance import VacuumReport

FILE_COLUMNS = (
    Column("name", "FILE"),
    Column("size_bytes", "SIZE", number=True, bytes=True),
    Column("born", "BORN", number=True),
)
COUNT_COLUMNS = (
    Column("what", "WHAT"),
    Column("files", "FILES", number=True),
    Column("size_bytes", "SIZE", number=True, bytes=True),
)
_LESS_THAN_A_WEEK = (
    "Files that were written less than a week ago may be of a job that has not committed yet. If it is "
    "one, its commit will fail with STAGING_EXPIRED: nothing of it is published, nothing is lost, and it "
    "writes its rows again. A reader that is slow may have to look for its files again."
)


@click.command("vacuum", cls=OnceCommand)
@click.option("--dry-run", is_flag=True, help="Only show which files would go.")
@click.option(
    "--retain",
    "retain_ms",
    callback=parse_duration,
    metavar=METAVAR,
    default="7d",
    show_default=True,
    help="Keep what was written since then, though nothing refers to it: somebody may be about to commit it.",
)
@click.option("--force", is_flag=True, help="Also with less than 7 days, without asking.")
@click.argument("words", nargs=-1, metavar="")
@common_options
def vacuum(dry_run: bool, retain_ms: int, force: bool, words: tuple[str, ...]) -> None:
    """Remove the files that nothing refers to.

    Merged, expired and deleted data, and what failed jobs left behind. No record goes by it, and no clock is
    trusted: what a commit could still refer to stays. Readers and writers go on meanwhile.
    """
    from sparklog.maintenance import RETAIN_MS
    from sparklog.maintenance import vacuum as remove

    if words:
        raise click.UsageError(
            f"found {' '.join(words)!r}, expected no topic: a segment may hold several, so the "
            "root is looked at as a whole. The time to keep is given as one word, such as --retain 168h."
        )
    if retain_ms < RETAIN_MS and not dry_run:
        _confirm(force=force)
    log = current().open_log()
    with byte_bar("looking at files") as show:
        report = remove(
            log.metadata,
            log.clock,
            retain_ms=retain_ms,
            force=True,  # asked for here
            dry_run=dry_run,
            progress=lambda progress: show(progress.done_bytes, progress.total_bytes),
        )
    show_report(report, retain_ms=retain_ms, dry_run=dry_run)


def _confirm(*, force: bool) -> None:
    if force:
        return
    if not is_terminal(sys.stdin):
        raise click.UsageError(f"less than 7 days needs --force. {_LESS_THAN_A_WEEK}")
    note(_LESS_THAN_A_WEEK)
    click.confirm("Go on?", abort=True, err=True)


def show_report(report: VacuumReport, *, retain_ms: int, dry_run: bool) -> None:
    """What went, or would go, and what stays; in JSON a document."""
    if current().json:
        show_json({"dry_run": dry_run, "retain_ms": retain_ms, **dataclasses.asdict(report)})
        return
    if report.named:
        show_rows(FILE_COLUMNS, [dataclasses.asdict(file) for file in report.named])
        if report.dead.files > len(report.named):
            note(f"And {report.dead.files - len(report.named):,} more.")
    counts = {
        "live": report.live,
        "would go" if dry_run else "removed": report.dead,
        "waiting": report.waiting,
        "other": report.other,
    }
    show_rows(COUNT_COLUMNS, [{"what": what, **dataclasses.asdict(tally)} for what, tally in counts.items()])
    for text in _notes(report, dry_run=dry_run):
        note(text)


def _notes(report: VacuumReport, *, dry_run: bool) -> list[str]:
    found = []
    before = report.live.size_bytes + report.dead.size_bytes + report.waiting.size_bytes
    after = before - report.dead.size_bytes
    found.append(
        f"Segments and indexes: {human_bytes(before)}, {'then' if dry_run else 'now'} {human_bytes(after)}."
    )
    if report.waiting.files:
        found.append("Waiting: nothing refers to them, but they are not old enough; see --retain.")
    if report.other.files:
        found.append("Other: files among the segments whose names are not sparklog's; they are left alone.")
    besides = {
        "empty directories": report.directories,
        "unfinished writes": report.temporary,
        "requests of processes that died": report.requests,
    }
    told = ", ".join(f"{count:,} {what}" for what, count in besides.items() if count)
    if told:
        found.append(f"{'Besides, would go' if dry_run else 'Removed besides'}: {told}.")
    return found
