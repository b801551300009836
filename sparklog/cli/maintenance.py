"""`sparklog maintain`: do what is due of all maintenance, once, or again and again (`--watch`).

SIGTERM and SIGINT end it between two pieces of work, or within one: nothing is lost, and it exits with 0. A
second one ends it at once.
Not here: what is due, and doing it (sparklog/maintenance).
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from sparklog.cli.framework import (
    OnceCommand,
    common_options,
    current,
    is_terminal,
    json_text,
    note,
    require_topics,
)
from sparklog.cli.output import (
    METAVAR,
    Column,
    Stop,
    byte_bar,
    human_bytes,
    parse_duration,
    show_json,
    show_rows,
    tell,
)

if TYPE_CHECKING:
    from sparklog.client import SparkLog
    from sparklog.maintenance import (
        Budget,
        CompactedTopic,
        CompactionReport,
        MergeReport,
        RoundReport,
        Terms,
        VacuumReport,
    )

# --- vacuum ------------------------------------------------------------------------------------------
#
# `sparklog vacuum`: remove the files that nothing refers to any more, and free their space.
#
# Not here: which these are, and why nothing can refer to them again (sparklog/maintenance/sweep.py).


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
    show_removed(report, retain_ms=retain_ms, dry_run=dry_run)


def _confirm(*, force: bool) -> None:
    if force:
        return
    if not is_terminal(sys.stdin):
        raise click.UsageError(f"less than 7 days needs --force. {_LESS_THAN_A_WEEK}")
    note(_LESS_THAN_A_WEEK)
    click.confirm("Go on?", abort=True, err=True)


def show_removed(report: VacuumReport, *, retain_ms: int, dry_run: bool) -> None:
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


# --- maintenance words -------------------------------------------------------------------------------
#
# What the commands of maintenance have in common: which topics they are for.
#


_WILD = frozenset("*?[")  # which no topic's name has
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


def chosen_topics(
    log: SparkLog, words: Sequence[str], fits: Callable[[str], bool] = lambda _name: True
) -> list[str] | None:
    """The topics that a command was given, each once: names, lists with commas, patterns such as 'orders-*'.

    A pattern means users' topics, of those that `fits`; internal ones if it begins with an underscore.

    Returns: None if there are no words: all topics.

    Raises:
        UnknownTopicError: TOPIC_MISSING. click.UsageError: a pattern that means none.
    """
    found: dict[str, None] = {}
    for name in (part for word in words for part in word.split(",") if part):
        if not _WILD & set(name):
            require_topics(log, [name])
            found[name] = None
            continue
        known = log.topics(include_internal=name.startswith("_"))
        meant = [topic for topic in known if fnmatch.fnmatchcase(topic, name) and fits(topic)]
        if not meant:
            raise click.UsageError(
                f"found no topic for {name!r}, which is a pattern of the shell's kind (*, ?, [a-z]); "
                "`sparklog topics list` shows their names. Without TOPIC all are meant."
            )
        found |= dict.fromkeys(meant)
    if words and not found:
        raise click.UsageError(
            f"found {' '.join(words)!r}, expected names of topics; without any all are meant."
        )
    return list(found) or None


# --- compact -----------------------------------------------------------------------------------------
#
# `sparklog compact`: keep the last record of each key, in topics whose cleanup.policy has compact.
#
# Not here: what stays and what goes (sparklog/maintenance), freeing the storage (vacuum).


COMPACT_COLUMNS = (
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
    show_rows(COMPACT_COLUMNS[:_OF_DRY_RUN] if dry_run else COMPACT_COLUMNS, shown)
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


# --- expire ------------------------------------------------------------------------------------------
#
# `sparklog expire`: remove the records that are past their topic's retention.
#
# Not here: what is past it (sparklog/maintenance/retain.py).


EXPIRE_COLUMNS = (
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", number=True),
    Column("log_start_offset", "LOG-START-OFFSET", number=True),
    Column("new_log_start_offset", "NEW", number=True),
    Column("offsets", "OFFSETS", number=True),
    Column("size_bytes", "SIZE", number=True, bytes=True),
)


@click.command("expire", cls=OnceCommand)
@topics_argument
@click.option("--dry-run", is_flag=True, help="Only show what would go.")
@common_options
def expire(topics: tuple[str, ...], dry_run: bool) -> None:
    """Remove records of TOPICs, or of all, that are past retention.ms or retention.bytes.

    They are gone for every reader at once. By default topics keep everything: only those go for which
    the topic, or the root, sets a retention. `sparklog vacuum` frees their space on the storage.
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
    elif rows:
        show_rows(EXPIRE_COLUMNS, rows)
    else:
        tell("Nothing is past its retention.")


# --- optimize ----------------------------------------------------------------------------------------
#
# `sparklog optimize`: put small extents together, so that reading is as fast as after one large write.
#
# Not here: what is merged and how (sparklog/maintenance).


OPTIMIZE_COLUMNS = (
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
    show_merges(report, dry_run=dry_run)


def show_merges(report: MergeReport, *, dry_run: bool) -> None:
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
    show_rows([column for column in OPTIMIZE_COLUMNS if column.field not in dropped], shown)
    left_out = sum(one.left_out for one in report.topics.values())
    if left_out:
        note(f"{left_out} pieces were left out: others changed them meanwhile, or they cannot be fewer.")


# --- maintain ----------------------------------------------------------------------------------------


COLUMNS = (
    Column("step", "STEP"),
    Column("outcome", "OUTCOME"),
    Column("figures", "FIGURES"),
)


@click.command("maintain", cls=OnceCommand)
@topics_argument
@click.option("--watch", is_flag=True, help="Go on: a round now, and one after each interval.")
@click.option(
    "--interval",
    "interval_ms",
    callback=parse_duration,
    metavar=METAVAR,
    default="5m",
    show_default=True,
    help="Between rounds, with --watch.",
)
@click.option("--dry-run", is_flag=True, help="Only show what is due.")
@click.option(
    "--max-bytes-per-second",
    "rate",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Rest so that no more is read and written, together; default: no limit.",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Begin nothing after so much was rewritten in a round.",
)
@click.option(
    "--max-time",
    "max_time_ms",
    callback=parse_duration,
    metavar=METAVAR,
    help="Begin nothing after so long in a round.",
)
@min_input_files_option(256, "Merge where there are so many extents of about one size.")
@common_options
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

    if watch and not interval_ms:
        raise click.UsageError("--interval must be longer than nothing, or it would look all the time.")
    if watch and dry_run:
        raise click.UsageError("--watch and --dry-run exclude each other.")
    log = current().open_log()
    chosen = chosen_topics(log, topics)
    terms = Terms(topics=chosen, limits=MergeLimits(fan_in=fan_in))
    seconds = None if max_time_ms is None else max_time_ms / 1000
    budget = Budget(
        seconds=seconds, max_bytes=max_bytes, bytes_per_second=rate, files_per_second=FILES_PER_SECOND
    )
    with _until_signalled() as stop:
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
            progress=lambda progress: show(progress.done_bytes, progress.total_bytes),
        )


def _watch(log: SparkLog, terms: Terms, budget: Budget, stop: Stop, interval_seconds: float) -> None:
    """Round after round; what fails is told once, until something else does."""
    import dataclasses

    from sparklog.errors import CorruptLogError, FatalStorageError, SparklogError, UnknownTopicError
    from sparklog.maintenance import SkippedPartitions

    told, skipped = "", SkippedPartitions()
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
                tell(json_text(_document(report)))
            elif report.has_done_anything:
                tell(_line(report))
        if problem and problem != told:
            note(problem)
        told = problem
        stop.wait(interval_seconds)


@contextlib.contextmanager
def _until_signalled() -> Iterator[Stop]:
    """What SIGTERM and SIGINT ask to stop; the next one finds what was there before."""
    with contextlib.closing(Stop()) as stop:
        if threading.current_thread() is not threading.main_thread():
            yield stop  # only the main thread may take signals
            return

        def ask(_number: int, _frame: object) -> None:
            stop.ask()
            restore()

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            for number in before:  # known by now: the first may come before the last is taken
                signal.signal(number, ask)
            yield stop
        finally:
            restore()


def _document(report: RoundReport, *, dry_run: bool = False) -> dict[str, object]:
    import dataclasses

    return {"dry_run": dry_run, **dataclasses.asdict(report)}


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


def _show(report: RoundReport, *, dry_run: bool) -> None:
    if current().json:
        show_json(_document(report, dry_run=dry_run))
        return
    rows = [
        {"step": one.step, "outcome": one.outcome, "figures": _figures(one.figures)}
        for one in report.steps
        if one.outcome != "nothing"
    ]
    if rows:
        show_rows(COLUMNS, rows)
    else:
        tell("Nothing is due.")
    if report.has_done_anything:
        tell(
            f"Extents: {report.before.extents} -> {report.after.extents}",
            f"Bytes: {human_bytes(report.before.bytes)} -> {human_bytes(report.after.bytes)}",
        )
    for one in report.steps:
        if one.message:
            note(one.message)
    if report.is_stopped:
        note("Stopped; the rest is due again with the next run.")


def _figures(figures: object) -> str:
    assert isinstance(figures, dict)
    told = {
        name: human_bytes(value) if name.endswith("bytes") else value
        for name, value in figures.items()
        if value
    }
    return ", ".join(f"{name}={value}" for name, value in told.items()) or "-"
