"""Who waits until there is room for an answer keeps nobody from being worked on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sparklog_server.protocol.apis import ApiKey
from sparklog_server.protocol.wire import HeldAnswer, Response
from sparklog_server.runtime.budget import Budget
from tests.server.dispatch.test_dispatcher_held_answers import altered, created, named
from tests.server.network.conftest import request, response, serving
from tests.server.network.conftest import until as until_so
from tests.support.broker_process import until
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient

pytestmark = pytest.mark.slow

BROKER_SETTINGS = {"queued.max.requests": "1"}
BROKER_TOPICS = {"wide": 10_000}
Run = Callable[[Any], Any]
Fields = dict[str, Any]
MIB = 1 << 20
ONE_SLOT = {"queued.max.requests": "1", "sparklog.queued.max.response.bytes": str(MIB)}
LARGE = bytes(4 + 10_000)  # a request whose bytes count


def described() -> Fields:
    resources = [
        {"_": "DescribeConfigsResource", "resource_type": 2, "resource_name": f"topic-{number}",
         "configuration_keys": None}
        for number in range(60)
    ]  # fmt: skip
    return {"resources": resources, "include_synonyms": False}


def offsets() -> Fields:
    topics = [{"_": "OffsetFetchRequestTopic", "name": "t", "partition_indexes": list(range(1_000))}]
    return {"group_id": "g", "topics": topics}


def producers() -> Fields:
    return {"topics": [{"_": "TopicRequest", "name": "wide", "partition_indexes": list(range(400))}]}


ASKED: dict[str, tuple[ApiKey, int, Fields]] = {
    "create topics": (ApiKey.CREATE_TOPICS, 5, created(1_200)),
    "alter settings": (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, altered(1_200)),
    "topics by name": (ApiKey.METADATA, 9, named(1_200)),
    "all topics": (ApiKey.METADATA, 9, {"topics": None}),
    "settings": (ApiKey.DESCRIBE_CONFIGS, 1, described()),
    "offsets": (ApiKey.OFFSET_FETCH, 5, offsets()),
    "producers": (ApiKey.DESCRIBE_PRODUCERS, 0, producers()),
    "transactions": (
        ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [f"id-{number}" for number in range(400)]}),
    "list of transactions": (
        ApiKey.LIST_TRANSACTIONS, 0,
        {"state_filters": [f"state-{number}" for number in range(600)], "producer_id_filters": []}),
}  # fmt: skip


@contextmanager
def no_room(broker: RunningBroker) -> Iterator[Budget]:
    """All room for answers is held by others, the one who may go beyond included."""
    answers: Budget = broker.broker.dispatcher.answers
    held = HeldAnswer(answers), HeldAnswer(answers)
    for one in held:
        broker.call(one.take(answers.limit_bytes))
    try:
        yield answers
    finally:
        for one in held:
            broker.call_soon(one.release)


@pytest.mark.parametrize("name", ASKED)
def test_who_waits_for_room_keeps_no_slot(name: str, running_broker: RunningBroker) -> None:
    """Slots have no shares: the answers that one address does not read would take all of them."""
    key, version, fields = ASKED[name]
    slots = running_broker.broker.dispatcher.slots
    host, port = running_broker.host, running_broker.port
    with WireClient(host, port) as client, WireClient(host, port) as other:
        with no_room(running_broker) as answers:
            client.send(key, version, **fields)
            until(lambda: answers.waiting == 1, what="it waits")
            assert not running_broker.call_soon(slots.locked)
            assert other.ask(ApiKey.API_VERSIONS, 2).api_keys
        assert client.receive_frame() is not None
    until(lambda: answers.used_bytes == 0, what="it is given back")
    assert not running_broker.call_soon(slots.locked)


@pytest.mark.parametrize("names", [None, ["wide", "later"]])
def test_metadata_that_had_to_wait_is_told_as_of_then(
    names: list[str] | None, running_broker: RunningBroker
) -> None:
    with WireClient(running_broker.host, running_broker.port) as client, running_broker.beside() as log:
        topics = None if names is None else [{"_": "MetadataRequestTopic", "name": name} for name in names]
        with no_room(running_broker) as answers:
            client.send(ApiKey.METADATA, 9, topics=topics, allow_auto_topic_creation=False)
            until(lambda: answers.waiting == 1, what="it waits")
            log.create_topic("later", partitions=3)
            running_broker.settle()
        told = {one.name: one for one in client.receive(ApiKey.METADATA, 9)[1].topics}
    assert {name: len(one.partitions) for name, one in told.items()} == {"wide": 10_000, "later": 3}


@pytest.mark.parametrize("counts_first", [False, True])
@pytest.mark.parametrize("how", ["answered", "cut off"])
def test_what_a_waiting_request_holds(run: Run, how: str, *, counts_first: bool) -> None:
    """Its bytes, as its body, or an answer that quotes it, is there; they have shares, other than slots."""

    async def handler(_request: Any, context: Any, _broker: Any) -> Response:
        if counts_first:
            await context.answer.hold(MIB)
        return Response(chunks=[bytes(MIB)])

    async def main() -> None:
        async with serving(handler, ONE_SLOT) as served:
            answers, slots = served.dispatcher.answers, served.dispatcher.slots
            before, beyond = HeldAnswer(answers), HeldAnswer(answers)
            await before.take(MIB)
            await beyond.take(MIB)
            clients = [await served.connect() for _ in range(3)]
            for number, (_, writer) in enumerate(clients):
                writer.write(request(number, LARGE))
            await until_so(lambda: answers.waiting == 3)
            assert not slots.locked()
            assert served.network.shared.budget.used_bytes > 3 * 10_000
            if how == "cut off":
                for connection in list(served.network.connections.values()):
                    connection.abort()
                await until_so(lambda: not served.network.connections)
            before.release()
            beyond.release()
            if how == "answered":
                for number, (reader, _) in enumerate(clients):
                    assert (await response(reader))[0] == number

    run(main)


def test_what_turns_out_larger_than_it_was_counted_counts_as_it_is(run: Run) -> None:
    """It is there already: it does not wait, and the next one waits for it."""
    sizes = iter([40 * MIB, MIB])

    async def handler(_request: Any, context: Any, _broker: Any) -> Response:
        await context.answer.hold(100_000)
        return Response(chunks=[bytes(next(sizes))])

    async def main() -> None:
        async with serving(handler, ONE_SLOT) as served:
            answers = served.dispatcher.answers
            large, small = await served.connect(), await served.connect()
            large[1].write(request(1))
            await until_so(lambda: answers.used_bytes >= 40 * MIB)
            beyond = HeldAnswer(answers)
            await beyond.take(1)
            small[1].write(request(2))
            await until_so(lambda: answers.waiting == 1)
            assert (await response(large[0]))[0] == 1
            assert (await response(small[0]))[0] == 2
            beyond.release()

    run(main)
