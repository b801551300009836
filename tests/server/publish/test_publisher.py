"""Gathering: order, group commits, push-back, failures, stopping."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import InvalidRequestError, RetriableError
from sparklog.metadata import Background, CreateTopic, MetadataLog, MetadataSettings, plan_create_topic
from sparklog.storage import MemoryStore
from sparklog_server.publish.backlog import SHARE_BYTES, Submission, shares_of
from sparklog_server.publish.parts import AppendPart, PartOutcome
from sparklog_server.publish.produced_batches import SMALL_BYTES, UncheckedPart
from sparklog_server.publish.publisher import BLOCK_IDS, ProducerIds
from tests.server.publish.batches import FakePart, batch, part
from tests.server.publish.surroundings import Surroundings
from tests.support.roots import opened

Scenario = Callable[[Surroundings], Coroutine[Any, Any, None]]


def run(log: SparkLog, scenario: Scenario, **configs: str) -> Surroundings:
    surroundings = Surroundings(log, **configs)

    async def main() -> None:
        async with surroundings.running():
            await asyncio.wait_for(scenario(surroundings), 60)

    asyncio.run(main())
    return surroundings


def orders(log: SparkLog, partition: int = 0, data: bytes | None = None, **fields: Any) -> AppendPart:
    return part(data, topic_id=log.image.topic("orders").topic_id, partition=partition, **fields)


class Gate:
    """Holds the publisher in its fsync, or a checker in its work, until opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()

    def wait(self) -> None:
        self.reached.set()
        assert self.open.wait(60)

    def hook(self, operation: str, name: str) -> None:
        if operation == "sync":
            self.wait()

    async def until_reached(self) -> None:
        await asyncio.to_thread(self.reached.wait, 20)


def test_one_part(log: SparkLog) -> None:
    async def scenario(broker: Surroundings) -> None:
        (outcome,) = await broker.publisher.submit([orders(log)])
        assert outcome == PartOutcome(base_offset=0, log_start_offset=0)
        assert await broker.publisher.submit([]) == []

    broker = run(log, scenario)
    assert log.log_end_offset("orders", 0) == 2
    assert broker.appended == [(log.image.topic("orders").topic_id, 0, 0, 2)]
    assert broker.shown >= 2
    assert broker.metrics.all_topics.messages_in == 2
    assert broker.publisher.pending_bytes == broker.publisher.pending_submissions == 0
    assert log.image.brokers[7].listeners[0].port == 9092


def test_what_comes_during_a_commit_makes_the_next_one(log: SparkLog, store: MemoryStore) -> None:
    gate = Gate()

    async def scenario(broker: Surroundings) -> None:
        store.hook = gate.hook
        first = broker.publisher.submit([orders(log)])
        await gate.until_reached()
        others = [broker.publisher.submit([orders(log, number % 3)]) for number in range(30)]
        before = log.image.commit
        gate.open.set()
        assert (await first)[0].base_offset == 0
        results = await asyncio.gather(*others)
        assert [outcome.base_offset for (outcome,) in results[::3]] == list(range(2, 22, 2))
        assert log.image.commit == before + 2

    run(log, scenario)


@pytest.mark.parametrize("size", [1, SMALL_BYTES + 1])
def test_order_of_submit_whatever_validation_takes(log: SparkLog, size: int) -> None:
    gate = Gate()

    async def scenario(broker: Surroundings) -> None:
        slow = orders(log, 0, batch([b"slow"]))

        def check() -> AppendPart:
            gate.wait()
            return slow

        # The publisher must not be who waits at the gate: a large part goes to a checker.
        first = broker.publisher.submit([FakePart.like(slow, check, SMALL_BYTES + 1)])
        await gate.until_reached()
        behind = broker.publisher.submit([FakePart.like(orders(log, 0, batch([b"quick"])), size=size)])
        beside = broker.publisher.submit([FakePart.like(orders(log, 1), size=size)])
        (outcome,) = await beside  # another partition does not wait
        assert outcome.base_offset == 0
        assert not behind.done()
        gate.open.set()
        assert [(await one)[0].base_offset for one in (first, behind)] == [0, 1]

    run(log, scenario)
    assert log.read("orders", 0, 0).column("value").to_pylist() == [b"slow", b"quick"]


def test_pipelined_producer_with_validation_of_all_sizes(log: SparkLog) -> None:
    async def scenario(broker: Surroundings) -> None:
        futures = []
        for number in range(200):
            ready = orders(log, producer=(1, 0, 2 * number))
            size = SMALL_BYTES + 1 if number % 3 else 1
            futures.append(broker.publisher.submit([FakePart.like(ready, size=size)]))
            if number % 10 == 0:
                await asyncio.sleep(0)
        results = await asyncio.gather(*futures)
        assert [outcome.base_offset for (outcome,) in results] == list(range(0, 400, 2))

    run(log, scenario)


def test_large_requests_are_shared_among_checkers(log: SparkLog) -> None:
    """The first part's validation waits for the second's: they must not be the same thread's."""
    second = threading.Event()

    def wait() -> AppendPart:
        assert second.wait(60)
        return orders(log)

    def pass_on() -> AppendPart:
        second.set()
        return orders(log)

    async def scenario(broker: Surroundings) -> None:
        parts = [FakePart.like(orders(log), check, SHARE_BYTES) for check in (wait, pass_on)]
        outcomes = await broker.publisher.submit(parts)
        assert [outcome.base_offset for outcome in outcomes] == [0, 2]

    run(log, scenario)


def test_shares_keep_the_order_and_leave_out_nothing(log: SparkLog) -> None:
    def shares(*sizes: int) -> list[list[int]]:
        """Parts of these sizes; 0: validated already."""
        parts: list[AppendPart | UncheckedPart] = [
            FakePart.like(orders(log), size=size) if size else orders(log) for size in sizes
        ]
        with contextlib.closing(asyncio.new_event_loop()) as loop:
            submission = Submission(parts, loop.create_future(), sum(sizes))
        return [[index for _, index in share] for share in shares_of(submission)]

    half = SHARE_BYTES // 2
    assert shares(1, SHARE_BYTES, 1, 1, half, half, 5) == [[0, 1], [2, 3, 4, 5], [6]]
    assert shares(0, SHARE_BYTES, 0, 1, 0, 1) == [[1], [3, 5]]
    assert shares(0) == shares() == []


def test_bad_parts_fail_alone(log: SparkLog) -> None:
    refused = InvalidRequestError("INVALID_BATCH", "bad", fix="none")

    def refuse() -> AppendPart:
        raise refused

    def bug() -> AppendPart:
        raise ZeroDivisionError

    async def scenario(broker: Surroundings) -> None:
        good = orders(log)
        outcomes = await broker.publisher.submit(
            [
                FakePart.like(good),
                FakePart.like(good, refuse),
                FakePart.like(good, bug),
                part(topic_id="Z" * 22),
                good,
            ]
        )
        errors = [type(outcome.error) for outcome in outcomes]
        assert [kind.__name__ for kind in errors] == [
            "NoneType",
            "InvalidRequestError",
            "ZeroDivisionError",
            "UnknownTopicError",
            "NoneType",
        ]
        assert [outcome.base_offset for outcome in outcomes] == [0, -1, -1, -1, 2]
        only_bad = await broker.publisher.submit([FakePart.like(good, refuse)])
        assert only_bad[0].error is refused

    run(log, scenario)


@pytest.mark.parametrize(("key", "expected"), [("parts", 3), ("bytes", 2)])
def test_commits_are_bounded(log: SparkLog, store: MemoryStore, key: str, expected: int) -> None:
    gate = Gate()
    one = orders(log, 0, batch([b"v" * 400]))
    limits = {"parts": "3", "bytes": str(max(1024, 2 * one.size_bytes))}

    async def scenario(broker: Surroundings) -> None:
        store.hook = gate.hook
        futures = [broker.publisher.submit([one])]
        await gate.until_reached()
        futures += [broker.publisher.submit([one]) for _ in range(6)]
        huge = broker.publisher.submit([one] * 5)  # more than a group commit may have: one by itself
        before = log.image.commit
        gate.open.set()
        await asyncio.gather(*futures)
        assert len(await huge) == 5
        assert log.image.commit == before + 1 + 6 // expected + 1

    run(log, scenario, **{f"sparklog_publish_commit_{key}": limits[key]})


def test_push_back(log: SparkLog, store: MemoryStore) -> None:
    gate = Gate()

    async def scenario(broker: Surroundings) -> None:
        store.hook = gate.hook
        first = broker.publisher.submit([orders(log)])
        await gate.until_reached()
        second = broker.publisher.submit([orders(log)])
        with pytest.raises(RetriableError, match="PUBLISH_BACKLOG_FULL"):
            await broker.publisher.submit([orders(log)])
        gate.open.set()
        await asyncio.gather(first, second)
        await broker.publisher.submit([orders(log)])

    run(log, scenario, sparklog_publish_backlog_requests="2")


def test_push_back_by_bytes(log: SparkLog, store: MemoryStore) -> None:
    gate = Gate()

    async def scenario(broker: Surroundings) -> None:
        store.hook = gate.hook
        large = orders(log, 0, batch([b"v" * 5000]))
        first = broker.publisher.submit([large])  # larger than the bound, but alone
        await gate.until_reached()
        with pytest.raises(RetriableError, match="PUBLISH_BACKLOG_FULL"):
            await broker.publisher.submit([orders(log)])
        gate.open.set()
        await first

    run(log, scenario, sparklog_publish_backlog_bytes="1024")


def test_lingering_only_under_load(log: SparkLog, store: MemoryStore) -> None:
    """With an hour of linger an idle publisher still answers at once, and a busy one when all are back."""
    gate = Gate()

    async def scenario(broker: Surroundings) -> None:
        await broker.publisher.submit([orders(log)])  # idle: no group commit before that could be waited for
        store.hook = gate.hook
        first = broker.publisher.submit([orders(log)])
        await gate.until_reached()
        several = [broker.publisher.submit([orders(log)]) for _ in range(3)]
        gate.open.set()
        await asyncio.gather(first, *several)
        before = log.image.commit
        again = [broker.publisher.submit([orders(log)]) for _ in range(2)]
        await asyncio.sleep(0)
        again.append(broker.publisher.submit([orders(log)]))  # as many as before: no more waiting
        await asyncio.gather(*again)
        assert log.image.commit == before + 1

    run(log, scenario, sparklog_publish_linger_ms="60000")


# --- plans -------------------------------------------------------------------------------------------


def test_plans_are_published_and_fail_by_themselves(log: SparkLog) -> None:
    async def scenario(broker: Surroundings) -> None:
        futures = [broker.publisher.submit([orders(log)])]
        made = broker.publisher.submit_plan(
            lambda image: [plan_create_topic(image, "new", 1, topic_id="N" * 22)]
        )
        taken = broker.publisher.submit_plan(
            lambda image: [plan_create_topic(image, "orders", 1, topic_id="M" * 22)]
        )
        nothing = broker.publisher.submit_plan(lambda image: [])
        futures.append(broker.publisher.submit([orders(log)]))
        assert [(await one)[0].base_offset for one in futures] == [0, 2]
        assert CreateTopic in map(type, (await made).actions)
        with pytest.raises(InvalidRequestError, match="TOPIC_EXISTS"):
            await taken
        assert (await nothing).actions == ()

    assert run(log, scenario).failures == []
    assert "new" in log.image.topics


def test_producer_ids_are_never_handed_out_twice(
    log: SparkLog, store: MemoryStore, clock: ManualClock
) -> None:
    seen: list[int] = []

    async def scenario(broker: Surroundings) -> None:
        ids = ProducerIds(broker.publisher)
        seen.extend(await asyncio.gather(*(ids.allocate() for _ in range(BLOCK_IDS + 5))))

    run(log, scenario)
    with opened(store, clock) as again:
        run(again, scenario)
        assert again.image.next_producer_id == 4 * BLOCK_IDS  # two blocks each, not one per id
    assert len(set(seen)) == len(seen) == 2 * (BLOCK_IDS + 5)
    assert min(seen) == 0


# --- failures ----------------------------------------------------------------------------------------


# --- life --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("log")
def test_snapshots_are_written_beside(store: MemoryStore, clock: ManualClock) -> None:
    """A snapshot that hangs delays nobody."""
    gate = Gate()
    settings = MetadataSettings(snapshot_bytes=2 * 4096)
    metadata = MetadataLog.open(store, clock, settings=settings, upkeep=Background("upkeep"))
    log = SparkLog(store, metadata, clock)

    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent" and ".snapshot/" in name:
            gate.wait()

    async def scenario(broker: Surroundings) -> None:
        store.hook = hook
        for _ in range(6):
            await broker.publisher.submit([orders(log)])
        await gate.until_reached()
        gate.open.set()

    run(log, scenario)
    log.close()
    store.hook = None
    assert any(".snapshot/manifest" in file.name for file in store.list("", recursive=True))


def test_changed_settings_are_noticed(log: SparkLog) -> None:
    async def scenario(broker: Surroundings) -> None:
        publisher = broker.publisher
        topic = log.image.topic("orders")
        rules = broker.rules.rules_of(topic)
        await publisher.submit([orders(log)])
        assert broker.rules.rules_of(log.image.topic("orders")) is rules
        log.alter_topic("orders", {"max.message.bytes": "100"})
        assert broker.rules.rules_of(log.image.topic("orders")).max_message_bytes == 100
        log.alter_root({"message.timestamp.type": "LogAppendTime"})
        assert broker.rules.rules_of(log.image.topic("orders")).log_append_time

    run(log, scenario)
