"""Setting, deleting, appending and subtracting: operations on what a resource's settings are.

Appending to what is not set starts from the value in force.
Not here: carrying the changes out (config_changes.py).
Sources: Kafka ConfigAdminManager, KIP-339.
"""

import functools
from collections.abc import Callable, Mapping

from sparklog.log.config import TopicConfig
from sparklog.log.setting import Setting, declared_settings
from sparklog.metadata import Image
from sparklog_server.admin.changes import RefusedError
from sparklog_server.admin.config_changes import (
    ConfigChange,
    Operation,
    ResourceChanges,
    ResourceType,
    Target,
    invalid_request,
    refuse_duplicates,
    refuse_nulls,
)
from sparklog_server.admin.config_entries import ConfigType, broker_entries, topic_default, type_of
from sparklog_server.protocol.errors import ErrorCode
from sparklog_server.settings.config import SETTINGS, ServerConfig
from sparklog_server.settings.setting_names import ROOT_KEYS, root_setting


def increments(config: ServerConfig, resource: ResourceChanges) -> Target:
    """IncrementalAlterConfigs: the operations, on what there is.

    All settings are not looked at for each of thousands of topics: those that are named are enough.
    """
    changes = resource.configs
    is_topic = resource.resource_type == ResourceType.TOPIC
    refuse_duplicates(resource)
    refuse_nulls([one.key for one in changes if one.operation != Operation.DELETE and one.value is None])
    for change in changes:
        if change.operation not in list(Operation):
            raise invalid_request(f"Unknown operations type {change.operation}")
        if change.operation in (Operation.APPEND, Operation.SUBTRACT) and not _is_list(
            change.key, is_topic=is_topic
        ):
            raise RefusedError(
                ErrorCode.invalid_config,
                f"Can't {Operation(change.operation).name} to key {change.key} because its type is not LIST.",
            )

    def target(image: Image, overrides: Mapping[str, str]) -> Mapping[str, str | None]:
        def current(key: str) -> str:
            own = overrides.get(key)  # '': it is set, to nothing
            return _in_force(config, image, key, is_topic=is_topic) if own is None else own

        return {one.key: _changed(one, current) for one in changes}

    return target


def _in_force(config: ServerConfig, image: Image, key: str, *, is_topic: bool) -> str:
    if is_topic:
        return topic_default(config, image, key)
    return next(entry.value for entry in broker_entries(config, image) if entry.name == key)


def _is_list(key: str, *, is_topic: bool) -> bool:
    declared = declared_settings(TopicConfig) if is_topic else _declared_for_brokers()
    return key in declared and type_of(declared[key][1]) is ConfigType.LIST


@functools.cache
def _declared_for_brokers() -> dict[str, tuple[str, Setting]]:
    roots = {name: (key, root_setting(key)) for name, key in ROOT_KEYS.items()}
    return {**SETTINGS, **roots}


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
