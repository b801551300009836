"""Settings as DescribeConfigs shows them: the value in force, and which layer it comes from.

Layers, the first that has a value wins: the topic's override, what the root has for this broker, what it has
for all (Kafka's cluster-wide dynamic default), server.properties, the declared default. server.properties
counts as a layer where it differs from the default.
Invariants: every declared setting is shown, once; nothing is sensitive, for no setting holds a secret.
Not here: changing them (config_changes.py).
Sources: Kafka ConfigHelper, DescribeConfigsResponse.ConfigSource and ConfigType.
"""

import dataclasses
import enum
from collections.abc import Iterable

from sparklog.log.broker_keys import broker_key
from sparklog.log.config import TopicConfig
from sparklog.log.setting import Setting, declared_settings
from sparklog.metadata import Image
from sparklog_server.admin.broker_configs import cluster_values
from sparklog_server.settings.config import SETTINGS, ServerConfig
from sparklog_server.settings.in_force import config_in_force, topic_defaults_in_force
from sparklog_server.settings.setting_names import BROKER_NAMES, ROOT_KEYS, root_setting
from sparklog_server.settings.units import INT_MAX
from sparklog_server.settings.updating import DYNAMIC, Update, update_of


class ConfigSource(enum.IntEnum):
    """Kafka's ids."""

    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


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
