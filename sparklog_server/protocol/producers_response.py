"""The response to DescribeProducers without kio's entities.

A partition remembers a thousand producers, and a request of 300 bytes names sixty partitions: with entities
each producer took 11 us, and takes half of one as a row of an array.
Invariants: the same bytes as kio's (a test compares them).
Sources: Kafka DescribeProducersResponse.json.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparklog_server.protocol.varints import compact_length
from sparklog_server.protocol.wire import NOT_THROTTLED

_NONE = -1
_HEAD = struct.Struct(">ihB")  # partition, error, no message
_NO_TAGS = b"\0"
_NOBODY = compact_length(0)
_ROW = np.dtype(
    [
        ("producer_id", ">i8"),
        ("producer_epoch", ">i4"),
        ("last_sequence", ">i4"),
        ("last_timestamp", ">i8"),
        ("coordinator_epoch", ">i4"),
        ("current_txn_start_offset", ">i8"),
        ("tags", "u1"),
    ]
)


class Producers(NamedTuple):
    """Of a partition, as columns."""

    producer_id: npt.NDArray[np.int64]
    producer_epoch: npt.NDArray[np.int64]
    last_sequence: npt.NDArray[np.int64]
    last_timestamp_ms: npt.NDArray[np.int64]


def encode_producers(producers: Producers) -> bytes:
    """The array of a partition's producers. Where a transaction of theirs begins is not known."""
    rows = np.zeros(len(producers.producer_id), _ROW)
    rows["producer_id"] = producers.producer_id
    rows["producer_epoch"] = producers.producer_epoch
    rows["last_sequence"] = producers.last_sequence
    rows["last_timestamp"] = producers.last_timestamp_ms
    rows["coordinator_epoch"] = rows["current_txn_start_offset"] = _NONE
    return compact_length(len(rows)) + rows.tobytes()


def encode_partition(number: int, error_code: int, producers: bytes = _NOBODY) -> bytes:
    """A partition, with what `encode_producers` made."""
    return _HEAD.pack(number, error_code, 0) + producers + _NO_TAGS


def encode_topics(topics: Mapping[str, Sequence[bytes]]) -> list[bytes]:
    """The body, in pieces; of each topic its partitions."""
    pieces = [NOT_THROTTLED, compact_length(len(topics))]
    for topic, partitions in topics.items():
        name = topic.encode()
        pieces += (compact_length(len(name)), name, compact_length(len(partitions)), *partitions, _NO_TAGS)
    return [b"".join([*pieces, _NO_TAGS])]
