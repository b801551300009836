"""Large answers count from when they are made until they are sent, whichever API's they are."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sparklog_server.protocol.apis import ApiKey
from sparklog_server.protocol.wire import SMALL_BYTES, FileRegion, HeldAnswer, held_bytes
from sparklog_server.runtime.budget import Budget
from tests.support.broker_process import until
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient

Fields = dict[str, Any]
MANY = 1_200


@pytest.fixture
def client(running_broker: RunningBroker) -> Iterator[WireClient]:
    with WireClient(running_broker.host, running_broker.port) as connected:
        yield connected


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What answers have taken so far."""
    sizes: list[int] = []
    take = HeldAnswer.take

    async def noted(answer: HeldAnswer, size: int) -> None:
        sizes.append(size)
        await take(answer, size)

    monkeypatch.setattr(HeldAnswer, "take", noted)
    return sizes


def created(count: int, *, differ: bool = False) -> Fields:
    topics = [
        {"_": "CreatableTopic", "name": f"topic-{number}", "num_partitions": 1, "replication_factor": 1,
         "assignments": [], "configs": configs(number) if differ else []}
        for number in range(count)
    ]  # fmt: skip
    return {"topics": topics, "timeout": 30_000, "validate_only": True}


def misnamed(count: int) -> Fields:
    """Which is quoted in the answer, as the name and in what is wrong with it."""
    fields = created(count)
    for topic in fields["topics"]:
        topic["name"] += "!" * 3_000
    return fields


def configs(number: int) -> list[Fields]:
    return [{"_": "CreatableTopicConfig", "name": "retention.ms", "value": str(1_000 + number)}]


def altered(count: int) -> Fields:
    config = {"_": "AlterableConfig", "name": "a" * 30, "config_operation": 0, "value": "1"}
    resources = [
        {"_": "AlterConfigsResource", "resource_type": 2, "resource_name": f"topic-{number}",
         "configs": [config]}
        for number in range(count)
    ]  # fmt: skip
    return {"resources": resources, "validate_only": True}


def named(count: int) -> Fields:
    topics = [{"_": "MetadataRequestTopic", "name": f"{number:0>60}"} for number in range(count)]
    return {"topics": topics, "allow_auto_topic_creation": False}


ASKED: dict[str, tuple[ApiKey, int, Callable[[int], Fields]]] = {
    "create topics": (ApiKey.CREATE_TOPICS, 5, created),
    "create topics that differ": (ApiKey.CREATE_TOPICS, 5, lambda count: created(count, differ=True)),
    "create topics that are misnamed": (ApiKey.CREATE_TOPICS, 5, misnamed),
    "alter settings": (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, altered),
    "topics by name": (ApiKey.METADATA, 9, named),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_large_answer_counts(
    name: str, client: WireClient, taken: list[int], running_broker: RunningBroker
) -> None:
    key, version, fields = ASKED[name]
    client.ask(key, version, **fields(2))
    assert taken == []
    client.send(key, version, **fields(MANY))
    frame = client.receive_frame()
    assert frame is not None
    (size,) = taken
    assert size > SMALL_BYTES
    if name != "create topics":  # settings that all topics have in common are held once
        assert size > len(frame) - 200  # header, brokers
    until(lambda: running_broker.broker.dispatcher.answers.used_bytes == 0, what="it is given back")


def test_a_large_answer_waits_for_those_before_it(client: WireClient, running_broker: RunningBroker) -> None:
    key, version, fields = ASKED["alter settings"]
    answers: Budget = running_broker.broker.dispatcher.answers
    before = HeldAnswer(answers)
    running_broker.call(before.take(answers.limit_bytes))
    other = HeldAnswer(answers)
    running_broker.call(other.take(1))  # one may overdraw
    client.send(key, version, **fields(MANY))
    until(lambda: answers.waiting == 1, what="it waits")
    running_broker.call_soon(before.release)
    assert client.receive_frame() is not None
    running_broker.call_soon(other.release)


def test_what_is_sent_again_and_again_is_held_once() -> None:
    shared = bytes(1_000)
    assert held_bytes([shared, bytearray(10), shared, FileRegion(0, 0, 1 << 30), shared]) == 1_010
