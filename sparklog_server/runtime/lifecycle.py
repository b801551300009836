"""What the broker is doing: its states, how it fails, and how it is asked to stop.

States: NOT_RUNNING -> STARTING -> RECOVERY -> RUNNING -> PENDING_CONTROLLED_SHUTDOWN -> SHUTTING_DOWN ->
    NOT_RUNNING; FAILED from any of them, when going on could break a promise.
Invariants: a state follows only from those that may be before it; the first failure is the one that is told,
    and nothing leads out of it.
Not here: what starts and stops (broker.py).
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
# Work that goes on beside requests, until its owner stops.
#
# Invariants: a task is referred to until it is done, so that it is not collected before.
# Concurrency: event loop only.


class Background:
    """The tasks of one owner."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it from the loop's next turn on."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """End what goes on."""
        for task in list(self._tasks):
            task.cancel()


# --- in turns ----------------------------------------------------------------------------------------
#
# Work of unequal pieces, so much of it in each turn of the event loop.
#
# Concurrency: pure.


T = TypeVar("T")


def in_turns(pieces: Iterable[T], weight: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Pieces in their order, in lists that weigh `most` at most, or hold one piece alone.

    A piece is weighed when the list before it has been taken: it may have changed meanwhile.
    """
    turn: list[T] = []
    weighs = 0
    for piece in pieces:
        its_weight = weight(piece)
        if turn and weighs + its_weight > most:
            yield turn
            turn, weighs = [], 0
        turn.append(piece)
        weighs += its_weight
    if turn:
        yield turn


# --- lifecycle ---------------------------------------------------------------------------------------


_log = logging.getLogger("sparklog_server")
_state_log = logging.getLogger("sparklog_server.state_change")


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


class Lifecycle:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.state = BrokerState.NOT_RUNNING
        self.failure: BaseException | None = None
        self._failed_callbacks: list[Callable[[], None]] = []
        self._stop_requested = asyncio.Event()

    @property
    def has_failed(self) -> bool:
        """Is nothing acknowledged any more?"""
        return self.state is BrokerState.FAILED

    def change(self, state: BrokerState) -> None:
        """Go on to another state."""
        if state not in _NEXT_STATES[self.state]:
            raise RuntimeError(f"from {self.state} to {state}")
        _state_log.info("%s -> %s", self.state.name, state.name)
        self.state = state

    def on_failed(self, callback: Callable[[], None]) -> None:
        """Have `callback()` called when the broker fails."""
        self._failed_callbacks.append(callback)

    def fail(self, error: BaseException) -> None:
        """Going on could break a promise: acknowledge nothing more, and stop."""
        if not self.has_failed:
            _log.critical("the broker stops: %s", error)
            self.failure = error
            self.change(BrokerState.FAILED)
            for callback in self._failed_callbacks:
                try:
                    callback()
                except Exception:  # noqa: BLE001 - the others must still hear of it, and the broker stop
                    _log.exception("a callback for the failure failed")
        self._stop_requested.set()

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
