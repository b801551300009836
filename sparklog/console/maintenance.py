"""Maintenance: what a round would do now, and the use of space.

Invariants: a dry run; everything is chosen from the image, and only the use of space looks at the storage,
    for USAGE_MS at most.
Not here: doing it (`sparklog maintain`).
"""

import dataclasses
from collections.abc import Collection, Iterator
from typing import Final

from sparklog.console.views import Console, Query, Subject, View
from sparklog.errors import SparklogError
from sparklog.log.config import TopicConfig
from sparklog.maintenance import MergeLimits, Terms, due_steps, measure_usage, why_not_due
from sparklog.maintenance.choose import choose_compactions, choose_merges
from sparklog.maintenance.retain import choose_expired
from sparklog.maintenance.rounds import LAST_VACUUM_KEY, STEPS
from sparklog.metadata import Image, Topic

USAGE_MS: Final = 2_000
_SPACE_MS: Final = 60_000  # how old the use of space may be
_DUE_MS: Final = 5_000  # likewise what is due
MAX_DUE: Final = 200  # rows
LARGE_TOPICS: Final = 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DueWork:
    """What a step of maintenance would do to a topic.

    Fields:
        step: expire, compact or optimize, as the commands are called.
        is_due: false: it would do nothing, for the reason in `detail`.
        extents: that it would replace or remove; 0: not known.
        size_bytes: that it would remove (expire) or read (the others).
    """

    topic: str
    step: str
    is_due: bool
    partitions: int
    extents: int
    size_bytes: int
    detail: str


def due_work(image: Image, now_ms: int, names: Collection[str]) -> tuple[DueWork, ...]:
    """What would be done to these topics, and for compacted ones why not."""
    terms = Terms()
    return (
        *_expired(image, now_ms, names),
        *_compacted(image, now_ms, names, terms),
        *_merged(image, names, terms),
    )


def _expired(image: Image, now_ms: int, names: Collection[str]) -> Iterator[DueWork]:
    by_topic: dict[str, list[int]] = {}
    for one in choose_expired(image, now_ms, frozenset(names)):
        found = by_topic.setdefault(one.topic, [0, 0, 0])
        found[0] += 1
        found[1] += one.offsets
        found[2] += one.size_bytes
    for topic, (partitions, offsets, size) in by_topic.items():
        detail = f"{offsets:,} offsets are past retention"
        yield DueWork(
            topic=topic,
            step="expire",
            is_due=True,
            partitions=partitions,
            extents=0,
            size_bytes=size,
            detail=detail,
        )


def _compacted(image: Image, now_ms: int, names: Collection[str], terms: Terms) -> Iterator[DueWork]:
    limits = terms.compaction_limits
    compacted = [name for name in names if "compact" in _setting(image, image.topics[name], "cleanup.policy")]
    due: dict[str, list[int]] = {}
    for work in choose_compactions(image, now_ms, limits, compacted) if compacted else ():
        found = due.setdefault(work.topic, [0, 0, 0])
        found[0] += 1
        found[1] += len(work.extents)
        found[2] += work.clean_bytes + work.dirty_bytes
    for name in compacted:
        partitions, extents, size = due.get(name, (0, 0, 0))
        why_not = "" if name in due else why_not_due(image, name, now_ms, limits)
        yield DueWork(
            topic=name,
            step="compact",
            is_due=name in due,
            partitions=partitions,
            extents=extents,
            size_bytes=size,
            detail=why_not or "keeps the last record of each key",
        )


def _merged(image: Image, names: Collection[str], terms: Terms) -> Iterator[DueWork]:
    limits: MergeLimits = terms.merge_limits
    least = limits.fan_in or 2
    # Settings are parsed for each topic: only for those that may have something to merge.
    many = [name for name in names if any(len(one.extents) >= least for one in image.topics[name].partitions)]
    due: dict[str, list[int]] = {}
    for work in choose_merges(image, limits, many) if many else ():
        for piece in work.pieces:
            found = due.setdefault(piece.topic, [0, 0, 0])
            found[0] += 1
            found[1] += len(piece.extents)
            found[2] += piece.size
    for topic, (pieces, extents, size) in due.items():
        yield DueWork(
            topic=topic,
            step="optimize",
            is_due=True,
            partitions=pieces,
            extents=extents,
            size_bytes=size,
            detail=f"{extents:,} small extents become few large ones",
        )


def _setting(image: Image, topic: Topic, key: str) -> str:
    return topic.configs.get(key) or image.configs.get(key, "")


# --- page --------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A step of a round, and whether it is due."""

    step: str
    is_due: bool
    doc: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Data files, as far as they could be counted in USAGE_MS.

    Fields:
        dead_bytes: in live files, of no record any more.
        is_whole: all files were counted.
        problem: why it is not known; empty: it is.
    """

    live_files: int = 0
    live_bytes: int = 0
    unused_files: int = 0
    unused_bytes: int = 0
    dead_bytes: int = 0
    is_whole: bool = True
    problem: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MaintenancePage:
    """What is due in the root.

    Fields:
        due: by topic, MAX_DUE at most, of `due_count`.
        last_vacuum_ms: when a round last began a vacuum; null: never.
        file_delete_delay_ms: how long readers have the files of what was replaced.
        most_extents: the topics with most extents.
    """

    commit: int
    steps: tuple[StepRow, ...]
    due: tuple[DueWork, ...]
    due_count: int
    space: Space
    last_vacuum_ms: int | None
    file_delete_delay_ms: int
    sweep_horizon: int
    most_extents: tuple[tuple[str, int, int], ...]


_DOCS = {
    "transactions": "Abort transactions past their time-out that no broker ends.",
    "expire": "Remove records past retention.ms or retention.bytes.",
    "producers": "Forget idempotent producers that write nothing any more.",
    "compact": "Keep the last record of each key in compacted topics.",
    "optimize": "Merge small extents into large segments, which are read faster.",
    "retire": "Remove files whose last extent is gone.",
    "vacuum": "Remove files that nothing refers to, once a day.",
}


def maintenance_page(console: Console, _query: Query) -> MaintenancePage:
    """What a round of maintenance would do now."""
    image, now_ms = console.image, console.now_ms
    steps, due = console.recent("due", _DUE_MS, lambda: _due(image, now_ms))
    last = image.configs.get(LAST_VACUUM_KEY, "")
    sizes = sorted(
        (
            (name, sum(len(one.extents) for one in topic.partitions), len(topic.partitions))
            for name, topic in image.topics.items()
        ),
        key=lambda found: -found[1],
    )
    return MaintenancePage(
        commit=image.commit,
        steps=tuple(StepRow(step=one.name, is_due=one.name in steps, doc=_DOCS[one.name]) for one in STEPS),
        due=due[:MAX_DUE],
        due_count=len(due),
        space=console.recent("space", _SPACE_MS, lambda: _space(console)),
        last_vacuum_ms=int(last) if last.isdecimal() else None,
        file_delete_delay_ms=TopicConfig.parse({}, image.configs).file_delete_delay_ms,
        sweep_horizon=image.sweep_horizon,
        most_extents=tuple(found for found in sizes[:LARGE_TOPICS] if found[1]),
    )


def _due(image: Image, now_ms: int) -> tuple[frozenset[str], tuple[DueWork, ...]]:
    names = [
        name
        for name, topic in sorted(image.topics.items())
        if any(len(one.extents) for one in topic.partitions)
    ]
    work = due_work(image, now_ms, names)
    by_topic = {one.step for one in work if one.is_due}
    skip = {"expire", "compact", "optimize"}
    return frozenset(by_topic | set(due_steps(image, now_ms, skip=skip))), tuple(
        one for one in work if one.is_due
    )


def _space(console: Console) -> Space:
    try:
        found = measure_usage(console.log.metadata, console.log.clock, limit_ms=USAGE_MS)
    except SparklogError as error:
        return Space(problem=error.message)
    return Space(
        live_files=found.live.files,
        live_bytes=found.live.size_bytes,
        unused_files=found.unused.files,
        unused_bytes=found.unused.size_bytes,
        dead_bytes=found.dead_bytes,
        is_whole=found.is_whole,
    )


SUBJECT = Subject(
    title="Maintenance",
    views=(
        View(
            path="/maintenance",
            template="maintenance.html",
            data=maintenance_page,
            doc="What a round of maintenance would do now, and the use of space. Nothing is done.",
        ),
    ),
)
