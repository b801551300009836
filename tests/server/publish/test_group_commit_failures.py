"""A group commit of which not all can be written: what is answered then, and what a crash leaves."""

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import FatalStorageError, InvalidRequestError, RetriableError, StorageError
from sparklog.format.encode import EncodedBatches
from sparklog.log.config import TopicConfig
from sparklog.storage import LocalStore, MemoryStore
from sparklog_server.cluster.membership import Registration
from sparklog_server.publish.group_commit import GroupCommitter
from tests.server.publish.batches import part
from tests.server.publish.test_group_commit import FULL, failing, offsets, orders, values
from tests.support.roots import opened
from tests.support.several_brokers import create_led, take_over

FATAL = FatalStorageError("DURABILITY_UNKNOWN", "fsync failed", fix="stop")


def failing_writes(*fails: bool) -> Callable[[str, str], None]:
    """Writes of batches fail one after the other as said here; all later ones fail, too."""
    left = list(fails)

    def hook(operation: str, name: str) -> None:
        if operation == "write" and name.endswith(".log") and (left.pop(0) if left else True):
            raise FULL

    return hook


def test_full_disk_fails_what_could_not_be_written(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore
) -> None:
    """There is no room for all of it together, but for the first of three partitions."""
    store.hook = failing_writes(True, False)
    parts = [orders(log, 0, producer=(1, 0, 0)), orders(log, 1), orders(log, 2), orders(log, 1)]
    outcomes = committer.write(parts)
    assert offsets(outcomes) == [0, "STORAGE_FULL", "STORAGE_FULL", "STORAGE_FULL"]
    assert [log.log_end_offset("orders", partition) for partition in range(3)] == [2, 0, 0]
    store.hook = None
    assert offsets(committer.write(parts)) == [0, 0, 0, 2]
    assert outcomes[0].duplicate is False


def test_a_commit_is_one_write_for_each_segment(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore, registration: Registration
) -> None:
    create_led(log, registration, "apart", 2, {"sparklog.segment.apart": "true"})
    writes: list[str] = []
    store.hook = lambda operation, name: (
        writes.append(name) if operation == "write" and name.endswith(".log") else None
    )
    clicks = [part(topic_id=log.image.topic("clicks").topic_id, topic="clicks", partition=p) for p in (0, 1)]
    apart = [part(topic_id=log.image.topic("apart").topic_id, topic="apart", partition=p) for p in (0, 1)]
    outcomes = committer.write([*apart, orders(log), *clicks, orders(log, 1), orders(log)])
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
        registration = take_over(log)
        committer = GroupCommitter(
            log, lambda: registration, lambda topic: TopicConfig.parse(topic.configs, {})
        )
        written = {0: 0, 1: 0, 2: 0}
        seen = set()
        for step in range(0, 1200, 60):
            parts = [orders(log, number, count=2 + number) for number in (2, 0, 1, 0)]
            room = step
            monkeypatch.setattr("os.pwritev", pwritev)
            monkeypatch.setattr("os.ftruncate", ftruncate)
            outcomes = committer.write(parts)
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
    committer: GroupCommitter, log: SparkLog, store: MemoryStore
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
    assert offsets(committer.write(parts)) == ["STORAGE_FULL"] * 3
    assert log.log_end_offset("orders", 0) == 0


def test_pipelined_batches_do_not_take_the_place_of_a_failed_first_one(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore
) -> None:
    """The group commits behind the failed one were on their way already when the disk had room again."""
    first, second, third = (orders(log, producer=(1, 0, sequence)) for sequence in (0, 2, 4))
    store.hook = failing("write", FULL)
    assert offsets(committer.write([first])) == ["STORAGE_FULL"]
    assert offsets(committer.write([second])) == ["OUT_OF_ORDER_SEQUENCE"]
    store.hook = None
    assert offsets(committer.write([second, third])) == ["OUT_OF_ORDER_SEQUENCE"] * 2
    assert offsets(committer.write([orders(log, 1, producer=(1, 0, 2))])) == [0]  # another partition
    assert offsets(committer.write([orders(log, producer=(2, 0, 2))])) == [0]  # another producer
    assert offsets(committer.write([first, second, third])) == [2, 4, 6]
    assert offsets(committer.write([first])) == [2]


def test_a_first_batch_keeps_its_place_if_the_look_after_a_swept_segment_fails(
    committer: GroupCommitter, log: SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (orders(log, producer=(1, 0, sequence)) for sequence in (0, 2))
    gone = part(topic_id="X" * 22, topic="gone")

    def swept(_drafts: object) -> None:
        raise RetriableError("STAGING_EXPIRED", "swept", fix="again")

    def down(*, force: bool) -> None:
        raise StorageError("STORE_UNAVAILABLE", "503", fix="wait")

    with monkeypatch.context() as patch:
        patch.setattr(log.writer, "sync_each", swept)
        patch.setattr(log, "refresh", down)
        # What is known already is told all the same.
        assert offsets(committer.write([first, gone])) == ["STAGING_EXPIRED", "TOPIC_MISSING"]
    assert offsets(committer.write([second])) == ["OUT_OF_ORDER_SEQUENCE"]
    assert offsets(committer.write([first, second])) == [0, 2]


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("append", InvalidRequestError("APPEND_TOO_LARGE", "too large", fix="send less")),
        ("append", ValueError("a bug")),
        ("append", MemoryError()),
        ("sync", RetriableError("PUBLISH_CONTENDED", "busy", fix="wait")),
        ("decide", KeyError("another")),
        ("registration", OSError(errno.EIO, "the registration cannot be read")),
    ],
)
def test_a_first_batch_keeps_its_place_whatever_goes_wrong(
    committer: GroupCommitter,
    registration: Registration,
    log: SparkLog,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    error: Exception,
) -> None:
    first, second = (orders(log, producer=(1, 0, sequence)) for sequence in (0, 2))
    known = orders(log, 1, producer=(2, 0, 0))
    assert offsets(committer.write([known])) == [0]
    is_broken = True

    def fail(*_args: object, **_fields: object) -> None:
        raise error

    def current() -> Registration:
        if is_broken and where == "registration":
            raise error
        return registration

    writer = GroupCommitter(log, current, lambda topic: TopicConfig.parse(topic.configs, {}))
    with monkeypatch.context() as patch:
        if where == "decide":
            patch.setattr("sparklog_server.publish.group_commit.decide", fail)
        elif where != "registration":
            patch.setattr(log.writer, {"append": "append_together", "sync": "sync_each"}[where], fail)
        with pytest.raises(type(error)):
            writer.write([first, known])
    is_broken = False
    later = orders(log, 1, producer=(2, 0, 2))
    assert offsets(writer.write([second, later])) == ["OUT_OF_ORDER_SEQUENCE", 2]
    assert offsets(writer.write([first, second])) == [0, 2]


def test_a_new_epoch_forgets_the_failed_batch(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore
) -> None:
    store.hook = failing("write", FULL)
    committer.write([orders(log, producer=(1, 0, 0))])
    store.hook = None
    assert offsets(committer.write([orders(log, producer=(1, 1, 3))])) == [0]
    assert committer.floors == {}


@pytest.fixture
def small_memory(
    log: SparkLog, registration: Registration, monkeypatch: pytest.MonkeyPatch
) -> GroupCommitter:
    """It remembers three failed first batches."""
    monkeypatch.setattr("sparklog_server.publish.first_batches.MAX_FLOORS", 3)
    return GroupCommitter(log, lambda: registration, lambda topic: TopicConfig.parse(topic.configs, {}))


def test_failed_batches_are_remembered_within_bounds(
    small_memory: GroupCommitter, log: SparkLog, store: MemoryStore
) -> None:
    store.hook = failing("write", FULL)
    for number in range(9):
        small_memory.write([orders(log, producer=(number, 0, 0))])
    assert [key[2] for key in small_memory.floors] == [6, 7, 8]


def test_a_client_with_many_failed_batches_pushes_out_its_own(
    small_memory: GroupCommitter, log: SparkLog, store: MemoryStore
) -> None:
    first, second = (
        replace(orders(log, producer=(1, 0, sequence)), client="10.0.0.1") for sequence in (0, 2)
    )
    others = [replace(orders(log, producer=(number, 0, 0)), client="10.0.0.2") for number in range(2, 9)]
    store.hook = failing("write", FULL)
    small_memory.write([first, *others])
    store.hook = None
    assert [key[2] for key in small_memory.floors] == [1, 7, 8]
    assert offsets(small_memory.write([second])) == ["OUT_OF_ORDER_SEQUENCE"]


def test_failed_fsync_acknowledges_nothing(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore
) -> None:
    before = log.image.commit
    store.hook = failing("sync", FATAL)
    with pytest.raises(FatalStorageError):
        committer.write([orders(log), orders(log, 1)])
    assert log.refresh().commit == before


def test_sync_that_fails_otherwise_fails_the_commit(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore
) -> None:
    before = log.image.commit
    store.hook = failing("sync", FULL)
    assert offsets(committer.write([orders(log), orders(log, 1)])) == ["STORAGE_FULL"] * 2
    store.hook = None
    assert log.refresh().commit == before
    assert offsets(committer.write([orders(log)])) == [0]


def test_commit_that_cannot_be_written_fails_the_commit(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore
) -> None:
    store.hook = failing("put_if_absent", FULL)
    assert offsets(committer.write([orders(log), orders(log, 1)])) == ["STORAGE_FULL"] * 2
    store.hook = None
    assert offsets(committer.write([orders(log)])) == [0]


def test_crash_between_data_and_commit_leaves_nothing(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore, clock: ManualClock
) -> None:
    committer.write([orders(log, producer=(1, 0, 0))])

    class Killed(BaseException):
        pass

    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent":
            raise Killed

    store.hook = hook
    with pytest.raises(Killed):
        committer.write([orders(log, producer=(1, 0, 2))])
    store.hook = None
    store.crash()
    with opened(store, clock) as again:
        assert again.log_end_offset("orders", 0) == 2
        registration = take_over(again)
        writer = GroupCommitter(again, lambda: registration, lambda topic: TopicConfig.parse(topic.configs))
        assert offsets(writer.write([orders(again, producer=(1, 0, 2))])) == [2]


def test_what_was_acknowledged_survives_a_crash(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore, clock: ManualClock
) -> None:
    for number in range(20):
        committer.write([orders(log, number % 3), orders(log, producer=(1, 0, 2 * number))])
    store.crash()
    with opened(store, clock) as again:
        found = [again.log_end_offset("orders", p) for p in range(3)]
        assert found == [54, 14, 12]
        assert len(values(again, partition=0)) == 54


def test_whoever_caches_is_told_what_was_appended(log: SparkLog, registration: Registration) -> None:
    told: list[tuple[str, int, int, EncodedBatches]] = []
    writer = GroupCommitter(
        log,
        lambda: registration,
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
