"""What was compacted away is not read from the broker's memory either."""

from collections.abc import Sequence

import pyarrow as pa

from sparklog.format.decode import decode_records, scan_batches
from sparklog.maintenance import compact, vacuum
from sparklog_server.fetch.sessions import PartitionFetch
from tests.server.fetch.stored import StoredLog, bytes_of
from tests.support.running_broker import RunningBroker

TABLE = "table"
Row = tuple[int, bytes, bytes | None]


def create_table(stored: StoredLog) -> None:
    config = {"cleanup.policy": "compact", "delete.retention.ms": "0"}
    stored.log.create_topic(TABLE, 1, config)


def put(stored: StoredLog, *rows: tuple[bytes, bytes | None]) -> None:
    """A batch for each, in an extent of its own."""
    for key, value in rows:
        stored.log.append(TABLE, pa.table({"key": [key], "value": pa.array([value], pa.binary())}))
    stored.after_append()


def clean(stored: StoredLog) -> None:
    """Until nothing is left to do, tombstones included."""
    for _ in range(3):
        compact(stored.log.metadata, stored.log.clock, [TABLE])
    vacuum(stored.log.metadata, stored.log.clock, retain_ms=0, force=True)
    stored.after_append()


def fetched(broker: RunningBroker, offset: int) -> list[Row]:
    """What a consumer that asks for records from `offset` on is given."""
    one = PartitionFetch(topic=TABLE, partition=0, offset=offset, max_bytes=1 << 20)
    found = broker.call(
        broker.broker.fetches.fetch([one], min_bytes=0, max_bytes=1 << 20, max_wait_ms=0),
    )
    (answer,) = found.answers
    data = bytes_of(answer.chunks)
    broker.call_soon(found.release)
    assert answer.error_code == 0
    records = decode_records(data, scan_batches(data, where="fetched"), where="fetched")
    columns: Sequence[list[object]] = (
        records.offset.tolist(),
        records.key.to_pylist(),
        records.value.to_pylist(),
    )
    rows: list[Row] = list(zip(*columns, strict=True))
    return [row for row in rows if row[0] >= offset]


def test_a_deleted_key_does_not_come_back_from_memory(broker: RunningBroker, stored: StoredLog) -> None:
    """A value in memory, whose tombstone was pushed out of it, would make the key live again."""
    create_table(stored)
    put(stored, (b"k", b"v"), (b"k", None), (b"x", b"1"))
    assert fetched(broker, 0) == [(0, b"k", b"v"), (1, b"k", None), (2, b"x", b"1")]
    clean(stored)
    assert fetched(broker, 0) == [(2, b"x", b"1")]
    assert fetched(broker, 1) == [(2, b"x", b"1")]


def test_what_no_compaction_has_seen_is_read_from_memory(broker: RunningBroker, stored: StoredLog) -> None:
    create_table(stored)
    put(stored, (b"k", b"1"), (b"k", b"2"))
    clean(stored)
    put(stored, (b"k", b"3"), (b"k", b"4"))
    wanted: list[Row] = [(2, b"k", b"3"), (3, b"k", b"4")]
    assert fetched(broker, 0) == [(1, b"k", b"2"), *wanted]
    assert fetched(broker, 2) == wanted
    for extent in stored.log.refresh().partition(TABLE, 0).extents:
        stored.log.store.delete(extent.segment)
    assert fetched(broker, 2) == wanted
