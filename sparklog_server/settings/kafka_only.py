"""Keys of Kafka's server.properties without a counterpart here, with reasons.

A setting whose guarantee cannot be met is refused: its user relies on it. A setting without effect, or with
the only possible value, is accepted with a warning, so that Kafka's own file starts a broker.
Sources: Kafka's configuration reference, config/server.properties; ADR 0003.
"""

import re
from collections.abc import Callable

from sparklog.log.config import TopicConfig
from sparklog.log.setting import declared_settings
from sparklog_server.settings.security import ListenerSecurity, SecuritySettings

_ON_THE_ROOT = (
    "a default of topics, which Spark must know too: set {} on the root instead (sparklog root alter)"
)
_REPLICAS = "replicas share one copy, which the storage under the root keeps safe"
_ELECTION = "brokers elect one of them controller, in the root's metadata log"
_CLEAN = "no election is unclean: every replica has all that was acknowledged"
_SYNCED = "everything is synced before it is acknowledged"
_TLS = "the stores are PEM files, read by Python's own TLS; see docs/security.md"
_SASL = "mechanisms are SCRAM, PLAIN and OAUTHBEARER, with the users of the root; see docs/security.md"
_PEM_STORE = "a PEM store has no password, only its key: ssl.key.password"
_CLEANER_THREADS = "one process of low priority maintains a root"
_CLEANER_MEMORY = (
    "a separate process reads segments unbuffered; log.cleaner.dedupe.buffer.size bounds its keys"
)
_TRANSACTIONS = "the state of transactions is in the root's metadata log, with all other"
_VERIFIED = "whatever is staged is checked against the transaction by the commit that stages it"
_TWO_PHASES = "a transaction that another system ends (KIP-939) is not served in this version"
_CLASSES = "class names are never taken from settings"
_METRICS = "metrics are served at /metrics; " + _CLASSES
_CODECS = "codecs work at their default level"
_TIERS = "all data lies on the root's storage; nothing is tiered"
_ONE_PLACE = "a broker has one root, in one directory or bucket"
_GROUPS = "one event loop serves all groups, by the classic protocol"
_WAITING = "a request that waits is taken out as soon as it ends"
_LOOKS = "maintenance looks every log.cleaner.backoff.ms"
_JITTER = "the partitions of a writer share its segments, so they do not all roll at the same time"
_SHARES = "the state of share groups is in the root's metadata log, with all other"
_BOUNDS = "bounds of the settings of share groups are fixed here"
_NO_OTHERS = "brokers do not talk to each other"

# Exact keys first, then prefixes (with a trailing dot), in this order.
_INTERVALS = "groups have no assignment interval of their own"
_REASONS: dict[str, str] = {
    "log.segment.bytes": _ON_THE_ROOT.format("segment.bytes"),
    "log.roll.ms": _ON_THE_ROOT.format("segment.ms"),
    "log.roll.hours": _ON_THE_ROOT.format("segment.ms"),
    "log.cleanup.policy": _ON_THE_ROOT.format("cleanup.policy"),
    "log.index.interval.bytes": _ON_THE_ROOT.format("index.interval.bytes"),
    "log.index.size.max.bytes": _ON_THE_ROOT.format("segment.index.bytes"),
    "log.message.timestamp.type": _ON_THE_ROOT.format("message.timestamp.type"),
    "log.message.timestamp.before.max.ms": _ON_THE_ROOT.format("message.timestamp.before.max.ms"),
    "log.message.timestamp.after.max.ms": _ON_THE_ROOT.format("message.timestamp.after.max.ms"),
    "compression.type": _ON_THE_ROOT.format("compression.type"),
    "num.network.threads": "one event loop serves all connections",
    "background.threads": "there are no such threads; num.io.threads is the pool for storage",
    "num.recovery.threads.per.data.dir": "there is nothing to recover when a broker starts",
    "num.replica.fetchers": _REPLICAS,
    "min.insync.replicas": _REPLICAS,
    "offsets.topic.segment.bytes": "set segment.bytes on the topic __consumer_offsets",
    "offsets.topic.compression.codec": "set compression.type on the topic __consumer_offsets",
    "offsets.commit.required.acks": "commits of offsets are durable before they are acknowledged",
    "process.roles": _ELECTION,
    "controller.listener.names": _ELECTION,
    "broker.id.generation.enable": "node.id is the number of each broker",
    "unclean.leader.election.enable": _CLEAN,
    "principal.builder.class": _CLASSES,
    "early.start.listeners": "all listeners start when the broker can answer",
    "create.topic.policy.class.name": _CLASSES,
    "alter.config.policy.class.name": _CLASSES,
    "metric.reporters": _METRICS,
    "auto.include.jmx.reporter": _METRICS,
    "metrics.": _METRICS,
    "telemetry.": "clients' own metrics are not asked for",
    "inter.broker.listener.name": _NO_OTHERS,
    "security.inter.broker.protocol": _NO_OTHERS,
    "inter.broker.protocol.version": _NO_OTHERS,
    "request.timeout.ms": _NO_OTHERS,
    "socket.connection.setup.": _NO_OTHERS,
    "socket.listen.backlog.size": "connections that wait to be accepted are the system's to bound",
    "server.max.startup.time.ms": "a broker registers by a commit, or does not start",
    "unclean.leader.election.interval.ms": _CLEAN,
    "log.segment.delete.delay.ms": "a file outlives the last reader that may know of it",
    "log.preallocate": "segments grow as they are written",
    "log.roll.jitter.": _JITTER,
    "log.initial.task.delay.ms": _LOOKS,
    "log.message.downconversion.enable": "there is only the current format here",
    "log.local.": _TIERS,
    "log.dir.failure.timeout.ms": _ONE_PLACE,
    "cordoned.log.dirs": _ONE_PLACE,
    "num.replica.alter.log.dirs.threads": _ONE_PLACE,
    "alter.log.dirs.": _ONE_PLACE,
    "compression.gzip.level": _CODECS,
    "compression.lz4.level": _CODECS,
    "compression.zstd.level": _CODECS,
    "fetch.purgatory.": _WAITING,
    "producer.purgatory.": _WAITING,
    "delete.records.purgatory.": _WAITING,
    "group.coordinator.": _GROUPS,
    "offsets.load.buffer.size": "offsets are loaded in steps of some megabytes",
    "offsets.commit.timeout.ms": "a commit of offsets is answered when it is durable, or has failed",
    "producer.id.expiration.check.interval.ms": _LOOKS,
    "max.request.partition.size.limit": "what a request may name is bounded by socket.request.max.bytes",
    "max.connection.creation.rate": "set the quota connection_creation_rate of addresses",
    "add.partitions.to.txn.": _VERIFIED,
    "log.message.format.version": "the format is Kafka's record batch v2, always",
    "host.name": "use listeners",
    "advertised.host.name": "use advertised.listeners",
    "port": "use listeners",
    "advertised.port": "use advertised.listeners",
    "zookeeper.": "there is no ZooKeeper: the root holds all metadata",
    "controller.quorum.": _ELECTION,
    "controller.performance.": _ELECTION,
    "controller.socket.": _ELECTION,
    "controlled.shutdown.max.retries": "sparklog.shutdown.timeout.ms bounds it",
    "controlled.shutdown.retry.backoff.ms": "sparklog.shutdown.timeout.ms bounds it",
    "replica.fetch.": _REPLICAS,
    "replica.high.": _REPLICAS,
    "replica.lag.": _REPLICAS,
    "replica.socket.": _REPLICAS,
    "log.flush.": _SYNCED,
    "log.cleaner.threads": _CLEANER_THREADS,
    "log.cleaner.io.buffer.load.factor": _CLEANER_MEMORY,
    "log.cleaner.io.buffer.size": _CLEANER_MEMORY,
    "transaction.state.log.": _TRANSACTIONS,
    "transaction.partition.verification.enable": _VERIFIED,
    "transaction.two.phase.commit.enable": _TWO_PHASES,
    "ssl.keystore.password": _PEM_STORE,
    "ssl.truststore.password": _PEM_STORE,
    "ssl.": _TLS,
    "sasl.": _SASL,
    "security.": _CLASSES,
    "delegation.token.": "delegation tokens are not served",
    "password.encoder.": "secrets are not stored in the root",
    "client.quota.": _CLASSES,
    "replication.quota.": _REPLICAS,
    "remote.": _TIERS,
    "kafka.metrics.": _METRICS,
    "group.consumer.regex.refresh.interval.ms": "new topics are found when they are made",
    "group.consumer.assignor.offload.enable": "large assignments are always computed in another thread",
    "group.consumer.min.assignment.interval.ms": _INTERVALS,
    "group.consumer.max.assignment.interval.ms": _INTERVALS,
    "share.coordinator.": _SHARES,
    "group.share.enable": "share groups are always served",
    "group.share.assignors": "one assignor spreads partitions evenly",
    "group.share.assignor.offload.enable": "large assignments are always computed in another thread",
    "group.share.initialize.retry.interval.ms": _SHARES,
    "group.share.persister.class.name": _CLASSES,
    "group.share.min.": _BOUNDS,
    "group.share.max.assignment.interval.ms": _BOUNDS,
    "group.share.max.heartbeat.interval.ms": _BOUNDS,
    "group.share.max.session.timeout.ms": _BOUNDS,
    "group.share.max.record.lock.duration.ms": _BOUNDS,
    "group.share.max.delivery.count.limit": _BOUNDS,
    "group.share.max.partition.max.record.locks": _BOUNDS,
    "errors.deadletterqueue.auto.create.topics.enable": "create dead-letter topics yourself",
    "metadata.log.": "see the root's __cluster_metadata, FORMAT.md",
    "metadata.max.": "see the root's __cluster_metadata, FORMAT.md",
    "internal.": "it is Kafka's own, for its tests",
    "unstable.": "it is Kafka's own, for its tests",
}


_HOUR_MS = 3_600_000
_NUMBER = re.compile(r"-?[0-9]{1,19}")
_WEEK_MS = 168 * _HOUR_MS
_TOPIC = TopicConfig()


def _is_one(text: str) -> bool:
    return text == "1"


def _is_false(text: str) -> bool:
    return text.lower() == "false"


def _is_any(_text: str) -> bool:
    return True


def _is_number(expected: int, unit: int = 1) -> Callable[[str], bool]:
    return lambda text: _NUMBER.fullmatch(text) is not None and int(text) * unit == expected


_SAME = "it is the default of topics here, too; the root may override it"
_FOR_EVER = (
    "the default of Kafka's own file, not an explicit choice: records are kept forever here, unless "
    "log.retention.ms, or retention.ms of the topic or the root, is set"
)
_ONE = "there is one copy, and the storage under the root keeps it safe"
# Exact keys first, then prefixes: the accepted values, and the reasons why they have no effect.
HARMLESS: dict[str, tuple[Callable[[str], bool], str]] = {
    "process.roles": (lambda text: "broker" in re.split(r"\s*,\s*", text), _ELECTION),
    "controller.listener.names": (_is_any, _ELECTION + "; listeners of these names are left out"),
    "inter.broker.listener.name": (_is_any, _REASONS["inter.broker.listener.name"]),
    "security.inter.broker.protocol": (_is_any, _NO_OTHERS),
    "sasl.mechanism.inter.broker.protocol": (_is_any, _NO_OTHERS),
    "ssl.protocol": (lambda text: text in {"TLS", "TLSv1.2", "TLSv1.3"}, _TLS),
    "ssl.endpoint.identification.algorithm": (_is_any, "clients check the broker's name, not the reverse"),
    "config.providers": (_is_any, "${env:NAME} and ${file:PATH:KEY} always work, other providers do not"),
    "config.providers.": (_is_any, "${env:NAME} and ${file:PATH:KEY} always work, other providers do not"),
    "num.network.threads": (_is_any, _REASONS["num.network.threads"]),
    "background.threads": (_is_any, _REASONS["background.threads"]),
    "num.recovery.threads.per.data.dir": (_is_any, _REASONS["num.recovery.threads.per.data.dir"]),
    "num.replica.fetchers": (_is_any, _REPLICAS),
    "unclean.leader.election.enable": (_is_false, _CLEAN),
    "min.insync.replicas": (_is_one, _ONE),
    "share.coordinator.state.topic.replication.factor": (_is_one, _SHARES),
    "share.coordinator.state.topic.min.isr": (_is_one, _SHARES),
    "errors.deadletterqueue.auto.create.topics.enable": (_is_false, "it is as if false here"),
    # Kafka's own file has its default, a week: a user who starts with that file has not chosen it. In
    # the environment, or as a flag, it counts (sources.py).
    "log.retention.hours": (_is_number(_WEEK_MS, _HOUR_MS), _FOR_EVER),
    "log.segment.bytes": (_is_number(_TOPIC.segment_bytes), _SAME),
    "log.cleanup.policy": (lambda text: text == "delete", _SAME),
    "log.cleaner.threads": (_is_any, _CLEANER_THREADS),
    "controller.quorum.": (_is_any, _ELECTION),
    "log.flush.": (_is_any, _SYNCED),
    "transaction.state.log.": (_is_any, _TRANSACTIONS),
    "transaction.partition.verification.enable": (lambda text: text.lower() == "true", _VERIFIED),
    "transaction.two.phase.commit.enable": (_is_false, _TWO_PHASES),
}


def why_harmless(key: str, text: str) -> str | None:
    """Return the reason why a Kafka setting without effect is accepted; None if it is not."""
    found = HARMLESS.get(key) or next(
        (one for prefix, one in HARMLESS.items() if prefix.endswith(".") and key.startswith(prefix)), None
    )
    if found is None:
        return None
    is_harmless, why = found
    return why if is_harmless(text.strip()) else None


def why_kafka_only(key: str) -> str | None:
    """Return the reason why a Kafka key has no meaning here; None if it is no such key."""
    if key in declared_settings(ListenerSecurity) or key in declared_settings(SecuritySettings):
        return None  # the other keys of its prefix mean nothing
    if key in _REASONS:
        return _REASONS[key]
    return next(
        (why for prefix, why in _REASONS.items() if prefix.endswith(".") and key.startswith(prefix)), None
    )
