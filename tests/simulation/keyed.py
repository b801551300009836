"""Records of the compacted topic: each text says who it is, which key it has, and whether it deletes it.

    c/w0/17/k3/+      the value is the text; key k3
    c/w0/18/k3/-      a tombstone
    c/w0/19//+        without a key

A tombstone has no value, so each record has its text as a header as well: by that it is known when it is
read, and what was read must be what was sent, key and value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sparklog.format.schema import HEADERS_TYPE

KEYED = "c"
_ID = "id"


@dataclass(frozen=True, slots=True)
class Keyed:
    """What a text says."""

    text: str
    key: str  # empty: none
    is_tombstone: bool


def text_of(sender: str, number: int, key: str, *, is_tombstone: bool) -> str:
    """Of a sender's record."""
    return f"{KEYED}/{sender}/{number}/{key}/{'-' if is_tombstone else '+'}"


def parsed(text: str) -> Keyed:
    """What it says."""
    _, _, _, key, kind = text.split("/")
    return Keyed(text, key, kind == "-")


def lacks_keys(values: Mapping[str, Sequence[str]]) -> bool:
    """Is any of them without a key?"""
    return any(
        key.rpartition("-")[0] == KEYED and not parsed(text).key for key in values for text in values[key]
    )


def keyed_rows(texts: Sequence[str], partitions: Sequence[int], stamps: Mapping[str, int]) -> pa.RecordBatch:
    """To be appended, each with its time."""
    records = [parsed(text) for text in texts]
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([record.key.encode() or None for record in records], pa.binary()),
            "value": pa.array(
                [None if one.is_tombstone else one.text.encode() for one in records], pa.binary()
            ),
            "headers": pa.array([[{"key": _ID, "value": text.encode()}] for text in texts], HEADERS_TYPE),
            "timestamp": pa.array([stamps[text] for text in texts], pa.int64()),
            "partition": pa.array(partitions, pa.int32()),
        }
    )


def texts_in(table: pa.Table, stamps: Mapping[str, int]) -> list[str]:
    """Of records that were read with their headers.

    Raises: AssertionError, a record is not as it was sent.
    """
    texts = []
    timestamps = table["timestamp"].cast(pa.int64()).to_pylist()
    rows = zip(*(table[name].to_pylist() for name in ("key", "value", "headers")), timestamps, strict=True)
    for key, value, headers, timestamp in rows:
        ((name, found),) = ((header["key"], header["value"]) for header in headers)
        text = found.decode()
        sent = parsed(text)
        expected = (sent.key.encode() or None, None if sent.is_tombstone else found, _ID, stamps[text])
        assert (key, value, name, timestamp) == expected, f"{text}: {(key, value, name, timestamp)}"
        texts.append(text)
    return texts
