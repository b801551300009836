"""Attacks that name thousands of things, most of which there are not."""

from benchmarks.hostile_attacks import Frames, attack, names, with_topic
from benchmarks.hostile_broker import Broker
from benchmarks.hostile_requests import request


@attack("names: DescribeProducers of 9,000 partitions")
def describe_producers(broker: Broker) -> Frames:
    with_topic(broker, 9_000)
    topics = [{"_": "TopicRequest", "name": "victim", "partition_indexes": list(range(9_000))}]
    return [request(61, 0, topics=topics)], False


def with_coordinators(broker: Broker) -> None:
    """Make the topic of offsets, and wait until a group is answered for: all are loaded together."""
    broker.ask(10, 4, key_type=0, coordinator_keys=["g"])
    asked = [{"_": "OffsetFetchRequestGroup", "group_id": "g", "topics": None}]
    while broker.ask(9, 8, groups=asked).groups[0].error_code:
        pass


@attack("names: OffsetFetch of 8,000 groups")
def offset_fetch_groups(broker: Broker) -> Frames:
    with_coordinators(broker)
    groups = [{"_": "OffsetFetchRequestGroup", "group_id": name, "topics": None} for name in names(3, 8_000)]
    return [request(9, 8, groups=groups)], False


@attack("names: OffsetFetch of 4,500 groups, a partition each")
def offset_fetch_partition_of_groups(broker: Broker) -> Frames:
    with_coordinators(broker)
    topics = [{"_": "OffsetFetchRequestTopics", "name": "t", "partition_indexes": [0]}]
    groups = [
        {"_": "OffsetFetchRequestGroup", "group_id": name, "topics": topics} for name in names(3, 4_500)
    ]
    return [request(9, 8, groups=groups)], False


@attack("names: DescribeTransactions of 12,000 unknown ids")
def describe_transactions(broker: Broker) -> Frames:
    return [request(65, 0, transactional_ids=names(3, 12_000))], False


@attack("names: DescribeTopicPartitions of 11,000 unknown topics")
def describe_topic_partitions(broker: Broker) -> Frames:
    topics = [{"_": "TopicRequest", "name": name} for name in names(3, 11_000)]
    return [request(75, 0, topics=topics, response_partition_limit=2_000, cursor=None)], False


@attack("names: CreateTopics of 10,000 partitions, to be validated")
def create_partitions_of_one(broker: Broker) -> Frames:
    topic = {"_": "CreatableTopic", "name": "v", "num_partitions": 10_000, "replication_factor": 1,
             "assignments": [], "configs": []}  # fmt: skip
    return [request(19, 5, topics=[topic], timeout=30_000, validate_only=True)], False
