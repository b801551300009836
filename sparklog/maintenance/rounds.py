"""A round of maintenance: the due steps, in order, within a budget.

Invariants: a failed step does not prevent the others, unless it is unknown which data are durable; neither
    does a failed partition (budget.py).
Not here: scheduling of rounds (`sparklog maintain`; for a broker or a streaming sink a process,
    sparklog/client/round_process.py), and their lock (budget.py).
Concurrency: any process and machine; one thread.
After a crash: published works stay, the rest is due again.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    dirtiness,
    is_compacted,
)
from sparklog.maintenance.compaction import compact
from sparklog.maintenance.merging import MergeReport, optimize
from sparklog.maintenance.retain import (
    abort_left_open,
    both_now_ms,
    choose_expired,
    choose_left_open,
    earlier_now_ms,
    expire,
)
from sparklog.maintenance.sweep import DAY_MS, mostly_dead_segments, retire, retire_is_due, vacuum
from sparklog.maintenance.work_loop import OnProgress, RewriteReport, ignore_progress
from sparklog.metadata import (
    NUMBER_COLUMNS,
    Action,
    Image,
    MetadataLog,
    SetConfigs,
    plan_expire_producers,
)

# --- what a step gets, and reports -------------------------------------------------------------------


Figures = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The inputs of a choice, in addition to the image.

    Fields:
        topics: None: all, internal ones too.
        limits: when extents are merged.
        defaults: a broker's defaults of settings that neither the topic nor the root has.
        dedupe_buffer_bytes: see CompactionLimits.
        skip: partitions that are not rewritten, since that failed lately.
    """

    topics: Collection[str] | None = None
    limits: MergeLimits = field(default_factory=MergeLimits)
    defaults: Mapping[str, str] = field(default_factory=lambda: NO_DEFAULTS)
    dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES
    skip: frozenset[PartitionKey] = NO_PARTITIONS

    @property
    def merge_limits(self) -> MergeLimits:
        """Return the limits of merging, with the skipped partitions."""
        return replace(self.limits, skip=self.limits.skip | self.skip) if self.skip else self.limits

    @property
    def compaction_limits(self) -> CompactionLimits:
        """Return the limits of compaction of due partitions only."""
        return CompactionLimits(
            only_due=True,
            min_extents=self.limits.fan_in or 1,
            dedupe_buffer_bytes=self.dedupe_buffer_bytes,
            skip=self.skip,
            defaults=self.defaults,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """The arguments of a step."""

    metadata: MetadataLog
    clock: Clock
    terms: Terms
    meter: Meter
    dry_run: bool
    progress: OnProgress

    @property
    def options(self) -> dict[str, Any]:
        """Return the common options of optimize and compact: unreadable partitions are only reported."""
        return {
            "dry_run": self.dry_run,
            "raises": False,
            "meter": self.meter,
            "progress": self.progress,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """The report of a step, or its plan in a dry run.

    Fields:
        step: its name, that of the command which does the same.
        outcome: done, nothing (was due), due (in a dry run), cut (by the budget, or cancelled), busy
            (another process does it), failed.
        figures: counts by name, such as offsets or read_bytes.
        message: a text for users, in addition to the outcome: what failed, or was skipped.
        skipped: partitions that were not rewritten, since they are unreadable, or may not be written; the
            others were done.
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
# The steps of a round of maintenance, in order: each has a check whether it is due, and a function that runs
# it.
#
# Order: abandoned transactions are aborted first. Records are removed before the rest is rewritten (expire
# and compact, then merge). Producers expire before merging, which makes more extents mergeable. Files older
# than a week are removed last.
# Invariants: whether a step is due depends on the image, the time and limits alone, not on the storage.
# Not here: the work of the steps (retain.py, compaction.py, merging.py, sweep.py).
# Sources: Kafka LogManager.cleanupLogs, LogCleaner.


# In the root's settings, but declared nowhere: when the last vacuum by itself began, in Unix time (ms).
LAST_VACUUM_KEY = "sparklog.last.vacuum.ms"
_VACUUM_COMMITS = 256
_MAX_NAMED = 3


def _report(step: str, *, is_done: bool, refused: Sequence[str] = (), **figures: int) -> StepReport:
    """`refused`: texts about isolated topics that were left out."""
    outcome = "done" if is_done else "failed" if refused else "nothing"
    return StepReport(step=step, outcome=outcome, figures=figures, message=_first_of(refused))


def _first_of(messages: Sequence[str]) -> str:
    more = f"; and {len(messages) - _MAX_NAMED} more" if len(messages) > _MAX_NAMED else ""
    return "; ".join(messages[:_MAX_NAMED]) + more


def _unless_due(context: StepContext, step: str, *, is_due: bool) -> StepReport | None:
    """Return the report of a step that is not run; None if it is to run."""
    if is_due and not context.dry_run:
        return None
    return StepReport(step=step, outcome="due" if is_due else "nothing")


def _transactions_are_due(image: Image, now_ms: int, terms: Terms) -> bool:
    """True only for whole roots: a transaction may be in any topics."""
    return terms.topics is None and bool(choose_left_open(image, now_ms))


def _transactions(context: StepContext) -> StepReport:
    metadata, clock = context.metadata, context.clock
    is_due = _transactions_are_due(metadata.image, earlier_now_ms(metadata.store, clock), context.terms)
    if (report := _unless_due(context, "transactions", is_due=is_due)) is not None:
        return report
    aborted = abort_left_open(metadata, clock, context.meter.check)
    staged_bytes = sum(transaction.staged_bytes for transaction in aborted)
    return _report("transactions", is_done=bool(aborted), aborted=len(aborted), staged_bytes=staged_bytes)


def _expire_is_due(image: Image, now_ms: int, terms: Terms) -> bool:
    return any(True for _ in choose_expired(image, now_ms, terms.topics, terms.defaults))


def _expire(context: StepContext) -> StepReport:
    metadata, terms = context.metadata, context.terms
    now_ms = earlier_now_ms(metadata.store, context.clock)
    gone = expire(metadata, now_ms, terms.topics, dry_run=context.dry_run, defaults=terms.defaults)
    report = _report(
        "expire",
        is_done=bool(gone),
        partitions=len(gone),
        offsets=sum(expiry.offsets for expiry in gone),
        bytes=sum(expiry.size_bytes for expiry in gone),
    )
    return replace(report, outcome="due") if gone and context.dry_run else report


def _expire_producers(image: Image, now_ms: int, terms: Terms, latest_ms: int = 0) -> list[Action]:
    """Return the actions that expire producers, for whole roots only; see metadata/model/sequences.py."""
    if terms.topics is not None:
        return []
    expiration_ms = RootConfig.parse({**terms.defaults, **image.configs}).producer_id_expiration_ms
    action = plan_expire_producers(image, now_ms, expiration_ms, latest_ms=latest_ms)
    return [] if action is None else [action]


def _producers_are_due(image: Image, now_ms: int, terms: Terms) -> bool:
    return bool(_expire_producers(image, now_ms, terms))


def _producers(context: StepContext) -> StepReport:
    metadata, terms, before = context.metadata, context.terms, context.metadata.image
    now_ms, latest_ms = both_now_ms(metadata.store, context.clock)
    is_due = _producers_are_due(before, now_ms, terms)
    if (report := _unless_due(context, "producers", is_due=is_due)) is not None:
        return report
    done = metadata.publish(lambda image: _expire_producers(image, now_ms, terms, latest_ms)).actions
    left, there = _count_producers(metadata.image), _count_producers(before)
    forgotten = max(0, there - left)
    return _report("producers", is_done=bool(done), forgotten_producers=forgotten, known_producers=left)


def _count_producers(image: Image) -> int:
    """Return the producers of all partitions; one that has written to several counts for each."""
    return sum(len(state.producers) for topic in image.topics.values() for state in topic.partitions)


def dirtiness_of(image: Image, now_ms: int, terms: Terms) -> Dirtiness:
    """Return the amount of compaction work, due or not."""
    return dirtiness(image, now_ms, terms.compaction_limits, _compactable(image, terms))


def _compactable(image: Image, terms: Terms) -> list[str]:
    """Return the topics whose cleanup.policy has compact."""
    return [
        name
        for name in (sorted(image.topics) if terms.topics is None else terms.topics)
        if name in image.topics and is_compacted(image.topics[name], image)
    ]


def _compact_is_due(image: Image, now_ms: int, terms: Terms) -> bool:
    names = _compactable(image, terms)
    return bool(names) and bool(choose_compactions(image, now_ms, terms.compaction_limits, names))


def _compact(context: StepContext) -> StepReport:
    metadata, terms = context.metadata, context.terms
    names = _compactable(metadata.image, terms)
    report = compact(metadata, context.clock, names, terms.compaction_limits, **context.options)
    topics = report.topics.values()
    partitions = sum(counts.partitions for counts in topics)
    return _rewritten(
        "compact",
        context,
        report,
        partitions if context.dry_run else sum(counts.rounds for counts in topics),
        partitions=partitions,
        records_removed=sum(counts.records_removed for counts in topics),
        read_bytes=sum(counts.bytes_before for counts in topics),
        written_bytes=sum(counts.bytes_after for counts in topics),
        left_out=sum(counts.left_out for counts in topics),
    )


def _rewritten(
    step: str, context: StepContext, report: RewriteReport[Any], work_done: int, **figures: int
) -> StepReport:
    """Return the report of a step that rewrites partitions."""
    failed = report.skipped
    outcome = "done" if work_done else "failed" if failed else "nothing"
    if context.dry_run and work_done:
        outcome = "due"
    if report.is_cut:
        outcome = "cut"
    return StepReport(
        step=step,
        outcome=outcome,
        figures=figures,
        message=_first_of([partition.message for partition in failed]),
        skipped=tuple(failed[:MAX_REPORTED]),
    )


def _merge_is_due(image: Image, _now_ms: int, terms: Terms) -> bool:
    return any(True for _ in choose_merges(image, terms.merge_limits, terms.topics))


def _merge(context: StepContext) -> StepReport:
    terms = context.terms
    report = optimize(context.metadata, context.clock, terms.topics, terms.merge_limits, **context.options)
    topics = report.topics.values()
    merged_extents = sum(counts.merged_extents for counts in topics)
    return _rewritten(
        "optimize",
        context,
        report,
        merged_extents,
        merged_extents=merged_extents,
        read_bytes=sum(counts.merged_bytes for counts in topics),
        added_extents=sum(counts.added_extents for counts in topics),
        written_bytes=sum(counts.added_bytes for counts in topics),
        left_out=sum(counts.left_out for counts in topics),
    )


def _delay_ms(image: Image, terms: Terms) -> int:
    """Return the time for which readers may read dead files: the root's file.delete.delay.ms."""
    return TopicConfig.parse({}, {**terms.defaults, **image.configs}).file_delete_delay_ms


def _retire_is_due(image: Image, now_ms: int, terms: Terms) -> bool:
    """True only for whole roots: a segment may have extents of any topics."""
    return terms.topics is None and retire_is_due(image, now_ms, _delay_ms(image, terms))


def _retire(context: StepContext) -> StepReport:
    metadata, clock, meter = context.metadata, context.clock, context.meter
    now_ms = metadata.store.storage_now_ms(clock.now_ms())
    is_due = _retire_is_due(metadata.image, now_ms, context.terms)
    if (report := _unless_due(context, "retire", is_due=is_due)) is not None:
        return report
    delay_ms = _delay_ms(metadata.image, context.terms)
    retired = retire(metadata, clock, delay_ms=delay_ms, check=meter.check, removed=meter.spend_files)
    return _report(
        "retire",
        is_done=retired.has_done_anything,
        refused=retired.refused,
        retired_segments=retired.retired,
        retired_bytes=retired.retired_bytes,
        removed_segments=retired.files,
    )


def _vacuum_is_due(image: Image, now_ms: int, terms: Terms) -> bool:
    """True once a day (the image has the last time), for whole roots that are not new."""
    if terms.topics is not None or image.commit < _VACUUM_COMMITS:
        return False
    text = image.configs.get(LAST_VACUUM_KEY, "")
    return not text.isdecimal() or abs(now_ms - int(text)) >= DAY_MS  # clocks may differ


def _vacuum(context: StepContext) -> StepReport:
    metadata, clock, meter = context.metadata, context.clock, context.meter
    now_ms = clock.now_ms()
    is_due = _vacuum_is_due(metadata.image, now_ms, context.terms)
    if (report := _unless_due(context, "vacuum", is_due=is_due)) is not None:
        return report
    # Before the vacuum: one that fails, or is killed with its round, has also paid for the listing.
    metadata.publish(lambda _image: [SetConfigs(configs={LAST_VACUUM_KEY: str(now_ms)})])
    swept = vacuum(metadata, clock, progress=lambda _: meter.check(), removed=meter.spend_files)
    rewritten = _rewrite_mostly_dead(context)
    done = _report(
        "vacuum",
        is_done=True,
        refused=[*swept.refused, *(partition.message for partition in rewritten.skipped)],
        rewritten_bytes=sum(counts.merged_bytes for counts in rewritten.topics.values()),
        files=swept.dead.files,
        bytes=swept.dead.size_bytes,
        waiting_files=swept.waiting.files,
        temporary=swept.temporary,
        requests=swept.requests,
    )
    return replace(done, skipped=tuple(rewritten.skipped[:MAX_REPORTED]))


def _rewrite_mostly_dead(context: StepContext) -> MergeReport:
    """Move live extents out of mostly dead segments, so that a vacuum can remove these."""
    metadata, clock, limits = context.metadata, context.clock, context.terms.merge_limits
    segments = mostly_dead_segments(metadata, clock)
    if not segments:
        return MergeReport()
    return optimize(metadata, clock, None, limits, segments=segments, **context.options)


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
    """The amount of data in a root: extents, and their stored bytes."""

    extents: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReport:
    """The report of a round.

    Fields:
        steps: the considered steps, in order.
        before, after: the amounts in the considered topics.
        is_stopped: the round was cancelled.
    """

    steps: tuple[StepReport, ...]
    before: Amount
    after: Amount
    duration_ms: int
    is_stopped: bool

    @property
    def has_failed(self) -> bool:
        """True if a step failed, or skipped a partition or a topic."""
        return bool(self.problem)

    @property
    def is_fruitless(self) -> bool:
        """True if the next round would fail in the same way. Not if it skips the new bad partitions."""
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
        """Return a text about failures and skipped work for users; empty if there are none."""
        return "; ".join(step.message for step in self.steps if step.message and step.outcome != "busy")


def due_steps(
    image: Image, now_ms: int, terms: Terms | None = None, *, skip: Collection[str] = ()
) -> Iterator[str]:
    """Yield the names of the due steps, in order, without some. Pure, and lazy.

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
    """Run one round.

    Args:
        steps: names of the steps to run; empty: all.
        dry_run: only report the due steps.
        is_stopped: called between works, and within them; true once the round is cancelled.
        rest_ms: waits when the budget's rate demands it; by default the clock's sleep.

    Raises:
        UnknownTopicError: TOPIC_MISSING. FatalStorageError: it is unknown which data are durable.
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
    """Run a step; return None if the round was cancelled before the step did anything."""
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
