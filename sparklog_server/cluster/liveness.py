"""Sending heartbeats: a thread that replaces this broker's object once an interval.

It has a thread of its own, so that neither a busy event loop nor storage threads that all wait hold it up,
and no broker is fenced for being busy. But a broker whose event loop hangs answers no request, and still
leads: its clients would wait forever, while other brokers could serve them. So the thread asks the loop for a
turn with each heartbeat, and falls silent when it has got none for a session. Rounds are counted, and not
time, as by the observer: of a process that stood still the thread stood still, too.

A write that hangs in the storage does not hold up the next one, which has a thread of its own, up to a bound:
one connection that is dead would else keep a broker silent for as long as its time-out.

Invariants: nothing is written before a registration is made, nor once it is over: another process may have
    the node id by then, and the object. The counter begins again with each registration. A write that fails
    is no failure: the next one counts as well.
Concurrency: `start`, `stop` on the event loop; one thread, and one a write, which end with the process.
After a crash: nothing more comes, which is what it is for.
Sources: Kafka's BrokerLifecycleManager, which beats from an event queue of its own.
"""

import asyncio
import contextlib
import errno
import functools
import logging
import queue
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from sparklog.clock import Clock
from sparklog.errors import FatalStorageError, SparklogError
from sparklog.metadata import NO_EPOCH, RegisteredBroker
from sparklog.metadata.documents.properties import HEARTBEATS
from sparklog.storage import Store
from sparklog_server.runtime.lifecycle import Background

# --- heartbeats --------------------------------------------------------------------------------------
#
# Heartbeats: a small object for each broker, next to the metadata log, which the broker replaces.
#
# No broker needs to reach another one. What an object says is the broker epoch of a registration, and a
# counter that the broker raises with each write. Replacing is no commit: a PUT that was repeated may land
# late, and take the object back to an older state for a moment. So a heartbeat is what is newer than all
# that were seen before, and nothing else is: by broker epoch first, so that a registration's first counters
# are newer than the last ones of the registration before.
#
# Invariants: a counter is written once. An object that is missing, or is none, is no heartbeat, and no
# error. Not here: whom to take for dead, and the fence itself, which is a commit
#     (sparklog/metadata/model/registry.py).
# Concurrency: one thread says what comes next; any may write it, and read.
# After a crash: the counter of the next registration begins again.
# Sources: FORMAT.md#metadata-log; tests/models/liveness.py.


_MAX_BYTES = 64
_FORM = re.compile(rb"(\d{1,18}) (\d{1,18})\n")


class Beat(NamedTuple):
    """What an object says; the newer one is the larger."""

    broker_epoch: int
    counter: int


NO_BEAT = Beat(-1, 0)


class Heartbeat:
    """That of one registration."""

    def __init__(self, store: Store, node_id: int, broker_epoch: int) -> None:
        self._store = store
        self._name = heartbeat_name(node_id)
        self._last = Beat(broker_epoch, 0)

    def next(self) -> Beat:
        """What is to be written next."""
        self._last = Beat(self._last.broker_epoch, self._last.counter + 1)
        return self._last

    def write(self, beat: Beat) -> None:
        """StorageError: it may or may not be there; the one after it counts as well. Any thread."""
        self._store.put_hint(self._name, b"%d %d\n" % beat)

    def beat(self) -> Beat:
        """Write the next one."""
        beat = self.next()
        self.write(beat)
        return beat


def say_nothing(store: Store, node_id: int, broker_epoch: int) -> None:
    """Replace an object that cannot be read by one that can, and is above nothing that was seen.

    A broker that lives replaces it by its next heartbeat, an interval later; one that is dead does not, and
    that can be seen now. If it could be read by then, one heartbeat is lost, as by a PUT that lands late.
    """
    Heartbeat(store, node_id, broker_epoch).write(Beat(broker_epoch, 0))


def heartbeat_name(node_id: int) -> str:
    """The object of a broker."""
    return f"{HEARTBEATS}/{node_id}"


def read_heartbeats(store: Store, node_ids: Iterable[int]) -> dict[int, Beat]:
    """What is there of these brokers: one request each, together.

    Raises:
        StorageError: the storage does not answer. Then no look counts, and no broker has missed one.
    """
    nodes = list(node_ids)
    names = [heartbeat_name(node_id) for node_id in nodes]
    found = {}
    for node_id, data in zip(nodes, store.read_many(names, max_bytes=_MAX_BYTES), strict=True):
        match = None if data is None else _FORM.fullmatch(data)
        if match:
            found[node_id] = Beat(int(match[1]), int(match[2]))
    return found


# --- observer ----------------------------------------------------------------------------------------
#
# Looks are counted, not time. Time passes while this process stands still, and while the storage answers no
# request: by time, every broker that was not looked at would be dead then. Each look that counts
# has an interval of its own, and a living broker writes in each, whatever else happens:
#
# 1. the storage is away for 20 s, for this broker and for B, which writes every 2 s;
# 2. it is back: this one looks before B has written again, and finds what it saw 20 s ago;
# 3. by the clock B was silent for longer than its session, and would be fenced, with all others.
#
# A look is not a moment: what an answer says was read between the question and the answer, half a minute
# apart where a request hangs, and a later look's may have been read first. So a look counts against a broker
# if its answer came an interval after that of the last that counted, and if it was begun after that one had
# come. Then
#
#     read(n) <= answer(n) <= begin(n + 1) <= read(n + 1),  answer(n) + interval <= answer(n + 1)
#
# and n - 1 whole intervals lie between what was seen last and the n-th look in a row that found nothing
# newer: as in the model, where a look is anywhere in an interval of its own. When the answers are evaluated
# does not matter. By their beginnings alone several looks would count that hung while the storage was away,
# and were answered together when it came back; by their answers alone, one that was read before what was seen
# last. Where answers take longer than an interval, fewer looks count: a death is noticed later, and never too
# early.
#
# Being wrong costs clients a pause, and B a new registration: what B may do is decided by commits.
#
# Invariants: a look counts against a broker as said above; a newer heartbeat always counts. Registrations
#     are observed from the first image on that has them, with nothing against them.
# Not here: what follows from a death.
# Concurrency: belongs to one thread.
# After a crash: the next observer counts from the beginning.
# Sources: tests/models/liveness.py, which says how many looks it takes: 2, and 2 more for each write that
#     lands late, 1 where the storage may be full; Kafka's broker.session.timeout.ms,
#     broker.heartbeat.interval.ms.


MIN_LOOKS = 2


def looks_until_dead(session_timeout_ms: int, interval_ms: int) -> int:
    """How many looks in a row mean death."""
    return max(MIN_LOOKS, session_timeout_ms // interval_ms)


class _Observed:
    """A registration, and the last look that counted for it."""

    __slots__ = ("_interval_ms", "_looked_ms", "broker_epoch", "misses", "newest")

    def __init__(self, broker_epoch: int, interval_ms: int) -> None:
        self.broker_epoch = broker_epoch
        self.newest = Beat(broker_epoch, 0)
        self.misses = -1
        self._interval_ms = interval_ms
        self._looked_ms: int | None = None  # when its answer came

    def is_next(self, began_ms: int, now_ms: int) -> bool:
        """True if a look that was begun then, and answered now, has an interval of its own."""
        if self._looked_ms is not None and now_ms - self._looked_ms < self._interval_ms:
            return False
        return self._looked_ms is None or began_ms >= self._looked_ms

    def counted(self, now_ms: int) -> None:
        """A look does that was answered now."""
        self._looked_ms = now_ms


class Observer:
    """Whom to take for dead: brokers of whom nothing newer was seen at so many looks in a row."""

    def __init__(self, *, interval_ms: int, looks: int) -> None:
        """`looks`: so many without anything newer mean death; see looks_until_dead."""
        self._interval_ms = interval_ms
        self._looks = looks
        self._observed: dict[int, _Observed] = {}

    def look(
        self,
        brokers: Mapping[int, RegisteredBroker],
        found: Mapping[int, Beat],
        *,
        now_ms: int,
        answered_ms: Mapping[int, int] | None = None,
        unread: Container[int] = (),
    ) -> list[int]:
        """Take the heartbeats that were read; return the node ids of the brokers that are dead by them.

        Args:
            brokers: those to observe, by node id; the fenced ones are left out.
            found: from read_heartbeats. Where reading failed, do not call this.
            now_ms: when reading began, by a monotonic clock.
            answered_ms: when each heartbeat was read; None: all at `now_ms`. A caller that pauses for an
                interval between an answer and the next read may pass the end of the pause for both.
            unread: the brokers whose objects could not be read, though others could: they stay as they were.
        """
        before, self._observed = self._observed, {}
        dead = []
        for node_id, broker in brokers.items():
            if broker.is_fenced:
                continue
            one = before.get(node_id)
            if one is None or one.broker_epoch != broker.broker_epoch:
                one = _Observed(broker.broker_epoch, self._interval_ms)
            self._observed[node_id] = one
            if node_id in unread:
                continue
            answered = now_ms if answered_ms is None else answered_ms.get(node_id, now_ms)
            beat = found.get(node_id, NO_BEAT)
            if beat > one.newest:
                one.newest, one.misses = beat, 0
                one.counted(answered)
            elif one.is_next(now_ms, answered):
                one.misses += 1
                one.counted(answered)
                if one.misses >= self._looks:
                    dead.append(node_id)
        return dead


# --- looking -----------------------------------------------------------------------------------------
#
# A request to the storage may hang for as long as its time-out: for half a minute, where a connection is
# dead. Neither the controller waits for it, nor the next look, an interval later, which has another
# connection; up to a bound, so that a storage that does not answer does not gather threads. A look that ends
# after a later one says nothing.
#
# Nor does one broker's object keep others waiting: all are read together, and one that is not read an
# interval later, or when as much time again has passed as the first answer took, counts as if it were not
# looked at. So a storage that is slow for all still says which brokers are dead, and one that hangs for one
# object, or cannot read it (a bad sector), says so of the others. Each request has a thread of its own: those
# of a pool would all be taken by a few objects that hang. An object for which there is no thread (a limit of
# the machine's) counts as if it were not looked at, too.
#
# An object that could not be read so many times in a row is replaced by one that says nothing: a broker that
# has died would otherwise never be found dead.
#
# A look counts if a heartbeat of our own had arrived since the last one that did, when it was begun. Where
# the storage is read, but takes nothing (a full disk), all fall silent together, and that is no evidence:
#
# 1. the disk is full for 20 s: no heartbeat arrives, and no commit;
# 2. there is room again, and this broker looks before the others have written;
# 3. it would take all of them for dead, and commit that.
#
# What was found is reported late where others hang. So what it is worth depends on nothing that happens
# meanwhile: our own heartbeats are counted before any request, and the observer gets the times of the request
# and of each answer.
#
# Invariants: as above. Nothing that was found is reported after `stop`. There are at most as many
#     threads for a broker's object as requests for it may be under way, and one that replaces it.
# Not here: whom to look at, and what follows from a death (controller.py).
# Concurrency: event loop; a thread for each request, which keeps no process from ending.
# After a crash: the next observer counts from the beginning.


_LOOKING_MOST_UNDER_WAY: Final = 4  # requests for one object
_MOST_REPLACING: Final = 1
_FAILURES: Final = 4  # in a row, after which an object is replaced
_T = TypeVar("_T")


class _Said(NamedTuple):
    """By an object, and when that was known."""

    beat: Beat
    answered_ms: int


class _Threads(Generic[_T]):
    """A thread for each call, and so many for one object. Concurrency: event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._under_way = Counter[int]()

    def begin(self, node_id: int, call: Callable[[], _T]) -> "asyncio.Future[_T | Exception] | None":
        """What a call for this broker's object comes to; None: as many hang as may. BlockingIOError."""
        if self._under_way[node_id] >= self._most:
            return None
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T | Exception] = loop.create_future()

        def run() -> None:
            try:
                result: _T | Exception = call()
            except Exception as error:  # noqa: BLE001 - the caller gets it
                result = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
                loop.call_soon_threadsafe(self._end, node_id, future, result)

        try:
            threading.Thread(target=run, name=f"looking-{node_id}", daemon=True).start()
        except RuntimeError as error:  # the machine's limit, for now: no fault of ours, nor of the object's
            raise BlockingIOError(errno.EAGAIN, f"no thread for it: {error}") from error
        self._under_way[node_id] += 1
        return future

    def _end(self, node_id: int, future: "asyncio.Future[_T | Exception]", result: _T | Exception) -> None:
        self._under_way[node_id] -= 1
        if not self._under_way[node_id]:
            del self._under_way[node_id]
        if not future.done():
            future.set_result(result)


class Looking:
    """Reads heartbeats: apart from what the controller does, and each look apart from those that hang."""

    def __init__(
        self,
        store: Store,
        observer: Observer,
        *,
        clock: Clock,
        interval_ms: int,
        beats: Callable[[], int],
        on_dead: Callable[[list[RegisteredBroker]], None],
        on_problem: Callable[[str], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """`interval_ms`: between two looks. `beats`: how many heartbeats of our own have arrived. The
        callbacks: which brokers are dead, why a look does not count, and what must stop the broker.
        """
        self._store = store
        self._observer = observer
        self._clock = clock
        self._beats = beats
        self._on_dead = on_dead
        self._on_problem = on_problem
        self._on_fatal = on_fatal
        self._interval_seconds = interval_ms / 1000
        self._reading = _Threads[_Said](_LOOKING_MOST_UNDER_WAY)
        self._replacing = _Threads[None](_MOST_REPLACING)
        self._failures = Counter[tuple[int, int]]()  # in a row, by registration
        self._background = Background()
        self._begun = self._counted = self._beats_counted = 0

    def begin(self, watched: Mapping[int, RegisteredBroker]) -> None:
        """Look at these."""
        registrations = {(node_id, broker.broker_epoch) for node_id, broker in watched.items()}
        for gone in self._failures.keys() - registrations:
            del self._failures[gone]
        if watched:
            self._background.spawn(self._look(watched))

    def stop(self) -> None:
        """Tell nothing more."""
        self._background.cancel()

    async def _look(self, watched: Mapping[int, RegisteredBroker]) -> None:
        self._begun += 1
        number, beats, began_ms = self._begun, self._beats(), self._clock.monotonic_ms()
        try:
            found = await self._read(watched)
        except (SparklogError, OSError) as error:
            if isinstance(error, FatalStorageError):
                self._on_fatal(error)
            else:
                self._on_problem(f"heartbeats could not be read: {error}")
            return
        except Exception as error:  # noqa: BLE001 - a fault of ours: who cannot look must not live on
            self._on_fatal(error)
            return
        unread = watched.keys() - found.keys()
        if unread:
            self._on_problem(f"heartbeats of brokers {sorted(unread)} could not be read")
        if not found or number < self._counted or beats == self._beats_counted:
            return
        self._counted, self._beats_counted = number, beats
        dead = self._observer.look(
            watched,
            {node_id: said.beat for node_id, said in found.items()},
            now_ms=began_ms,
            answered_ms={node_id: said.answered_ms for node_id, said in found.items()},
            unread=unread,
        )
        if dead:
            self._on_dead([watched[node_id] for node_id in dead])

    async def _read(self, watched: Mapping[int, RegisteredBroker]) -> dict[int, _Said]:
        """Return those that could be read in time. Raises the reason, if there are none."""
        asked, problems = self._ask(watched)
        try:
            await self._wait(asked.values())
        finally:
            for future in asked.values():
                future.cancel()  # what comes later is dropped
        found = dict[int, _Said]()
        for node_id, future in asked.items():
            if future.cancelled():
                continue
            registration = node_id, watched[node_id].broker_epoch
            said = future.result()
            if isinstance(said, _Said):
                found[node_id] = said
                self._failures.pop(registration, None)
            elif isinstance(said, FatalStorageError) or not isinstance(said, SparklogError | OSError):
                raise said
            else:
                problems.append(said)
                self._count_failure(registration)
        if problems and not found:
            raise problems[0]
        return found

    def _ask(
        self, node_ids: Iterable[int]
    ) -> "tuple[dict[int, asyncio.Future[_Said | Exception]], list[Exception]]":
        """Begin to read all, except those of which too many requests hang; return why some are not read."""
        asked, problems = dict[int, asyncio.Future[_Said | Exception]](), list[Exception]()
        for node_id in node_ids:
            try:
                future = self._reading.begin(node_id, functools.partial(self._read_one, node_id))
            except BlockingIOError as error:
                problems.append(error)
            else:
                if future is not None:
                    asked[node_id] = future
        return asked, problems

    def _read_one(self, node_id: int) -> _Said:
        """In a thread."""
        beat = _read_one(self._store, node_id)
        return _Said(beat, self._clock.monotonic_ms())

    def _count_failure(self, registration: tuple[int, int]) -> None:
        """Replace the object after so many, once until it was read again: who lives must get a word in."""
        self._failures[registration] += 1
        if self._failures[registration] != _FAILURES:
            return
        node_id, _ = registration
        begun = None
        with contextlib.suppress(BlockingIOError):  # that the object cannot be read is reported anyway
            begun = self._replacing.begin(node_id, functools.partial(say_nothing, self._store, *registration))
        if begun is None:
            self._failures[registration] -= 1  # the next failure tries it again
        else:  # whether that has worked is seen at the next look
            self._on_problem(f"the heartbeat of broker {node_id} cannot be read, and is replaced")

    async def _wait(self, asked: Collection["asyncio.Future[_Said | Exception]"]) -> None:
        if not asked:
            return
        clock = asyncio.get_running_loop().time
        began = clock()
        _, late = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        first = clock() - began
        if late:
            await asyncio.wait(late, timeout=max(first, self._interval_seconds - first))


def _read_one(store: Store, node_id: int) -> Beat:
    return read_heartbeats(store, [node_id]).get(node_id, NO_BEAT)


# --- heart -------------------------------------------------------------------------------------------


_MOST_UNDER_WAY = 4
_log = logging.getLogger("sparklog_server")


class Heart:
    """Sends this broker's heartbeats."""

    def __init__(self, store: Store, node_id: int, *, interval_ms: int, session_timeout_ms: int) -> None:
        self._store = store
        self._node_id = node_id
        self.arrived = 0  # beats of which that is known
        self._interval_seconds = interval_ms / 1000
        self._most_unanswered = looks_until_dead(session_timeout_ms, interval_ms)
        self._epochs: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._unanswered = 0
        self._problem = ""
        self._under_way: set[threading.Thread] = set()

    def start(self, broker_epoch: int) -> None:
        """Beat for this registration from now on, and no more for the one before."""
        self._epochs.put(broker_epoch)
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._beat_on, name="heartbeat", daemon=True)
            self._thread.start()

    def pause(self) -> None:
        """The registration is over: no more beats until `start`."""
        self._epochs.put(NO_EPOCH)

    def stop(self) -> None:
        """Beat no more; what is being written arrives or not."""
        self._epochs.put(None)

    def _beat_on(self) -> None:
        heartbeat: Heartbeat | None = None
        due = time.monotonic()
        while True:
            try:
                epoch = self._epochs.get(timeout=max(0.0, due - time.monotonic()))
            except queue.Empty:
                pass
            else:
                if epoch is None:
                    return
                heartbeat = None if epoch == NO_EPOCH else Heartbeat(self._store, self._node_id, epoch)
                due = time.monotonic()
            due = max(due + self._interval_seconds, time.monotonic())
            if heartbeat is not None and self._loop_comes_round() and len(self._under_way) < _MOST_UNDER_WAY:
                self._begin_to_write(heartbeat, heartbeat.next())

    def _begin_to_write(self, heartbeat: Heartbeat, beat: Beat) -> None:
        thread = threading.Thread(target=self._write, args=(heartbeat, beat), daemon=True)
        self._under_way.add(thread)
        try:
            thread.start()
        except RuntimeError as error:  # as many as the system allows, for now: as a write that fails
            self._under_way.discard(thread)
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        if str(error) != self._problem:  # else at every beat
            _log.warning("a heartbeat could not be written: %s", error)
        self._problem = str(error)

    def _loop_comes_round(self) -> bool:
        """Has the event loop had a turn within the last session? Asks it for the next one, too."""
        assert self._loop is not None
        is_alive = self._unanswered < self._most_unanswered
        if self._unanswered == self._most_unanswered:
            _log.error("the event loop hangs: no more heartbeats until it runs again")
        self._unanswered += 1
        with contextlib.suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(self._came_round)
        return is_alive

    def _came_round(self) -> None:
        self._unanswered = 0

    def _write(self, heartbeat: Heartbeat, beat: Beat) -> None:
        try:
            heartbeat.write(beat)
        except (SparklogError, OSError) as error:
            self._warn(error)
        else:
            self.arrived += 1
            self._problem = ""
        finally:
            self._under_way.discard(threading.current_thread())
