"""Changing settings over the network: of topics, of this broker, and of all brokers, which are the root's.

Invariants: all changes of one resource happen or none; what is stored has been validated as the embedded
    client's changes are. Deleting what is not set, known or not, is done already: MirrorMaker deletes every
    setting that has its default at the source.
Not here: Kafka's entities (api/).
Sources: Kafka ConfigAdminManager, ConfigurationControlManager, KIP-339.
"""

import dataclasses
import enum
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

from sparklog.client.admin import plan_topic_configs
from sparklog.errors import InvalidRequestError
from sparklog.log.config import (
    TopicConfig,
    broker_configs,
    broker_key,
    group_configs,
    group_key,
    validate_root_configs,
    validate_topic_configs,
)
from sparklog.log.setting import Setting, declared_settings, lookup_setting
from sparklog.metadata import Action, Image, plan_set_configs
from sparklog_server.admin.changes import Changes, Outcome, Part, RefusedError, duplicates, outcome_of
from sparklog_server.protocol.apis import ErrorCode
from sparklog_server.settings.config import SETTINGS, ServerConfig, config_in_force, topic_defaults_in_force
from sparklog_server.settings.kafka_only import why_kafka_only
from sparklog_server.settings.share import ShareGroupConfig, validate_group_configs
from sparklog_server.settings.updating import (
    BROKER_NAMES,
    DYNAMIC,
    INT_MAX,
    ROOT_KEYS,
    TOPIC_DEFAULTS,
    Update,
    root_setting,
    update_of,
)

# --- broker configs ----------------------------------------------------------------------------------
#
# Changing the settings of one broker, and those of all, over the network.
#
# A broker is asked for its own, and for those of all: it finds out whether it could run with them before
# anything is stored. Others take them up as they see the commit.
# Invariants: nothing is stored that is unknown, cannot change while brokers run, or is out of bounds; of what
#     clients name only brokers' settings and topics' defaults are touched, not what only the root's owner
#     sets. Going back to what was before is always allowed.
# Sources: Kafka ConfigAdminManager, DynamicBrokerConfig (validateConfigs), DynamicThreadPool.


ConfigChanges = Mapping[str, str | None]
THREADS = "num.io.threads"
MAX_VALUE_LENGTH = 32_767  # of a text in requests before KIP-482
_NAMES = {key: name for name, key in ROOT_KEYS.items()}


def validate_broker_name(node_id: int, name: str) -> None:
    """Refuse another broker's number, and other ways to write this one's; '' is the cluster."""
    if name and not (name.isascii() and name.isdecimal()):
        raise _refused(f"Node id must be an integer, but it is: {name}")
    if name and name != str(node_id):
        raise _refused(f"Unexpected broker id, expected {node_id}, but received {name}")


def cluster_values(configs: Mapping[str, str]) -> dict[str, str]:
    """What a root has for all brokers, by the names that brokers have for it."""
    of_root = {_NAMES[key]: value for key, value in configs.items() if key in _NAMES}
    return of_root | {name: value for name, value in broker_configs(configs, None).items() if name in DYNAMIC}


def plan_one_broker(config: ServerConfig, image: Image, changes: ConfigChanges) -> Action | None:
    """Change this broker's own settings."""
    node_id = config.broker.node_id
    given = {name: value for name, value in changes.items() if value is not None}
    for name in given:
        if update_of(name) is Update.CLUSTER_WIDE:
            raise _refused(
                f"Cannot update these configs for a single broker: Set({name}): they are of what all brokers "
                "share; change them for all (kafka-configs --entity-default)"
            )
        _validate_dynamic(name)
    defaults = {TOPIC_DEFAULTS[name]: value for name, value in given.items() if name in TOPIC_DEFAULTS}
    validate_topic_configs(defaults)
    stored = {broker_key(node_id, name): value for name, value in changes.items()}
    _validate_values(config, image, given, stored)
    return plan_set_configs(image, None, stored)


def plan_all_brokers(config: ServerConfig, image: Image, changes: ConfigChanges) -> Action | None:
    """Change the settings of all brokers, which are the root's, and its topics' defaults."""
    given = {name: value for name, value in changes.items() if value is not None}
    for name, value in given.items():
        if name not in ROOT_KEYS:
            _validate_dynamic(name)
        elif name in SETTINGS:
            SETTINGS[name][1].parse(value)  # of a broker, which may be stricter than of a single topic
    validate_root_configs({ROOT_KEYS[name]: value for name, value in given.items() if name in ROOT_KEYS})
    stored = {ROOT_KEYS[name]: value for name, value in changes.items() if name in ROOT_KEYS}
    stored |= {broker_key(None, name): value for name, value in changes.items() if name in DYNAMIC}
    _validate_values(config, image, given, stored)
    return plan_set_configs(image, None, stored)


def _validate_dynamic(name: str) -> None:
    """Refuse what cannot change while brokers run, and what is unknown."""
    if update_of(name) is Update.PER_BROKER:
        return
    if name in SETTINGS:
        raise _refused(f"Cannot update these configs dynamically: Set({name})")
    why = why_kafka_only(name)
    if why is not None:
        raise InvalidRequestError(
            "UNKNOWN_CONFIG",
            f"found {name}, a setting of Kafka's that means nothing here: {why}",
            fix=f"leave {name} out",
        )
    known = {name: (name, root_setting(key)) for name, key in ROOT_KEYS.items()}
    known |= {name: (name, SETTINGS[name][1]) for name in DYNAMIC}
    lookup_setting(name, known, "broker")


def _validate_values(
    config: ServerConfig, image: Image, given: Mapping[str, str], stored: Mapping[str, str | None]
) -> None:
    """Refuse what this broker could not run with."""
    for name, value in given.items():
        if len(value) > MAX_VALUE_LENGTH:
            raise _refused(f"{name}: {len(value)} characters, expected at most {MAX_VALUE_LENGTH}")
        if name in DYNAMIC:
            SETTINGS[name][1].parse(value)  # also what this broker has a value of its own for
    if not given:
        return
    kept = {key: value for key, value in image.configs.items() if key not in stored}
    changed = {**kept, **{key: value for key, value in stored.items() if value is not None}}
    node_id = config.broker.node_id
    in_force, known = config_in_force(config, image.configs, node_id)
    to_be, problems = config_in_force(config, changed, node_id)
    for key, problem in problems.items():
        if key in stored or key not in known:
            raise problem
    if THREADS not in given:
        return
    before, after = in_force.broker.num_io_threads, to_be.broker.num_io_threads
    failed = f"Dynamic thread count update validation failed for {THREADS}={after}, value should "
    if after < before // 2:
        raise _refused(f"{failed}be at least half the current value {before}")
    if after > 2 * before:
        raise _refused(f"{failed}not be greater than double the current value {before}")


def _refused(message: str) -> RefusedError:
    return RefusedError(ErrorCode.invalid_request, message)


# --- group configs -----------------------------------------------------------------------------------
#
# Invariants: every commit copies what the root has of settings, so at most MOST_GROUPS groups have their own.
# Sources: Kafka GroupConfig, GroupConfigManager.

MOST_GROUPS = 1_000
MAX_GROUP_CHARACTERS = 10_000


def validate_share_group(config: ServerConfig, group: str, given: Mapping[str, str]) -> None:
    """Refuse settings of a share group that cannot be."""
    if len(group) > MAX_GROUP_CHARACTERS:
        raise _refused("The name of the group is too long.")
    declared = declared_settings(ShareGroupConfig)
    for name, value in given.items():
        one = lookup_setting(name, declared, "group")
        if len(value) > MAX_VALUE_LENGTH:
            raise _refused(f"{name}: {len(value)} characters, expected at most {MAX_VALUE_LENGTH}")
        one.parse(value)
    validate_group_configs(given, config.share.dead_letter_prefix)


def plan_group(config: ServerConfig, image: Image, group: str, changes: ConfigChanges) -> Action | None:
    """Change the settings of one group, which need not exist."""
    if not group:
        raise _refused("Default group resources are not allowed.")
    given = {name: value for name, value in changes.items() if value is not None}
    validate_share_group(config, group, given)
    stored = group_configs(image.configs)
    if given and group not in stored and len(stored) >= MOST_GROUPS:
        raise _refused(f"{len(stored)} groups have settings of their own already, the most that are allowed")
    return plan_set_configs(image, None, {group_key(group, name): value for name, value in changes.items()})


# --- config entries ----------------------------------------------------------------------------------
#
# Settings as DescribeConfigs shows them: the value in force, and which layer it comes from.
#
# Layers, the first that has a value wins: the topic's override, what the root has for this broker, what it
# has for all (Kafka's cluster-wide dynamic default), server.properties, the declared default.
# server.properties counts as a layer where it differs from the default.
# Invariants: every declared setting is shown, once; nothing is sensitive, for no setting holds a secret.
# Sources: Kafka ConfigHelper, DescribeConfigsResponse.ConfigSource and ConfigType.


class ConfigSource(enum.IntEnum):
    """Kafka's ids."""

    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    GROUP_CONFIG = 8


class ConfigType(enum.IntEnum):
    """Kafka's ids."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


@dataclasses.dataclass(frozen=True, slots=True)
class Synonym:
    """One layer's value."""

    name: str
    value: str
    source: ConfigSource


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One setting; `synonyms` are all layers that have a value, the winner first."""

    name: str
    setting: Setting
    synonyms: tuple[Synonym, ...]
    read_only: bool

    @property
    def value(self) -> str:
        return self.synonyms[0].value

    @property
    def source(self) -> ConfigSource:
        return self.synonyms[0].source

    @property
    def config_type(self) -> ConfigType:
        return type_of(self.setting)


def type_of(setting: Setting) -> ConfigType:
    """Kafka's name for a declared setting's type."""
    kind = setting.kind
    if kind is int:
        maximum = setting.maximum
        return ConfigType.INT if maximum is not None and maximum <= INT_MAX else ConfigType.LONG
    return _TYPES[kind]


_TYPES = {
    bool: ConfigType.BOOLEAN,
    float: ConfigType.DOUBLE,
    tuple: ConfigType.LIST,
    str: ConfigType.STRING,
}


class TopicEntries:
    """All settings of topics, as of an image.

    What lies below a topic's own values is the same for all topics, and takes half a millisecond: it is found
    once, and not once for each of thousands of topics that differ in a value of their own.
    """

    def __init__(self, config: ServerConfig, image: Image) -> None:
        self._below = {
            key: ConfigEntry(
                name=key,
                setting=one,
                synonyms=tuple(_broker_layers(config, image, BROKER_NAMES[key], key, one)),
                read_only=False,
            )
            for key, (_, one) in declared_settings(TopicConfig).items()
        }

    @property
    def names(self) -> Iterable[str]:
        """Of all of them."""
        return self._below

    def entry(self, name: str, own: str | None) -> ConfigEntry:
        """One of them; `own`: the topic's own value, if it has any."""
        below = self._below[name]
        if own is None:
            return below
        synonyms = (Synonym(name, own, ConfigSource.TOPIC_CONFIG), *below.synonyms)
        return dataclasses.replace(below, synonyms=synonyms)


def topic_default(config: ServerConfig, image: Image, key: str) -> str:
    """What a topic without a value of its own has of one setting."""
    _, one = declared_settings(TopicConfig)[key]
    return next(iter(_broker_layers(config, image, BROKER_NAMES[key], key, one))).value


def broker_entries(config: ServerConfig, image: Image) -> list[ConfigEntry]:
    """All settings of this broker: its own, and the topics' defaults."""
    in_force, _ = config_in_force(config, image.configs, config.broker.node_id)
    entries = {}
    for name, key in ROOT_KEYS.items():
        one = root_setting(key)
        layers = _broker_layers(config, image, name, key, one)
        entries[name] = ConfigEntry(name=name, setting=one, synonyms=tuple(layers), read_only=False)
    for name, (_, one) in SETTINGS.items():
        if name not in entries:
            entries[name] = ConfigEntry(
                name=name,
                setting=one,
                synonyms=tuple(_own_layers(config, in_force, image, name, one)),
                read_only=update_of(name) is Update.READ_ONLY,
            )
    return [entries[name] for name in sorted(entries)]


def cluster_entries(image: Image) -> list[ConfigEntry]:
    """What is set for the whole cluster, and only that (as Kafka)."""
    return [
        ConfigEntry(
            name=name,
            setting=root_setting(ROOT_KEYS[name]) if name in ROOT_KEYS else SETTINGS[name][1],
            synonyms=(Synonym(name, value, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),),
            read_only=False,
        )
        for name, value in sorted(cluster_values(image.configs).items())
    ]


def group_entries(config: ServerConfig, image: Image, group: str) -> list[ConfigEntry]:
    """All settings of a group: its own, and the broker's that are their defaults."""
    own = group_configs(image.configs).get(group, {})
    return share_group_entries(config, own)


def share_group_entries(config: ServerConfig, own: Mapping[str, str]) -> list[ConfigEntry]:
    """Those of a share group."""
    below = ShareGroupConfig.of({}, "", config.share)
    entries = []
    for name, (field, one) in declared_settings(ShareGroupConfig).items():
        default, inherited = one.format(one.default), one.format(getattr(below, field))
        layers = [Synonym(name, own[name], ConfigSource.GROUP_CONFIG)] if name in own else []
        if inherited != default:
            layers.append(Synonym(name, inherited, ConfigSource.STATIC_BROKER_CONFIG))
        layers.append(Synonym(name, default, ConfigSource.DEFAULT_CONFIG))
        entries.append(ConfigEntry(name=name, setting=one, synonyms=tuple(layers), read_only=False))
    return entries


def _broker_layers(
    config: ServerConfig, image: Image, name: str, key: str, one: Setting
) -> Iterable[Synonym]:
    """The layers below a topic's own, by the broker's name."""
    own = topic_defaults_in_force(image.configs, config.broker.node_id).get(key)
    if own is not None:
        yield Synonym(name, own, ConfigSource.DYNAMIC_BROKER_CONFIG)
    root = image.configs.get(key)
    if root is not None:
        yield Synonym(name, root, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    default = one.format(one.default)
    static = config.root_defaults().get(key, default)
    if static != default:
        yield Synonym(name, static, ConfigSource.STATIC_BROKER_CONFIG)
    yield Synonym(name, default, ConfigSource.DEFAULT_CONFIG)


def _own_layers(
    config: ServerConfig, in_force: ServerConfig, image: Image, name: str, one: Setting
) -> Iterable[Synonym]:
    """The layers of a setting that is no default of topics; what cannot be counts for nothing.

    Args:
        config: what the broker was started with.
    """
    if name in DYNAMIC:
        for owner, source in (
            (config.broker.node_id, ConfigSource.DYNAMIC_BROKER_CONFIG),
            (None, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ):
            value = image.configs.get(broker_key(owner, name))
            if value is not None and in_force.takes({name: value}):
                yield Synonym(name, value, source)
    default = one.format(one.default)
    static = config.text_of(name)
    if static != default:
        yield Synonym(name, static, ConfigSource.STATIC_BROKER_CONFIG)
    yield Synonym(name, default, ConfigSource.DEFAULT_CONFIG)


# --- config changes ----------------------------------------------------------------------------------


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
            return lambda image: plan_topic_configs(image, name, target(image, image.topic(name).configs))
        case ResourceType.BROKER if name:
            node_id = config.broker.node_id
            validate_broker_name(node_id, name)
            return lambda image: plan_one_broker(
                config, image, target(image, broker_configs(image.configs, node_id))
            )
        case ResourceType.BROKER:
            return lambda image: plan_all_brokers(config, image, target(image, cluster_values(image.configs)))
        case ResourceType.GROUP:
            return lambda image: plan_group(
                config, image, name, target(image, group_configs(image.configs).get(name, {}))
            )
        case unsupported:
            raise invalid_request(f"Unsupported resource type: {unsupported.name} ({resource_type})")


# --- config increments -------------------------------------------------------------------------------
#
# Setting, deleting, appending and subtracting: operations on what a resource's settings are.
#
# Appending to what is not set starts from the value in force.
# Sources: Kafka ConfigAdminManager, KIP-339.


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
