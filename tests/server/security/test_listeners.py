"""Listeners that let everybody in: named in a warning, or refused."""

from collections.abc import Callable

import pytest

from sparklog.errors import InvalidRequestError
from sparklog_server.security.listeners import check_listeners, open_listeners
from sparklog_server.settings.config import ServerConfig
from tests.support.running_broker import RunningBroker
from tests.support.told import Told

MTLS = {"ssl.keystore.location": "/k", "ssl.truststore.location": "/t", "ssl.client.auth": "required"}


@pytest.mark.parametrize(
    ("configs", "found"),
    [
        ({"listeners": "PLAINTEXT://localhost:9092"}, []),
        ({"listeners": "PLAINTEXT://127.0.0.2:9092"}, []),
        ({"listeners": "PLAINTEXT://[::1]:9092"}, []),
        ({"listeners": "PLAINTEXT://:9092"}, ["PLAINTEXT"]),
        ({"listeners": "PLAINTEXT://0.0.0.0:9092"}, ["PLAINTEXT"]),
        ({"listeners": "PLAINTEXT://kafka.example:9092"}, ["PLAINTEXT"]),
        ({"listeners": "SASL_PLAINTEXT://:9092"}, []),
        ({**MTLS, "listeners": "SSL://:9092"}, []),
        ({**MTLS, "listeners": "SSL://:9092", "ssl.client.auth": "requested"}, ["SSL"]),
        ({**MTLS, "listeners": "SASL_SSL://:9092,SSL://:1", "ssl.client.auth": "none"}, ["SSL"]),
    ],
)
def test_open_listeners(configs: dict[str, str], found: list[str], told: Told) -> None:
    config = ServerConfig.parse(configs)
    assert [one.name for one in open_listeners(config)] == found
    check_listeners(config)
    assert ["LETS EVERYBODY IN" in line for line in told("sparklog_server.security")] == [True] * len(found)


def test_they_are_refused(start_broker: Callable[..., RunningBroker]) -> None:
    required = {"listeners": "PLAINTEXT://0.0.0.0:0", "sparklog.require.authentication": "true"}
    with pytest.raises(InvalidRequestError, match=r"OPEN_LISTENER.*use SASL_SSL"):
        start_broker(required)
    start_broker({"sparklog.require.authentication": "true"})  # on localhost
