"""A broker's place: registered for the root, and in charge of its groups and partitions, or not.

In charge while its registration stands as of an image that is new enough. An image may be too old because the
storage is away, or the machine was suspended: then the groups are resigned, since another broker may have
them by now, and taken up again, from the log, when following works again.

1. broker B registers; broker A, on another machine, has the members of a group, and no client produces to A;
2. A publishes nothing, so that no plan of A meets the registration: A must look at it in what it follows;
3. if A cannot follow, it never sees it: so it stops by itself, broker.session.timeout.ms after the last look.

When its registration ends, a broker was taken for dead: it resigns everything, joins again, and goes on with
what it is given then. Only if its node id has been registered by another process it fails.

Invariants: no answer of a coordinator or leader, but errors, after the image that takes the role away was
    seen, or on an image older than broker.session.timeout.ms.
Not here: following (following.py).
Concurrency: event loop; `is_held` and `current` may be asked in any thread: they look at the newest image,
    shown or not.
After a crash: the next start registers again.
Sources: Kafka BrokerLifecycleManager (broker.session.timeout.ms), GroupCoordinatorService.onResignation;
    docs/adr/0013, docs/adr/0026.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from sparklog.errors import FatalStorageError, FencedError, SparklogError
from sparklog.failpoints import failpoint
from sparklog.metadata import (
    NO_EPOCH,
    Action,
    BrokerListener,
    Image,
    MetadataLog,
    Plan,
    RegisteredBroker,
    apply_actions,
    new_id,
    plan_act_as_broker,
    plan_begin_controlled_shutdown,
    plan_fence_broker,
    plan_join_broker,
    validate_broker,
)
from sparklog_server.cluster import elections
from sparklog_server.cluster.elections import Assigning, plan_entering
from sparklog_server.cluster.liveness import (
    NO_BEAT,
    Beat,
    Heart,
    Observer,
    looks_until_dead,
    read_heartbeats,
    say_nothing,
)
from sparklog_server.cluster.node_lock import NodeLock
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.runtime.lifecycle import Background, Lifecycle
from sparklog_server.settings.broker import BrokerSettings
from sparklog_server.settings.network import AdvertisedListener

# --- registration ------------------------------------------------------------------------------------
#
# What the broker publishes says its node id and broker epoch, and under which leader epochs it has accepted
# what it appends: a replay checks both (sparklog/metadata/model/registry.py). A publisher asks for the
# registration of now, once for each plan: a broker that was fenced may have joined again, with another epoch.
#
# Invariants: what a registration that is over has accepted is not published: `act` and `fenced` raise
#     FencedError BROKER_FENCED then.
# Not here: leaders (leadership.py), heartbeats (liveness.py).
# Concurrency: immutable; any thread.
# After a crash: the registration stands until it is fenced: by the controller, or by the node's next process.
# Sources: docs/adr/0026; FORMAT.md#metadata-log; Kafka BrokerRegistration.


Completing = Callable[[Image, Sequence[Action]], Sequence[Action]]

# From the images before and after the join, and the registration: node id, and broker epoch.
Entering = Callable[[Image, Image, tuple[int, int]], Sequence[Action]]


def nothing_else(_before: Image, _after: Image, _joined: tuple[int, int]) -> Sequence[Action]:
    """For a caller that needs no callback."""
    return ()


def nothing_more(_image: Image, _actions: Sequence[Action]) -> Sequence[Action]:
    """For a change that needs no completion."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A broker's registration, its right to publish: a commit made it, and another one ends it."""

    node_id: int
    broker_epoch: int
    incarnation_id: str
    completing: Completing = nothing_more

    @classmethod
    def join(
        cls,
        metadata: MetadataLog,
        node_id: int,
        listeners: Sequence[BrokerListener] = (),
        *,
        incarnation_id: str | None = None,
        rack: str = "",
        replaces: int = NO_EPOCH,
        entering: Entering = nothing_else,
        completing: Completing = nothing_more,
    ) -> "Registration":
        """Become one of the brokers of a root.

        Args:
            entering: what is to be committed with the join (elections.py).
            completing: what is to be committed with a change of metadata (elections.py).
            incarnation_id: the same at each try, for one that failed may have arrived; None: there is one.
            replaces: the broker epoch of a registration of this node whose process is known to be dead.

        Raises:
            FencedError: DUPLICATE_BROKER, another's that is not fenced; BROKER_FENCED, again at the same
            time.
        """
        own_id = new_id() if incarnation_id is None else incarnation_id

        def plan(image: Image) -> Sequence[Action]:
            known = image.brokers.get(node_id)
            if known is not None and known.incarnation_id == own_id and not known.is_fenced:
                return []  # an earlier try has arrived
            fence = plan_fence_broker(image, node_id, replaces)
            join = plan_join_broker(
                image if fence is None else _without(image, node_id),
                node_id,
                incarnation_id=own_id,
                listeners=listeners,
                rack=rack,
            )
            actions: list[Action] = [join] if fence is None else [fence, join]
            after = apply_actions(image, actions, commit=image.commit + 1, commit_uuid="planned")
            return [*actions, *entering(image, after, (node_id, join.broker_epoch))]

        metadata.publish(plan)
        failpoint("broker.registered")
        image = metadata.image
        broker = image.brokers.get(node_id)
        if broker is None or broker.incarnation_id != own_id:
            raise FencedError(
                "BROKER_FENCED",
                f"cluster {image.cluster_id}: another process has just registered broker {node_id}",
                fix="give each broker a node.id of its own",
            )
        return cls(
            node_id=node_id,
            broker_epoch=broker.broker_epoch,
            incarnation_id=own_id,
            completing=completing,
        )

    def validate(self, image: Image) -> None:
        """Raise FencedError BROKER_FENCED if it is over as of this image."""
        validate_broker(image, self.node_id, self.broker_epoch)

    def fenced(self, plan: Plan) -> Plan:
        """The same plan, which applies while this registration stands. Not for appends: see `act`."""

        def acting(image: Image) -> Sequence[Action]:
            self.validate(image)
            actions = plan(image)
            return [*self.act(image, actions), *self.completing(image, actions)]

        return acting

    def act(
        self, image: Image, actions: Sequence[Action], leader_epochs: Sequence[int] = (), /
    ) -> Sequence[Action]:
        """These actions, which apply while this registration stands, and leads what they append to.

        Args:
            leader_epochs: of each extent that they append: in which epoch it was accepted. The caller has
                asked `may_append` for each.

        Raises:
            FencedError: BROKER_FENCED.
        """
        return plan_act_as_broker(
            image,
            actions,
            node_id=self.node_id,
            broker_epoch=self.broker_epoch,
            leader_epochs=leader_epochs,
        )


def _without(image: Image, node_id: int) -> Image:
    """As it is for who joins after the node's fence in the same commit."""
    return replace(image, brokers={one: it for one, it in image.brokers.items() if one != node_id})


# --- joining -----------------------------------------------------------------------------------------
#
# Joining a root: what has to be found out about the node id before.
#
# A node id may still be registered, by a process that was killed, or by one that runs. Where a lock proves
# that the old one is dead (node_lock.py), its registration is ended in the commit that makes ours. Elsewhere
# its object is watched, as a controller would: until it is fenced, or counts as dead, which takes a session.
# If it moves instead, a start waits for its end for a while, and then the node id is refused. It has to move
# twice: the last write of a dead process may land late, once.
#
# An object that cannot be read, damaged or not, does not say that a broker is dead. So it is replaced once by
# one that says nothing either (liveness.py), and watched on: who lives writes over it. If it still cannot be
# read then, the start fails, as where the storage is away.
#
# 1. broker 1 is killed, and started again immediately, on another machine;
# 2. the registration is not fenced yet; a join would be refused, and to end it unasked would take a running
#    broker's place, if the node id is a mistake;
# 3. so it looks on, and joins after as many silent looks as a controller needs, or when that was quicker.
#
# Invariants: a registration that is not fenced is ended by proof, or after as many silent looks as mean
# death.
# Concurrency: event loop; storage work in storage threads. `is_stopping` ends the waiting.
# After a crash: the next start begins again.
# Sources: docs/adr/0026; tests/models/liveness.py.


_MOVES_OF_LIFE = 2


async def join(
    root: LiveRoot,
    settings: BrokerSettings,
    lock: NodeLock,
    listeners: Sequence[BrokerListener],
    *,
    incarnation_id: str,
    assigning: Assigning,
    until_ms: int,
    is_stopping: Callable[[], bool],
) -> Registration:
    """Join when the node id is free. `incarnation_id`: this process's, whatever it has tried before.

    Args:
        until_ms: by the monotonic clock; so long a process that has the node id, and lives, is waited for.

    Raises:
        FencedError: DUPLICATE_BROKER.
    """
    image = await root.run(_refreshed, root)
    known = _standing(image, settings.node_id)
    replaces = NO_EPOCH
    if known is not None and known.incarnation_id != incarnation_id:
        if lock.proves_death_of(known):
            replaces = known.broker_epoch
            _log.warning("broker %d was not stopped: its registration is ended", settings.node_id)
        else:
            replaces = await _watch(root, settings, known, until_ms, is_stopping)
    joined = await root.run(
        lambda: Registration.join(
            root.metadata,
            settings.node_id,
            listeners,
            incarnation_id=incarnation_id,
            rack=settings.broker_rack,
            replaces=replaces,
            entering=lambda before, after, joined: plan_entering(before, after, joined, assigning),
            completing=assigning.assignments,
        )
    )
    lock.note(joined.incarnation_id)
    return joined


async def _watch(
    root: LiveRoot,
    settings: BrokerSettings,
    known: RegisteredBroker,
    until_ms: int,
    is_stopping: Callable[[], bool],
) -> int:
    """Wait for an old registration's end; returns its epoch if it is for us to end it."""
    node_id, interval_ms = known.node_id, settings.broker_heartbeat_interval_ms
    looks = looks_until_dead(settings.broker_session_timeout_ms, interval_ms)
    most_ms = max((looks + 2) * interval_ms, until_ms - root.log.clock.monotonic_ms())
    text = "waiting for broker %d of epoch %d to end, or to be found dead, at most %d s"
    _log.warning(text, node_id, known.broker_epoch, -(-most_ms // 1000))
    observer = Observer(interval_ms=interval_ms, looks=looks)
    newest, moves = Beat(known.broker_epoch, 0), -1  # older ones are not of this registration
    unread = 0
    while not is_stopping():
        standing = _standing(await root.run(_refreshed, root), node_id)
        if standing is None or standing.broker_epoch != known.broker_epoch:
            return NO_EPOCH  # it was fenced, by the controller or itself; or another joined first
        try:
            found = await root.run(read_heartbeats, root.store, [node_id])
        except FatalStorageError:
            raise
        except (SparklogError, OSError) as error:
            unread += 1
            if unread == 1:  # once: a broker that lives must be able to write
                await _replace(root, known, error)
                observer = Observer(interval_ms=interval_ms, looks=looks)  # no other was silent meanwhile
            elif unread > looks and root.log.clock.monotonic_ms() >= until_ms:
                raise
            await asyncio.sleep(interval_ms / 1000)
            continue
        beat = found.get(node_id, NO_BEAT)
        if beat > newest:
            newest, moves = beat, moves + 1
        now_ms = root.log.clock.monotonic_ms()
        if moves >= _MOVES_OF_LIFE and now_ms >= until_ms:
            break
        if observer.look({node_id: known}, found, now_ms=now_ms):
            return known.broker_epoch
        await asyncio.sleep(interval_ms / 1000)
    return NO_EPOCH  # the join is refused, by what the registration says of itself


def _refreshed(root: LiveRoot) -> Image:
    return root.log.refresh(force=True)


async def _replace(root: LiveRoot, known: RegisteredBroker, why: Exception) -> None:
    text = "the heartbeat of broker %d cannot be read, and is replaced by one that says nothing: %s"
    _log.warning(text, known.node_id, why)
    try:
        await root.run(say_nothing, root.store, known.node_id, known.broker_epoch)
    except FatalStorageError:
        raise
    except (SparklogError, OSError) as error:
        _log.warning("the heartbeat of broker %d could not be replaced: %s", known.node_id, error)


def _standing(image: Image, node_id: int) -> RegisteredBroker | None:
    """The registration of a node id that is not fenced."""
    known = image.brokers.get(node_id)
    return None if known is None or known.is_fenced else known


# --- registering -------------------------------------------------------------------------------------
#
# How a broker stops, so that its clients notice next to nothing: it says so in a commit, the controller hands
# over what it leads while it still serves, and only then it is fenced, by itself. Its next start need not
# wait for a session to be over.
#
# A start that finds the node id taken tries again for a while, as Kafka's brokers do: a machine that restarts
# a broker (systemd, Kubernetes) may start the next process before the old one is gone. A broker that joins
# again after a fence does not: its node id has been given to another process, and two would take it from each
# other in turn.
#
# Invariants: one registration at a time; heartbeats only for one that is made.
# Concurrency: event loop; storage work in storage threads.
# After a crash: the registration stands until it is fenced.
# Sources: Kafka BrokerServer.shutdown, BrokerLifecycleManager.beginControlledShutdown.


END_SECONDS = 5.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 2.0


class Registering:
    """How a broker's registrations begin and end: at its start, again after a fence, and with its stop."""

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
        """Register. Another process of the node id may be about to stop: that is waited for.

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
    """True if another process has the node id."""
    return isinstance(error, FencedError) and error.code == "DUPLICATE_BROKER"


def can_hand_over(image: Image, node_id: int) -> bool:
    """True if a broker leads anything that another one could."""
    broker = image.brokers.get(node_id)
    if broker is None or broker.is_fenced:
        return False
    usable = elections.usable_brokers(image) - {node_id}
    return any(
        state.leadership.leader == node_id and not usable.isdisjoint(state.leadership.replicas)
        for topic in image.topics.values()
        for state in topic.partitions
    )


# --- membership --------------------------------------------------------------------------------------


_log = logging.getLogger("sparklog_server")


class Membership:
    """Keeps the registration of this broker, and says what it allows."""

    def __init__(
        self,
        root: LiveRoot,
        lifecycle: Lifecycle,
        assigning: Assigning,
        settings: BrokerSettings,
        *,
        advertised: Callable[[], Sequence[AdvertisedListener]],
    ) -> None:
        """`advertised`: where clients reach this broker, once its ports are bound."""
        self.node_id = settings.node_id
        self.registration: Registration | None = None
        self._root = root
        self._lifecycle = lifecycle
        self._registering = Registering(root, lifecycle, assigning, settings, advertised=advertised)
        self.heart = self._registering.heart
        self._max_age_ms = settings.broker_session_timeout_ms
        self._background = Background()
        self._has_resigned = self._is_joining_again = self._has_stopped = self._was_old = False
        self._resigned_callbacks: list[Callable[[], None]] = []
        self._resumed_callbacks: list[Callable[[], None]] = []
        root.on_image(self._on_image)  # before anybody acts on an image that takes the role away

    # --- the registration ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Register."""
        self.registration = await self._registering.begin()
        self._root.show()
        self._join_again_if_lost()  # what was shown before the registration was known

    async def hand_over(self, timeout_ms: float) -> None:
        """While clients are still served: have others lead what this broker leads, as far as they can."""
        if self.registration is not None and not self._lifecycle.has_failed:
            await self._registering.hand_over(self.registration, timeout_ms)

    async def stop(self) -> None:
        """End the registration, once this broker writes nothing more, and let another one start."""
        self._has_stopped = True
        self._background.cancel()
        await self._registering.end(self.registration)

    def current(self) -> Registration:
        """The registration of now, for one plan. Any thread."""
        registration = self.registration
        assert registration is not None, "nothing is published before the start"
        return registration

    @property
    def is_registered(self) -> bool:
        """True if the registration stands, as far as is known here."""
        return self.registration is not None and self.lost() is None

    # --- the role -----------------------------------------------------------------------------------

    @property
    def is_in_charge(self) -> bool:
        """True if it may answer for groups and partitions now."""
        return not self._lifecycle.has_failed and self.is_held

    @property
    def is_held(self) -> bool:
        """True if requests may be answered for the root, as of the newest image."""
        return self.lost() is None and self.left_ms > 0

    @property
    def left_ms(self) -> int:
        """How long the image stays new enough without another refresh."""
        return self._max_age_ms - self._root.metadata.image_age_ms

    def lost(self) -> FencedError | None:
        """Why the registration is over, if it is."""
        if self.registration is not None:
            try:
                self.registration.validate(self._root.image)
            except FencedError as error:
                return error
        return None

    def on_resigned(self, callback: Callable[[], None]) -> None:
        """Have `callback()` called when it must not answer for groups any more; perhaps more than once."""
        self._resigned_callbacks.append(callback)

    def on_resumed(self, callback: Callable[[], None]) -> None:
        """Have `callback()` called when it may again."""
        self._resumed_callbacks.append(callback)

    def review(self) -> None:
        """Resign the groups, or take them up again, as the image's age and the registration have it."""
        is_old = self.left_ms <= 0
        has_resigned = is_old or self._is_joining_again
        has_become_old, self._was_old = is_old and not self._was_old, is_old  # also while it joins again
        if has_resigned is self._has_resigned and not has_become_old:
            return
        self._has_resigned = has_resigned
        if is_old:
            _log.error("the log could not be followed for %d ms: groups are resigned", self._max_age_ms)
        elif not has_resigned:
            _log.warning("the log can be followed, and the broker is registered: groups are loaded")
        if has_resigned:
            self._resign()
        else:
            for callback in self._resumed_callbacks:
                callback()

    def _resign(self) -> None:
        for callback in self._resigned_callbacks:
            callback()

    def _on_image(self, _old: Image, _new: Image) -> None:
        self._join_again_if_lost()

    def _join_again_if_lost(self) -> None:
        """Or stop, if the place is another's. Asked with each image, and when a registration becomes known:

        1. the broker joins; a controller that finds no heartbeat of that registration yet fences it;
        2. that commit is shown before `_registering` returns: the registration of before is known to be lost,
           or there is none yet;
        3. no process commits anything after it: unless asked again, the broker would lead nothing, and answer
           no request, until one does.
        """
        lost = self.lost()
        if lost is None or self._has_stopped or self._is_joining_again:
            return
        registration = self.current()
        if _is_anothers(self._root.image, registration):
            self._lifecycle.fail(lost)
        elif not self._lifecycle.has_failed:
            _log.error("this broker was fenced, and joins again: %s", lost)
            self._is_joining_again = True
            if self._has_resigned:  # out of touch, it could not know that others would have the place
                self._resign()
            self.review()
            self._background.spawn(self._join_again())

    async def _join_again(self) -> None:
        try:
            self.registration = await self._registering.again()
        except (SparklogError, OSError) as error:
            self._lifecycle.fail(error)  # the node id is another's, or the root cannot be used any more
            return
        except Exception as error:  # noqa: BLE001 - a fault of ours: who never joins must not live on
            _log.exception("joining again has ended")
            self._lifecycle.fail(error)
            return
        self._is_joining_again = False
        self._root.show()
        self._join_again_if_lost()
        self.review()


def _is_anothers(image: Image, registration: Registration) -> bool:
    """True if another process has registered for this node id, and serves by now."""
    known = image.brokers.get(registration.node_id)
    return known is not None and not known.is_fenced and known.broker_epoch != registration.broker_epoch
