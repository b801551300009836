"""ListConfigResources: what has settings."""

import pytest
from kio.schema.errors import ErrorCode

import sparklog
from tests.support.wire_client import WireClient

LIST_CONFIG_RESOURCES = 74
TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32


def listed(asker: WireClient, *types: int) -> set[tuple[int, str]]:
    response = asker.ask(LIST_CONFIG_RESOURCES, 1, resource_types=types)
    assert response.error_code is ErrorCode.none
    found = [(one.resource_type, one.resource_name) for one in response.config_resources]
    assert len(set(found)) == len(found)
    return set(found)


def test_what_there_is_of_each_type(asker: WireClient, log: sparklog.SparkLog) -> None:
    log.create_topic("a")
    log.create_topic("b")
    topics = {(TOPIC, "a"), (TOPIC, "b")}
    assert listed(asker, TOPIC) == topics
    assert listed(asker, BROKER) == {(BROKER, "1")}
    assert listed(asker, BROKER_LOGGER, CLIENT_METRICS, GROUP) == set()
    assert listed(asker) == listed(asker, GROUP, BROKER, TOPIC) == topics | {(BROKER, "1")}


def test_version_0_asks_for_client_metrics(asker: WireClient, log: sparklog.SparkLog) -> None:
    log.create_topic("a")
    response = asker.ask(LIST_CONFIG_RESOURCES, 0)
    assert (response.error_code, response.config_resources) == (ErrorCode.none, ())


@pytest.mark.parametrize("types", [(0,), (TOPIC, 3), (-128,)])
def test_types_that_do_not_exist(asker: WireClient, types: tuple[int, ...]) -> None:
    response = asker.ask(LIST_CONFIG_RESOURCES, 1, resource_types=types)
    assert (response.error_code, response.config_resources) == (ErrorCode.unsupported_version, ())
