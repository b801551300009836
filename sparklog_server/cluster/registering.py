"""How a broker's registrations begin and end: at its start, again after a fence, and with its stop.

How a broker stops, so that its clients notice next to nothing: it says so in a commit, the controller
hands over what it leads while it still serves, and only then it is fenced, by itself. Its next start need not
wait for a session to be over.

A start that finds the node id taken tries again for a while, as Kafka's brokers do: whoever restarts a broker
(systemd, Kubernetes) may start the next process before the old one is gone. A broker that joins again after a
fence does not: its node id has been given to another process, and two would take it from each other in turn.

Invariants: one registration at a time; signs of life only for one that is made.
Not here: what holds while it stands (membership.py), what has to be known before a join (joining.py).
Concurrency: event loop; storage work in storage threads.
After a crash: see joining.py.
Sources: Kafka BrokerServer.shutdown, BrokerLifecycleManager.beginControlledShutdown.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence

from sparklog.errors import FatalStorageError, FencedError, SparklogError
from sparklog.metadata import (
    Action,
    BrokerListener,
    Image,
    new_id,
    plan_begin_controlled_shutdown,
    plan_fence_broker,
)
from sparklog_server.cluster import selectors
from sparklog_server.cluster.assigning import Assigning
from sparklog_server.cluster.heart import Heart
from sparklog_server.cluster.joining import join
from sparklog_server.cluster.node_lock import NodeLock
from sparklog_server.cluster.registration import Registration
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.runtime.lifecycle import Lifecycle
from sparklog_server.settings.addresses import AdvertisedListener
from sparklog_server.settings.broker import BrokerSettings

_log = logging.getLogger("sparklog_server")
END_SECONDS = 5.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 2.0


class Registering:
    """See the module's docstring."""

    def __init__(
        self,
        root: LiveRoot,
        lifecycle: Lifecycle,
        assigning: Assigning,
        settings: BrokerSettings,
        *,
        advertised: Callable[[], Sequence[AdvertisedListener]],
    ) -> None:
        self._root = root
        self._lifecycle = lifecycle
        self._assigning = assigning
        self._settings = settings
        self._advertised = advertised
        self._incarnation_id = new_id()
        self.heart = Heart(
            root.store,
            settings.node_id,
            interval_ms=settings.broker_heartbeat_interval_ms,
            session_timeout_ms=settings.broker_session_timeout_ms,
        )
        self._node_lock: NodeLock | None = None
        self._moved = asyncio.Event()

    # --- beginning ----------------------------------------------------------------------------------

    async def begin(self) -> Registration:
        """Register. Whoever else has the node id may be about to stop: that is waited for.

        Raises:
            FencedError: DUPLICATE_BROKER, still after initial.broker.registration.timeout.ms.
        """
        clock, timeout_ms = self._root.log.clock, self._settings.initial_broker_registration_timeout_ms
        until_ms, pauses, is_told = clock.monotonic_ms() + timeout_ms, _pauses(), False
        while True:
            try:
                return await self._begin(until_ms)
            except BaseException as error:
                self._release_locks()
                is_over = clock.monotonic_ms() >= until_ms or self._lifecycle.is_stop_requested
                if is_over or not _is_duplicate(error):
                    raise
                if not is_told:
                    text = "%s; waiting for that process to end, at most %d s"
                    _log.warning(text, error, -(-timeout_ms // 1000))
                    is_told = True
            await asyncio.sleep(next(pauses))

    async def _begin(self, until_ms: int) -> Registration:
        node_id = self._settings.node_id
        root = self._root
        self._node_lock = NodeLock.acquire(root.store, node_id, self._addresses(), cluster_id=root.cluster_id)
        registration = await self._join(self._node_lock, until_ms)
        _log.info("registered as broker %d, with epoch %d", node_id, registration.broker_epoch)
        return registration

    async def again(self) -> Registration:
        """Join again after a fence; the storage may be away for as long as it is.

        Raises:
            FencedError: DUPLICATE_BROKER, another process has the node id by now.
        """
        assert self._node_lock is not None
        self.heart.pause()
        pauses, problem = _pauses(), ""
        while True:
            try:
                registration = await self._join(self._node_lock)
            except FatalStorageError:
                raise
            except (SparklogError, OSError) as error:
                if _is_duplicate(error):
                    raise
                if str(error) != problem:
                    _log.warning("joining again failed, and is tried again: %s", error)
                problem = str(error)
                await asyncio.sleep(next(pauses))
            else:
                _log.info("joined again, with epoch %d", registration.broker_epoch)
                return registration

    async def _join(self, lock: NodeLock, until_ms: int = 0) -> Registration:
        joined = await join(
            self._root,
            self._settings,
            lock,
            self._listeners(),
            incarnation_id=self._incarnation_id,
            assigning=self._assigning,
            until_ms=until_ms,
            is_stopping=lambda: self._lifecycle.is_stop_requested,
        )
        self.heart.start(joined.broker_epoch)
        return joined

    def _listeners(self) -> tuple[BrokerListener, ...]:
        return tuple(BrokerListener(host=one.host, port=one.port) for one in self._advertised())

    def _addresses(self) -> str:
        return ", ".join(f"{one.host}:{one.port}" for one in self._listeners())

    # --- ending -------------------------------------------------------------------------------------

    async def hand_over(self, registration: Registration, timeout_ms: float) -> None:
        """Announce the stop, and wait until nothing is led here that another one could lead."""
        root = self._root
        node_id, epoch = registration.node_id, registration.broker_epoch
        if not self._settings.controlled_shutdown_enable:
            return
        if not can_hand_over(root.image, node_id):
            return

        def plan(image: Image) -> Sequence[Action]:
            action = plan_begin_controlled_shutdown(image, node_id, epoch)
            return [] if action is None else [action]

        root.on_image(lambda _old, _new: self._moved.set())
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await root.run(root.metadata.publish, plan)
                root.show()
                while can_hand_over(root.image, node_id):
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            _log.warning("not all that this broker leads was handed over within %d ms", timeout_ms)
        except (SparklogError, OSError) as error:
            _log.warning("handing over failed: %s", error)
        else:
            _log.info("what this broker led is handed over")

    async def end(self, registration: Registration | None) -> None:
        """The registration is over, and the node id free."""
        self.heart.stop()
        if registration is not None:
            try:
                async with asyncio.timeout(END_SECONDS):
                    await self._root.run(self._fence)
            except (SparklogError, OSError, TimeoutError) as error:
                _log.warning("the registration could not be ended; others will find it dead: %s", error)
        await self._root.finish_upkeep()
        self._release_locks()

    def _fence(self) -> None:
        """Whichever registration is this process's: a try to join again may have arrived since."""

        def plan(image: Image) -> Sequence[Action]:
            known = image.brokers.get(self._settings.node_id)
            if known is None or known.incarnation_id != self._incarnation_id:
                return []
            action = plan_fence_broker(image, known.node_id, known.broker_epoch)
            return [] if action is None else [action]

        self._root.metadata.publish(plan)

    def _release_locks(self) -> None:
        if self._node_lock is not None:
            self._node_lock.release()
        self._node_lock = None


def _pauses() -> Iterator[float]:
    """Seconds between tries."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        yield pause
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _is_duplicate(error: BaseException) -> bool:
    """Has another process the node id?"""
    return isinstance(error, FencedError) and error.code == "DUPLICATE_BROKER"


def can_hand_over(image: Image, node_id: int) -> bool:
    """Is there anything that a broker leads, and another one could?"""
    broker = image.brokers.get(node_id)
    if broker is None or broker.is_fenced:
        return False
    usable = selectors.usable_brokers(image) - {node_id}
    return any(
        state.leadership.leader == node_id and not usable.isdisjoint(state.leadership.replicas)
        for topic in image.topics.values()
        for state in topic.partitions
    )
