"""Offsets of groups of a source, as offsets of the copied records.

An offset between two anchors (positions.py) is translated without reading where the source has a record for
each offset between them. Elsewhere the source's records from the anchor before it on are counted again.
Invariants: a translated offset is never after the record that the group reads next: where the source has
    removed records since they were copied, it is earlier, and records come twice. A group never moves back
    here, so consumers that have moved already keep their place.
Not here: who commits the offsets (cli/mirror.py).
Sources: MirrorMaker 2, MirrorCheckpointTask.
"""

import time
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from sparklog.mirror.copying import Mirror
from sparklog.mirror.positions import Anchors, anchor_key
from sparklog.mirror.source import Source, TopicPartition

GroupOffsets = Mapping[str, Mapping[TopicPartition, int]]
_WAIT_S = 0.2


def translate(
    mirror: Mirror, source: Source, groups: GroupOffsets, *, timeout_s: float = 60.0
) -> dict[str, dict[TopicPartition, int]]:
    """Return the groups' offsets here, of the partitions that are mirrored. It assigns the source anew."""
    counted: dict[TopicPartition, dict[int, tuple[int, int]]] = defaultdict(dict)
    found: dict[TopicPartition, dict[int, int]] = defaultdict(dict)
    for offsets in groups.values():
        for at, offset in offsets.items():
            position = mirror.positions.get(at)
            if position is None or offset in found[at]:
                continue
            if offset >= position.position:
                found[at][offset] = position.end
                continue
            anchors = mirror.anchors.get(anchor_key(at, position)) or Anchors()
            before, after = anchors.around(offset, (position.position, position.end))
            if after[0] - before[0] == after[1] - before[1]:
                found[at][offset] = before[1] + offset - before[0]
            else:
                counted[at][offset] = before
    for at, wanted in counted.items():
        found[at].update(_count(source, at, wanted, timeout_s))
    return {
        group: {at: found[at][offset] for at, offset in offsets.items() if at in mirror.positions}
        for group, offsets in groups.items()
    }


def _count(
    source: Source, at: TopicPartition, wanted: Mapping[int, tuple[int, int]], timeout_s: float
) -> dict[int, int]:
    """Return the offset here for each of these of the source, given the anchors before them."""
    start, _ = source.ranges([at])[at]
    first = max(start, min(anchor for anchor, _ in wanted.values()))
    last = max(wanted)
    begins = np.array([anchor for anchor, _ in wanted.values()])
    ends = np.array([*wanted])
    counts = np.zeros(len(wanted), np.int64)
    source.assign({at: first})
    position, heard_s = first, time.monotonic()
    while position < last:
        fetched = source.fetch(_WAIT_S)
        if at in fetched.offsets:
            offsets = fetched.offsets[at]
            counts += np.searchsorted(offsets, ends) - np.searchsorted(offsets, begins)
            position = int(offsets[-1]) + 1
        position = max(position, fetched.reached.get(at, 0))
        if fetched.offsets or fetched.reached:
            heard_s = time.monotonic()
        elif time.monotonic() - heard_s > timeout_s:
            raise source.unreachable()
    here = [anchor for _, anchor in wanted.values()]
    return {offset: base + count for offset, base, count in zip(wanted, here, counts.tolist(), strict=True)}
