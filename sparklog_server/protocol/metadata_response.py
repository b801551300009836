"""The topics of a Metadata response, without kio.

A client that asks for all topics gets thousands, and asks again every few minutes; a stranger may ask all
the time. With kio's entities an answer of 5,000 topics took 270 ms of event loop; as bytes it takes 10, and
nothing where it is the answer to the same question as before (api/topic_listing.py).

Of partitions that one broker leads in one epoch the bytes differ in the number alone: topics with as many
partitions, led alike, share theirs.

Invariants: the same bytes as kio's, in every version (a test compares them).
Not here: brokers, and what else there is once in a response.
Sources: Kafka MetadataResponse.json.
"""

import functools
import struct
import uuid
from typing import NamedTuple

import numpy as np

from sparklog_server.protocol.varints import compact_length

FLEXIBLE_FROM = 9
_TOPIC_IDS_FROM = 10
_NO_ID = bytes(16)
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_SMALL_PARTITIONS = 4096
_LARGE_BYTES = 16 << 10  # blocks of partitions that are not copied into each response


class Led(NamedTuple):
    """So many partitions in a row that have the same leader."""

    node_id: int
    leader_epoch: int
    partitions: int


def encode_topics(topics: list[list[bytes]], version: int) -> list[bytes]:
    """The array of topics: its count, and what `encode_topic` made of each, joined where that is small."""
    count = _count(len(topics), flexible=version >= FLEXIBLE_FROM)
    chunks: list[bytes] = []
    small = [count]
    for topic in topics:
        for piece in topic:
            if len(piece) < _LARGE_BYTES:
                small.append(piece)
            else:
                chunks += (b"".join(small), piece)
                small = []
    return [*chunks, b"".join(small)]


def encode_topic(
    version: int,
    *,
    name: str | None,
    topic_id: uuid.UUID | None = None,
    error_code: int = 0,
    is_internal: bool = False,
    led: tuple[Led, ...] = (),
    operations: int = 0,
) -> list[bytes]:
    """One topic's bytes, in pieces; `led`: its partitions, from the first on; `operations`: authorized."""
    flexible = version >= FLEXIBLE_FROM
    head = [_INT16.pack(error_code), _name(name, flexible=flexible)]
    if version >= _TOPIC_IDS_FROM:
        head.append(_NO_ID if topic_id is None else topic_id.bytes)
    if version >= 1:
        head.append(b"\1" if is_internal else b"\0")
    pieces = [b"".join(head), partitions_block(version, led)]
    tail = (_INT32.pack(operations) if version >= 8 else b"") + (b"\0" if flexible else b"")
    return [*pieces, tail] if tail else pieces


def partitions_block(version: int, led: tuple[Led, ...]) -> bytes:
    """The array of partitions. The same object, if it was asked for lately."""
    count = sum(one.partitions for one in led)
    return (_small_block if count <= _SMALL_PARTITIONS else _large_block)(version, led)


def _block(version: int, led: tuple[Led, ...]) -> bytes:
    rows = []
    first = 0
    for one in led:
        rows.append(_rows(version, one, first))
        first += one.partitions
    return _count(first, flexible=version >= FLEXIBLE_FROM) + b"".join(rows)


def _rows(version: int, led: Led, first: int) -> bytes:
    flexible = version >= FLEXIBLE_FROM
    node = _INT32.pack(led.node_id)
    replicas = _count(1, flexible=flexible) + node
    template = b"".join(
        [
            _INT16.pack(0),  # no error
            _INT32.pack(0),  # the partition's number, to be filled in
            node,
            _INT32.pack(led.leader_epoch) if version >= 7 else b"",
            replicas,
            replicas,  # in sync
            _count(0, flexible=flexible) if version >= 5 else b"",  # offline
            b"\0" if flexible else b"",
        ]
    )
    rows = np.tile(np.frombuffer(template, np.uint8), (led.partitions, 1))
    numbers = np.arange(first, first + led.partitions, dtype=">i4")
    rows[:, 2:6] = numbers.view(np.uint8).reshape(led.partitions, 4)
    return rows.tobytes()


_small_block = functools.lru_cache(maxsize=64)(_block)  # 8 MB at most
_large_block = functools.lru_cache(maxsize=4)(_block)  # 12 MB


def count_bytes(version: int) -> int:
    """How many an array's count of none takes."""
    return 1 if version >= FLEXIBLE_FROM else 4


def after_topics(version: int) -> int:
    """How many bytes of a response follow the array of topics: authorized operations, tags."""
    return (4 if 8 <= version <= 10 else 0) + (1 if version >= FLEXIBLE_FROM else 0)


def _name(name: str | None, *, flexible: bool) -> bytes:
    if name is None:
        return b"\0"  # nullable in flexible versions only
    data = name.encode()
    return (compact_length(len(data)) if flexible else _INT16.pack(len(data))) + data


def _count(count: int, *, flexible: bool) -> bytes:
    return compact_length(count) if flexible else _INT32.pack(count)
