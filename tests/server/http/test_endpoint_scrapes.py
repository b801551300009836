"""/metrics is a text of megabytes: who takes it slowly, who does not take it, and too many who want it."""

import asyncio
import contextlib
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable

import pytest

from sparklog_server.http import endpoint
from sparklog_server.http.endpoint import MAX_CONNECTIONS
from sparklog_server.observe.collector import Scraper
from tests.support.broker_process import until
from tests.support.running_broker import RunningBroker

TEXT_BYTES = 24 << 20


@pytest.fixture
def long_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of 10,000 partitions; more than sockets hold."""

    async def scrape(_scraper: Scraper, _accept: str) -> tuple[bytes, str]:
        return b"x" * TEXT_BYTES, "text/plain"

    monkeypatch.setattr(Scraper, "scrape", scrape)


@pytest.fixture
def broker(start_broker: Callable[..., RunningBroker]) -> RunningBroker:
    return start_broker({"sparklog.http.listener": "127.0.0.1:0"})


def status(broker: RunningBroker, path: str) -> int:
    assert broker.broker.http.address is not None
    host, port = broker.broker.http.address
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=30) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def ask(broker: RunningBroker) -> socket.socket:
    assert broker.broker.http.address is not None
    asking = socket.create_connection(broker.broker.http.address, timeout=30)
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):  # it gave way to others
        asking.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    return asking


def connection_count(broker: RunningBroker) -> int:
    return broker.call_soon(lambda: broker.broker.http.connection_count)


@pytest.mark.slow
@pytest.mark.usefixtures("long_text")
def test_who_reads_slowly_is_told_all(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """After ten seconds of a connection the rest was cut off, in the middle of a line."""
    monkeypatch.setattr(endpoint, "IDLE_SECONDS", 0.5)
    with ask(broker) as reading:
        received = b""
        while not received.endswith(b"\r\n\r\n"):
            received += reading.recv(1)
        left = TEXT_BYTES
        pause = threading.Event()
        while left and (piece := reading.recv(32 << 10)):
            left -= len(piece)
            pause.wait(0.002)
        assert left == 0
        assert reading.recv(1) == b"", "and then it is idle"


@pytest.mark.usefixtures("long_text")
def test_who_takes_nothing_is_let_go(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(endpoint, "ANSWER_SECONDS", 0.1)
    with ask(broker) as asking:
        with contextlib.suppress(ConnectionResetError):
            asking.recv(1)  # the answer has begun, or is over already
        until(lambda: connection_count(broker) == 0, 30)


@pytest.mark.slow
def test_those_who_wait_for_metrics_are_few(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that waited kept a connection, and so an open file: clients of Kafka's found none left."""

    async def scrape(_scraper: Scraper, _accept: str) -> tuple[bytes, str]:
        await asyncio.sleep(60)
        raise AssertionError("who waits so long?")

    monkeypatch.setattr(Scraper, "scrape", scrape)
    asking = [ask(broker) for _ in range(MAX_CONNECTIONS + 32)]  # not more than a listening socket queues
    try:
        assert status(broker, "/health") == 200
        assert status(broker, "/metrics") == 503
        assert connection_count(broker) <= MAX_CONNECTIONS + 1
    finally:
        for one in asking:
            one.close()
    until(lambda: connection_count(broker) == 0)
