"""What the root says of a broker's settings, while it runs."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.log.config import broker_key
from sparklog.metadata import SetConfigs
from sparklog.storage import MemoryStore
from sparklog_server.metrics import Metrics
from sparklog_server.root.live_root import LiveRoot, SettingsInForce
from sparklog_server.settings.config import ServerConfig
from tests.support.roots import opened
from tests.support.told import Told


@pytest.fixture
def log() -> Iterator[SparkLog]:
    clock = ManualClock()
    with opened(MemoryStore("root", clock=clock), clock) as log:
        yield log


@pytest.fixture
def root(log: SparkLog) -> Iterator[LiveRoot]:
    root = LiveRoot(log, defaults={}, metrics=Metrics(), storage_threads=1, node_id=1)
    yield root
    root.close()


def store(log: SparkLog, *configs: tuple[int | None, str, str | None]) -> None:
    changed = {broker_key(node_id, name): value for node_id, name, value in configs}
    log.metadata.publish(lambda _image: [SetConfigs(configs=changed)])


def test_who_listens_is_told_of_what_has_changed_for_this_broker(root: LiveRoot, log: SparkLog) -> None:
    store(log, (1, "max.connections", "70"))
    settings = SettingsInForce(ServerConfig.parse({}), root)
    assert settings.current.network.max_connections == 70
    told: list[int] = []
    settings.on_change(lambda new: told.append(new.network.max_connections))
    store(log, (None, "max.connections", "80"))  # the broker has its own
    root.show()
    store(log, (2, "max.connections", "60"))
    root.show()
    log.create_topic("t")
    root.show()
    assert told == []
    store(log, (1, "max.connections", None))
    root.show()
    store(log, (None, "max.connections", None))
    root.show()
    assert told == [80, 10_000]


def test_what_cannot_be_is_told_of_once(root: LiveRoot, log: SparkLog, told: Told) -> None:
    settings = SettingsInForce(ServerConfig.parse({}), root)
    for connections in ("none", "no", "70"):
        for name in ("t", "u"):
            store(log, (1, "max.connections", connections), (1, name, connections))
            root.show()
    warnings = [one for one in told("sparklog_server") if "ignoring a setting" in one]
    assert [one.split("found ")[1].split(",")[0] for one in warnings] == ["'none'", "'no'"]
    assert settings.current.network.max_connections == 70


def test_a_topics_settings_are_this_brokers_where_it_writes(root: LiveRoot, log: SparkLog) -> None:
    log.create_topic("t")
    log.create_topic("u", configs={"segment.bytes": "300"})
    log.alter_root({"segment.bytes": "100", "retention.ms": "100"})
    store(log, (1, "log.segment.bytes", "200"), (1, "log.retention.ms", "200"), (2, "log.roll.ms", "5"))
    found = root.topic_config(root.image.topic("t"))
    assert (found.segment_bytes, found.retention_ms, found.segment_ms) == (200, 100, 604_800_000)
    assert root.topic_config(root.image.topic("u")).segment_bytes == 300


def test_other_storage_threads_do_what_those_before_have_not_begun(root: LiveRoot) -> None:
    async def scenario() -> None:
        held, busy = threading.Event(), threading.Event()

        def hold() -> str:
            busy.set()
            assert held.wait(30)
            return "held"

        first = asyncio.create_task(root.run(hold))
        queued = asyncio.create_task(root.run(lambda: "queued"))
        await asyncio.to_thread(busy.wait, 30)
        root.resize(2)
        both = threading.Barrier(2)
        assert await asyncio.gather(*(root.run(both.wait, 30) for _ in range(2))), "two at once, beside it"
        held.set()
        assert [await first, await queued] == ["held", "queued"]

    asyncio.run(scenario())
    assert root.storage_threads == 2


def test_what_may_take_long_has_half_of_the_storage_threads(root: LiveRoot) -> None:
    async def scenario() -> None:
        begun: list[int] = []
        end = threading.Event()

        def long(number: int) -> None:
            begun.append(number)
            assert end.wait(30)

        root.resize(4)
        all_of_it = [asyncio.create_task(root.run_at_length(long, number)) for number in range(6)]
        both = threading.Barrier(2)
        await asyncio.gather(*(root.run(both.wait, 30) for _ in range(2)))
        assert begun == [0, 1], "the others are there for others"
        end.set()
        await asyncio.gather(*all_of_it)
        assert sorted(begun) == [0, 1, 2, 3, 4, 5]

    asyncio.run(scenario())
