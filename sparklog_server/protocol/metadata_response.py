"""The topics of a Metadata response, without kio.

A client that asks for all topics gets thousands, and asks again every few minutes; a hostile client may ask
all the time. With kio's entities an answer of 5,000 topics took 270 ms of event loop; as bytes it takes 10,
and nothing if the same request was answered before (api/listings.py).

Most partitions have the same leader and replicas as others: their rows are copied with another number. The
bytes after a partition's leader and epoch (its replicas and the in-sync ones) are encoded once for each list.

Invariants: the same bytes as kio's, in every version (a test compares them).
Not here: brokers, and the other fields of the response.
Sources: Kafka MetadataResponse.json.
"""

import functools
import struct
import uuid
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from sparklog_server.protocol.wire import compact_length, encode_count, encode_text, uvarint

# --- nodes -------------------------------------------------------------------------------------------
#
# Endpoints of brokers for clients; also as bytes, in the responses that are written by hand.
#
# Concurrency: values.
# Sources: KIP-951 (NodeEndpoint of ProduceResponse.json, FetchResponse.json).


_I32 = struct.Struct(">i")
_LEADER = struct.Struct(">ii")
_NODE_ENDPOINTS_TAG = b"\x00"
_NO_TAGS = b"\x00"


class Node(NamedTuple):
    """A broker's endpoint for clients of one listener; `rack` None: it has none."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class LeaderHint(NamedTuple):
    """The leader of a partition, for a client that asked another broker; clients ignore old ones."""

    node_id: int
    leader_epoch: int


def leader_tag(tag: int, leader: LeaderHint) -> bytes:
    """Return the tagged fields of a partition: its current leader."""
    inside = _LEADER.pack(*leader) + _NO_TAGS
    return b"\x01" + uvarint(tag) + uvarint(len(inside)) + inside


def endpoints_tags(nodes: Iterable[Node]) -> bytes:
    """Return the tagged fields of a response: the nodes, or none."""
    entries = [
        b"".join(
            (
                _I32.pack(one.node_id),
                encode_text(one.host, flexible=True),
                _I32.pack(one.port),
                encode_text(one.rack, flexible=True),
                _NO_TAGS,
            )
        )
        for one in nodes
    ]
    if not entries:
        return _NO_TAGS
    inside = compact_length(len(entries)) + b"".join(entries)
    return b"\x01" + _NODE_ENDPOINTS_TAG + uvarint(len(inside)) + inside


# --- metadata response -------------------------------------------------------------------------------


FLEXIBLE_FROM = 9
_OFFLINE_FROM = 5
_EPOCHS_FROM = 7
_TOPIC_IDS_FROM = 10
_ERROR_FROM = 13
_INTERNAL_FROM, _OPERATIONS_FROM = 1, 8
_TOPICS_CHANGE = (
    0, _INTERNAL_FROM, _OFFLINE_FROM, _EPOCHS_FROM, _OPERATIONS_FROM, FLEXIBLE_FROM, _TOPIC_IDS_FROM,
)  # fmt: skip
_MANY, _ALIKE = 12, 4  # least numbers (in total, per kind) for which NumPy is faster
_ROW = struct.Struct(">hiii")  # error, partition, leader, its epoch
_OLD_ROW = struct.Struct(">hii")
_NO_ID = bytes(16)
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_LARGE_BYTES = 16 << 10  # larger blocks of partitions are not copied into each response


class Replicas(NamedTuple):
    """The replicas of a partition, and the in-sync ones."""

    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...] = ()


class Led(NamedTuple):
    """A partition's leader (-1 with an error: none) and its replicas."""

    error_code: int
    node_id: int
    leader_epoch: int
    replicas: Replicas


def encode_topics(topics: list[list[bytes]], version: int) -> list[bytes]:
    """Return the array of topics: the count and the encoded topics, with small ones joined."""
    count = encode_count(len(topics), flexible=version >= FLEXIBLE_FROM)
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
    partitions: bytes | None = None,
    operations: int = 0,
) -> list[bytes]:
    """Return one topic's bytes, in pieces.

    Args:
        partitions: the encoded array, from one of the functions below; None: no partitions.
        operations: the authorized operations.
    """
    flexible = version >= FLEXIBLE_FROM
    head = [_INT16.pack(error_code), encode_text(name, flexible=flexible)]
    if version >= _TOPIC_IDS_FROM:
        head.append(_NO_ID if topic_id is None else topic_id.bytes)
    if version >= _INTERNAL_FROM:
        head.append(b"\1" if is_internal else b"\0")
    block = encode_count(0, flexible=flexible) if partitions is None else partitions
    pieces = [b"".join(head), block]
    tail = (_INT32.pack(operations) if version >= _OPERATIONS_FROM else b"") + (b"\0" if flexible else b"")
    return [*pieces, tail] if tail else pieces


def partitions_led(version: int, partitions: Sequence[Led]) -> bytes:
    """Return the array of partitions, from number 0 on."""
    return array_of(version, len(partitions), [rows_led(version, 0, partitions)])


def array_of(version: int, count: int, rows: Iterable[bytes]) -> bytes:
    """Return the array of `count` partitions from pieces that `rows_led` encoded."""
    return b"".join((encode_count(count, flexible=version >= FLEXIBLE_FROM), *rows))


def rows_led(version: int, first: int, partitions: Sequence[Led]) -> bytes:
    """Encode partitions, from number `first` on. Identical `Led` objects are encoded in one batch."""
    if len(partitions) >= _MANY:
        alike = {id(one): one for one in partitions}
        if len(alike) <= len(partitions) // _ALIKE:
            templates = [b"".join(_around_number(version, one, bytes(4))) for one in alike.values()]
            if len({len(one) for one in templates}) == 1:
                return _rows_alike(first, partitions, dict(zip(alike, templates, strict=True)))
    rows: list[bytes] = []
    if version >= _EPOCHS_FROM:
        for number, (error, node_id, epoch, replicas) in enumerate(partitions, first):
            rows += (_ROW.pack(error, number, node_id, epoch), replicas_block(version, replicas))
    else:
        for number, (error, node_id, _, replicas) in enumerate(partitions, first):
            rows += (_OLD_ROW.pack(error, number, node_id), replicas_block(version, replicas))
    return b"".join(rows)


def _rows_alike(first: int, partitions: Sequence[Led], templates: dict[int, bytes]) -> bytes:
    """`templates`: rows of one size, by the identity of their `Led`."""
    count = len(partitions)
    places = {one: place for place, one in enumerate(templates)}
    chosen = np.fromiter((places[id(one)] for one in partitions), np.intp, count)
    rows = np.frombuffer(b"".join(templates.values()), np.uint8).reshape(len(templates), -1)[chosen]
    rows[:, 2:6] = np.arange(first, first + count, dtype=">i4").view(np.uint8).reshape(count, 4)
    return rows.tobytes()


def partition_bytes(version: int, replicas: Replicas) -> int:
    """Return the size in bytes of a partition with these replicas."""
    return (_ROW if version >= _EPOCHS_FROM else _OLD_ROW).size + len(replicas_block(version, replicas))


def _around_number(version: int, led: Led, number: bytes) -> tuple[bytes, ...]:
    epoch = _INT32.pack(led.leader_epoch) if version >= _EPOCHS_FROM else b""
    leader = _INT32.pack(led.node_id)
    return _INT16.pack(led.error_code), number, leader, epoch, replicas_block(version, led.replicas)


def partitions_like(version: int) -> int:
    """Return the first version in which partitions have the same bytes as in this one."""
    return max(one for one in (0, _OFFLINE_FROM, _EPOCHS_FROM, FLEXIBLE_FROM) if one <= version)


def topics_like(version: int) -> int:
    """Return the first version in which topics have the same bytes as in this one, with their partitions."""
    return max(one for one in _TOPICS_CHANGE if one <= version)


@functools.lru_cache(maxsize=4096)
def replicas_block(version: int, replicas: Replicas) -> bytes:
    """Return the bytes after a partition's leader and epoch."""
    flexible = version >= FLEXIBLE_FROM
    lists = replicas if version >= _OFFLINE_FROM else replicas[:2]
    return b"".join(_nodes(one, flexible=flexible) for one in lists) + (b"\0" if flexible else b"")


def _nodes(node_ids: tuple[int, ...], *, flexible: bool) -> bytes:
    return encode_count(len(node_ids), flexible=flexible) + struct.pack(f">{len(node_ids)}i", *node_ids)


def count_bytes(version: int) -> int:
    """Return the size in bytes of an empty array."""
    return 1 if version >= FLEXIBLE_FROM else 4


def after_topics(version: int) -> int:
    """Return the size in bytes after the array of topics: authorized operations, error, tags."""
    return (
        (4 if _OPERATIONS_FROM <= version <= 10 else 0)
        + (2 if version >= _ERROR_FROM else 0)
        + (1 if version >= FLEXIBLE_FROM else 0)
    )
