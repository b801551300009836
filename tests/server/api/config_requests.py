"""What is asked of settings."""

from typing import Any

from tests.support.wire_client import WireClient

TOPIC, BROKER, LOGGER, GROUP = 2, 4, 8, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def describe(
    asker: WireClient, kind: int, name: str, *, keys: list[str] | None = None, version: int = 4
) -> tuple[Any, dict[str, Any]]:
    resource = {
        "_": "DescribeConfigsResource", "resource_type": kind, "resource_name": name,
        "configuration_keys": keys,
    }  # fmt: skip
    asked = {"resources": [resource], "include_synonyms": True}
    if version >= 3:
        asked["include_documentation"] = True
    (result,) = asker.ask(32, version, **asked).results
    return result, {one.name: one for one in result.configs}


def resource(kind: int, name: str, *configs: tuple[Any, ...]) -> dict[str, Any]:
    """For AlterConfigs (key, value) or IncrementalAlterConfigs (key, operation, value)."""
    names = ("name", "value") if configs and len(configs[0]) == 2 else ("name", "config_operation", "value")
    return {
        "_": "AlterConfigsResource", "resource_type": kind, "resource_name": name,
        "configs": [{"_": "AlterableConfig", **dict(zip(names, one, strict=True))} for one in configs],
    }  # fmt: skip


def alter(
    asker: WireClient,
    *resources: dict[str, Any],
    key: int = 44,
    version: int = 1,
    validate_only: bool = False,
) -> list[tuple[str, str | None]]:
    answer = asker.ask(key, version, resources=resources, validate_only=validate_only)
    return [(one.error_code.name, one.error_message) for one in answer.responses]


def synonyms(entry: Any) -> list[tuple[str, str, int]]:
    return [(one.name, one.value, one.source) for one in entry.synonyms]
