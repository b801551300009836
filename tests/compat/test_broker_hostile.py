"""Hostile clients of a broker process: requests of real clients with something done to them, frames that
never end, lengths that cannot be, a thousand connections at once. The broker goes on answering, and neither
its memory nor its open files grow.

SPARKLOG_FUZZ_FRAMES sets the number of frames (make chaos: 100,000), SPARKLOG_SEED repeats a run.
"""

import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import sparklog
from sparklog.client import SparkLog
from tests.compat.clients import CLIENTS, Confluent, ProduceOptions, Sent
from tests.compat.cutting_proxy import CuttingProxy
from tests.compat.embedded import stored_records
from tests.server.fuzzing import mutated
from tests.support.broker_process import BrokerProcess, serving, until

FRAMES = int(os.environ.get("SPARKLOG_FUZZ_FRAMES", "4000"))
SEED = int(os.environ.get("SPARKLOG_SEED", str(random.SystemRandom().randrange(1 << 31))))
SENDERS = 4
MIB = 1 << 20
SOON_SECONDS = 20  # what takes milliseconds, on a machine that has much else to do
SETTINGS = {
    "sparklog.logs.level": "ERROR",
    "sparklog.socket.timeout.ms": "5000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "2",
}
API_VERSIONS_REQUEST = struct.pack(">ihhih", 10, 18, 0, 1, -1)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of each test's own: what is left behind would blur what is measured."""
    with serving(tmp_path / "log", SETTINGS) as one:
        yield one
        assert one.process.poll() is None, f"the broker ended\n{one.errors()}"
        assert one.stop() == 0, one.errors()
        assert "Traceback" not in one.errors()


@pytest.fixture
def log(server: BrokerProcess) -> Iterator[SparkLog]:
    with sparklog.open(str(server.root), create=False) as log:
        yield log


def real_requests(server: BrokerProcess) -> list[bytes]:
    """What the three clients send when they produce, consume and work in groups."""
    requests: dict[bytes, None] = {}
    proxy = CuttingProxy(lambda key: False, requests.setdefault)
    with serving(
        Path(server.root).with_name("recorded"),
        {
            **server.settings,
            "num.partitions": "2",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}",
        },
    ) as recorded:
        proxy.target = (recorded.host, recorded.port)
        for client in CLIENTS:
            for codec in ("none", "lz4"):
                sent = [Sent(value=b"precious", key=b"%d" % n, partition=0) for n in range(5)]
                options = ProduceOptions(compression=codec)
                client.produce(proxy.bootstrap, "precious", sent, options)
            client.consume(proxy.bootstrap, "precious", 0, "earliest", 10)
            client.consume_group(proxy.bootstrap, "precious", f"group-{client.name}", 10)
            client.committed(proxy.bootstrap, "precious", f"group-{client.name}", 0)
            client.offset_for_time(proxy.bootstrap, "precious", 0, 0)
        proxy.close()
    return list(requests)


def answer_seconds(server: BrokerProcess) -> float:
    """How long a right request takes, connection included."""
    started = time.monotonic()
    with server.connect(timeout_seconds=SOON_SECONDS) as connection:
        connection.sendall(API_VERSIONS_REQUEST)
        assert connection.recv(4096)
    return time.monotonic() - started


def send_mutated(server: BrokerProcess, requests: list[bytes], count: int, dice: random.Random) -> None:
    """Send frames; wait for the end or the answer of each only a moment."""
    connection: socket.socket | None = None
    for _ in range(count):
        frame = mutated(dice.choice(requests), dice)
        if dice.random() < 0.01:
            head = struct.pack(">i", dice.choice([-1, 0, len(frame) + 5, 1 << 27, (1 << 31) - 1]))
        else:
            head = struct.pack(">i", len(frame))
        try:
            if connection is None:
                connection = server.connect()
                connection.settimeout(0.03)
            connection.sendall(head + frame)
            if not connection.recv(65536):
                connection.close()
                connection = None
        except OSError:  # no answer in time, or hung up
            if connection is not None:
                connection.close()
                connection = None
    if connection is not None:
        connection.close()


@pytest.mark.timeout(120 + FRAMES // 100)
def test_requests_of_real_clients_with_something_done_to_them(
    server: BrokerProcess, log: SparkLog, report: Callable[[str], None]
) -> None:
    report(f"SPARKLOG_SEED={SEED}")
    requests = real_requests(server)
    keys = {struct.unpack_from(">h", request)[0] for request in requests}
    assert keys >= {0, 1, 2, 3, 8, 9, 10, 11, 12, 14, 18, 22}, keys
    log.create_topic("precious", 2)
    precious = [Sent(value=b"precious/%d" % n, partition=0) for n in range(100)]
    Confluent().produce(server.bootstrap, "precious", precious)
    before = stored_records(log, "precious")
    send_mutated(server, requests, 500, random.Random(SEED))  # what every API needs once
    rss, descriptors = server.resident_bytes(), server.descriptors()
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            send_mutated(server, requests, FRAMES // SENDERS, random.Random(SEED + 1 + number))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(SENDERS)]
    for thread in threads:
        thread.start()
    slowest = 0.0
    while any(thread.is_alive() for thread in threads):
        threads[0].join(0.1)
        slowest = max(slowest, answer_seconds(server))
    assert not errors
    memory = f"RSS {rss / MIB:.0f} -> {server.resident_bytes() / MIB:.0f} MiB"
    report(f"{FRAMES} frames, slowest answer {slowest:.3f} s, {memory}")
    assert slowest < SOON_SECONDS
    until(lambda: server.descriptors() <= descriptors + 10, 60, "connections are closed")
    assert server.resident_bytes() - rss < 64 * MIB
    after = stored_records(log, "precious")
    assert after[: len(before)] == before
    assert Confluent().produce(server.bootstrap, "precious", [Sent(value=b"x", partition=1)])


def test_a_thousand_slow_clients_are_closed_and_disturb_nobody(server: BrokerProcess, log: SparkLog) -> None:
    log.create_topic("t", 1)
    descriptors = server.descriptors()
    Confluent().produce(server.bootstrap, "t", [Sent(value=b"first")])
    rss = server.resident_bytes()
    with ExitStack() as stack:
        clients = [stack.enter_context(server.connect()) for _ in range(1000)]
        announced = struct.pack(">i", 50 * MIB) + bytes(100)
        for one in clients:
            one.sendall(announced)
        until(lambda: server.descriptors() >= descriptors + 1000, what="all are connected")
        grown = server.resident_bytes() - rss
        assert answer_seconds(server) < SOON_SECONDS
        assert Confluent().produce(server.bootstrap, "t", [Sent(value=b"second")]) == [(0, 1)]
        trickling = time.monotonic()
        while server.descriptors() > descriptors + 10:  # a byte now and then does not keep them open
            assert time.monotonic() - trickling < 60
            assert answer_seconds(server) < SOON_SECONDS
            for one in clients[::100]:
                try:
                    one.sendall(b"\0")
                except OSError:
                    continue
        assert all(one.recv(1) == b"" for one in clients[1::100])
    assert grown < 64 * MIB, f"{grown / MIB} MiB for a thousand clients"


@pytest.mark.parametrize("length", [-1, -(1 << 31), (1 << 31) - 1, (100 << 20) + 1])
def test_impossible_lengths_are_closed_at_once(server: BrokerProcess, length: int) -> None:
    with server.connect() as connection:
        connection.sendall(struct.pack(">i", length) + b"x")
        connection.settimeout(SOON_SECONDS)
        with suppress(ConnectionResetError):  # that is how a byte nobody read is answered
            assert connection.recv(1) == b""
    assert answer_seconds(server) < SOON_SECONDS
