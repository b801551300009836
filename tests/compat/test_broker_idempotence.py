"""Idempotent producers whose connections are cut after the broker has published and before it could say so:
nothing is lost, nothing is doubled, and the order is kept."""

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sparklog
from sparklog.client import SparkLog
from tests.compat.clients import AioKafka, Client, Confluent, ProduceOptions, Sent
from tests.compat.cutting_proxy import INIT_PRODUCER_ID, PRODUCE, CuttingProxy, at_random
from tests.compat.embedded import stored_headers, stored_records
from tests.support.broker_process import BrokerProcess, serving

PARTITIONS = 3
COUNT = 400
FASTER = {  # retries without long pauses, small batches so that there is much to cut
    "confluent": {"retry.backoff.ms": 10, "reconnect.backoff.ms": 10, "batch.num.messages": 5},
    "kafka-python": {"retry_backoff_ms": 10, "reconnect_backoff_ms": 10, "batch_size": 500},
    "aiokafka": {"retry_backoff_ms": 10, "max_batch_size": 500},
}
Cut = Callable[[int], bool]


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[Callable[[Cut], tuple[CuttingProxy, BrokerProcess, SparkLog]]]:
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
        log.create_topic("t", PARTITIONS)
        return proxy, server, log

    yield start
    for close in reversed(closing):
        close()


def numbered(count: int = COUNT) -> list[Sent]:
    return [Sent(value=b"t/%06d/" % n + bytes(60), partition=n % PARTITIONS) for n in range(count)]


def check(log: SparkLog, sent: list[Sent], placed: list[tuple[int, int]] | None = None) -> None:
    """Each record once, in order, where its producer was told that it is."""
    for partition in range(PARTITIONS):
        expected = [one.value for one in sent if one.partition == partition]
        assert [one.value for one in stored_records(log, "t", partition)] == expected
        assert {header.producer_epoch for header in stored_headers(log, "t", partition)} == {0}
    if placed is not None:
        offsets = [itertools.count() for _ in range(PARTITIONS)]
        assert placed == [(n % PARTITIONS, next(offsets[n % PARTITIONS])) for n in range(len(sent))]


@pytest.mark.sampled(1)
def test_answers_cut_at_random(
    client: Client, proxied: Callable[[Cut], tuple[CuttingProxy, BrokerProcess, SparkLog]]
) -> None:
    seed = random.randrange(1 << 31)
    print("seed", seed)
    proxy, _, log = proxied(at_random(seed, 0.2))
    sent = numbered()
    options = ProduceOptions(linger_ms=1, extra=FASTER[client.name])
    placed = client.produce(proxy.bootstrap, "t", sent, options)
    assert proxy.cuts > 0
    check(log, sent, placed)


@pytest.mark.sampled(1)
def test_the_first_answers_of_all_kinds_are_cut(
    client: Client, proxied: Callable[[Cut], tuple[CuttingProxy, BrokerProcess, SparkLog]]
) -> None:
    left = {PRODUCE: 3, INIT_PRODUCER_ID: 1}

    def cut(key: int) -> bool:
        left[key] = left.get(key, 0) - 1
        return left[key] >= 0

    proxy, _, log = proxied(cut)
    sent = numbered(30)
    placed = client.produce(proxy.bootstrap, "t", sent, ProduceOptions(extra=FASTER[client.name]))
    assert proxy.cuts == 4
    check(log, sent, placed)


@pytest.mark.sampled(1)
def test_a_batch_of_before_a_restart_is_known_after_it(
    client: Client, proxied: Callable[[Cut], tuple[CuttingProxy, BrokerProcess, SparkLog]]
) -> None:
    """The broker is killed after publishing, before the answer: the retry reaches the next broker."""
    killing = threading.Lock()
    countdown = 20

    def cut(key: int) -> bool:
        nonlocal countdown
        with killing:
            if key != PRODUCE:
                return False
            countdown -= 1
            if countdown == 0:
                server.kill()
                server.start()
            return countdown == 0

    proxy, server, log = proxied(cut)
    sent = numbered()
    options = ProduceOptions(linger_ms=1, extra=FASTER[client.name])
    placed = client.produce(proxy.bootstrap, "t", sent, options)
    assert proxy.cuts == 1
    check(log, sent, placed)


def test_without_idempotence_a_cut_doubles(
    proxied: Callable[[Cut], tuple[CuttingProxy, BrokerProcess, SparkLog]],
) -> None:
    """The proxy does what it is for: what the tests above rule out happens without idempotence."""
    countdown = 1

    def cut(key: int) -> bool:
        nonlocal countdown
        countdown -= key == PRODUCE
        return key == PRODUCE and countdown == 0

    proxy, _, log = proxied(cut)
    options = ProduceOptions(idempotent=False, extra=FASTER["aiokafka"])
    AioKafka().produce(proxy.bootstrap, "t", [Sent(value=b"once", partition=0)], options)
    assert [one.value for one in stored_records(log, "t", 0)] == [b"once", b"once"]


def test_two_producers_do_not_see_each_other(
    proxied: Callable[[Cut], tuple[CuttingProxy, BrokerProcess, SparkLog]],
) -> None:
    proxy, _, log = proxied(at_random(7, 0.1))
    done: list[Exception | None] = []

    def produce(client: Client, name: str) -> None:
        sent = [Sent(value=b"%s/%d" % (name.encode(), n), partition=0) for n in range(COUNT)]
        try:
            client.produce(proxy.bootstrap, "t", sent, ProduceOptions(extra=FASTER[client.name]))
            done.append(None)
        except Exception as error:
            done.append(error)

    pairs: list[tuple[Client, str]] = [(Confluent(), "a"), (Confluent(), "b"), (AioKafka(), "c")]
    threads = [threading.Thread(target=produce, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [None] * 3
    values = [(one.value or b"").decode().split("/") for one in stored_records(log, "t", 0)]
    for _, name in pairs:
        assert [int(n) for who, n in values if who == name] == list(range(COUNT))
