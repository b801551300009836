"""`sparklog perf`: figures that are right, in the formats of Kafka's tools, which scripts parse."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import Result

import sparklog
from sparklog.cli.perf import (
    HEADER,
    FilePayloads,
    MonotonicPayloads,
    Pace,
    RandomPayloads,
    Stats,
    Tally,
    TopicReader,
    payload_size,
)

Run = Callable[..., Result]
RunJson = Callable[..., Any]
NUMBER = r"[\d.]+"
TOTAL = re.compile(
    rf"(\d+)( steady state)? records sent, \d+\.\d{{6}} records/sec \({NUMBER} MB/sec\), {NUMBER} ms avg "
    r"latency, [\d.]+ ms max latency, \d+ ms 50th, \d+ ms 95th, \d+ ms 99th, \d+ ms 99\.9th\."
)
WINDOW = re.compile(
    rf"\d+ records sent, \d+\.\d records/sec \({NUMBER} MB/sec\), \d+\.\d ms avg latency, "
    r"\d+\.\d ms max latency\."
)

# --- figures -----------------------------------------------------------------------------------------


def test_percentiles_are_those_of_all_latencies() -> None:
    stats = Stats(0.0, 1000)
    for first in range(0, 1000, 100):
        stats.add(np.arange(first, first + 100, dtype=np.float64), 100)
    assert stats.percentiles() == {"p50": 500, "p95": 950, "p99": 990, "p999": 999}
    assert stats.line(2.0) == (
        "1000 records sent, 500.000000 records/sec (0.00 MB/sec), 499.50 ms avg latency, "
        "999.00 ms max latency, 500 ms 50th, 950 ms 95th, 990 ms 99th, 999 ms 99.9th."
    )
    assert stats.document(2.0)["latency_ms"] == {
        "avg": 499.5, "max": 999.0, "p50": 500.0, "p95": 950.0, "p99": 990.0, "p999": 999.0,
    }  # fmt: skip


def test_a_sample_is_kept_of_many_latencies() -> None:
    stats = Stats(0.0, 3_000_000)
    for first in range(0, 3_000_000, 70_001):  # no multiple of the stride
        stats.add(np.arange(first, min(first + 70_001, 3_000_000), dtype=np.float64), 1)
    assert stats.percentiles() == {"p50": 1_500_000, "p95": 2_850_000, "p99": 2_970_000, "p999": 2_997_000}


def test_a_window_has_kafkas_words() -> None:
    tally = Tally(10.0)
    tally.add(np.array([1.0, 3.0]), 3 << 20)
    assert tally.words(11.0) == (
        "2 records sent, 2.0 records/sec (3.00 MB/sec), 2.0 ms avg latency, 3.0 ms max latency"
    )
    assert Stats(0.0, 5).line(0.0).startswith("0 records sent")


def test_records_are_due_as_the_throughput_says() -> None:
    pace = Pace(100.0, 5.0)
    assert [pace.due(0, 50, now) for now in (5.0, 5.015, 9.0)] == [1, 2, 50]
    assert pace.due(3, 50, 5.015) < 1
    assert pace.wait_s(3, 5.015) == pytest.approx(0.015)
    found = pace.latencies_ms(2, 3, begun_s=5.04, done_s=5.05)  # due at 5.02, 5.03, 5.04
    assert found.tolist() == pytest.approx([30, 20, 10])
    assert Pace(None, 5.0).due(7, 50, 5.0) == 50
    assert Pace(None, 5.0).latencies_ms(7, 2, begun_s=6.0, done_s=6.5).tolist() == [500, 500]


def test_payloads(tmp_path: Path) -> None:
    random = RandomPayloads(20, 4).values(0, 3)
    assert all(re.fullmatch(b"[A-Z]{20}", value) for value in random.to_pylist())
    assert len(set(random.to_pylist())) == 3
    assert payload_size(random) == 60
    assert MonotonicPayloads().values(9, 2).to_pylist() == [b"9", b"10"]
    file = tmp_path / "payloads"
    file.write_bytes(b"one;two;three;")
    from_file = FilePayloads(file, b";")
    assert from_file.average_bytes == 3
    assert set(from_file.values(0, 100).to_pylist()) == {b"one", b"two", b"three"}
    file.write_bytes(b"")
    with pytest.raises(click.BadParameter, match="is empty"):
        FilePayloads(file, b";")


# --- produce -----------------------------------------------------------------------------------------


def test_producing_prints_what_kafkas_tool_prints(run: Run, root: Path) -> None:
    words = ("--topic", "t", "--num-records", "1000", "--record-size", "100", "--throughput", "-1")
    lines = run(
        "kafka-producer-perf-test", *words, "--batch-size", "10000", "--reporting-interval", "1"
    ).stdout.splitlines()
    assert TOTAL.fullmatch(lines[-1])
    assert lines[-1].startswith("1000 records sent, ")
    assert all(WINDOW.fullmatch(line) for line in lines[:-1])
    with sparklog.open(str(root), create=False) as log:
        rows = log.read("t", 0, 0)
        assert {len(value) for value in rows["value"].to_pylist()} == {100}
        assert rows.num_rows == 1000
        assert len(log.image.partition("t", 0).extents) == 10  # a batch is an append


def test_figures_as_json(run_json: RunJson) -> None:
    words = ("perf", "produce", "-t", "t", "--num-records", "300", "--payload-monotonic")
    found = run_json(*words, "--warmup-records", "100", "--print-metrics")
    assert (found["records"], found["payload_bytes"]) == (300, 10 + 180 + 600)
    assert found["steady_state"]["records"] == 200
    assert found["metrics"]["producer-metrics:record-send-total:{topic=t}"] == 300
    assert set(found["latency_ms"]) == {"avg", "max", "p50", "p95", "p99", "p999"}
    plain = run_json(*words)
    assert (plain["steady_state"], plain["metrics"]) == (None, None)


def test_the_steady_state_has_a_line_of_its_own(run: Run) -> None:
    words = ("perf", "produce", "-t", "t", "--num-records", "30", "--record-size", "5")
    lines = run(
        *words, "--warmup-records", "10", "--throughput", "5000", "--print-metrics"
    ).stdout.splitlines()
    first, second = TOTAL.fullmatch(lines[0]), TOTAL.fullmatch(lines[1])
    assert first is not None
    assert second is not None
    assert (first[1], first[2], second[1], second[2]) == ("30", None, "20", " steady state")
    assert lines[3].split() == ["Metric", "Name", "Value"]
    assert any(
        re.fullmatch(r"producer-metrics:request-total:\{topic=t\} +: \d+\.000", line) for line in lines
    )


def test_values_come_from_a_file(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("red\ngreen\n")
    words = ("perf", "produce", "-t", "t", "--num-records", "50", "--payload-file", str(file), "-z", "zstd")
    *windows, _total = run(*words, "--throughput", "1000", "--reporting-interval", "1").stdout.splitlines()
    assert windows
    assert all(WINDOW.fullmatch(line) for line in windows)
    assert set(run("consume", "-t", "t", "-e").stdout.splitlines()) == {"red", "green"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--num-records 5", "exactly one of"),
        ("--num-records 5 --record-size 1 --payload-monotonic", "exactly one of"),
        ("--num-records 5 --record-size 1 --warmup-records 5", "must be fewer"),
        ("--num-records 5 --record-size 1 --throughput 0", "more than 0, or -1"),
        ("--num-records 0 --record-size 1", "num-records"),
        ("--num-records 5 --producer-props acks=all", "--bootstrap-server HOST:PORT"),
    ],
)
def test_usage_of_produce(run: Run, root: Path, words: str, why: str) -> None:
    assert why in run("perf", "produce", "-t", "t", *words.split(), exit_code=2).stderr
    assert not root.exists()


def test_an_internal_topic_is_refused(run: Run, root: Path) -> None:
    words = ("--num-records", "5", "--record-size", "1")
    run("perf", "produce", "-t", "__consumer_offsets", *words, exit_code=1)
    run("perf", "e2e", "-t", "__consumer_offsets", "--num-records", "5", exit_code=1)
    assert not root.exists()


# --- consume -----------------------------------------------------------------------------------------


@pytest.fixture
def filled(run: Run) -> None:
    """Three partitions with 90 records of ten bytes."""
    run("topics", "create", "-t", "t", "--partitions", "3")
    for partition in range(3):
        run("produce", "-t", "t", "-p", str(partition), stdin="0123456789\n" * 30)


@pytest.mark.usefixtures("filled")
def test_consuming_prints_what_kafkas_tool_prints(run: Run) -> None:
    header, line = run("kafka-consumer-perf-test", "--topic", "t", "--messages", "90").stdout.splitlines()
    assert header == HEADER
    assert header.startswith(
        "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec"
    )
    fields = line.split(", ")
    assert len(fields) == len(header.split(", "))
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{3}", field) for field in fields[:2])
    assert (fields[2], fields[4], fields[6]) == ("0.0009", "90", "0")
    words = ("perf", "consume", "-t", "t", "--num-records", "90", "--hide-header")
    assert len(run(*words).stdout.splitlines()) == 1
    lines = run(*words, "--show-detailed-stats", "--reporting-interval", "1").stdout.splitlines()
    assert all(len(one.split(", ")) == 10 for one in lines)
    shown = run(*words, "--print-metrics").stdout
    assert "consumer-fetch-manager-metrics:records-consumed-total:{topic=t} : 90.000" in shown


@pytest.mark.usefixtures("filled")
def test_it_stops_at_the_number(run: Run, run_json: RunJson) -> None:
    found = run_json("perf", "consume", "-t", "t", "--num-records", "40")
    assert (found["records"], found["payload_bytes"]) == (40, 400)
    result = run("perf", "consume", "-t", "t", "--num-records", "91", "--timeout", "0")
    assert "timeout (0 ms) exceeded" in result.stderr
    assert result.stdout.splitlines()[1].split(", ")[4] == "90"
    words = ("perf", "consume", "-t", "t", "--num-records", "1", "--timeout", "0", "--from-latest")
    assert run(*words).stdout.splitlines()[1].split(", ")[4] == "0"
    assert run("groups", "list").stdout == ""
    run("perf", "consume", "-t", "u", "--num-records", "1", exit_code=1)


@pytest.mark.usefixtures("filled")
def test_a_topic_that_is_made_again_is_not_taken_for_the_old_one(root: Path) -> None:
    with sparklog.open(str(root), create=False) as log:
        reader = TopicReader(log, "t", {})
        assert sum(batch.num_rows for _, batch in reader.poll()) == 90
        assert list(reader.poll()) == []
        log.delete_topic("t")
        log.create_topic("t")
        with pytest.raises(click.ClickException, match="deleted and made again"):
            list(reader.poll())


# --- e2e ---------------------------------------------------------------------------------------------


def test_latency_is_printed_as_kafka_does(run: Run, run_json: RunJson) -> None:
    words = ("--topic", "t", "--num-records", "5", "--producer-acks", "all", "--record-size", "20")
    first, average, percentiles = run("kafka-e2e-latency", *words).stdout.splitlines()
    assert re.fullmatch(rf"0\t{NUMBER}", first)
    assert re.fullmatch(r"Avg latency: \d+\.\d{4} ms", average)
    assert re.fullmatch(r"Percentiles: 50th = \d+, 99th = \d+, 99\.9th = \d+", percentiles)
    found = run_json("perf", "e2e", "-t", "t", "--num-records", "3")
    assert found["records"] == 3
    assert 0 < found["latency_ms"]["p50"] <= found["latency_ms"]["max"]
    assert run("offsets", "get", "-t", "t").stdout == "t:0:8\n"
