"""Giving signs of life: a thread that replaces this broker's object once an interval (heartbeats.py).

A thread of its own, so that neither a busy event loop nor storage threads that all wait hold it up, and
nobody is fenced for being busy. But a broker whose event loop does not come round any more answers nobody,
and leads: its clients would wait for ever, beside brokers that could serve them. So the thread asks the loop
for a turn with each beat, and falls silent when it has got none for a session. Rounds are counted, and not
time, as by those who look: of a process that stood still the thread stood still, too.

A write that hangs in the storage does not hold up the next one, which has a thread of its own, up to a bound:
one connection that is dead would else keep a broker silent for as long as its time-out.

Invariants: nothing is written before a registration is made, nor once it is over: another process may have
    the node id by then, and the object. The counter begins anew with each registration. A write that fails is
    no failure: the next one counts as well.
Not here: what is written (heartbeats.py), who looks (observer.py).
Concurrency: `start`, `stop` on the event loop; one thread, and one a write, which end with the process.
After a crash: nothing more comes, which is what it is for.
Sources: Kafka's BrokerLifecycleManager, which beats from an event queue beside those that serve requests.
"""

import asyncio
import contextlib
import logging
import queue
import threading
import time

from sparklog.errors import SparklogError
from sparklog.metadata import NO_EPOCH
from sparklog.storage import Store
from sparklog_server.cluster.heartbeats import Beat, Heartbeat
from sparklog_server.cluster.observer import looks_until_dead

_MOST_UNDER_WAY = 4
_log = logging.getLogger("sparklog_server")


class Heart:
    """See the module's docstring."""

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
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        if str(error) != self._problem:  # else at every beat
            _log.warning("a sign of life could not be given: %s", error)
        self._problem = str(error)

    def _loop_comes_round(self) -> bool:
        """Has the event loop had a turn within the last session? Asks it for the next one, too."""
        assert self._loop is not None
        is_alive = self._unanswered < self._most_unanswered
        if self._unanswered == self._most_unanswered:
            _log.error("the event loop does not come round: no more signs of life until it does")
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
            self._tell(error)
        else:
            self.arrived += 1
            self._problem = ""
        finally:
            self._under_way.discard(threading.current_thread())
