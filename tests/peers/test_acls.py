"""kafka-acls and kafka-configs of Kafka 4.3 against a broker with an authorizer."""

from collections.abc import Iterator

import pytest

from sparklog.client import SparkLog
from sparklog_server.settings.access import STANDARD_AUTHORIZER
from tests.peers.conftest import Tool
from tests.support.broker_process import BrokerProcess, serving

SETTINGS = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
ENTRY = "(principal=User:alice, host=*, operation={}, permissionType=ALLOW)"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with serving(tmp_path_factory.mktemp("broker") / "log", SETTINGS) as one:
        yield one
        assert "Traceback" not in one.errors()


def test_kafka_acls(tool: Tool, log: SparkLog) -> None:
    alice = ("--allow-principal", "User:alice")
    tool("kafka-acls", "--add", *alice, "--producer", "--topic", "orders", "--transactional-id", "t")
    tool(
        "kafka-acls",
        "--add",
        *alice,
        "--consumer",
        "--topic",
        "*",
        "--group",
        "etl",
        "--resource-pattern-type",
        "prefixed",
    )
    text = tool("kafka-acls", "--list", "--topic", "orders")
    assert "ResourcePattern(resourceType=TOPIC, name=orders, patternType=LITERAL)" in text
    assert all(ENTRY.format(one) in text for one in ("WRITE", "DESCRIBE", "CREATE"))
    assert "already exists" in tool("kafka-acls", "--add", *alice, "--producer", "--topic", "orders")
    text = tool("kafka-acls", "--list", "--group", "etl-7", "--resource-pattern-type", "match")
    assert "name=etl, patternType=PREFIXED" in text
    assert len(log.refresh(force=True).acls) == 8
    tool("kafka-acls", "--remove", *alice, "--operation", "Write", "--topic", "orders", "--force")
    tool("kafka-acls", "--remove", "--group", "etl", "--resource-pattern-type", "any", "--force")
    assert ENTRY.format("WRITE") not in tool("kafka-acls", "--list", "--topic", "orders")
    assert len(log.refresh(force=True).acls) == 6


def test_quotas_by_kafka_configs(tool: Tool, log: SparkLog) -> None:
    alter, describe = ("kafka-configs", "--alter"), ("kafka-configs", "--describe")
    users, clients = ("--entity-type", "users"), ("--entity-type", "clients")
    rates = "producer_byte_rate=1024,consumer_byte_rate=2048,request_percentage=33.3"
    tool(*alter, *users, "--entity-name", "alice", "--add-config", rates)
    both = (*users, "--entity-default", *clients, "--entity-name", "c")
    tool(*alter, *both, "--add-config", "producer_byte_rate=7")
    host = ("--entity-type", "ips", "--entity-name", "10.0.0.1")
    tool(*alter, *host, "--add-config", "connection_creation_rate=5")
    # The tool describes users alone with their SCRAM credentials, too.
    assert log.refresh(force=True).quotas[("user", "alice"),]["request_percentage"] == 33.3
    text = tool(*describe, *both)
    assert "Quota configs for the default user-principal, client-id 'c' are producer_byte_rate=7.0" in text
    assert "connection_creation_rate=5.0" in tool(*describe, "--entity-type", "ips")
    tool(*alter, *users, "--entity-name", "alice", "--delete-config", "request_percentage")
    assert log.refresh(force=True).quotas[("user", "alice"),] == {
        "producer_byte_rate": 1024.0,
        "consumer_byte_rate": 2048.0,
    }
