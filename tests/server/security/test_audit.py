"""Where verdicts are recorded: Kafka's lines, JSON, and the topic __audit."""

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from sparklog.client.authorizer import Verdict
from sparklog.clock import ManualClock
from sparklog.metadata import Acl
from sparklog_server.protocol.apis import ApiKey
from sparklog_server.security.audit import AUDIT_TOPIC, MAX_DENIALS, Asked, Audit
from sparklog_server.settings.access import STANDARD_AUTHORIZER, AccessSettings
from tests.compat.embedded import stored_records
from tests.server.security.requests import REQUESTS, TOPIC
from tests.server.security.test_rules import errors_in, grant
from tests.support.principals import client_of, trust_client_ids
from tests.support.running_broker import RunningBroker

LOGGER = "kafka.authorizer.logger"
BROKER_SETTINGS = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:root"}
BROKER_TOPICS = {TOPIC: 1}
READ_ORDERS = Acl("TOPIC", TOPIC, "LITERAL", "User:alice", "*", "READ", "ALLOW")
ASKED = Asked("User:a", "10.0.0.1", "c", "Produce", "WRITE", "TOPIC", "orders", 2)
DENIED, ALLOWED = Verdict(False, "DefaultDeny"), Verdict(True, "SuperUser")
Told = Callable[[str], list[str]]


@pytest.fixture(autouse=True)
def _level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)


def settings(**fields: Any) -> AccessSettings:
    return AccessSettings(authorizer_class_name=STANDARD_AUTHORIZER, **fields)


def test_lines_are_kafkas(running_broker: RunningBroker, told: Told) -> None:
    trust_client_ids(running_broker)
    grant(running_broker, READ_ORDERS)
    with client_of(running_broker, "User:bob") as client:
        client.ask(ApiKey.LIST_OFFSETS, 9, **REQUESTS[ApiKey.LIST_OFFSETS]())
        client.ask(ApiKey.LIST_GROUPS, 4, states_filter=())  # leaves out, and denies nothing
    with client_of(running_broker, "User:alice") as client:
        client.ask(ApiKey.LIST_OFFSETS, 9, **REQUESTS[ApiKey.LIST_OFFSETS]())
    running_broker.stop()
    (line,) = told(LOGGER)
    assert line == (
        "Principal = User:bob is Denied operation = DESCRIBE from host = 127.0.0.1 on resource = "
        "Topic:LITERAL:orders for request = ListOffsets with resourceRefCount = 1 based on rule DefaultDeny"
    )


def test_levels(told: Told, caplog: pytest.LogCaptureFixture) -> None:
    audit = Audit(settings(), ManualClock())
    assert audit.wants(is_allowed=False)
    assert not audit.wants(is_allowed=True)
    caplog.set_level(logging.DEBUG, LOGGER)
    assert audit.wants(is_allowed=True)
    audit.note(ASKED, DENIED)
    audit.note(ASKED, ALLOWED)
    audit.note(ASKED, DENIED, is_filter=True)
    assert len(told(LOGGER)) == 2


def test_json_lines(told: Told) -> None:
    Audit(settings(audit_format="json"), ManualClock(now_ms=5)).note(ASKED, DENIED)
    (line,) = told(LOGGER)
    assert json.loads(line) == {
        "time_ms": 5,
        "principal": "User:a",
        "host": "10.0.0.1",
        "client_id": "c",
        "request": "Produce",
        "operation": "WRITE",
        "resource_type": "TOPIC",
        "resource": "orders",
        "resource_ref_count": 2,
        "allowed": False,
        "rule": "DefaultDeny",
    }


def test_a_request_logs_a_bounded_number_of_denials(running_broker: RunningBroker, told: Told) -> None:
    with client_of(running_broker, "User:bob") as client:
        topics = [{"_": "MetadataRequestTopic", "name": f"t{number}"} for number in range(500)]
        client.ask(ApiKey.METADATA, 9, topics=topics, allow_auto_topic_creation=False)
    running_broker.stop()
    assert len(told(LOGGER)) == MAX_DENIALS + 1
    assert "more than 100 denials" in told(LOGGER)[-1]


def test_the_buffer_is_bounded_and_counts_what_is_dropped() -> None:
    audit = Audit(settings(audit_topic_enable=True, audit_buffer=3), ManualClock())
    for _ in range(5):
        audit.note(ASKED, DENIED)
        audit.note(ASKED, ALLOWED)  # not asked for
    events, dropped = audit.take()
    assert (len(events), dropped) == (3, 2)
    assert audit.take() == ([], 0)
    audit.note(ASKED, DENIED)
    audit.give_back(events, dropped)  # the append has failed; the newest stay
    events, dropped = audit.take()
    assert (len(events), dropped) == (3, 3)
    assert audit.dropped_ever == 3


def test_the_topic_has_the_denials(start_broker: Callable[..., RunningBroker]) -> None:
    running = start_broker(
        {**BROKER_SETTINGS, "sparklog.audit.topic.enable": "true", "sparklog.audit.interval.ms": "3600000"}
    )
    trust_client_ids(running)
    with client_of(running, "User:bob") as client:
        client.ask(ApiKey.LIST_OFFSETS, 9, **REQUESTS[ApiKey.LIST_OFFSETS]())
    with client_of(running, "User:root") as client:
        client.ask(ApiKey.LIST_OFFSETS, 9, **REQUESTS[ApiKey.LIST_OFFSETS]())
    running.stop()  # which appends what waits
    again = start_broker({**BROKER_SETTINGS, "sparklog.audit.topic.enable": "true"}, root=running.root)
    found = [json.loads(one.value or b"") for one in stored_records(again.beside(), AUDIT_TOPIC, 0)]
    assert [(one["principal"], one["operation"], one["allowed"]) for one in found] == [
        ("User:bob", "DESCRIBE", False)
    ]
    again.settle()
    trust_client_ids(again)
    with client_of(again, "User:root") as client:  # nobody but brokers appends to it
        request = REQUESTS[ApiKey.PRODUCE]()
        request["topic_data"][0]["name"] = AUDIT_TOPIC
        answer = client.ask(ApiKey.PRODUCE, 9, **request)
        assert ErrorCode.invalid_topic_exception in set(errors_in(answer))


@pytest.mark.parametrize("users", ["alice", "User:alice;bob"])
def test_super_users_have_a_type(users: str) -> None:
    with pytest.raises(Exception, match=r"super\.users: found"):
        settings(super_users=users)
