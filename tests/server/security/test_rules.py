"""A generated matrix: every API against roles. Nothing is served without a rule, and no rule is idle."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from sparklog.metadata import Acl, plan_change_acls
from sparklog_server.api.registry import declared_apis
from sparklog_server.protocol import wire
from sparklog_server.protocol.apis import ApiKey
from sparklog_server.protocol.responses import topic_uuid
from sparklog_server.security.rules import RULES
from sparklog_server.settings.access import STANDARD_AUTHORIZER
from tests.server.api.share_requests import Worker
from tests.server.security.requests import GROUP, ID, OTHER, REQUESTS, TOPIC, UNKNOWN_ID, VERSIONS
from tests.support.principals import client_of, trust_client_ids
from tests.support.running_broker import RunningBroker

BROKER_SETTINGS = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:root",
    "group.initial.rebalance.delay.ms": "0",
}
BROKER_TOPICS = {TOPIC: 1}
REFUSALS = {
    ErrorCode.topic_authorization_failed,
    ErrorCode.group_authorization_failed,
    ErrorCode.cluster_authorization_failed,
    ErrorCode.transactional_id_authorization_failed,
}
# Open to everybody, or lists without what may not be seen.
WITHOUT_ERRORS = {
    ApiKey.API_VERSIONS,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.LIST_GROUPS,
    ApiKey.LIST_TRANSACTIONS,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
}
# The least that lets the requests of requests.py through: resource types and operations.
T, G, C, X = ("TOPIC", TOPIC), ("GROUP", GROUP), ("CLUSTER", "kafka-cluster"), ("TRANSACTIONAL_ID", ID)
NEEDED: dict[ApiKey, list[tuple[tuple[str, str], str]]] = {
    ApiKey.PRODUCE: [(T, "WRITE")],
    ApiKey.FETCH: [(T, "READ")],
    ApiKey.LIST_OFFSETS: [(T, "DESCRIBE")],
    ApiKey.METADATA: [(T, "DESCRIBE")],
    ApiKey.OFFSET_COMMIT: [(G, "READ"), (T, "READ")],
    ApiKey.OFFSET_FETCH: [(G, "DESCRIBE"), (T, "DESCRIBE")],
    ApiKey.FIND_COORDINATOR: [(G, "DESCRIBE")],
    ApiKey.JOIN_GROUP: [(G, "READ")],
    ApiKey.HEARTBEAT: [(G, "READ")],
    ApiKey.LEAVE_GROUP: [(G, "READ")],
    ApiKey.SYNC_GROUP: [(G, "READ")],
    ApiKey.DESCRIBE_GROUPS: [(G, "DESCRIBE")],
    ApiKey.LIST_GROUPS: [(G, "DESCRIBE")],
    ApiKey.CREATE_TOPICS: [(("TOPIC", OTHER), "CREATE"), (("TOPIC", OTHER), "DESCRIBE_CONFIGS")],
    ApiKey.DELETE_TOPICS: [(T, "DELETE")],
    ApiKey.DELETE_RECORDS: [(T, "DELETE")],
    ApiKey.INIT_PRODUCER_ID: [(X, "WRITE")],
    ApiKey.OFFSET_FOR_LEADER_EPOCH: [(T, "DESCRIBE")],
    ApiKey.ADD_PARTITIONS_TO_TXN: [(X, "WRITE"), (T, "WRITE")],
    ApiKey.ADD_OFFSETS_TO_TXN: [(X, "WRITE"), (G, "READ")],
    ApiKey.END_TXN: [(X, "WRITE")],
    ApiKey.WRITE_TXN_MARKERS: [(C, "CLUSTER_ACTION")],
    ApiKey.TXN_OFFSET_COMMIT: [(X, "WRITE"), (G, "READ"), (T, "READ")],
    ApiKey.DESCRIBE_ACLS: [(C, "DESCRIBE")],
    ApiKey.CREATE_ACLS: [(C, "ALTER")],
    ApiKey.DELETE_ACLS: [(C, "ALTER")],
    ApiKey.DESCRIBE_CONFIGS: [(T, "DESCRIBE_CONFIGS")],
    ApiKey.ALTER_CONFIGS: [(T, "ALTER_CONFIGS")],
    ApiKey.ALTER_REPLICA_LOG_DIRS: [(C, "ALTER")],
    ApiKey.DESCRIBE_LOG_DIRS: [(C, "DESCRIBE")],
    ApiKey.CREATE_PARTITIONS: [(T, "ALTER")],
    ApiKey.DELETE_GROUPS: [(G, "DELETE")],
    ApiKey.ELECT_LEADERS: [(C, "ALTER")],
    ApiKey.INCREMENTAL_ALTER_CONFIGS: [(T, "ALTER_CONFIGS")],
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: [(C, "ALTER")],
    ApiKey.LIST_PARTITION_REASSIGNMENTS: [(C, "DESCRIBE")],
    ApiKey.OFFSET_DELETE: [(G, "DELETE"), (T, "READ")],
    ApiKey.DESCRIBE_CLIENT_QUOTAS: [(C, "DESCRIBE_CONFIGS")],
    ApiKey.ALTER_CLIENT_QUOTAS: [(C, "ALTER_CONFIGS")],
    ApiKey.DESCRIBE_QUORUM: [(C, "DESCRIBE")],
    ApiKey.DESCRIBE_PRODUCERS: [(T, "READ")],
    ApiKey.UNREGISTER_BROKER: [(C, "ALTER")],
    ApiKey.DESCRIBE_TRANSACTIONS: [(("TRANSACTIONAL_ID", UNKNOWN_ID), "DESCRIBE")],
    ApiKey.LIST_CONFIG_RESOURCES: [(C, "DESCRIBE_CONFIGS")],
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: [(T, "DESCRIBE")],
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: [(C, "DESCRIBE")],
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: [(C, "ALTER")],
    ApiKey.CONSUMER_GROUP_HEARTBEAT: [(G, "READ"), (T, "DESCRIBE")],
    ApiKey.CONSUMER_GROUP_DESCRIBE: [(G, "DESCRIBE")],
    ApiKey.SHARE_GROUP_HEARTBEAT: [(G, "READ"), (T, "DESCRIBE")],
    ApiKey.SHARE_GROUP_DESCRIBE: [(G, "DESCRIBE")],
    ApiKey.SHARE_FETCH: [(G, "READ")],  # topics are named by id: see below
    ApiKey.SHARE_ACKNOWLEDGE: [(G, "READ")],
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: [(G, "DESCRIBE")],
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: [(G, "READ"), (T, "READ")],
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: [(G, "DELETE"), (T, "READ")],
}


def errors_in(value: Any) -> Iterator[ErrorCode]:
    """Yield the error codes of an answer, at any depth."""
    if isinstance(value, ErrorCode):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from errors_in(one)
    elif dataclasses.is_dataclass(value):
        for one in dataclasses.fields(value):
            yield from errors_in(getattr(value, one.name))


def asked(running: RunningBroker, principal: str, key: ApiKey) -> Any:
    version = VERSIONS.get(key, declared_apis()[key].versions.stop - 1)
    with client_of(running, principal) as client:
        return client.ask(key, version, **REQUESTS[key]())


def grant(running: RunningBroker, *acls: Acl) -> None:
    running.beside().metadata.publish(lambda image: plan_change_acls(image, added=acls))
    running.settle()


def of_role(principal: str, key: ApiKey, permission: str = "ALLOW") -> list[Acl]:
    return [
        Acl(kind, name, "LITERAL", principal, "*", operation, permission)
        for (kind, name), operation in NEEDED.get(key, ())
    ]


def test_every_api_has_a_rule_and_a_row_of_the_matrix() -> None:
    keys = {ApiKey(key) for key in declared_apis()}
    assert keys <= set(RULES)
    assert keys == set(REQUESTS)
    assert keys - set(NEEDED) <= WITHOUT_ERRORS
    served_by_rule = {key for key in keys if RULES[key].check is None}
    assert {key for key in served_by_rule if "in its handler" not in RULES[key].needs} == {
        ApiKey.API_VERSIONS,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
    }


@pytest.mark.slow
def test_the_matrix(running_broker: RunningBroker) -> None:
    """Each API: a nobody, without one of its permissions, with exactly these, with a DENY, a super user."""
    trust_client_ids(running_broker)
    acls = []
    for key in NEEDED:
        role = of_role(f"User:exact-{key.name}", key)
        acls += role
        acls += [one._replace(principal=f"User:less-{key.name}") for one in role[1:]]
        acls += [one._replace(principal=f"User:denied-{key.name}") for one in role]
        acls += [role[0]._replace(principal=f"User:denied-{key.name}", permission="DENY", host="127.0.0.1")]
    grant(running_broker, *acls)
    wrong = []
    for key in REQUESTS:
        for who, is_allowed in (
            ("User:nobody", False),
            (f"User:less-{key.name}", False),
            (f"User:denied-{key.name}", False),
            (f"User:exact-{key.name}", True),
            ("User:root", True),
        ):
            found = REFUSALS & set(errors_in(asked(running_broker, who, key)))
            expected = not is_allowed and key not in WITHOUT_ERRORS
            if bool(found) is not expected:
                wrong.append((key.name, who, found))
    assert not wrong


@pytest.mark.slow
def test_nobody_learns_what_exists(running_broker: RunningBroker) -> None:
    """The answers are the same with the topic, the group and the transactional id, and without."""
    trust_client_ids(running_broker)
    asked(running_broker, "User:root", ApiKey.INIT_PRODUCER_ID)
    asked(running_broker, "User:root", ApiKey.OFFSET_COMMIT)
    before = {key: asked(running_broker, "User:nobody", key) for key in REQUESTS}
    log = running_broker.beside()
    log.delete_topic(TOPIC)
    running_broker.settle()
    after = {key: asked(running_broker, "User:nobody", key) for key in REQUESTS}
    different = {key.name for key in REQUESTS if before[key] != after[key]}
    assert different <= {ApiKey.API_VERSIONS.name}  # it has the number of the newest commit


def test_a_hidden_topic_takes_no_room_of_the_answer(
    running_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others that did not fit next to it said that it exists, and how large it is."""
    trust_client_ids(running_broker)
    running_broker.beside().create_topic("secret", 30)
    running_broker.settle()
    grant(running_broker, Acl("TOPIC", TOPIC, "LITERAL", "User:alice", "*", "READ", "ALLOW"))
    found: dict[str, list[ErrorCode]] = {"secret": [], "sexret": []}
    with client_of(running_broker, "User:alice") as client:
        for limit in range(100, 2000, 20):
            monkeypatch.setattr(wire, "MAX_ANSWER_BYTES", limit)
            for hidden, codes in found.items():
                names = [{"_": "MetadataRequestTopic", "name": name} for name in (hidden, TOPIC)]
                answer = client.ask(ApiKey.METADATA, 9, topics=names, allow_auto_topic_creation=False)
                codes += [one.error_code for one in answer.topics]
    assert set(found["secret"]) == {
        ErrorCode.topic_authorization_failed,
        ErrorCode.unknown_server_error,
        ErrorCode.none,
    }
    assert found["secret"] == found["sexret"]


def test_listings_leave_out_what_may_not_be_seen(running_broker: RunningBroker) -> None:
    trust_client_ids(running_broker)
    log = running_broker.beside()
    log.create_topic("secret", 1)
    running_broker.settle()
    for group in (GROUP, "hidden"):
        for topic in (TOPIC, "secret"):
            with client_of(running_broker, "User:root") as client:
                request = REQUESTS[ApiKey.OFFSET_COMMIT]()
                request["group_id"] = group
                request["topics"][0]["name"] = topic
                assert set(errors_in(client.ask(8, 9, **request))) == {ErrorCode.none}
    grant(
        running_broker,
        Acl("TOPIC", TOPIC, "LITERAL", "User:alice", "*", "READ", "ALLOW"),
        Acl("GROUP", "read", "PREFIXED", "User:alice", "*", "READ", "ALLOW"),
    )
    with client_of(running_broker, "User:alice") as client:
        topics = client.ask(ApiKey.METADATA, 12, topics=None).topics
        assert [one.name for one in topics] == [TOPIC]
        topics = client.ask(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=(), response_partition_limit=9, cursor=None
        ).topics
        assert [one.name for one in topics] == [TOPIC]
        groups = client.ask(ApiKey.LIST_GROUPS, 5, states_filter=(), types_filter=()).groups
        assert [one.group_id for one in groups] == [GROUP]
        request = REQUESTS[ApiKey.OFFSET_FETCH]()
        request["groups"][0]["topics"] = None
        (group_answer,) = client.ask(ApiKey.OFFSET_FETCH, 9, **request).groups
        assert [one.name for one in group_answer.topics] == [TOPIC]
        (group_answer,) = client.ask(ApiKey.OFFSET_FETCH, 10, **request).groups
        assert [one.topic_id for one in group_answer.topics] == [topic_uuid(log.image.topic(TOPIC).topic_id)]
    with client_of(running_broker, "User:root") as client:
        assert len(client.ask(ApiKey.METADATA, 12, topics=None).topics) == 3  # with __consumer_offsets
        assert len(client.ask(ApiKey.LIST_GROUPS, 5, states_filter=(), types_filter=()).groups) == 2


def test_authorized_operations(running_broker: RunningBroker) -> None:
    trust_client_ids(running_broker)
    grant(
        running_broker,
        Acl("TOPIC", TOPIC, "LITERAL", "User:alice", "*", "WRITE", "ALLOW"),
        Acl("GROUP", GROUP, "LITERAL", "User:alice", "*", "READ", "ALLOW"),
        Acl("CLUSTER", "kafka-cluster", "LITERAL", "User:alice", "*", "ALTER", "ALLOW"),
    )
    with client_of(running_broker, "User:alice") as client:
        request = REQUESTS[ApiKey.METADATA]() | {
            "include_topic_authorized_operations": True,
            "include_cluster_authorized_operations": True,
        }
        (topic,) = client.ask(ApiKey.METADATA, 10, **request).topics
        assert topic.topic_authorized_operations == 1 << 4 | 1 << 8
        (group,) = client.ask(
            ApiKey.DESCRIBE_GROUPS, 5, groups=(GROUP,), include_authorized_operations=True
        ).groups
        assert group.authorized_operations == 1 << 3 | 1 << 8
        cluster = client.ask(ApiKey.DESCRIBE_CLUSTER, 1, include_cluster_authorized_operations=True)
        assert cluster.cluster_authorized_operations == 1 << 7 | 1 << 8
    with client_of(running_broker, "User:nobody") as client:
        cluster = client.ask(ApiKey.DESCRIBE_CLUSTER, 1, include_cluster_authorized_operations=True)
        assert cluster.cluster_authorized_operations == 0


def test_a_session_is_checked_with_each_fetch(running_broker: RunningBroker) -> None:
    """Permissions end while a session goes on; and another client may name the session."""
    trust_client_ids(running_broker)
    reads = Acl("TOPIC", TOPIC, "LITERAL", "User:alice", "*", "READ", "ALLOW")
    grant(running_broker, reads)
    request = REQUESTS[ApiKey.FETCH]() | {"session_epoch": 0}
    with client_of(running_broker, "User:alice") as alice, client_of(running_broker, "User:bob") as bob:
        opened = alice.ask(ApiKey.FETCH, 12, **request)
        assert opened.session_id != 0
        again = request | {"session_id": opened.session_id, "session_epoch": 1, "topics": ()}
        stolen = bob.ask(ApiKey.FETCH, 12, **again)
        assert ErrorCode.topic_authorization_failed in set(errors_in(stolen))
        running_broker.beside().metadata.publish(lambda image: plan_change_acls(image, removed=[reads]))
        running_broker.settle()
        revoked = alice.ask(ApiKey.FETCH, 12, **(again | {"session_epoch": 2}))
        assert ErrorCode.topic_authorization_failed in set(errors_in(revoked))


def test_a_regular_expression_finds_no_hidden_topic(running_broker: RunningBroker) -> None:
    """As in Kafka. And a member that may see less takes nothing from the others of its group."""
    trust_client_ids(running_broker)
    log = running_broker.beside()
    log.create_topic(f"{TOPIC}-hidden", 1)
    grant(
        running_broker,
        Acl("GROUP", "*", "LITERAL", "User:*", "*", "READ", "ALLOW"),
        Acl("TOPIC", TOPIC, "LITERAL", "User:alice", "*", "DESCRIBE", "ALLOW"),
    )
    request = REQUESTS[ApiKey.CONSUMER_GROUP_HEARTBEAT]() | {
        "subscribed_topic_names": None,
        "subscribed_topic_regex": f"{TOPIC}.*",
    }

    def found(principal: str, **changes: Any) -> set[str]:
        """Topics of the group, after a member has joined."""
        asked = request | {"member_id": principal, **changes}
        with client_of(running_broker, principal) as client:
            assert client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **asked).error_code is ErrorCode.none
        (group,) = {str(asked["group_id"])}
        handle = running_broker.broker.groups.consumers.find(group)
        assert handle is not None
        return set(handle.group.regexes[f"{TOPIC}.*"].topics)

    assert found("User:alice") == {TOPIC}
    assert found("User:nobody", group_id="of nobody") == set()
    everything = {TOPIC, f"{TOPIC}-hidden"}
    assert found("User:root", group_id="of root") == everything
    log.create_topic("another", 1)  # patterns are looked up again
    running_broker.settle()
    assert found("User:alice", group_id="of root") == everything


def test_records_of_a_share_group_need_read_on_their_topic_with_each_fetch(
    running_broker: RunningBroker,
) -> None:
    trust_client_ids(running_broker)
    reads = Acl("TOPIC", TOPIC, "LITERAL", "User:alice", "*", "READ", "ALLOW")
    grant(running_broker, Acl("GROUP", "*", "LITERAL", "User:alice", "*", "READ", "ALLOW"), reads)
    log = running_broker.beside()
    topic_id = log.image.topic(TOPIC).topic_id
    with client_of(running_broker, "User:alice") as client:
        worker = Worker(client, topic_id)
        assert worker.fetch_all().error_code is ErrorCode.none
        log.metadata.publish(lambda image: plan_change_acls(image, removed=[reads]))
        running_broker.settle()
        assert worker.fetch_all().error_code is ErrorCode.topic_authorization_failed
        other = Worker(client, topic_id, member="m-2")
        assert other.fetch_all().error_code is ErrorCode.topic_authorization_failed


def test_missing_topics_are_created_with_permission_only(running_broker: RunningBroker) -> None:
    trust_client_ids(running_broker)
    grant(
        running_broker,
        Acl("TOPIC", "new-", "PREFIXED", "User:*", "*", "DESCRIBE", "ALLOW"),
        Acl("TOPIC", "new-", "PREFIXED", "User:alice", "*", "CREATE", "ALLOW"),
    )
    request: dict[str, Any] = {
        "topics": [{"_": "MetadataRequestTopic", "name": "new-topic"}],
        "allow_auto_topic_creation": True,
    }
    with client_of(running_broker, "User:bob") as client:
        (topic,) = client.ask(ApiKey.METADATA, 9, **request).topics
        assert topic.error_code is ErrorCode.topic_authorization_failed
    with client_of(running_broker, "User:alice") as client:
        (topic,) = client.ask(ApiKey.METADATA, 9, **request).topics
        assert topic.error_code is ErrorCode.none


def test_topics_by_id(running_broker: RunningBroker) -> None:
    """Ids are no secret; names are."""
    trust_client_ids(running_broker)
    topic_id = topic_uuid(running_broker.beside().image.topic(TOPIC).topic_id)
    fetch = REQUESTS[ApiKey.FETCH]()
    fetch["topics"][0] = {**fetch["topics"][0], "topic_id": topic_id}
    del fetch["topics"][0]["topic"]
    with client_of(running_broker, "User:nobody") as client:
        (topic,) = client.ask(
            ApiKey.METADATA,
            12,
            topics=[{"_": "MetadataRequestTopic", "name": None, "topic_id": topic_id}],
            allow_auto_topic_creation=False,
        ).topics
        assert (topic.error_code, topic.name) == (ErrorCode.topic_authorization_failed, None)
        assert ErrorCode.topic_authorization_failed in set(errors_in(client.ask(ApiKey.FETCH, 13, **fetch)))
        (deleted,) = client.ask(
            ApiKey.DELETE_TOPICS,
            6,
            topics=[{"_": "DeleteTopicState", "name": None, "topic_id": topic_id}],
            timeout=1000,
        ).responses
        assert (deleted.error_code, deleted.name) == (ErrorCode.topic_authorization_failed, None)


def test_acks_0_without_permission_closes_the_connection(running_broker: RunningBroker) -> None:
    trust_client_ids(running_broker)
    with client_of(running_broker, "User:nobody") as client:
        client.send(ApiKey.PRODUCE, 9, **(REQUESTS[ApiKey.PRODUCE]() | {"acks": 0}))
        assert client.is_closed()


def test_the_page_has_every_rule() -> None:
    page = (Path(__file__).parents[3] / "docs" / "acls.md").read_text()
    for key, declared in declared_apis().items():
        assert f"|{declared.name}|{RULES[key].needs.removesuffix('; in its handler')}|\n" in page


OLDER: dict[ApiKey, tuple[range, dict[str, Any]]] = {
    ApiKey.OFFSET_FETCH: (
        range(1, 8),
        {
            "group_id": GROUP,
            "topics": [{"_": "OffsetFetchRequestTopic", "name": TOPIC, "partition_indexes": (0,)}],
        },
    ),
    ApiKey.FIND_COORDINATOR: (range(4), {"key": GROUP}),
    ApiKey.DELETE_TOPICS: (range(1, 6), {"topic_names": ("missing",), "timeout": 1000}),
    ApiKey.LEAVE_GROUP: (range(3), {"group_id": GROUP, "member_id": "m"}),
}


@pytest.mark.exhaustive
def test_the_rules_of_every_version(running_broker: RunningBroker) -> None:
    """A nobody is refused in each version that is served, a super user in none, and both are answered."""
    trust_client_ids(running_broker)
    wrong = []
    for key, declared in declared_apis().items():
        older, fields = OLDER.get(ApiKey(key), (range(0), {}))
        for version in declared.versions:
            if version > VERSIONS.get(ApiKey(key), 99):
                continue
            request = fields if version in older else REQUESTS[ApiKey(key)]()
            for who, is_allowed in (("User:nobody", False), ("User:root", True)):
                if key == ApiKey.DELETE_TOPICS and is_allowed:
                    continue  # the others still need the topic
                with client_of(running_broker, who) as client:
                    found = REFUSALS & set(errors_in(client.ask(key, version, **request)))
                expected = not is_allowed and key not in WITHOUT_ERRORS
                if key == ApiKey.DESCRIBE_LOG_DIRS and version < 3:
                    expected = False  # there is no error in the answer, and no directory
                if bool(found) is not expected:
                    wrong.append((ApiKey(key).name, version, who, found))
    assert not wrong
