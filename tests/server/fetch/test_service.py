"""What happens between the check and the read, and when somebody leaves meanwhile."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from sparklog.clock import ManualClock
from sparklog.errors import DataLossError
from sparklog.log.read_plan import extent_span
from sparklog.log.segment_file import Span
from sparklog.metadata import plan_advance_log_start
from sparklog.storage import MemoryStore, StoreTraits
from sparklog_server.cluster.leadership import Leadership
from sparklog_server.fetch.reader import Lease, OpenSegments, StoredReader
from sparklog_server.fetch.service import Fetched
from sparklog_server.fetch.sessions import PartitionAnswer, PartitionFetch
from tests.server.fetch.stored import TOPIC, StoredLog, bytes_of, offsets_of, stored_log
from tests.support.roots import opened
from tests.support.running_broker import RunningBroker


class HeldFetch:
    """A fetch whose partition was checked, and whose first read of the storage waits for `go_on`."""

    def __init__(self, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.service = broker.broker.fetches
        self.go_on = threading.Event()
        self._reading = threading.Event()
        self._broker = broker
        self._result: Future[Fetched] | None = None
        original = self.service.reader.read

        def read(*args: Any, **options: Any) -> Any:
            self._reading.set()
            assert self.go_on.wait(60)
            return original(*args, **options)

        monkeypatch.setattr(self.service.reader, "read", read)

    def begin(self, offset: int) -> None:
        """Ask for records from `offset` on; returns once the storage is about to be read."""
        self._result = asyncio.run_coroutine_threadsafe(self.fetch(offset), self._broker.loop)
        assert self._reading.wait(60)

    async def fetch(self, offset: int) -> Fetched:
        one = PartitionFetch(topic=TOPIC, partition=0, offset=offset, max_bytes=1 << 20)
        return await self.service.fetch([one], min_bytes=1, max_bytes=1 << 20, max_wait_ms=0)

    async def until_it_reads(self) -> None:
        assert await asyncio.to_thread(self._reading.wait, 20)

    def end(self) -> tuple[PartitionAnswer, bytes]:
        """Let it read; the answer, and the bytes in it."""
        assert self._result is not None
        self.go_on.set()
        fetched = self._result.result(60)
        (answer,) = fetched.answers
        data = bytes_of(answer.chunks)
        self._broker.call_soon(fetched.release)
        return answer, data


@pytest.fixture
def held(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldFetch]:
    fetch = HeldFetch(broker, monkeypatch)
    yield fetch
    fetch.go_on.set()


class LateFile:
    """As an object: that it is missing shows in what is asked of it, not when it is opened."""

    def __init__(self, store: MemoryStore, name: str) -> None:
        self._store, self.name = store, name
        self.descriptor = None

    @property
    def size(self) -> int:
        return self._store.open_read(self.name).size

    def read_into(self, buffer: memoryview, position: int) -> int:
        return self._store.open_read(self.name).read_into(buffer, position)

    def close(self) -> None:
        """Nothing is open."""


class LateStore:
    """A store of such."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.traits = store.traits

    def open_read(self, name: str) -> LateFile:
        return LateFile(self._store, name)


def test_segments_that_were_merged_meanwhile_are_found_again(held: HeldFetch, stored: StoredLog) -> None:
    stored.append(30)
    stored.append(30)
    old = stored.state
    held.begin(40)
    stored.merge()
    for extent in old.extents:
        stored.log.store.delete(extent.segment)
    stored.after_append()
    answer, data = held.end()
    assert offsets_of(data, leader_epoch=stored.state.leadership.leader_epoch)[-1] == 59
    assert answer.error_code == 0


def test_segments_that_expired_meanwhile_are_out_of_range(held: HeldFetch, stored: StoredLog) -> None:
    stored.append(30)
    stored.log.close()
    stored.append(30)
    old = stored.state
    held.begin(10)
    action = plan_advance_log_start(stored.log.refresh(), old.topic_id, 0, 30)
    assert action is not None
    stored.log.metadata.publish(lambda _: [action])
    stored.log.store.delete(old.extents[0].segment)
    stored.after_append()
    answer, data = held.end()
    assert (answer.error_code, data) == (1, b"")


def test_a_deleted_topics_segments_are_gone(held: HeldFetch, stored: StoredLog) -> None:
    stored.append(30)
    held.begin(10)
    stored.log.store.delete(stored.state.extents[0].segment)
    stored.log.delete_topic(TOPIC)
    stored.after_append()
    answer, data = held.end()
    assert (answer.error_code, data) == (3, b"")


def test_who_leaves_while_files_are_opened_leaves_none_open(
    broker: RunningBroker, held: HeldFetch, stored: StoredLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.append(2000, value_bytes=200)
    stored.merge()
    stored.after_append()
    segments = held.service.reader.segments
    release = Lease.release

    async def leave() -> None:
        task = asyncio.create_task(held.fetch(0))
        await held.until_it_reads()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        loop, released = asyncio.get_running_loop(), asyncio.Event()

        def release_and_tell(lease: Lease) -> None:
            release(lease)
            if segments.leases == 0:
                loop.call_soon_threadsafe(released.set)

        monkeypatch.setattr(Lease, "release", release_and_tell)
        held.go_on.set()
        await released.wait()

    broker.call(leave())
    assert held.service.in_flight_bytes == 0


# --- open segments -----------------------------------------------------------------------------------


@contextlib.contextmanager
def three_segments(path: Path) -> Iterator[tuple[StoredLog, list[Span]]]:
    """A log, and what lies in each of its segments."""
    with stored_log(path) as stored:
        for _ in range(3):
            stored.append(1)
            stored.log.close()
        yield stored, [extent_span(TOPIC, extent) for extent in stored.state.extents]


def test_a_leased_segment_outlives_being_pushed_out(tmp_path: Path) -> None:
    with three_segments(tmp_path / "log") as (stored, spans):
        segments = OpenSegments(stored.log.store, limit=1)
        first = segments.lease(spans[0])
        descriptor = first.segment.descriptor
        assert descriptor is not None
        with segments.lease(spans[1]), segments.lease(spans[2]):
            assert len(segments) == 1
        os.fstat(descriptor)
        again = segments.lease(spans[0])  # opened anew: the first is not in the table any more
        assert again.segment is not first.segment
        first.release()
        first.release()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
        segments.close()
        assert again.segment.descriptor is not None
        again.release()
        assert len(segments) == 0


def test_removed_files_are_closed_when_nobody_uses_them(tmp_path: Path) -> None:
    """Else a sweep would make no room on the disk of a broker that has read from them."""
    with three_segments(tmp_path / "log") as (stored, spans):
        segments = OpenSegments(stored.log.store)
        used = segments.lease(spans[0])
        for span in spans[1:]:
            segments.lease(span).release()
        for span in spans[:2]:
            stored.log.store.delete(span.segment)
        segments.close_removed()
        assert len(segments) == 2  # one is used, one is not removed
        used.release()
        segments.close_removed()
        assert len(segments) == 1
        segments.close()


def test_an_object_that_is_gone_is_missing_each_time() -> None:
    """What was opened is kept, and asked for its size before it is read again."""
    store = MemoryStore("gone", traits=StoreTraits(is_remote=True, appends_after_sync=False))
    with opened(store, ManualClock()) as log:
        stored = StoredLog(log)
        stored.append(10)
        (extent,) = stored.state.extents
        reader = StoredReader(store, Leadership(1, log), OpenSegments(LateStore(store)))  # type: ignore[arg-type]
        store.delete(extent.segment)
        for _ in range(2):
            with pytest.raises(DataLossError, match="SEGMENT_MISSING"):
                reader.read(TOPIC, stored.state, 0, max_bytes=1 << 20)
        reader.close()


def test_leases_from_many_threads(tmp_path: Path) -> None:
    with stored_log(tmp_path / "log") as stored:
        for _ in range(4):
            stored.append(1)
            stored.log.close()
        spans = [extent_span(TOPIC, extent) for extent in stored.state.extents]
        segments = OpenSegments(stored.log.store, limit=2)
        before = len(os.listdir("/proc/self/fd"))
        failures: list[BaseException] = []

        def work(start: int) -> None:
            try:
                for number in range(200):
                    span = spans[(start + number * (start + 1)) % 4]
                    with segments.lease(span) as lease:
                        assert len(lease.segment.read_exactly(span, span.position, span.size)) == span.size
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert len(segments) <= 2
        segments.close()
        assert len(os.listdir("/proc/self/fd")) == before
