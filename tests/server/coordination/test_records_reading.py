"""How state logs are read: together what is taken over together, and behind nobody else's reading."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.log.config import TopicConfig
from sparklog.metadata import plan_append
from sparklog.storage.s3 import S3Store
from sparklog_server.coordination.records import Reading, encode_records
from sparklog_server.metrics import Metrics
from sparklog_server.root.live_root import LiveRoot
from tests.server.coordination.toy import LEDGER, PARTITIONS, TOPIC, Entry, Toy, Toys, encode
from tests.support.removing import merge, remove_dead

COMMITS = 20
SECONDS = 60  # for what takes milliseconds


def append_commit(log: SparkLog, entries: Sequence[Entry]) -> None:
    """As a broker's publisher does: all in one object, with one commit."""
    topic_id = log.refresh().topic(TOPIC).topic_id
    drafts = []
    for one in entries:
        draft = log.writer.append(
            topic_id, int(one.name[-1]), encode_records([encode(one)], log.clock.now_ms()), TopicConfig()
        )
        assert draft is not None
        drafts.append(draft)
    log.writer.sync(drafts)
    log.metadata.publish(lambda image: [plan_append(image, drafts)])


async def fill(toy: Toy) -> None:
    for number in range(COMMITS):
        toy.clock.advance_ms(1000)
        append_commit(toy.log, [Entry(f"x{one}", number) for one in range(PARTITIONS)])


def test_who_takes_partitions_over_asks_for_each_object_once(s3_root: str) -> None:
    async def scenario(toy: Toy) -> None:
        store = toy.log.store
        assert isinstance(store, S3Store)
        before = store.requests["get_object"]
        toy.shards.open()
        await toy.settle()
        assert sorted(toy.loaded) == list(range(PARTITIONS))
        assert [toy.amounts(one) for one in range(PARTITIONS)] == [
            {f"x{one}": COMMITS - 1} for one in range(PARTITIONS)
        ]
        assert store.requests["get_object"] - before == COMMITS

    sparklog.open(s3_root, create=True).close()
    toys = Toys(s3_root)
    toys.run(fill)
    toys.run(scenario, opened=False)


@pytest.fixture
def filled(tmp_path: object) -> str:
    toys = Toys(f"{tmp_path}/root")
    sparklog.open(toys.url, create=True).close()
    toys.run(fill)
    return toys.url


def test_nobody_waits_behind_the_threads_of_consumers(filled: str) -> None:
    held = threading.Event()

    async def scenario(log: SparkLog, root: LiveRoot) -> None:
        consumer = asyncio.ensure_future(root.run(held.wait))
        behind = asyncio.ensure_future(root.run(lambda: None))
        reading = Reading(root, LEDGER)
        state = root.image.partition(TOPIC, 1)
        replayed = await asyncio.wait_for(reading.read(state, 0, state.log_end_offset), SECONDS)
        assert replayed.records == [Entry("x1", COMMITS - 1)]
        assert await asyncio.wait_for(root.begin_refresh(), SECONDS) is log.image
        assert not behind.done()
        held.set()
        await asyncio.gather(consumer, behind)

    with sparklog.open(filled) as log:
        root = LiveRoot(log, defaults={}, metrics=Metrics(), storage_threads=1)
        try:
            asyncio.run(scenario(log, root))
        finally:
            held.set()
            root.close()


def test_what_was_merged_since_is_read_where_it_is_now(filled: str) -> None:
    async def scenario(root: LiveRoot) -> None:
        old = root.image
        with sparklog.open(filled) as other:
            merge(other)
            assert remove_dead(other)
        reading = Reading(root, LEDGER)
        states = [old.partition(TOPIC, one) for one in range(PARTITIONS)]
        found = await asyncio.gather(*(reading.read(one, 0, one.log_end_offset) for one in states))
        assert [one.records for one in found] == [
            [Entry(f"x{number}", COMMITS - 1)] for number in range(PARTITIONS)
        ]

    with sparklog.open(filled) as log:
        root = LiveRoot(log, defaults={}, metrics=Metrics(), storage_threads=1)
        try:
            asyncio.run(asyncio.wait_for(scenario(root), SECONDS))
        finally:
            root.close()
