"""Changing settings over the network: of topics, and of the root as the cluster-wide broker resource.

Invariants: all changes of one resource happen or none; what is stored has been validated as the embedded
    client's changes are. Deleting what is not set, known or not, is done already: MirrorMaker deletes every
    setting that has its default at the source.
Not here: settings of a single broker, which are in its server.properties; operations on what there is
    (config_increments.py); Kafka's entities (api/).
Sources: Kafka ConfigAdminManager, ConfigurationControlManager, KIP-339.
"""

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence

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
    """One operation on one key; `operation`: one of Operation's, unless a client made it up."""

    key: str
    value: str | None
    operation: int = Operation.SET


@dataclasses.dataclass(frozen=True, slots=True)
class ResourceChanges:
    """What is asked of one resource; `resource_type`: one of ResourceType's, unless a client made it up."""

    resource_type: int
    name: str
    configs: Sequence[ConfigChange]


ResourceKey = tuple[int, str]
# What a resource is to be: from an image and the resource's own values there, by the names that clients use.
Target = Callable[[Image, Mapping[str, str]], Mapping[str, str | None]]


def invalid_request(message: str) -> RefusedError:
    """What Kafka says to a request that makes no sense."""
    return RefusedError(ErrorCode.invalid_request, message)


async def alter_resources(
    changes: Changes,
    node_id: int,
    resources: Sequence[ResourceChanges],
    target_of: Callable[[ResourceChanges], Target],
    *,
    validate_only: bool,
) -> list[Outcome]:
    """Alter the resources; outcomes in their order.

    Args:
        target_of: what a resource is to be; may refuse it.
    """
    keys = [(one.resource_type, one.name) for one in resources]
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


def replacement(resource: ResourceChanges) -> Target:
    """AlterConfigs: these values, and nothing else."""
    refuse_duplicates(resource)
    refuse_nulls([one.key for one in resource.configs if one.value is None])
    changes = {one.key: one.value for one in resource.configs}

    def target(_image: Image, overrides: Mapping[str, str]) -> Mapping[str, str | None]:
        return {**dict.fromkeys(overrides), **changes}

    return target


def refuse_duplicates(resource: ResourceChanges) -> None:
    """A key may be named once."""
    if duplicates([one.key for one in resource.configs]):
        raise invalid_request("Error due to duplicate config keys")


def refuse_nulls(keys: list[str]) -> None:
    """There is no value that is none."""
    if keys:
        raise invalid_request(f"Null value not supported for : {', '.join(keys)}")


def _part(node_id: int, resource_type: int, name: str, target: Target) -> Part:
    match ResourceType(resource_type):
        case ResourceType.TOPIC:
            return lambda image: _plan_topic(image, name, target)
        case ResourceType.BROKER:
            validate_broker_name(node_id, name)
            return lambda image: _plan_broker(image, name, target) if name else _plan_root(image, target)
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


def _plan_broker(image: Image, name: str, target: Target) -> None:
    """It has none of its own: to delete one is done already, as kafka-reassign-partitions --verify does."""
    if any(value is not None for value in target(image, {}).values()):
        raise invalid_request(
            f"settings of broker {name} are in its server.properties; over the network only those of the "
            "whole cluster can be changed (kafka-configs --entity-default)"
        )


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
