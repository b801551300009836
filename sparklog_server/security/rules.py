"""The table of permissions: which operations the requests of each API need.

Where the table says `in its handler`, answers are written as bytes, or are pages of a listing: the handler
asks the client's `Caller` by itself.

Invariants: an API without a rule is not served (api/registry.py).
Not here: how requests are checked (checks.py), verdicts (access.py).
Sources: Kafka KafkaApis, ControllerApis, AclApis; its documentation's table of operations and resources.
"""

from collections.abc import Mapping
from typing import Any

from sparklog_server.protocol.apis import ApiKey
from sparklog_server.security.checks import (
    ALTER,
    ALTER_CONFIGS,
    CLUSTER,
    DELETE,
    DELETE_RECORDS,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    EPOCHS,
    GROUP,
    LIST_OFFSETS,
    NOTHING,
    READ,
    TOPIC,
    TRANSACTION,
    WRITE,
    Rule,
    add_offsets_to_txn,
    add_partitions_to_txn,
    configs,
    create_topics,
    delete_topics,
    describe_groups,
    describe_transactions,
    each,
    find_coordinator,
    group_description,
    group_heartbeat,
    init_producer_id,
    itself,
    list_groups,
    list_transactions,
    needs,
    no_credentials,
    no_election,
    no_log_dirs,
    no_quotas,
    no_results,
    of_group_and_topics,
    offset_commit,
    offset_delete,
    offset_fetch,
    share_offsets,
    topics,
    whole,
    write_txn_markers,
)

_GROUP_MEMBER: Mapping[str, Any] = {"generation_id": NOTHING, "leader": "", "member_id": "", "members": ()}
RULES: Mapping[int, Rule] = {
    ApiKey.PRODUCE: Rule("Write on Topic; in a transaction also Write on TransactionalId; in its handler"),
    ApiKey.FETCH: Rule("Read on Topic; in its handler"),
    ApiKey.LIST_OFFSETS: topics(DESCRIBE, "topics", error=LIST_OFFSETS),
    ApiKey.METADATA: Rule(
        "Describe on Topic; to create a missing one, Create on Cluster or Topic; in its handler"
    ),
    ApiKey.OFFSET_COMMIT: Rule("Read on Group, Read on Topic", offset_commit),
    ApiKey.OFFSET_FETCH: Rule("Describe on Group, Describe on Topic", offset_fetch),
    ApiKey.FIND_COORDINATOR: Rule("Describe on Group, or on TransactionalId", find_coordinator),
    ApiKey.JOIN_GROUP: whole(READ, GROUP, "group_id", **_GROUP_MEMBER),
    ApiKey.HEARTBEAT: whole(READ, GROUP, "group_id"),
    ApiKey.LEAVE_GROUP: whole(READ, GROUP, "group_id"),
    ApiKey.SYNC_GROUP: whole(READ, GROUP, "group_id", assignment=b""),
    ApiKey.DESCRIBE_GROUPS: Rule(needs(DESCRIBE, GROUP), describe_groups),
    ApiKey.LIST_GROUPS: Rule("Describe on Cluster, or those with Describe on Group", list_groups),
    ApiKey.API_VERSIONS: Rule("nothing"),
    ApiKey.CREATE_TOPICS: Rule(
        "Create on Cluster or Topic; DescribeConfigs on Topic to see its settings", create_topics
    ),
    ApiKey.DELETE_TOPICS: Rule(needs(DELETE, TOPIC), delete_topics),
    ApiKey.DELETE_RECORDS: topics(DELETE, "topics", error=DELETE_RECORDS),
    ApiKey.INIT_PRODUCER_ID: Rule(
        "Write on TransactionalId; without one, IdempotentWrite on Cluster or Write on any Topic",
        init_producer_id,
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: topics(DESCRIBE, "topics", error=EPOCHS),
    ApiKey.ADD_PARTITIONS_TO_TXN: Rule(
        "Write on TransactionalId, Write on every Topic", add_partitions_to_txn
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: Rule("Write on TransactionalId, Read on Group", add_offsets_to_txn),
    ApiKey.END_TXN: whole(
        WRITE, TRANSACTION, "transactional_id", producer_id=NOTHING, producer_epoch=NOTHING
    ),
    ApiKey.WRITE_TXN_MARKERS: Rule("Alter or ClusterAction on Cluster", write_txn_markers),
    ApiKey.TXN_OFFSET_COMMIT: Rule("Write on TransactionalId, Read on Group, Read on Topic", offset_commit),
    ApiKey.DESCRIBE_ACLS: whole(DESCRIBE, CLUSTER),
    ApiKey.CREATE_ACLS: whole(ALTER, CLUSTER, refused=no_results),
    ApiKey.DELETE_ACLS: whole(ALTER, CLUSTER, refused=no_results),
    ApiKey.DESCRIBE_CONFIGS: configs(DESCRIBE_CONFIGS, "results", "DescribeConfigsResult"),
    ApiKey.ALTER_CONFIGS: configs(ALTER_CONFIGS, "responses", "AlterConfigsResourceResponse"),
    ApiKey.ALTER_REPLICA_LOG_DIRS: whole(ALTER, CLUSTER, refused=no_log_dirs),
    ApiKey.DESCRIBE_LOG_DIRS: whole(DESCRIBE, CLUSTER),
    ApiKey.CREATE_PARTITIONS: each(
        ALTER, TOPIC, "topics", "results", "CreatePartitionsTopicResult", lambda one: str(one.name), "name"
    ),
    ApiKey.DELETE_GROUPS: each(
        DELETE, GROUP, "groups_names", "results", "DeletableGroupResult", itself, "group_id"
    ),
    ApiKey.ELECT_LEADERS: whole(ALTER, CLUSTER, refused=no_election),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: configs(ALTER_CONFIGS, "responses", "AlterConfigsResourceResponse"),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: whole(ALTER, CLUSTER),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: whole(DESCRIBE, CLUSTER),
    ApiKey.OFFSET_DELETE: Rule("Delete on Group, Read on Topic", offset_delete),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: whole(DESCRIBE_CONFIGS, CLUSTER, entries=None),
    ApiKey.ALTER_CLIENT_QUOTAS: whole(ALTER_CONFIGS, CLUSTER, refused=no_quotas),
    ApiKey.DESCRIBE_QUORUM: whole(DESCRIBE, CLUSTER),
    ApiKey.DESCRIBE_CLUSTER: Rule("nothing; Describe on Cluster to see the authorized operations"),
    ApiKey.DESCRIBE_PRODUCERS: Rule("Read on Topic; in its handler"),
    ApiKey.UNREGISTER_BROKER: whole(ALTER, CLUSTER),
    ApiKey.DESCRIBE_TRANSACTIONS: Rule(
        "Describe on TransactionalId; Describe on Topic to see its partitions", describe_transactions
    ),
    ApiKey.LIST_TRANSACTIONS: Rule("those with Describe on TransactionalId", list_transactions),
    ApiKey.LIST_CONFIG_RESOURCES: whole(DESCRIBE_CONFIGS, CLUSTER),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Rule("Describe on Topic; in its handler"),
    ApiKey.SASL_HANDSHAKE: Rule("nothing"),
    ApiKey.SASL_AUTHENTICATE: Rule("nothing"),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: whole(DESCRIBE, CLUSTER),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: whole(ALTER, CLUSTER, refused=no_credentials),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Rule(
        "Read on Group, Describe on every Topic of the subscription; a regular expression finds those with "
        "Describe",
        group_heartbeat,
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Rule(
        "Describe on Group, Describe on every Topic of its members", group_description
    ),
    ApiKey.SHARE_GROUP_HEARTBEAT: Rule(
        "Read on Group, Describe on every Topic of the subscription", group_heartbeat
    ),
    ApiKey.SHARE_GROUP_DESCRIBE: Rule(
        "Describe on Group, Describe on every Topic of its members", group_description
    ),
    ApiKey.SHARE_FETCH: Rule(
        "Read on Group, Read on every Topic; those of its session in its handler", of_group_and_topics(READ)
    ),
    ApiKey.SHARE_ACKNOWLEDGE: Rule("Read on Group, Read on every Topic", of_group_and_topics(READ)),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: Rule("Describe on Group, Describe on Topic", share_offsets),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: Rule("Read on Group, Read on every Topic", of_group_and_topics(READ)),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: Rule(
        "Delete on Group, Read on every Topic", of_group_and_topics(DELETE)
    ),
}
