"""Options with the prefix ``kafka.``: what Kafka's connector would pass on to a Kafka client.

Nothing is passed on here, because nothing is between Spark and the storage. (``kafka.bootstrap.servers``
only helps to find the storage; options.py declares it.) So each of them is
either served (options.py), or harmless without a broker and said so once, or refused with the reason.
Sources: Kafka's consumer and producer configurations; KafkaSourceProvider.validateGeneralOptions.
"""

import difflib
import logging

from sparklog.errors import InvalidRequestError

logger = logging.getLogger("sparklog.spark")

# Served under this name by the side.
_SERVED = {
    "source": {"kafka.group.id"},
    "sink": {"kafka.compression.type", "kafka.batch.size", "kafka.max.request.size"},
}
# Reasons Kafka's connector itself gives for refusing.
_REFUSED = {
    "auto.offset.reset": "use startingOffsets: the query's checkpoint decides where to go on",
    "key.deserializer": "keys are always binary: cast the column",
    "value.deserializer": "values are always binary: cast the column",
    "key.serializer": "keys are strings or binary: cast the column",
    "value.serializer": "values are strings or binary: cast the column",
    "enable.auto.commit": "the query's checkpoint holds its progress; kafka.group.id makes it visible",
    "interceptor.classes": "interceptors could change the data: use DataFrame operations",
    "transactional.id": "every commit of the sink is atomic and exactly once already",
    "enable.idempotence": "every commit of the sink is atomic and exactly once already",
    "isolation.level": "nothing that is not committed is ever visible",
    "acks": "a commit is always on storage before it is acknowledged",
    "partitioner.class": "give the column partition, or let the key decide as in Kafka's Java client",
}
_REFUSED_PREFIXES = {
    "security.": "without a broker, access is what the storage's permissions say",
    "sasl.": "without a broker, access is what the storage's permissions say",
    "ssl.": "without a broker, access is what the storage's permissions say",
}
# Tuning of a network client: no promise depends on it, so a migrated job may keep it.
_WITHOUT_EFFECT = frozenset(
    {
        "allow.auto.create.topics",
        "buffer.memory",
        "check.crcs",
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "connections.max.idle.ms",
        "default.api.timeout.ms",
        "delivery.timeout.ms",
        "exclude.internal.topics",
        "fetch.max.bytes",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "group.instance.id",
        "heartbeat.interval.ms",
        "linger.ms",
        "max.block.ms",
        "max.in.flight.requests.per.connection",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "max.poll.records",
        "metadata.max.age.ms",
        "metadata.max.idle.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partition.assignment.strategy",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "request.timeout.ms",
        "retries",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "send.buffer.bytes",
        "session.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
        "transaction.timeout.ms",
    }
)


def check_kafka_option(name: str, value: str, side: str) -> None:
    """Accept, warn about or refuse one option whose lower-case name starts with ``kafka.``.

    Raises:
        InvalidRequestError: the option is refused, or no Kafka client knows it.
    """
    if name in _SERVED[side]:
        return
    bare = name.removeprefix("kafka.")
    reason = _REFUSED.get(bare) or next(
        (why for prefix, why in _REFUSED_PREFIXES.items() if bare.startswith(prefix)), None
    )
    if reason is not None:
        raise InvalidRequestError(
            "UNSUPPORTED_KAFKA_OPTION", f"{name}={value!r} is not supported: {reason}", fix=f"remove {name}"
        )
    if bare in _WITHOUT_EFFECT:
        logger.warning("%s has no effect: sparklog reads and writes the storage itself", name)
        return
    known = _WITHOUT_EFFECT | {served.removeprefix("kafka.") for served in _SERVED[side]}
    nearest = difflib.get_close_matches(bare, known, n=1, cutoff=0.6)
    hint = f"; did you mean kafka.{nearest[0]}?" if nearest else ""
    raise InvalidRequestError(
        "UNKNOWN_OPTION", f"the {side} has no option {name!r}{hint}", fix="correct or remove the option"
    )
