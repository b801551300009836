"""Looks that hang, and silence that the one who looks shares."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from sparklog.clock import ManualClock
from sparklog.errors import FatalStorageError, StorageError
from sparklog.storage import MemoryStore
from sparklog_server.cluster.liveness import Heartbeat, heartbeat_name, read_heartbeats, say_nothing
from tests.server.cluster.looked import INTERVAL_MS, LOOKS, PATIENCE_MS, SILENT, UNREAD, Looked


@pytest.fixture
def looked(store: MemoryStore, clock: ManualClock) -> Looked:
    return Looked(store, clock)


def hang_once(store: MemoryStore) -> Callable[[], None]:
    """The next request for a heartbeat hangs; returns what ends that."""
    released, has_hung = threading.Event(), threading.Event()

    def hang(_operation: str, name: str) -> None:
        if name == heartbeat_name(SILENT) and not has_hung.is_set():
            has_hung.set()
            released.wait(10)

    store.hook = hang
    return released.set


def test_a_look_that_hangs_delays_no_other(store: MemoryStore, looked: Looked) -> None:
    async def main() -> None:
        release = hang_once(store)
        await looked.look()
        for _ in range(LOOKS + 1):
            assert looked.dead == []
            await looked.look()
        assert looked.dead == [SILENT]
        release()
        looked.looking.stop()

    asyncio.run(main())


def test_a_look_that_was_overtaken_says_nothing(
    store: MemoryStore, clock: ManualClock, looked: Looked
) -> None:
    """What it has found may be older than what is known, and of others than are watched by now."""

    async def main() -> None:
        release = hang_once(store)
        await looked.look()
        looked.watched = [UNREAD]
        for _ in range(LOOKS):
            await looked.look()
        clock.advance_ms(INTERVAL_MS)
        looked.beats += 1
        release()
        await asyncio.sleep(0.05)
        assert looked.dead == []
        await looked.look()
        assert looked.dead == [UNREAD]
        looked.looking.stop()

    asyncio.run(main())


@pytest.mark.slow
def test_so_many_looks_hang_at_most(store: MemoryStore, looked: Looked) -> None:
    released, under_way = threading.Event(), list[str]()

    def hang(_operation: str, name: str) -> None:
        under_way.append(name)
        released.wait(10)

    async def main() -> None:
        store.hook = hang
        for _ in range(20):
            await looked.look()
        assert len(under_way) == 4
        released.set()
        await asyncio.sleep(0.1)
        assert len(under_way) == 4, "none was waiting"
        await looked.look()
        assert len(under_way) == 5
        looked.looking.stop()

    asyncio.run(main())


@pytest.mark.slow
def test_silence_that_is_shared_is_no_evidence(store: MemoryStore, looked: Looked) -> None:
    """Nobody's heartbeat arrives, though the storage can be read: a full disk."""
    heartbeat = Heartbeat(store, SILENT, 0)

    async def main() -> None:
        heartbeat.beat()
        await looked.look()
        for _ in range(2 * LOOKS):
            await looked.look(beats=False)
        await looked.look()  # there is room again, and ours came first
        assert looked.dead == []
        heartbeat.beat()
        await looked.look()
        for _ in range(LOOKS):
            assert looked.dead == []
            await looked.look()
        assert looked.dead == [SILENT]
        looked.looking.stop()

    asyncio.run(main())


def test_an_object_that_cannot_be_read_hides_nobody_elses_death(store: MemoryStore, looked: Looked) -> None:
    """Of whom it is nothing is known: neither that it lives, nor that it is dead."""
    looked.watched = [UNREAD, SILENT]

    def fail(_operation: str, name: str) -> None:
        if name == heartbeat_name(UNREAD):
            raise StorageError("STORAGE_FAILED", "EIO", fix="replace the disk")

    async def main() -> None:
        await looked.look()
        store.hook = fail
        for _ in range(LOOKS):
            assert looked.dead == []
            await looked.look()
        assert looked.dead == [SILENT]
        looked.watched.remove(SILENT)
        store.hook = None
        for _ in range(LOOKS):
            assert looked.dead == [SILENT], "what was counted before the failure counts"
            await looked.look()
        assert looked.dead == [SILENT, UNREAD]
        looked.looking.stop()

    asyncio.run(main())
    assert set(looked.problems) == {f"heartbeats of brokers [{UNREAD}] could not be read"}


def test_an_object_that_hangs_hides_nobody_elses_death(store: MemoryStore, looked: Looked) -> None:
    """Nor is it waited for any longer than that, and so many requests for it hang at most."""
    looked.watched = [UNREAD, SILENT]
    released, asked = threading.Event(), list[str]()

    def hang(_operation: str, name: str) -> None:
        asked.append(name)
        if name == heartbeat_name(UNREAD):
            released.wait(30)

    async def main() -> None:
        await looked.look_to_its_end()
        store.hook = hang
        for _ in range(LOOKS):
            assert looked.dead == []
            await looked.look_to_its_end()
        assert looked.dead == [SILENT]
        for _ in range(LOOKS):
            await looked.look_to_its_end()
        assert asked.count(heartbeat_name(UNREAD)) == 4
        assert asked.count(heartbeat_name(SILENT)) == 2 * LOOKS
        released.set()
        looked.looking.stop()

    asyncio.run(main())
    assert set(looked.problems) == {f"heartbeats of brokers [{UNREAD}] could not be read"}


def test_an_object_that_stays_unreadable_is_replaced(store: MemoryStore, looked: Looked) -> None:
    """Once: a broker that lives writes over it, one that is dead is found dead."""
    written = list[str]()

    def be_damaged(operation: str, name: str) -> None:
        if operation == "put_hint":
            written.append(name)
        elif not written:
            raise StorageError("STORAGE_FAILED", "EIO", fix="replace the disk")

    async def main() -> None:
        await looked.look_to_its_end()
        store.hook = be_damaged
        for _ in range(LOOKS + 1):
            assert written == []
            await looked.look()
        for _ in range(LOOKS):
            assert looked.dead == []
            await looked.look_to_its_end()
        looked.looking.stop()

    asyncio.run(main())
    assert looked.dead == [SILENT]
    assert written == [heartbeat_name(SILENT)]


def test_a_replaced_object_is_no_sign_of_life_and_hides_none(store: MemoryStore) -> None:
    heartbeat = Heartbeat(store, SILENT, 5)
    beats = [heartbeat.beat()]
    say_nothing(store, SILENT, 5)
    (said,) = read_heartbeats(store, [SILENT]).values()
    assert said < beats[0]
    assert said > Heartbeat(store, SILENT, 4).next()
    beats.append(heartbeat.beat())
    assert read_heartbeats(store, [SILENT]) == {SILENT: beats[1]}


def test_objects_of_many_brokers_are_asked_for_together(store: MemoryStore, clock: ManualClock) -> None:
    looked = Looked(store, clock, patience_ms=60_000)
    looked.watched = list(range(10, 18))
    together = threading.Barrier(len(looked.watched))

    def meet(_operation: str, _name: str) -> None:
        together.wait(10)

    async def main() -> None:
        store.hook = meet
        await looked.look_until_the_dead_are_due()

    asyncio.run(main())
    assert looked.dead == looked.watched
    assert looked.problems == []


@pytest.mark.slow
def test_a_storage_that_is_slow_for_all_says_who_is_dead(store: MemoryStore, looked: Looked) -> None:
    """An answer that takes longer than an interval counts, and others may take as long again."""
    looked.watched = [UNREAD, SILENT]
    answers = [threading.Semaphore(0), threading.Semaphore(0)]

    def be_slow(_operation: str, name: str) -> None:
        answers[name == heartbeat_name(SILENT)].acquire(timeout=30)

    async def main() -> None:
        store.hook = be_slow
        for _ in range(LOOKS + 1):
            assert looked.dead == []
            looked.has_ended.clear()
            looked.begin()
            await asyncio.sleep(30 * PATIENCE_MS / 1000)
            for answer in answers:
                answer.release()
                await asyncio.sleep(PATIENCE_MS / 1000)
            await looked.until_ended()
        looked.looking.stop()

    asyncio.run(main())
    assert looked.dead == [UNREAD, SILENT]
    assert looked.problems == []


@pytest.mark.parametrize(
    "error",
    [
        StorageError("STORE_UNAVAILABLE", "no answer", fix="wait"),
        FatalStorageError("WRITER_FAILED", "EIO", fix="replace it"),
        KeyError("a fault"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_look_at_which_the_storage_did_not_answer_is_none(
    error: Exception, store: MemoryStore, looked: Looked
) -> None:
    def fail(_operation: str, _name: str) -> None:
        raise error

    async def main() -> None:
        store.hook = fail
        for _ in range(2 * LOOKS):
            await looked.look()
        looked.looking.stop()

    asyncio.run(main())
    assert looked.dead == []
    is_told = type(error) is StorageError
    assert bool(looked.problems) is is_told
    assert looked.fatal[:1] == ([] if is_told else [error])
