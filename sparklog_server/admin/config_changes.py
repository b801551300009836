"""Changing settings over the network: of topics, of this broker, and of all brokers, which are the root's.

Invariants: all changes of one resource happen or none; what is stored has been validated as the embedded
    client's changes are. Deleting what is not set, known or not, is done already: MirrorMaker deletes every
    setting that has its default at the source.
Not here: what brokers' settings may be (broker_configs.py); operations on what there is
    (config_increments.py); Kafka's entities (api/).
Sources: Kafka ConfigAdminManager, ConfigurationControlManager, KIP-339.
"""

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence

from sparklog.client.offsets_topic import validate_settings
from sparklog.log.broker_keys import broker_configs
from sparklog.log.config import validate_topic_configs
from sparklog.metadata import Action, Image, plan_set_configs
from sparklog_server.admin.broker_configs import (
    cluster_values,
    plan_all_brokers,
    plan_one_broker,
    that_matter,
    validate_broker_name,
)
from sparklog_server.admin.changes import Changes, Outcome, Part, RefusedError, duplicates, outcome_of
from sparklog_server.protocol.errors import ErrorCode
from sparklog_server.settings.config import ServerConfig


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
    config: ServerConfig,
    resources: Sequence[ResourceChanges],
    target_of: Callable[[ResourceChanges], Target],
    *,
    validate_only: bool,
) -> list[Outcome]:
    """Alter the resources; outcomes in their order.

    Args:
        config: what this broker was started with.
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
            parts[key] = _part(config, *key, target_of(resource))
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


def _part(config: ServerConfig, resource_type: int, name: str, target: Target) -> Part:
    match ResourceType(resource_type):
        case ResourceType.TOPIC:
            return lambda image: _plan_topic(image, name, target)
        case ResourceType.BROKER if name:
            node_id = config.broker.node_id
            validate_broker_name(node_id, name)
            return lambda image: plan_one_broker(
                config, image, target(image, broker_configs(image.configs, node_id))
            )
        case ResourceType.BROKER:
            return lambda image: plan_all_brokers(config, image, target(image, cluster_values(image.configs)))
        case unsupported:
            raise invalid_request(f"Unsupported resource type: {unsupported.name} ({resource_type})")


def _plan_topic(image: Image, name: str, target: Target) -> Action | None:
    changes = target(image, image.topic(name).configs)
    validate_settings(image, name, changes)
    validate_topic_configs({key: value for key, value in changes.items() if value is not None})
    return plan_set_configs(image, name, that_matter(changes, image.topic(name).configs))
