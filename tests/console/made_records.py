"""Records of all sorts in a root, and the plain search that a scan is compared with."""

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from sparklog.client import SparkLog
from sparklog.console.messages import Filters
from sparklog.format.schema import HEADERS_TYPE

TOPIC = "clicks"
PARTITIONS = 3
HOSTILE = [
    b"<script>alert(1)</script>",
    b"<img src=x onerror=alert(1)>",
    b"\x1b[31mred\x1b[0m\x00\x07",
    "\u202etxt.exe".encode(),
    b"\xff\xfe\xfd",
    b"a\xc3",
    b"",
    b"[" * 3000,
    b'{"a": {"b": ' * 500 + b"1" + b"}}" * 500,
    b"\x00\x00\x00\x00\x07payload",
]


@dataclass(frozen=True)
class Record:
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def values(count: int, seed: int = 1) -> list[bytes | None]:
    random_ = random.Random(seed)
    made: list[bytes | None] = []
    for number in range(count):
        kind = random_.randrange(8)
        if kind == 0:
            made.append(random_.choice(HOSTILE))
        elif kind == 1:
            made.append(None)
        elif kind == 2:
            made.append(f"order {number} is café {number % 7}".encode())
        else:
            document: dict[str, Any] = {
                "id": number % 10,
                "user": {"name": random_.choice(["ann", "bob", "caf\u00e9", 'q"q']), "ok": number % 2 == 0},
                "items": [{"sku": f"s{number % 5}"}, {"sku": "s9", "price": random_.choice([1, 1.5, None])}],
            }
            made.append(json.dumps(document, ensure_ascii=number % 3 == 0).encode())
    return made


def headers_of(number: int) -> list[dict[str, Any]] | None:
    if number % 4 == 0:
        return None
    if number % 4 == 1:
        return []
    entries: list[dict[str, Any]] = [{"key": "trace", "value": f"t{number % 6}".encode()}]
    if number % 4 == 3:
        entries += [{"key": "trace", "value": b"t99"}, {"key": "<b>", "value": None}]
    return entries


def fill(log: SparkLog, count: int = 400, seed: int = 1) -> None:
    """Append in several batches and codecs."""
    log.create_topic(TOPIC, PARTITIONS)
    made = values(count, seed)
    for start in range(0, count, 97):
        rows = range(start, min(start + 97, count))
        table = pa.table(
            {
                "key": pa.array(
                    [
                        None if row % 5 == 0 else b"k\xff" if row % 7 == 0 else b"k%d" % (row % 12)
                        for row in rows
                    ],
                    pa.binary(),
                ),
                "value": pa.array([made[row] for row in rows], pa.binary()),
                "headers": pa.array([headers_of(row) for row in rows], HEADERS_TYPE),
                "partition": pa.array([row % PARTITIONS for row in rows], pa.int32()),
                "timestamp": pa.array([1_000_000 + row * 10 for row in rows], pa.timestamp("ms", "UTC")),
            }
        )
        log.append(TOPIC, table, compression_type=["none", "zstd", "lz4"][start // 97 % 3])


def all_records(log: SparkLog, topic: str = TOPIC) -> Iterator[Record]:
    for partition in range(log.partition_count(topic)):
        for row in log.read(topic, partition, 0, include_headers=True).to_pylist():
            yield Record(
                partition,
                row["offset"],
                int(row["timestamp"].timestamp() * 1000 + 0.5),
                row["key"],
                row["value"],
                [(entry["key"], entry["value"]) for entry in row["headers"] or []],
            )


def is_found(record: Record, filters: Filters) -> bool:
    """The plain search."""
    value = record.value
    checks = [
        not filters.key or record.key == filters.key.encode(),
        not filters.key_contains or (record.key is not None and filters.key_contains.encode() in record.key),
        not filters.value_contains or (value is not None and filters.value_contains.encode() in value),
        not filters.header
        or any(
            name == filters.header and (not filters.header_value or found == filters.header_value.encode())
            for name, found in record.headers
        ),
        not filters.regex
        or (
            value is not None and re.search(filters.regex, value.decode(errors="surrogateescape")) is not None
        ),
        filters.end_time_ms is None or record.timestamp_ms <= filters.end_time_ms,
    ]
    return all(checks)


def json_at(record: Record, *path: str | int) -> Any:
    """The value at a path; KeyError: there is none."""
    try:
        found: Any = msgspec.json.decode(record.value or b"")
        for step in path:
            if not isinstance(found, dict if isinstance(step, str) else list):
                raise KeyError(step)
            found = found[step]  # type: ignore[index]
    except (msgspec.DecodeError, RecursionError, IndexError) as error:
        raise KeyError(path) from error
    return found
