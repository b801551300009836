"""Transactions by Kafka's Java client and franz-go, in both protocols, and by Kafka's own tool for them."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import sparklog
from benchmarks.peers.fetching import Jars
from benchmarks.peers.kafka_process import QUICK_START, java
from benchmarks.peers.kafka_tools import HEAP
from sparklog.client import SparkLog
from tests.compat.clients import CLIENTS
from tests.compat.clients.transactional import transactional
from tests.peers.conftest import Tool, numbered
from tests.peers.transacting import Producer, state, values
from tests.support.broker_process import BrokerProcess, serving, until

COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
COPIED = 4_000


def test_commits_aborts_and_offsets(
    start: Callable[..., tuple[Producer, str]], log: SparkLog, new_topic: Callable[..., str], protocol: int
) -> None:
    one, two = new_topic(2), new_topic()
    producer, name = start()
    is_java = name.startswith("java")
    epoch = state(log, name).producer_epoch
    for number, commits in enumerate((True, False, False, True)):
        producer.tell("begin")
        told = producer.tell("send", one, 0, f"{number}/a", f"{number}/b")
        assert told == ("unknown unknown" if is_java else "-1 -1")
        producer.tell("send", one, 1, number)
        producer.tell("send", two, 0, number)
        if is_java:
            producer.tell("offsets", name, two, 0, number)
        producer.tell("commit" if commits else "abort")
    assert values(log, one, 0) == ["0/a", "0/b", "3/a", "3/b"]
    assert values(log, one, 1) == values(log, two) == ["0", "3"]
    assert log.committed_offsets(name) == ({(two, 0): 3} if is_java else {})
    ends = state(log, name).producer_epoch - epoch
    assert ends == 4 if protocol == 2 else ends < 4


def test_the_second_of_an_id_fences_the_first(
    start: Callable[..., tuple[Producer, str]], log: SparkLog, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    old, name = start()
    old.tell("begin")
    old.tell("send", topic, 0, "old")
    new, _ = start(name)
    new.tell("begin")
    new.tell("send", topic, 0, "new")
    went_well, text = old.ask("commit")
    assert not went_well
    assert "fenced" in text.lower()
    new.tell("commit")
    assert values(log, topic) == ["new"]


def test_a_commit_that_comes_too_late_fails(
    start: Callable[..., tuple[Producer, str]], log: SparkLog, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    producer, name = start(timeout_ms=1_000)
    producer.tell("begin")
    producer.tell("send", topic, 0, "late")
    until(lambda: not state(log, name).is_ongoing, 60)
    went_well, text = producer.ask("commit")
    assert not went_well, text
    assert values(log, topic) == []
    again, _ = start(name)
    again.tell("begin")
    again.tell("send", topic, 0, "again")
    again.tell("commit")
    assert values(log, topic) == ["again"]


def test_kafkas_own_tool(
    tool: Tool, server: BrokerProcess, log: SparkLog, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    confluent = next(one for one in CLIENTS if one.name == "confluent")
    with transactional(confluent, server.bootstrap, "tool") as producer:
        producer.begin()
        producer.send(topic, [b"open"])
        found = state(log, "tool")
        text = tool("kafka-transactions", "list")
        rows = [line.split() for line in text.splitlines() if line.startswith("tool")]
        assert rows == [["tool", "1", str(found.producer_id), "Ongoing"]]
        text = tool("kafka-transactions", "describe", "--transactional-id", "tool")
        row = next(line.split() for line in text.splitlines() if line.startswith("1 "))
        assert row[1:5] == ["tool", str(found.producer_id), str(found.producer_epoch), "Ongoing"]
        assert row[-1] == f"{topic}-0"
        where = ("--topic", topic, "--partition", "0")
        text = tool("kafka-transactions", "describe-producers", *where)
        (row,) = [line.split() for line in text.splitlines() if line.startswith(f"{found.producer_id} ")]
        assert row[1:4] == [str(found.producer_epoch), "-1", "0"]
        assert row[-1] == "None"
        text = tool("kafka-transactions", "find-hanging", "--topic", topic)
        assert topic not in text
        who = ("--producer-id", str(found.producer_id), "--producer-epoch", str(found.producer_epoch))
        tool("kafka-transactions", "abort", *where, *who, "--coordinator-epoch", "0")
        assert state(log, "tool").phase == "aborted"
        with pytest.raises(Exception, match=r"(?i)fenced|epoch|newer"):
            producer.commit()
    assert values(log, topic) == []


def test_what_is_copied_is_exact_however_often_the_copier_is_killed(kafka_jars: Jars, tmp_path: Path) -> None:
    """Kafka's own: it reads, writes and commits its offsets in transactions, some of which it aborts."""
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
    with serving(tmp_path / "log", settings) as server, sparklog.open(str(server.root), create=False) as log:
        for topic in ("in", "out"):
            log.create_topic(topic, 1)
        log.append("in", numbered(COPIED))
        words = ["--broker-list", server.bootstrap, "--input-topic", "in", "--input-partition", "0"]
        words += ["--output-topic", "out", "--max-messages", str(COPIED), "--consumer-group", "copier"]
        words += ["--transaction-size", "50", "--transactional-id", "copier"]
        # What a killed one has left open is aborted soon: the next one reads its offsets before it fences.
        words += ["--transaction-timeout", "2000", "--enable-random-aborts"]
        command = java(kafka_jars, COPIER, *words, heap=HEAP, jvm=QUICK_START)

        def copied() -> int:
            log.refresh(force=True)
            return log.log_end_offset("out", 0)

        for goal in (500, 1_500, 2_500, COPIED):
            copier = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                until(lambda: copied() >= goal, 120, f"{goal} are copied")  # noqa: B023
            finally:
                copier.kill()
                copier.wait()
        assert values(log, "out") == [str(number) for number in range(COPIED)]
        assert log.committed_offsets("copier") == {("in", 0): COPIED}
