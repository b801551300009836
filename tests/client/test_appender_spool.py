"""Where extents would be many, an appender writes by partition: the same rows, in fewer extents."""

import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from sparklog.client import AppendOptions, SparkLog, appender, waiting_rows
from sparklog.client.appender import Sequencer
from sparklog.errors import StorageError
from sparklog.format.batch_table import scan_batches

PARTITIONS = 20
ROWS = 400
OPTIONS = AppendOptions(buffer_bytes=20_000, partition_bytes=6_000, batch_bytes=2_000)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty partitions are many here."""
    monkeypatch.setattr(appender, "SCATTERED_EXTENTS", PARTITIONS - 1)


def rows(number: int) -> pa.RecordBatch:
    """Of all partitions, in the order of their numbers; most of the second are one partition's."""
    ids = np.arange(number * ROWS, (number + 1) * ROWS)
    partition = np.zeros(ROWS, np.int64) if number == 1 else ids * 7 % PARTITIONS
    partition[:PARTITIONS] = np.arange(PARTITIONS)
    value = pa.array([b"%08d" % one + b"." * 40 for one in ids.tolist()])
    return pa.RecordBatch.from_pydict({"value": value, "partition": pa.array(partition)})


def write(log: SparkLog, flushes: int = 6, topics: tuple[str, ...] = ("t",)) -> Counter[tuple[str, int]]:
    """How many extents each partition got."""
    for topic in topics:
        log.create_topic(topic, PARTITIONS)
    with log.appender(OPTIONS) as writing:
        for number in range(flushes):
            for topic in topics:
                writing.add(rows(number), topic)
        staged = writing.finish()
    log.publish([staged])
    return Counter((draft.topic_id, draft.partition) for draft in staged.drafts)


def expected(flushes: int) -> list[list[bytes]]:
    found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    for number in range(flushes):
        for row in rows(number).to_pylist():
            found[row["partition"]].append(row["value"])
    return found


def values(log: SparkLog, topic: str = "t") -> list[list[bytes]]:
    return [log.read(topic, partition, 0)["value"].to_pylist() for partition in range(PARTITIONS)]


def test_a_partition_has_one_extent_however_often_the_buffer_was_full(log: SparkLog) -> None:
    assert set(write(log).values()) == {1}
    assert values(log) == expected(6)


def test_without_it_each_time_makes_one_more(log: SparkLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "SCATTERED_EXTENTS", 1_000_000)
    assert max(write(log).values()) >= 5
    assert values(log) == expected(6)


def test_batches_are_stored_as_if_they_had_been_written_at_once(log: SparkLog) -> None:
    write(log)
    for state in log.image.topic("t").partitions:
        (extent,) = state.extents
        table = scan_batches(log.store.read(extent.segment, extent.position, extent.size), where="here")
        assert table.base_offset.tolist() == [0, *(table.last_offset[:-1] + 1).tolist()]
        assert int(table.last_offset[-1]) + 1 == extent.record_count
        assert extent.max_timestamp_ms == int(table.max_timestamp_ms.max())


def test_topics_do_not_mix(log: SparkLog) -> None:
    assert set(write(log, topics=("t", "u")).values()) == {1}
    assert values(log, "t") == values(log, "u") == expected(6)


def test_extents_that_were_there_before_come_first(log: SparkLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "SCATTERED_EXTENTS", 2 * PARTITIONS)
    assert max(write(log).values()) in (3, 4)
    assert values(log) == expected(6)


@pytest.mark.parametrize("limit_bytes", [0, 10_000, 60_000])
def test_with_little_room_it_is_emptied_more_often(
    log: SparkLog, monkeypatch: pytest.MonkeyPatch, limit_bytes: int
) -> None:
    monkeypatch.setattr(waiting_rows, "SPOOL_BYTES", limit_bytes)
    assert max(write(log).values()) > 1
    assert values(log) == expected(6)


def test_without_a_place_for_temporary_files_it_is_done_without(
    log: SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    assert max(write(log).values()) > 1
    assert values(log) == expected(6)


def test_a_disk_that_others_fill_is_left_to_them(log: SparkLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits has to be written once more, maybe there: each task takes a sixteenth of what is left."""
    free = iter([16 * 30_000, *[16 * 10_000] * 1000])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=next(free)))
    monkeypatch.setattr(os, "ftruncate", noted := Truncated())
    assert max(write(log).values()) > 1
    assert values(log) == expected(6)
    assert next(free) == 16 * 10_000
    assert noted.sizes
    assert set(noted.sizes) == {0}, "what it has taken is given back at once"


class Truncated:
    """Notes to how many bytes files are cut."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._cut = os.ftruncate

    def __call__(self, descriptor: int, size: int) -> None:
        self.sizes.append(size)
        self._cut(descriptor, size)


def test_a_disk_that_fails_fails_the_write(log: SparkLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(StorageError, match=r"cannot read a temporary file.*Input/output error"):
        write(log)
    assert values(log) == [[]] * PARTITIONS


def test_nothing_is_left_behind(log: SparkLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    write(log)
    assert list(tmp_path.iterdir()) == []


def test_batches_of_a_transaction_keep_the_sequences_that_they_were_written_with(log: SparkLog) -> None:
    """They are in the batches, and so each flush writes them."""
    log.create_topic("t", PARTITIONS)
    log.refresh()
    sequencer = Sequencer(producer_id=1, producer_epoch=0)
    with log.appender(OPTIONS, sequencer=sequencer) as writing:
        for number in range(4):
            writing.add(rows(number), "t")
        drafts = [draft for draft in writing.finish().drafts if draft.partition == 3]
    assert len(drafts) > 1
    ends = [draft.base_sequence + draft.record_count for draft in drafts]
    assert [draft.base_sequence for draft in drafts] == [0, *ends[:-1]]
