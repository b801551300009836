"""Attacks on what there is: a small request for much that was made before, by others or by the attacker."""

from benchmarks.hostile_attacks import Frames, attack, names, with_topic
from benchmarks.hostile_broker import Broker, receive, send, with_topics
from benchmarks.hostile_requests import plain_batch, produce, request


@attack("state: Metadata of one id 2,800 times, with another name each")
def metadata_by_id(broker: Broker) -> Frames:
    with_topic(broker, 10_000)
    found = broker.ask(
        3, 12, topics=[{"_": "MetadataRequestTopic", "name": "victim"}], allow_auto_topic_creation=False
    )
    topics = [
        {"_": "MetadataRequestTopic", "topic_id": found.topics[0].topic_id, "name": name}
        for name in names(1, 2_800)
    ]
    return [request(3, 12, topics=topics, allow_auto_topic_creation=False)], False


@attack("state: DescribeConfigs of 2,500 topics, another unknown setting of each")
def describe_configs_by_key(broker: Broker) -> Frames:
    with_topics(broker, 2_500)
    resources = [
        {"_": "DescribeConfigsResource", "resource_type": 2, "resource_name": f"topic-{number:05}",
         "configuration_keys": [key]}
        for number, key in enumerate(names(3, 2_500))
    ]  # fmt: skip
    return [request(32, 4, resources=resources, include_synonyms=True, include_documentation=False)], False


@attack("state: DescribeLogDirs of all of 50,000 partitions")
def describe_all_log_dirs(broker: Broker) -> Frames:
    for number in range(5):
        with_topic(broker, 10_000, f"victim-{number}")
    return [request(35, 4, topics=None)], False


@attack("state: ListOffsets by time of 2,400 partitions with a record each")
def list_offsets_of_records(broker: Broker) -> Frames:
    with_topic(broker, 2_400)
    with broker.connect() as sock:
        send(sock, produce(*[plain_batch()] * 2_400))
        receive(sock)
    partitions = [
        {"_": "ListOffsetsPartition", "partition_index": n, "current_leader_epoch": -1, "timestamp": 5}
        for n in range(2_400)
    ]
    topics = [{"_": "ListOffsetsTopic", "name": "victim", "partitions": partitions}]
    return [request(2, 6, replica_id=-1, isolation_level=0, topics=topics)], False


@attack("state: ListTransactions by a pattern of 40 times a thousand")
def list_transactions_by_pattern(broker: Broker) -> Frames:
    for name in names(1_000, 4):
        broker.ask(
            22, 4, transactional_id=name, transaction_timeout=60_000, producer_id=-1, producer_epoch=-1
        )
    pattern = ".{0,1000}" * 40 + "b"
    return [
        request(66, 2, state_filters=[], producer_id_filters=[], duration_filter=-1,
                transactional_id_pattern=pattern)
    ], False  # fmt: skip
