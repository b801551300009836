"""What a request names again and again is answered once, and large answers have a limit."""

from typing import Any

import pytest

import sparklog
from sparklog_server.protocol import wire
from tests.support.wire_client import WireClient

DESCRIBE_GROUPS, OFFSET_FETCH, FIND, DESCRIBE_CONFIGS, LOG_DIRS, LEAVE, LIST_GROUPS = (
    15,
    9,
    10,
    32,
    35,
    13,
    16,
)


BROKER_SETTINGS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}


def join(asker: WireClient, group: str, size: int) -> None:
    protocols = [{"_": "JoinGroupRequestProtocol", "name": "range", "metadata": bytes(size)}]
    while True:
        joined = asker.ask(11, 3, group_id=group, member_id="", session_timeout=30_000,
                           rebalance_timeout=30_000, protocol_type="consumer",
                           protocols=protocols)  # fmt: skip
        if joined.error_code.name == "none":
            break
        asker.ask(FIND, 4, key_type=0, coordinator_keys=[group])  # makes the topic of offsets
    asker.ask(14, 3, group_id=group, generation_id=joined.generation_id, member_id=joined.member_id,
              assignments=[])  # fmt: skip


def commit(asker: WireClient, group: str, partitions: int) -> None:
    offsets = [
        {"_": "OffsetCommitRequestPartition", "partition_index": number, "committed_offset": 1,
         "committed_metadata": ""}
        for number in range(partitions)
    ]  # fmt: skip
    topics = [{"_": "OffsetCommitRequestTopic", "name": "t", "partitions": offsets}]
    asker.ask(8, 8, group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=topics)


def all_offsets(*groups: str) -> list[dict[str, Any]]:
    return [{"_": "OffsetFetchRequestGroup", "group_id": group, "topics": None} for group in groups]


def test_groups(asker: WireClient, log: sparklog.SparkLog) -> None:
    """900 bytes made 1.26 GB of one group's description, 2.4 KB stopped everybody for 30 s."""
    log.create_topic("t", 10)
    join(asker, "g", 1000)
    commit(asker, "h", 10)
    described = asker.ask(DESCRIBE_GROUPS, 5, groups=["g", "g", "other", "g"]).groups
    assert [one.group_id for one in described] == ["g", "other"]
    assert len(described[0].members[0].member_metadata) == 1000
    fetched = asker.ask(OFFSET_FETCH, 8, groups=all_offsets("h", "h", "g")).groups
    assert [one.group_id for one in fetched] == ["h", "g"]
    twice = {"_": "OffsetFetchRequestTopics", "name": "t", "partition_indexes": [3, 3, 4]}
    asked = {"_": "OffsetFetchRequestGroup", "group_id": "h", "topics": [twice, twice]}
    (group,) = asker.ask(OFFSET_FETCH, 8, groups=[asked]).groups
    (topic,) = group.topics
    assert [(one.partition_index, one.committed_offset) for one in topic.partitions] == [(3, 1), (4, 1)]
    found = asker.ask(FIND, 4, key_type=0, coordinator_keys=["g", "g", "h"]).coordinators
    assert [one.key for one in found] == ["g", "h"]
    members = [{"_": "MemberIdentity", "member_id": "m", "group_instance_id": None}] * 3
    assert len(asker.ask(LEAVE, 4, group_id="g", members=members).members) == 1


def test_settings_and_log_dirs(asker: WireClient, log: sparklog.SparkLog) -> None:
    log.create_topic("t", 2)
    log.create_topic("u", configs={"retention.ms": "5"})
    resources = [
        {"_": "DescribeConfigsResource", "resource_type": 2, "resource_name": name,
         "configuration_keys": ["retention.ms"]}
        for name in ("t", "u", "t", "missing", "t")
    ]  # fmt: skip
    results = asker.ask(DESCRIBE_CONFIGS, 4, resources=resources, include_synonyms=True,
                        include_documentation=True).results  # fmt: skip
    told = [(one.resource_name, [entry.value for entry in one.configs or ()]) for one in results]
    assert told == [("t", ["-1"]), ("u", ["5"]), ("missing", [])]
    topic = {"_": "DescribableLogDirTopic", "topic": "t", "partitions": [0, 0, 1, 0]}
    (directory,) = asker.ask(LOG_DIRS, 4, topics=[topic, topic]).results
    (described,) = directory.topics
    assert [one.partition_index for one in described.partitions] == [0, 1]


def test_what_is_beyond_the_limit_is_refused(
    asker: WireClient, log: sparklog.SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("t", 100)
    for group in ("g", "h"):
        join(asker, group, 60_000)
        commit(asker, f"offsets-{group}", 100)
    monkeypatch.setattr(wire, "MAX_ANSWER_BYTES", 99_000)
    described = asker.ask(DESCRIBE_GROUPS, 5, groups=["g", "h"]).groups
    assert [(one.error_code.name, len(one.members)) for one in described] == [
        ("none", 1),
        ("unknown_server_error", 0),
    ]
    fetched = asker.ask(OFFSET_FETCH, 8, groups=all_offsets("offsets-g", "offsets-h")).groups
    assert [one.error_code.name for one in fetched] == ["none", "unknown_server_error"]
    listed = asker.ask(LIST_GROUPS, 4)
    assert (listed.error_code.name, len(listed.groups)) == ("none", 4)
    monkeypatch.setattr(wire, "MAX_ANSWER_BYTES", 600)
    listed = asker.ask(LIST_GROUPS, 4)
    assert (listed.error_code.name, listed.groups) == ("unknown_server_error", ())
    monkeypatch.setattr(wire, "MAX_ANSWER_BYTES", 99_000)
    resources = [
        {"_": "DescribeConfigsResource", "resource_type": 2, "resource_name": f"{number}",
         "configuration_keys": None}
        for number in range(34)
    ]  # fmt: skip
    results = asker.ask(DESCRIBE_CONFIGS, 4, resources=resources, include_synonyms=False,
                        include_documentation=False).results  # fmt: skip
    assert [one.error_code.name for one in results[-2:]] == ["unknown_topic_or_partition", "invalid_request"]
