"""Parses the options of the Spark source and sink (option_table.py); refuses unknown ones.

Precedence is that of Spark's Kafka connector.
Not here: resolving offsets against a root (ranges.py), the callers (datasource.py).
Sources: Spark's structured-streaming-kafka-integration guide and KafkaSourceProvider.
"""

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparklog.errors import InvalidRequestError, shown
from sparklog.spark.notices import Notices
from sparklog.spark.option_table import (
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    TOPIC_CONFIG_PREFIX,
    WITHOUT_EFFECT,
    Option,
)
from sparklog.spark.roots import (
    FIX,
    NO_STORAGE_OPTIONS,
    StorageOptions,
    parse_storage,
    root_of_broker,
    storage_name,
)
from sparklog.spark.stream_offset import (
    EARLIEST,
    LATEST,
    OffsetSpec,
    parse_ending,
    parse_starting,
)
from sparklog.spark.subscription import Subscription, parse_subscription
from sparklog.spark.task_slots import task_slots_of_environment
from sparklog.spark.values import invalid, parse_bool, parse_duration_ms, parse_int, parse_switch
from sparklog.storage.root_rules import ANY_ROOT, RootRules, root_rules

if TYPE_CHECKING:
    from sparklog.client.security import ClientSecurity

# --- kafka options -----------------------------------------------------------------------------------
#
# Options with the prefix ``kafka.``, which Kafka's connector passes on to a Kafka client.
#
# There is no Kafka client here. (``kafka.bootstrap.servers`` only helps to find the storage; option_table.py
# declares it.) So each of these options is
#     served            has an effect here (option_table.py),
#     satisfied         requests a guarantee that holds anyway: accepted silently,
#     without effect    tunes a network client: accepted, with a warning,
#     refused           requests something that is not available: an error, with the reason.
# A test compares the names with Kafka's own ConfigDefs if its jar is available.
# Sources: ConsumerConfig, ProducerConfig and AdminClientConfig of Kafka 4.3; KafkaSourceProvider.


# Served under this name by the side.
_SERVED = {
    "source": {"kafka.group.id"},
    "sink": {"kafka.compression.type", "kafka.batch.size", "kafka.max.request.size"},
}
_ACCESS = "it is none of those that matter for connecting to a sparklog broker (docs/security.md)"
# How to connect to the broker of kafka.bootstrap.servers (sparklog/client/security.py has the list).
_SECURITY_PREFIXES = ("kafka.security.", "kafka.sasl.", "kafka.ssl.")
_EXACTLY_ONCE = "every commit of the sink is atomic and exactly once already"
# Setting -> (the values that are satisfied, the guarantee that holds anyway).
SATISFIED = {
    "acks": ({"all", "-1", "1", "0"}, "a commit is always on storage before it is acknowledged"),
    "enable.auto.commit": ({"false"}, "the query's checkpoint holds its progress; kafka.group.id shows it"),
    "enable.idempotence": ({"true", "false"}, _EXACTLY_ONCE),
    "isolation.level": (
        {"read_committed", "read_uncommitted"},
        "uncommitted records are never visible",
    ),
    "partitioner.ignore.keys": ({"false"}, "the key decides; use null keys, or the column partition"),
    "transaction.two.phase.commit.enable": ({"false"}, _EXACTLY_ONCE),
}
# Setting -> the reason for refusing it: that of Kafka's connector, or ours.
REFUSED = {
    "auto.offset.reset": "use startingOffsets; a query with a checkpoint continues from it",
    "bootstrap.controllers": "name the root with path, or a broker with kafka.bootstrap.servers",
    "config.providers": "placeholders in values are not replaced",
    "key.deserializer": "keys are always binary: cast the column",
    "value.deserializer": "values are always binary: cast the column",
    "key.serializer": "keys are strings or binary: cast the column",
    "value.serializer": "values are strings or binary: cast the column",
    "interceptor.classes": "interceptors could change the data: use DataFrame operations",
    "transactional.id": _EXACTLY_ONCE,
    "partitioner.class": "use the column partition, or keys, which are hashed as by Kafka's Java client",
}
_REFUSED_PREFIXES = {"security.": _ACCESS, "sasl.": _ACCESS, "ssl.": _ACCESS}
# Tuning of a network client: no guarantee depends on it, so a migrated job may keep it.
KAFKA_WITHOUT_EFFECT = frozenset(
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
    if name in _SERVED[side] or is_security_option(name):
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
    elif bare in KAFKA_WITHOUT_EFFECT:
        warn(f"{name} has no effect: sparklog reads and writes the storage itself")
    else:
        raise _kafka_options_unknown(name, bare, side)


def is_security_option(name: str) -> bool:
    """Return True if an option says how to connect to a broker."""
    from sparklog.client.security import SETTINGS  # noqa: PLC0415 - few queries need it

    return name.startswith(_SECURITY_PREFIXES) and name.removeprefix("kafka.") in SETTINGS


def is_known_to_kafka(name: str) -> bool:
    """Return True if a name that starts with ``kafka.`` is an option of Kafka's clients."""
    bare = name.removeprefix("kafka.")
    return (
        bare in KAFKA_WITHOUT_EFFECT
        or bare in SATISFIED
        or bare in REFUSED
        or any(map(bare.startswith, _REFUSED_PREFIXES))
    )


def _kafka_options_unknown(name: str, bare: str, side: str) -> InvalidRequestError:
    known = (
        KAFKA_WITHOUT_EFFECT | set(SATISFIED) | {served.removeprefix("kafka.") for served in _SERVED[side]}
    )
    nearest = difflib.get_close_matches(bare, known, n=1, cutoff=0.6)
    hint = f"; did you mean kafka.{nearest[0]}?" if nearest else ""
    return InvalidRequestError(
        "UNKNOWN_OPTION", f"the {side} has no option {name!r}{hint}", fix="correct or remove the option"
    )


# --- options -----------------------------------------------------------------------------------------


_DECLARED = {
    "source": {option.name.lower(): option for option in SOURCE_OPTIONS},
    "sink": {option.name.lower(): option for option in SINK_OPTIONS},
}
_SPARKS_OWN = (  # passed to every sink
    "checkpointLocation",
    "queryName",
    "asyncProgressTrackingEnabled",
    "asyncProgressTrackingCheckpointIntervalMs",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The validated options of the source; picklable."""

    root: str
    rules: RootRules = ANY_ROOT
    storage: StorageOptions = NO_STORAGE_OPTIONS
    streaming: bool
    subscription: Subscription
    starting: OffsetSpec
    ending: OffsetSpec
    fail_on_data_loss: bool
    min_partitions: int | None
    max_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    include_headers: bool
    group_id: str | None
    retries: int
    retry_interval_ms: int
    filter_pushdown: bool
    task_slots: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The validated options of the sink; picklable."""

    root: str
    rules: RootRules = ANY_ROOT
    storage: StorageOptions = NO_STORAGE_OPTIONS
    streaming: bool
    topic: str | None
    include_headers: bool
    compression_type: str | None
    batch_size_bytes: int | None
    max_request_bytes: int | None
    flush_messages: int | None
    flush_ms: int | None
    auto_create_topics: bool | None
    num_partitions: int | None
    topic_configs: tuple[tuple[str, str], ...]
    txn_app_id: str | None
    txn_version: int | None
    checkpoint_location: str | None
    query_name: str | None
    maintenance: bool
    maintenance_is_given: bool  # if False, the session's value takes precedence (write_task.py)


def parse_source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Check and parse the options of one query.

    Raises:
        InvalidRequestError: an unknown, missing, contradictory or malformed option.
    """
    notices = Notices(options)
    given = _known(options, "source", notices, streaming=streaming)
    group_id = _same_value(given, "kafka.group.id", "group.id")
    starting = parse_starting(given, default=LATEST if streaming else EARLIEST, streaming=streaming)
    ending = parse_ending(given, default=LATEST)
    for spec, option in ((starting, "startingOffsets"), (ending, "endingOffsets")):
        if spec.kind == "group" and group_id is None:
            raise InvalidRequestError(
                "INVALID_OPTION",
                f"{option}=group requires a group",
                fix="set kafka.group.id to the group whose offsets to use",
            )
    rules = root_rules(given.get("clusterid"), given.get("allowedroots"), os.environ)
    root = _root(given, "load", notices, rules)
    parsed = SourceOptions(
        root=root,
        rules=rules,
        storage=parse_storage(given, root, streaming=streaming),
        streaming=streaming,
        subscription=parse_subscription(given),
        starting=starting,
        ending=ending,
        fail_on_data_loss=parse_bool(given, "failOnDataLoss", default=True),
        min_partitions=parse_int(given, "minPartitions", minimum=1),
        max_partitions=parse_int(given, "maxPartitions", minimum=1),
        max_records_per_partition=parse_int(given, "maxRecordsPerPartition", minimum=1),
        max_offsets_per_trigger=parse_int(given, "maxOffsetsPerTrigger", minimum=1),
        max_bytes_per_trigger=parse_int(given, "maxBytesPerTrigger", minimum=1),
        min_offsets_per_trigger=parse_int(given, "minOffsetsPerTrigger", minimum=1),
        max_trigger_delay_ms=parse_duration_ms(given, "maxTriggerDelay", default_ms=15 * 60_000),
        include_headers=parse_bool(given, "includeHeaders", default=False),
        group_id=group_id,
        retries=parse_int(given, "fetchOffset.numRetries", minimum=0, default=3),
        retry_interval_ms=parse_int(given, "fetchOffset.retryIntervalMs", minimum=0, default=10),
        filter_pushdown=parse_bool(given, "filterPushdown", default=False),
        task_slots=task_slots_of_environment(os.environ),
    )
    parse_int(given, "kafkaConsumer.pollTimeoutMs", minimum=0)
    _check_order("OffsetsPerTrigger", parsed.min_offsets_per_trigger, parsed.max_offsets_per_trigger)
    _check_order("Partitions", parsed.min_partitions, parsed.max_partitions)
    return parsed


def _check_order(name: str, low: int | None, high: int | None) -> None:
    if low is not None and high is not None and low > high:
        raise InvalidRequestError(
            "INVALID_OPTION",
            f"min{name} ({low}) is higher than max{name} ({high})",
            fix=f"lower min{name} or raise max{name}",
        )


def parse_sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Check and parse the options of one write.

    Raises:
        InvalidRequestError: an unknown, missing, contradictory or malformed option.
    """
    notices = Notices(options)
    given = _known(options, "sink", notices, streaming=streaming)
    for name in ("compression.type", "batch.size", "max.request.size"):
        if (value := _same_value(given, f"kafka.{name}", name)) is not None:
            given[name] = value
    topic = given.get("topic", "").strip() or None
    app_id, version = given.get("txnappid"), parse_int(given, "txnVersion", minimum=0)
    if (app_id is None) != (version is None):
        raise InvalidRequestError(
            "INVALID_OPTION",
            "txnAppId and txnVersion must be set together, and one is missing",
            fix="set both: a name for the job, and a number that increases with every run",
        )
    if app_id is not None and not app_id.strip():
        # Refused here, before tasks write; the commit would refuse it too. A blank name is none.
        raise invalid("txnAppId", app_id, "a unique name for the job")
    if parse_bool(given, "asyncProgressTrackingEnabled", default=False):
        # Spark's own check can be disabled. A micro-batch could then be repeated with other offsets.
        raise InvalidRequestError(
            "INVALID_OPTION",
            "asyncProgressTrackingEnabled=true is not supported: to write each micro-batch exactly once, "
            "Spark has to write its offsets first",
            fix="remove asyncProgressTrackingEnabled; trigger(processingTime=...) makes fewer micro-batches",
        )
    rules = root_rules(given.get("clusterid"), given.get("allowedroots"), os.environ)
    root = _root(given, "start" if streaming else "save", notices, rules)
    return SinkOptions(
        root=root,
        rules=rules,
        storage=parse_storage(given, root),
        streaming=streaming,
        topic=topic,
        include_headers=parse_bool(given, "includeHeaders", default=True),
        compression_type=given.get("compression.type"),
        batch_size_bytes=parse_int(given, "batch.size", minimum=1),
        max_request_bytes=parse_int(given, "max.request.size", minimum=1),
        flush_messages=parse_int(given, "flush.messages", minimum=1),
        flush_ms=parse_int(given, "flush.ms", minimum=1),
        auto_create_topics=parse_bool(given, "auto.create.topics.enable", default=None),
        num_partitions=parse_int(given, "num.partitions", minimum=1),
        topic_configs=_topic_configs(given),
        txn_app_id=app_id,
        txn_version=version,
        checkpoint_location=given.get("checkpointlocation"),
        query_name=given.get("queryname"),
        maintenance=parse_switch(
            given, "maintenance", default=os.environ.get("SPARKLOG_MAINTENANCE", "auto")
        ),
        maintenance_is_given="maintenance" in given,
    )


def _known(options: Mapping[str, str], side: str, notices: Notices, *, streaming: bool) -> dict[str, str]:
    """Return the options for this side and this kind of query, by lower-case name; refuse unknown ones.

    Options of the other side are ignored with a warning: a view may be both read and written.
    """
    declared, others = _DECLARED[side], _DECLARED[OTHER_SIDE[side]]
    given, for_other_side = {}, []
    for name, value in options.items():
        lower = name.lower()
        option = declared.get(lower)
        if option is not None:
            if not _is_for(option, notices, streaming=streaming):
                continue
        elif lower.startswith("kafka."):
            check_kafka_option(lower, value, side, notices.warn)
        elif lower in others:
            for_other_side.append(others[lower].name)
            continue
        elif lower.startswith(TOPIC_CONFIG_PREFIX):
            if side != "sink":
                for_other_side.append(lower)
                continue
        elif storage_name(lower) is None:  # `parse_storage` checks storage options
            raise _unknown(name, side)
        given[lower] = value
    if for_other_side:
        notices.warn(f"the {side} ignores options of the {OTHER_SIDE[side]}: {', '.join(for_other_side)}")
    return given


def _is_for(option: Option, notices: Notices, *, streaming: bool) -> bool:
    """Return True if the option applies to this kind of query; raise or warn if not."""
    if option.doc == WITHOUT_EFFECT:
        notices.warn(f"{option.name} has no effect: sparklog reads the storage itself")
    if option.only == "batch" and streaming:
        raise InvalidRequestError(
            "INVALID_OPTION",
            f"{option.name} is not valid in streaming queries",
            fix=f"remove {option.name}",
        )
    if option.only == "stream" and not streaming and option.name not in _SPARKS_OWN:
        # A warning, as in Kafka's connector: one set of options may serve both kinds of query.
        notices.warn(f"{option.name} is ignored in batch queries")
        return False
    return True


def _unknown(name: str, side: str) -> InvalidRequestError:
    fix = "correct or remove the option"
    if name.lower() == "paths":  # what Spark makes of load(["a", "b"])
        hint, fix = "a query has one root", "load each root by itself, and combine the rows with union"
    elif side == "sink" and _is_topic_setting(name.lower()):
        hint = f"for topics that it creates, use {TOPIC_CONFIG_PREFIX}{name.lower()}"
    elif is_known_to_kafka(f"kafka.{name.lower()}"):
        hint = f"did you mean kafka.{name.lower()}?"
    else:
        nearest = difflib.get_close_matches(name.lower(), _DECLARED[side], n=1, cutoff=0.6)
        known = _DECLARED[side][nearest[0]].name if nearest else ""
        hint = f"did you mean {known}?" if known else "docs/options.md lists them all"
    return InvalidRequestError("UNKNOWN_OPTION", f"the {side} has no option {name!r}; {hint}", fix=fix)


def _is_topic_setting(name: str) -> bool:
    from sparklog.log.config import is_topic_setting  # noqa: PLC0415 - only for an error

    return is_topic_setting(name)


def _topic_configs(given: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the settings of topics that the write creates, by Kafka's names.

    Raises:
        InvalidRequestError: an unknown setting or an invalid value.
    """
    length = len(TOPIC_CONFIG_PREFIX)
    configs = {name[length:]: text for name, text in given.items() if name.startswith(TOPIC_CONFIG_PREFIX)}
    if configs:
        from sparklog.log.config import validate_topic_configs  # noqa: PLC0415 - few queries need it

        validate_topic_configs(configs)
    return tuple(sorted(configs.items()))


def _same_value(given: Mapping[str, str], *names: str) -> str | None:
    values = {given[name.lower()] for name in names if name.lower() in given}
    if len(values) > 1:
        found = ", ".join(shown(names[0], value) for value in sorted(values))
        raise InvalidRequestError(
            "INVALID_OPTION", f"{' and '.join(names)} differ: {found}", fix="set only one of them"
        )
    return values.pop() if values else None


def _refuse_security(given: Mapping[str, str]) -> None:
    """Refuse what promises security where no broker is asked."""
    plain = {"kafka.security.protocol": "plaintext"}
    for name, value in given.items():
        if is_security_option(name) and value.strip().lower() != plain.get(name):
            raise InvalidRequestError(
                "UNSUPPORTED_KAFKA_OPTION",
                f"{name}={shown(name, value)} is not supported with path: without a broker, the storage's "
                "permissions control access",
                fix=f"remove {name}",
            )


def _security(given: Mapping[str, str]) -> "ClientSecurity":
    from sparklog.client.security import client_security  # noqa: PLC0415 - few queries need it

    settings = {
        name.removeprefix("kafka."): value for name, value in given.items() if is_security_option(name)
    }
    return client_security(settings, "options of the query")


def _root(given: Mapping[str, str], method: str, notices: Notices, rules: RootRules) -> str:
    servers = given.get("kafka.bootstrap.servers", "").strip()
    if root := given.get("path", "").strip():
        _refuse_security(given)
        if servers:
            notices.warn("kafka.bootstrap.servers has no effect: path names the root")
        rules.validate_place(root)
        return root
    if servers:
        return root_of_broker(servers, rules, _security(given))
    raise InvalidRequestError(
        "MISSING_OPTION",
        "neither a root nor a broker is given",
        fix=f"call {method}(root), or set option path to the log's directory, or kafka.bootstrap.servers to "
        "a sparklog broker; a table in Spark's catalog keeps no options: " + FIX,
    )
