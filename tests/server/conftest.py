"""Fixtures for the broker's tests: a broker in a background thread, one as a process, a raw client."""

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

import sparklog
from sparklog.clock import Clock, SystemClock
from sparklog_server.broker import Broker
from sparklog_server.settings.config import ServerConfig

T = TypeVar("T")
_TIMEOUT_SECONDS = 30


class RunningBroker:
    """A broker in a thread with its own event loop, on a free port of the loopback address."""

    def __init__(self, root: str, configs: dict[str, str] | None = None, clock: Clock | None = None) -> None:
        self.root = root
        self.configs = {"listeners": "PLAINTEXT://127.0.0.1:0", "num.io.threads": "4", **(configs or {})}
        self._clock = clock or SystemClock()
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="broker")
        self._thread.start()
        assert self._ready.wait(_TIMEOUT_SECONDS)
        if self._error is not None:
            raise self._error

    broker: Broker
    loop: asyncio.AbstractEventLoop

    @property
    def host(self) -> str:
        return self.broker.network.advertised()[0].host

    @property
    def port(self) -> int:
        return self.broker.network.advertised()[0].port

    @property
    def bootstrap(self) -> str:
        """For bootstrap.servers."""
        return f"{self.host}:{self.port}"

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the broker's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(_TIMEOUT_SECONDS)

    def call_soon(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function on the broker's loop."""

        async def run() -> T:
            return function(*args)

        return self.call(run())

    def stop(self) -> None:
        """Stop gracefully; may be called again."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.broker.lifecycle.request_stop)
            self._thread.join(_TIMEOUT_SECONDS)
            assert not self._thread.is_alive()

    def _main(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        try:
            log = sparklog.open(self.root, create=True, clock=self._clock)
            self.broker = Broker(ServerConfig.parse(self.configs), log, self._clock)
            await self.broker.start()
        except BaseException as error:
            self._error = error
            self._ready.set()
            return
        self._ready.set()
        await self.broker.lifecycle.wait_for_stop()
        await self.broker.stop()
        log.close()


class ShiftedClock(SystemClock):
    """The machine's clock, as after a suspend of `suspended_ms`: the monotonic one stood still."""

    suspended_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.suspended_ms


class RawClient:
    """A socket that sends and receives whatever it is told to."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), timeout=_TIMEOUT_SECONDS)

    def send_frame(self, payload: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(payload)) + payload)

    def receive(self, size: int) -> bytes:
        """Exactly `size` bytes, or fewer at the end of the stream."""
        data = b""
        while len(data) < size:
            try:
                part = self.socket.recv(size - len(data))
            except ConnectionResetError:
                break
            if not part:
                break
            data += part
        return data

    def receive_frame(self) -> bytes | None:
        """The next response; None when the broker has closed the connection."""
        head = self.receive(4)
        return self.receive(struct.unpack(">i", head)[0]) if len(head) == 4 else None

    def is_closed(self) -> bool:
        """Wait until the broker says something: is it the end?"""
        return self.receive(1) == b""

    def close(self) -> None:
        self.socket.close()


class BrokerProcess:
    """`sparklog-server` as a process of its own."""

    def __init__(self, root: str, *words: str, env: dict[str, str] | None = None) -> None:
        listener = () if "--listeners" in words else ("--listeners", "PLAINTEXT://127.0.0.1:0")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sparklog_server", "--root", root, *listener, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        assert self.process.stdout is not None
        self.ready_line = self.process.stdout.readline().strip()
        if not self.ready_line:
            _, errors = self._collect()
            raise RuntimeError(f"exit {self.process.returncode}: {errors}")
        self.host, _, port = self.ready_line.rpartition("://")[2].rpartition(":")
        self.port = int(port)

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self._collect()

    def terminate(self) -> tuple[int, str]:
        """SIGTERM; exit code and what was written to stderr."""
        self.process.send_signal(signal.SIGTERM)
        return self._collect()

    def close(self) -> None:
        """Make sure that nothing is left of it; may be called in any state."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(_TIMEOUT_SECONDS)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def _collect(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=_TIMEOUT_SECONDS)
        return self.process.returncode, errors


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., RunningBroker]]:
    """Start brokers with settings: start_broker({"num.partitions": "3"}, root=...)."""
    started: list[RunningBroker] = []

    def start(
        configs: dict[str, str] | None = None, *, root: str | None = None, clock: Clock | None = None
    ) -> RunningBroker:
        started.append(RunningBroker(root or str(tmp_path / "log"), configs, clock))
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.fixture
def running_broker(start_broker: Callable[..., RunningBroker]) -> RunningBroker:
    """A broker with default settings in a background thread."""
    return start_broker()


@pytest.fixture
def connect() -> Iterator[Callable[[RunningBroker | BrokerProcess], RawClient]]:
    """Connect raw clients."""
    clients: list[RawClient] = []

    def connect_to(broker: RunningBroker | BrokerProcess) -> RawClient:
        clients.append(RawClient(broker.host, broker.port))
        return clients[-1]

    yield connect_to
    for client in clients:
        client.close()


@pytest.fixture
def start_process(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Start broker processes: start_process("--override", "num.partitions=3", root=...)."""
    started: list[BrokerProcess] = []

    def start(*words: str, root: str | None = None, env: dict[str, str] | None = None) -> BrokerProcess:
        started.append(BrokerProcess(root or str(tmp_path / "log"), *words, env=env))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def broker_process(start_process: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A broker with default settings as a process."""
    return start_process()


@contextmanager
def stopped(broker: RunningBroker) -> Iterator[None]:
    """Within it the broker is stopped."""
    broker.stop()
    yield
