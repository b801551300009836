"""`sparklog maintain`, and its steps one by one: `expire`, `compact`, `optimize`, `vacuum`.

Readers and writers go on meanwhile. A signal may end any of them, at any time: nothing is lost.
Not here: what is due, and doing it (sparklog/maintenance).
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import click

from sparklog.cli.framework import Command, confirm, current, dry_run_option, json_text, note, require_topics
from sparklog.cli.inputs import DURATION, Stop, parse_duration, until_signalled
from sparklog.cli.output import Document, byte_bar, show_json, show_rows, tell
from sparklog.wording import human_bytes

if TYPE_CHECKING:
    from sparklog.client import SparkLog
    from sparklog.maintenance import Budget, CompactionReport, MergeReport, RoundReport, Terms, VacuumReport

EXPIRE_COLUMNS = "topic partition log_start_offset new_log_start_offset:NEW offsets size_bytes:SIZE:bytes"
DUE_COLUMNS = "topic partitions dirty_bytes:DIRTY:bytes clean_bytes:CLEAN:bytes"
COMPACT_COLUMNS = (
    f"{DUE_COLUMNS} records_read:RECORDS superseded keyless tombstones_removed:TOMBSTONES-GONE "
    "tombstones_kept:KEPT bytes_before:BYTES:bytes bytes_after:NOW:bytes"
)
MERGE_COLUMNS = "topic extents_before:EXTENTS merged_extents:MERGED merged_bytes:READ:bytes"
MERGED_COLUMNS = f"{MERGE_COLUMNS} added_extents:INTO added_bytes:WRITTEN:bytes extents_after:EXTENTS-NOW"
FILE_COLUMNS = "name:FILE size_bytes:SIZE:bytes born"
COUNT_COLUMNS = "what files size_bytes:SIZE:bytes"
MAX_REASONS = 10  # as text; JSON has them all

# --- options -----------------------------------------------------------------------------------------

topics_argument = click.argument("topics", nargs=-1, metavar="[TOPIC]...")


def min_input_files_option(default: int | None, help_text: str) -> Callable[[Any], Any]:
    """How many small extents are worth a merge."""
    return click.option(
        "--min-input-files",
        "fan_in",
        type=click.IntRange(min=2),
        default=default,
        show_default=default is not None,
        metavar="N",
        help=help_text,
    )


def duration_option(*names: str, help: str, default: str | None = None) -> Callable[[Any], Any]:  # noqa: A002
    return click.option(
        *names,
        callback=parse_duration,
        metavar=DURATION,
        default=default,
        show_default=default is not None,
        help=help,
    )


def bytes_option(*names: str, help: str) -> Callable[[Any], Any]:  # noqa: A002
    return click.option(*names, type=click.IntRange(min=1), metavar="BYTES", help=help)


def chosen_topics(
    log: SparkLog, words: Sequence[str], fits: Callable[[str], bool] = lambda _name: True
) -> list[str] | None:
    """The topics of a command line, each once: names, lists with commas, patterns such as 'orders-*'.

    A pattern matches users' topics that `fits`; internal ones if it begins with an underscore.

    Returns: None if there are no words: all topics.

    Raises:
        UnknownTopicError: TOPIC_MISSING. click.UsageError: a pattern that matches none.
    """
    found: dict[str, None] = {}
    for name in (part for word in words for part in word.split(",") if part):
        if set("*?[").isdisjoint(name):  # characters that no topic's name has
            require_topics(log, [name])
            found[name] = None
            continue
        known = log.topics(include_internal=name.startswith("_"))
        matches = [topic for topic in known if fnmatch.fnmatchcase(topic, name) and fits(topic)]
        if not matches:
            raise click.UsageError(
                f"found no topic for {name!r}, which is a pattern of the shell's kind (*, ?, [a-z]); "
                "`sparklog topics list` shows their names. Without TOPIC all are meant."
            )
        found |= dict.fromkeys(matches)
    if words and not found:
        raise click.UsageError(
            f"found {' '.join(words)!r}, expected names of topics; without any all are meant."
        )
    return list(found) or None


class _Progress(Protocol):
    @property
    def done_bytes(self) -> int: ...
    @property
    def total_bytes(self) -> int: ...


def _shown(show: Callable[[int, int], None]) -> Callable[[_Progress], None]:
    return lambda progress: show(progress.done_bytes, progress.total_bytes)


# --- expire ------------------------------------------------------------------------------------------


@click.command("expire", cls=Command)
@topics_argument
@dry_run_option
def expire(topics: tuple[str, ...], dry_run: bool) -> None:
    """Remove records of TOPICs, or of all, that are past retention.ms or retention.bytes.

    They are gone for every reader immediately. Without such a setting, of the topic or the root, a topic
    keeps everything. `sparklog vacuum` frees the space.
    """
    from sparklog.maintenance import expire as remove
    from sparklog.maintenance.retain import earlier_now_ms, shown_now_ms

    log = current().open_log()
    chosen = chosen_topics(log, topics)
    now_ms = (shown_now_ms if dry_run else earlier_now_ms)(log.store, log.clock)
    gone = remove(log.metadata, now_ms, chosen, dry_run=dry_run)
    rows = [dataclasses.asdict(one) | {"offsets": one.offsets} for one in gone]
    if current().json:
        show_json({"dry_run": dry_run, "partitions": rows})
    else:
        show_rows(EXPIRE_COLUMNS, rows, empty="Nothing is past its retention.")


# --- compact -----------------------------------------------------------------------------------------


@click.command("compact", cls=Command)
@topics_argument
@dry_run_option
@click.option(
    "--due",
    "only_due",
    is_flag=True,
    help="Only where min.cleanable.dirty.ratio or max.compaction.lag.ms say so, and without the newest "
    "extent of a partition; default: whatever can be compacted.",
)
def compact(topics: tuple[str, ...], dry_run: bool, only_due: bool) -> None:
    """Compact TOPICs, or all, whose cleanup.policy has compact: the last record of each key stays.

    Offsets and timestamps stay as they are. Tombstones stay for delete.retention.ms from their first
    compaction on; records without a key go. `sparklog vacuum` frees the space.
    """
    from sparklog.maintenance import CompactionLimits, why_not_due
    from sparklog.maintenance import compact as clean

    log = current().open_log()
    chosen = chosen_topics(
        log, topics, lambda name: "compact" in log.describe_topic(name).config.cleanup_policy
    )
    limits = CompactionLimits(only_due=only_due)
    with byte_bar("compacting") as show:
        report = clean(log.metadata, log.clock, chosen, limits, dry_run=dry_run, progress=_shown(show))
    reasons = {
        name: why_not_due(log.image, name, log.clock.now_ms(), limits)
        for name, one in report.topics.items()
        if not one.partitions and name in log.image.topics
    }
    _show_compacted(report, dry_run=dry_run, reasons=reasons)


def _show_compacted(report: CompactionReport, *, dry_run: bool, reasons: Mapping[str, str]) -> None:
    """A line for each topic, or JSON; `reasons`: why nothing is due, by topic."""
    rows = []
    for name, one in report.topics.items():
        outcome = "due" if dry_run else "compacted" if one.rounds else "left_out"
        outcome = outcome if one.partitions else "nothing_due"
        head: Document = {"topic": name, "outcome": outcome, "reason": reasons.get(name, "")}
        rows.append(head | dataclasses.asdict(one))
    if current().json:
        show_json({"dry_run": dry_run, "topics": rows})
        return
    shown = [row for row in rows if row["partitions"]]
    show_rows(DUE_COLUMNS if dry_run else COMPACT_COLUMNS, shown, empty="Nothing to compact.")
    for name, reason in list(reasons.items())[:MAX_REASONS]:
        if reason and not shown:
            note(f"{name}: {reason}.")
    keyless = sum(one.keyless for one in report.topics.values())
    if keyless and shown:
        many = "1 record had no key, and is" if keyless == 1 else f"{keyless} records had no key, and are"
        note(f"{many} gone.")
    left_out = sum(one.left_out for one in report.topics.values())
    if left_out and shown:
        note(f"{left_out} rounds were left out: others changed the partition meanwhile.")


# --- optimize ----------------------------------------------------------------------------------------


@click.command("optimize", cls=Command)
@topics_argument
@dry_run_option
@bytes_option(
    "--target-file-size-bytes",
    "target_bytes",
    help="Size of the segments; default, and most: the topic's segment.bytes.",
)
@min_input_files_option(
    None, "Merge only where there are so many extents of about one size; default: wherever there are two."
)
def optimize(topics: tuple[str, ...], dry_run: bool, target_bytes: int | None, fan_in: int | None) -> None:
    """Merge small extents of TOPICs, or of all, into large segments, which are read faster.

    Offsets, records and timestamps stay as they are. `sparklog vacuum` frees the space of what was merged.
    """
    from sparklog.maintenance import MergeLimits
    from sparklog.maintenance import optimize as merge

    log = current().open_log()
    chosen = chosen_topics(log, topics)
    limits = MergeLimits(fan_in=fan_in, target_bytes=target_bytes)
    with byte_bar("merging") as show:
        report = merge(log.metadata, log.clock, chosen, limits, dry_run=dry_run, progress=_shown(show))
    _show_merged(report, dry_run=dry_run)


def _show_merged(report: MergeReport, *, dry_run: bool) -> None:
    rows = [{"topic": name, **dataclasses.asdict(one)} for name, one in report.topics.items()]
    if current().json:
        show_json({"dry_run": dry_run, "topics": rows})
        return
    shown = [row for row in rows if row["merged_extents"]]
    show_rows(MERGE_COLUMNS if dry_run else MERGED_COLUMNS, shown, empty="Nothing to merge.")
    left_out = sum(one.left_out for one in report.topics.values())
    if left_out and shown:
        note(f"{left_out} pieces were left out: others changed them meanwhile, or they cannot be fewer.")


# --- vacuum ------------------------------------------------------------------------------------------

_LESS_THAN_A_WEEK = (
    "Files that were written less than a week ago may be of a job that has not committed yet. If so, its "
    "commit will fail with STAGING_EXPIRED: nothing of it is published, nothing is lost, and it writes its "
    "rows again. A slow reader may have to look for its files again."
)


@click.command("vacuum", cls=Command)
@dry_run_option
@duration_option(
    "--retain",
    "retain_ms",
    default="7d",
    help="Keep what was written since then, though nothing refers to it: somebody may be about to commit it.",
)
@click.option("--force", "--yes", "-y", is_flag=True, help="With less than 7 days: do not ask.")
@click.argument("words", nargs=-1, metavar="")
def vacuum(dry_run: bool, retain_ms: int, force: bool, words: tuple[str, ...]) -> None:
    """Remove the files that nothing refers to.

    Merged, expired and deleted data, and what failed jobs left behind. No record goes by it, and no clock is
    trusted: what a commit could still refer to stays.
    """
    from sparklog.maintenance import RETAIN_MS
    from sparklog.maintenance import vacuum as remove

    if words:
        raise click.UsageError(
            f"found {' '.join(words)!r}, expected no topic: a segment may hold records of several, so the "
            "whole root is checked. Write the time to keep as one word, such as --retain 168h."
        )
    if retain_ms < RETAIN_MS:
        confirm("Go on?", yes=force or dry_run, warning=_LESS_THAN_A_WEEK, required=True)
    log = current().open_log()
    with byte_bar("checking files") as show:
        report = remove(
            log.metadata,
            log.clock,
            retain_ms=retain_ms,
            force=True,  # asked for here
            dry_run=dry_run,
            progress=_shown(show),
        )
    _show_removed(report, retain_ms=retain_ms, dry_run=dry_run)
    for refused in report.refused:
        note(refused)
    if report.refused:
        click.get_current_context().exit(1)


def _show_removed(report: VacuumReport, *, retain_ms: int, dry_run: bool) -> None:
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
    after = report.live.size_bytes + report.waiting.size_bytes
    before = human_bytes(after + report.dead.size_bytes)
    note(f"Segments and indexes: {before}, {'then' if dry_run else 'now'} {human_bytes(after)}.")
    if report.waiting.files:
        note("Waiting: nothing refers to them, but they are not old enough (--retain), or must stay.")
    if report.other.files:
        note("Other: files among the segments whose names are not sparklog's; they are left alone.")
    more = {
        "empty directories": report.directories,
        "unfinished writes": report.temporary,
        "requests of processes that died": report.requests,
    }
    removed = ", ".join(f"{count:,} {what}" for what, count in more.items() if count)
    if removed:
        note(f"{'Would also go' if dry_run else 'Also removed'}: {removed}.")


# --- maintain ----------------------------------------------------------------------------------------


@click.command("maintain", cls=Command)
@topics_argument
@click.option("--watch", is_flag=True, help="Go on: a round now, and one after each interval.")
@duration_option("--interval", "interval_ms", default="5m", help="Between rounds, with --watch.")
@dry_run_option
@bytes_option("--max-bytes-per-second", "rate", help="Limit of what is read and written; default: none.")
@bytes_option("--max-bytes", help="Begin nothing after so much was rewritten in a round.")
@duration_option("--max-time", "max_time_ms", help="Begin nothing after so long in a round.")
@min_input_files_option(256, "Merge where there are so many extents of about one size.")
def maintain(
    topics: tuple[str, ...],
    watch: bool,
    interval_ms: int,
    dry_run: bool,
    rate: int | None,
    max_bytes: int | None,
    max_time_ms: int | None,
    fan_in: int,
) -> None:
    """Do what is due for TOPICs, or for all: expire, compact, optimize; and once a day vacuum.

    Where nobody serves a root, and no stream writes to it that does this by itself, run it with --watch, or
    from cron. One process of a machine does it at a time.
    """
    from sparklog.maintenance import ROUND, Budget, MergeLimits, Terms, alone
    from sparklog.maintenance.budget import FILES_PER_SECOND

    if watch and (dry_run or not interval_ms):
        raise click.UsageError("--watch excludes --dry-run, and wants an --interval longer than nothing.")
    log = current().open_log()
    terms = Terms(topics=chosen_topics(log, topics), limits=MergeLimits(fan_in=fan_in))
    seconds = None if max_time_ms is None else max_time_ms / 1000
    budget = Budget(
        seconds=seconds, max_bytes=max_bytes, bytes_per_second=rate, files_per_second=FILES_PER_SECOND
    )
    with until_signalled() as stop:
        if dry_run:
            _show(_round(log, terms, budget, stop, dry_run=True), dry_run=True)
            return
        with alone(log.metadata, ROUND):
            if watch:
                _watch(log, terms, budget, stop, interval_ms / 1000)
                return
            report = _round(log, terms, budget, stop)
    _show(report, dry_run=False)
    if report.has_failed:
        click.get_current_context().exit(1)


def _round(log: SparkLog, terms: Terms, budget: Budget, stop: Stop, *, dry_run: bool = False) -> RoundReport:
    from sparklog.maintenance import maintain as run_round

    def rest(ms: float) -> None:
        stop.wait(ms / 1000)

    with byte_bar("rewriting") as show:
        return run_round(
            log.metadata,
            log.clock,
            terms,
            budget=budget,
            dry_run=dry_run,
            is_stopped=stop.is_asked,
            rest_ms=rest,
            progress=_shown(show),
        )


def _watch(log: SparkLog, terms: Terms, budget: Budget, stop: Stop, interval_seconds: float) -> None:
    """Round after round; the same failure is reported once."""
    from sparklog.errors import CorruptLogError, FatalStorageError, SparklogError, UnknownTopicError
    from sparklog.maintenance import SkippedPartitions

    reported, skipped = "", SkippedPartitions()
    while not stop.is_asked():
        try:
            skip = skipped.keys(log.clock.now_ms())
            report = _round(log, dataclasses.replace(terms, skip=skip), budget, stop)
        except (FatalStorageError, CorruptLogError, UnknownTopicError):
            raise
        except (SparklogError, OSError) as error:
            problem = str(error)
        else:
            skipped.add(report.skipped, log.clock.now_ms())
            problem = "\n".join(one.message for one in report.steps if one.message)
            if current().json:
                tell(json_text({"dry_run": False, **dataclasses.asdict(report)}))
            elif report.has_done_anything:
                tell(_line(report))
        if problem and problem != reported:
            note(problem)
        reported = problem
        stop.wait(interval_seconds)


def _show(report: RoundReport, *, dry_run: bool) -> None:
    if current().json:
        show_json({"dry_run": dry_run, **dataclasses.asdict(report)})
        return
    rows = [
        {"step": one.step, "outcome": one.outcome, "figures": _figures(one.figures)}
        for one in report.steps
        if one.outcome != "nothing"
    ]
    show_rows("step outcome figures", rows, empty="Nothing is due.")
    before, after = report.before, report.after
    if report.has_done_anything:
        tell(
            f"Extents: {before.extents} -> {after.extents}",
            f"Bytes: {human_bytes(before.bytes)} -> {human_bytes(after.bytes)}",
        )
    for one in report.steps:
        if one.message:
            note(one.message)
    if report.is_stopped:
        note("Stopped; the rest is due again with the next run.")


def _line(report: RoundReport) -> str:
    """A round in which something was done, in one line."""
    done = "; ".join(
        f"{one.step}: {_figures(one.figures)}" for one in report.steps if one.outcome in {"done", "cut"}
    )
    before, after = report.before, report.after
    return (
        f"{done}; {before.extents} -> {after.extents} extents, {human_bytes(before.bytes)} -> "
        f"{human_bytes(after.bytes)}, in {report.duration_ms / 1000:.1f} s"
    )


def _figures(figures: Mapping[str, Any]) -> str:
    shown = (
        f"{name}={human_bytes(value) if name.endswith('bytes') else value}"
        for name, value in figures.items()
        if value
    )
    return ", ".join(shown) or "-"
