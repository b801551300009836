"""AlterConfigs: what is not named goes back to its default."""

import pytest

import sparklog
from tests.server.api.config_requests import BROKER, TOPIC, alter, resource
from tests.support.wire_client import WireClient


@pytest.mark.parametrize("version", range(3))
def test_alter_configs_replaces_everything(asker: WireClient, log: sparklog.SparkLog, version: int) -> None:
    log.create_topic("t", configs={"segment.ms": "9", "retention.ms": "1"})
    replaced = resource(TOPIC, "t", ("retention.ms", "5"), ("segment.bytes", "100"))
    assert alter(asker, replaced, key=33, version=version) == [("none", None)]
    assert log.describe_topic("t").configs == {"retention.ms": "5", "segment.bytes": "100"}
    log.alter_root(set={"num.partitions": "3"})
    assert alter(asker, resource(BROKER, "", ("log.retention.ms", "5")), key=33, version=version) == [
        ("none", None)
    ]
    assert dict(log.refresh().configs) == {"retention.ms": "5"}


def test_alter_configs_refuses_nulls_and_duplicates(asker: WireClient, log: sparklog.SparkLog) -> None:
    log.create_topic("t", configs={"segment.ms": "9"})
    twice = resource(TOPIC, "t", ("retention.ms", "5"), ("retention.ms", "6"))
    null = resource(TOPIC, "t", ("retention.ms", None))
    assert alter(asker, twice, key=33, version=2) == [
        ("invalid_request", "Error due to duplicate config keys")
    ]
    assert "Null value" in str(alter(asker, null, key=33, version=2)[0][1])
    assert alter(asker, resource(TOPIC, "t"), key=33, version=2) == [("none", None)]
    assert log.describe_topic("t").configs == {}
