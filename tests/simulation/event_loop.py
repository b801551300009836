"""The event loop of a simulated broker: what asyncio asks of a loop, by the clock of a simulated process.

It runs in turns, which somebody takes: no turn waits for anything, and nothing is read or written within one.
What real brokers do in threads (`run_in_executor`) is gathered as jobs, for the same process to do between
two turns; while it waits for a store, further turns may be taken.

Invariants: what is ready goes in the order in which it came; tasks and futures hash by their numbers, so that
    sets of them are the same in every process.
Not here: sockets, signals, threads: nothing in a simulated broker has any.
"""

import asyncio
import contextvars
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from heapq import heappop, heappush
from typing import Any, cast

from sparklog.clock import Clock

_MOST_AT_ONCE = 100_000


class _Handle:
    """Something that is to be called; see asyncio.Handle."""

    def __init__(self, work: Callable[[], object], context: contextvars.Context | None) -> None:
        self.work = work
        self.context = contextvars.copy_context() if context is None else context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled


class _Future(asyncio.Future[Any]):
    number = 0

    def __hash__(self) -> int:
        return self.number


class _Task(asyncio.Task[Any]):
    number = 0

    def __hash__(self) -> int:
        return self.number


class EventLoop:
    """See the module's docstring."""

    def __init__(self, clock: Clock, on_failure: Callable[[str], None]) -> None:
        """`on_failure`: told of what nobody has handled."""
        self._clock = clock
        self._on_failure = on_failure
        self._ready: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._numbers = itertools.count(1)
        self._tasks: list[_Task] = []
        self._is_closed = False
        self.as_asyncio = cast(asyncio.AbstractEventLoop, self)
        self.jobs: deque[tuple[asyncio.Future[Any], Callable[[], Any]]] = deque()

    def turn(self) -> None:
        """Do all that is ready, and due."""
        asyncio._set_running_loop(self.as_asyncio)
        try:
            self._take_turn()
        finally:
            asyncio._set_running_loop(None)

    def _take_turn(self) -> None:
        now = self.time()
        while self._timers and self._timers[0][0] <= now:
            self._ready.append(heappop(self._timers)[2])
        for _ in range(_MOST_AT_ONCE):
            if not self._ready:
                return
            handle = self._ready.popleft()
            if handle.is_cancelled:
                continue
            try:
                handle.context.run(handle.work)
            except Exception as error:
                self.call_exception_handler({"message": "a callback failed", "exception": error})
        raise AssertionError("the loop does not come to rest")

    def do_a_job(self) -> bool:
        """The next one, of those that are to be done; then what waits for it. False if there was none."""
        if not self.jobs:
            return False
        future, work = self.jobs.popleft()
        if future.done():
            return True
        try:
            result = work()
        except Exception as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(result)
        self.turn()
        return True

    def end(self) -> None:
        """Nothing more happens; what is under way is cancelled."""
        for _ in range(3):  # what is cancelled may begin something
            for task in self._tasks:
                task.cancel()
            self._timers.clear()
            self.jobs.clear()
            self.turn()
        self._is_closed = True

    # --- what asyncio asks ---------------------------------------------------------------------------

    def time(self) -> float:
        return self._clock.monotonic_ms() / 1000

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._is_closed

    def is_closed(self) -> bool:
        return self._is_closed

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> _Handle:
        handle = _Handle(partial(callback, *args) if args else callback, context)
        if not self._is_closed:
            self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Handle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Handle:
        handle = _Handle(partial(callback, *args), context)
        heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        future = _Future(loop=self.as_asyncio)
        future.number = next(self._numbers)
        return future

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        task = _Task(coro, loop=self.as_asyncio, name=name, context=context)
        task.number = next(self._numbers)
        self._tasks = [one for one in self._tasks if not one.done()] if len(self._tasks) > 50 else self._tasks
        self._tasks.append(task)
        return task

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        del executor
        future = self.create_future()
        self.jobs.append((future, partial(func, *args)))
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._is_closed:
            self._on_failure(f"{context['message']}: {context.get('exception')!r}")
