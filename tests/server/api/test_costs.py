"""What one more name in a request costs, in calls of functions: no other load of the machine changes those.

Nobody is authenticated yet, and 64 KB may name thousands. A tenth of a second of CPU for such a request
leaves some 30 us for each name, from its bytes to those of its answer: a few dozen calls.
"""

import asyncio
import collections
import contextlib
import gc
import io
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from kio.index import load_payload_module, load_request_schema
from kio.serial import entity_writer
from kio.static.constants import EntityType

from sparklog_server.groups.offsets import OffsetToCommit
from sparklog_server.protocol.apis import RequestContext
from sparklog_server.protocol.messages import (
    RequestHeader,
    encode_response,
    examine_request,
    message_codec,
)
from sparklog_server.protocol.responses import make
from sparklog_server.protocol.wire import HeldAnswer
from sparklog_server.runtime.budget import Budget
from tests.server.publish.asking import ProducingClient
from tests.server.publish.batches import batch
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import entity

Fields = dict[str, Any]


class Cost(NamedTuple):
    """Calls of functions written in Python, and how often something was given to another thread.

    Fields:
        longest_turn: the most calls, also of others, in one turn of the loop, without those of encoding.
    """

    calls: int
    threads: int
    longest_turn: int


def topics(count: int, kind: str, **fields: Any) -> list[Fields]:
    return [{"_": kind, "name": f"topic-{number}", **fields} for number in range(count)]


def created(count: int, *, configs: list[Fields], partitions: int = 1) -> Fields:
    named = topics(count, "CreatableTopic", num_partitions=partitions, replication_factor=1, assignments=[],
                   configs=configs)  # fmt: skip
    return {"topics": named, "timeout": 30_000, "validate_only": True}


def altered(count: int, key: str, operation: int) -> Fields:
    config = {"_": "AlterableConfig", "name": key, "config_operation": operation, "value": "delete"}
    resources = [
        {"_": "AlterConfigsResource", "resource_type": 2, "resource_name": f"topic-{number}",
         "configs": [config]}
        for number in range(count)
    ]  # fmt: skip
    return {"resources": resources, "validate_only": True}


def numbered(count: int) -> list[str]:
    return [f"name-{number}" for number in range(count)]


def paged(count: int) -> Fields:
    asked = [{"_": "TopicRequest", "name": name} for name in numbered(count)]
    return {"topics": asked, "response_partition_limit": 2_000, "cursor": None}


def described(count: int) -> Fields:
    return {"topics": [{"_": "TopicRequest", "name": "t", "partition_indexes": list(range(count))}]}


FETCHED = {"_": "OffsetFetchRequestTopics", "name": "t", "partition_indexes": [0]}


def fetched(count: int, topics: list[Fields] | None) -> Fields:
    groups = [
        {"_": "OffsetFetchRequestGroup", "group_id": f"group-{number}", "topics": topics}
        for number in range(count)
    ]
    return {"groups": groups, "require_stable": False}


def produced(count: int, records: bytes) -> Fields:
    parts = [{"_": "PartitionProduceData", "index": 0, "records": records}] * count
    asked = [{"_": "TopicProduceData", "name": "topic-0", "partition_data": parts}]
    return {"transactional_id": None, "acks": -1, "timeout": 30_000, "topic_data": asked}


def config(name: str, value: str) -> Fields:
    return {"_": "CreatableTopicConfig", "name": name, "value": value}


REQUESTS: dict[str, tuple[int, int, Callable[[int], Fields], int]] = {
    "create topics": (19, 5, lambda count: created(count, configs=[]), 90),
    "create topics with the default of partitions": (
        19, 5, lambda count: created(count, configs=[], partitions=-1), 90),
    "create topics with a setting": (
        19, 5, lambda count: created(count, configs=[config("retention.ms", "1000")]), 95),
    "create topics with a misspelt setting": (
        19, 5, lambda count: created(count, configs=[config("retention.mx", "1000")]), 150),
    "alter topics that there are not": (44, 1, lambda count: altered(count, "a", 0), 80),
    "append to what topics that there are not have": (
        44, 1, lambda count: altered(count, "cleanup.policy", 2), 80),
    "producers of partitions that there are not": (61, 0, lambda count: described(count), 20),
    "transactions that there are not": (65, 0, lambda count: {"transactional_ids": numbered(count)}, 38),
    "coordinators of transactions": (
        10, 4, lambda count: {"key_type": 1, "coordinator_keys": numbered(count)}, 22),
    "partitions of topics that there are not": (75, 0, lambda count: paged(count), 32),
    "offsets of groups that there are not": (9, 8, lambda count: fetched(count, None), 70),
    "offsets of a partition of groups that there are not": (
        9, 8, lambda count: fetched(count, [FETCHED]), 100),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", REQUESTS)
def test_one_name_more_costs_a_few_cost(name: str, running_broker: RunningBroker) -> None:
    key, version, fields, most = REQUESTS[name]
    running_broker.call(running_broker.broker.groups.ensure_topic())
    _cost(running_broker, key, version, fields(2))  # what is made for the first of a process
    few, many = (_cost(running_broker, key, version, fields(count)).calls for count in (20, 100))
    assert (many - few) / 80 <= most


def test_others_have_turns_while_the_offsets_of_one_group_are_told(running_broker: RunningBroker) -> None:
    """36,000, which 25 bytes ask for, were gone through in one turn of 360 ms."""
    groups = running_broker.broker.groups
    running_broker.call(groups.ensure_topic())
    offsets = [OffsetToCommit(topic=f"t{at % 10}", partition=at, offset=at) for at in range(8_000)]
    assert not running_broker.call(groups.commit("group-0", offsets))
    assert _cost(running_broker, 9, 8, fetched(1, None)).longest_turn < 4_000


def test_others_have_turns_while_a_member_learns_its_assignment(running_broker: RunningBroker) -> None:
    """A member that joins again is told all of it: 300 bytes may ask for 10,000 topics with a pattern."""
    topics = created(1_000, configs=[])
    _cost(running_broker, 19, 5, {**topics, "validate_only": False})
    joins: Fields = {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout": 60_000,
        "subscribed_topic_regex": "topic-.*",
        "topic_partitions": [],
    }
    _cost(running_broker, 68, 1, joins)
    assert _cost(running_broker, 68, 1, joins).longest_turn < 12_000


def test_a_part_too_short_for_a_batch_is_handed_to_nobody(running_broker: RunningBroker) -> None:
    """64 KB hold 8,000: to have another thread refuse each took 150 ms of CPU instead of 75."""

    def submit(*_: object) -> None:
        raise AssertionError("no part may be a batch")

    _cost(running_broker, 19, 5, {**created(1, configs=[]), "validate_only": False})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running_broker.broker.publisher, "submit", submit)
        few, many = (_cost(running_broker, 0, 9, produced(count, b"x")).calls for count in (20, 100))
    assert (many - few) / 80 <= 40


def test_others_topics_do_not_make_a_new_one_dearer(running_broker: RunningBroker) -> None:
    """How many partitions there are is counted once, not once for each new topic."""
    validated = created(50, configs=[])
    _cost(running_broker, 19, 5, validated)  # as above
    before = _cost(running_broker, 19, 5, validated).calls
    others = topics(500, "CreatableTopic", num_partitions=1, replication_factor=1, assignments=[], configs=[])
    renamed = [{**one, "name": f"other-{one['name']}"} for one in others]
    _cost(running_broker, 19, 5, {"topics": renamed, "timeout": 30_000, "validate_only": False})
    assert len(running_broker.broker.root.image.topics) == len(renamed)
    assert _cost(running_broker, 19, 5, validated).calls - before < 4 * len(renamed)


def described_topics(count: int, keys: Callable[[int], list[str]]) -> Fields:
    resources = [
        {"_": "DescribeConfigsResource", "resource_type": 2, "resource_name": f"topic-{number}",
         "configuration_keys": keys(number)}
        for number in range(count)
    ]  # fmt: skip
    return {"resources": resources, "include_synonyms": False, "include_documentation": False}


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys", [lambda number: [f"no-{number}"], lambda number: ["retention.ms", f"no-{number}"], lambda _: []]
)
@pytest.mark.parametrize("differ", [False, True])
def test_what_topics_have_in_common_is_looked_up_once_for_settings_of_topics(
    keys: Callable[[int], list[str]], running_broker: RunningBroker, *, differ: bool
) -> None:
    """2,900 topics took 1.6 s where another name was asked for of each, or each had another value."""
    made = [
        {**one, "configs": [config("retention.ms", str(1_000 + differ * number))]}
        for number, one in enumerate(created(100, configs=[])["topics"])
    ]
    _cost(running_broker, 19, 5, {"topics": made, "timeout": 30_000, "validate_only": False})
    _cost(running_broker, 32, 4, described_topics(2, keys))  # as above
    few, many = (_cost(running_broker, 32, 4, described_topics(count, keys)).calls for count in (20, 100))
    # A list of its own is put together for each, of some thirty settings; only its own value is encoded.
    most = 150 if differ and not keys(0) else 110
    assert (many - few) / 80 <= most


def test_what_topics_have_in_common_is_looked_up_once_for_settings_of_new_topics(
    running_broker: RunningBroker,
) -> None:
    def fields(count: int) -> Fields:
        made = created(count, configs=[])
        for number, one in enumerate(made["topics"]):
            one["configs"] = [config("retention.ms", str(1_000 + number))]
        return made

    _cost(running_broker, 19, 5, fields(2))  # as above
    few, many = (_cost(running_broker, 19, 5, fields(count)).calls for count in (20, 100))
    assert (many - few) / 80 <= 190


def test_offsets_of_many_partitions_are_looked_up_by_time_together(running_broker: RunningBroker) -> None:
    """Another thread for each of 3,500 took 420 ms, and 40 with 64 of them together."""
    count = 200
    _cost(running_broker, 19, 5, {**created(1, configs=[], partitions=count), "validate_only": False})
    partitions = [
        {"_": "ListOffsetsPartition", "partition_index": number, "current_leader_epoch": -1, "timestamp": 5}
        for number in range(count)
    ]
    asked = [{"_": "ListOffsetsTopic", "name": "topic-0", "partitions": partitions}]
    fields = {"replica_id": -1, "isolation_level": 0, "topics": asked}
    assert _cost(running_broker, 2, 6, fields).threads <= 1 + count / 50


def test_producers_of_many_partitions_are_looked_at_together(running_broker: RunningBroker) -> None:
    """Another thread for each of 9,000 took 830 ms of CPU, and others waited for 700."""
    count = 200
    _cost(running_broker, 19, 5, {**created(1, configs=[], partitions=count), "validate_only": False})
    fields = {"topics": [{"_": "TopicRequest", "name": "topic-0", "partition_indexes": range(count)}]}
    assert _cost(running_broker, 61, 0, fields).threads <= 1  # the look at the newest; nobody has written
    write_to_all(running_broker, count)
    assert _cost(running_broker, 61, 0, fields).threads <= 2 + count / 50


def write_to_all(running_broker: RunningBroker, count: int) -> None:
    """An idempotent producer writes to each partition of the first topic."""
    with ProducingClient(running_broker.host, running_broker.port) as client:
        producer_id = client.init_producer_id().producer_id
        data = batch([b"a"], producer_id=producer_id, producer_epoch=0, base_sequence=0)
        made = client.produce(*(("topic-0", number, data) for number in range(count)))
        assert {one.error_code.name for one in made} == {"none"}


def test_a_producer_more_is_no_call_more(running_broker: RunningBroker) -> None:
    """With entities it took 11 us."""
    _cost(running_broker, 19, 5, {**created(1, configs=[]), "validate_only": False})
    fields = {"topics": [{"_": "TopicRequest", "name": "topic-0", "partition_indexes": [0]}]}
    write_to_all(running_broker, 1)
    few = _cost(running_broker, 61, 0, fields).calls
    for _ in range(20):
        write_to_all(running_broker, 1)
    assert _cost(running_broker, 61, 0, fields).calls - few < 20


@contextlib.contextmanager
def no_finalizers() -> Iterator[None]:
    """What earlier tests left behind is not collected within: its finalizers would count.

    Clients of S3 above all, which go with their cycles: urllib3 empties each pool of connections in a
    finalizer, 76 calls and more. After twenty tests one collection made 3,620 calls.
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _cost(running: RunningBroker, key: int, version: int, fields: Fields) -> Cost:
    """From a request's bytes to those of its answer."""
    broker = running.broker
    running.call_soon(broker.follower.stop)  # its looks would count, as many as there is time for
    schema = load_request_schema(key, version)
    types = load_payload_module(key, version, EntityType.request)
    body = io.BytesIO()
    entity_writer(schema)(
        body, make(schema, **{name: entity(types, value) for name, value in fields.items()})
    )
    header = RequestHeader(api_key=key, api_version=version, correlation_id=1)
    codec = message_codec(key, version)
    frame = memoryview(bytes(8) + b"\xff\xff" + b"\0" * codec.flexible_request + body.getvalue())
    context = RequestContext(
        api_key=key, api_version=version, correlation_id=1, client_id="", connection_id=1,
        peer_host="127.0.0.1", listener=broker.network.advertised()[0], types=codec.types,
        answer=HeldAnswer(Budget(1 << 30)),
    )  # fmt: skip

    async def handle() -> Cost:
        loop = asyncio.get_running_loop()
        turns: collections.deque[asyncio.Handle] = collections.deque(maxlen=1)  # the next one
        count = threads = of_turn = longest_turn = 0

        def counting(_frame: Any, event: str, _argument: Any) -> None:
            nonlocal count, of_turn, longest_turn
            count += event == "call"
            of_turn += event in {"call", "c_call"}
            longest_turn = max(longest_turn, of_turn)

        def turn() -> None:
            nonlocal of_turn
            of_turn = 0
            turns.append(loop.call_soon(turn))

        async def here(function: Callable[..., Any], *arguments: Any) -> Any:
            nonlocal threads
            threads += 1
            return function(*arguments)

        with pytest.MonkeyPatch.context() as patch, no_finalizers():
            patch.setattr(broker.root, "run", here)  # so that what threads do counts, too
            sys.setprofile(counting)
            try:
                asked = examine_request(frame, header, codec).read()
                turns.append(loop.call_soon(turn))
                answer = await broker.dispatcher.apis[key].handle(asked, context)
                longest = longest_turn
                encode_response(codec, 1, answer)
            finally:
                sys.setprofile(None)
                turns.pop().cancel()
        return Cost(count, threads, longest)

    return running.call(handle())
