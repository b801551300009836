"""Topics: the list; and one, with partitions, settings, where its bytes are, and what maintenance would do.

Invariants: for the segments of a very large topic only MAX_EXTENTS extents of MAX_PARTITIONS partitions are
    counted, and the page says so.
Not here: the records themselves (messages.py).
"""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from sparklog.client.admin import ConfigSource, EffectiveConfig, effective_configs
from sparklog.client.cluster_view import describe_partition
from sparklog.console.maintenance import DueWork, due_work
from sparklog.console.views import (
    FILTER,
    PAGE,
    Console,
    Paging,
    Parameter,
    Query,
    Subject,
    View,
    matches,
    paged,
)
from sparklog.log.config import TopicConfig
from sparklog.log.setting import declared_settings
from sparklog.metadata import ExtentList, Image, PartitionState, Topic, is_internal

MAX_EXTENTS: Final = 200_000  # of a topic, of which segments are counted
MAX_PARTITIONS: Final = 5_000  # likewise
MAX_SEGMENTS: Final = 50  # that are listed
SLICES: Final = 48  # of the bar of a partition
SORTS: Final = ("name", "partitions", "records", "rate", "size", "extents")
RETENTION: Final = ("retention.ms", "retention.bytes", "cleanup.policy")

_STRENGTH = tuple(ConfigSource)

# --- topics ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """A topic in the list.

    Fields:
        records: offsets that are kept; less are there where compaction has left gaps.
        oldest_ms: the newest timestamp of the oldest extent, by which retention goes; null: no records.
        retention: the settings that say how long records stay, each with its source.
        produced_per_second: records, in the last minute; null: not known yet.
    """

    name: str
    internal: bool
    partitions: int
    records: int
    produced_per_second: float | None
    size_bytes: int
    extents: int
    oldest_ms: int | None
    retention: tuple[EffectiveConfig, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicList:
    """The topics that match. The totals are theirs."""

    paging: Paging
    topics: tuple[TopicRow, ...]
    records: int
    produced_per_second: float | None
    size_bytes: int
    largest_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class TopicSize:
    """A topic, and how much is in it."""

    name: str
    partitions: int
    records: int
    size: int
    extents: int


def topic_size(topic: Topic) -> TopicSize:
    """Add up its partitions."""
    records = size = extents = 0
    for state in topic.partitions:
        records += state.log_end_offset - state.log_start_offset
        size += state.extents.stored_bytes
        extents += len(state.extents)
    return TopicSize(topic.name, len(topic.partitions), records, size, extents)


def produced_per_second(console: Console) -> Callable[[Topic], float | None]:
    """Return the function that finds how many records a topic got per second in the last
    minute, or since the console runs; null: that is less than a second.
    """
    found = console.images.oldest(console.now_ms)
    if found is None:
        return lambda _topic: None
    seconds, before = found

    def rate(topic: Topic) -> float:
        known = before.topic_by_id.get(topic.topic_id)
        old = 0 if known is None else sum(state.log_end_offset for state in known.partitions)
        return max(0, sum(state.log_end_offset for state in topic.partitions) - old) / seconds

    return rate


def total_rate(rates: Iterable[float | None]) -> float | None:
    """Add up those that are known; null: none is."""
    known = [one for one in rates if one is not None]
    return sum(known) if known else None


def topic_list(console: Console, query: Query) -> TopicList:
    """Topics that match, in the order that is asked for."""
    image, wanted = console.image, query.filter
    found = [topic_size(topic) for name, topic in image.topics.items() if matches(name, wanted)]
    rate = produced_per_second(console)
    rates = {one.name: rate(image.topics[one.name]) for one in found}
    sort = query.text("sort", "name")
    key = sort.removeprefix("-")
    key = key if key in SORTS else "name"
    found.sort(key=lambda one: (is_internal(one.name), one.name))
    if key != "name" or sort.startswith("-"):
        found.sort(
            key=lambda one: rates[one.name] or 0 if key == "rate" else getattr(one, key),
            reverse=sort.startswith("-"),
        )
    paging, shown = paged(found, query, sort=sort)
    return TopicList(
        paging=paging,
        topics=tuple(_row(image, one, rates[one.name]) for one in shown),
        records=sum(one.records for one in found),
        produced_per_second=total_rate(rates.values()),
        size_bytes=sum(one.size for one in found),
        largest_bytes=max((one.size for one in found), default=0),
    )


def _row(image: Image, found: TopicSize, rate: float | None) -> TopicRow:
    topic = image.topics[found.name]
    oldest = [time for state in topic.partitions if (time := oldest_ms(state.extents)) is not None]
    return TopicRow(
        name=found.name,
        internal=is_internal(found.name),
        partitions=found.partitions,
        records=found.records,
        produced_per_second=rate,
        size_bytes=found.size,
        extents=found.extents,
        oldest_ms=min(oldest, default=None),
        retention=tuple(one for one in effective_configs(image, found.name) if one.name in RETENTION),
    )


def oldest_ms(extents: ExtentList) -> int | None:
    """The newest timestamp of the first extent."""
    found = extents.range_of(0, 1)
    return found[0].max_timestamp_ms if found and found[0].max_timestamp_ms >= 0 else None


# --- a topic -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A range of the bar of a partition: consecutive extents, their share of its bytes."""

    share: float
    extents: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """A partition.

    Fields:
        leader: a broker's node id; null: it has none.
        segments: files in which it has extents.
        slices: its extents in the order of offsets, SLICES at most.
        oldest_ms, newest_ms: the newest timestamp of its first and last extent.
    """

    partition: int
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    log_start_offset: int
    log_end_offset: int
    size_bytes: int
    extents: int
    segments: int
    slices: tuple[Slice, ...]
    oldest_ms: int | None
    newest_ms: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRow:
    """A file in which the topic has bytes; those of other topics in it do not count."""

    segment: str
    size_bytes: int
    extents: int
    partitions: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """A setting in force, what it overrides, and its declaration."""

    config: EffectiveConfig
    allowed: str
    doc: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicPage:
    """A topic, and what lies underneath it.

    Fields:
        segments: the largest shares, MAX_SEGMENTS at most, of `segment_count`.
        counted_extents: those of which segments were counted.
        due: what a round of maintenance would do now.
    """

    name: str
    topic_id: str
    internal: bool
    commit: int
    records: int
    produced_per_second: float | None
    size_bytes: int
    extents: int
    oldest_ms: int | None
    newest_ms: int | None
    settings: tuple[SettingRow, ...]
    paging: Paging
    partitions: tuple[PartitionRow, ...]
    largest_partition_bytes: int
    segments: tuple[SegmentRow, ...]
    segment_count: int
    counted_extents: int
    due: tuple[DueWork, ...]


def topic_page(console: Console, query: Query) -> TopicPage:
    """One topic."""
    image = console.image
    name = query.name("topic")
    topic = image.topic(name)
    size = topic_size(topic)
    paging, shown = paged(topic.partitions, query)
    segments, counted = _segments(topic)
    oldest = [time for state in topic.partitions if (time := oldest_ms(state.extents)) is not None]
    newest = [time for state in topic.partitions if (time := _newest_ms(state.extents)) is not None]
    return TopicPage(
        name=name,
        topic_id=topic.topic_id,
        internal=is_internal(name),
        commit=image.commit,
        records=size.records,
        produced_per_second=produced_per_second(console)(topic),
        size_bytes=size.size,
        extents=size.extents,
        oldest_ms=min(oldest, default=None),
        newest_ms=max(newest, default=None),
        settings=_settings(image, name),
        paging=paging,
        partitions=_partitions(image, name, shown),
        largest_partition_bytes=max((one.extents.stored_bytes for one in topic.partitions), default=0),
        segments=tuple(segments[:MAX_SEGMENTS]),
        segment_count=len(segments),
        counted_extents=counted,
        due=due_work(image, console.now_ms, [name]),
    )


def _settings(image: Image, name: str) -> tuple[SettingRow, ...]:
    declared = declared_settings(TopicConfig)
    return tuple(
        SettingRow(config=one, allowed=declared[one.name][1].bounds, doc=declared[one.name][1].doc)
        for one in sorted(effective_configs(image, name), key=lambda one: _STRENGTH.index(one.source))
    )


def _partitions(image: Image, name: str, shown: Sequence[PartitionState]) -> tuple[PartitionRow, ...]:
    rows = []
    for state in shown:
        led = describe_partition(image, name, state)
        rows.append(
            PartitionRow(
                partition=state.partition,
                leader=None if led.is_unavailable else led.leader,
                leader_epoch=led.leader_epoch,
                replicas=led.replicas,
                isr=led.isr,
                log_start_offset=state.log_start_offset,
                log_end_offset=state.log_end_offset,
                size_bytes=state.extents.stored_bytes,
                extents=len(state.extents),
                segments=_segment_count(state.extents),
                slices=_slices(state.extents),
                oldest_ms=oldest_ms(state.extents),
                newest_ms=_newest_ms(state.extents),
            )
        )
    return tuple(rows)


def _newest_ms(extents: ExtentList) -> int | None:
    count = len(extents)
    found = extents.range_of(count - 1, count) if count else []
    return found[0].max_timestamp_ms if found and found[0].max_timestamp_ms >= 0 else None


def _segment_count(extents: ExtentList) -> int:
    """How many files the first MAX_EXTENTS extents lie in."""
    return len(set(extents.columns_between(0, min(len(extents), MAX_EXTENTS)).segment.tolist()))


def _slices(extents: ExtentList) -> tuple[Slice, ...]:
    """The extents in at most SLICES ranges of about equal numbers of extents."""
    sizes = extents.columns_between(0, len(extents)).column("size").astype(np.float64)
    total = float(sizes.sum())
    if not total:
        return ()
    bounds = np.linspace(0, len(sizes), min(len(sizes), SLICES) + 1).astype(int)
    return tuple(
        Slice(share=float(sizes[start:stop].sum()) / total, extents=int(stop - start))
        for start, stop in itertools.pairwise(bounds)
    )


def _segments(topic: Topic) -> tuple[list[SegmentRow], int]:
    """The segments of a topic, the largest shares first, and the number of extents that were counted."""
    sizes: collections.Counter[str] = collections.Counter()
    extents: collections.Counter[str] = collections.Counter()
    partitions: collections.defaultdict[str, set[int]] = collections.defaultdict(set)
    counted = 0
    for state in topic.partitions[:MAX_PARTITIONS]:
        count = min(len(state.extents), MAX_EXTENTS - counted)
        if count <= 0:
            continue
        columns = state.extents.columns_between(0, count)
        for segment, size in zip(columns.segment.tolist(), columns.column("size").tolist(), strict=True):
            sizes[segment] += size
            extents[segment] += 1
            partitions[segment].add(state.partition)
        counted += count
    rows = [
        SegmentRow(
            segment=segment, size_bytes=size, extents=extents[segment], partitions=len(partitions[segment])
        )
        for segment, size in sizes.most_common()
    ]
    return rows, counted


SUBJECT = Subject(
    title="Topics",
    views=(
        View(
            path="/topics",
            template="topics.html",
            data=topic_list,
            doc="Topics with their sizes, and the retention in force.",
            parameters=(
                FILTER,
                PAGE,
                Parameter("sort", f"One of {', '.join(SORTS)}; with - before it, the largest first."),
            ),
        ),
        View(
            path="/topics/{topic}",
            template="topic.html",
            data=topic_page,
            doc="A topic: partitions, settings, where its bytes are, what maintenance would do.",
            parameters=(PAGE,),
        ),
    ),
)
