"""Maintenance as a whole: choose, do, publish, until nothing is due.

Invariants: works are done and published one by one, so that whoever ends it loses one of them at most. The
    choice is made anew from the newest image until there is none, or MAX_ROUNDS are over; of what was there
    when it began, or else beside a writer each round would merge what the one before it has made.
    What cannot be read is an error at the end: it keeps nothing from being merged but its own partition. But
    a storage that says nothing is waited for once, and no other work begins.
Not here: running it in several processes (each work can be done anywhere), or all the time.
Concurrency: one at a time on a machine, if the store can hold names: two would do the same work, and all but
    one of each pair in vain; it would do no harm.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from sparklog.clock import Clock
from sparklog.errors import SparklogError
from sparklog.log.missing_segment import UnreadableSegmentError, took_patience
from sparklog.maintenance.alone import alone
from sparklog.maintenance.budget import NO_LIMIT, Meter, StoppedError
from sparklog.maintenance.choose import MergeLimits, choose_merges
from sparklog.maintenance.merge import Told, merge_each
from sparklog.maintenance.publish import publish_replacements, replacement_applies
from sparklog.maintenance.spool import in_turns
from sparklog.maintenance.topic_names import named_topics
from sparklog.maintenance.uncleanable import Uncleanable, failure_of, uncleanable
from sparklog.maintenance.work import MergeWork, Piece
from sparklog.metadata import Image, MetadataLog, ReplaceExtents, replacement

MAX_ROUNDS = 8
# Does works, in their order; what came of each, or why its files could not be read.
RunMerges = Callable[[Sequence[MergeWork], Told], Iterator[list[ReplaceExtents] | SparklogError]]


class ChooseMerges(Protocol):
    """As choose_merges: which works are due."""

    def __call__(
        self,
        image: Image,
        limits: MergeLimits,
        topics: Collection[str] | None = None,
        *,
        since: Image | None = None,
    ) -> Iterator[MergeWork]: ...


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is, in stored bytes of the works that are known of."""

    done_bytes: int
    total_bytes: int


@dataclass(slots=True, kw_only=True)
class TopicReport:
    """What was done to a topic.

    Fields:
        extents_before, extents_after: of all its partitions.
        merged_extents: that were replaced; merged_bytes: stored bytes that were read for it.
        added_extents, added_bytes: that stand in their place.
        left_out: pieces that were done in vain, since their extents changed meanwhile, or are no fewer now.
    """

    extents_before: int
    extents_after: int = 0
    merged_extents: int = 0
    merged_bytes: int = 0
    added_extents: int = 0
    added_bytes: int = 0
    left_out: int = 0


@dataclass(slots=True)
class Report:
    """By topic, of those that were looked at; `is_cut`: more was due, but the budget was spent, or somebody
    asked for an end; `uncleanable`: what was left as it is, since it cannot be read.
    """

    topics: dict[str, TopicReport] = field(default_factory=dict)
    is_cut: bool = False
    uncleanable: list[Uncleanable] = field(default_factory=list)


def optimize(
    metadata: MetadataLog,
    clock: Clock,
    topics: Collection[str] | None = None,
    limits: MergeLimits | None = None,
    *,
    dry_run: bool = False,
    raises: bool = True,
    meter: Meter | None = None,
    run: RunMerges | None = None,
    progress: Callable[[Progress], None] = lambda _progress: None,
    choose: ChooseMerges | None = None,
) -> Report:
    """Merge what is due.

    Args:
        topics: None: all, internal ones too.
        limits: when extents are merged; by default whatever can be.
        dry_run: only say what would be merged, first.
        raises: whether what cannot be read is an error at the end; else it is in the report alone.
        meter: how much of it; None: all.
        run: does works; by default here, one after the other.
        choose: what is due; by default what makes fewer extents.

    Raises:
        UnknownTopicError: TOPIC_MISSING.
        InvalidRequestError: `topics` is a text.
        RetriableError: MAINTENANCE_RUNNING, another process of this machine does it.
        DataLossError, CorruptLogError, UnsupportedVersionError: a segment is gone, damaged or newer; what
            else was due was merged. UnreadableSegmentError: the storage does not give one; the same, unless
            it did not answer.
        StorageError: see publish.py.
    """
    limits, choose = limits or MergeLimits(fan_in=None), choose or choose_merges
    image = metadata.refresh(force=True)
    names = sorted(image.topics) if topics is None else named_topics(image, topics)
    report = Report({name: TopicReport(extents_before=_extents(image, name)) for name in names})
    failed: list[SparklogError] = []
    meter = meter or Meter(NO_LIMIT, clock)
    if dry_run:
        for work in choose(image, limits, names):
            _count_merged(report, work)
    else:
        run = run or _run_here(metadata, clock, meter)
        with alone(metadata):
            try:
                _merge_all(metadata, limits, report, failed, meter, run, progress, choose)
            except StoppedError:
                report.is_cut = True
    if failed and raises:
        raise failed[0]
    image = metadata.image
    for name, one in report.topics.items():
        one.extents_after = _extents(image, name) if name in image.topics else 0
    return report


def _merge_all(
    metadata: MetadataLog,
    limits: MergeLimits,
    report: Report,
    failed: list[SparklogError],
    meter: Meter,
    run: RunMerges,
    progress: Callable[[Progress], None],
    choose: ChooseMerges,
) -> None:
    done = 0
    first = metadata.refresh(force=True)
    has_changed = True
    for _ in range(MAX_ROUNDS):
        if not has_changed or report.is_cut:
            break
        has_changed = False
        works = in_turns(choose(metadata.refresh(force=True), limits, report.topics, since=first))
        total = done + sum(work.size for work in works)

        def told(size: int) -> None:
            nonlocal done
            meter.spend(size)
            done += size
            progress(Progress(min(done, total), total))  # noqa: B023 - called within this round

        results = run(works, told)
        for work in works:
            if not meter.has_room():
                report.is_cut = True
                break
            started = done
            for part, result in _parts(run, told, work, next(results)):
                if not isinstance(result, SparklogError):
                    try:
                        has_changed |= _publish(metadata, report, part, result, fewer=choose is choose_merges)
                        continue
                    except Exception as error:  # noqa: BLE001 - one partition's fault ends no round
                        result = failure_of("publishing what was merged", error)  # noqa: PLW2901
                if all(_is_there(metadata.refresh(force=True), piece) for piece in part.pieces):
                    failed.append(result)
                    found = [
                        uncleanable(piece.topic, piece.topic_id, piece.partition, piece.extents, result)
                        for piece in part.pieces
                    ]
                    report.uncleanable += found
                    limits = replace(limits, but=limits.but | {one.key for one in found})
                    if took_patience(result):
                        raise StoppedError
                else:  # its files went with its extents
                    has_changed |= _publish(metadata, report, part, [], fewer=True)
            done = started + work.size
            progress(Progress(done, total))


def _parts(
    run: RunMerges, told: Told, work: MergeWork, result: list[ReplaceExtents] | SparklogError
) -> Iterator[tuple[MergeWork, list[ReplaceExtents] | SparklogError]]:
    """The work, and what came of it. If it cannot be read, its halves, and so on: pieces share a work that
    have nothing else in common. What lies in a segment that the storage does not give is not tried again.
    """
    if not isinstance(result, SparklogError) or len(work.pieces) == 1:
        yield work, result
        return
    half = len(work.pieces) // 2
    parts = [work.pieces[:half], work.pieces[half:]]
    if isinstance(result, UnreadableSegmentError):
        refused, others = _lying_in(work, result.segment)
        yield MergeWork(refused), result
        parts = [others] if others else []
    for pieces in parts:
        part = MergeWork(pieces)
        yield from _parts(run, told, part, next(run([part], told)))


def _lying_in(work: MergeWork, segment: str) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
    """The pieces that lie in a segment, also, and the others."""
    lies_in = [bool((piece.extents.segment == segment).any()) for piece in work.pieces]
    assert any(lies_in), f"{segment} was read for none of its pieces"
    refused = tuple(itertools.compress(work.pieces, lies_in))
    return refused, tuple(piece for piece, lies in zip(work.pieces, lies_in, strict=True) if not lies)


def _publish(
    metadata: MetadataLog,
    report: Report,
    work: MergeWork,
    replacements: Sequence[ReplaceExtents],
    *,
    fewer: bool,
) -> bool:
    """Publish them, or those that make fewer extents; True if it is worth to choose again."""
    wanted = [one for one in replacements if not fewer or len(one.added) < one.removed_count]
    there = set(publish_replacements(metadata, wanted).actions)
    for piece, action in itertools.zip_longest(work.pieces, replacements):
        _count(report.topics[piece.topic], piece, action if action in there else None)
    return bool(wanted or not replacements)


def _run_here(metadata: MetadataLog, clock: Clock, meter: Meter) -> RunMerges:
    def run(works: Sequence[MergeWork], told: Told) -> Iterator[list[ReplaceExtents] | SparklogError]:
        return merge_each(metadata.store, clock, works, told, pace=meter.rest)

    return run


def _is_there(image: Image, piece: Piece) -> bool:
    """Does the partition still have these extents?"""
    action = replacement(piece.extents, [], topic_id=piece.topic_id, partition=piece.partition)
    return replacement_applies(image, action)


def _count(one: TopicReport, piece: Piece, action: ReplaceExtents | None) -> None:
    if action is None:
        one.left_out += 1
        return
    one.merged_extents += len(piece.extents)
    one.merged_bytes += piece.size
    one.added_extents += len(action.added)
    one.added_bytes += sum(extent.size for extent in action.added)


def _count_merged(report: Report, work: MergeWork) -> None:
    for piece in work.pieces:
        report.topics[piece.topic].merged_extents += len(piece.extents)
        report.topics[piece.topic].merged_bytes += piece.size


def _extents(image: Image, name: str) -> int:
    return sum(len(state.extents) for state in image.topics[name].partitions)
