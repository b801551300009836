"""Kafka's Java clients: the console and verifiable producers and consumers, with every codec and assignor."""

import json
import re
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import sparklog
from benchmarks.peers.fetching import Jars
from benchmarks.peers.kafka_process import QUICK_START, java
from benchmarks.peers.kafka_tools import CLASSES, HEAP
from sparklog.client import SparkLog
from tests.compat.embedded import stored_headers, stored_records
from tests.peers.conftest import Tool, numbered
from tests.support.broker_process import BrokerProcess, serving, until


def events(text: str) -> list[dict[str, object]]:
    """The JSON lines that the verifiable clients print."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_console_producer_and_consumer(
    tool: Tool, log: SparkLog, new_topic: Callable[..., str], codec: str
) -> None:
    topic = new_topic(2)
    lines = [f"h{n}:{n}\tkey-{n}\tvalue {n}" for n in range(200)]
    properties = ("parse.key=true", "parse.headers=true")
    words = [word for one in properties for word in ("--reader-property", one)]
    tool(
        "kafka-console-producer",
        "--topic",
        topic,
        "--compression-codec",
        codec,
        *words,
        stdin="\n".join(lines),
    )

    stored = [one for partition in (0, 1) for one in stored_records(log, topic, partition)]
    assert sorted((one.key, one.value, one.headers) for one in stored) == sorted(
        (b"key-%d" % n, b"value %d" % n, ((f"h{n}", b"%d" % n),)) for n in range(200)
    )
    codecs = {one.codec.name.lower() for partition in (0, 1) for one in stored_headers(log, topic, partition)}
    assert codecs == {codec}

    words = ["--formatter-property", "print.key=true", "--formatter-property", "print.headers=true"]
    limits = ("--from-beginning", "--max-messages", "200", "--timeout-ms", "30000")
    text = tool("kafka-console-consumer", "--topic", topic, *limits, *words)
    assert sorted(line for line in text.splitlines() if "\tkey-" in line) == sorted(lines)


def test_console_consumer_reads_what_was_appended_without_the_broker(
    tool: Tool, log: SparkLog, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1, {"compression.type": "lz4"})
    for turn in range(3):
        log.append(topic, numbered(100, turn * 100))
    limits = ("--offset", "150", "--partition", "0", "--max-messages", "150", "--timeout-ms", "30000")
    text = tool("kafka-console-consumer", "--topic", topic, *limits, "--isolation-level", "read_committed")
    assert [int(line) for line in text.splitlines() if line.isdigit()] == list(range(150, 300))


def test_verifiable_producer_and_consumer(tool: Tool, new_topic: Callable[..., str]) -> None:
    topic = new_topic(3)
    sent = events(tool("kafka-verifiable-producer", "--topic", topic, "--max-messages", "1000"))
    acked = {
        (one["partition"], one["offset"]): one["value"]
        for one in sent
        if one["name"] == "producer_send_success"
    }
    assert len(acked) == 1000
    assert sent[-1]["acked"] == 1000

    words = ("--group-id", "verifiable", "--max-messages", "1000", "--reset-policy", "earliest", "--verbose")
    seen = events(tool("kafka-verifiable-consumer", "--topic", topic, *words))
    got = {(one["partition"], one["offset"]): one["value"] for one in seen if one["name"] == "record_data"}
    assert got == acked
    assert all(one["success"] for one in seen if one["name"] == "offsets_committed")


@pytest.mark.parametrize(
    "assignor", ["RangeAssignor", "RoundRobinAssignor", "StickyAssignor", "CooperativeStickyAssignor"]
)
def test_two_members_share_the_partitions(
    kafka_jars: Jars,
    server: BrokerProcess,
    tool: Tool,
    new_topic: Callable[..., str],
    assignor: str,
    tmp_path: Path,
) -> None:
    """One joins, another joins, the first leaves: all partitions have a reader again, nothing is lost."""
    topic = new_topic(4)
    words = ["--bootstrap-server", server.bootstrap, "--topic", topic, "--group-id", f"shared-{assignor}"]
    words += ["--assignment-strategy", f"org.apache.kafka.clients.consumer.{assignor}"]
    command = java(kafka_jars, CLASSES["kafka-verifiable-consumer"], *words, heap=HEAP, jvm=QUICK_START)
    members, outputs = [], []
    try:
        for number in (0, 1):
            outputs.append(tmp_path / f"member-{number}")
            with outputs[-1].open("w") as file:
                members.append(subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT))
            until(partial(held, outputs[-1]), 60, f"member {number} gets partitions")
        until(lambda: sorted(map(len, map(held, outputs))) == [2, 2], 60, "two each")
        assert sorted(held(outputs[0]) | held(outputs[1])) == [0, 1, 2, 3]
        members[0].terminate()
        assert members[0].wait(60) in (0, 143)
        until(lambda: len(held(outputs[1])) == 4, 60, "the other gets all")
        tool("kafka-verifiable-producer", "--topic", topic, "--max-messages", "400")
        until(lambda: consumed(outputs[1]) == 400, 60, "all are consumed")
    finally:
        for member in members:
            member.kill()
            member.wait()


def held(output: Path) -> set[int]:
    """The partitions that a member has, by its assignments and revocations so far."""
    held: set[int] = set()
    for one in events(output.read_text()):
        partitions = {part["partition"] for part in one.get("partitions", ())}  # type: ignore[attr-defined]
        if one["name"] == "partitions_assigned":
            held |= partitions
        elif one["name"] == "partitions_revoked":
            held -= partitions
    return held


def consumed(output: Path) -> int:
    seen = (one for one in events(output.read_text()) if one["name"] == "records_consumed")
    return sum(int(str(one["count"])) for one in seen)


def test_nothing_acknowledged_is_lost_or_doubled_when_the_broker_is_killed(
    kafka_jars: Jars, tmp_path: Path
) -> None:
    """The idempotent producer goes on by itself when the broker is back on its port."""
    output, retrying = tmp_path / "producer", tmp_path / "retrying.properties"
    retrying.write_text("retries=2147483647\nenable.idempotence=true\n")  # the tool's own default: no retries
    with serving(tmp_path / "log") as server:
        words = ["--bootstrap-server", server.bootstrap, "--topic", "t", "--max-messages", "6000"]
        words += ["--throughput", "1000", "--command-config", str(retrying)]
        command = java(kafka_jars, CLASSES["kafka-verifiable-producer"], *words, heap=HEAP, jvm=QUICK_START)
        with output.open("w") as file:
            producer = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        try:
            for turn in (1, 2):
                until(partial(_acknowledged, output, turn * 1500), 60)
                server.kill()
                server.start()
            assert producer.wait(120) == 0
        finally:
            producer.kill()
            producer.wait()
        acked = [
            str(one["value"]) for one in events(output.read_text()) if one["name"] == "producer_send_success"
        ]
        with sparklog.open(str(server.root), create=False) as log:
            stored = [one.value.decode() for one in stored_records(log, "t") if one.value is not None]
    assert set(acked) <= set(stored)
    assert len(stored) == len(set(stored))
    assert len(acked) == 6000


def _acknowledged(output: Path, count: int) -> bool:
    return output.read_text().count("send_success") > count


def test_perf_tests_run_through(tool: Tool, server: BrokerProcess, new_topic: Callable[..., str]) -> None:
    topic = new_topic(8)
    words = ("--topic", topic, "--num-records", "50000", "--record-size", "100", "--throughput", "-1")
    text = tool("kafka-producer-perf-test", *words, "--command-property", "compression.type=lz4")
    assert re.search(r"50000 records sent, .* 99.9th", text)
    text = tool("kafka-consumer-perf-test", "--topic", topic, "--num-records", "50000", "--timeout", "30000")
    assert float(text.splitlines()[-1].split(", ")[4]) >= 50000
