"""A client over its quota is answered first, and then nothing is read from it; others are not affected."""

import datetime as dt
import select
import time
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from sparklog.metadata import QuotaEntity, plan_set_quotas
from sparklog_server.protocol.apis import ApiKey
from tests.server.publish.batches import batch
from tests.server.security.requests import REQUESTS, TOPIC
from tests.support.principals import client_of, trust_client_ids
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient

BROKER_SETTINGS = {"quota.window.num": "2", "num.partitions": "1"}
BROKER_TOPICS = {TOPIC: 1}
ALICE: QuotaEntity = (("user", "alice"),)
NEVER = 1e-3  # whoever uses it up waits for longer than a test


@pytest.fixture(autouse=True)
def _principals(running_broker: RunningBroker) -> None:
    trust_client_ids(running_broker)


def limit(running: RunningBroker, **quotas: float | None) -> None:
    running.beside().metadata.publish(lambda image: plan_set_quotas(image, {ALICE: quotas}))
    running.settle()


def produce(client: WireClient, size: int = 10, **fields: Any) -> int:
    request = REQUESTS[ApiKey.PRODUCE]() | fields
    request["topic_data"][0]["partition_data"][0]["records"] = batch([b"x" * size])
    return client.send(ApiKey.PRODUCE, 9, **request)


def is_silent(client: WireClient) -> bool:
    return not select.select([client.socket], [], [], 0.05)[0]


def test_who_has_used_up_a_quota_is_answered_and_then_muted(running_broker: RunningBroker) -> None:
    limit(running_broker, request_percentage=NEVER, producer_byte_rate=1.0)
    with client_of(running_broker, "User:alice") as alice, client_of(running_broker, "User:bob") as bob:
        asked = produce(alice)
        answered, response = alice.receive(ApiKey.PRODUCE, 9)
        assert answered == asked
        assert response.responses[0].partition_responses[0].error_code is ErrorCode.none
        assert response.throttle_time > dt.timedelta(seconds=30)
        produce(alice)
        assert bob.ask(ApiKey.LIST_GROUPS, 4, states_filter=()).throttle_time == dt.timedelta()
        assert is_silent(alice)
    assert running_broker.beside().log_end_offset(TOPIC, 0) == 1
    running_broker.stop()  # it does not wait for who is muted


def test_a_client_that_expects_no_answer_is_muted_too(running_broker: RunningBroker) -> None:
    limit(running_broker, producer_byte_rate=1.0)
    with client_of(running_broker, "User:alice") as alice:
        produce(alice, acks=0)
        alice.send(ApiKey.LIST_GROUPS, 4, states_filter=())
        assert is_silent(alice)


@pytest.mark.slow
def test_a_throttled_fetch_is_empty_and_comes_later(running_broker: RunningBroker) -> None:
    limit(running_broker, consumer_byte_rate=2_000.0)
    fetch = REQUESTS[ApiKey.FETCH]()
    fetch["max_bytes"] = fetch["topics"][0]["partitions"][0]["partition_max_bytes"] = 1_000_000
    with client_of(running_broker, "User:bob") as bob:
        for _ in range(5):
            produce(bob, 900)
            bob.receive(ApiKey.PRODUCE, 9)
    with client_of(running_broker, "User:alice") as alice:
        sizes, waits = [], []
        for _ in range(4):
            answer = alice.ask(ApiKey.FETCH, 12, **fetch)
            sizes.append(sum(len(part.records or b"") for one in answer.responses for part in one.partitions))
            waits.append(answer.throttle_time)
        assert 0 < sizes[0] <= 2_000  # no more than fits into the windows
        assert 0 in sizes
        empty = sizes.index(0)
        assert waits[empty] > dt.timedelta()
        assert sizes[empty + 1] > 0


def test_time_on_the_event_loop_is_metered(running_broker: RunningBroker) -> None:
    limit(running_broker, request_percentage=NEVER)
    with client_of(running_broker, "User:alice") as alice:
        answer = alice.ask(ApiKey.LIST_GROUPS, 4, states_filter=())
        assert answer.throttle_time == dt.timedelta(seconds=1)  # one window at most


def test_mutations_are_refused_with_their_own_error(running_broker: RunningBroker) -> None:
    limit(running_broker, controller_mutation_rate=0.1)
    topic = REQUESTS[ApiKey.CREATE_TOPICS]()["topics"][0]
    topics = [topic | {"name": f"new-{number}", "num_partitions": 3} for number in range(2)]
    request = {"topics": topics, "timeout": 10_000, "validate_only": False}
    with client_of(running_broker, "User:alice") as alice:
        answer = alice.ask(ApiKey.CREATE_TOPICS, 7, **request)
        codes = {one.name: one.error_code for one in answer.topics}
        assert codes == {"new-0": ErrorCode.none, "new-1": ErrorCode.throttling_quota_exceeded}
        assert answer.throttle_time > dt.timedelta()
    with client_of(running_broker, "User:alice") as alice:  # another connection, and an older client
        answer = alice.ask(ApiKey.CREATE_TOPICS, 5, **(request | {"topics": topics[1:]}))
        assert [one.error_code for one in answer.topics] == [ErrorCode.none]
    with client_of(running_broker, "User:alice") as alice:
        (deleted,) = alice.ask(
            ApiKey.DELETE_TOPICS,
            6,
            topics=[{"_": "DeleteTopicState", "name": "new-0", "topic_id": None}],
            timeout=10_000,
        ).responses
        assert deleted.error_code is ErrorCode.throttling_quota_exceeded
    with client_of(running_broker, "User:alice") as alice:
        (grown,) = alice.ask(
            ApiKey.CREATE_PARTITIONS,
            3,
            topics=[{"_": "CreatePartitionsTopic", "name": "new-0", "count": 9, "assignments": None}],
            timeout=10_000,
            validate_only=False,
        ).results
        assert grown.error_code is ErrorCode.throttling_quota_exceeded


def test_an_address_that_connects_too_often_is_refused(running_broker: RunningBroker) -> None:
    def plan(image: Any) -> Any:
        return plan_set_quotas(image, {(("ip", "127.0.0.1"),): {"connection_creation_rate": 2.0}})

    running_broker.beside().metadata.publish(plan)
    running_broker.settle()
    closed = 0
    for _ in range(6):
        with WireClient(running_broker.host, running_broker.port) as client:
            try:
                client.send(ApiKey.LIST_GROUPS, 4, states_filter=())
                closed += client.receive_frame() is None
            except OSError:
                closed += 1
    assert closed >= 2


@pytest.mark.slow
def test_the_rate_holds_for_a_client_that_does_not_wait(running_broker: RunningBroker) -> None:
    """A burst of one second, and then a second for each second's worth."""
    limit(running_broker, producer_byte_rate=200_000.0)
    with client_of(running_broker, "User:alice") as alice:
        began = time.monotonic()
        for _ in range(6):
            produce(alice, 100_000)
            alice.receive(ApiKey.PRODUCE, 9)
        assert time.monotonic() - began > 1.4  # 600 KB: 200 at first, and 100 are answered before they count
