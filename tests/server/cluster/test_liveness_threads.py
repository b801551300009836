"""Looks without threads, and beside requests that hang; what threads do to the times of looks."""

import asyncio
import functools
import threading
from collections import Counter

import pytest

from sparklog.clock import ManualClock
from sparklog.errors import StorageError
from sparklog.storage import MemoryStore
from sparklog_server.cluster.liveness import Heartbeat, heartbeat_name
from tests.server.cluster.looked import INTERVAL_MS, LOOKS, SILENT, UNREAD, Looked, until

HANGING = range(20, 25)
FAILURES = 4  # in a row, after which an object is replaced


class Threads:
    """How many more may be started to look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 1_000
        start = threading.Thread.start

        def limited(thread: threading.Thread) -> None:
            if thread.name.startswith("looking"):
                if not self.left:
                    raise RuntimeError("can't start new thread")
                self.left -= 1
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", limited)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    return Threads(monkeypatch)


@pytest.fixture
def looked(store: MemoryStore, clock: ManualClock) -> Looked:
    return Looked(store, clock)


def unreadable() -> StorageError:
    return StorageError("STORAGE_FAILED", "EIO", fix="replace the disk")


# --- without threads ----------------------------------------------------------------------------------


def test_a_moment_without_threads_is_as_if_nobody_had_looked(threads: Threads, looked: Looked) -> None:
    async def main() -> None:
        threads.left = 0
        for _ in range(3 * LOOKS):  # more often than requests may be under way
            await looked.look_and_hear()
        assert looked.fatal == []
        threads.left = 1_000
        await looked.look_until_the_dead_are_due()

    asyncio.run(main())
    assert looked.dead == [SILENT]
    assert looked.fatal == []
    (problem,) = set(looked.problems)  # the same each time, which is told once
    assert "thread" in problem


def test_who_gets_no_thread_hides_nobody_elses_death(threads: Threads, looked: Looked) -> None:
    looked.watched = [SILENT, UNREAD]

    async def main() -> None:
        for _ in range(LOOKS + 1):
            assert looked.dead == []
            threads.left = 1
            await looked.look_to_its_end()
        looked.looking.stop()

    asyncio.run(main())
    assert looked.dead == [SILENT]
    assert looked.fatal == []
    assert set(looked.problems) == {f"heartbeats of brokers [{UNREAD}] could not be read"}


def test_what_no_thread_could_replace_is_replaced_later(
    store: MemoryStore, threads: Threads, looked: Looked
) -> None:
    written = list[str]()

    def be_damaged(operation: str, name: str) -> None:
        if operation == "put_hint":
            written.append(name)
        elif not written:
            raise unreadable()

    async def main() -> None:
        store.hook = be_damaged
        for _ in range(FAILURES + 2):
            threads.left = 1  # for reading
            await looked.look_and_hear()
        assert written == []
        assert len(set(looked.problems)) == 1, "what alternates is told at every look"
        threads.left = 2
        await looked.look_and_hear()
        await until(lambda: bool(written))
        threads.left = 1_000
        await looked.look_until_the_dead_are_due()

    asyncio.run(main())
    assert looked.dead == [SILENT]
    assert written == [heartbeat_name(SILENT)]
    assert looked.fatal == []


# --- beside requests that hang ------------------------------------------------------------------------


def test_however_many_objects_hang_the_others_are_looked_at(store: MemoryStore, looked: Looked) -> None:
    """And replaced, where they cannot be read."""
    looked.watched = [*HANGING, SILENT, UNREAD]
    hanging = {heartbeat_name(one) for one in HANGING}
    released, asked, written = threading.Event(), Counter[str](), list[str]()
    heartbeat = Heartbeat(store, SILENT, 0)

    def hook(operation: str, name: str) -> None:
        if name in hanging:
            asked[name] += 1
            released.wait(60)
        elif name == heartbeat_name(UNREAD):
            if operation == "put_hint":
                written.append(name)
            elif not written:
                raise unreadable()

    async def main() -> None:
        store.hook = hook
        for _ in range(FAILURES):
            heartbeat.beat()
            await looked.look_to_its_end()
        await until(lambda: bool(written))
        for _ in range(LOOKS):
            assert looked.dead == []
            await looked.look_to_its_end()
        assert looked.dead == [SILENT]
        await looked.look_to_its_end()
        looked.looking.stop()

    try:
        asyncio.run(main())
    finally:
        released.set()
    assert set(looked.dead) == {SILENT, UNREAD}
    assert asked == dict.fromkeys(hanging, 4), "so many requests for one object hang at most"


def test_no_more_than_one_replacing_hangs(store: MemoryStore, looked: Looked) -> None:
    released, written, is_damaged = threading.Event(), list[str](), threading.Event()

    def hook(operation: str, name: str) -> None:
        if operation == "put_hint":
            written.append(name)
            released.wait(60)
        elif is_damaged.is_set():
            raise unreadable()

    async def main() -> None:
        store.hook = hook
        for _ in range(2):
            is_damaged.set()
            for _ in range(FAILURES + 1):
                await looked.look_and_hear()
            await until(lambda: bool(written))
            is_damaged.clear()
            await looked.look_to_its_end()
        assert len(written) == 1
        released.set()
        is_damaged.set()
        async with asyncio.timeout(20):
            while len(written) < 2:
                await looked.look_and_hear()
        looked.looking.stop()

    try:
        asyncio.run(main())
    finally:
        released.set()
    assert looked.dead == []


# --- the times of looks -------------------------------------------------------------------------------


def test_a_look_begun_before_an_answer_came_is_no_later_one(store: MemoryStore, clock: ManualClock) -> None:
    """Of what it found nobody can say that it is newer than that answer, whenever it is told."""
    looked, other = Looked(store, clock, patience_ms=60_000), 20
    looked.watched = [SILENT, other]
    heartbeats = [Heartbeat(store, one, 0) for one in looked.watched]
    asked, gates = Counter[str](), [threading.Event() for _ in range(LOOKS + 1)]

    def hang(_operation: str, name: str) -> None:
        """First the one that is silent hangs, then the other one, at each look."""
        number, asked[name] = asked[name], asked[name] + 1
        if (name == heartbeat_name(SILENT)) == (number == 0):
            gates[number].wait(60)

    def has_asked(times: int) -> bool:
        return asked.total() == times

    async def main() -> None:
        for heartbeat in heartbeats:
            heartbeat.beat()
        store.hook = hang
        for number in range(LOOKS + 1):
            looked.begin()
            await until(functools.partial(has_asked, 2 * (number + 1)))
        for gate in gates:
            clock.advance_ms(INTERVAL_MS)
            looked.beats += 1
            looked.has_ended.clear()
            gate.set()
            await looked.until_ended()
            assert looked.dead == []
        store.hook = None
        for _ in range(LOOKS):
            assert looked.dead == []
            heartbeats[1].beat()
            await looked.look_to_its_end()
        looked.looking.stop()

    try:
        asyncio.run(main())
    finally:
        for gate in gates:
            gate.set()
    assert looked.dead == [SILENT]


@pytest.mark.slow
def test_what_arrives_of_our_own_while_an_object_hangs_is_too_late(
    store: MemoryStore, clock: ManualClock
) -> None:
    """The disk may have been full until then, when the others were read long since."""
    looked = Looked(store, clock, patience_ms=500)
    looked.watched = [SILENT, UNREAD]
    released, asked = threading.Event(), list[str]()
    heartbeats = [Heartbeat(store, one, 0) for one in looked.watched]

    def hang(_operation: str, name: str) -> None:
        asked.append(name)
        if name == heartbeat_name(UNREAD):
            released.wait(60)

    async def main() -> None:
        for heartbeat in heartbeats:
            heartbeat.beat()
        for _ in range(2):  # the second after the disk has become full, and ours has come just before
            await looked.look_to_its_end()
        store.hook = hang
        looked.begin(beats=False)
        await until(lambda: len(asked) == 2)
        looked.beats += 1  # there is room again
        await until(lambda: bool(looked.problems))
        released.set()
        store.hook = None
        await looked.look_to_its_end()  # before the others have written
        assert looked.dead == []
        for heartbeat in heartbeats:
            heartbeat.beat()
        for _ in range(LOOKS):
            assert looked.dead == []
            await looked.look_to_its_end()
        assert looked.dead == []
        await looked.look_to_its_end()
        looked.looking.stop()

    try:
        asyncio.run(main())
    finally:
        released.set()
    assert looked.dead == [SILENT, UNREAD]
