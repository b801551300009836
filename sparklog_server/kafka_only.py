"""Keys of Kafka's server.properties that have no counterpart here, and why.

They are refused, not ignored: who sets one expects something of it.
Sources: Kafka's configuration reference; design.md section 1.
"""

_ON_THE_ROOT = (
    "a default of topics, which Spark must know too: set {} on the root instead (sparklog root alter)"
)
_REPLICAS = "there are no replicas: the storage under the root keeps the data safe"
_ELECTION = "nothing is elected: a broker registers in the root's metadata log, and the newest one leads"
_SYNCED = "everything is synced before it is acknowledged"
_SECURITY = "this version speaks PLAINTEXT only, without authentication"
_TRANSACTIONS = "there are no transactions by brokers in this version"

# Exact keys first, then prefixes (with a trailing dot), in this order.
_REASONS: dict[str, str] = {
    "log.retention.ms": _ON_THE_ROOT.format("retention.ms"),
    "log.retention.minutes": _ON_THE_ROOT.format("retention.ms"),
    "log.retention.hours": _ON_THE_ROOT.format("retention.ms"),
    "log.retention.bytes": _ON_THE_ROOT.format("retention.bytes"),
    "log.retention.check.interval.ms": "nothing removes old records in this version",
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
    "default.replication.factor": _REPLICAS,
    "min.insync.replicas": _REPLICAS,
    "offsets.topic.replication.factor": _REPLICAS,
    "offsets.topic.segment.bytes": "set segment.bytes on the topic __consumer_offsets",
    "offsets.topic.compression.codec": "set compression.type on the topic __consumer_offsets",
    "offsets.commit.required.acks": "commits of offsets are durable before they are acknowledged",
    "process.roles": _ELECTION,
    "controller.listener.names": _ELECTION,
    "broker.id.generation.enable": "a root has one broker at a time; node.id says its number",
    "unclean.leader.election.enable": _ELECTION,
    "auto.leader.rebalance.enable": _ELECTION,
    "authorizer.class.name": _SECURITY + "; class names are never taken from settings",
    "super.users": _SECURITY,
    "allow.everyone.if.no.acl.found": _SECURITY,
    "metric.reporters": "metrics are served at /metrics; class names are never taken from settings",
    "inter.broker.listener.name": "brokers do not talk to each other",
    "security.inter.broker.protocol": "brokers do not talk to each other",
    "inter.broker.protocol.version": "brokers do not talk to each other",
    "log.message.format.version": "the format is Kafka's record batch v2, always",
    "host.name": "use listeners",
    "advertised.host.name": "use advertised.listeners",
    "port": "use listeners",
    "advertised.port": "use advertised.listeners",
    "zookeeper.": "there is no ZooKeeper: the root holds all metadata",
    "controller.": _ELECTION,
    "controlled.shutdown.": "leaders need not move; see sparklog.shutdown.timeout.ms",
    "leader.imbalance.": _ELECTION,
    "replica.": _REPLICAS,
    "log.flush.": _SYNCED,
    "log.cleaner.": "nothing is compacted in this version",
    "transaction.": _TRANSACTIONS,
    "transactional.": _TRANSACTIONS,
    "ssl.": _SECURITY,
    "sasl.": _SECURITY,
    "security.": _SECURITY,
    "delegation.token.": _SECURITY,
    "password.encoder.": _SECURITY,
    "quota.": "there are no quotas in this version",
    "client.quota.": "there are no quotas in this version",
    "remote.log.": "all data lies on the root's storage; nothing is tiered",
    "kafka.metrics.": "metrics are served at /metrics; class names are never taken from settings",
    "group.consumer.": "the consumer protocol of KIP-848 is not served in this version",
    "group.share.": "share groups are not served in this version",
    "metadata.log.": "see the root's __cluster_metadata, FORMAT.md",
}


def why_kafka_only(key: str) -> str | None:
    """Why a key of Kafka's means nothing here; None if it is no such key."""
    if key in _REASONS:
        return _REASONS[key]
    return next(
        (why for prefix, why in _REASONS.items() if prefix.endswith(".") and key.startswith(prefix)), None
    )
