"""The broker's lifecycle: its states, failures, and requests to stop; and background tasks.

States: NOT_RUNNING -> STARTING -> RECOVERY -> RUNNING -> PENDING_CONTROLLED_SHUTDOWN -> SHUTTING_DOWN ->
    NOT_RUNNING; FAILED from any of them, if continuing could break a guarantee.
Invariants: only valid transitions; the first failure is kept, and FAILED is final.
Not here: starting and stopping components (broker.py).
Concurrency: event loop only.
Sources: Kafka BrokerState, BrokerServer.awaitShutdown.
"""

import asyncio
import enum
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

# --- background --------------------------------------------------------------------------------------
#
# Tasks that run in addition to requests, until their owner stops.
#
# Invariants: a task is referenced until it is done, so that it is not garbage collected.
# Concurrency: event loop only.


class Background:
    """The tasks of one owner."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task in the loop's next turn."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Cancel all tasks."""
        for task in list(self._tasks):
            task.cancel()


# --- in turns ----------------------------------------------------------------------------------------
#
# Splits work into batches, one for each turn of the event loop.
#
# Concurrency: pure.


T = TypeVar("T")


def in_turns(pieces: Iterable[T], weight: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Yield the pieces in order, in lists with a total weight of at most `most`, or of a single piece.

    A piece is weighed after the previous list was consumed: its weight may have changed by then.
    """
    turn: list[T] = []
    total = 0
    for piece in pieces:
        piece_weight = weight(piece)
        if turn and total + piece_weight > most:
            yield turn
            turn, total = [], 0
        turn.append(piece)
        total += piece_weight
    if turn:
        yield turn


# --- lifecycle ---------------------------------------------------------------------------------------


_log = logging.getLogger("sparklog_server")
_state_log = logging.getLogger("sparklog_server.state_change")


class BrokerState(enum.Enum):
    """Kafka's states of a broker, and FAILED."""

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


class Lifecycle:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.state = BrokerState.NOT_RUNNING
        self.failure: BaseException | None = None
        self._failed_callbacks: list[Callable[[], None]] = []
        self._stop_requested = asyncio.Event()

    @property
    def has_failed(self) -> bool:
        """True if the broker has failed: it acknowledges nothing more."""
        return self.state is BrokerState.FAILED

    def change(self, state: BrokerState) -> None:
        """Change to another state."""
        if state not in _NEXT_STATES[self.state]:
            raise RuntimeError(f"from {self.state} to {state}")
        _state_log.info("%s -> %s", self.state.name, state.name)
        self.state = state

    def on_failed(self, callback: Callable[[], None]) -> None:
        """Register `callback()`, called when the broker fails."""
        self._failed_callbacks.append(callback)

    def fail(self, error: BaseException) -> None:
        """Acknowledge nothing more, and stop: continuing could break a guarantee."""
        if not self.has_failed:
            _log.critical("the broker stops: %s", error)
            self.failure = error
            self.change(BrokerState.FAILED)
            for callback in self._failed_callbacks:
                try:
                    callback()
                except Exception:  # noqa: BLE001 - the others must still run, and the broker stop
                    _log.exception("a callback for the failure failed")
        self._stop_requested.set()

    def request_stop(self) -> None:
        """Make `wait_for_stop` return."""
        self._stop_requested.set()

    @property
    def is_stop_requested(self) -> bool:
        """True if the broker was asked to stop, or has failed."""
        return self._stop_requested.is_set()

    async def wait_for_stop(self) -> None:
        """Wait until the broker is asked to stop, or fails."""
        await self._stop_requested.wait()
