"""Changing settings over the network: of topics, and of the root as the cluster-wide broker resource.

Invariants: all changes of one resource happen or none; what is stored has been validated as the embedded
    client's changes are. Deleting what is not set, known or not, is done already: MirrorMaker deletes every
    setting that has its default at the source.
Not here: settings of a single broker; they are in its server.properties.
Sources: Kafka ConfigAdminManager, ConfigurationControlManager, KIP-339.
"""

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparklog.log.config import validate_root_configs, validate_topic_configs
from sparklog.log.setting import lookup_setting
from sparklog.metadata import Action, Image, plan_set_configs
from sparklog_server.admin.changes import Changes, Outcome, Part, RefusedError, duplicates, outcome_of
from sparklog_server.admin.setting_names import ROOT_KEYS, root_setting
from sparklog_server.protocol.errors import ErrorCode
from sparklog_server.settings.config import SETTINGS


class ResourceType(enum.IntEnum):
    """Kafka's ConfigResource.Type."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32

    @classmethod
    def _missing_(cls, value: object) -> "ResourceType":  # noqa: ARG003 - enum's signature
        return cls.UNKNOWN


class Operation(enum.IntEnum):
    """Kafka's AlterConfigOp.OpType."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigChange:
    """One operation on one key."""

    key: str
    operation: int
    value: str | None


ResourceKey = tuple[int, str]
# What a resource is to be: from an image and the resource's own values there, by the names that clients use.
Target = Callable[[Image, Mapping[str, str]], Mapping[str, str | None]]


def invalid_request(message: str) -> RefusedError:
    """What Kafka says to a request that makes no sense."""
    return RefusedError(ErrorCode.invalid_request, message)


async def alter_resources(
    changes: Changes,
    node_id: int,
    resources: Sequence[Any],
    target_of: Callable[[Any], Target],
    *,
    validate_only: bool,
) -> list[Outcome]:
    """Alter the request's resources; outcomes in their order.

    Args:
        target_of: from a resource of the request to what it wants.
    """
    keys = [(one.resource_type, one.resource_name) for one in resources]
    twice = duplicates(keys)
    refused: dict[ResourceKey, Outcome] = {}
    parts: dict[ResourceKey, Part] = {}
    for key, resource in zip(keys, resources, strict=True):
        try:
            if key in twice:
                raise invalid_request("Each resource must appear at most once.")
            parts[key] = _part(node_id, *key, target_of(resource))
        except RefusedError as error:
            refused[key] = outcome_of(error)
    done = await changes.make(parts, validate_only=validate_only)
    return [refused.get(key) or done[key] for key in keys]


def replacement(changes: Mapping[str, str | None]) -> Target:
    """AlterConfigs: these values, and nothing else."""
    _refuse_nulls([key for key, value in changes.items() if value is None])

    def target(_image: Image, overrides: Mapping[str, str]) -> Mapping[str, str | None]:
        return {**dict.fromkeys(overrides), **changes}

    return target


def increments(
    changes: Sequence[ConfigChange], in_force: Callable[[Image, str], str], is_list: Callable[[str], bool]
) -> Target:
    """IncrementalAlterConfigs: the operations, on what there is."""
    if duplicates([change.key for change in changes]):
        raise invalid_request("Error due to duplicate config keys")
    _refuse_nulls([one.key for one in changes if one.operation != Operation.DELETE and one.value is None])
    for change in changes:
        if change.operation not in list(Operation):
            raise invalid_request(f"Unknown operations type {change.operation}")
        if change.operation in (Operation.APPEND, Operation.SUBTRACT) and not is_list(change.key):
            raise RefusedError(
                ErrorCode.invalid_config,
                f"Can't {Operation(change.operation).name} to key {change.key} because its type is not LIST.",
            )

    def target(image: Image, overrides: Mapping[str, str]) -> Mapping[str, str | None]:
        def current(key: str) -> str:
            return overrides.get(key) or in_force(image, key)

        return {one.key: _changed(one, current) for one in changes}

    return target


def _changed(change: ConfigChange, current: Callable[[str], str]) -> str | None:
    value = change.value or ""
    match Operation(change.operation):
        case Operation.SET:
            return value
        case Operation.DELETE:
            return None
        case Operation.APPEND:
            return ",".join(dict.fromkeys([*_items(current(change.key)), *_items(value)]))
        case Operation.SUBTRACT:
            return ",".join(item for item in _items(current(change.key)) if item not in _items(value))


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _refuse_nulls(keys: list[str]) -> None:
    if keys:
        raise invalid_request(f"Null value not supported for : {', '.join(keys)}")


def _part(node_id: int, resource_type: int, name: str, target: Target) -> Part:
    match ResourceType(resource_type):
        case ResourceType.TOPIC:
            return lambda image: _plan_topic(image, name, target)
        case ResourceType.BROKER:
            validate_broker_name(node_id, name)
            if name:
                raise invalid_request(
                    f"settings of broker {name} are in its server.properties; over the network only those of "
                    "the whole cluster can be changed (kafka-configs --entity-default)"
                )
            return lambda image: _plan_root(image, target)
        case unsupported:
            raise invalid_request(f"Unsupported resource type: {unsupported.name} ({resource_type})")


def validate_broker_name(node_id: int, name: str) -> None:
    """Refuse another broker's number; '' is the cluster."""
    if name and not (name.isascii() and name.isdecimal()):
        raise invalid_request(f"Node id must be an integer, but it is: {name}")
    if name and int(name[:12]) != node_id:
        raise invalid_request(f"Unexpected broker id, expected {node_id}, but received {name}")


def _plan_topic(image: Image, name: str, target: Target) -> Action | None:
    changes = target(image, image.topic(name).configs)
    validate_topic_configs({key: value for key, value in changes.items() if value is not None})
    return plan_set_configs(image, name, _that_matter(changes, image.topic(name).configs))


def _plan_root(image: Image, target: Target) -> Action | None:
    names = {key: name for name, key in ROOT_KEYS.items()}
    changes = target(image, {names[key]: value for key, value in image.configs.items() if key in names})
    stored: dict[str, str | None] = {}
    for name, value in changes.items():
        if value is not None:
            _validate_cluster_wide(name)
        stored[ROOT_KEYS.get(name, name)] = value
    validate_root_configs({key: value for key, value in stored.items() if value is not None})
    return plan_set_configs(image, None, _that_matter(stored, image.configs))


def _that_matter(changes: Mapping[str, str | None], current: Mapping[str, str]) -> dict[str, str | None]:
    return {key: value for key, value in changes.items() if value is not None or key in current}


def _validate_cluster_wide(name: str) -> None:
    if name in ROOT_KEYS:
        return
    if name in SETTINGS:
        raise invalid_request(f"Cannot update these configs dynamically: Set({name})")
    known = {name: (name, root_setting(key)) for name, key in ROOT_KEYS.items()}
    lookup_setting(name, known, "cluster")
