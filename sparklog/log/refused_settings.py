"""Kafka's topic settings that have no counterpart here, and why: refused by name, not as unknown.

What is accepted without effect is declared in config.py instead: settings that clients (Kafka Connect,
Streams, MirrorMaker, topic operators) send as a matter of course, and that promise nothing that does not
hold here anyway. These here would promise something.
Sources: Kafka TopicConfig, LogConfig, QuotaConfigs; Kafka 4.0's upgrade notes.
"""

from collections.abc import Iterable

from sparklog.errors import InvalidRequestError

_SHARED = "all data is on shared storage already, and there is one tier of it"
_UNREPLICATED = "brokers do not copy records: they are on shared storage once for all of them"
_REMOVED = "Kafka 4.0 has removed it, and there is only the current format here"

REFUSED_TOPIC_SETTINGS = {
    "compression.gzip.level": "codecs work at their default level",
    "compression.lz4.level": "codecs work at their default level",
    "compression.zstd.level": "codecs work at their default level",
    "follower.replication.throttled.replicas": _UNREPLICATED,
    "leader.replication.throttled.replicas": _UNREPLICATED,
    "local.retention.bytes": _SHARED,
    "local.retention.ms": _SHARED,
    "message.downconversion.enable": _REMOVED,
    "message.format.version": _REMOVED,
    "message.timestamp.difference.max.ms": (
        "message.timestamp.before.max.ms and message.timestamp.after.max.ms take its place"
    ),
    "remote.copy.disable": _SHARED,
    "remote.log.copy.disable": _SHARED,
    "remote.log.delete.on.disable": _SHARED,
    "remote.storage.enable": _SHARED,
}


def refuse_kafka_only(keys: Iterable[str]) -> None:
    """Raise for the first key that only Kafka knows.

    Raises:
        InvalidRequestError: UNSUPPORTED_CONFIG.
    """
    for key in keys:
        reason = REFUSED_TOPIC_SETTINGS.get(key)
        if reason is not None:
            raise InvalidRequestError(
                "UNSUPPORTED_CONFIG", f"topic setting {key!r} is not supported: {reason}", fix=f"remove {key}"
            )
