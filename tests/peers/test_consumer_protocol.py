"""Kafka's Java clients and tools with the consumer protocol (KIP-848)."""

import re
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from benchmarks.peers.fetching import Jars
from benchmarks.peers.kafka_process import QUICK_START, java
from benchmarks.peers.kafka_tools import CLASSES, HEAP
from sparklog.client import SparkLog
from tests.peers.conftest import Tool, numbered
from tests.peers.test_java_clients import consumed, held
from tests.peers.transacting import franz_command
from tests.support.broker_process import BrokerProcess, until

PROTOCOL = ("--command-property", "group.protocol=consumer")


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_join_leave_and_are_killed(
    kafka_jars: Jars,
    server: BrokerProcess,
    tool: Tool,
    new_topic: Callable[..., str],
    assignor: str,
    tmp_path: Path,
) -> None:
    topic, group = new_topic(6), f"consumers-{assignor}"
    words = ["--bootstrap-server", server.bootstrap, "--topic", topic, "--group-id", group]
    words += ["--group-protocol", "consumer", "--group-remote-assignor", assignor]
    command = java(kafka_jars, CLASSES["kafka-verifiable-consumer"], *words, heap=HEAP, jvm=QUICK_START)
    members, outputs = [], []
    try:
        for number in range(3):
            outputs.append(tmp_path / f"member-{number}")
            with outputs[-1].open("w") as file:
                members.append(subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT))
            until(partial(held, outputs[-1]), 60, f"member {number} gets partitions")
        until(lambda: sorted(map(len, map(held, outputs))) == [2, 2, 2], 60, "two each")
        assert sorted(set().union(*map(held, outputs))) == [0, 1, 2, 3, 4, 5]

        text = tool("kafka-consumer-groups", "--describe", "--group", group, "--state")
        assert re.search(rf"{group} +\S+ +\(1\) +{assignor} +Stable +3", text), text
        text = tool("kafka-consumer-groups", "--describe", "--group", group, "--members", "--verbose")
        assert text.count(f"{topic}:") == 6, text  # each member's current and target assignment
        assert re.search(rf"{group} +Consumer +consumer", tool("kafka-groups", "--list", "--consumer"))

        members[0].terminate()
        assert members[0].wait(60) in (0, 143)
        until(lambda: sorted(map(len, map(held, outputs[1:]))) == [3, 3], 60, "the others get all")
        members[1].kill()  # its session of 45 s has to end
        members[1].wait()
        until(lambda: len(held(outputs[2])) == 6, 120, "the last one gets all")
        tool("kafka-verifiable-producer", "--topic", topic, "--max-messages", "400")
        until(lambda: consumed(outputs[2]) == 400, 60, "all are consumed")
    finally:
        for member in members:
            member.kill()
            member.wait()


def test_a_pattern_finds_topics_that_are_made_later(
    kafka_jars: Jars, server: BrokerProcess, log: SparkLog, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    first = new_topic()
    log.append(first, numbered(5))
    words = ["--bootstrap-server", server.bootstrap, "--include", f"{first}|later-.*", "--from-beginning"]
    words += [
        "--group",
        "by-pattern",
        *PROTOCOL,
        "--command-property",
        "metadata.max.age.ms=1000",
        "--timeout-ms",
        "60000",
        "--max-messages",
        "8",
    ]
    command = java(kafka_jars, CLASSES["kafka-console-consumer"], *words, heap=HEAP, jvm=QUICK_START)
    output = tmp_path / "output"
    with output.open("w") as file:
        consumer = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        try:
            until(lambda: {"0", "4"} <= set(output.read_text().split()), 60, "the first topic is read")
            log.create_topic("later-1")
            log.append("later-1", numbered(3, 100))
            assert consumer.wait(90) == 0, output.read_text()
        finally:
            consumer.kill()
            consumer.wait()
    assert {"100", "101", "102"} <= set(output.read_text().split())


def test_members_of_franz_go(
    server: BrokerProcess, log: SparkLog, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(4)
    for partition in range(4):
        log.append(topic, numbered(5), partition=partition)
    command = [*franz_command("consuming"), server.bootstrap, "franz-consumers", topic]
    members, outputs = [], []
    try:
        for number in range(2):
            outputs.append(tmp_path / f"franz-{number}")
            with outputs[-1].open("w") as file:
                members.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, stderr=file))
            until(partial(franz_has, outputs[-1]), 60, f"member {number} gets partitions")
        until(lambda: list(map(len, map(franz_has, outputs))) == [2, 2], 60, "two each")
        assert franz_has(outputs[0]) | franz_has(outputs[1]) == {0, 1, 2, 3}
        read = {line for one in outputs for line in one.read_text().splitlines() if line.startswith("r ")}
        assert read >= {f"r {partition} {offset}" for partition in range(4) for offset in range(5)}
        stdin = members[0].stdin
        assert stdin is not None
        stdin.close()
        assert members[0].wait(60) == 0, outputs[0].read_text()
        until(lambda: len(franz_has(outputs[1])) == 4, 60, "the other gets all")
    finally:
        for member in members:
            if member.stdin is not None:
                member.stdin.close()
            member.kill()
            member.wait()


def franz_has(output: Path) -> set[int]:
    has: set[int] = set()
    for line in output.read_text().splitlines():
        what, *numbers = line.split() or [""]
        if what == "+":
            has |= set(map(int, numbers))
        elif what == "-":
            has -= set(map(int, numbers))
    return has


def test_tools_change_an_empty_group(tool: Tool, log: SparkLog, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    log.append(topic, numbered(10))
    limits = ("--from-beginning", "--max-messages", "10", "--timeout-ms", "60000")
    tool("kafka-console-consumer", "--topic", topic, "--group", "reset", *limits, *PROTOCOL)
    reset = ("--reset-offsets", "--group", "reset", "--topic", topic, "--to-offset", "4", "--execute")
    assert re.search(rf"reset +{topic} +0 +4", tool("kafka-consumer-groups", *reset))
    assert re.search(
        rf"reset +{topic} +0 +4 +10 +6", tool("kafka-consumer-groups", "--describe", "--group", "reset")
    )
    # The same group with the classic protocol, and back.
    few = ("--topic", topic, "--group", "reset", "--max-messages", "2", "--timeout-ms", "60000")
    assert "4\n5\n" in tool("kafka-console-consumer", *few)
    assert re.search("reset +Classic", tool("kafka-groups", "--list"))
    assert "6\n7\n" in tool("kafka-console-consumer", *few, *PROTOCOL)
    assert re.search("reset +Consumer", tool("kafka-groups", "--list"))
    assert "was successful" in tool("kafka-consumer-groups", "--delete", "--group", "reset")
    assert "reset" not in tool("kafka-groups", "--list")


def test_sessions_of_a_group(tool: Tool) -> None:
    entity = ("--entity-type", "groups", "--entity-name", "own-session")
    tool("kafka-configs", "--alter", *entity, "--add-config", "consumer.session.timeout.ms=50000")
    assert "consumer.session.timeout.ms=50000" in tool("kafka-configs", "--describe", *entity)
    tool("kafka-configs", "--alter", *entity, "--delete-config", "consumer.session.timeout.ms")
    assert "50000" not in tool("kafka-configs", "--describe", *entity)
