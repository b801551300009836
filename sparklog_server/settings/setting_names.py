"""The names under which brokers know the defaults of their topics' settings.

A root stores them under the topic's key; Kafka's tools ask brokers for log.retention.ms.
Invariants: a bijection over the declared topic settings and the root's own, which keep their names; but for
    what only the root's owner sets, which is no matter of clients.
Sources: Kafka ServerTopicConfigSynonyms (the synonym of highest priority).
"""

from collections.abc import Mapping

from sparklog.log.config import TopicConfig
from sparklog.log.root_config import OWNERS_KEYS, RootConfig
from sparklog.log.setting import Setting, declared_settings

_SAME_NAME = ("compression.type", "min.insync.replicas", "unclean.leader.election.enable")
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

# The broker's name -> the key under which the root stores it. All that can be set for the whole cluster.
ROOT_KEYS: Mapping[str, str] = {name: key for key, name in BROKER_NAMES.items()} | {
    key: key for key in declared_settings(RootConfig) if key not in OWNERS_KEYS
}

_ROOT_SETTINGS = {
    key: one for cls in (TopicConfig, RootConfig) for key, (_, one) in declared_settings(cls).items()
}


def root_setting(key: str) -> Setting:
    """The declaration of what a root can store under a key."""
    return _ROOT_SETTINGS[key]
