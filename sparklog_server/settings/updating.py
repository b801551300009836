"""Which settings can change while brokers run, for a single broker or for all of them.

    PER_BROKER      for one broker, or for all that have none of their own; taken up at once.
    CLUSTER_WIDE    for all, as the root says: what becomes of records, which are no broker's own, and what
                    every process that uses the root must know.
    READ_ONLY       from flags, the environment or server.properties, when the broker starts.

Kafka has the same words for the settings of its reference, and allows a single broker's value of what is
CLUSTER_WIDE "for testing". Here a retention of one broker would remove everybody's records whenever that one
happens to be controller, so it is refused.
Invariants: what is PER_BROKER is acted on by the broker itself, and by nobody else.
Not here: the values in force (in_force.py), taking them up (the part whose setting it is).
Sources: Kafka DynamicBrokerConfig (AllDynamicConfigs), KIP-226.
"""

import enum

from sparklog_server.settings.setting_names import BROKER_NAMES, ROOT_KEYS


class Update(enum.Enum):
    """When, and for whom, a setting can change; see the module's docstring."""

    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"
    READ_ONLY = "read-only"


# Settings that server.properties may have, too.
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
# Settings of topics that say how records are written, which is the business of the broker that writes them.
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
    """Of a setting by the name that brokers have for it."""
    if name in DYNAMIC or name in TOPIC_DEFAULTS:
        return Update.PER_BROKER
    return Update.CLUSTER_WIDE if name in ROOT_KEYS else Update.READ_ONLY
