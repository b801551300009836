"""Scans: each filter against a plain search over the same records; limits, progress, cancelling, masks."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.console import messages as messages_module
from sparklog.console.message_masks import MaskRule, Masks
from sparklog.console.message_values import AvroDecoder
from sparklog.console.messages import (
    Filters,
    Limits,
    Progress,
    Query,
    Start,
    messages,
    read_message,
    scan,
)
from sparklog.errors import InvalidRequestError, UnknownTopicError
from sparklog.metadata import plan_advance_log_start
from tests.console.made_records import PARTITIONS, TOPIC, Record, all_records, fill, is_found, json_at
from tests.console.test_message_values import avro

ALL = Limits(records=None, bytes=None, seconds=None)
BEGINNING = Start("beginning")
ANYTHING = Filters()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkLog]:
    with sparklog.open(tmp_path_factory.mktemp("root")) as log:
        fill(log)
        yield log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SparkLog]:
    with sparklog.open(tmp_path / "root", clock=ManualClock()) as log:
        yield log


def found_by(
    log: SparkLog,
    filters: Filters = ANYTHING,
    *,
    start: Start = BEGINNING,
    limits: Limits = ALL,
    partitions: tuple[int, ...] = (),
) -> tuple[list[tuple[int, int]], Progress]:
    query = Query(topic=TOPIC, start=start, filters=filters, limits=limits, partitions=partitions)
    found: list[tuple[int, int]] = []
    for step in scan(log, query):
        progress = step.progress
        found += zip(step.found["partition"].to_pylist(), step.found["offset"].to_pylist(), strict=True)
    assert progress.found == len(found)
    return sorted(found), progress


def places(records: Iterator[Record] | list[Record]) -> list[tuple[int, int]]:
    return sorted((record.partition, record.offset) for record in records)


FILTERS = {
    "none": Filters(),
    "key": Filters(key="k3"),
    "key of none": Filters(key="k333"),
    "key contains": Filters(key_contains="k1"),
    "key and part": Filters(key="k11", key_contains="1"),
    "value contains": Filters(value_contains="café 3"),
    "value contains markup": Filters(value_contains="<script>"),
    "header": Filters(header="trace"),
    "header value": Filters(header="trace", header_value="t99"),
    "header without value": Filters(header="<b>"),
    "regex": Filters(regex=r"order \d+ is caf[é]"),
    "regex over bytes": Filters(regex="^a"),
    "regex at the start": Filters(regex=r"^\{"),
    "end time": Filters(end_time_ms=1_001_000),
    "several": Filters(
        key="k2", header="trace", value_contains="ann", regex='"id": [2-8]', end_time_ms=1_003_000
    ),
}


@pytest.mark.parametrize("name", FILTERS)
def test_filters_find_what_a_plain_search_finds(filled: SparkLog, name: str) -> None:
    filters = FILTERS[name]
    expected = places(record for record in all_records(filled) if is_found(record, filters))
    found, progress = found_by(filled, filters)
    assert found == expected
    assert bool(expected) == (name != "key of none")
    assert (progress.stopped, progress.percent, progress.records_read) == ("end", 100, 400)
    assert progress.bytes_read == progress.bytes_total > 0


@pytest.mark.parametrize(
    ("path", "equals", "steps", "wanted"),
    [
        ("$.user.name", "bob", ("user", "name"), "bob"),
        ("user.name", "café", ("user", "name"), "café"),
        ("user['name']", 'q"q', ("user", "name"), 'q"q'),
        ("$.id", "5", ("id",), 5),
        ("$.user.ok", "true", ("user", "ok"), True),
        ("$.items[1].price", "1.5", ("items", 1, "price"), 1.5),
        ("$.items[1].price", "null", ("items", 1, "price"), None),
        ("items[0].sku", "s3", ("items", 0, "sku"), "s3"),
        ("$..name", "ann", ("user", "name"), "ann"),
        ("$.items[*].sku", "s9", ("items", 1, "sku"), "s9"),
        ("$.*.name", "ann", ("user", "name"), "ann"),
        ("$.items[7]", "1", ("items", 7), 1),
    ],
)
def test_json_paths_find_what_a_plain_search_finds(
    filled: SparkLog, path: str, equals: str, steps: tuple[str | int, ...], wanted: object
) -> None:
    def has(record: Record) -> bool:
        try:
            found = json_at(record, *steps)
        except KeyError:
            return False
        return found == wanted and isinstance(found, bool) == isinstance(wanted, bool)

    expected = places([record for record in all_records(filled) if has(record)])
    assert found_by(filled, Filters(json_path=path, json_equals=equals))[0] == expected
    assert bool(expected) == ("[7]" not in path)


def test_a_json_path_searches_what_a_schema_decodes(log: SparkLog) -> None:
    schema = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "int"}]}
    data = [avro(schema, {"n": 1}), avro(schema, {"n": 2}), b'{"n": 2}', b"\xff", None]
    log.create_topic(TOPIC, 1)
    log.append(TOPIC, pa.table({"value": pa.array(data, pa.binary())}))
    query = Query(topic=TOPIC, filters=Filters(json_path="n", json_equals="2"))
    masks = Masks((), TOPIC, {"value": AvroDecoder(json.dumps(schema))})
    (step, _) = scan(log, query, masks)
    assert step.found["offset"].to_pylist() == [1, 2]


def test_a_json_path_alone_asks_whether_there_is_a_value(filled: SparkLog) -> None:
    found, _ = found_by(filled, Filters(json_path="$.items[1].price"))
    assert 200 < len(found) < 400


@pytest.mark.parametrize("partitions", [(1,), (2, 0), (1, 1)])
def test_partitions(filled: SparkLog, partitions: tuple[int, ...]) -> None:
    found, _ = found_by(filled, partitions=partitions)
    assert found == places(record for record in all_records(filled) if record.partition in partitions)


def test_starts(filled: SparkLog) -> None:
    records = list(all_records(filled))
    ends = {partition: filled.log_end_offset(TOPIC, partition) for partition in range(PARTITIONS)}

    def expect(start: Start, is_in: object) -> None:
        found, progress = found_by(filled, start=start)
        assert found == places([record for record in records if is_in(record)])  # type: ignore[operator]
        assert progress.stopped == "end"

    expect(Start("latest", 10), lambda record: record.offset >= ends[record.partition] - 10)
    expect(Start("latest", 10**6), lambda record: True)
    expect(Start("offset", 100), lambda record: record.offset >= 100)
    expect(Start("offset", 10**9), lambda record: False)
    expect(Start("time", 1_002_000), lambda record: record.timestamp_ms >= 1_002_000)
    expect(Start("time", 10**12), lambda record: False)


def test_records_below_the_log_start_are_not_searched(log: SparkLog) -> None:
    fill(log)
    action = plan_advance_log_start(log.image, log.image.topic(TOPIC).topic_id, 0, 50)
    assert action is not None
    log.metadata.publish(lambda _: [action])
    found, _ = found_by(log, partitions=(0,))
    assert found[0] == (0, 50)


@pytest.mark.parametrize("limit", [1, 7, 399, 400, 401])
def test_a_scan_stops_at_its_records(filled: SparkLog, limit: int) -> None:
    found, progress = found_by(filled, limits=Limits(records=limit))
    assert (len(found), progress.stopped) == (min(limit, 400), "records" if limit <= 400 else "end")


def test_each_partition_has_its_share_of_the_records(filled: SparkLog) -> None:
    expected = [(partition, offset) for partition in range(PARTITIONS) for offset in range(4)]
    assert found_by(filled, limits=Limits(records=12))[0] == expected
    found, progress = found_by(filled, Filters(header="trace", header_value="t99"), limits=Limits(records=30))
    assert [sum(place[0] == partition for place in found) for partition in range(PARTITIONS)] == [10] * 3
    assert progress.records_read < 400


def test_a_scan_stops_at_its_bytes(log: SparkLog) -> None:
    log.create_topic(TOPIC, 1)
    for _ in range(4):
        log.append(TOPIC, pa.table({"value": [b"x" * 100_000] * 10}))
    found, progress = found_by(log, limits=Limits(records=None, bytes=1_500_000))
    assert progress.stopped == "bytes"
    assert 10 <= len(found) <= 20
    assert 1_000_000 <= progress.bytes_read <= 2_000_000
    assert 25 <= progress.percent <= 50


class SteppingClock(ManualClock):
    """A second passes whenever it is read."""

    def monotonic_ms(self) -> int:
        self.advance_ms(1000)
        return super().monotonic_ms()


def test_a_scan_stops_at_its_seconds(tmp_path: Path) -> None:
    with sparklog.open(tmp_path / "root", clock=SteppingClock()) as log:
        fill(log)
        _, progress = found_by(log, limits=Limits(seconds=0.5))
        assert (progress.stopped, progress.records_read) == ("time", 0)


def test_a_scan_is_cancelled_between_steps(filled: SparkLog) -> None:
    is_cancelled = False
    steps = scan(filled, Query(topic=TOPIC, start=BEGINNING, limits=ALL), is_cancelled=lambda: is_cancelled)
    next(steps)
    is_cancelled = True
    (last,) = steps
    assert (last.progress.stopped, last.found.num_rows) == ("cancelled", 0)


def test_a_scan_is_cancelled_within_a_step(filled: SparkLog) -> None:
    asked = 0

    def is_cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked > 3

    query = Query(topic=TOPIC, start=BEGINNING, filters=Filters(regex="(a|b)*" * 100 + "x$"), limits=ALL)
    (last,) = scan(filled, query, is_cancelled=is_cancelled)
    assert (last.progress.stopped, last.progress.records_read) == ("cancelled", 0)


@pytest.mark.parametrize(
    ("filters", "text"),
    [
        (Filters(regex="("), "a pattern of values: "),
        (Filters(regex="(.{0,1000}){40}"), "states"),
        (Filters(json_path="$.a["), "a JSON path: found "),
        (Filters(json_path="$"), "a JSON path: found "),
        (Filters(json_equals="5"), "a JSON value without a path"),
        (Filters(header_value="5"), "a header's value without its name"),
    ],
)
def test_wrong_filters_are_refused_before_the_scan(filled: SparkLog, filters: Filters, text: str) -> None:
    with pytest.raises(InvalidRequestError, match=text.replace("$", r"\$").replace("[", r"\[")):
        scan(filled, Query(topic=TOPIC, filters=filters))


def test_unknown_topics_and_partitions_are_refused(filled: SparkLog) -> None:
    with pytest.raises(UnknownTopicError):
        scan(filled, Query(topic="nothing"))
    with pytest.raises(UnknownTopicError):
        scan(filled, Query(topic=TOPIC, partitions=(99,)))


def test_a_damaged_partition_is_reported_and_the_others_are_searched(log: SparkLog, tmp_path: Path) -> None:
    log.create_topic(TOPIC, 2)
    for partition in range(2):
        log.append(TOPIC, pa.table({"value": [b"x" * 1000] * 10}), partition=partition)
    (segment,) = [path for path in (tmp_path / "root").rglob("*.log") if path.stat().st_size > 1000]
    data = bytearray(segment.read_bytes())
    data[500] ^= 1  # in the batch of partition 0
    segment.write_bytes(data)
    found, progress = found_by(log)
    assert found == [(1, offset) for offset in range(10)]
    ((partition, problem),) = progress.problems
    assert partition == 0
    assert "CRC" in problem or "checksum" in problem


def test_values_that_are_too_large_to_search_are_counted(
    log: SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages_module, "MAX_JSON_BYTES", 100)
    monkeypatch.setattr(messages_module, "MAX_REGEX_BYTES", 100)
    log.create_topic(TOPIC, 1)
    long = b'{"a": 1, "b": "' + b"x" * 200 + b'yes"}'
    log.append(TOPIC, pa.table({"value": [b'{"a": 1}', long, b'{"c": "yes"}', None]}))
    found, progress = found_by(log, Filters(json_path="a", json_equals="1"))
    assert (found, progress.not_searched) == ([(0, 0)], 1)
    found, progress = found_by(log, Filters(regex="yes"))
    assert (found, progress.not_searched) == ([(0, 2)], 1)


NESTED = b"[" * 190 + b",".join([b'{"a":0}'] * 50_000) + b"]" * 190  # 100,190 nodes


@pytest.mark.parametrize(
    ("filters", "rules"),
    [(Filters(json_path="$..a", json_equals="1"), ()), (ANYTHING, (MaskRule(json_path="$..a"),))],
)
def test_a_search_within_a_value_is_cancelled(
    log: SparkLog, filters: Filters, rules: tuple[MaskRule, ...]
) -> None:
    log.create_topic(TOPIC, 1)
    log.append(TOPIC, pa.table({"value": [NESTED]}))
    calls: list[int] = []

    def is_cancelled() -> bool:
        calls.append(1)
        return len(calls) > 9

    *_, last = scan(log, Query(topic=TOPIC, filters=filters), Masks(rules, TOPIC), is_cancelled=is_cancelled)
    assert (last.progress.stopped, len(calls)) == ("cancelled", 11)


@pytest.mark.slow
def test_values_that_are_nested_too_deeply_are_counted(log: SparkLog) -> None:
    log.create_topic(TOPIC, 1, configs={"max.message.bytes": "10000000"})
    deep = [b"[" * nesting + b",".join([b'{"a":1}'] * 400_000) + b"]" * nesting for nesting in (500, 200)]
    least, text = b"[" * 199 + b'{"a":1}' + b"]" * 199, b'{"b": "' + b"[" * 300 + b'", "a": 1}'
    log.append(TOPIC, pa.table({"value": [*deep, b"[" * 5000 + b'"a" 1', least, text]}))
    found, progress = found_by(log, Filters(json_path="$..a", json_equals="1"))
    assert (found, progress.not_searched) == ([(0, 3), (0, 4)], 3)


def test_nested_text_is_no_json_to_look_for(log: SparkLog) -> None:
    log.create_topic(TOPIC, 1)
    log.append(TOPIC, pa.table({"value": [json.dumps({"a": "[" * 1500}).encode(), b'{"a": 1}']}))
    assert found_by(log, Filters(json_path="a", json_equals="[" * 1500))[0] == [(0, 0)]


# --- messages


def test_messages_are_cut_and_count_what_is_left_out(log: SparkLog) -> None:
    headers = [[{"key": f"h{number}", "value": b"v" * 100} for number in range(150)]]
    table = pa.table({"key": [b"k" * 100], "value": [b"v" * 1000], "headers": headers})
    log.create_topic(TOPIC, 1)
    log.append(TOPIC, table)
    (step, _) = scan(log, Query(topic=TOPIC))
    (message,) = messages(step.found, field_bytes=10)
    assert (message.key.data, message.key.size) == (b"k" * 10, 100)
    assert (message.value.data, message.value.size) == (b"v" * 10, 1000)
    assert (len(message.headers), message.header_count) == (100, 150)
    assert message.headers[99][0] == "h99"
    assert (message.headers[99][1].data, message.headers[99][1].size) == (b"v" * 10, 100)


def test_messages_are_the_records(filled: SparkLog) -> None:
    shown = [
        Record(
            message.partition,
            message.offset,
            message.timestamp_ms,
            message.key.data,
            message.value.data,
            [(name, value.data) for name, value in message.headers],
        )
        for step in scan(filled, Query(topic=TOPIC, start=BEGINNING, limits=ALL))
        for message in messages(step.found)
    ]
    assert sorted(shown, key=lambda one: (one.partition, one.offset)) == list(all_records(filled))


def test_one_record_is_read_whole(filled: SparkLog) -> None:
    rows = read_message(filled, TOPIC, 1, 17)
    assert rows is not None
    (record,) = [one for one in all_records(filled) if (one.partition, one.offset) == (1, 17)]
    assert rows["value"].to_pylist() == [record.value]
    assert read_message(filled, TOPIC, 1, 10**6) is None


# --- masks


def masked(**rule: object) -> Masks:
    return Masks([MaskRule(**rule)], TOPIC)  # type: ignore[arg-type]


def test_masks_apply_to_all_that_is_found(log: SparkLog) -> None:
    log.create_topic(TOPIC, 1)
    log.append(
        TOPIC,
        pa.table(
            {
                "key": ["card 4111", None],
                "value": ['{"card": 4111, "n": 1}', "no JSON 4111"],
                "headers": [[{"key": "card", "value": b"4111"}], None],
            }
        ),
    )
    by_regex = masked(regex="4[0-9]+")
    (step, _) = scan(log, Query(topic=TOPIC), by_regex)
    assert step.found["key"].to_pylist() == [b"card ***", None]
    assert step.found["value"].to_pylist() == [b'{"card": ***, "n": 1}', b"no JSON ***"]
    assert step.found["headers"].to_pylist() == [[{"key": "card", "value": b"***"}], None]
    by_path = masked(json_path="$.card", fields=("value",))
    (step, _) = scan(log, Query(topic=TOPIC), by_path)
    assert step.found["value"].to_pylist() == [b'{"card":"***","n":1}', b"***"]
    rows = read_message(log, TOPIC, 0, 1, by_path)
    assert rows is not None
    assert rows["value"].to_pylist() == [b"***"]


@pytest.mark.parametrize(
    "filters",
    [
        Filters(value_contains="4111"),
        Filters(regex=r"\d{4}"),
        Filters(json_path="card", json_equals="4111"),
        Filters(regex='card": ?(4|x)'),
    ],
)
def test_filters_do_not_find_what_is_masked(log: SparkLog, filters: Filters) -> None:
    log.create_topic(TOPIC, 1)
    log.append(TOPIC, pa.table({"value": ['{"card": 4111}']}))
    for masks in (masked(regex="4[0-9]+"), masked(json_path="$..card")):
        assert [step.found.num_rows for step in scan(log, Query(topic=TOPIC, filters=filters), masks)] == [
            0,
            0,
        ]
    assert found_by(log, filters)[0] == [(0, 0)]
