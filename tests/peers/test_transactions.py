"""Transactions by Kafka's Java client and franz-go, in both protocols, and by Kafka's own tool for them."""

import itertools
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sparklog
from benchmarks.peers.fetching import Jars, cache
from benchmarks.peers.kafka_process import QUICK_START, java
from benchmarks.peers.kafka_tools import HEAP
from sparklog.client import SparkLog
from sparklog.closing import Closing
from sparklog.log.root_config import TRANSACTION_VERSION_KEY
from sparklog.metadata import Transaction
from tests.compat.clients import CLIENTS
from tests.compat.clients.transactional import transactional
from tests.compat.embedded import stored_records
from tests.peers.conftest import Tool, numbered
from tests.support.broker_process import BrokerProcess, serving, until

PROGRAM = Path(__file__).with_name("Transacting.java")
FRANZ = Path(__file__).with_name("franz")
BUILD_SECONDS = 300
COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
COPIED = 4_000
_names = itertools.count(1)


class Producer(Closing):
    """A process with another client; `tell` gives a step, and its answer."""

    def __init__(self, command: list[str], bootstrap: str, name: str, timeout_ms: int = 60_000) -> None:
        self.process = subprocess.Popen(
            [*command, bootstrap, name, str(timeout_ms)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.tell("init") == ""

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()

    def ask(self, *words: object) -> tuple[bool, str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            outcome, _, text = line.strip().partition(" ")
            if outcome in {"ok", "error"}:
                return outcome == "ok", text
        pytest.fail("the client has ended")

    def tell(self, *words: object) -> str:
        went_well, text = self.ask(*words)
        assert went_well, text
        return text


@pytest.fixture(params=[1, 2], ids=["first-protocol", "second-protocol"])
def protocol(request: pytest.FixtureRequest, log: SparkLog) -> Iterator[int]:
    log.alter_root({TRANSACTION_VERSION_KEY: str(request.param)})
    yield request.param
    log.alter_root({}, [TRANSACTION_VERSION_KEY])


@pytest.fixture(scope="session")
def java_program(kafka_jars: Jars) -> list[str]:
    return java(kafka_jars, str(PROGRAM), heap=HEAP, jvm=QUICK_START)


@pytest.fixture(scope="session")
def franz_program() -> list[str]:
    """Built by Go, which fetches franz-go."""
    if shutil.which("go") is None:
        pytest.skip("there is no Go here")
    program = cache() / "franz-transacting"
    words = ["go", "build", "-o", str(program), "."]
    done = subprocess.run(
        words, cwd=FRANZ, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"franz-go could not be built: {done.stderr[-300:]}")
    return [str(program)]


@pytest.fixture(params=["java", "franz"])
def start(
    request: pytest.FixtureRequest, server: BrokerProcess, protocol: int
) -> Iterator[Callable[..., tuple[Producer, str]]]:
    started: list[Producer] = []
    program: list[str] = request.getfixturevalue(f"{request.param}_program")

    def start_one(name: str | None = None, **settings: int) -> tuple[Producer, str]:
        name = name or f"{request.param}-{protocol}-{next(_names)}"
        started.append(Producer(program, server.bootstrap, name, **settings))
        return started[-1], name

    yield start_one
    for one in started:
        one.close()


def values(log: SparkLog, topic: str, partition: int = 0) -> list[str]:
    log.refresh(force=True)
    return [(one.value or b"").decode() for one in stored_records(log, topic, partition)]


def state(log: SparkLog, name: str) -> Transaction:
    return log.refresh(force=True).transactions[name]


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
