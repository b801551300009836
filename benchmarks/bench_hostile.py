"""What small requests can cost a broker: CPU, memory while they are worked on, memory that stays, and how
long another client waits meanwhile. Nobody is authenticated yet, so anybody can send these.

Each attack is sent once, and then by 100 clients at once, to a broker process of its own; a bystander asks
for ApiVersions all the time. The bounds that are meant: no request below 64 KB costs more than 100 ms of CPU
or 64 MiB, or keeps anything after its connection is gone; 100 at once take no more memory than that.

    python -m benchmarks.bench_hostile [--only WORD] [--at-once 1,100]
"""

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import benchmarks.hostile_names
import benchmarks.hostile_state  # noqa: F401 - both register their attacks
from benchmarks.hostile_attacks import ATTACKS, Frames, attack, names, with_topic
from benchmarks.hostile_broker import (
    FOREVER_MS,
    MIB,
    SMALL,
    Broker,
    commit,
    commit_request,
    join_request,
    measure,
    with_group,
    with_topics,
)
from benchmarks.hostile_requests import (
    header_tags,
    produce,
    request,
    tiny_records,
    zstd_batch,
)

# --- the attacks -----------------------------------------------------------------------------------------


@attack("refused: one record too few, 120 MiB of zeros in 4 KB")
def refused(broker: Broker) -> Frames:
    with_topic(broker)
    return [produce(zstd_batch(bytes(120 * MIB), 2))] * 20, False


@attack("refused: 70,000 records, the last one bad")
def twin(broker: Broker) -> Frames:
    with_topic(broker)
    # One record repeated compresses a thousandfold; offset deltas must be right for the parser to get far.
    return [produce(zstd_batch(tiny_records(70_000, last=b"\xff"), 70_001))], False


@attack("refused: 17 million records of one byte pattern")
def pattern(broker: Broker) -> Frames:
    with_topic(broker)
    return [produce(zstd_batch(b"\x0c\0\0\0\x01\x01\0" * 17_000_000, 17_000_000))], False


@attack("tags of a header")
def tags(broker: Broker) -> Frames:
    return [header_tags(SMALL)], False


@attack("tags of a header, 16 MiB")
def many_tags(broker: Broker) -> Frames:
    return [header_tags(16 * MIB)], False


@attack("Metadata of all of 5,000 topics")
def metadata_all(broker: Broker) -> Frames:
    with_topics(broker, 5_000)
    return [request(3, 12, topics=None, allow_auto_topic_creation=False)] * 5, False


@attack("Metadata of 10,000 unknown names")
def metadata_unknown(broker: Broker) -> Frames:
    topics = [{"_": "MetadataRequestTopic", "name": name} for name in names(3, 2_700)]
    return [request(3, 12, topics=topics, allow_auto_topic_creation=False)], False


@attack("DescribeGroups, one group 6,000 times")
def describe_groups(broker: Broker) -> Frames:
    with_group(broker, "g", members=20)
    return [request(15, 5, groups=["g"] * 20_000)], False


@attack("DescribeGroups of 15,000 unknown groups")
def describe_unknown_groups(broker: Broker) -> Frames:
    return [request(15, 5, groups=names(3, 15_000))], False


@attack("OffsetFetch, one group 10,000 times")
def offset_fetch(broker: Broker) -> Frames:
    with_topic(broker, 1000)
    commit(broker, "g", 1000)
    return [
        request(9, 8, groups=[{"_": "OffsetFetchRequestGroup", "group_id": "g", "topics": None}] * 12_000)
    ], False


@attack("OffsetFetch of 15,000 partitions")
def offset_fetch_partitions(broker: Broker) -> Frames:
    topics = [{"_": "OffsetFetchRequestTopics", "name": "t", "partition_indexes": list(range(15_000))}]
    groups = [{"_": "OffsetFetchRequestGroup", "group_id": "g", "topics": topics}]
    return [request(9, 8, groups=groups)], False


@attack("FindCoordinator of 15,000 groups")
def find_coordinator(broker: Broker) -> Frames:
    return [request(10, 4, key_type=0, coordinator_keys=names(3, 15_000))], False


@attack("FindCoordinator of one group 30,000 times")
def find_one_coordinator(broker: Broker) -> Frames:
    return [request(10, 4, key_type=0, coordinator_keys=["g"] * 30_000)], False


@attack("DescribeConfigs, one topic 6,000 times")
def describe_configs(broker: Broker) -> Frames:
    with_topic(broker)
    one = {"_": "DescribeConfigsResource", "resource_type": 2, "resource_name": "victim",
           "configuration_keys": None}  # fmt: skip
    return [request(32, 4, resources=[one] * 6_000, include_synonyms=True, include_documentation=True)], False


@attack("CreateTopics, 3,500 to be validated")
def create_topics(broker: Broker) -> Frames:
    topics = [
        {"_": "CreatableTopic", "name": name, "num_partitions": 1, "replication_factor": 1,
         "assignments": [], "configs": []}
        for name in names(4, 3_500, "v.")
    ]  # fmt: skip
    return [request(19, 5, topics=topics, timeout=30_000, validate_only=True)], False


@attack("CreateTopics of 1,800 with a misspelt setting each")
def create_misspelt(broker: Broker) -> Frames:
    topics = [
        {"_": "CreatableTopic", "name": name, "num_partitions": -1, "replication_factor": -1,
         "assignments": [], "configs": [{"_": "CreatableTopicConfig", "name": "retention.m", "value": "1"}]}
        for name in names(4, 1_800, "v.")
    ]  # fmt: skip
    return [request(19, 5, topics=topics, timeout=30_000, validate_only=True)], False


@attack("ListOffsets by time of 3,500 partitions")
def list_offsets_by_time(broker: Broker) -> Frames:
    with_topic(broker, 3_500)
    partitions = [
        {"_": "ListOffsetsPartition", "partition_index": n, "current_leader_epoch": -1, "timestamp": 5}
        for n in range(3_500)
    ]
    topics = [{"_": "ListOffsetsTopic", "name": "victim", "partitions": partitions}]
    return [request(2, 6, replica_id=-1, isolation_level=0, topics=topics)], False


@attack("ListOffsets, one partition 4,000 times")
def list_offsets(broker: Broker) -> Frames:
    with_topic(broker)
    broker.produce_one()
    partitions = [
        {"_": "ListOffsetsPartition", "partition_index": 0, "current_leader_epoch": -1, "timestamp": 5}
    ] * 3_500
    topics = [{"_": "ListOffsetsTopic", "name": "victim", "partitions": partitions}]
    return [request(2, 6, replica_id=-1, isolation_level=0, topics=topics)], False


@attack("OffsetForLeaderEpoch, 4,000 partitions")
def offset_for_leader_epoch(broker: Broker) -> Frames:
    partitions = [
        {"_": "OffsetForLeaderPartition", "partition": n, "current_leader_epoch": -1, "leader_epoch": 0}
        for n in range(4_000)
    ]
    topics = [{"_": "OffsetForLeaderTopic", "topic": "victim", "partitions": partitions}]
    return [request(23, 4, replica_id=-1, topics=topics)], False


@attack("DescribeLogDirs, one topic's partition 10,000 times")
def describe_log_dirs(broker: Broker) -> Frames:
    with_topic(broker)
    topics = [{"_": "DescribableLogDirTopic", "topic": "victim", "partitions": [0] * 15_000}]
    return [request(35, 4, topics=topics)], False


@attack("OffsetCommit of 3,000 partitions")
def offset_commit(broker: Broker) -> Frames:
    with_topic(broker, 3000)
    return [commit_request("g", 3000)], False


@attack("LeaveGroup of 8,000 members")
def leave_group(broker: Broker) -> Frames:
    with_group(broker, "g", members=2)
    members = [
        {"_": "MemberIdentity", "member_id": name, "group_instance_id": None} for name in names(3, 9_000)
    ]
    return [request(13, 4, group_id="g", members=members)], False


@attack("DeleteGroups of 15,000 names")
def delete_groups(broker: Broker) -> Frames:
    return [request(42, 2, groups_names=names(3, 15_000))], False


@attack("DeleteTopics of 12,000 names")
def delete_topics(broker: Broker) -> Frames:
    return [request(20, 5, topic_names=names(3, 15_000), timeout=30_000)], False


@attack("DeleteRecords of 4,000 partitions")
def delete_records(broker: Broker) -> Frames:
    with_topic(broker)
    partitions = [{"_": "DeleteRecordsPartition", "partition_index": n, "offset": 0} for n in range(4_000)]
    topics = [{"_": "DeleteRecordsTopic", "name": "victim", "partitions": partitions}]
    return [request(21, 2, topics=topics, timeout=30_000)], False


@attack("IncrementalAlterConfigs of 4,000 topics")
def incremental_alter_configs(broker: Broker) -> Frames:
    resources = [
        {"_": "AlterConfigsResource", "resource_type": 2, "resource_name": name,
         "configs": [{"_": "AlterableConfig", "name": "a", "config_operation": 0, "value": "1"}]}
        for name in names(3, 4_000)
    ]  # fmt: skip
    return [request(44, 1, resources=resources, validate_only=True)], False


@attack("CreatePartitions of 5,000 topics")
def create_partitions(broker: Broker) -> Frames:
    topics = [
        {"_": "CreatePartitionsTopic", "name": name, "count": 2, "assignments": None}
        for name in names(3, 5_000)
    ]
    return [request(37, 3, topics=topics, timeout=30_000, validate_only=True)], False


@attack("Produce of 5,000 empty partitions")
def produce_empty(broker: Broker) -> Frames:
    with_topic(broker, 9_000)
    return [produce(*[b"x"] * 8_000)], False


@attack("ApiVersions with long names")
def api_versions(broker: Broker) -> Frames:
    return [request(18, 3, client_software_name="x" * 30_000, client_software_version="y" * 30_000)], False


@attack("a name of 32 KB for a group")
def long_group(broker: Broker) -> Frames:
    return [
        request(12, 3, group_id="x" * 32_000, generation_id=1, member_id="m", group_instance_id=None)
    ], False


# --- requests that wait ------------------------------------------------------------------------------------


def fetch_request(
    topics: list[tuple[str, list[int]]], *, wait_ms: int = FOREVER_MS, version: int = 7
) -> bytes:
    fetched = [
        {"_": "FetchTopic", "topic": name, "partitions": [
            {"_": "FetchPartition", "partition": one, "fetch_offset": 0, "partition_max_bytes": 1}
            for one in partitions
        ]}
        for name, partitions in topics
    ]  # fmt: skip
    return request(1, version, replica_id=-1, max_wait=wait_ms, min_bytes=1, max_bytes=1, isolation_level=0,
                   session_id=0, session_epoch=0, topics=fetched, forgotten_topics_data=[])  # fmt: skip


@attack("Fetch that waits for 2,400 partitions")
def fetch_parked(broker: Broker) -> Frames:
    with_topic(broker, 2_400)
    return [fetch_request([("victim", list(range(2_400)))])], True


@attack("Fetch sessions of illegal names")
def fetch_illegal(broker: Broker) -> Frames:
    return [fetch_request([("!" * 32_000 + name, [0]) for name in names(1, 2)])], False


@attack("Fetch sessions of 2,400 unknown partitions")
def fetch_unknown(broker: Broker) -> Frames:
    return [fetch_request([("unknown", list(range(2_400)))])], False


@attack("JoinGroup that waits, of 60 KB")
def join_parked(broker: Broker) -> Frames:
    return [join_request("g", b"x" * 60_000)], True


@attack("JoinGroup of 8,000 protocols")
def join_protocols(broker: Broker) -> Frames:
    broker.ask(10, 4, key_type=0, coordinator_keys=["g"])
    time.sleep(1)
    protocols = [{"_": "JoinGroupRequestProtocol", "name": name, "metadata": b""} for name in names(3, 7_000)]
    return [request(11, 3, group_id="g", session_timeout=60_000, rebalance_timeout=FOREVER_MS, member_id="",
                    protocol_type="consumer", protocols=protocols)], True  # fmt: skip


@attack("JoinGroup of a client id of 32 KB")
def join_client_id(broker: Broker) -> Frames:
    return [join_request("g", b"x", client_id=b"c" * 32_000)], True


@attack("SyncGroup that waits, of 60 KB, by a follower")
def sync_parked(broker: Broker) -> Frames:
    joined = with_group(broker, "g", members=2, session_ms=1_800_000, sync=False)
    follower = next(one for one in joined if one.member_id != one.leader)
    given = [{"_": "SyncGroupRequestAssignment", "member_id": "m", "assignment": b"x" * 60_000}]
    return [request(14, 3, group_id="g", generation_id=follower.generation_id, member_id=follower.member_id,
                    group_instance_id=None, assignments=given)], True  # fmt: skip


# --- the report ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def serving() -> Iterator[Broker]:
    with tempfile.TemporaryDirectory(prefix="sparklog-hostile-") as root:
        broker = Broker(str(Path(root) / "log"))
        try:
            yield broker
        finally:
            broker.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="attacks whose name contains this")
    parser.add_argument("--at-once", default="1,100", help="clients")
    options = parser.parse_args()
    for name, make_attack in ATTACKS.items():
        if options.only not in name:
            continue
        for at_once in map(int, options.at_once.split(",")):
            with serving() as broker:
                frames, parks = make_attack(broker)
                print(json.dumps(measure(broker, name, frames, at_once, parks=parks)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
