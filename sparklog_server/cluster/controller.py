"""The controller: the broker that decides which brokers are dead and which lead what.

Each broker has one of these, and all watch. A broker that is not the controller reads the controller's
heartbeats only, and takes its place when it is gone: immediately if the image has none, and after a session
of silence if it is dead. The controller reads all heartbeats, once an interval, and looks at each image that
changes the cluster:

    a broker is dead                    others lead what it led, and it is fenced: in one commit
    partitions that are not assigned    get replicas and a leader, by whichever process they were made
    a broker is about to stop           others lead what it leads
    a broker has joined                 leads what has no leader, and what it is to be a replica of
    others lead what it is first of     it leads that, if it is too much (auto.leader.rebalance.enable)
    requests                            elections and reassignments that clients ask for

All of it goes through one queue, in one task; heartbeats are read apart (liveness.py). What it commits is
computed from the newest image, in a thread of its own: storage threads that all wait must not delay a
failover. This is safe because the order of commits does not come from threads: a plan is called with the
newest image, under the log's lock, and applies in this controller's epoch, or not at all.

1. the controller stands still for a minute, between looking and committing;
2. another broker takes it for dead, has itself elected, and fences it;
3. the first one wakes up, and commits what it had decided: its plan finds another controller, or its own
   registration fenced, and does nothing. It watches again, and joins again (membership.py).

Invariants: what a controller commits says its epoch. What is due waits for one request, not for the queue to
    be empty, and for no look.
Not here: what is due, and its rules (elections.py); which brokers are dead (liveness.py).
Concurrency: one task on the event loop, one thread for storage; `submit` on the loop.
After a crash: another broker takes over; this one starts as a watcher.
Sources: Kafka's ControllerEventManager (one queue), KafkaController before KRaft.
"""

import asyncio
import concurrent.futures
import contextlib
import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sparklog.clock import Clock
from sparklog.errors import FatalStorageError, SparklogError
from sparklog.metadata import (
    NO_COMMIT,
    NO_EPOCH,
    NO_NODE,
    Action,
    ElectLeaders,
    Image,
    Plan,
    PublishResult,
    RegisteredBroker,
    validate_controller,
)
from sparklog.metadata import Controller as ElectedController
from sparklog_server.cluster.elections import Assigning, Duties, is_imbalanced, plan_preferred
from sparklog_server.cluster.liveness import Looking, Observer, looks_until_dead
from sparklog_server.cluster.membership import Membership, Registration
from sparklog_server.cluster.state_log import log_changes
from sparklog_server.metrics import Metrics
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.settings.config import ServerConfig

_log = logging.getLogger("sparklog_server.controller")
T = TypeVar("T")
Order = Callable[[Image, int], Sequence[Action]]
_NOT_TOO_EARLY_SECONDS = 0.002  # observers count milliseconds
_STAGGER_SECONDS = 0.3  # between brokers that could all have themselves elected
_AGAIN_SECONDS = 0.5  # after what came to nothing


@dataclass(frozen=True, slots=True, eq=False)
class _Ordered:
    """A request: a plan from an image and a controller epoch, and its caller's future."""

    order: Order
    future: "asyncio.Future[PublishResult]"


class Controller:
    """Watches the cluster, and decides while this broker is the controller."""

    def __init__(
        self,
        root: LiveRoot,
        membership: Membership,
        assigning: Assigning,
        config: ServerConfig,
        *,
        clock: Clock,
        metrics: Metrics,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """`on_fatal`: gets what must stop the broker: a failed fsync, or a bug."""
        settings = config.broker
        self._root = root
        self._membership = membership
        self._assigning = assigning
        self._interval_ms = settings.broker_heartbeat_interval_ms
        self._metrics = metrics
        self._on_fatal = on_fatal
        self._settings = config.controller
        self._looks = looks_until_dead(settings.broker_session_timeout_ms, self._interval_ms)
        self._looking = Looking(
            root.store,
            Observer(interval_ms=self._interval_ms, looks=self._looks),
            clock=clock,
            interval_ms=self._interval_ms,
            beats=lambda: membership.heart.arrived,
            on_dead=self._note_dead,
            on_problem=self._tell,
            on_fatal=on_fatal,
        )
        self._dead: set[tuple[int, int]] = set()  # registrations, until that is reviewed
        self._queue: asyncio.Queue[_Ordered | None] = asyncio.Queue()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "controller")
        self._task: asyncio.Task[None] | None = None
        self._reviewed = NO_COMMIT  # as of which change of the cluster
        self._look_due = self._review_due = self._balance_due = math.inf  # by the loop's clock
        self._has_news = self._was_controller = False
        self._waited_for: ElectedController | None = None
        self._problem = ""
        self._reported = root.image  # whose changes are in the log of state changes
        root.on_image(self._on_image)

    # --- life ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Do what is due before clients are let in, if it is for this broker to do; then watch."""
        loop = asyncio.get_running_loop()
        await self._review()
        self._look_due = loop.time()
        if self._settings.auto_leader_rebalance_enable:
            self._balance_due = loop.time() + self._settings.leader_imbalance_check_interval_seconds
        self._task = loop.create_task(self._work())
        self._task.add_done_callback(self._has_ended)

    async def stop(self) -> None:
        """Decide nothing more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        while not self._queue.empty():
            ordered = self._queue.get_nowait()
            if ordered is not None and not ordered.future.done():
                ordered.future.cancel()
        self._looking.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _has_ended(self, task: "asyncio.Task[None]") -> None:
        """Stop the broker if a bug ended the task: else it sends heartbeats, and stays controller."""
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the controller has ended", exc_info=error)
            self._on_fatal(error)

    # --- asking -------------------------------------------------------------------------------------

    @property
    def is_controller(self) -> bool:
        """True if this broker is the controller as of the newest image."""
        registration = self._membership.registration
        return registration is not None and _is_controller(self._root.image, registration)

    def submit(self, order: Order) -> "asyncio.Future[PublishResult]":
        """Have the controller commit what `order(image, controller_epoch)` plans, in its turn.

        The future fails with what the plan raises, or FencedError CONTROLLER_FENCED: another one decides.
        Concurrency: event loop.
        """
        future: asyncio.Future[PublishResult] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(_Ordered(order, future))
        return future

    # --- the queue ----------------------------------------------------------------------------------

    def _on_image(self, _old: Image, new: Image) -> None:
        if self._reported.cluster_changed == new.cluster_changed:
            self._reported = new  # which says the same; else the extents of then would stay in memory
        if self._reviewed != new.cluster_changed and not self._has_news:
            self._has_news = True
            self._queue.put_nowait(None)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            event: _Ordered | None = None
            due = min(self._look_due, self._review_due, self._balance_due)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    event = await self._queue.get()
            if event is not None:
                await self._carry_out(event)
                if loop.time() < due:  # else a queue that is never empty would delay it forever
                    continue
            if loop.time() >= self._look_due:
                self._look_due = loop.time() + self._interval_ms / 1000 + _NOT_TOO_EARLY_SECONDS
                self._looking.begin(self._watched())
            self._has_news = False
            dead, self._dead = self._dead, set()
            if dead or self._reviewed != self._root.image.cluster_changed or loop.time() >= self._review_due:
                await self._review(dead)
            if loop.time() >= self._balance_due:
                self._balance_due = loop.time() + self._settings.leader_imbalance_check_interval_seconds
                await self._balance()
            if self._reported.cluster_changed != self._root.image.cluster_changed:
                await self._log_changes()  # after what others wait for

    async def _log_changes(self) -> None:
        reported, self._reported = self._reported, self._root.image
        try:
            await self._run(log_changes, reported, self._reported)
        except Exception:  # noqa: BLE001 - a report must not stop what is decided
            _log.exception("changes up to commit %d could not be reported", self._reported.commit)

    async def _carry_out(self, ordered: _Ordered) -> None:
        plan = _as_controller(self._membership.current(), ordered.order)
        try:
            result = await self._run(self._publish, plan)
        except Exception as error:  # noqa: BLE001 - the caller gets it
            if not ordered.future.done():
                ordered.future.set_exception(error)
                ordered.future.exception()  # retrieved: the caller may be gone
        else:
            self._root.show()
            if not ordered.future.done():
                ordered.future.set_result(result)

    # --- looking and deciding -----------------------------------------------------------------------

    def _watched(self) -> dict[int, RegisteredBroker]:
        """Those that are this broker's to watch."""
        image, registration = self._root.image, self._membership.registration
        if registration is None or not self._membership.is_registered:
            return {}
        return {
            node_id: broker
            for node_id, broker in image.brokers.items()
            if node_id != registration.node_id
            and not broker.is_fenced
            and (node_id == image.controller.node_id or _is_controller(image, registration))
        }

    def _note_dead(self, dead: Collection[RegisteredBroker]) -> None:
        for broker in dead:
            _log.warning(
                "broker %d of epoch %d gave no heartbeat at %d looks: it is taken for dead",
                broker.node_id,
                broker.broker_epoch,
                self._looks,
            )
            self._dead.add((broker.node_id, broker.broker_epoch))
        self._queue.put_nowait(None)

    async def _review(self, dead: Collection[tuple[int, int]] = ()) -> None:
        """Commit what is due, if that is for this broker to do."""
        self._review_due = math.inf
        image, registration = self._root.image, self._membership.registration
        if registration is None or not self._membership.is_registered:
            return  # it joins again, which changes the cluster
        self._note_role(image, registration)
        self._reviewed = image.cluster_changed
        if not dead and image.controller.node_id not in (NO_NODE, registration.node_id):
            return
        if image.controller.node_id == NO_NODE and not self._is_my_turn(image, registration):
            return
        known = (registration.node_id, registration.broker_epoch)
        duties = Duties(registration=known, dead=tuple(dead), assigning=self._assigning)
        try:
            reviewed, refused = await self._run(self._commit, duties)
        except (SparklogError, OSError) as error:
            self._tell_and_try_again(f"what is due could not be committed, and is tried again: {error}")
            return
        if refused:
            self._tell_and_try_again(f"a part of what is due was refused, and is tried again: {refused[0]}")
        else:
            self._problem = ""
        self._reviewed = reviewed
        self._root.show()
        self._note_role(self._root.image, registration)

    async def _balance(self) -> None:
        """Have leaders go back to the first of their replicas, where that are too many."""
        registration = self._membership.current()
        if not _is_controller(self._root.image, registration):
            return
        try:
            await self._run(self._publish, _as_controller(registration, self._preferred))
        except (SparklogError, OSError) as error:
            self._tell(f"leaders could not go back to the first of their replicas: {error}")
        self._root.show()

    def _preferred(self, image: Image, epoch: int) -> Sequence[Action]:
        """A look at each partition: not on the event loop."""
        most_percent = self._settings.leader_imbalance_per_broker_percentage
        return plan_preferred(image, controller_epoch=epoch) if is_imbalanced(image, most_percent) else ()

    def _commit(self, duties: Duties) -> tuple[int, list[Exception]]:
        """As of which change of the cluster nothing is due any more, but for what was refused."""
        seen, refused = NO_COMMIT, list[Exception]()

        def plan(image: Image) -> Sequence[Action]:
            nonlocal seen
            seen = image.cluster_changed
            refused.clear()
            return duties.plan(image, refused.append)

        result = self._publish(plan)
        return result.commit if result.actions else seen, refused

    def _publish(self, plan: Plan) -> PublishResult:
        began = time.perf_counter()
        result = self._root.metadata.publish(plan)
        if any(isinstance(action, ElectLeaders) for action in result.actions):
            self._metrics.elections.record((time.perf_counter() - began) * 1000)
        if result.actions:
            _log.info("commit %d: %s", result.commit, _summary(result.actions))
        return result

    def _is_my_turn(self, image: Image, registration: Registration) -> bool:
        """While there is no controller: those with lower node ids come first, a moment apart.

        All could have themselves elected, and one would; but on object stores a lost race costs a second.
        """
        before = [
            node_id
            for node_id, broker in image.brokers.items()
            if node_id < registration.node_id and not broker.is_fenced and not broker.in_controlled_shutdown
        ]
        if not before or self._waited_for == image.controller:
            return True
        self._waited_for = image.controller
        self._review_due = asyncio.get_running_loop().time() + len(before) * _STAGGER_SECONDS
        return False

    def _note_role(self, image: Image, registration: Registration) -> None:
        is_now = _is_controller(image, registration)
        if is_now is not self._was_controller:
            self._was_controller = is_now
            epoch = image.controller.controller_epoch
            _log.info("this broker is %s controller; epoch %d", "the" if is_now else "no longer the", epoch)

    async def _run(self, function: Callable[..., T], /, *args: Any) -> T:
        """In the controller's thread."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)
        except FatalStorageError as error:  # a retry would always fail the same way
            self._on_fatal(error)
            raise

    def _tell_and_try_again(self, problem: str) -> None:
        self._tell(problem)
        self._review_due = asyncio.get_running_loop().time() + _AGAIN_SECONDS

    def _tell(self, problem: str) -> None:
        """Log a problem, unless it is the same as before."""
        if problem != self._problem:
            _log.warning("%s", problem)
        self._problem = problem


def _is_controller(image: Image, registration: Registration) -> bool:
    now = image.controller
    return (now.node_id, now.broker_epoch) == (registration.node_id, registration.broker_epoch)


def _as_controller(registration: Registration, order: Order) -> Plan:
    """A plan that applies while this registration is the controller's; else CONTROLLER_FENCED."""

    def plan(image: Image) -> Sequence[Action]:
        epoch = image.controller.controller_epoch
        validate_controller(image, epoch if _is_controller(image, registration) else NO_EPOCH)
        return order(image, epoch)

    return plan


def _summary(actions: Sequence[Action]) -> str:
    """What a commit says, in a line."""
    counts: dict[str, int] = {}
    for action in actions:
        kind = str(action.__struct_config__.tag)
        counts[kind] = counts.get(kind, 0) + len(getattr(action, "partition", (1,)))
    return ", ".join(f"{kind} {count}" for kind, count in counts.items())
