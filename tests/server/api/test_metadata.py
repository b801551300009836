"""Metadata in every version: which topics, created or not, and what is said of them."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

import sparklog
from sparklog_server.admin.topics import MAX_CREATED
from sparklog_server.protocol import wire
from sparklog_server.protocol.responses import topic_id_text, topic_uuid
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient

METADATA = 3
VERSIONS = range(14)


def named(*names: str | None) -> list[dict[str, Any]]:
    return [{"_": "MetadataRequestTopic", "name": name} for name in names]


def created(log: sparklog.SparkLog, name: str, *, partitions: int) -> uuid.UUID:
    """A new topic's id."""
    log.create_topic(name, partitions=partitions)
    return topic_uuid(log.image.topic(name).topic_id)


def errors(response: Any) -> dict[str | None, str]:
    return {topic.name: topic.error_code.name for topic in response.topics}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_tells_all_topics(
    asker: WireClient, running_broker: RunningBroker, log: sparklog.SparkLog, version: int
) -> None:
    log.create_topic("a", partitions=3)
    log.create_topic("__consumer_offsets")
    log.create_topic("__debezium-heartbeat")
    response = asker.ask(METADATA, version, topics=() if version == 0 else None)
    (broker,) = response.brokers
    assert (broker.node_id, broker.host, broker.port) == (1, "127.0.0.1", running_broker.port)
    topics = {topic.name: topic for topic in response.topics}
    assert {"a", "__consumer_offsets", "__debezium-heartbeat"} <= set(topics)
    partitions = topics["a"].partitions
    assert [one.partition_index for one in partitions] == [0, 1, 2]
    assert {(one.leader_id, one.replica_nodes, one.isr_nodes) for one in partitions} == {(1, (1,), (1,))}
    if version >= 1:
        assert response.controller_id == 1
        assert {name for name, topic in topics.items() if topic.is_internal} == {"__consumer_offsets"}
    if version >= 2:
        assert response.cluster_id == log.cluster_id
    if version >= 7:
        assert {one.leader_epoch for one in partitions} == {1}
    if version >= 10:
        assert topic_id_text(topics["a"].topic_id) == log.image.topic("a").topic_id


def test_topics_of_others_are_known_at_once(asker: WireClient, log: sparklog.SparkLog) -> None:
    for number in range(20):
        name = f"t{number}"
        log.create_topic(name)
        response = asker.ask(METADATA, 4, topics=named(name), allow_auto_topic_creation=False)
        assert errors(response) == {name: "none"}
        assert len(asker.ask(METADATA, 4, topics=None).topics) == number + 1


def test_no_topics_means_none_since_version_1(asker: WireClient, log: sparklog.SparkLog) -> None:
    log.create_topic("a")
    assert asker.ask(METADATA, 1, topics=()).topics == ()


def test_missing_topics_are_created_if_all_allow_it(asker: WireClient, log: sparklog.SparkLog) -> None:
    response = asker.ask(METADATA, 4, topics=named("no"), allow_auto_topic_creation=False)
    assert errors(response) == {"no": "unknown_topic_or_partition"}
    before = log.refresh().commit
    response = asker.ask(METADATA, 4, topics=named("x", "y", "x"), allow_auto_topic_creation=True)
    assert errors(response) == {"x": "none", "y": "none"}
    assert len(response.topics) == 2
    assert log.refresh().commit == before + 1  # both in one
    assert log.topics() == ["x", "y"]
    assert errors(asker.ask(METADATA, 0, topics=named("z"))) == {"z": "none"}


def test_creation_has_the_settings_of_root_and_broker(
    start_broker: Callable[..., RunningBroker], connect: Callable[..., WireClient]
) -> None:
    broker = start_broker({"num.partitions": "4", "offsets.topic.num.partitions": "6"})
    asker = connect(broker)
    log = sparklog.open(broker.root, create=False)
    asker.ask(METADATA, 4, topics=named("a"), allow_auto_topic_creation=True)
    assert log.partition_count("a") == 4
    log.alter_root({"num.partitions": "2", "auto.create.topics.enable": "false"})
    asker.ask(METADATA, 4, topics=named("seen"), allow_auto_topic_creation=False)
    broker.call(broker.broker.root.run(broker.broker.root.log.refresh))
    response = asker.ask(METADATA, 4, topics=named("b", "__consumer_offsets"), allow_auto_topic_creation=True)
    assert errors(response) == {"b": "unknown_topic_or_partition", "__consumer_offsets": "none"}
    assert log.describe_topic("__consumer_offsets").configs == {"cleanup.policy": "compact"}
    assert log.partition_count("__consumer_offsets") == 6


def test_names_that_cannot_be(asker: WireClient, log: sparklog.SparkLog) -> None:
    names = ["../x", "nul\0", "a" * 250, "", "a.b", "a_b", "fine"]
    response = asker.ask(METADATA, 9, topics=named(*names), allow_auto_topic_creation=True)
    assert errors(response) == {
        "../x": "invalid_topic_exception",
        "nul\0": "invalid_topic_exception",
        "a" * 250: "invalid_topic_exception",
        "": "invalid_topic_exception",
        "a.b": "none",
        "a_b": "leader_not_available",  # the first one took the name; asked again, it says why not
        "fine": "none",
    }
    response = asker.ask(METADATA, 9, topics=named("a_b"), allow_auto_topic_creation=True)
    assert errors(response) == {"a_b": "invalid_topic_exception"}
    assert log.topics() == ["a.b", "fine"]


def test_who_asks_for_an_internal_topic_that_is_never_there_makes_none(
    asker: WireClient, log: sparklog.SparkLog
) -> None:
    names = ["__transaction_state", "__share_group_state", "__cluster_metadata", "-rf"]
    response = asker.ask(METADATA, 9, topics=named(*names), allow_auto_topic_creation=True)
    assert errors(response) == dict.fromkeys(names, "unknown_topic_or_partition")
    assert log.topics(include_internal=True) == []


def test_one_request_creates_so_many_topics_and_no_more(asker: WireClient, log: sparklog.SparkLog) -> None:
    names = [f"t{number}" for number in range(MAX_CREATED + 5)]
    response = asker.ask(METADATA, 4, topics=named(*names), allow_auto_topic_creation=True)
    assert list(errors(response).values()).count("leader_not_available") == 5
    assert len(log.topics()) == MAX_CREATED
    response = asker.ask(METADATA, 4, topics=named(*names), allow_auto_topic_creation=True)
    assert set(errors(response).values()) == {"none"}


def test_topics_by_id(asker: WireClient, running_broker: RunningBroker, log: sparklog.SparkLog) -> None:
    asker.ask(METADATA, 4, topics=named("a"), allow_auto_topic_creation=True)
    known = topic_uuid(running_broker.broker.root.image.topic("a").topic_id)
    unknown = uuid.UUID(int=7)
    asked = [{"_": "MetadataRequestTopic", "topic_id": one, "name": None} for one in (known, unknown)]
    first, second = asker.ask(METADATA, 12, topics=asked, allow_auto_topic_creation=True).topics
    assert (first.name, first.topic_id, first.error_code) == ("a", known, ErrorCode.none)
    assert (second.name, second.topic_id, second.error_code) == (None, unknown, ErrorCode.unknown_topic_id)
    for version in (10, 11):  # ids only in answers
        topics = asker.ask(METADATA, version, topics=asked).topics
        assert {one.error_code for one in topics} == {ErrorCode.invalid_request}
    assert log.topics() == ["a"]


def test_a_topic_by_its_id_is_told_once_whatever_names_stand_beside(
    asker: WireClient, log: sparklog.SparkLog
) -> None:
    """60 KB told of one topic 3,000 times: 780 MB, and 36 s of CPU."""
    topic_id = created(log, "a", partitions=3)
    asked = [{"_": "MetadataRequestTopic", "topic_id": topic_id, "name": name} for name in ("x", "y", None)]
    (told,) = asker.ask(METADATA, 12, topics=asked, allow_auto_topic_creation=True).topics
    assert (told.name, told.topic_id, len(told.partitions)) == ("a", topic_id, 3)
    assert log.refresh().topics.keys() == {"a"}


@pytest.mark.parametrize("version", [9, 12])
def test_topics_that_would_make_an_answer_too_large_are_refused(
    asker: WireClient, log: sparklog.SparkLog, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    asked: list[dict[str, Any]] = []
    for name in ("a", "b", "c"):
        topic_id = created(log, name, partitions=1 if name == "c" else 20)
        by_id = {"topic_id": topic_id, "name": None} if version == 12 else {"name": name}
        asked.append({"_": "MetadataRequestTopic", **by_id})
    monkeypatch.setattr(wire, "MAX_ANSWER_BYTES", 1_000)
    told = asker.ask(METADATA, version, topics=asked, allow_auto_topic_creation=False).topics
    assert [(one.name, one.error_code.name, len(one.partitions)) for one in told] == [
        ("a", "none", 20),
        ("b", "unknown_server_error", 0),
        ("c", "none", 1),
    ]


@pytest.mark.slow
def test_others_have_turns_between_topics_of_many_partitions(
    asker: WireClient, log: sparklog.SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 topics of 10,000 partitions were told of in one turn, as if they were small."""
    for name in ("a", "b"):
        log.create_topic(name, partitions=10_000)
    made: list[int] = []
    pace = wire.Pace.made

    async def noted(self: wire.Pace, count: int) -> None:
        made.append(count)
        await pace(self, count)

    monkeypatch.setattr(wire.Pace, "made", noted)
    told = asker.ask(METADATA, 9, topics=named("a", "b"), allow_auto_topic_creation=False).topics
    assert [len(one.partitions) for one in told] == [10_000, 10_000]
    assert sum(made) > 2 * wire.SLICE


def test_authorized_operations_when_asked_for(asker: WireClient) -> None:
    response = asker.ask(
        METADATA,
        8,
        topics=named("a"),
        allow_auto_topic_creation=True,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    assert (response.cluster_authorized_operations, response.topics[0].topic_authorized_operations) == (
        8096,
        3576,
    )
    response = asker.ask(METADATA, 8, topics=named("a"))
    assert response.cluster_authorized_operations == -(1 << 31)
    assert response.topics[0].topic_authorized_operations == -(1 << 31)


def test_other_listeners_are_told_their_own_address(
    start_broker: Callable[..., RunningBroker],
) -> None:
    broker = start_broker(
        {
            "listeners": "PLAINTEXT://127.0.0.1:0,OUT://127.0.0.1:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUT:PLAINTEXT",
            "advertised.listeners": "OUT://kafka.example:4711",
        }
    )
    told = []
    for listener in broker.broker.network.listeners:
        client = WireClient("127.0.0.1", listener.address.port)
        (node,) = client.ask(METADATA, 1, topics=()).brokers
        told.append((node.host, node.port))
        client.close()
    assert told == [("127.0.0.1", broker.port), ("kafka.example", 4711)]
