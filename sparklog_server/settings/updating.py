"""Which settings can change while brokers run, for a single broker or for all of them.

    PER_BROKER      for one broker, or for all that have none of their own; applied immediately.
    CLUSTER_WIDE    for all, stored in the root: settings of records, which belong to no single broker, and
                    settings that every process of the root must know.
    READ_ONLY       from flags, the environment or server.properties, when the broker starts.

Kafka's reference has the same terms, and allows a single broker's value of CLUSTER_WIDE settings "for
testing". Here the retention of one broker would remove records of all brokers while it is the controller, so
it is refused.
Invariants: a PER_BROKER setting only affects the broker itself.
Not here: the values in force (config.py), applying them (the part that has the setting).
Sources: Kafka DynamicBrokerConfig (AllDynamicConfigs), KIP-226.
"""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from sparklog.log.config import OWNERS_KEYS, RootConfig, TopicConfig
from sparklog.log.setting import Setting, declared_settings

# --- setting names -----------------------------------------------------------------------------------
#
# The names under which brokers know the defaults of their topics' settings.
#
# A root stores them under the topic's key; Kafka's tools use the broker's name, as log.retention.ms.
# Invariants: a bijection over the declared topic settings and the root's own, which keep their names; except
#     settings that only the root's owner may set, not clients.
# Sources: Kafka ServerTopicConfigSynonyms (the synonym of highest priority).


_SAME_NAME = (
    "compression.type",
    "errors.deadletterqueue.group.enable",
    "min.insync.replicas",
    "unclean.leader.election.enable",
)
_OTHER_NAME = {
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "max.message.bytes": "message.max.bytes",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
}
_CLEANER = ("delete.retention.ms", "max.compaction.lag.ms", "min.compaction.lag.ms")


def _broker_name(key: str) -> str:
    if key in _SAME_NAME:
        return key
    if key in _CLEANER:
        return f"log.cleaner.{key}"
    return _OTHER_NAME.get(key, f"log.{key}")


# Topic key -> the broker's name for its default.
BROKER_NAMES: Mapping[str, str] = {key: _broker_name(key) for key in declared_settings(TopicConfig)}

# The broker's name -> the key under which the root stores it. All settings of the whole cluster.
ROOT_KEYS: Mapping[str, str] = {name: key for key, name in BROKER_NAMES.items()} | {
    key: key for key in declared_settings(RootConfig) if key not in OWNERS_KEYS
}

_ROOT_SETTINGS = {
    key: one for cls in (TopicConfig, RootConfig) for key, (_, one) in declared_settings(cls).items()
}


def root_setting(key: str) -> Setting:
    """Return the declaration of a root's setting."""
    return _ROOT_SETTINGS[key]


def root_default(name: str, *, doc: str, **other: Any) -> Any:
    """Declare a broker's default of a root's setting, with its type, bounds and default.

    Args:
        name: the broker's name of the setting (ROOT_KEYS).
        other: other differences from the root's declaration; see Setting.
    """
    declared = root_setting(ROOT_KEYS[name])
    own = dataclasses.replace(declared, key=name, doc=" ".join(doc.split()), **other)
    return dataclasses.field(default=own.default, metadata={"setting": own})


# --- units -------------------------------------------------------------------------------------------
#
# Bounds and sizes for declarations of settings in several areas.


INT_MAX = (1 << 31) - 1
MIB = 1 << 20


# --- updating ----------------------------------------------------------------------------------------


class Update(enum.Enum):
    """When, and for which brokers, a setting can change; see the module's docstring."""

    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"
    READ_ONLY = "read-only"


# Settings that may also be in server.properties.
DYNAMIC = frozenset(
    {
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
        "max.connections",
        "max.connections.per.ip",
        "max.connections.per.ip.overrides",
        "num.io.threads",
        "sparklog.maintenance.delay.max.ms",
        "sparklog.vacuum.max.files.per.second",
    }
)
# Settings of topics that only affect the broker that writes the records.
_OF_WRITING = (
    "compression.type",
    "flush.messages",
    "flush.ms",
    "index.interval.bytes",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "segment.bytes",
    "segment.index.bytes",
    "segment.ms",
    "sparklog.segment.apart",
)
# The broker's name -> the topics' setting that it is a default of.
TOPIC_DEFAULTS = {BROKER_NAMES[key]: key for key in _OF_WRITING}


def update_of(name: str) -> Update:
    """Return the update mode of a setting, by its name in brokers."""
    if name in DYNAMIC or name in TOPIC_DEFAULTS:
        return Update.PER_BROKER
    return Update.CLUSTER_WIDE if name in ROOT_KEYS else Update.READ_ONLY
