"""Options of the Spark source and sink (option_table.py): parsed once, unknown ones refused.

Precedence is that of Spark's Kafka connector.
Not here: what the offsets mean against a root (resolve.py), who calls whom (datasource.py).
Sources: Spark's structured-streaming-kafka-integration guide and KafkaSourceProvider.
"""

import difflib
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from sparklog.errors import InvalidRequestError
from sparklog.spark.kafka_options import check_kafka_option
from sparklog.spark.offset_spec import (
    EARLIEST,
    LATEST,
    OffsetSpec,
    parse_ending,
    parse_starting,
)
from sparklog.spark.option_table import NEEDS_BROKER, SINK_OPTIONS, SOURCE_OPTIONS, Option
from sparklog.spark.roots import root_of_broker
from sparklog.spark.storage_options import NO_STORAGE_OPTIONS, StorageOptions, parse_storage, storage_name
from sparklog.spark.subscription import Subscription, parse_subscription
from sparklog.spark.values import parse_bool, parse_duration_ms, parse_int

logger = logging.getLogger("sparklog.spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What the source was asked for, checked; picklable."""

    root: str
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What the sink was asked for, checked; picklable."""

    root: str
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
    txn_app_id: str | None
    txn_version: int | None
    checkpoint_location: str | None
    query_name: str | None


def parse_source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Check and parse the options of one query.

    Raises:
        InvalidRequestError: an unknown, missing, contradictory or malformed option.
    """
    given = _known(options, SOURCE_OPTIONS, "source", streaming=streaming)
    group_id = _same_value(given, "kafka.group.id", "group.id")
    starting = parse_starting(given, default=LATEST if streaming else EARLIEST, streaming=streaming)
    ending = parse_ending(given, default=LATEST)
    for spec, option in ((starting, "startingOffsets"), (ending, "endingOffsets")):
        if spec.kind == "group" and group_id is None:
            raise InvalidRequestError(
                "INVALID_OPTION",
                f"{option}=group, but no group is named",
                fix="set kafka.group.id to the group whose offsets to use",
            )
    root = _root(given, "load")
    parsed = SourceOptions(
        root=root,
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
    given = _known(options, SINK_OPTIONS, "sink", streaming=streaming)
    for name in ("compression.type", "batch.size", "max.request.size"):
        if (value := _same_value(given, f"kafka.{name}", name)) is not None:
            given[name] = value
    topic = given.get("topic", "").strip() or None
    app_id, version = given.get("txnappid"), parse_int(given, "txnVersion", minimum=0)
    if (app_id is None) != (version is None):
        raise InvalidRequestError(
            "INVALID_OPTION",
            "txnAppId and txnVersion make sense only together, and one is missing",
            fix="set both: a name for the job, and a number that grows with every run",
        )
    root = _root(given, "start" if streaming else "save")
    return SinkOptions(
        root=root,
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
        txn_app_id=app_id,
        txn_version=version,
        checkpoint_location=given.get("checkpointlocation"),
        query_name=given.get("queryname"),
    )


def _known(
    options: Mapping[str, str], declared: tuple[Option, ...], side: str, *, streaming: bool
) -> dict[str, str]:
    """The options by lower-case name, all of them known to this side and fit for this kind of query."""
    by_name = {option.name.lower(): option for option in declared}
    given = {}
    for name, value in options.items():
        lower = name.lower()
        option = by_name.get(lower)
        if option is not None and option.doc == NEEDS_BROKER:
            logger.warning("%s has no effect: sparklog reads the storage itself", option.name)
        if option is None and lower.startswith("kafka."):
            check_kafka_option(lower, value, side)
        elif option is None and storage_name(lower) is not None:
            pass  # checked with the others of its kind (storage_options.py)
        elif option is None:
            nearest = difflib.get_close_matches(lower, by_name, n=1, cutoff=0.6)
            hint = f"did you mean {by_name[nearest[0]].name}?" if nearest else "see the README's option table"
            raise InvalidRequestError(
                "UNKNOWN_OPTION",
                f"the {side} has no option {name!r}; {hint}",
                fix="correct or remove the option",
            )
        elif option.only == "batch" and streaming:
            raise InvalidRequestError(
                "INVALID_OPTION",
                f"{option.name} is not valid in streaming queries",
                fix=f"remove {option.name}",
            )
        elif option.only == "stream" and not streaming and lower not in ("checkpointlocation", "queryname"):
            # Kafka's connector warns here as well, so that one option set serves both kinds of query.
            logger.warning("%s is ignored in batch queries", option.name)
            continue
        given[lower] = value
    return given


def _same_value(given: Mapping[str, str], *names: str) -> str | None:
    values = {given[name.lower()] for name in names if name.lower() in given}
    if len(values) > 1:
        raise InvalidRequestError(
            "INVALID_OPTION", f"{' and '.join(names)} differ: {sorted(values)}", fix="set only one of them"
        )
    return values.pop() if values else None


def _root(given: Mapping[str, str], method: str) -> str:
    servers = given.get("kafka.bootstrap.servers", "").strip()
    if root := given.get("path", "").strip():
        if servers:
            logger.warning("kafka.bootstrap.servers has no effect: the root is named by path")
        return root
    if servers:
        return root_of_broker(servers)
    raise InvalidRequestError(
        "MISSING_OPTION",
        "no root directory is given, and no broker",
        fix=f"call {method}(root), or set option path to the log's directory, or kafka.bootstrap.servers to "
        "a sparklog broker",
    )
