"""How far a mirror has copied each partition: records of a compacted topic of the root.

A commit that appends copied records appends these records, too. So after a crash the position is that of the
records which are there, and no record is lost or copied twice.
    key    `topic:partition`
    value  {"position": next offset of the source, "end": log end here, "topic_id": of the topic here,
            "source_topic_id": of the source's topic, or ""}
Earlier records of a key map more offsets of the source to offsets here (`Anchors`).
Invariants: positions and ends of a partition never decrease. A position is of one topic id: a topic that was
    deleted, and made again, has none.
Not here: copying (copying.py).
Concurrency: pure, but for `read_positions`.
Sources: docs/adr/0043; MirrorMaker 2's offset syncs.
"""

import bisect
import re
from collections.abc import Iterator, Mapping

import msgspec
import pyarrow as pa

from sparklog.client.log import SparkLog
from sparklog.errors import CorruptLogError
from sparklog.mirror.source import TopicPartition

ANCHOR_OFFSETS = 10_000  # between two anchors; fewer: more memory; more: more records are counted
_ILLEGAL = re.compile(r"[^A-Za-z0-9._-]")


class Position(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A partition is copied up to `position` of the source, exclusive, which is `end` here."""

    position: int
    end: int
    topic_id: str
    source_topic_id: str = ""


class Anchors:
    """Pairs of an offset of the source and the offset here of the first record at or after it."""

    def __init__(self) -> None:
        self._source = [0]
        self._here = [0]

    def add(self, position: int, end: int) -> None:
        """Add a pair that is not before the last one; left out if it is near the last one."""
        if position - self._source[-1] >= ANCHOR_OFFSETS:
            self._source.append(position)
            self._here.append(end)

    def around(self, offset: int, last: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the pairs at or before, and after, an offset that is before the pair `last`."""
        after = bisect.bisect_right(self._source, offset)
        before = self._source[after - 1], self._here[after - 1]
        if after == len(self._source):
            return before, last
        return before, (self._source[after], self._here[after])


def positions_topic(cluster_id: str) -> str:
    """Return the name of the topic with the positions of a source."""
    return f"sparklog-mirror.{_ILLEGAL.sub('-', cluster_id)}"[:249]


def position_rows(positions: Mapping[TopicPartition, Position]) -> pa.RecordBatch:
    """Return the records of positions."""
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([f"{topic}:{partition}".encode() for topic, partition in positions], pa.binary()),
            "value": pa.array([msgspec.json.encode(one) for one in positions.values()], pa.binary()),
        }
    )


def read_positions(log: SparkLog, topic: str) -> tuple[dict[TopicPartition, Position], dict[str, Anchors]]:
    """Return the newest position of each partition, and its anchors by `anchor_key`.

    Raises:
        CorruptLogError: MIRROR_DIVERGED, a record is not a position.
    """
    newest: dict[TopicPartition, Position] = {}
    anchors: dict[str, Anchors] = {}
    for at, position in _records(log, topic):
        newest[at] = position
        anchors.setdefault(anchor_key(at, position), Anchors()).add(position.position, position.end)
    return newest, anchors


def anchor_key(at: TopicPartition, position: Position) -> str:
    """Return what the anchors of a partition belong to: both ids, as topics may be made again."""
    return f"{at[0]}:{at[1]}:{position.topic_id}:{position.source_topic_id}"


def _records(log: SparkLog, topic: str) -> Iterator[tuple[TopicPartition, Position]]:
    if topic not in log.refresh(force=True).topics:
        return
    for arrow_batch in log.read_batches(topic, 0):
        columns = [arrow_batch.column(name).to_pylist() for name in ("offset", "key", "value")]
        for offset, key, value in zip(*columns, strict=True):
            if value is None:
                continue
            try:
                name, _, partition = key.decode().rpartition(":")
                yield (name, int(partition)), msgspec.json.decode(value, type=Position)
            except (msgspec.DecodeError, AttributeError, ValueError) as error:
                raise CorruptLogError(
                    "MIRROR_DIVERGED",
                    f"{topic}-0@{offset}: expected a position of a mirror, found {error}",
                    fix="nobody else may write to this topic; delete it and what was mirrored to begin anew",
                ) from None
