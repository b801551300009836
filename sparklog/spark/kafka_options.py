"""Options with the prefix ``kafka.``: what Kafka's connector would pass on to a Kafka client.

Nothing is passed on here, because nothing is between Spark and the storage. (``kafka.bootstrap.servers``
only helps to find the storage; option_table.py declares it.) So each of them is
    served            under this name (option_table.py),
    satisfied         it asks for what is done anyway, or for less: accepted without a word,
    without effect    tuning of a network client: accepted, and said so,
    refused           it promises something else; with the reason.
A test compares the names with Kafka's own ConfigDefs where its jar is at hand.
Sources: ConsumerConfig, ProducerConfig and AdminClientConfig of Kafka 4.3; KafkaSourceProvider.
"""

import difflib
from collections.abc import Callable

from sparklog.errors import InvalidRequestError
from sparklog.redaction import shown

# Served under this name by the side.
_SERVED = {
    "source": {"kafka.group.id"},
    "sink": {"kafka.compression.type", "kafka.batch.size", "kafka.max.request.size"},
}
_ACCESS = "without a broker, access is what the storage's permissions say"
_EXACTLY_ONCE = "every commit of the sink is atomic and exactly once already"
# Setting -> (the values that what is done anyway satisfies, what is done anyway).
SATISFIED = {
    "acks": ({"all", "-1", "1", "0"}, "a commit is always on storage before it is acknowledged"),
    "enable.auto.commit": ({"false"}, "the query's checkpoint holds its progress; kafka.group.id shows it"),
    "enable.idempotence": ({"true", "false"}, _EXACTLY_ONCE),
    "isolation.level": (
        {"read_committed", "read_uncommitted"},
        "nothing that is not committed is ever visible",
    ),
    "partitioner.ignore.keys": ({"false"}, "the key decides; leave it null, or give the column partition"),
    "security.protocol": ({"plaintext"}, _ACCESS),
    "transaction.two.phase.commit.enable": ({"false"}, _EXACTLY_ONCE),
}
# Reasons Kafka's connector itself gives for refusing, and ours.
REFUSED = {
    "auto.offset.reset": "use startingOffsets: the query's checkpoint decides where to go on",
    "bootstrap.controllers": "name the root with path, or a broker with kafka.bootstrap.servers",
    "config.providers": "values are taken as they are, and nothing in them is replaced",
    "key.deserializer": "keys are always binary: cast the column",
    "value.deserializer": "values are always binary: cast the column",
    "key.serializer": "keys are strings or binary: cast the column",
    "value.serializer": "values are strings or binary: cast the column",
    "interceptor.classes": "interceptors could change the data: use DataFrame operations",
    "transactional.id": _EXACTLY_ONCE,
    "partitioner.class": "give the column partition, or let the key decide as in Kafka's Java client",
}
_REFUSED_PREFIXES = {"security.": _ACCESS, "sasl.": _ACCESS, "ssl.": _ACCESS}
# Tuning of a network client: no promise depends on it, so a migrated job may keep it.
WITHOUT_EFFECT = frozenset(
    {
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "auto.include.jmx.reporter",  # until Kafka 3
        "buffer.memory",
        "check.crcs",
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "connections.max.idle.ms",
        "default.api.timeout.ms",
        "delivery.timeout.ms",
        "enable.metrics.push",
        "exclude.internal.topics",
        "fetch.max.bytes",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "internal.throw.on.fetch.stable.offset.unsupported",
        "linger.ms",
        "max.block.ms",
        "max.in.flight.requests.per.connection",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "max.poll.records",
        "metadata.max.age.ms",
        "metadata.max.idle.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partition.assignment.strategy",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "request.timeout.ms",
        "retries",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "send.buffer.bytes",
        "session.timeout.ms",
        "share.acknowledgement.mode",
        "share.acquire.mode",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
        "transaction.timeout.ms",
    }
)
OTHER_SIDE = {"source": "sink", "sink": "source"}


def check_kafka_option(name: str, value: str, side: str, warn: Callable[[str], None]) -> None:
    """Accept, warn about or refuse one option whose lower-case name starts with ``kafka.``.

    Raises:
        InvalidRequestError: the option is refused, or no Kafka client knows it.
    """
    if name in _SERVED[side]:
        return
    bare = name.removeprefix("kafka.")
    satisfied, reason = SATISFIED.get(bare, (set(), None))
    if value.strip().lower() in satisfied:
        return
    reason = reason or REFUSED.get(bare)
    reason = reason or next((why for start, why in _REFUSED_PREFIXES.items() if bare.startswith(start)), None)
    if reason is not None:
        raise InvalidRequestError(
            "UNSUPPORTED_KAFKA_OPTION",
            f"{name}={shown(name, value)} is not supported: {reason}",
            fix=f"remove {name}",
        )
    if name in _SERVED[OTHER_SIDE[side]]:
        warn(f"{name} has no effect: it is an option of the {OTHER_SIDE[side]}")
    elif bare in WITHOUT_EFFECT:
        warn(f"{name} has no effect: sparklog reads and writes the storage itself")
    else:
        raise _unknown(name, bare, side)


def is_known_to_kafka(name: str) -> bool:
    """Whether a name that starts with ``kafka.`` is an option of Kafka's clients, whatever comes of it."""
    bare = name.removeprefix("kafka.")
    return (
        bare in WITHOUT_EFFECT
        or bare in SATISFIED
        or bare in REFUSED
        or any(map(bare.startswith, _REFUSED_PREFIXES))
    )


def _unknown(name: str, bare: str, side: str) -> InvalidRequestError:
    known = WITHOUT_EFFECT | set(SATISFIED) | {served.removeprefix("kafka.") for served in _SERVED[side]}
    nearest = difflib.get_close_matches(bare, known, n=1, cutoff=0.6)
    hint = f"; did you mean kafka.{nearest[0]}?" if nearest else ""
    return InvalidRequestError(
        "UNKNOWN_OPTION", f"the {side} has no option {name!r}{hint}", fix="correct or remove the option"
    )
