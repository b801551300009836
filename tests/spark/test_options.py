"""Options of source and sink: known names, precedence, and errors that say what to type."""

import re
from collections.abc import Callable
from functools import partial

import pytest

from sparklog.errors import InvalidRequestError
from sparklog.spark.option_table import (
    BOOTSTRAP_SERVERS,
    SECURITY,
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    STORAGE,
    TOPIC_CONFIG,
    Option,
)
from sparklog.spark.options import SourceOptions, parse_sink_options, parse_source_options
from sparklog.spark.stream_offset import EARLIEST, GROUP, LATEST
from sparklog.spark.write_task import append_options
from tests.support.told import Told

SOURCE = {"path": "/log", "subscribe": "t"}
SINK = {"path": "/log"}


def source(**options: str) -> SourceOptions:
    return parse_source_options({**SOURCE, **options}, streaming=True)


def batch_source(**options: str) -> SourceOptions:
    return parse_source_options({**SOURCE, **options}, streaming=False)


def refused(call: Callable[[], object], code: str) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        call()
    assert caught.value.code == code
    return str(caught.value)


def test_defaults_are_those_of_kafkas_connector() -> None:
    stream, batch = source(), batch_source()
    assert stream.starting == LATEST
    assert batch.starting == EARLIEST
    assert batch.ending == LATEST
    assert stream.fail_on_data_loss
    assert not stream.include_headers
    assert stream.max_trigger_delay_ms == 15 * 60_000
    assert stream.max_offsets_per_trigger is None


def test_names_are_case_insensitive_as_spark_passes_them_in_lower_case() -> None:
    assert source(MAXOFFSETSPERTRIGGER="7").max_offsets_per_trigger == 7
    assert source(maxoffsetspertrigger="8").max_offsets_per_trigger == 8


@pytest.mark.parametrize(
    ("mistyped", "nearest"),
    [
        ("startingOfsets", "startingOffsets"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("subscribes", "subscribe"),
    ],
)
def test_an_unknown_option_names_the_nearest(mistyped: str, nearest: str) -> None:
    text = refused(lambda: source(**{mistyped: "x"}), "UNKNOWN_OPTION")
    assert nearest in text
    assert mistyped in text


@pytest.mark.parametrize(
    ("side", "name", "advice"),
    [
        ("source", "paths", "one root.*load each root by itself, and combine the rows with union"),
        ("source", "fetch.min.bytes", "did you mean kafka.fetch.min.bytes"),
        ("source", "retention.ms", "docs/options.md"),
        ("sink", "acks", "did you mean kafka.acks"),
        ("sink", "retention.ms", "topic.config.retention.ms"),
        ("sink", "Cleanup.Policy", "topic.config.cleanup.policy"),
        ("sink", "mergeSchema", "docs/options.md"),
    ],
)
def test_a_name_from_elsewhere_is_told_what_it_is_called_here(side: str, name: str, advice: str) -> None:
    """Kafka's clients, topics, and what Spark makes of a list of paths."""
    parse = partial(parse_sink_options, {**SINK, name: "1"}, streaming=False)
    text = refused(parse if side == "sink" else partial(batch_source, **{name: "1"}), "UNKNOWN_OPTION")
    assert re.search(advice, text), text


def test_each_side_ignores_the_others_options_so_that_one_view_serves_both(
    caplog: pytest.LogCaptureFixture,
) -> None:
    view = {"path": "/log", "subscribe": "t", "includeHeaders": "true", "topic": "t", "txnAppId": "x"}
    view |= {"txnVersion": "1", "kafka.compression.type": "zstd", "kafka.group.id": "g"}
    assert parse_source_options(view, streaming=False).group_id == "g"
    assert "the source ignores options of the sink: topic, txnAppId, txnVersion" in caplog.text
    assert "kafka.compression.type has no effect: it is an option of the sink" in caplog.text
    parsed = parse_sink_options(view, streaming=False)
    assert (parsed.topic, parsed.compression_type, parsed.txn_app_id) == ("t", "zstd", "x")
    assert "the sink ignores options of the source: subscribe" in caplog.text
    assert "kafka.group.id has no effect: it is an option of the source" in caplog.text


def test_a_warning_comes_once_for_the_same_options(told: Told) -> None:
    """Spark parses them again for every plan and micro-batch."""
    for _ in range(3):
        source(**{"kafka.fetch.min.bytes": "1"})
    assert sum("kafka.fetch.min.bytes has no effect" in one for one in told("sparklog.spark")) == 1
    source(**{"kafka.fetch.min.bytes": "2"})
    assert sum("kafka.fetch.min.bytes has no effect" in one for one in told("sparklog.spark")) == 2


@pytest.mark.parametrize("option", SOURCE_OPTIONS, ids=lambda o: o.name)
def test_every_declared_source_option_changes_what_is_parsed_or_says_so(
    option: Option, caplog: pytest.LogCaptureFixture
) -> None:
    """An option that is declared but read by nobody would be accepted and ignored."""
    values = {
        "path": "/other", "subscribe": "u", "subscribePattern": "u.*", "assign": '{"u":[1]}',
        "startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"t":{"0":1}}',
        "startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "latest",
        "endingOffsets": '{"t":{"0":9}}',
        "endingOffsetsByTimestamp": '{"t":{"0":1}}', "endingTimestamp": "6", "failOnDataLoss": "false",
        "minPartitions": "9", "maxPartitions": "9", "maxRecordsPerPartition": "9",
        "maxOffsetsPerTrigger": "9", "maxBytesPerTrigger": "9",
        "minOffsetsPerTrigger": "9", "maxTriggerDelay": "1s",
        "includeHeaders": "true", "kafka.group.id": "g", "group.id": "g", "filterPushdown": "true",
        "fetchOffset.numRetries": "9", "fetchOffset.retryIntervalMs": "9",
        "allow_unsafe_filesystem": "true", "clusterId": "c", "allowedRoots": "/log",
    }  # fmt: skip
    streaming = option.only != "batch"
    base = {"path": "/log", "subscribe": "t"}
    if option in {BOOTSTRAP_SERVERS, SECURITY, STORAGE}:
        return  # tests/spark/test_options_bootstrap_servers.py, test_roots_storage_options.py
    if option.name in ("groupIdPrefix", "kafkaConsumer.pollTimeoutMs"):
        parse_source_options({**base, option.name: "5"}, streaming=True)
        assert f"{option.name} has no effect" in caplog.text
        return
    if option.name == "startingOffsetsByTimestampStrategy":
        base["startingTimestamp"] = "5"
    changed = {**base, option.name: values[option.name]}
    if option.name in ("subscribePattern", "assign"):
        del changed["subscribe"]
    without = parse_source_options(base, streaming=streaming)
    assert parse_source_options(changed, streaming=streaming) != without


@pytest.mark.parametrize("option", SINK_OPTIONS, ids=lambda o: o.name)
def test_every_declared_sink_option_changes_what_is_parsed(option: Option) -> None:
    values = {
        "path": "/other", "topic": "t", "includeHeaders": "false", "compression.type": "zstd",
        "batch.size": "9", "max.request.size": "9", "flush.messages": "9", "flush.ms": "9",
        "auto.create.topics.enable": "false", "num.partitions": "9", "txnAppId": "a", "txnVersion": "1",
        "checkpointLocation": "/c", "queryName": "q", "allow_unsafe_filesystem": "true",
        "clusterId": "c", "allowedRoots": "/log", "maintenance": "off",
    }  # fmt: skip
    if option in {BOOTSTRAP_SERVERS, SECURITY, STORAGE, TOPIC_CONFIG} or option.name.startswith(
        "asyncProgress"
    ):
        return  # tests/spark/test_options_bootstrap_servers.py, test_roots_storage_options.py, and below
    pair = {"txnAppId": "a", "txnVersion": "1"} if option.name.startswith("txn") else {}
    streaming = option.only == "stream"
    changed = parse_sink_options({**SINK, **pair, option.name: values[option.name]}, streaming=streaming)
    assert changed != parse_sink_options(SINK, streaming=streaming)


def test_exactly_one_way_to_subscribe() -> None:
    refused(lambda: parse_source_options({"path": "/log"}, streaming=True), "MISSING_OPTION")
    refused(lambda: source(assign='{"t":[0]}'), "INVALID_OPTION")


@pytest.mark.parametrize(
    ("name", "value"),
    [("assign", "t"), ("assign", '{"t": 0}'), ("assign", '{"t": ["0"]}'), ("assign", "{}"),
     ("assign", '{"t": [-1]}'), ("subscribe", " , "), ("subscribePattern", ""), ("subscribePattern", "(")],
)  # fmt: skip
def test_malformed_subscriptions(name: str, value: str) -> None:
    refused(lambda: parse_source_options({"path": "/log", name: value}, streaming=True), "INVALID_OPTION")


@pytest.mark.parametrize(
    ("name", "value"),
    [("minPartitions", "0"), ("maxPartitions", "0"), ("maxOffsetsPerTrigger", "many"),
     ("maxOffsetsPerTrigger", "99999999999999999999"),
     ("failOnDataLoss", "yes"), ("maxTriggerDelay", "soon"), ("startingOffsets", "begin"),
     ("startingOffsets", '{"t": {"0": -3}}'), ("startingOffsets", '{"t": 5}'),
     ("startingOffsets", '{"t": {"x": 5}}'), ("startingOffsets", '{"t": {"0": true}}'),
     ("startingOffsets", '{"t": '), ("startingTimestamp", "-1"), ("startingOffsets", '{"a":' * 100_000),
     ("startingOffsets", '{"t": {"0": 1, "0": 2}}'), ("startingOffsets", '{"t": {"0": 1, "00": 2}}'),
     ("startingOffsets", '{"t": {"0": 1}, "t": {"1": 2}}'),
     ("startingOffsetsByTimestamp", '{"t": {"0": -1}}'), ("startingOffsetsByTimestampStrategy", "earliest")],
)  # fmt: skip
def test_malformed_values_name_the_option(name: str, value: str) -> None:
    assert name in refused(lambda: source(**{name: value}), "INVALID_OPTION")


def test_timestamps_take_precedence_over_offsets() -> None:
    spec = source(
        startingTimestamp="5", startingOffsetsByTimestamp='{"t":{"0":6}}', startingOffsets="earliest"
    ).starting
    assert (spec.kind, spec.timestamp_ms) == ("timestamps", 5)
    spec = source(startingOffsetsByTimestamp='{"t":{"0":6}}', startingOffsets="earliest").starting
    assert (spec.kind, spec.by_partition) == ("timestamps", {("t", 0): 6})


def test_batch_bounds_that_leave_nothing_to_read_are_refused() -> None:
    refused(lambda: batch_source(startingOffsets="latest"), "INVALID_OPTION")
    refused(lambda: batch_source(startingOffsets='{"t":{"0":-1}}'), "INVALID_OPTION")
    refused(lambda: batch_source(endingOffsets="earliest"), "INVALID_OPTION")
    refused(lambda: batch_source(endingOffsets='{"t":{"0":-2}}'), "INVALID_OPTION")


def test_ending_offsets_have_no_place_in_a_stream() -> None:
    refused(lambda: source(endingOffsets="latest"), "INVALID_OPTION")
    refused(lambda: source(endingTimestamp="5"), "INVALID_OPTION")


def test_trigger_limits_are_ignored_in_batch_queries_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert batch_source(maxOffsetsPerTrigger="5").max_offsets_per_trigger is None
    assert "maxOffsetsPerTrigger is ignored in batch queries" in caplog.text


def test_min_above_max_is_refused() -> None:
    refused(lambda: source(minOffsetsPerTrigger="10", maxOffsetsPerTrigger="9"), "INVALID_OPTION")
    refused(lambda: source(minPartitions="10", maxPartitions="9"), "INVALID_OPTION")


def test_a_group_start_needs_a_group() -> None:
    refused(lambda: source(startingOffsets="group"), "INVALID_OPTION")
    assert source(startingOffsets="group", **{"kafka.group.id": "g"}).starting == GROUP
    refused(lambda: source(**{"kafka.group.id": "g", "group.id": "h"}), "INVALID_OPTION")


def test_kafka_options_without_effect_are_accepted_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    source(**{"kafka.bootstrap.servers": "b:9092", "kafka.fetch.min.bytes": "1"})
    assert "kafka.bootstrap.servers has no effect: path names the root" in caplog.text
    assert "kafka.fetch.min.bytes has no effect" in caplog.text


def test_without_a_root_the_message_says_how_to_give_one() -> None:
    text = refused(lambda: parse_source_options({"subscribe": "t"}, streaming=True), "MISSING_OPTION")
    assert "load(root)" in text
    assert "kafka.bootstrap.servers" in text
    assert "save(root)" in refused(lambda: parse_sink_options({}, streaming=False), "MISSING_OPTION")


def test_kafka_names_of_sink_options_mean_the_same() -> None:
    given = {**SINK, "kafka.compression.type": "lz4", "kafka.batch.size": "5"}
    parsed = parse_sink_options(given, streaming=True)
    assert (parsed.compression_type, parsed.batch_size_bytes) == ("lz4", 5)
    twice = {**SINK, "kafka.batch.size": "5", "batch.size": "6"}
    refused(lambda: parse_sink_options(twice, streaming=True), "INVALID_OPTION")


def test_txn_options_come_in_pairs_and_only_in_batch() -> None:
    refused(lambda: parse_sink_options({**SINK, "txnAppId": "a"}, streaming=False), "INVALID_OPTION")
    refused(lambda: parse_sink_options({**SINK, "txnVersion": "1"}, streaming=False), "INVALID_OPTION")
    pair = {**SINK, "txnAppId": "a", "txnVersion": "1"}
    refused(lambda: parse_sink_options(pair, streaming=True), "INVALID_OPTION")


@pytest.mark.parametrize("name", ["", "  "])
def test_a_job_without_a_name_is_refused_before_its_tasks_write(name: str) -> None:
    text = refused(
        lambda: parse_sink_options({**SINK, "txnAppId": name, "txnVersion": "1"}, streaming=False),
        "INVALID_OPTION",
    )
    assert "txnAppId" in text


def test_a_date_is_told_what_a_timestamp_is_here() -> None:
    """Delta's options of these names take dates."""
    text = refused(lambda: source(startingTimestamp="2026-01-01"), "INVALID_OPTION")
    assert "milliseconds since 1970-01-01 UTC" in text


def test_settings_of_topics_that_the_sink_creates() -> None:
    given = {**SINK, "topic.config.max.message.bytes": "5000000", "Topic.Config.retention.ms": "1000"}
    parsed = parse_sink_options(given, streaming=True)
    assert parsed.topic_configs == (("max.message.bytes", "5000000"), ("retention.ms", "1000"))
    assert append_options(parsed).topic_configs == dict(parsed.topic_configs)
    assert source(**{"topic.config.max.message.bytes": "1"})  # the sink's: one view serves both
    for name, code in (("max.mesage.bytes", "UNKNOWN_CONFIG"), ("max.message.bytes", "INVALID_CONFIG_VALUE")):
        wrong = {**SINK, f"topic.config.{name}": "many"}
        text = refused(partial(parse_sink_options, wrong, streaming=False), code)
        assert "max.message.bytes" in text


def test_progress_is_not_tracked_asynchronously(told: Told) -> None:
    """Spark refuses it for this sink, unless it is made to skip that check; a switched off one may stay."""
    off = {"asyncProgressTrackingEnabled": "false", "asyncProgressTrackingCheckpointIntervalMs": "100"}
    assert parse_sink_options({**SINK, **off}, streaming=True) == parse_sink_options(SINK, streaming=True)
    assert told("sparklog.spark") == []
    with pytest.raises(InvalidRequestError, match="remove asyncProgressTrackingEnabled") as caught:
        parse_sink_options({**SINK, "asyncprogresstrackingenabled": "True"}, streaming=True)
    assert caught.value.code == "INVALID_OPTION"
