"""Transactions by unmodified clients: all of it or nothing, whoever has the id too, whatever is repeated."""

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.metadata import Transaction
from tests.compat.clients import AioKafka, Client, Sent
from tests.compat.clients.transactional import transactional
from tests.compat.cutting_proxy import CuttingProxy
from tests.compat.embedded import stored_records
from tests.support.broker_process import BrokerProcess, serving, until

ADD_PARTITIONS, ADD_OFFSETS, END, OFFSET_COMMIT = 24, 25, 26, 28
SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
FASTER: dict[str, dict[str, Any]] = {
    "confluent": {"retry.backoff.ms": 10, "reconnect.backoff.ms": 10},
    "kafka-python": {"retry_backoff_ms": 10, "reconnect_backoff_ms": 10},
    "aiokafka": {"retry_backoff_ms": 10},
}
_names = itertools.count(1)


@pytest.fixture
def name() -> str:
    """A transactional id of one's own."""
    return f"app-{next(_names)}"


def values(log: SparkLog, topic: str, partition: int = 0) -> list[bytes | None]:
    log.refresh(force=True)
    return [one.value for one in stored_records(log, topic, partition)]


def state(log: SparkLog, name: str) -> Transaction:
    return log.refresh(force=True).transactions[name]


def test_commits_and_aborts_over_several_topics(
    client: Client, server: BrokerProcess, log: SparkLog, new_topic: Callable[..., str], name: str
) -> None:
    """Sequences go on behind what was aborted, and offsets have no gaps."""
    one, two = new_topic(2), new_topic(1)
    with transactional(client, server.bootstrap, name) as producer:
        for number, commits in enumerate((True, False, True, False, False, True)):
            producer.begin()
            producer.send(one, [b"%d" % number], 0)
            producer.send(one, [b"%d" % number], 1)
            producer.send(two, [b"%d/a" % number, b"%d/b" % number])
            before = values(log, one, 1), values(log, two)
            if commits:
                producer.commit()
            else:
                producer.abort()
                assert (values(log, one, 1), values(log, two)) == before
    assert values(log, one, 0) == values(log, one, 1) == [b"0", b"2", b"5"]
    assert values(log, two) == [b"0/a", b"0/b", b"2/a", b"2/b", b"5/a", b"5/b"]


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_an_open_transaction_holds_nobody_up_and_shows_nobody_anything(
    client: Client, server: BrokerProcess, new_topic: Callable[..., str], name: str, level: str
) -> None:
    topic = new_topic()
    key = "isolation.level" if client.name == "confluent" else "isolation_level"
    with transactional(client, server.bootstrap, name) as producer:
        producer.begin()
        producer.send(topic, [b"open"])
        client.produce(server.bootstrap, topic, [Sent(value=b"beside", partition=0)])
        (seen,) = client.consume(server.bootstrap, topic, 0, "earliest", 1, **{key: level})
        assert (seen.value, seen.offset) == (b"beside", 0)
        assert client.watermarks(server.bootstrap, topic, 0) == (0, 1)
        producer.commit()
    found = client.consume(server.bootstrap, topic, 0, "earliest", 2, **{key: level})
    assert [(one.value, one.offset) for one in found] == [(b"beside", 0), (b"open", 1)]


def test_the_second_of_an_id_fences_the_first(
    client: Client, server: BrokerProcess, log: SparkLog, new_topic: Callable[..., str], name: str
) -> None:
    topic = new_topic()
    with transactional(client, server.bootstrap, name) as old:
        old.begin()
        old.send(topic, [b"old"])
        with transactional(client, server.bootstrap, name) as new:
            new.begin()
            new.send(topic, [b"new"])
            with pytest.raises(Exception, match=r"(?i)fenced|epoch|newer"):
                old.commit()
            new.commit()
    assert values(log, topic) == [b"new"]


def test_offsets_are_committed_with_the_records_or_not_at_all(
    client: Client, server: BrokerProcess, log: SparkLog, new_topic: Callable[..., str], name: str
) -> None:
    source, target, group = new_topic(), new_topic(), f"group-{name}"
    client.produce(server.bootstrap, source, [Sent(value=b"%d" % n, partition=0) for n in range(5)])
    with transactional(client, server.bootstrap, name) as producer:
        for offset, commits in ((2, True), (4, False), (5, True)):
            producer.begin()
            producer.send(target, [b"up to %d" % offset])
            producer.send_offsets({(source, 0): offset}, group)
            if commits:
                producer.commit()
            else:
                producer.abort()
            expected = offset if commits else 2
            assert client.committed(server.bootstrap, source, group, 0) == expected
    log.refresh(force=True)
    assert log.committed_offsets(group) == {(source, 0): 5}
    assert values(log, target) == [b"up to 2", b"up to 5"]


def test_a_commit_that_comes_too_late_fails(
    client: Client, server: BrokerProcess, log: SparkLog, new_topic: Callable[..., str], name: str
) -> None:
    topic = new_topic()
    with transactional(client, server.bootstrap, name, timeout_ms=1_000) as producer:
        producer.begin()
        producer.send(topic, [b"late"])
        until(lambda: not state(log, name).is_ongoing)
        with pytest.raises(Exception, match=r"(?i)fenced|epoch|newer"):
            producer.commit()
    assert values(log, topic) == []
    with transactional(client, server.bootstrap, name) as producer:
        producer.begin()
        producer.send(topic, [b"again"])
        producer.commit()
    assert values(log, topic) == [b"again"]


# --- answers that are lost -----------------------------------------------------------------------------

Cut = Callable[[int], bool]
Proxied = Callable[[Cut], tuple[CuttingProxy, BrokerProcess, SparkLog]]


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[Proxied]:
    """Start a broker behind a proxy."""
    closing: list[Callable[[], object]] = []

    def start(cut: Cut) -> tuple[CuttingProxy, BrokerProcess, SparkLog]:
        proxy = CuttingProxy(cut)
        closing.append(proxy.close)
        settings = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}
        context = serving(tmp_path / "log", settings)
        server = context.__enter__()
        closing.append(lambda: context.__exit__(None, None, None))
        proxy.target = (server.host, server.port)
        log = sparklog.open(str(server.root), create=False)
        closing.append(log.close)
        log.create_topic("t", 2)
        return proxy, server, log

    yield start
    for close in reversed(closing):
        close()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("commits", [True, False])
def test_every_first_answer_is_lost(client: Client, proxied: Proxied, commits: bool) -> None:
    """What is asked again gets the same verdict, and nothing is staged twice."""
    left = {0: 2, ADD_PARTITIONS: 1, ADD_OFFSETS: 1, OFFSET_COMMIT: 1, END: 2}
    guard = threading.Lock()

    def cut(key: int) -> bool:
        with guard:
            left[key] = left.get(key, 0) - 1
            return left[key] >= 0

    proxy, _, log = proxied(cut)
    with transactional(client, proxy.bootstrap, "app", FASTER[client.name]) as producer:
        for number in range(3):
            producer.begin()
            producer.send("t", [b"%d/a" % number, b"%d/b" % number], 0)
            producer.send("t", [b"%d/c" % number], 1)
            producer.send_offsets({("t", 0): number}, "g")
            if commits or number == 2:
                producer.commit()
            else:
                producer.abort()
    assert proxy.cuts >= 6
    numbers = range(3) if commits else [2]
    assert values(log, "t", 0) == [b"%d/%s" % (n, part) for n in numbers for part in (b"a", b"b")]
    assert values(log, "t", 1) == [b"%d/c" % n for n in numbers]
    assert log.committed_offsets("g") == {("t", 0): 2}


@pytest.mark.sampled(1)
def test_a_broker_that_is_killed_before_it_answers_has_decided(client: Client, proxied: Proxied) -> None:
    """The next one, which has only the root, answers the repetition."""
    killing = threading.Lock()
    turns = 0

    def cut(key: int) -> bool:
        nonlocal turns
        with killing:
            if key != END:
                return False
            turns += 1
            if turns == 1:
                server.kill()
                server.start()
            return turns == 1

    proxy, server, log = proxied(cut)
    with transactional(client, proxy.bootstrap, "app", FASTER[client.name]) as producer:
        for number in range(2):
            producer.begin()
            producer.send("t", [b"%d" % number])
            producer.commit()
    assert values(log, "t", 0) == [b"0", b"1"]


@pytest.mark.sampled(1)
def test_a_transaction_outlives_its_broker(client: Client, proxied: Proxied) -> None:
    """What is staged is durable: the broker is killed between the last record and the commit."""
    proxy, server, log = proxied(lambda _: False)
    with transactional(client, proxy.bootstrap, "app", FASTER[client.name]) as producer:
        producer.begin()
        producer.send("t", [b"%d" % n for n in range(50)])
        server.kill()
        server.start()
        producer.commit()
    assert values(log, "t", 0) == [b"%d" % n for n in range(50)]


def test_one_who_is_killed_leaves_nothing(server: BrokerProcess, log: SparkLog) -> None:
    """Nobody ends it: the next process of the same id does, when it is initialised."""
    client = AioKafka()
    log.create_topic("killed", 1)
    with transactional(client, server.bootstrap, "killed") as lost:
        lost.begin()
        lost.send("killed", [b"lost"])
        with transactional(client, server.bootstrap, "killed"):
            assert state(log, "killed").phase == "empty"
            assert values(log, "killed") == []
