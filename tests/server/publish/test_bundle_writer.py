"""A bundle: what is published, what fails alone, and what nobody is told of."""

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import FatalStorageError, StorageError
from sparklog.format.encoded_batches import EncodedBatches
from sparklog.log.config import TopicConfig
from sparklog.log.past_retention import INTERVAL_MS, past_retention_text
from sparklog.storage import LocalStore, MemoryStore
from sparklog_server.cluster.broker_epoch import BrokerEpoch
from sparklog_server.publish.bundle_writer import BundleWriter
from sparklog_server.publish.parts import AppendPart, PartOutcome
from tests.server.publish.batches import NOW_MS, batch, part
from tests.support.roots import opened


def orders(log: SparkLog, partition: int = 0, **fields: object) -> AppendPart:
    return part(topic_id=log.image.topic("orders").topic_id, partition=partition, **fields)  # type: ignore[arg-type]


def values(log: SparkLog, topic: str = "orders", partition: int = 0) -> list[bytes]:
    found: list[bytes] = log.read(topic, partition, 0).column("value").to_pylist()
    return found


def offsets(outcomes: list[PartOutcome]) -> list[int | str]:
    return [
        outcome.base_offset if outcome.error is None else getattr(outcome.error, "code", "?")
        for outcome in outcomes
    ]


def test_one_part(bundles: BundleWriter, log: SparkLog) -> None:
    (outcome,) = bundles.write([orders(log)])
    assert outcome == PartOutcome(base_offset=0, log_start_offset=0)
    assert values(log) == [b"orders-0-0", b"orders-0-1"]


def test_a_bundle_is_one_commit_and_few_extents(bundles: BundleWriter, log: SparkLog) -> None:
    before = log.image.commit
    parts = [orders(log, number % 3, count=number + 1) for number in range(9)]
    outcomes = bundles.write(parts)
    assert log.image.commit == before + 1
    assert [len(state.extents) for state in log.image.topic("orders").partitions] == [1, 1, 1]
    assert offsets(outcomes) == [0, 0, 0, 1, 2, 3, 5, 7, 9]
    assert [log.log_end_offset("orders", p) for p in range(3)] == [12, 15, 18]
    for number in range(3):
        assert len(values(log, partition=number)) == 12 + 3 * number


def test_records_past_their_retention_are_told_of_once_they_are_published(
    bundles: BundleWriter, log: SparkLog, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    log.alter_topic("orders", {"retention.ms": "1000"})
    caplog.clear()
    old = [NOW_MS - 2_000] * 4
    parts = [orders(log, 0), orders(log, 1, data=batch([b"v"] * 4, timestamps=old))]
    store.hook = failing("write", FULL)
    assert offsets(bundles.write(parts)) == ["STORAGE_FULL"] * 2
    assert caplog.messages == []
    store.hook = None
    for _ in range(2):
        bundles.write(parts)
    assert caplog.messages == [past_retention_text({"orders": 4})]
    assert caplog.records[0].name == "sparklog_server.publish"
    log.alter_topic("orders", {"retention.ms": "-1"})
    assert isinstance(log.clock, ManualClock)
    log.clock.advance_ms(INTERVAL_MS)
    bundles.write(parts)
    assert len(caplog.messages) == 1


def test_order_in_a_partition_is_the_order_of_parts(bundles: BundleWriter, log: SparkLog) -> None:
    tid = log.image.topic("orders").topic_id
    bundles.write([part(batch([b"%d" % n]), topic_id=tid) for n in range(50)])
    assert values(log) == [b"%d" % n for n in range(50)]


def test_producers_do_not_share_an_extent(bundles: BundleWriter, log: SparkLog) -> None:
    outcomes = bundles.write(
        [
            orders(log, producer=(1, 0, 0)),
            orders(log, producer=(1, 0, 2)),
            orders(log, producer=(2, 0, 0)),
            orders(log),
            orders(log, producer=(1, 0, 4)),
            orders(log, producer=(1, 1, 0)),
        ]
    )
    assert offsets(outcomes) == [0, 2, 4, 6, 8, 10]
    extents = log.image.partition("orders", 0).extents
    assert [(e.producer_id, e.producer_epoch, e.base_sequence, e.record_count) for e in extents] == [
        (1, 0, 0, 4),
        (2, 0, 0, 2),
        (-1, -1, -1, 2),
        (1, 0, 4, 2),
        (1, 1, 0, 2),
    ]


def test_a_bad_part_fails_alone(bundles: BundleWriter, log: SparkLog) -> None:
    bundles.write([orders(log, producer=(1, 5, 0))])
    outcomes = bundles.write(
        [
            orders(log, producer=(1, 5, 2)),
            orders(log, producer=(1, 5, 9)),  # a gap
            orders(log, producer=(1, 4, 4)),  # an old epoch
            orders(log, producer=(1, 6, 3)),  # a new epoch that does not begin at 0
            part(topic_id="Z" * 22, topic="gone"),
            orders(log, 3),
            orders(log, producer=(1, 5, 4)),
            orders(log, 1),
        ]
    )
    assert offsets(outcomes) == [
        2,
        "OUT_OF_ORDER_SEQUENCE",
        "PRODUCER_FENCED",
        "OUT_OF_ORDER_SEQUENCE",
        "TOPIC_MISSING",
        "PARTITION_MISSING",
        4,
        0,
    ]
    assert log.log_end_offset("orders", 0) == 6


def test_nothing_to_write_is_no_commit(bundles: BundleWriter, log: SparkLog) -> None:
    bundles.write([orders(log, producer=(1, 0, 0))])
    before = log.image.commit
    outcomes = bundles.write([orders(log, producer=(1, 0, 0)), part(topic_id="Z" * 22)])
    assert offsets(outcomes) == [0, "TOPIC_MISSING"]
    assert log.image.commit == before
    assert bundles.write([]) == []


# --- duplicates --------------------------------------------------------------------------------------


def test_duplicates_get_the_offset_of_the_first_time(bundles: BundleWriter, log: SparkLog) -> None:
    for sequence in range(0, 40, 2):  # more than the five batches that Kafka remembers
        bundles.write([orders(log, producer=(1, 0, sequence)), orders(log)])
    for sequence in range(0, 40, 2):
        (outcome,) = bundles.write([orders(log, producer=(1, 0, sequence))])
        assert (outcome.base_offset, outcome.duplicate) == (2 * sequence, True)
    assert log.log_end_offset("orders", 0) == 80


def test_duplicates_after_a_restart(
    bundles: BundleWriter, log: SparkLog, store: MemoryStore, clock: ManualClock
) -> None:
    bundles.write([orders(log), orders(log, producer=(1, 3, 0)), orders(log, producer=(1, 3, 2))])
    log.metadata.write_snapshot()
    store.crash()
    with opened(store, clock) as again:
        writer = BundleWriter(
            again, BrokerEpoch.register(again.metadata, 1), lambda topic: TopicConfig.parse(topic.configs)
        )
        outcomes = writer.write([orders(again, producer=(1, 3, 2)), orders(again, producer=(1, 3, 4))])
        assert offsets(outcomes) == [4, 6]
        assert [outcome.duplicate for outcome in outcomes] == [True, False]


def test_duplicates_within_a_bundle(bundles: BundleWriter, log: SparkLog) -> None:
    """A producer that repeats what is still under way, over another connection."""
    bundles.write([orders(log)])
    first, second = orders(log, producer=(1, 0, 0)), orders(log, producer=(1, 0, 2))
    outcomes = bundles.write([first, second, first, second, orders(log, producer=(1, 0, 4))])
    assert offsets(outcomes) == [2, 4, 2, 4, 6]
    assert [outcome.duplicate for outcome in outcomes] == [False, False, True, True, False]
    assert log.log_end_offset("orders", 0) == 8


def test_part_of_a_batch_is_no_duplicate(bundles: BundleWriter, log: SparkLog) -> None:
    bundles.write([orders(log, producer=(1, 0, 0), count=4)])
    outcomes = bundles.write([orders(log, producer=(1, 0, 2), count=4)])
    assert offsets(outcomes) == ["OUT_OF_ORDER_SEQUENCE"]


def test_duplicate_whose_extent_is_gone(bundles: BundleWriter, log: SparkLog) -> None:
    """Retention has removed it. To clients "duplicate" would mean success, so that is never guessed."""
    from sparklog.metadata import plan_advance_log_start

    bundles.write([orders(log, producer=(1, 0, 0))])
    topic_id = log.image.topic("orders").topic_id
    advance = plan_advance_log_start(log.image, topic_id, 0, 2)
    assert advance is not None
    log.metadata.publish(lambda image: [advance])
    (outcome,) = bundles.write([orders(log, producer=(1, 0, 0))])
    assert offsets([outcome]) == ["OUT_OF_ORDER_SEQUENCE"]
    assert outcome.log_start_offset == 2


def test_a_duplicate_keeps_its_log_append_time(bundles: BundleWriter, log: SparkLog) -> None:
    import dataclasses

    log.alter_topic("orders", {"message.timestamp.type": "LogAppendTime"})
    first = orders(log, producer=(1, 0, 0), message_timestamp_type="LogAppendTime")
    (outcome,) = bundles.write([first])
    (repeated,) = bundles.write(
        [dataclasses.replace(first, log_append_time_ms=first.log_append_time_ms + 99)]
    )
    assert repeated.log_append_time_ms == outcome.log_append_time_ms == first.log_append_time_ms


def test_sequences_wrap(bundles: BundleWriter, log: SparkLog) -> None:
    last = 2**31 - 1
    outcomes = bundles.write(
        [
            orders(log, producer=(1, 0, last - 3)),
            orders(log, producer=(1, 0, last - 1)),
            orders(log, producer=(1, 0, 0)),
        ]
    )
    assert offsets(outcomes) == [0, 2, 4]
    assert len(log.image.partition("orders", 0).extents) == 1
    outcomes = bundles.write([orders(log, producer=(1, 0, 0)), orders(log, producer=(1, 0, 2))])
    assert offsets(outcomes) == [4, 6]


def test_a_batch_across_the_wrap(bundles: BundleWriter, log: SparkLog) -> None:
    producer = (1, 0, 2**31 - 1)
    assert offsets(bundles.write([orders(log, producer=producer), orders(log, producer=(1, 0, 1))])) == [0, 2]
    assert offsets(bundles.write([orders(log, producer=producer)])) == [0]


# --- failures ----------------------------------------------------------------------------------------


def failing(operation: str, error: Exception, after: int = 0) -> Callable[[str, str], None]:
    left = [after]

    def hook(found: str, name: str) -> None:
        if found == operation and (operation != "put_if_absent" or "__cluster_metadata" in name):
            left[0] -= 1
            if left[0] < 0:
                raise error

    return hook


FULL = StorageError("STORAGE_FULL", "no space", fix="make some")
FATAL = FatalStorageError("DURABILITY_UNKNOWN", "fsync failed", fix="stop")


def failing_writes(*fails: bool) -> Callable[[str, str], None]:
    """Writes of batches fail one after the other as said here; all later ones fail, too."""
    left = list(fails)

    def hook(operation: str, name: str) -> None:
        if operation == "write" and name.endswith(".log") and (left.pop(0) if left else True):
            raise FULL

    return hook


def test_full_disk_fails_what_could_not_be_written(
    bundles: BundleWriter, log: SparkLog, store: MemoryStore
) -> None:
    """There is no room for all of it together, but for the first of three partitions."""
    store.hook = failing_writes(True, False)
    parts = [orders(log, 0, producer=(1, 0, 0)), orders(log, 1), orders(log, 2), orders(log, 1)]
    outcomes = bundles.write(parts)
    assert offsets(outcomes) == [0, "STORAGE_FULL", "STORAGE_FULL", "STORAGE_FULL"]
    assert [log.log_end_offset("orders", partition) for partition in range(3)] == [2, 0, 0]
    store.hook = None
    assert offsets(bundles.write(parts)) == [0, 0, 0, 2]
    assert outcomes[0].duplicate is False


def test_a_bundle_is_one_write_for_each_segment(
    bundles: BundleWriter, log: SparkLog, store: MemoryStore
) -> None:
    log.create_topic("apart", 2, {"sparklog.segment.apart": "true"})
    writes: list[str] = []
    store.hook = lambda operation, name: (
        writes.append(name) if operation == "write" and name.endswith(".log") else None
    )
    clicks = [part(topic_id=log.image.topic("clicks").topic_id, topic="clicks", partition=p) for p in (0, 1)]
    apart = [part(topic_id=log.image.topic("apart").topic_id, topic="apart", partition=p) for p in (0, 1)]
    outcomes = bundles.write([*apart, orders(log), *clicks, orders(log, 1), orders(log)])
    assert offsets(outcomes) == [0, 0, 0, 0, 0, 0, 2]
    assert len(set(writes)) == 2
    assert len(writes) <= 3  # topics come in the order of their ids
    assert values(log, "clicks", 1) == [b"clicks-1-0", b"clicks-1-1"]
    assert values(log, "apart", 1) == [b"apart-1-0", b"apart-1-1"]
    assert values(log) == [b"orders-0-0", b"orders-0-1"] * 2


def test_what_there_was_no_room_for_is_never_acknowledged(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real file, on a disk that is full after any number of bytes."""
    room = 0

    def pwritev(fd: int, buffers: Sequence[memoryview], position: int) -> int:
        nonlocal room
        whole = b"".join(buffers)
        if "/segments/" not in os.readlink(
            f"/proc/self/fd/{fd}"
        ):  # a commit: there is another disk for those
            return os.pwrite(fd, whole, position)
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = min(room, len(whole), 150)  # and a little at a time
        room -= count
        return os.pwrite(fd, whole[:count], position)

    def ftruncate(fd: int, size: int) -> None:
        nonlocal room
        room += os.fstat(fd).st_size - size
        os.truncate(fd, size)

    with opened(LocalStore(tmp_path), clock) as log:
        log.create_topic("orders", 3)
        epoch = BrokerEpoch.register(log.metadata, 1)
        bundles = BundleWriter(log, epoch, lambda topic: TopicConfig.parse(topic.configs, {}))
        written = {0: 0, 1: 0, 2: 0}
        seen = set()
        for step in range(0, 1200, 60):
            parts = [orders(log, number, count=2 + number) for number in (2, 0, 1, 0)]
            room = step
            monkeypatch.setattr("os.pwritev", pwritev)
            monkeypatch.setattr("os.ftruncate", ftruncate)
            outcomes = bundles.write(parts)
            monkeypatch.undo()
            for one, outcome in zip(parts, outcomes, strict=True):
                if outcome.error is None:
                    assert outcome.base_offset == written[one.partition]
                    written[one.partition] += one.encoded.record_count
            seen.add(sum(outcome.error is None for outcome in outcomes))
            for number, count in written.items():
                kind = [b"orders-%d-%d" % (number, n) for n in range(2 + number)]
                assert values(log, partition=number) == kind * (count // len(kind))
        assert seen == {0, 2, 3, 4}, "the two of partition 0 come first, together"


def test_a_producers_later_batches_fail_with_its_earlier_ones(
    bundles: BundleWriter, log: SparkLog, store: MemoryStore
) -> None:
    """Else sequence 2 would be there without 0 and 1: the partition does not know the producer yet."""
    # Another producer in between makes three runs. All fail, then the first; others would not.
    left = [2]

    def hook(operation: str, name: str) -> None:
        if operation == "write" and left[0]:
            left[0] -= 1
            raise FULL

    store.hook = hook
    parts = [orders(log, producer=(1, 0, 0)), orders(log), orders(log, producer=(1, 0, 2))]
    assert offsets(bundles.write(parts)) == ["STORAGE_FULL"] * 3
    assert log.log_end_offset("orders", 0) == 0


def test_pipelined_batches_do_not_take_the_place_of_a_failed_first_one(
    bundles: BundleWriter, log: SparkLog, store: MemoryStore
) -> None:
    """The bundles behind the failed one were on their way already when the disk had room again."""
    first, second, third = (orders(log, producer=(1, 0, sequence)) for sequence in (0, 2, 4))
    store.hook = failing("write", FULL)
    assert offsets(bundles.write([first])) == ["STORAGE_FULL"]
    assert offsets(bundles.write([second])) == ["OUT_OF_ORDER_SEQUENCE"]
    store.hook = None
    assert offsets(bundles.write([second, third])) == ["OUT_OF_ORDER_SEQUENCE"] * 2
    assert offsets(bundles.write([orders(log, 1, producer=(1, 0, 2))])) == [0]  # another partition
    assert offsets(bundles.write([orders(log, producer=(2, 0, 2))])) == [0]  # another producer
    assert offsets(bundles.write([first, second, third])) == [2, 4, 6]
    assert offsets(bundles.write([first])) == [2]


def test_a_new_epoch_forgets_the_failed_batch(
    bundles: BundleWriter, log: SparkLog, store: MemoryStore
) -> None:
    store.hook = failing("write", FULL)
    bundles.write([orders(log, producer=(1, 0, 0))])
    store.hook = None
    assert offsets(bundles.write([orders(log, producer=(1, 1, 3))])) == [0]
    assert bundles.floors == {}


def test_failed_batches_are_remembered_within_bounds(
    bundles: BundleWriter, log: SparkLog, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparklog_server.publish.bundle_writer.MAX_FLOORS", 3)
    store.hook = failing("write", FULL)
    for number in range(9):
        bundles.write([orders(log, producer=(number, 0, 0))])
    assert [key[2] for key in bundles.floors] == [6, 7, 8]


def test_failed_fsync_acknowledges_nothing(bundles: BundleWriter, log: SparkLog, store: MemoryStore) -> None:
    before = log.image.commit
    store.hook = failing("sync", FATAL)
    with pytest.raises(FatalStorageError):
        bundles.write([orders(log), orders(log, 1)])
    assert log.refresh().commit == before


def test_sync_that_fails_otherwise_fails_the_bundle(
    bundles: BundleWriter, log: SparkLog, store: MemoryStore
) -> None:
    before = log.image.commit
    store.hook = failing("sync", FULL)
    assert offsets(bundles.write([orders(log), orders(log, 1)])) == ["STORAGE_FULL"] * 2
    store.hook = None
    assert log.refresh().commit == before
    assert offsets(bundles.write([orders(log)])) == [0]


def test_commit_that_cannot_be_written_fails_the_bundle(
    bundles: BundleWriter, log: SparkLog, store: MemoryStore
) -> None:
    store.hook = failing("put_if_absent", FULL)
    assert offsets(bundles.write([orders(log), orders(log, 1)])) == ["STORAGE_FULL"] * 2
    store.hook = None
    assert offsets(bundles.write([orders(log)])) == [0]


def test_crash_between_data_and_commit_leaves_nothing(
    bundles: BundleWriter, log: SparkLog, store: MemoryStore, clock: ManualClock
) -> None:
    bundles.write([orders(log, producer=(1, 0, 0))])

    class Killed(BaseException):
        pass

    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent":
            raise Killed

    store.hook = hook
    with pytest.raises(Killed):
        bundles.write([orders(log, producer=(1, 0, 2))])
    store.hook = None
    store.crash()
    with opened(store, clock) as again:
        assert again.log_end_offset("orders", 0) == 2
        writer = BundleWriter(
            again, BrokerEpoch.register(again.metadata, 1), lambda topic: TopicConfig.parse(topic.configs)
        )
        assert offsets(writer.write([orders(again, producer=(1, 0, 2))])) == [2]


def test_what_was_acknowledged_survives_a_crash(
    bundles: BundleWriter, log: SparkLog, store: MemoryStore, clock: ManualClock
) -> None:
    for number in range(20):
        bundles.write([orders(log, number % 3), orders(log, producer=(1, 0, 2 * number))])
    store.crash()
    with opened(store, clock) as again:
        found = [again.log_end_offset("orders", p) for p in range(3)]
        assert found == [54, 14, 12]
        assert len(values(again, partition=0)) == 54


def test_whoever_caches_is_told_what_was_appended(log: SparkLog, epoch: BrokerEpoch) -> None:
    told: list[tuple[str, int, int, EncodedBatches]] = []
    writer = BundleWriter(
        log,
        epoch,
        lambda topic: TopicConfig.parse(topic.configs),
        lambda *call: told.append(call),
    )
    writer.write([orders(log), orders(log, 1)])
    told.clear()
    writer.write([orders(log, 1), orders(log), orders(log), orders(log, 9)])
    topic_id = log.image.topic("orders").topic_id
    assert [call[:3] for call in told] == [(topic_id, 0, 2), (topic_id, 1, 2)]
    assert [call[3].record_count for call in told] == [4, 2]
    assert told[0][3].base_offset.tolist() == [0, 2]
