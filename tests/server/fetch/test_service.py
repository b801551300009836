"""What happens between the check and the read, and when somebody leaves meanwhile."""

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from sparklog.log.read_plan import extent_span
from sparklog.metadata import plan_advance_log_start
from sparklog_server.fetch.open_segments import OpenSegments
from sparklog_server.fetch.response import PartitionAnswer
from sparklog_server.fetch.service import _Wanted
from sparklog_server.fetch.sessions import PartitionFetch
from tests.server.fetch.stored import TOPIC, StoredLog, bytes_of, offsets_of, stored_log
from tests.support.running_broker import RunningBroker


def wanted(state: Any, offset: int) -> _Wanted:
    fetch = PartitionFetch(topic=TOPIC, partition=0, offset=offset, max_bytes=1 << 20)
    return _Wanted(fetch, state, PartitionAnswer(topic=TOPIC, partition=0), 1)


def test_segments_that_were_merged_meanwhile_are_found_again(
    broker: RunningBroker, stored: StoredLog
) -> None:
    stored.append(30)
    stored.append(30)
    old = stored.state
    stored.merge()
    for extent in old.extents:
        stored.log.store.delete(extent.segment)
    stored.after_append()
    one = wanted(old, 40)
    found = broker.broker.fetches._read_one(one, 1 << 20, True)
    assert found is not None
    assert offsets_of(bytes_of(found.chunks))[-1] == 59
    assert one.answer.error_code == 0


def test_segments_that_expired_meanwhile_are_out_of_range(broker: RunningBroker, stored: StoredLog) -> None:
    stored.append(30)
    stored.log.close()
    stored.append(30)
    old = stored.state
    action = plan_advance_log_start(stored.log.refresh(), old.topic_id, 0, 30)
    assert action is not None
    stored.log.metadata.publish(lambda _: [action])
    stored.log.store.delete(old.extents[0].segment)
    stored.after_append()
    one = wanted(old, 10)
    assert broker.broker.fetches._read_one(one, 1 << 20, True) is None
    assert one.answer.error_code == 1


def test_a_deleted_topics_segments_are_gone(broker: RunningBroker, stored: StoredLog) -> None:
    stored.append(30)
    old = stored.state
    stored.log.store.delete(old.extents[0].segment)
    stored.log.delete_topic(TOPIC)
    stored.after_append()
    one = wanted(old, 10)
    assert broker.broker.fetches._read_one(one, 1 << 20, True) is None
    assert one.answer.error_code == 56


def test_who_leaves_while_files_are_opened_leaves_none_open(
    broker: RunningBroker, stored: StoredLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.append(2000, value_bytes=200)
    stored.merge()
    stored.after_append()
    service = broker.broker.fetches
    reading, go_on = threading.Event(), threading.Event()
    original = service._read_round

    def slow(*args: Any) -> Any:
        reading.set()
        assert go_on.wait(20)
        return original(*args)

    monkeypatch.setattr(service, "_read_round", slow)

    def give_back(released: asyncio.Event) -> Any:
        loop, give = asyncio.get_running_loop(), service.reader.segments._give_back

        def count(held: Any) -> None:
            give(held)
            if held.leases == 0:
                loop.call_soon_threadsafe(released.set)

        return count

    async def leave() -> None:
        fetch = PartitionFetch(topic=TOPIC, partition=0, offset=0, max_bytes=1 << 20)
        task = asyncio.create_task(service.fetch([fetch], min_bytes=1, max_bytes=1 << 20, max_wait_ms=0))
        assert await asyncio.to_thread(reading.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        released = asyncio.Event()
        monkeypatch.setattr(service.reader.segments, "_give_back", give_back(released))
        go_on.set()
        await released.wait()

    broker.call(leave())
    assert service.in_flight_bytes == 0


# --- open segments -----------------------------------------------------------------------------------


def test_a_leased_segment_outlives_being_pushed_out(tmp_path: Path) -> None:
    with stored_log(tmp_path / "log") as stored:
        for _ in range(3):
            stored.append(1)
            stored.log.close()
        spans = [extent_span(TOPIC, extent) for extent in stored.state.extents]
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
