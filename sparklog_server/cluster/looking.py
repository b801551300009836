"""Looking at signs of life: beside what the controller does, and each look beside those that hang.

A request to the storage may hang for as long as its time-out: for half a minute, where a connection is dead.
Neither the controller waits for it, nor the next look, an interval later, which has another connection; up to
a bound, so that a storage that answers nobody does not gather threads. A look that a later one has overtaken
says nothing.

Nor does one broker's object keep others waiting: all are asked for together, and who has not been told of an
interval later, or when as much time again has passed as the first answer took, is as if nobody had looked. So
a storage that is slow for all still says who is dead, and one that hangs for one object, or cannot read it
(a bad sector), says so of the others. An object that could not be read so many times in a row is replaced by
one that says nothing (heartbeats.py): a broker that has died would else never be found dead.

A look counts if a sign of life of our own has arrived since the last one that did. Where the storage is read,
but takes nothing (a full disk), all fall silent together, and that is no evidence:

1. the disk is full for 20 s: nobody's sign of life arrives, and nobody's commit;
2. there is room again, and this broker looks before the others have written;
3. it would take all of them for dead, and commit that.

Invariants: as observer.py. Of what was found nothing is told after `stop`.
Not here: whom to look at, and what follows from a death (controller.py).
Concurrency: event loop; reading in threads of its own.
After a crash: whoever looks next counts from the beginning.
"""

import asyncio
import concurrent.futures
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Final

from sparklog.clock import Clock
from sparklog.errors import FatalStorageError, SparklogError
from sparklog.metadata import RegisteredBroker
from sparklog.storage import Store
from sparklog_server.cluster.heartbeats import NO_BEAT, Beat, read_heartbeats, say_nothing
from sparklog_server.cluster.observer import Observer
from sparklog_server.runtime.background import Background

_MOST_UNDER_WAY: Final = 4  # requests for one object
_THREADS: Final = 16
_FAILURES: Final = 4  # in a row, after which an object is replaced


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
        self._threads = concurrent.futures.ThreadPoolExecutor(_THREADS, "looking")
        self._free = defaultdict[int, threading.Semaphore](lambda: threading.Semaphore(_MOST_UNDER_WAY))
        self._failures = Counter[tuple[int, int]]()  # in a row, by registration
        self._background = Background()
        self._begun = self._counted = self._beats_counted = 0

    def begin(self, watched: Mapping[int, RegisteredBroker]) -> None:
        """Look at these."""
        if watched:
            self._background.spawn(self._look(watched))

    def stop(self) -> None:
        """Tell nothing more."""
        self._background.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _look(self, watched: Mapping[int, RegisteredBroker]) -> None:
        self._begun += 1
        number = self._begun
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
        beats = self._beats()
        if not found or number < self._counted or beats == self._beats_counted:
            return
        self._counted, self._beats_counted = number, beats
        dead = self._observer.look(watched, found, now_ms=self._clock.monotonic_ms(), unread=unread)
        if dead:
            self._on_dead([watched[node_id] for node_id in dead])

    async def _read(self, watched: Mapping[int, RegisteredBroker]) -> dict[int, Beat]:
        """What there is of those that could be read in time. Raises why, if that is nobody."""
        asked = {node_id: future for node_id in watched if (future := self._ask(node_id)) is not None}
        try:
            await self._wait(asked.values())
        finally:
            for future in asked.values():
                future.cancel()  # one that no thread has begun; of others nobody hears any more
        found, problems = dict[int, Beat](), list[Exception]()
        for node_id, future in asked.items():
            if future.cancelled():
                continue
            registration = node_id, watched[node_id].broker_epoch
            try:
                found[node_id] = future.result()
            except FatalStorageError:
                raise
            except (SparklogError, OSError) as error:
                problems.append(error)
                self._failures[registration] += 1
                if self._failures[registration] == _FAILURES:
                    self._replace(*registration)
            else:
                self._failures.pop(registration, None)
        if problems and not found:
            raise problems[0]
        return found

    def _ask(self, node_id: int) -> "asyncio.Future[Beat] | None":
        """What this broker's object says; None: as many requests for it hang as may."""
        free = self._free[node_id]
        if not free.acquire(blocking=False):
            return None
        reading = self._threads.submit(_read_one, self._store, node_id)
        reading.add_done_callback(lambda _reading: free.release())
        return asyncio.wrap_future(reading)

    def _replace(self, node_id: int, broker_epoch: int) -> None:
        """Once, until it could be read again: who lives must get a word in."""
        self._on_problem(f"the sign of life of broker {node_id} cannot be read, and is replaced")
        # Whether that has worked is seen at the next look.
        self._threads.submit(say_nothing, self._store, node_id, broker_epoch)

    async def _wait(self, asked: Collection["asyncio.Future[Beat]"]) -> None:
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
