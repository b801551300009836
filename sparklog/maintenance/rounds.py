"""A round of maintenance: the steps that are due, in their order, within a budget.

Invariants: a step that fails does not keep the others from being done, unless it is unknown what is durable;
    nor does one partition keep others from theirs (budget.py).
Not here: who runs rounds, when, and one at a time (budget.py): `sparklog maintain`, and for a broker or a
    streaming sink a process (sparklog/client/round_process.py).
Concurrency: any process and machine; one thread.
After a crash: what was published stays, the rest is due again.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sparklog.clock import Clock
from sparklog.errors import FatalStorageError, SparklogError
from sparklog.log.config import RootConfig, TopicConfig
from sparklog.maintenance.budget import (
    MAX_REPORTED,
    NO_LIMIT,
    Budget,
    Meter,
    SkippedPartition,
    StoppedError,
    failure_of,
)
from sparklog.maintenance.choose import (
    DEDUPE_BUFFER_BYTES,
    NO_DEFAULTS,
    NO_PARTITIONS,
    CompactionLimits,
    Dirtiness,
    MergeLimits,
    PartitionKey,
    choose_compactions,
    choose_merges,
    choose_rewrites,
    dirtiness,
    is_compacted,
)
from sparklog.maintenance.compaction import CompactionReport, compact
from sparklog.maintenance.merging import MergeReport, optimize
from sparklog.maintenance.retain import (
    abort_left_open,
    both_now_ms,
    choose_expired,
    choose_left_open,
    expire,
    sober_now_ms,
)
from sparklog.maintenance.sweep import DAY_MS, mostly_dead_segments, retire, retire_is_due, vacuum
from sparklog.maintenance.work_loop import OnProgress, ignore_progress
from sparklog.metadata import (
    NUMBER_COLUMNS,
    Action,
    Image,
    MetadataLog,
    SetConfigs,
    plan_expire_producers,
)

# --- round step --------------------------------------------------------------------------------------
#


Figures = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a choice depends on besides the image.

    Fields:
        topics: None: all, internal ones too.
        limits: when extents are merged.
        defaults: settings of topics where neither they nor the root say anything: a broker's.
        dedupe_buffer_bytes: see CompactionLimits.
        skip: partitions that are not rewritten, since they could not be lately.
    """

    topics: Collection[str] | None = None
    limits: MergeLimits = field(default_factory=MergeLimits)
    defaults: Mapping[str, str] = field(default_factory=lambda: NO_DEFAULTS)
    dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES
    skip: frozenset[PartitionKey] = NO_PARTITIONS

    @property
    def merge_limits(self) -> MergeLimits:
        """Return the limits, with what is skipped."""
        return replace(self.limits, skip=self.limits.skip | self.skip) if self.skip else self.limits

    @property
    def compaction_limits(self) -> CompactionLimits:
        """Return those of compaction that only does what is due."""
        return CompactionLimits(
            only_due=True,
            min_extents=self.limits.fan_in or 1,
            dedupe_buffer_bytes=self.dedupe_buffer_bytes,
            skip=self.skip,
            defaults=self.defaults,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """What a step is given."""

    metadata: MetadataLog
    clock: Clock
    terms: Terms
    meter: Meter
    dry_run: bool
    progress: OnProgress

    @property
    def options(self) -> dict[str, Any]:
        """Return what optimize and compact get alike: what cannot be read is a matter of the report."""
        return {
            "dry_run": self.dry_run,
            "raises": False,
            "meter": self.meter,
            "progress": self.progress,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What a step did, or would do.

    Fields:
        step: its name, that of the command which does the same.
        outcome: done, nothing (was due), due (in a dry run), cut (by the budget, or cancelled), busy
            (another process does it), failed.
        figures: counts by name, such as offsets or read_bytes.
        message: for people, where the outcome says too little.
        skipped: partitions that were left as they are, since they cannot be read; the others were done.
    """

    step: str
    outcome: str
    figures: Figures = field(default_factory=dict)
    message: str = ""
    skipped: tuple[SkippedPartition, ...] = ()
    duration_ms: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """`is_due` is pure: (image, time, terms)."""

    name: str
    is_due: Callable[[Image, int, Terms], bool]
    run: Callable[[StepContext], StepReport]


# --- steps -------------------------------------------------------------------------------------------
#
# The steps of a round of maintenance, in their order: each says when it is due, and does it.
#
# Order: what goes is not rewritten first (expire and compact, then merge), producers are forgotten before
# that, which makes more extents fit for it, and files go last, those that were written more than a week ago;
# transactions that nobody ends are aborted before all.
# Invariants: whether a step is due depends on the image, the time and limits alone, not on the storage.
# Not here: what the steps do (retain.py, compaction.py, merging.py, sweep.py).
# Sources: Kafka LogManager.cleanupLogs, LogCleaner.


# In the root's settings, but declared nowhere: when the last vacuum by itself began, in Unix time (ms).
LAST_VACUUM_KEY = "sparklog.last.vacuum.ms"
_VACUUM_COMMITS = 256
_MAX_NAMED = 3

# --- transactions ------------------------------------------------------------------------------------------


def _transactions_are_due(image: Image, now_ms: int, terms: Terms) -> bool:
    """Of whole roots: a transaction may be in any topics."""
    return terms.topics is None and bool(choose_left_open(image, now_ms))


def _transactions(context: StepContext) -> StepReport:
    metadata, clock = context.metadata, context.clock
    if not _transactions_are_due(metadata.image, sober_now_ms(metadata.store, clock), context.terms):
        return StepReport(step="transactions", outcome="nothing")
    if context.dry_run:
        return StepReport(step="transactions", outcome="due")
    aborted = abort_left_open(metadata, clock, context.meter.check)
    figures = {"aborted": len(aborted), "staged_bytes": sum(item.staged_bytes for item in aborted)}
    return StepReport(step="transactions", outcome="done" if aborted else "nothing", figures=figures)


# --- expire ------------------------------------------------------------------------------------------------


def _expire_is_due(image: Image, now_ms: int, terms: Terms) -> bool:
    return any(True for _ in choose_expired(image, now_ms, terms.topics, terms.defaults))


def _expire(context: StepContext) -> StepReport:
    gone = expire(
        context.metadata,
        sober_now_ms(context.metadata.store, context.clock),
        context.terms.topics,
        dry_run=context.dry_run,
        defaults=context.terms.defaults,
    )
    figures = {
        "partitions": len(gone),
        "offsets": sum(item.offsets for item in gone),
        "bytes": sum(item.size_bytes for item in gone),
    }
    done = "due" if context.dry_run else "done"
    return StepReport(step="expire", outcome=done if gone else "nothing", figures=figures)


# --- producers ---------------------------------------------------------------------------------------------


def _expire_producers(image: Image, now_ms: int, terms: Terms, latest_ms: int = 0) -> list[Action]:
    """Only for whole roots; see metadata/model/sequences.py."""
    if terms.topics is not None:
        return []
    expiration_ms = RootConfig.parse({**terms.defaults, **image.configs}).producer_id_expiration_ms
    action = plan_expire_producers(image, now_ms, expiration_ms, latest_ms=latest_ms)
    return [] if action is None else [action]


def _producers_are_due(image: Image, now_ms: int, terms: Terms) -> bool:
    return bool(_expire_producers(image, now_ms, terms))


def _producers(context: StepContext) -> StepReport:
    metadata, terms = context.metadata, context.terms
    now_ms, latest_ms = both_now_ms(metadata.store, context.clock)
    before = metadata.image
    if context.dry_run:
        is_due = _producers_are_due(before, now_ms, terms)
        return StepReport(step="producers", outcome="due" if is_due else "nothing")
    done = metadata.publish(lambda image: _expire_producers(image, now_ms, terms, latest_ms)).actions
    left, there = _count_producers(metadata.image), _count_producers(before)
    return StepReport(
        step="producers",
        outcome="done" if done else "nothing",
        figures={"forgotten_producers": max(0, there - left), "known_producers": left},
    )


def _count_producers(image: Image) -> int:
    """Of all partitions, each as often as it has written to one."""
    return sum(len(state.producers) for topic in image.topics.values() for state in topic.partitions)


# --- compact -----------------------------------------------------------------------------------------------


def dirtiness_of(image: Image, now_ms: int, terms: Terms) -> Dirtiness:
    """Return how much there is to compact, due or not."""
    return dirtiness(image, now_ms, terms.compaction_limits, _compactable(image, terms))


def _compactable(image: Image, terms: Terms) -> list[str]:
    """The topics whose cleanup.policy has compact."""
    return [
        name
        for name in (sorted(image.topics) if terms.topics is None else terms.topics)
        if name in image.topics and is_compacted(image.topics[name], image)
    ]


def _compact_is_due(image: Image, now_ms: int, terms: Terms) -> bool:
    names = _compactable(image, terms)
    return bool(names) and bool(choose_compactions(image, now_ms, terms.compaction_limits, names))


def _compact(context: StepContext) -> StepReport:
    report = compact(
        context.metadata,
        context.clock,
        _compactable(context.metadata.image, context.terms),
        context.terms.compaction_limits,
        **context.options,
    )
    topics = report.topics.values()
    figures = {
        "partitions": sum(item.partitions for item in topics),
        "records_removed": sum(item.records_removed for item in topics),
        "read_bytes": sum(item.bytes_before for item in topics),
        "written_bytes": sum(item.bytes_after for item in topics),
        "left_out": sum(item.left_out for item in topics),
    }
    works = figures["partitions"] if context.dry_run else sum(item.rounds for item in topics)
    return _report("compact", context, figures, report, work_done=works)


def _report(
    step: str,
    context: StepContext,
    figures: Figures,
    report: MergeReport | CompactionReport,
    *,
    work_done: int,
) -> StepReport:
    """The report of a step that rewrites partitions."""
    failed = report.skipped
    outcome = "done" if work_done else "failed" if failed else "nothing"
    if context.dry_run and work_done:
        outcome = "due"
    if report.is_cut:
        outcome = "cut"
    more = f"; and {len(failed) - _MAX_NAMED} more" if len(failed) > _MAX_NAMED else ""
    return StepReport(
        step=step,
        outcome=outcome,
        figures=figures,
        message="; ".join(item.message for item in failed[:_MAX_NAMED]) + more,
        skipped=tuple(failed[:MAX_REPORTED]),
    )


# --- optimize ----------------------------------------------------------------------------------------------


def _merge_is_due(image: Image, _now_ms: int, terms: Terms) -> bool:
    return any(True for _ in choose_merges(image, terms.merge_limits, terms.topics))


def _merge(context: StepContext) -> StepReport:
    report = optimize(
        context.metadata,
        context.clock,
        context.terms.topics,
        context.terms.merge_limits,
        **context.options,
    )
    topics = report.topics.values()
    figures = {
        "merged_extents": sum(item.merged_extents for item in topics),
        "read_bytes": sum(item.merged_bytes for item in topics),
        "added_extents": sum(item.added_extents for item in topics),
        "written_bytes": sum(item.added_bytes for item in topics),
        "left_out": sum(item.left_out for item in topics),
    }
    return _report("optimize", context, figures, report, work_done=figures["merged_extents"])


# --- retire ------------------------------------------------------------------------------------------------


def _delay_ms(image: Image, terms: Terms) -> int:
    """How long readers have what is dead: the root's file.delete.delay.ms."""
    return TopicConfig.parse({}, {**terms.defaults, **image.configs}).file_delete_delay_ms


def _retire_is_due(image: Image, now_ms: int, terms: Terms) -> bool:
    """Of whole roots: a segment may have extents of any topics."""
    return terms.topics is None and retire_is_due(image, now_ms, _delay_ms(image, terms))


def _retire(context: StepContext) -> StepReport:
    metadata, clock = context.metadata, context.clock
    now_ms = metadata.store.storage_now_ms(clock.now_ms())
    if not _retire_is_due(metadata.image, now_ms, context.terms):
        return StepReport(step="retire", outcome="nothing")
    if context.dry_run:
        return StepReport(step="retire", outcome="due")
    report = retire(
        metadata,
        clock,
        delay_ms=_delay_ms(metadata.image, context.terms),
        check=context.meter.check,
        removed=context.meter.spend_files,
    )
    figures = {
        "retired_segments": report.retired,
        "retired_bytes": report.retired_bytes,
        "removed_segments": report.files,
    }
    return StepReport(
        step="retire", outcome="done" if report.has_done_anything else "nothing", figures=figures
    )


# --- vacuum ------------------------------------------------------------------------------------------------


def _vacuum_is_due(image: Image, now_ms: int, terms: Terms) -> bool:
    """Once a day, which the image remembers; of whole roots, that have been written to for a while."""
    if terms.topics is not None or image.commit < _VACUUM_COMMITS:
        return False
    text = image.configs.get(LAST_VACUUM_KEY, "")
    return not text.isdecimal() or abs(now_ms - int(text)) >= DAY_MS  # clocks may differ


def _vacuum(context: StepContext) -> StepReport:
    metadata, now_ms = context.metadata, context.clock.now_ms()
    if not _vacuum_is_due(metadata.image, now_ms, context.terms):
        return StepReport(step="vacuum", outcome="nothing")
    if context.dry_run:
        return StepReport(step="vacuum", outcome="due")
    # First: a vacuum that fails, or is killed with its round, has listed the storage all the same.
    metadata.publish(lambda _image: [SetConfigs(configs={LAST_VACUUM_KEY: str(now_ms)})])
    report = vacuum(
        metadata, context.clock, progress=lambda _: context.meter.check(), removed=context.meter.spend_files
    )
    rewritten = _rewrite_mostly_dead(context)
    figures = {
        "rewritten_bytes": sum(item.merged_bytes for item in rewritten.topics.values()),
        "files": report.dead.files,
        "bytes": report.dead.size_bytes,
        "waiting_files": report.waiting.files,
        "temporary": report.temporary,
        "requests": report.requests,
    }
    return StepReport(
        step="vacuum",
        outcome="done",
        figures=figures,
        skipped=tuple(rewritten.skipped[:MAX_REPORTED]),
    )


def _rewrite_mostly_dead(context: StepContext) -> MergeReport:
    """Move what is live out of segments that are mostly dead, so that a vacuum can remove these."""
    segments = mostly_dead_segments(context.metadata, context.clock)
    if not segments:
        return MergeReport()
    choose = partial(choose_rewrites, segments=frozenset(segments))
    limits = context.terms.merge_limits
    return optimize(context.metadata, context.clock, None, limits, choose=choose, **context.options)


STEPS: tuple[Step, ...] = (
    Step("transactions", _transactions_are_due, _transactions),
    Step("expire", _expire_is_due, _expire),
    Step("producers", _producers_are_due, _producers),
    Step("compact", _compact_is_due, _compact),
    Step("optimize", _merge_is_due, _merge),
    Step("retire", _retire_is_due, _retire),
    Step("vacuum", _vacuum_is_due, _vacuum),
)


# --- maintain ----------------------------------------------------------------------------------------


MAX_MESSAGE = 2_000  # of a step
_SIZE = NUMBER_COLUMNS.index("size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How much there is of a root: extents, and their stored bytes."""

    extents: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReport:
    """What a round did.

    Fields:
        steps: those that were considered, in order.
        before, after: of the topics that were considered.
        is_stopped: the round was cancelled.
    """

    steps: tuple[StepReport, ...]
    before: Amount
    after: Amount
    duration_ms: int
    is_stopped: bool

    @property
    def has_failed(self) -> bool:
        """True if a step failed, or skipped a partition that cannot be read."""
        return any(step.outcome == "failed" or step.skipped for step in self.steps)

    @property
    def is_fruitless(self) -> bool:
        """True if the next round meets the same. Not if partitions were found that it skips."""
        return any(step.outcome == "failed" and not step.skipped for step in self.steps) or not (
            self.has_done_anything or self.skipped
        )

    @property
    def skipped(self) -> tuple[SkippedPartition, ...]:
        """Return each partition once."""
        return tuple({found.key: found for step in self.steps for found in step.skipped}.values())

    @property
    def has_done_anything(self) -> bool:
        """True if anything was published."""
        return any(step.outcome in {"done", "cut"} for step in self.steps)

    @property
    def problem(self) -> str:
        """Return what went wrong, or is left undone for a reason, for people; empty if nothing."""
        return "; ".join(step.message for step in self.steps if step.message and step.outcome != "busy")


def due_steps(
    image: Image, now_ms: int, terms: Terms | None = None, *, skip: Collection[str] = ()
) -> Iterator[str]:
    """Yield the names of the steps that are due, in order, without some. Pure, and lazy.

    Cost where nothing is due: a microsecond for each partition, and a hundred for each with a retention.
    """
    terms = terms or Terms()
    for step in STEPS:
        if step.name not in skip and step.is_due(image, now_ms, terms):
            yield step.name


def maintain(
    metadata: MetadataLog,
    clock: Clock,
    terms: Terms | None = None,
    *,
    steps: Collection[str] = (),
    budget: Budget = NO_LIMIT,
    dry_run: bool = False,
    is_stopped: Callable[[], bool] = lambda: False,
    rest_ms: Callable[[float], None] | None = None,
    progress: OnProgress = ignore_progress,
) -> RoundReport:
    """One round.

    Args:
        steps: names of those to do; empty: all.
        dry_run: only report what is due.
        is_stopped: called between works, and within them; true once the round is cancelled.
        rest_ms: waits when the budget's rate demands it; by default the clock's sleep.

    Raises:
        UnknownTopicError: TOPIC_MISSING. FatalStorageError: it is not known what is durable.
        StorageError, CorruptLogError: the metadata cannot be read.
    """
    began_ms = clock.monotonic_ms()
    terms = terms or Terms()
    image = metadata.refresh(force=True)
    for topic in terms.topics or ():
        image.topic(topic)
    meter = Meter(budget, clock, is_stopped=is_stopped, rest_ms=rest_ms)
    context = StepContext(
        metadata=metadata, clock=clock, terms=terms, meter=meter, dry_run=dry_run, progress=progress
    )
    before = _measured(image, terms)
    reports: list[StepReport] = []
    was_stopped = False
    for step in STEPS:
        if steps and step.name not in steps:
            continue
        step_began_ms = clock.monotonic_ms()
        report = _run_step(step, context)
        if report is None:
            was_stopped = True
            break
        reports.append(replace(report, duration_ms=clock.monotonic_ms() - step_began_ms))
    if not dry_run:
        metadata.store.restore_reserve()
    return RoundReport(
        steps=tuple(reports),
        before=before,
        after=_measured(metadata.image, terms),
        duration_ms=clock.monotonic_ms() - began_ms,
        is_stopped=was_stopped or is_stopped(),
    )


def _run_step(step: Step, context: StepContext) -> StepReport | None:
    """Return None if the round was cancelled before the step did anything."""
    try:
        context.meter.check()
        return step.run(context)
    except StoppedError:
        return None
    except FatalStorageError:
        raise
    except SparklogError as error:
        outcome = "busy" if error.code == "MAINTENANCE_RUNNING" else "failed"
        return StepReport(step=step.name, outcome=outcome, message=str(error)[:MAX_MESSAGE])
    except Exception as error:  # noqa: BLE001 - a bug in one step
        message = str(failure_of(f"step {step.name}", error))[:MAX_MESSAGE]
        return StepReport(step=step.name, outcome="failed", message=message)


def _measured(image: Image, terms: Terms) -> Amount:
    extents = size = 0
    for name, topic in image.topics.items():
        if terms.topics is None or name in terms.topics:
            for state in topic.partitions:
                extents += len(state.extents)
                size += sum(int(block.numbers[_SIZE].sum()) for _, block in state.extents.column_blocks())
    return Amount(extents=extents, bytes=size)
