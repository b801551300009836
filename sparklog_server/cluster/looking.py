"""Looking at signs of life: beside what the controller does, and each look beside those that hang.

A request to the storage may hang for as long as its time-out: for half a minute, where a connection is dead.
Neither the controller waits for it, nor the next look, an interval later, which has another connection; up to
a bound, so that a storage that answers nobody does not gather threads. A look that a later one has overtaken
says nothing. And where one object cannot be read (a bad sector), the others are: who is dead is noticed.

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
from collections.abc import Callable, Mapping
from typing import Final

from sparklog.clock import Clock
from sparklog.errors import FatalStorageError, SparklogError
from sparklog.metadata import RegisteredBroker
from sparklog.storage import Store
from sparklog_server.cluster.heartbeats import Beat, read_heartbeats
from sparklog_server.cluster.observer import Observer
from sparklog_server.runtime.background import Background

_MOST_UNDER_WAY: Final = 4


class Looking:
    """See the module's docstring."""

    def __init__(
        self,
        store: Store,
        observer: Observer,
        *,
        clock: Clock,
        beats: Callable[[], int],
        on_dead: Callable[[list[RegisteredBroker]], None],
        on_problem: Callable[[str], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """`beats`: how many signs of life of our own have arrived. The callbacks: who is dead, why a look is
        none, and what must stop the broker.
        """
        self._store = store
        self._observer = observer
        self._clock = clock
        self._beats = beats
        self._on_dead = on_dead
        self._on_problem = on_problem
        self._on_fatal = on_fatal
        self._threads = concurrent.futures.ThreadPoolExecutor(_MOST_UNDER_WAY, "looking")
        self._background = Background()
        self._under_way = self._begun = self._counted = self._beats_counted = 0

    def begin(self, watched: Mapping[int, RegisteredBroker]) -> None:
        """Look at these, unless too many looks hang."""
        if watched and self._under_way < _MOST_UNDER_WAY:
            self._background.spawn(self._look(watched))

    def stop(self) -> None:
        """Tell nothing more."""
        self._background.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _look(self, watched: Mapping[int, RegisteredBroker]) -> None:
        self._begun += 1
        number, loop = self._begun, asyncio.get_running_loop()
        self._under_way += 1
        try:
            found, unread = await loop.run_in_executor(self._threads, _read, self._store, list(watched))
        except FatalStorageError as error:
            self._on_fatal(error)
            return
        except (SparklogError, OSError) as error:
            self._on_problem(f"signs of life could not be read: {error}")
            return
        except Exception as error:  # noqa: BLE001 - a fault of ours: who cannot look must not live on
            self._on_fatal(error)
            return
        finally:
            self._under_way -= 1
        if unread:
            self._on_problem(f"signs of life of brokers {sorted(unread)} could not be read")
        beats = self._beats()
        if number < self._counted or beats == self._beats_counted:
            return
        self._counted, self._beats_counted = number, beats
        dead = self._observer.look(watched, found, now_ms=self._clock.monotonic_ms(), unread=unread)
        if dead:
            self._on_dead([watched[node_id] for node_id in dead])


def _read(store: Store, node_ids: list[int]) -> tuple[dict[int, Beat], set[int]]:
    """What there is of these brokers, and whose could not be read. Raises if that is all of them."""
    try:
        return read_heartbeats(store, node_ids), set()
    except FatalStorageError:
        raise
    except (SparklogError, OSError):
        if len(node_ids) == 1:
            raise
    found, unread = dict[int, Beat](), set[int]()
    for node_id in node_ids:
        try:
            found |= read_heartbeats(store, [node_id])
        except FatalStorageError:
            raise
        except (SparklogError, OSError):
            unread.add(node_id)
            if len(unread) == len(node_ids):
                raise
    return found, unread
