"""A broker in this process: in a thread of its own, with its own event loop."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import sparklog
from sparklog.clock import Clock, SystemClock
from sparklog.metadata import NO_NODE
from sparklog_server.broker import Broker
from sparklog_server.settings.config import ServerConfig

T = TypeVar("T")
_TIMEOUT_SECONDS = 60


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

    def settle(self) -> None:
        """Until the broker has seen what others committed, and every partition is led."""

        async def settle() -> None:
            while True:
                await self.broker.root.look()
                image = self.broker.root.image
                if not image.brokers or all(
                    state.leadership.leader != NO_NODE
                    for topic in image.topics.values()
                    for state in topic.partitions
                ):
                    return
                await asyncio.sleep(0.001)

        self.call(settle())

    def beside(self) -> sparklog.SparkLog:
        """The same root, as another process opens it; topics that it makes are led when it has made them."""
        return _Beside(self)

    def stop(self) -> None:
        """Stop gracefully; may be called again."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.broker.lifecycle.request_stop)
            self._thread.join(_TIMEOUT_SECONDS)
            assert not self._thread.is_alive()

    def wait(self) -> None:
        """Until it has ended by itself."""
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
            if hasattr(self, "broker"):
                await self.broker.stop(0)
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


@contextmanager
def stopped(broker: RunningBroker) -> Iterator[None]:
    """Within it the broker is stopped."""
    broker.stop()
    yield


class _Beside(sparklog.SparkLog):
    def __init__(self, broker: RunningBroker) -> None:
        opened = sparklog.open(broker.root, create=False)
        super().__init__(opened.store, opened.metadata, opened.clock)
        self._broker = broker

    def create_topic(self, *words: Any, **options: Any) -> Any:
        made = super().create_topic(*words, **options)
        self._broker.settle()
        self.refresh(force=True)
        return made
