"""News of the root, its settings in force, and work in its storage threads."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import StorageError
from sparklog.metadata import Image
from sparklog.storage import MemoryStore
from sparklog_server.metrics import Metrics
from sparklog_server.root.live_root import LiveRoot
from tests.support.roots import opened


@pytest.fixture
def log() -> Iterator[SparkLog]:
    clock = ManualClock()
    store = MemoryStore("root", clock=clock)
    with opened(store, clock) as log:
        yield log


@pytest.fixture
def root(log: SparkLog) -> Iterator[LiveRoot]:
    root = LiveRoot(log, defaults={"num.partitions": "3"}, metrics=Metrics(), storage_threads=1)
    yield root
    root.close()


def test_every_listener_hears_of_every_image_with_the_one_before(
    root: LiveRoot, log: SparkLog, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[int, int]] = []

    def broken(_old: Image, _new: Image) -> None:
        raise KeyError("broken")

    root.on_image(broken)
    root.on_image(lambda old, new: told.append((old.commit, new.commit)))
    start = root.image.commit
    root.show()  # no news
    log.create_topic("a")
    root.show()
    log.create_topic("b")
    log.create_topic("c")
    root.show()
    assert told == [(start, start + 1), (start + 1, start + 3)]
    assert "broken" in caplog.text


def test_the_roots_settings_win_over_the_brokers(root: LiveRoot, log: SparkLog) -> None:
    before = root.image
    assert root.root_config().num_partitions == 3
    log.alter_root({"num.partitions": "5"})
    assert root.root_config().num_partitions == 5
    assert root.root_config(before).num_partitions == 3


def test_a_look_that_fails_is_told_and_shows_nothing(
    root: LiveRoot, log: SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = StorageError("STORE_UNAVAILABLE", "found no storage", fix="wait for it")
    shown: list[int] = []

    def refresh(**_how: bool) -> Image:
        raise failure

    async def main() -> None:
        root.on_image(lambda _, new: shown.append(new.commit))
        with monkeypatch.context() as patch:
            patch.setattr(log, "refresh", refresh)
            assert await root.look() is failure
        assert shown == []
        log.create_topic("a")
        assert await root.look() is None
        assert shown == [root.image.commit]

    asyncio.run(main())


def test_slow_reads_do_not_make_the_root_unavailable(root: LiveRoot) -> None:
    async def scenario() -> bool:
        reading, read = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def slow() -> None:
            loop.call_soon_threadsafe(reading.set)
            read.wait(60)

        busy = asyncio.ensure_future(root.run(slow))  # it has one storage thread
        await reading.wait()
        try:
            return await asyncio.wait_for(root.check_root(), 30)
        finally:
            read.set()
            await busy

    assert asyncio.run(scenario())


def test_who_looks_for_a_root_that_hangs_shares_one_look(
    root: LiveRoot, log: SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scrapes go on coming, and there are few threads."""
    looks, answer = [], threading.Event()

    def hang() -> bool:
        looks.append(1)
        answer.wait(60)
        return True

    monkeypatch.setattr(log, "is_same_root", hang)

    async def scenario() -> list[bool]:
        for _ in range(10):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(root.check_root()), 0.001)
        waiting = [asyncio.shield(root.check_root()) for _ in range(3)]
        answer.set()
        found = list(await asyncio.gather(*waiting))
        return [*found, await root.check_root()]

    assert asyncio.run(scenario()) == [True] * 4
    assert len(looks) == 2


def test_looks_in_order_share_what_began_after_they_were_asked_for(
    root: LiveRoot, log: SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, reached = threading.Event(), threading.Event()
    looks: list[bool] = []
    order: list[int] = []
    refresh = log.refresh

    def slow(*, force: bool = False) -> Image:
        looks.append(force)
        reached.set()
        assert go.wait(60)
        return refresh(force=force)

    async def look(number: int, seconds: float = 60) -> None:
        await root.refresh_in_order(seconds=seconds)
        order.append(number)

    async def run() -> None:
        first = [asyncio.create_task(look(number)) for number in range(2)]
        assert await asyncio.to_thread(reached.wait, 60)
        later = [asyncio.create_task(look(number)) for number in range(2, 5)]
        await look(9, seconds=0.0)
        assert order == [9], "it waits no longer than it may"
        go.set()
        await asyncio.gather(*first, *later)

    monkeypatch.setattr(log, "refresh", slow)
    asyncio.run(run())
    assert order == [9, 0, 1, 2, 3, 4]
    assert looks == [True, True]


def test_a_look_in_order_that_fails_is_not_reported(
    root: LiveRoot, log: SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*, force: bool = False) -> Image:
        raise StorageError("STORAGE_FAILED", "gone", fix="wait")

    async def run() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(log, "refresh", failing)
            await root.refresh_in_order(seconds=60)
        await root.refresh_in_order(seconds=60)

    asyncio.run(run())
