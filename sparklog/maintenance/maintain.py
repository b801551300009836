"""A round of maintenance: the steps that are due, in their order, within a budget.

Invariants: a step that fails does not keep the others from their turn, however it fails, unless it is unknown
    what is durable; nor does one partition keep others from theirs (budget.py).
Not here: who runs rounds, when, and one at a time (budget.py): `sparklog maintain`, a broker, a streaming
    sink.
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
    MAX_TOLD,
    NO_LIMIT,
    Budget,
    Meter,
    StoppedError,
    Uncleanable,
    failure_of,
)
from sparklog.maintenance.choose import (
    DEDUPE_BUFFER_BYTES,
    NO_DEFAULTS,
    CompactionLimits,
    Dirtiness,
    MergeLimits,
    choose_compactions,
    choose_merges,
    choose_rewrites,
    dirtiness,
    is_compacted,
)
from sparklog.maintenance.compact import CompactionReport, compact
from sparklog.maintenance.merge import Progress, Report, optimize
from sparklog.maintenance.retain import (
    abort_left_open,
    both_now_ms,
    choose_expired,
    choose_left_open,
    expire,
    sober_now_ms,
)
from sparklog.maintenance.sweep import DAY_MS, mostly_dead_segments, retire, retire_is_due, vacuum
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
# What a step of a round of maintenance is: what it is given, and what it reports.
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
        but: (topic_id, partition) of what is not rewritten, since it was found uncleanable lately.
    """

    topics: Collection[str] | None = None
    limits: MergeLimits = field(default_factory=MergeLimits)
    defaults: Mapping[str, str] = field(default_factory=lambda: NO_DEFAULTS)
    dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES
    but: frozenset[tuple[str, int]] = frozenset()

    @property
    def merge_limits(self) -> MergeLimits:
        """Without what is left out."""
        return replace(self.limits, but=self.limits.but | self.but) if self.but else self.limits

    @property
    def compaction_limits(self) -> CompactionLimits:
        """As compaction by itself has them."""
        return CompactionLimits(
            only_due=True,
            min_extents=self.limits.fan_in or 1,
            dedupe_buffer_bytes=self.dedupe_buffer_bytes,
            but=self.but,
            defaults=self.defaults,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What a step is given."""

    metadata: MetadataLog
    clock: Clock
    terms: Terms
    meter: Meter
    dry_run: bool
    progress: Callable[[Progress], None]

    @property
    def how(self) -> dict[str, Any]:
        """What optimize and compact are told alike: what cannot be read is a matter of the report."""
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
        outcome: done, nothing (was due), due (in a dry run), cut (by the budget, or because somebody
            asked for an end), busy (another process does it), failed.
        figures: counts by name, such as offsets or read_bytes.
        message: for people, where the outcome says too little.
        uncleanable: partitions that were left as they are, since they cannot be read; the others were done.
    """

    step: str
    outcome: str
    figures: Figures = field(default_factory=dict)
    message: str = ""
    uncleanable: tuple[Uncleanable, ...] = ()
    duration_ms: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """`is_due` is pure: (image, time, terms)."""

    name: str
    is_due: Callable[[Image, int, Terms], bool]
    run: Callable[[Round], StepReport]


# --- steps -------------------------------------------------------------------------------------------
#
# The steps of a round of maintenance, in their order: each says when it is due, and does it.
#
# Order: what goes is not rewritten first (expire and compact, then merge), producers are forgotten before
# that, which makes more extents fit for it, and files go last, those that were written more than a week ago;
# what nobody is going to commit is dropped before all.
# Invariants: whether a step is due is told from the image, the time and limits alone, without looking at the
#     storage.
# Not here: what the steps do (retain.py, compact.py, merge.py, sweep.py).
# Sources: Kafka LogManager.cleanupLogs, LogCleaner.


# In the root's settings, but declared nowhere: when the last vacuum by itself began, in Unix time (ms).
LAST_VACUUM_KEY = "sparklog.last.vacuum.ms"
_VACUUM_COMMITS = 256
_MAX_NAMED = 3

# --- transactions ------------------------------------------------------------------------------------------


def _transactions_are_due(image: Image, now_ms: int, terms: Terms) -> bool:
    """Of whole roots: a transaction may be in any topics."""
    return terms.topics is None and bool(choose_left_open(image, now_ms))


def _transactions(round_: Round) -> StepReport:
    metadata, clock = round_.metadata, round_.clock
    if not _transactions_are_due(metadata.image, sober_now_ms(metadata.store, clock), round_.terms):
        return StepReport(step="transactions", outcome="nothing")
    if round_.dry_run:
        return StepReport(step="transactions", outcome="due")
    aborted = abort_left_open(metadata, clock, round_.meter.check)
    figures = {"aborted": len(aborted), "staged_bytes": sum(one.staged_bytes for one in aborted)}
    return StepReport(step="transactions", outcome="done" if aborted else "nothing", figures=figures)


# --- expire ------------------------------------------------------------------------------------------------


def _expire_is_due(image: Image, now_ms: int, terms: Terms) -> bool:
    return any(True for _ in choose_expired(image, now_ms, terms.topics, terms.defaults))


def _expire(round_: Round) -> StepReport:
    gone = expire(
        round_.metadata,
        sober_now_ms(round_.metadata.store, round_.clock),
        round_.terms.topics,
        dry_run=round_.dry_run,
        defaults=round_.terms.defaults,
    )
    figures = {
        "partitions": len(gone),
        "offsets": sum(one.offsets for one in gone),
        "bytes": sum(one.size_bytes for one in gone),
    }
    done = "due" if round_.dry_run else "done"
    return StepReport(step="expire", outcome=done if gone else "nothing", figures=figures)


# --- producers ---------------------------------------------------------------------------------------------


def _expire_producers(image: Image, now_ms: int, terms: Terms, latest_ms: int = 0) -> list[Action]:
    """Of whole roots; see metadata/model/sequences.py."""
    if terms.topics is not None:
        return []
    expiration_ms = RootConfig.parse({**terms.defaults, **image.configs}).producer_id_expiration_ms
    action = plan_expire_producers(image, now_ms, expiration_ms, latest_ms=latest_ms)
    return [] if action is None else [action]


def _producers_are_due(image: Image, now_ms: int, terms: Terms) -> bool:
    return bool(_expire_producers(image, now_ms, terms))


def _producers(round_: Round) -> StepReport:
    metadata, terms = round_.metadata, round_.terms
    now_ms, latest_ms = both_now_ms(metadata.store, round_.clock)
    before = metadata.image
    if round_.dry_run:
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
    """How much there is to compact, due or not."""
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


def _compact(round_: Round) -> StepReport:
    report = compact(
        round_.metadata,
        round_.clock,
        _compactable(round_.metadata.image, round_.terms),
        round_.terms.compaction_limits,
        **round_.how,
    )
    topics = report.topics.values()
    figures = {
        "partitions": sum(one.partitions for one in topics),
        "records_removed": sum(one.records_removed for one in topics),
        "read_bytes": sum(one.bytes_before for one in topics),
        "written_bytes": sum(one.bytes_after for one in topics),
        "left_out": sum(one.left_out for one in topics),
    }
    works = figures["partitions"] if round_.dry_run else sum(one.rounds for one in topics)
    return _report("compact", round_, figures, report, work_done=works)


def _report(
    step: str, round_: Round, figures: Figures, report: Report | CompactionReport, *, work_done: int
) -> StepReport:
    """Of a step that rewrites partitions."""
    failed = report.uncleanable
    outcome = "done" if work_done else "failed" if failed else "nothing"
    if round_.dry_run and work_done:
        outcome = "due"
    if report.is_cut:
        outcome = "cut"
    more = f"; and {len(failed) - _MAX_NAMED} more" if len(failed) > _MAX_NAMED else ""
    return StepReport(
        step=step,
        outcome=outcome,
        figures=figures,
        message="; ".join(one.message for one in failed[:_MAX_NAMED]) + more,
        uncleanable=tuple(failed[:MAX_TOLD]),
    )


# --- optimize ----------------------------------------------------------------------------------------------


def _merge_is_due(image: Image, _now_ms: int, terms: Terms) -> bool:
    return any(True for _ in choose_merges(image, terms.merge_limits, terms.topics))


def _merge(round_: Round) -> StepReport:
    report = optimize(
        round_.metadata,
        round_.clock,
        round_.terms.topics,
        round_.terms.merge_limits,
        **round_.how,
    )
    topics = report.topics.values()
    figures = {
        "merged_extents": sum(one.merged_extents for one in topics),
        "read_bytes": sum(one.merged_bytes for one in topics),
        "added_extents": sum(one.added_extents for one in topics),
        "written_bytes": sum(one.added_bytes for one in topics),
        "left_out": sum(one.left_out for one in topics),
    }
    return _report("optimize", round_, figures, report, work_done=figures["merged_extents"])


# --- retire ------------------------------------------------------------------------------------------------


def _delay_ms(image: Image, terms: Terms) -> int:
    """How long readers have what is dead: the root's file.delete.delay.ms."""
    return TopicConfig.parse({}, {**terms.defaults, **image.configs}).file_delete_delay_ms


def _retire_is_due(image: Image, now_ms: int, terms: Terms) -> bool:
    """Of whole roots: a segment may have extents of any topics."""
    return terms.topics is None and retire_is_due(image, now_ms, _delay_ms(image, terms))


def _retire(round_: Round) -> StepReport:
    metadata, clock = round_.metadata, round_.clock
    now_ms = metadata.store.storage_now_ms(clock.now_ms())
    if not _retire_is_due(metadata.image, now_ms, round_.terms):
        return StepReport(step="retire", outcome="nothing")
    if round_.dry_run:
        return StepReport(step="retire", outcome="due")
    report = retire(
        metadata,
        clock,
        delay_ms=_delay_ms(metadata.image, round_.terms),
        check=round_.meter.check,
        removed=round_.meter.spend_files,
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
    return (
        not text.isdecimal() or abs(now_ms - int(text)) >= DAY_MS
    )  # whoever was last, and whatever its clock


def _vacuum(round_: Round) -> StepReport:
    metadata, now_ms = round_.metadata, round_.clock.now_ms()
    if not _vacuum_is_due(metadata.image, now_ms, round_.terms):
        return StepReport(step="vacuum", outcome="nothing")
    if round_.dry_run:
        return StepReport(step="vacuum", outcome="due")
    # First: a vacuum that fails, or is killed with its round, has listed the storage all the same.
    metadata.publish(lambda _image: [SetConfigs(configs={LAST_VACUUM_KEY: str(now_ms)})])
    report = vacuum(
        metadata, round_.clock, progress=lambda _: round_.meter.check(), removed=round_.meter.spend_files
    )
    rewritten = _rewrite_mostly_dead(round_)
    figures = {
        "rewritten_bytes": sum(one.merged_bytes for one in rewritten.topics.values()),
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
        uncleanable=tuple(rewritten.uncleanable[:MAX_TOLD]),
    )


def _rewrite_mostly_dead(round_: Round) -> Report:
    """Move what is live out of segments that are mostly dead, so that a vacuum can remove these."""
    segments = mostly_dead_segments(round_.metadata, round_.clock)
    if not segments:
        return Report()
    choose = partial(choose_rewrites, segments=frozenset(segments))
    limits = round_.terms.merge_limits
    return optimize(round_.metadata, round_.clock, None, limits, choose=choose, **round_.how)


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
        steps: those that were looked at, in order.
        before, after: of the topics that were looked at.
        is_stopped: somebody asked for an end.
    """

    steps: tuple[StepReport, ...]
    before: Amount
    after: Amount
    duration_ms: int
    is_stopped: bool

    @property
    def has_failed(self) -> bool:
        """Did any step, or was anything left as it is that cannot be read?"""
        return any(one.outcome == "failed" or one.uncleanable for one in self.steps)

    @property
    def is_in_vain(self) -> bool:
        """Will the next one meet the same? Not if partitions are known that are to be left out."""
        return any(one.outcome == "failed" and not one.uncleanable for one in self.steps) or not (
            self.has_done_anything or self.uncleanable
        )

    @property
    def uncleanable(self) -> tuple[Uncleanable, ...]:
        """Each partition once."""
        return tuple({one.key: one for step in self.steps for one in step.uncleanable}.values())

    @property
    def has_done_anything(self) -> bool:
        """Was anything published?"""
        return any(one.outcome in {"done", "cut"} for one in self.steps)


def due_steps(
    image: Image, now_ms: int, terms: Terms | None = None, *, but: Collection[str] = ()
) -> Iterator[str]:
    """The names of the steps that are due, in order, one after the other is looked for; `but` some. Pure.

    Cost where nothing is due: a microsecond for each partition, and a hundred for each with a retention.
    """
    terms = terms or Terms()
    for step in STEPS:
        if step.name not in but and step.is_due(image, now_ms, terms):
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
    progress: Callable[[Progress], None] = lambda _progress: None,
) -> RoundReport:
    """One round.

    Args:
        steps: names of those to look at; empty: all.
        dry_run: only say what is due.
        is_stopped: asked between pieces of work, and within them: is the round to end?
        rest_ms: how to wait when the budget's rate asks for it; by default the clock's sleep.

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
    round_ = Round(
        metadata=metadata, clock=clock, terms=terms, meter=meter, dry_run=dry_run, progress=progress
    )
    before = _measured(image, terms)
    reports: list[StepReport] = []
    was_stopped = False
    for step in STEPS:
        if steps and step.name not in steps:
            continue
        step_began_ms = clock.monotonic_ms()
        report = _run_step(step, round_)
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


def _run_step(step: Step, round_: Round) -> StepReport | None:
    """None: the round is to end, and the step has not begun."""
    try:
        round_.meter.check()
        return step.run(round_)
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
