"""The broker: one root, its components, and the states it goes through.

States: NOT_RUNNING -> STARTING -> RECOVERY -> RUNNING -> PENDING_CONTROLLED_SHUTDOWN -> SHUTTING_DOWN ->
    NOT_RUNNING; FAILED from any of them, when going on could break a promise.
Order: components start before anybody is accepted, and stop after the last request was answered, in
    reverse order.
Not here: what components do (their modules), sockets (network/).
Concurrency: the event loop owns everything here; storage work runs in threads, through `run_storage`.
After a crash: start again; the log is whatever was committed.
Sources: Kafka BrokerServer, BrokerState; docs/design.md.
"""

import asyncio
import concurrent.futures
import enum
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from sparklog.client import SparkLog
from sparklog.clock import Clock
from sparklog.errors import CorruptLogError, SparklogError
from sparklog.log.config import RootConfig, TopicConfig
from sparklog.metadata import Image, Plan, PublishResult, Topic
from sparklog_server.admin.topic_listing import TopicListing
from sparklog_server.coordinator.coordinator import GroupCoordinator
from sparklog_server.fetch.service import FetchService
from sparklog_server.http.endpoint import HttpEndpoint
from sparklog_server.metrics import Metrics
from sparklog_server.network.server import Network
from sparklog_server.protocol.registry import load_apis
from sparklog_server.publish.producer_ids import ProducerIds
from sparklog_server.publish.publisher import Publisher
from sparklog_server.role import Role
from sparklog_server.runtime.timer import Timer
from sparklog_server.settings.config import ServerConfig

_log = logging.getLogger("sparklog_server")
_state_log = logging.getLogger("sparklog_server.state_change")
FAILED_TIMEOUT_MS = 500
T = TypeVar("T")
ImageCallback = Callable[[Image, Image], None]


class BrokerState(enum.Enum):
    """What the broker is doing."""

    NOT_RUNNING = "not running"
    STARTING = "starting"
    RECOVERY = "recovery"
    RUNNING = "running"
    PENDING_CONTROLLED_SHUTDOWN = "pending controlled shutdown"
    SHUTTING_DOWN = "shutting down"
    FAILED = "failed"


_State = BrokerState
_NEXT_STATES = {
    _State.NOT_RUNNING: {_State.STARTING, _State.FAILED},
    _State.STARTING: {_State.RECOVERY, _State.SHUTTING_DOWN, _State.FAILED},
    _State.RECOVERY: {_State.RUNNING, _State.SHUTTING_DOWN, _State.FAILED},
    _State.RUNNING: {_State.PENDING_CONTROLLED_SHUTDOWN, _State.FAILED},
    _State.PENDING_CONTROLLED_SHUTDOWN: {_State.SHUTTING_DOWN, _State.FAILED},
    _State.SHUTTING_DOWN: {_State.NOT_RUNNING, _State.FAILED},
    _State.FAILED: set[BrokerState](),
}


class Component(Protocol):
    """A part of the broker with a life of its own."""

    async def start(self) -> None:
        """Before anybody is accepted."""

    async def stop(self) -> None:
        """After the last request was answered."""


class Broker:
    """See the module's docstring."""

    def __init__(self, config: ServerConfig, log: SparkLog, clock: Clock) -> None:
        self.config = config
        self.log = log
        self.clock = clock
        self.node_id = config.broker.node_id
        self.state = BrokerState.NOT_RUNNING
        self.failure: BaseException | None = None
        self.apis = load_apis()
        self._threads = concurrent.futures.ThreadPoolExecutor(config.broker.num_io_threads, "storage")
        self._image_callbacks: list[ImageCallback] = []
        self._shown = log.image
        self._stop_requested = asyncio.Event()
        self.role = Role(self)
        self.metrics = Metrics()
        self.timer = Timer(clock)
        self._follower: asyncio.Task[None] | None = None
        # Components, in the order in which they start.
        self.publisher = Publisher(self)
        self.producer_ids = ProducerIds(self)
        self.topic_listing = TopicListing(config.broker.node_id)
        self.fetches = FetchService(self)
        self.groups = GroupCoordinator(self)
        self.http = HttpEndpoint(self)
        self._components: list[Component] = [self.http, self.publisher, self.fetches, self.groups]
        self._started: list[Component] = []
        self.network = Network(self, self.apis)

    @property
    def cluster_id(self) -> str:
        """The root's identity."""
        return self.log.cluster_id

    @property
    def is_in_charge(self) -> bool:
        """May it answer for groups and partitions now?"""
        return self.state is not BrokerState.FAILED and self.role.is_held

    @property
    def image(self) -> Image:
        """Topics and extents, as of the newest commit that is known."""
        return self.log.image

    def root_config(self) -> RootConfig:
        """The root's settings in force: its own, else the broker's."""
        return RootConfig.parse({**self.config.root_defaults(), **self.image.configs})

    def topic_config(self, topic: Topic) -> TopicConfig:
        """A topic's settings in force: its own, else the root's, else the broker's."""
        return TopicConfig.parse(topic.configs, {**self.config.root_defaults(), **self.image.configs})

    # --- work for components ------------------------------------------------------------------------

    async def run_storage(self, function: Callable[..., T], *args: Any) -> T:
        """Run blocking work in a storage thread."""
        queued = time.perf_counter()

        def work() -> T:
            began = time.perf_counter()
            try:
                return function(*args)
            finally:
                ended = time.perf_counter()
                self.metrics.storage_call((ended - began) * 1000, (began - queued) * 1000)

        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def look(self) -> SparklogError | OSError | None:
        """Look for commits of others now, for somebody who may know of one; what went wrong, if it did."""
        try:
            await self.run_storage(self.log.refresh)
        except (SparklogError, OSError) as error:
            _log.info("looking for commits failed: %s", error)
            return error
        self.show_image()
        return None

    async def publish_plan(self, plan: Plan) -> PublishResult:
        """Publish a change of metadata, if this broker is still the one; its image is known here then."""
        return await self.publisher.submit_plan(plan)

    def on_image(self, callback: ImageCallback) -> None:
        """Have `callback(old, new)` called on the loop after the image advanced."""
        self._image_callbacks.append(callback)

    def show_image(self) -> None:
        """Tell about the newest image, if it is news. Called on the loop, after a publish or refresh."""
        old, new = self._shown, self.log.image
        if new is old:
            return
        self._shown = new
        lost = self.role.lost()
        if lost is not None:
            self.fail(lost)
        for callback in self._image_callbacks:
            try:
                callback(old, new)
            except Exception:  # noqa: BLE001 - the other callbacks must still hear of it
                _log.exception("a callback for commit %d failed", new.commit)

    def fail(self, error: BaseException) -> None:
        """Going on could break a promise: acknowledge nothing more, and stop."""
        if self.state is not BrokerState.FAILED:
            _log.critical("the broker stops: %s", error)
            self.failure = error
            self._change_state(BrokerState.FAILED)
            self.groups.release()
        self._stop_requested.set()

    # --- life ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bind, start the components, and accept."""
        self._change_state(BrokerState.STARTING)
        self.network.bind()
        self._change_state(BrokerState.RECOVERY)
        for component in self._components:
            await component.start()
            self._started.append(component)
        if self.failure is not None:
            raise self.failure
        self._follower = asyncio.create_task(self._follow())
        self._change_state(BrokerState.RUNNING)
        self.network.start()

    async def stop(self, timeout_ms: int | None = None) -> None:
        """Answer what is in progress, for at most so long, and close everything."""
        timeout_ms = self.config.broker.shutdown_timeout_ms if timeout_ms is None else timeout_ms
        if self.state is BrokerState.RUNNING:
            self._change_state(BrokerState.PENDING_CONTROLLED_SHUTDOWN)
        # Having failed, nothing is acknowledged any more; errors that are on their way still go out.
        failed = self.state is BrokerState.FAILED
        await self.network.stop(min(timeout_ms, FAILED_TIMEOUT_MS) if failed else timeout_ms)
        if self.state is not BrokerState.FAILED:  # it may fail at any time, also while it stops
            self._change_state(BrokerState.SHUTTING_DOWN)
        if self._follower is not None:
            self._follower.cancel()
        for component in reversed(self._started):
            try:
                await component.stop()
            except Exception:  # noqa: BLE001 - the other components must still stop
                _log.exception("stopping %s failed", type(component).__name__)
        self._started.clear()
        self.timer.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self.state is not BrokerState.FAILED:
            self._change_state(BrokerState.NOT_RUNNING)

    def request_stop(self) -> None:
        """Make `wait_for_stop` return."""
        self._stop_requested.set()

    @property
    def is_stop_requested(self) -> bool:
        """Was the broker asked to stop, or has it failed?"""
        return self._stop_requested.is_set()

    async def wait_for_stop(self) -> None:
        """Until somebody asks the broker to stop, or it has failed."""
        await self._stop_requested.wait()

    async def _follow(self) -> None:
        """Look for commits of others; the naps also show how far behind the loop is."""
        loop = asyncio.get_running_loop()
        nap = self.config.broker.metadata_poll_ms / 1000
        problem = ""
        while True:
            began = loop.time()
            await asyncio.sleep(nap)
            self.metrics.loop_lag.record((loop.time() - began - nap) * 1000)
            try:
                await self._refresh()
            except CorruptLogError as error:
                self.fail(error)
                return
            except (SparklogError, OSError) as error:
                if str(error) != problem:  # else at every poll
                    _log.warning("looking for commits failed: %s", error)
                problem = str(error)
            else:
                problem = ""
            self.show_image()
            self.role.review()

    async def _refresh(self) -> None:
        """Look for commits; should the storage not answer in time, the role does not wait for it."""
        refreshing = asyncio.get_running_loop().run_in_executor(self._threads, self.log.refresh)
        while not refreshing.done():
            left_ms = self.role.left_ms
            await asyncio.wait({refreshing}, timeout=left_ms / 1000 if left_ms > 0 else None)
            self.role.review()
        refreshing.result()

    def _change_state(self, state: BrokerState) -> None:
        if state not in _NEXT_STATES[self.state]:
            raise RuntimeError(f"from {self.state} to {state}")
        _state_log.info("%s -> %s", self.state.name, state.name)
        self.state = state
