"""Administering topics and settings with the admin clients that people use, over a real socket."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewPartitions as AioNewPartitions
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from aiokafka.admin.config_resource import ConfigResourceType as AioConfigResourceType
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from kafka.admin import ConfigResource as PyConfigResource
from kafka.admin import KafkaAdminClient
from kafka.admin import NewPartitions as PyNewPartitions
from kafka.admin import NewTopic as PyNewTopic
from kafka.errors import InvalidConfigurationError, InvalidReplicationFactorError, TopicAlreadyExistsError

from sparklog.client import SparkLog
from tests.support.broker_process import BrokerProcess, until

SETTINGS = {"num.partitions": "3"}
_numbers = itertools.count(1)


@pytest.fixture
def name() -> str:
    """A topic that does not exist."""
    return f"admin-{next(_numbers)}"


@pytest.fixture(scope="module")
def confluent(server: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": server.bootstrap})


@pytest.fixture(scope="module")
def python(server: BrokerProcess) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=server.bootstrap)
    yield client
    client.close()


def done(futures: dict[Any, Any]) -> list[Any]:
    return [future.result(60) for future in futures.values()]


def refusal(futures: dict[Any, Any]) -> tuple[str, str]:
    (future,) = futures.values()
    with pytest.raises(KafkaException) as caught:
        future.result(60)
    error = caught.value.args[0]
    return error.name(), error.str()


# librdkafka


def test_confluent_a_topics_life(confluent: AdminClient, log: SparkLog, name: str) -> None:
    topic = NewTopic(
        name, 2, replication_factor=1, config={"retention.ms": "1000", "min.insync.replicas": "1"}
    )
    done(confluent.create_topics([topic], validate_only=True))
    assert name not in log.topics()
    done(confluent.create_topics([topic]))
    assert log.describe_topic(name).configs == {"retention.ms": "1000", "min.insync.replicas": "1"}
    assert refusal(confluent.create_topics([topic]))[0] == "TOPIC_ALREADY_EXISTS"

    done(confluent.create_partitions([NewPartitions(name, 5)]))
    (described,) = done(confluent.describe_topics(TopicCollection([name])))
    assert len(described.partitions) == 5
    assert all(one.leader.id == 1 and len(one.isr) == 1 for one in described.partitions)
    assert len(confluent.list_topics(name, timeout=30).topics[name].partitions) == 5
    assert refusal(confluent.create_partitions([NewPartitions(name, 3)]))[0] == "INVALID_PARTITIONS"

    done(confluent.delete_topics([name]))
    assert name not in log.topics()
    assert refusal(confluent.delete_topics([name]))[0] == "UNKNOWN_TOPIC_OR_PART"


def test_confluent_defaults_and_refusals(confluent: AdminClient, log: SparkLog, name: str) -> None:
    done(confluent.create_topics([NewTopic(name)]))
    assert log.partition_count(name) == 3, "the broker's num.partitions"
    code, text = refusal(confluent.create_topics([NewTopic(f"{name}x", 1, replication_factor=3)]))
    assert code == "INVALID_REPLICATION_FACTOR"
    assert "only 1 broker(s) are registered" in text
    code, text = refusal(confluent.create_topics([NewTopic(f"{name}x", 1, config={"retention.mss": "1"})]))
    assert code == "INVALID_CONFIG"
    assert "retention.ms" in text


def test_confluent_settings_of_a_topic(confluent: AdminClient, log: SparkLog, name: str) -> None:
    log.create_topic(name, configs={"segment.ms": "5000"})
    resource = ConfigResource(ResourceType.TOPIC, name)
    (entries,) = done(confluent.describe_configs([resource]))
    assert entries["segment.ms"].value == "5000"
    assert entries["segment.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert entries["retention.ms"].is_default
    assert [(one.name, one.value) for one in entries["segment.ms"].synonyms.values()][-1][0] == "log.roll.ms"

    def change(key: str, operation: AlterConfigOpType, value: str | None = None) -> ConfigEntry:
        return ConfigEntry(key, value, incremental_operation=operation)

    changes = [
        change("segment.ms", AlterConfigOpType.DELETE),
        change("retention.ms", AlterConfigOpType.SET, "7"),
        change("cleanup.policy", AlterConfigOpType.APPEND, "compact"),
    ]
    done(
        confluent.incremental_alter_configs(
            [ConfigResource(ResourceType.TOPIC, name, incremental_configs=changes)]
        )
    )
    assert log.describe_topic(name).configs == {"retention.ms": "7", "cleanup.policy": "delete,compact"}
    with pytest.warns(DeprecationWarning, match="alter_configs"):
        done(
            confluent.alter_configs(
                [ConfigResource(ResourceType.TOPIC, name, set_config={"segment.ms": "9"})]
            )
        )
    assert log.describe_topic(name).configs == {"segment.ms": "9"}


def test_confluent_settings_of_the_broker(confluent: AdminClient) -> None:
    (entries,) = done(confluent.describe_configs([ConfigResource(ResourceType.BROKER, "1")]))
    assert entries["num.partitions"].value == "3"
    assert entries["num.partitions"].source == ConfigSource.STATIC_BROKER_CONFIG.value
    assert entries["node.id"].is_read_only
    code, text = refusal(confluent.incremental_alter_configs([of_broker("1", "log.retention.ms", "9")]))
    assert code == "INVALID_REQUEST"
    assert "a single broker: Set(log.retention.ms)" in text
    code, text = refusal(confluent.incremental_alter_configs([of_broker("1", "node.id", "9")]))
    assert (code, "Cannot update these configs dynamically: Set(node.id)" in text) == (
        "INVALID_REQUEST",
        True,
    )


def of_broker(name: str, key: str, value: str | None) -> ConfigResource:
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    change = [ConfigEntry(key, value, incremental_operation=operation)]
    return ConfigResource(ResourceType.BROKER, name, incremental_configs=change)


def test_confluent_settings_of_a_running_broker(confluent: AdminClient) -> None:
    key = "max.connections"

    def found() -> tuple[str, int]:
        (entries,) = done(confluent.describe_configs([ConfigResource(ResourceType.BROKER, "1")]))
        return entries[key].value, entries[key].source

    before = found()
    done(confluent.incremental_alter_configs([of_broker("1", key, "700")]))
    assert found() == ("700", ConfigSource.DYNAMIC_BROKER_CONFIG.value)
    done(confluent.incremental_alter_configs([of_broker("1", key, None)]))
    assert found() == before


# kafka-python


def test_kafka_python_a_topics_life(python: KafkaAdminClient, log: SparkLog, name: str) -> None:
    topic = PyNewTopic(
        name=name, num_partitions=2, replication_factor=1, topic_configs={"retention.ms": "1000"}
    )
    python.create_topics([topic])
    assert log.describe_topic(name).configs == {"retention.ms": "1000"}
    with pytest.raises(TopicAlreadyExistsError):
        python.create_topics([topic])
    python.create_partitions({name: PyNewPartitions(total_count=4)})
    assert log.partition_count(name) == 4
    (described,) = python.describe_topics([name])
    assert len(described["partitions"]) == 4
    python.delete_topics([name])
    assert name not in log.topics()


def test_kafka_python_refusals(python: KafkaAdminClient, name: str) -> None:
    with pytest.raises(InvalidReplicationFactorError, match="only 1 broker"):
        python.create_topics([PyNewTopic(name=name, num_partitions=1, replication_factor=2)])
    with pytest.raises(InvalidConfigurationError, match="expected integer"):
        python.create_topics([PyNewTopic(name=name, num_partitions=1, replication_factor=1,
                                         topic_configs={"retention.ms": "soon"})])  # fmt: skip


def test_kafka_python_settings(python: KafkaAdminClient, log: SparkLog, name: str) -> None:
    log.create_topic(name, configs={"segment.ms": "5000"})
    python.alter_configs([PyConfigResource("TOPIC", name, configs={"retention.ms": "7"})])
    changed = log.describe_topic(name).configs
    assert changed["retention.ms"] == "7"
    described = python.describe_configs([PyConfigResource("TOPIC", name)], config_filter="all")
    assert described["topic"][name]["retention.ms"]["value"] == "7"
    assert described["topic"][name]["segment.bytes"]["value"] == "1073741824"


def test_kafka_python_settings_of_a_running_broker(python: KafkaAdminClient, log: SparkLog) -> None:
    python.alter_configs([PyConfigResource("BROKER", "1", configs={"max.connections": "600"})])
    assert log.refresh(force=True).configs["brokers/1/max.connections"] == "600"
    described = python.describe_configs([PyConfigResource("BROKER", "1")], config_filter="all")
    assert described["broker"]["1"]["max.connections"]["value"] == "600"
    refused = python.alter_configs([PyConfigResource("BROKER", "1", configs={"max.connections": "many"})])
    assert "expected integer" in str(refused)
    python.reset_configs([PyConfigResource("BROKER", "1", configs=["max.connections"])])
    assert "brokers/1/max.connections" not in log.refresh(force=True).configs


def test_kafka_python_log_dirs(python: KafkaAdminClient, log: SparkLog, name: str) -> None:
    log.create_topic(name)
    log.append(name, pa.table({"value": ["x" * 1000]}))
    size = log.describe_topic(name).partitions[0].size_bytes
    described = str(python.describe_log_dirs())
    assert log.url in described
    assert name in described
    assert str(size) in described


# aiokafka


def test_aiokafka_a_topics_life(server: BrokerProcess, log: SparkLog, name: str) -> None:
    async def use(act: Callable[[AIOKafkaAdminClient], Any]) -> Any:
        client = AIOKafkaAdminClient(bootstrap_servers=server.bootstrap)
        await client.start()
        try:
            return await act(client)
        finally:
            await client.close()

    def run(act: Callable[[AIOKafkaAdminClient], Any]) -> Any:
        return asyncio.run(use(act))

    topic = AioNewTopic(name, 2, 1, topic_configs={"retention.ms": "1000"})
    assert "error_code=0" in str(run(lambda client: client.create_topics([topic])))
    assert log.describe_topic(name).configs == {"retention.ms": "1000"}
    run(lambda client: client.create_partitions({name: AioNewPartitions(4)}))
    assert log.partition_count(name) == 4
    resource = AioConfigResource(AioConfigResourceType.TOPIC, name, configs={"retention.ms": "7"})
    run(lambda client: client.alter_configs([resource]))
    assert log.describe_topic(name).configs == {"retention.ms": "7"}
    asked = AioConfigResource(AioConfigResourceType.TOPIC, name)
    assert "retention.ms" in str(run(lambda client: client.describe_configs([asked])))
    run(lambda client: client.delete_topics([name]))
    assert name not in log.topics()


# Both ways round


def test_a_topic_made_beside_the_broker_is_seen_by_its_clients(
    confluent: AdminClient, log: SparkLog, name: str
) -> None:
    log.create_topic(name, 4)
    until(lambda: len(confluent.list_topics(name, timeout=30).topics[name].partitions) == 4)
