"""DescribeClientQuotas in every version: which entities a filter takes."""

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from sparklog_server.protocol.apis import ApiKey
from tests.server.api.test_alter_client_quotas import alter, entry
from tests.support.wire_client import WireClient

EXACT, DEFAULT, SPECIFIED = 0, 1, 2
ALICE, EVERYBODY = (("user", "alice"),), (("user", None),)
BOTH, HOST = (("client-id", "c"), ("user", "alice")), (("ip", "10.0.0.1"),)


def component(kind: str, how: int, name: str | None = None) -> dict[str, Any]:
    return {"_": "ComponentData", "entity_type": kind, "match_type": how, "match": name}


@pytest.mark.parametrize("version", [0, 1])
def test_filters(client: WireClient, version: int) -> None:
    alter(client, *(entry(*one, producer_byte_rate=7.0) for one in (ALICE, EVERYBODY, BOTH)))
    alter(client, entry(*HOST, connection_creation_rate=9.0))

    def found(*components: dict[str, Any], strict: bool = False) -> set[Any]:
        answer = client.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, version, components=components, strict=strict)
        assert answer.error_code is ErrorCode.none
        assert {(one.key, one.value) for entry in answer.entries for one in entry.values} <= {
            ("producer_byte_rate", 7.0),
            ("connection_creation_rate", 9.0),
        }
        return {tuple((part.entity_type, part.entity_name) for part in one.entity) for one in answer.entries}

    assert found() == {ALICE, EVERYBODY, BOTH, HOST}
    assert found(component("user", SPECIFIED)) == {ALICE, EVERYBODY, BOTH}
    assert found(component("user", SPECIFIED), strict=True) == {ALICE, EVERYBODY}
    assert found(component("user", EXACT, "alice")) == {ALICE, BOTH}
    assert found(component("user", DEFAULT)) == {EVERYBODY}
    assert found(component("user", EXACT, "alice"), component("client-id", EXACT, "c"), strict=True) == {BOTH}
    assert found(component("ip", SPECIFIED)) == {HOST}
    assert found(strict=True) == set()


@pytest.mark.parametrize(
    ("components", "error"),
    [
        ([component("", DEFAULT)], ErrorCode.invalid_request),
        ([component("team", DEFAULT)], ErrorCode.unsupported_version),
        ([component("user", DEFAULT), component("user", SPECIFIED)], ErrorCode.invalid_request),
        ([component("user", 3)], ErrorCode.invalid_request),
        ([component("user", EXACT)], ErrorCode.invalid_request),
        ([component("user", DEFAULT), component("ip", SPECIFIED)], ErrorCode.invalid_request),
    ],
)
def test_filters_that_make_no_sense(
    client: WireClient, components: list[dict[str, Any]], error: ErrorCode
) -> None:
    answer = client.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, components=components, strict=False)
    assert (answer.error_code, answer.entries) == (error, None)
