"""Looking at signs of life: beside what the controller does, and each look beside those that hang.

A request to the storage may hang for as long as its time-out: for half a minute, where a connection is dead.
Neither the controller waits for it, nor the next look, an interval later, which has another connection; up to
a bound, so that a storage that answers nobody does not gather threads. A look that a later one has overtaken
says nothing.

Nor does one broker's object keep others waiting: all are asked for together, and who has not been told of an
interval later, or when as much time again has passed as the first answer took, is as if nobody had looked. So
a storage that is slow for all still says who is dead, and one that hangs for one object, or cannot read it
(a bad sector), says so of the others. Each request has a thread of its own: those of a pool would all be
taken by a few objects that hang. Who gets none (a limit of the machine's) is as if nobody had looked, too.

An object that could not be read so many times in a row is replaced by one that says nothing (heartbeats.py):
a broker that has died would else never be found dead.

A look counts if a sign of life of our own had arrived since the last one that did, when it was begun. Where
the storage is read, but takes nothing (a full disk), all fall silent together, and that is no evidence:

1. the disk is full for 20 s: nobody's sign of life arrives, and nobody's commit;
2. there is room again, and this broker looks before the others have written;
3. it would take all of them for dead, and commit that.

What was found is told late where others hang. So what it is worth depends on nothing that happens meanwhile:
our own signs of life are counted before anybody is asked for, and the observer is told when that was, and
when each answer came (observer.py).

Invariants: as observer.py. Of what was found nothing is told after `stop`. There are at most as many threads
    for a broker's object as requests for it may be under way, and one that replaces it.
Not here: whom to look at, and what follows from a death (controller.py).
Concurrency: event loop; a thread for each request, which keeps no process from ending.
After a crash: whoever looks next counts from the beginning.
"""

import asyncio
import contextlib
import errno
import functools
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from sparklog.clock import Clock
from sparklog.errors import FatalStorageError, SparklogError
from sparklog.metadata import RegisteredBroker
from sparklog.storage import Store
from sparklog_server.cluster.heartbeats import NO_BEAT, Beat, read_heartbeats, say_nothing
from sparklog_server.cluster.observer import Observer
from sparklog_server.runtime.background import Background

_MOST_UNDER_WAY: Final = 4  # requests for one object
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
            except Exception as error:  # noqa: BLE001 - for whoever waits
                result = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
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
    """See the module's docstring."""

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
        """`interval_ms`: between two looks. `beats`: how many signs of life of our own have arrived. The
        callbacks: who is dead, why a look is none, and what must stop the broker.
        """
        self._store = store
        self._observer = observer
        self._clock = clock
        self._beats = beats
        self._on_dead = on_dead
        self._on_problem = on_problem
        self._on_fatal = on_fatal
        self._interval_seconds = interval_ms / 1000
        self._reading = _Threads[_Said](_MOST_UNDER_WAY)
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
                self._on_problem(f"signs of life could not be read: {error}")
            return
        except Exception as error:  # noqa: BLE001 - a fault of ours: who cannot look must not live on
            self._on_fatal(error)
            return
        unread = watched.keys() - found.keys()
        if unread:
            self._on_problem(f"signs of life of brokers {sorted(unread)} could not be read")
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
        """What there is of those that could be read in time. Raises why, if that is nobody."""
        asked, problems = self._ask(watched)
        try:
            await self._wait(asked.values())
        finally:
            for future in asked.values():
                future.cancel()  # of what comes later nobody hears
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
        """All together, but for those of whom as many requests hang as may; and why somebody is not asked."""
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
        with contextlib.suppress(BlockingIOError):  # that the object cannot be read is told anyway
            begun = self._replacing.begin(node_id, functools.partial(say_nothing, self._store, *registration))
        if begun is None:
            self._failures[registration] -= 1  # the next failure tries it again
        else:  # whether that has worked is seen at the next look
            self._on_problem(f"the sign of life of broker {node_id} cannot be read, and is replaced")

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
