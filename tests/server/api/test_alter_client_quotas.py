"""AlterClientQuotas in every version: quotas of entities are set and removed, illegal ones refused alone."""

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from sparklog_server.protocol.apis import ApiKey
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient

ALICE = (("user", "alice"),)


def entry(*entity: tuple[str, str | None], **quotas: float | None) -> dict[str, Any]:
    return {
        "_": "EntryData",
        "entity": [{"_": "EntityData", "entity_type": kind, "entity_name": name} for kind, name in entity],
        "ops": [
            {"_": "OpData", "key": key, "value": value or 0.0, "remove": value is None}
            for key, value in quotas.items()
        ],
    }


def alter(client: WireClient, *entries: dict[str, Any], version: int = 1, **fields: Any) -> list[ErrorCode]:
    fields = {"validate_only": False} | fields
    found = client.ask(ApiKey.ALTER_CLIENT_QUOTAS, version, entries=entries, **fields)
    return [one.error_code for one in found.entries]


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_set_and_removed(client: WireClient, running_broker: RunningBroker, version: int) -> None:
    asked = [
        entry(*ALICE, producer_byte_rate=1024.0, request_percentage=12.5),
        entry(("user", None), ("client-id", "c"), consumer_byte_rate=5.0),
        entry(("ip", "10.0.0.1"), connection_creation_rate=3.0),
    ]
    assert alter(client, *asked, version=version) == [ErrorCode.none] * 3
    assert running_broker.beside().image.quotas == {
        ALICE: {"producer_byte_rate": 1024.0, "request_percentage": 12.5},
        (("client-id", "c"), ("user", None)): {"consumer_byte_rate": 5.0},
        (("ip", "10.0.0.1"),): {"connection_creation_rate": 3.0},
    }
    assert alter(client, entry(*ALICE, request_percentage=None), version=version) == [ErrorCode.none]
    assert running_broker.beside().image.quotas[ALICE] == {"producer_byte_rate": 1024.0}


def test_illegal_quotas_are_refused_alone(client: WireClient, running_broker: RunningBroker) -> None:
    asked = [
        entry(("team", "x"), producer_byte_rate=1.0),
        entry(("user", None), ("user", "x"), producer_byte_rate=1.0),
        entry(*ALICE, producer_byte_rate=-1.0),
        entry(*ALICE, no_such_rate=1.0),
        entry(("user", "bob"), producer_byte_rate=1.0),
    ]
    assert alter(client, *asked) == [ErrorCode.invalid_request] * 4 + [ErrorCode.none]
    assert set(running_broker.beside().image.quotas) == {(("user", "bob"),)}


def test_validate_only(client: WireClient, running_broker: RunningBroker) -> None:
    found = alter(
        client,
        entry(*ALICE, producer_byte_rate=1.0),
        entry(*ALICE, producer_byte_rate=0.5),
        validate_only=True,
    )
    assert found == [ErrorCode.none, ErrorCode.invalid_request]
    assert running_broker.beside().image.quotas == {}
