"""ConsumerGroupHeartbeat and the APIs around it, as bytes: members, offsets by topic id."""

import uuid
from typing import Any

import pytest

import sparklog
from sparklog_server.protocol.responses import topic_uuid
from tests.server.api.group_requests import (
    COMMIT,
    DESCRIBE,
    FETCH,
    GROUP_SETTINGS,
    GROUP_TOPICS,
    LIST,
    join,
    sync,
)
from tests.support.wire_client import WireClient

BEAT = 68


BROKER_SETTINGS = GROUP_SETTINGS
BROKER_TOPICS = GROUP_TOPICS


def beat(asker: WireClient, member_id: str = "m", epoch: int = 0, version: int = 1, **more: Any) -> Any:
    joins = {"rebalance_timeout": 60_000, "subscribed_topic_names": ("orders",), "topic_partitions": []}
    fields = {"topic_partitions": None, **(joins if epoch == 0 else {}), **more}
    return asker.ask(BEAT, version, group_id="g", member_id=member_id, member_epoch=epoch, **fields)


def partitions(assignment: Any) -> dict[Any, tuple[int, ...]]:
    return {one.topic_id: one.partitions for one in assignment.topic_partitions}


def orders_id(log: sparklog.SparkLog) -> uuid.UUID:
    return topic_uuid(log.refresh().topic("orders").topic_id)


def test_a_member_joins_goes_on_and_leaves(asker: WireClient, log: sparklog.SparkLog) -> None:
    answer = beat(asker)
    assert (answer.error_code.name, answer.member_id, answer.member_epoch) == ("none", "m", 1)
    assert answer.heartbeat_interval.total_seconds() == 5
    assert partitions(answer.assignment) == {orders_id(log): (0, 1)}
    answer = beat(asker, epoch=1)
    assert (answer.error_code.name, answer.member_epoch, answer.assignment) == ("none", 1, None)
    assert beat(asker, epoch=-1).member_epoch == -1
    assert beat(asker, epoch=1).error_code.name == "unknown_member_id"


def test_topics_may_be_named_after_joining(asker: WireClient, log: sparklog.SparkLog) -> None:
    answer = beat(asker, subscribed_topic_names=())
    assert (answer.error_code.name, answer.member_epoch) == ("none", 1)
    assert partitions(answer.assignment) == {}
    answer = beat(asker, epoch=1, subscribed_topic_names=("orders",))
    assert (answer.error_code.name, answer.member_epoch) == ("none", 2)
    assert partitions(answer.assignment) == {orders_id(log): (0, 1)}
    answer = beat(asker, "other", subscribed_topic_names=None)
    assert answer.error_code.name == "invalid_request"


def test_in_version_0_the_broker_makes_the_id(asker: WireClient) -> None:
    answer = beat(asker, "", version=0)
    assert answer.error_code.name == "none"
    assert uuid.UUID(answer.member_id)
    assert beat(asker, "", version=1).error_code.name == "invalid_request"


def test_a_refusal_says_why(asker: WireClient) -> None:
    answer = beat(asker, server_assignor="sticky")
    assert answer.error_code.name == "unsupported_assignor"
    assert "expected one of uniform, range" in answer.error_message
    answer = beat(asker, subscribed_topic_names=None, subscribed_topic_regex="(")
    assert answer.error_code.name == "invalid_regular_expression"
    assert "topics" in answer.error_message


@pytest.mark.parametrize("version", [0, 5, 6])
def test_it_is_no_classic_group(asker: WireClient, version: int) -> None:
    beat(asker)
    found = asker.ask(DESCRIBE, version, groups=["g", "unknown"]).groups
    error = "group_id_not_found" if version == 6 else "none"
    assert [(one.error_code.name, one.group_state) for one in found] == [(error, "Dead")] * 2
    if version == 6:
        messages = [one.error_message for one in found]
        assert messages == ["the group is not a classic group", "there is no such group"]


def test_groups_are_listed_by_type(asker: WireClient) -> None:
    beat(asker)
    sync(asker, join(asker, group="classic"), group="classic")
    by_type = {
        kind: [(one.group_id, one.group_type) for one in asker.ask(LIST, 5, types_filter=kinds).groups]
        for kind, kinds in {"all": [], "c": ["Consumer"], "k": ["classic"], "s": ["share"]}.items()
    }
    assert sorted(by_type["all"]) == [("classic", "classic"), ("g", "consumer")]
    assert (by_type["c"], by_type["k"], by_type["s"]) == ([("g", "consumer")], [("classic", "classic")], [])


# --- offsets -----------------------------------------------------------------------------------------


def commit(asker: WireClient, topic_id: uuid.UUID, offset: int, epoch: int = 1, version: int = 10) -> str:
    partition = {"_": "OffsetCommitRequestPartition", "partition_index": 0, "committed_offset": offset}
    topic = {
        "_": "OffsetCommitRequestTopic",
        "topic_id": topic_id,
        "partitions": [partition | {"committed_metadata": ""}],
    }
    answer = asker.ask(
        COMMIT,
        version,
        group_id="g",
        member_id="m",
        generation_id_or_member_epoch=epoch,
        topics=[topic],
    )
    (found,) = answer.topics
    assert found.topic_id == topic_id
    return str(found.partitions[0].error_code.name)


def fetch(asker: WireClient, topics: Any, **member: Any) -> Any:
    group = {"_": "OffsetFetchRequestGroup", "group_id": "g", "topics": topics, **member}
    (answer,) = asker.ask(FETCH, 10, groups=[group]).groups
    return answer


def test_offsets_by_topic_id(asker: WireClient, log: sparklog.SparkLog) -> None:
    beat(asker)
    known, unknown = orders_id(log), uuid.uuid4()
    assert commit(asker, known, 7) == "none"
    assert commit(asker, unknown, 7) == "unknown_topic_id"
    assert commit(asker, known, 8, epoch=2) == "stale_member_epoch"
    asked = [
        {"_": "OffsetFetchRequestTopics", "topic_id": one, "partition_indexes": [0]}
        for one in (known, unknown)
    ]
    answer = fetch(asker, asked, member_id="m", member_epoch=1)
    found = {
        one.topic_id: (one.partitions[0].committed_offset, one.partitions[0].error_code.name)
        for one in answer.topics
    }
    assert found == {known: (7, "none"), unknown: (-1, "unknown_topic_id")}
    answer = fetch(asker, None)
    assert {one.topic_id: one.partitions[0].committed_offset for one in answer.topics} == {known: 7}
    assert fetch(asker, None, member_id="m", member_epoch=2).error_code.name == "stale_member_epoch"
    assert fetch(asker, None, member_id="x", member_epoch=1).error_code.name == "unknown_member_id"


def test_offsets_of_a_topic_that_is_gone_are_not_named(asker: WireClient, log: sparklog.SparkLog) -> None:
    beat(asker)
    assert commit(asker, orders_id(log), 7) == "none"
    log.delete_topic("orders")
    assert fetch(asker, None).topics == ()
