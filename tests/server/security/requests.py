"""A request of every API that names the topic, group and transactional id of the matrix of permissions."""

from collections.abc import Callable, Mapping
from typing import Any

from sparklog_server.protocol.apis import ApiKey
from tests.server.publish.batches import batch

TOPIC, GROUP, ID = "orders", "readers", "payments"
OTHER = "brand-new"  # a topic that is to be created
UNKNOWN_ID = "never-used"  # kio cannot read the description of one that is not open
PARTITION, PARTITIONS = {"partition_index": 0}, (0,)
_Fields = dict[str, Any]


def _topic(entity: str, part: str, **fields: Any) -> _Fields:
    return {"_": entity, "name": TOPIC, "partitions": [{"_": part, "partition_index": 0, **fields}]}


def _acl_filter(**fields: Any) -> _Fields:
    return {
        "resource_type_filter": 2,
        "resource_name_filter": "nobody-has-this",
        "pattern_type_filter": 3,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
        **fields,
    }


_COMMITTED = {"committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": ""}
_TXN = {"transactional_id": ID, "producer_id": 1, "producer_epoch": 0}
_MEMBER = {"group_id": GROUP, "member_id": "m", "group_instance_id": None}

REQUESTS: Mapping[ApiKey, Callable[[], _Fields]] = {
    ApiKey.PRODUCE: lambda: {
        "transactional_id": None,
        "acks": -1,
        "timeout": 10_000,
        "topic_data": [
            {
                "_": "TopicProduceData",
                "name": TOPIC,
                "partition_data": [{"_": "PartitionProduceData", "index": 0, "records": batch()}],
            }
        ],
    },
    ApiKey.FETCH: lambda: {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1000,
        "session_epoch": -1,
        "topics": [
            {
                "_": "FetchTopic",
                "topic": TOPIC,
                "partitions": [
                    {"_": "FetchPartition", "partition": 0, "fetch_offset": 0, "partition_max_bytes": 99}
                ],
            }
        ],
        "rack_id": "",
    },
    ApiKey.LIST_OFFSETS: lambda: {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [_topic("ListOffsetsTopic", "ListOffsetsPartition", timestamp=-1)],
    },
    ApiKey.METADATA: lambda: {
        "topics": [{"_": "MetadataRequestTopic", "name": TOPIC}],
        "allow_auto_topic_creation": False,
    },
    ApiKey.OFFSET_COMMIT: lambda: {
        "group_id": GROUP,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [_topic("OffsetCommitRequestTopic", "OffsetCommitRequestPartition", **_COMMITTED)],
    },
    ApiKey.OFFSET_FETCH: lambda: {
        "groups": [
            {
                "_": "OffsetFetchRequestGroup",
                "group_id": GROUP,
                "topics": [{"_": "OffsetFetchRequestTopics", "name": TOPIC, "partition_indexes": PARTITIONS}],
            }
        ],
        "require_stable": False,
    },
    ApiKey.FIND_COORDINATOR: lambda: {"key_type": 0, "coordinator_keys": (GROUP,)},
    ApiKey.JOIN_GROUP: lambda: {
        **_MEMBER,
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "protocol_type": "consumer",
        "protocols": [{"_": "JoinGroupRequestProtocol", "name": "range", "metadata": b""}],
    },
    ApiKey.HEARTBEAT: lambda: {**_MEMBER, "generation_id": 1},
    ApiKey.LEAVE_GROUP: lambda: {
        "group_id": GROUP,
        "members": [{"_": "MemberIdentity", "member_id": "m", "group_instance_id": None}],
    },
    ApiKey.SYNC_GROUP: lambda: {
        **_MEMBER,
        "generation_id": 1,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": (),
    },
    ApiKey.DESCRIBE_GROUPS: lambda: {"groups": (GROUP,), "include_authorized_operations": False},
    ApiKey.LIST_GROUPS: lambda: {"states_filter": (), "types_filter": ()},
    ApiKey.API_VERSIONS: lambda: {"client_software_name": "t", "client_software_version": "1"},
    ApiKey.CREATE_TOPICS: lambda: {
        "topics": [
            {
                "_": "CreatableTopic",
                "name": OTHER,
                "num_partitions": 1,
                "replication_factor": 1,
                "assignments": (),
                "configs": (),
            }
        ],
        "timeout": 10_000,
        "validate_only": True,
    },
    ApiKey.DELETE_TOPICS: lambda: {
        "topics": [{"_": "DeleteTopicState", "name": TOPIC, "topic_id": None}],
        "timeout": 10_000,
    },
    ApiKey.DELETE_RECORDS: lambda: {
        "topics": [_topic("DeleteRecordsTopic", "DeleteRecordsPartition", offset=0)],
        "timeout": 10_000,
    },
    ApiKey.INIT_PRODUCER_ID: lambda: {
        "transactional_id": ID,
        "transaction_timeout": 10_000,
        "producer_id": -1,
        "producer_epoch": -1,
    },
    ApiKey.OFFSET_FOR_LEADER_EPOCH: lambda: {
        "replica_id": -1,
        "topics": [
            {
                "_": "OffsetForLeaderTopic",
                "topic": TOPIC,
                "partitions": [{"_": "OffsetForLeaderPartition", "partition": 0, "leader_epoch": 0}],
            }
        ],
    },
    ApiKey.ADD_PARTITIONS_TO_TXN: lambda: {
        "v3_and_below_transactional_id": ID,
        "v3_and_below_producer_id": 1,
        "v3_and_below_producer_epoch": 0,
        "v3_and_below_topics": [{"_": "AddPartitionsToTxnTopic", "name": TOPIC, "partitions": PARTITIONS}],
    },
    ApiKey.ADD_OFFSETS_TO_TXN: lambda: {**_TXN, "group_id": GROUP},
    ApiKey.END_TXN: lambda: {**_TXN, "committed": False},
    ApiKey.WRITE_TXN_MARKERS: lambda: {
        "markers": [
            {
                "_": "WritableTxnMarker",
                "producer_id": 1,
                "producer_epoch": 0,
                "transaction_result": False,
                "coordinator_epoch": 0,
                "topics": [{"_": "WritableTxnMarkerTopic", "name": TOPIC, "partition_indexes": PARTITIONS}],
            }
        ]
    },
    ApiKey.TXN_OFFSET_COMMIT: lambda: {
        **_TXN,
        "group_id": GROUP,
        "generation_id": -1,
        "member_id": "",
        "topics": [_topic("TxnOffsetCommitRequestTopic", "TxnOffsetCommitRequestPartition", **_COMMITTED)],
    },
    ApiKey.DESCRIBE_ACLS: _acl_filter,
    ApiKey.CREATE_ACLS: lambda: {
        "creations": [
            {
                "_": "AclCreation",
                "resource_type": 0,  # refused: the matrix changes no ACLs
                "resource_name": "x",
                "resource_pattern_type": 3,
                "principal": "User:x",
                "host": "*",
                "operation": 3,
                "permission_type": 3,
            }
        ]
    },
    ApiKey.DELETE_ACLS: lambda: {"filters": [{"_": "DeleteAclsFilter", **_acl_filter()}]},
    ApiKey.DESCRIBE_CONFIGS: lambda: {
        "resources": [{"_": "DescribeConfigsResource", "resource_type": 2, "resource_name": TOPIC}],
        "include_synonyms": False,
        "include_documentation": False,
    },
    ApiKey.ALTER_CONFIGS: lambda: {
        "resources": [
            {"_": "AlterConfigsResource", "resource_type": 2, "resource_name": TOPIC, "configs": ()}
        ],
        "validate_only": True,
    },
    ApiKey.ALTER_REPLICA_LOG_DIRS: lambda: {
        "dirs": [
            {
                "_": "AlterReplicaLogDir",
                "path": "/nowhere",
                "topics": [{"_": "AlterReplicaLogDirTopic", "name": TOPIC, "partitions": PARTITIONS}],
            }
        ]
    },
    ApiKey.DESCRIBE_LOG_DIRS: lambda: {"topics": None},
    ApiKey.CREATE_PARTITIONS: lambda: {
        "topics": [{"_": "CreatePartitionsTopic", "name": TOPIC, "count": 9, "assignments": None}],
        "timeout": 10_000,
        "validate_only": True,
    },
    ApiKey.DELETE_GROUPS: lambda: {"groups_names": (GROUP,)},
    ApiKey.ELECT_LEADERS: lambda: {
        "election_type": 0,
        "topic_partitions": [{"_": "TopicPartitions", "topic": TOPIC, "partitions": PARTITIONS}],
        "timeout": 10_000,
    },
    ApiKey.INCREMENTAL_ALTER_CONFIGS: lambda: {
        "resources": [
            {"_": "AlterConfigsResource", "resource_type": 2, "resource_name": TOPIC, "configs": ()}
        ],
        "validate_only": True,
    },
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: lambda: {
        "timeout": 10_000,
        "allow_replication_factor_change": True,
        "topics": (),
    },
    ApiKey.LIST_PARTITION_REASSIGNMENTS: lambda: {"timeout": 10_000, "topics": None},
    ApiKey.OFFSET_DELETE: lambda: {
        "group_id": GROUP,
        "topics": [_topic("OffsetDeleteRequestTopic", "OffsetDeleteRequestPartition")],
    },
    ApiKey.DESCRIBE_CLIENT_QUOTAS: lambda: {"components": (), "strict": False},
    ApiKey.ALTER_CLIENT_QUOTAS: lambda: {
        "entries": [
            {
                "_": "EntryData",
                "entity": [{"_": "EntityData", "entity_type": "user", "entity_name": "x"}],
                "ops": [{"_": "OpData", "key": "producer_byte_rate", "value": 1.0, "remove": False}],
            }
        ],
        "validate_only": True,
    },
    ApiKey.DESCRIBE_QUORUM: lambda: {"topics": ()},
    ApiKey.DESCRIBE_CLUSTER: lambda: {"include_cluster_authorized_operations": True, "endpoint_type": 1},
    ApiKey.DESCRIBE_PRODUCERS: lambda: {
        "topics": [{"_": "TopicRequest", "name": TOPIC, "partition_indexes": PARTITIONS}]
    },
    ApiKey.UNREGISTER_BROKER: lambda: {"broker_id": 999},
    ApiKey.DESCRIBE_TRANSACTIONS: lambda: {"transactional_ids": (UNKNOWN_ID,)},
    ApiKey.LIST_TRANSACTIONS: lambda: {
        "state_filters": (),
        "producer_id_filters": (),
        "duration_filter": -1,
        "transactional_id_pattern": None,
    },
    ApiKey.LIST_CONFIG_RESOURCES: lambda: {"resource_types": ()},
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: lambda: {
        "topics": [{"_": "TopicRequest", "name": TOPIC}],
        "response_partition_limit": 10,
        "cursor": None,
    },
    ApiKey.SASL_HANDSHAKE: lambda: {"mechanism": "SCRAM-SHA-256"},
    ApiKey.SASL_AUTHENTICATE: lambda: {"auth_bytes": b""},
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: lambda: {"users": [{"_": "UserName", "name": "nobody"}]},
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: lambda: {
        "deletions": [{"_": "ScramCredentialDeletion", "name": "nobody", "mechanism": 1}],
        "upsertions": (),
    },
    ApiKey.CONSUMER_GROUP_HEARTBEAT: lambda: {
        "group_id": GROUP,
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout": 60_000,
        "subscribed_topic_names": (TOPIC,),
        "topic_partitions": (),
    },
    ApiKey.CONSUMER_GROUP_DESCRIBE: lambda: {"group_ids": (GROUP,), "include_authorized_operations": False},
    ApiKey.SHARE_GROUP_HEARTBEAT: lambda: {
        "group_id": GROUP,
        "member_id": "m",
        "member_epoch": 0,
        "subscribed_topic_names": (TOPIC,),
    },
    ApiKey.SHARE_GROUP_DESCRIBE: lambda: {"group_ids": (GROUP,), "include_authorized_operations": False},
    ApiKey.SHARE_FETCH: lambda: {
        "group_id": GROUP,
        "member_id": "m",
        "share_session_epoch": 0,
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1000,
        "max_records": 1,
        "batch_size": 1,
        "topics": (),
    },
    ApiKey.SHARE_ACKNOWLEDGE: lambda: {
        "group_id": GROUP,
        "member_id": "m",
        "share_session_epoch": 1,
        "topics": (),
    },
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: lambda: {
        "groups": [{"_": "DescribeShareGroupOffsetsRequestGroup", "group_id": GROUP, "topics": None}]
    },
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: lambda: {
        "group_id": GROUP,
        "topics": [
            {
                "_": "AlterShareGroupOffsetsRequestTopic",
                "topic_name": TOPIC,
                "partitions": [
                    {
                        "_": "AlterShareGroupOffsetsRequestPartition",
                        "partition_index": 0,
                        "start_offset": 0,
                    }
                ],
            }
        ],
    },
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: lambda: {
        "group_id": GROUP,
        "topics": [{"_": "DeleteShareGroupOffsetsRequestTopic", "topic_name": TOPIC}],
    },
}
# The newest version whose requests have the fields above: names instead of topic ids.
VERSIONS: Mapping[ApiKey, int] = {
    ApiKey.PRODUCE: 12,
    ApiKey.FETCH: 12,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.OFFSET_FETCH: 9,
}
