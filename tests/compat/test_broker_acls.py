"""Real clients at a broker with an authorizer and quotas: what they are told, and that they wait."""

import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError

from sparklog.client import SparkLog
from sparklog.metadata import Acl, plan_change_acls, plan_set_quotas
from sparklog_server.settings.access import STANDARD_AUTHORIZER
from tests.support.broker_process import BrokerProcess, until

SETTINGS = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "quota.window.num": "2",
    "group.initial.rebalance.delay.ms": "0",
}
ANYBODY = "User:ANONYMOUS"


@pytest.fixture
def topic(log: SparkLog) -> Iterator[str]:
    log.create_topic("orders", 1)
    yield "orders"
    acls = log.refresh(force=True).acls
    log.metadata.publish(lambda image: plan_change_acls(image, removed=acls))
    log.delete_topic("orders")


def allow(log: SparkLog, *wanted: tuple[str, str, str]) -> None:
    acls = [Acl(kind, name, "LITERAL", ANYBODY, "*", operation, "ALLOW") for kind, name, operation in wanted]
    log.metadata.publish(lambda image: plan_change_acls(image, added=acls))


def produced(server: BrokerProcess, topic: str, **settings: Any) -> list[Any]:
    told: list[Any] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": server.bootstrap, **settings})
    producer.produce(topic, b"x", on_delivery=lambda error, _: told.append(error and error.code()))
    producer.flush(60)
    return told


def test_librdkafka(server: BrokerProcess, log: SparkLog, topic: str) -> None:
    settings = {"message.timeout.ms": 30_000}
    assert produced(server, topic, **settings) == [confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED]
    allow(log, ("TOPIC", topic, "WRITE"))
    assert produced(server, topic, **settings) == [None]
    assert produced(server, topic, **settings | {"enable.idempotence": True}) == [None]
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    message = consumer.poll(30)
    assert message is not None
    error = message.error()
    assert error is not None
    assert error.code() == confluent_kafka.KafkaError.GROUP_AUTHORIZATION_FAILED
    consumer.close()
    allow(log, ("GROUP", "g", "READ"), ("TOPIC", topic, "READ"))
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": server.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found = consumer.poll(30)
    assert found is not None
    assert found.value() == b"x"
    consumer.close()


def test_kafka_python(server: BrokerProcess, log: SparkLog, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=server.bootstrap)
    with pytest.raises(TopicAuthorizationFailedError):
        producer.send(topic, b"x").get(30)
    allow(log, ("TOPIC", topic, "WRITE"), ("TOPIC", topic, "READ"))
    producer.close()
    producer = KafkaProducer(bootstrap_servers=server.bootstrap)
    assert producer.send(topic, b"x").get(30).offset == 0
    producer.close()
    consumer = KafkaConsumer(topic, bootstrap_servers=server.bootstrap, group_id="g2")
    with pytest.raises(GroupAuthorizationFailedError):
        consumer.poll(30_000)
    consumer.close(autocommit=False)


def was_created(admin: AdminClient, binding: Any) -> bool:
    (created,) = admin.create_acls([binding]).values()
    return created.exception(30) is None


def test_acls_by_an_admin_client(server: BrokerProcess, log: SparkLog, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    kinds: Any = confluent_kafka.admin
    binding = kinds.AclBinding(
        kinds.ResourceType.TOPIC,
        topic,
        kinds.ResourcePatternType.PREFIXED,
        "User:alice",
        "*",
        kinds.AclOperation.READ,
        kinds.AclPermissionType.ALLOW,
    )
    (created,) = admin.create_acls([binding]).values()
    with pytest.raises(confluent_kafka.KafkaException, match="CLUSTER_AUTHORIZATION_FAILED"):
        created.result(30)
    allow(log, ("CLUSTER", "kafka-cluster", "ALTER"))
    until(lambda: was_created(admin, binding))  # once the broker knows of it
    wanted = kinds.AclBindingFilter(
        kinds.ResourceType.TOPIC,
        None,
        kinds.ResourcePatternType.ANY,
        "User:alice",
        None,
        kinds.AclOperation.ANY,
        kinds.AclPermissionType.ANY,
    )
    assert admin.describe_acls(wanted).result(30) == [binding]
    (deleted,) = admin.delete_acls([wanted]).values()
    assert deleted.result(30) == [binding]
    assert admin.describe_acls(wanted).result(30) == []


def set_rate(log: SparkLog, rate: float | None) -> None:
    entity = (("user", "ANONYMOUS"),)
    log.metadata.publish(lambda image: plan_set_quotas(image, {entity: {"producer_byte_rate": rate}}))


def test_a_producer_waits_by_itself(server: BrokerProcess, log: SparkLog, topic: str) -> None:
    """4 MB at 1 MB a second, of which one second may be used in a burst."""
    allow(log, ("TOPIC", topic, "WRITE"))
    set_rate(log, 1_000_000.0)
    throttled: list[float] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": server.bootstrap,
            "batch.size": 100_000,
            "throttle_cb": lambda event: throttled.append(event.throttle_time),
        }
    )
    began = time.monotonic()
    for _ in range(40):
        producer.produce(topic, bytes(100_000))
    assert producer.flush(60) == 0
    assert time.monotonic() - began > 2.0
    assert throttled
    set_rate(log, None)
