"""Compaction as a whole: choose, do, publish, until nothing is left that can be compacted.

Invariants: a round's replacements and how far it came are published in one commit, or not at all: not when
    any of the extents that it removes has changed, when somebody else has compacted the partition meanwhile,
    or when its topic is not to be compacted any more. So two compactors bring nothing back: what one has
    removed, the other one's extents do not show any more as they were.
    Rounds are done one by one, so that whoever ends it loses one of them at most; of what was there when it
    began, or else beside a writer there would be no end.
Not here: running it in several processes (each work can be done anywhere), or all the time.
Concurrency: one at a time on a machine, as merging.
After a crash: the commit is there or not. If not, the new segments are files that nothing refers to.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from sparklog.clock import Clock
from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.failpoints import failpoint
from sparklog.log.missing_segment import took_patience
from sparklog.maintenance.alone import alone
from sparklog.maintenance.budget import NO_LIMIT, Meter, StoppedError
from sparklog.maintenance.choose_compactions import (
    CompactionLimits,
    CompactionWork,
    choose_compactions,
    is_compacted,
)
from sparklog.maintenance.publish import replacement_applies
from sparklog.maintenance.run import Progress
from sparklog.maintenance.run_compaction import CompactionResult, Told, compact_each
from sparklog.maintenance.sober_time import shown_now_ms, sober_now_ms
from sparklog.maintenance.topic_names import named_topics
from sparklog.maintenance.uncleanable import Uncleanable, failure_of, uncleanable
from sparklog.metadata import (
    Action,
    Image,
    MetadataLog,
    plan_note_cleaned,
    plan_replacements,
    replacement,
)

_MAX_VAIN_ROUNDS = 8
# Does works, in their order; what came of each, or why its files could not be read.
RunCompactions = Callable[[Sequence[CompactionWork], Told], Iterator[CompactionResult | SparklogError]]


@dataclass(slots=True, kw_only=True)
class CompactedTopic:
    """What was done to a topic.

    Fields:
        partitions: that were, or would be, compacted.
        clean_bytes, dirty_bytes: of them, before the first round.
        rounds: that were published.
        bytes_before, bytes_after: of extents that were replaced, and of what stands in their place.
        records_read: that might have gone; the others of these fields are of them.
        superseded: a later record had their key; keyless: had no key, and went.
        tombstones_removed: their delete horizon had come; tombstones_kept: as of the last round.
        left_out: rounds that were done in vain, since the partition changed meanwhile.
    """

    partitions: int = 0
    clean_bytes: int = 0
    dirty_bytes: int = 0
    rounds: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    records_read: int = 0
    superseded: int = 0
    keyless: int = 0
    tombstones_removed: int = 0
    tombstones_kept: int = 0
    left_out: int = 0

    @property
    def records_removed(self) -> int:
        """However they went."""
        return self.superseded + self.keyless + self.tombstones_removed


@dataclass(slots=True)
class CompactionReport:
    """By topic, of those that are to be compacted; `is_cut`: more was due, but the budget was spent, or
    somebody asked for an end; `uncleanable`: what was left as it is, since it cannot be read.
    """

    topics: dict[str, CompactedTopic] = field(default_factory=dict)
    is_cut: bool = False
    uncleanable: list[Uncleanable] = field(default_factory=list)


def compact(
    metadata: MetadataLog,
    clock: Clock,
    topics: Collection[str] | None = None,
    limits: CompactionLimits | None = None,
    *,
    dry_run: bool = False,
    raises: bool = True,
    meter: Meter | None = None,
    run: RunCompactions | None = None,
    progress: Callable[[Progress], None] = lambda _progress: None,
) -> CompactionReport:
    """Keep the last record of each key, in the topics whose cleanup.policy has compact.

    Args:
        topics: None: all of them, internal ones too.
        limits: when partitions are compacted; by default whatever can be.
        dry_run: only say what would be compacted, first.
        raises: whether what cannot be read is an error at the end; else it is in the report alone.
        meter: how much of it; None: all.
        run: does works; by default here, one after the other.

    Raises:
        UnknownTopicError: TOPIC_MISSING.
        InvalidRequestError: NOT_COMPACTED, a topic of `topics` keeps all of its records; `topics` is a text.
        RetriableError: MAINTENANCE_RUNNING, another process of this machine does it.
        DataLossError, CorruptLogError, UnsupportedVersionError: a segment is gone, damaged or newer; the
            other partitions were compacted. UnreadableSegmentError: the storage does not give one; the same,
            unless it did not answer.
        StorageError, FatalStorageError: see publish.py.
    """
    limits = limits or CompactionLimits()
    first = metadata.refresh(force=True)
    names = _names(first, topics)
    report = CompactionReport({name: CompactedTopic() for name in names})
    now_ms = (shown_now_ms if dry_run else sober_now_ms)(metadata.store, clock)
    works = choose_compactions(first, now_ms, limits, names)
    for work in works:
        one = report.topics[work.topic]
        one.partitions += 1
        one.clean_bytes += work.clean_bytes
        one.dirty_bytes += work.dirty_bytes
    if not dry_run and works:
        with alone(metadata):
            meter = meter or Meter(NO_LIMIT, clock)
            compactor = _Compactor(metadata, clock, limits, names, report, meter, progress)
            try:
                compactor.run(run or _run_here(metadata, clock, meter))
            except StoppedError:
                report.is_cut = True
            if raises:
                compactor.raise_failure()
    return report


def _run_here(metadata: MetadataLog, clock: Clock, meter: Meter) -> RunCompactions:
    def run(works: Sequence[CompactionWork], told: Told) -> Iterator[CompactionResult | SparklogError]:
        return compact_each(metadata.store, clock, works, told, pace=meter.rest)

    return run


def _names(image: Image, topics: Collection[str] | None) -> list[str]:
    if topics is None:
        return [name for name in sorted(image.topics) if is_compacted(image.topics[name], image)]
    names = named_topics(image, topics)
    for name in names:
        if not is_compacted(image.topics[name], image):
            raise InvalidRequestError(
                "NOT_COMPACTED",
                f"topic {name!r}: found a cleanup.policy without compact, expected one with it",
                fix="leave the topic out, or give it the policy: "
                f"sparklog topics alter --topic {name} --config cleanup.policy=compact",
            )
    return names


class _Compactor:
    """Rounds, until there is nothing more to do."""

    def __init__(
        self,
        metadata: MetadataLog,
        clock: Clock,
        limits: CompactionLimits,
        names: Sequence[str],
        report: CompactionReport,
        meter: Meter,
        progress: Callable[[Progress], None],
    ) -> None:
        self._metadata, self._clock, self._limits, self._names = metadata, clock, limits, names
        self._report, self._meter, self._progress = report, meter, progress
        self._done = self._total = 0
        self._tombstones: dict[tuple[str, int], int] = {}  # kept by the last round
        self._failed: list[SparklogError] = []
        self._left_alone: set[tuple[str, int]] = set()  # what failed, or does not get any further

    def run(self, run: RunCompactions) -> None:
        first = self._metadata.refresh(force=True)
        vain = 0
        while vain < _MAX_VAIN_ROUNDS:
            image = self._metadata.refresh(force=True)
            now_ms = sober_now_ms(self._metadata.store, self._clock)
            works = choose_compactions(image, now_ms, self._limits, self._names, since=first)
            works = [work for work in works if _partition(work) not in self._left_alone]
            if not works:
                break
            self._total = self._done + sum(work.size for work in works)
            came_further = False
            results = run(works, self._told)
            for work in works:
                if not self._meter.has_room():
                    raise StoppedError
                came_further |= self._round(work, results)
            vain = 0 if came_further else vain + 1

    def raise_failure(self) -> None:
        """Of the first partition that could not be read."""
        if self._failed:
            raise self._failed[0]

    def _round(self, work: CompactionWork, results: Iterator[CompactionResult | SparklogError]) -> bool:
        """Did it get any further?"""
        started = self._done
        result: CompactionResult | SparklogError | None = next(results)
        published = False
        if result is not None and not isinstance(result, SparklogError):
            try:
                published = publish_compaction(self._metadata, result)
            except Exception as error:  # noqa: BLE001 - one partition's fault ends no round
                result = failure_of(f"publishing the compaction of {work.topic}-{work.partition}", error)
        if isinstance(result, SparklogError):
            if self._is_there(work):  # else its files went with its extents: others have changed them
                self._failed.append(result)
                self._report.uncleanable.append(
                    uncleanable(work.topic, work.topic_id, work.partition, work.extents, result)
                )
                self._left_alone.add(_partition(work))
                if took_patience(result):
                    raise StoppedError
            result = None
        self._done = started + work.size
        self._progress(Progress(self._done, self._total))
        one = self._report.topics[work.topic]
        if result is None or not published:
            one.left_out += 1
            return False
        self._count(one, result)
        if result.cleaned == work.cleaned:
            self._left_alone.add(_partition(work))
            return False
        return True

    def _told(self, size: int) -> None:
        self._meter.spend(size)
        self._done += size
        self._progress(Progress(min(self._done, self._total), self._total))

    def _count(self, one: CompactedTopic, result: CompactionResult) -> None:
        counts, partition = result.counts, _partition(result.work)
        one.rounds += 1
        one.bytes_before += result.bytes_before
        one.bytes_after += sum(extent.size for action in result.replacements for extent in action.added)
        one.records_read += counts.read
        one.superseded += counts.superseded
        one.keyless += counts.keyless
        one.tombstones_removed += counts.tombstones_removed
        one.tombstones_kept += counts.tombstones_kept - self._tombstones.get(partition, 0)
        self._tombstones[partition] = counts.tombstones_kept

    def _is_there(self, work: CompactionWork) -> bool:
        """Does the partition still have these extents?"""
        action = replacement(work.extents, [], topic_id=work.topic_id, partition=work.partition)
        return replacement_applies(self._metadata.refresh(force=True), action)


def _partition(work: CompactionWork) -> tuple[str, int]:
    return work.topic_id, work.partition


def publish_compaction(metadata: MetadataLog, result: CompactionResult) -> bool:
    """Publish a round, as a whole; False: it does not apply any more.

    Raises: as publish_replacements.
    """
    applied = False

    def plan(image: Image) -> list[Action]:
        nonlocal applied
        applied = _applies(image, result)
        if not applied:
            return []
        work = result.work
        noted = plan_note_cleaned(image, work.topic_id, work.partition, result.cleaned)
        return [*result.replacements, *([] if noted is None else [noted])]

    failpoint("compact.publishing")
    metadata.publish(plan)
    return applied


def _applies(image: Image, result: CompactionResult) -> bool:
    work = result.work
    topic = image.topic_by_id.get(work.topic_id)
    return (
        topic is not None
        and is_compacted(topic, image)
        and topic.partitions[work.partition].cleaned == work.cleaned
        and len(plan_replacements(image, result.replacements)) == len(result.replacements)
    )
