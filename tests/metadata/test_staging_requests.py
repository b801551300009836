"""Brokers that stage for each other: a request says what is a transaction's, and older ones pass over it."""

import json
from collections.abc import Sequence

import pytest

from sparklog.metadata import (
    Action,
    plan_begin_producer,
    plan_end_transaction,
)
from sparklog.metadata.documents.paths import REQUESTS
from sparklog.storage import MemoryStore
from tests.metadata.broker_requests import Broker, accepted, cluster, ends
from tests.metadata.combining_publishers import REMOTE, SleepyClock
from tests.metadata.test_staging_conditions import staged


@pytest.fixture
def clock() -> SleepyClock:
    return SleepyClock()


@pytest.fixture
def store(clock: SleepyClock) -> MemoryStore:
    return MemoryStore("brokers", clock=clock, traits=REMOTE)


@pytest.fixture
def brokers(store: MemoryStore, clock: SleepyClock) -> list[Broker]:
    found = cluster(store, clock, 1, 1, 2)
    found[0].log.publish(lambda image: plan_begin_producer(image, "app", timeout_ms=1_000, now_ms=1).actions)
    return found


def do(broker: Broker, actions: Sequence[Action]) -> None:
    broker.log.publish(lambda _: actions)


def test_another_broker_stages_what_holds(brokers: list[Broker]) -> None:
    one, two, _ = brokers
    parts = [staged(0, 0, opens_ms=5), accepted(1), staged(0, 1, opens_ms=5), staged(1, 5)]
    request = one.leave(parts)
    two.publish([accepted(2)])
    assert ends(two.log) == [0, 1, 1]
    assert two.log.image.has_settled(request.publisher, 0)
    assert two.log.image.transactions["app"].staged_extents == 2
    two.log.publish(
        lambda image: plan_end_transaction(image, "app", 0, 0, committed=True, second=True, now_ms=9).actions
    )
    assert ends(one.log) == [2, 1, 1]


def test_a_request_says_what_it_stages(brokers: list[Broker], store: MemoryStore) -> None:
    brokers[0].leave([staged(0, 0, opens_ms=5), accepted(1)])
    (name,) = [file.name for file in store.list(REQUESTS)]
    _, body = map(json.loads, store.read(name).splitlines())
    assert body["publish"]["staging"] == {"transactional": [1, 0], "opens_ms": [5, -1]}
