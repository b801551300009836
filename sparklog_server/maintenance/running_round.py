"""The process of one round, as the event loop sees it: begun, heard, broken off, and gone with its owner.

A thread begins it and waits for it, and not the loop: uvloop forks, and runs Python in the child before that
is another program, without the threads that hold what it may need; and the loop waits for it, the longer the
more memory the broker has. `subprocess` runs nothing in between.
Invariants: nobody waits for the process without a bound, and a cancellation is never lost, not even one that
    comes as the process ends (asyncio.wait_for before Python 3.12 loses it, and a stop would wait for ever).
Not here: what it is asked, and when (service.py); the process (sparklog/client/round_process.py).
Concurrency: event loop; one thread a round, which ends with the process and keeps nobody.
After a crash: the process hears the end of its pipe, and breaks off.
"""

import asyncio
import contextlib
import errno
import logging
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from sparklog.client.round_process import RoundAnswer, RoundProcess, RoundRequest
from sparklog.errors import as_value

END_SECONDS: Final = 2.0
_log = logging.getLogger("sparklog_server.log_cleaner")
T = TypeVar("T")
_Order = Callable[[RoundProcess], None]


class RunningRound:
    """See the module's docstring."""

    def __init__(self, request: RoundRequest, *, is_urgent: bool) -> None:
        """Begin it. That there can be no process is told by `answer`; OSError: there can be no thread."""
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[RoundAnswer] = self._loop.create_future()
        self._lock = threading.Lock()
        self._process: RoundProcess | None = None
        self._orders: list[_Order] = []  # from before there was a process
        thread = threading.Thread(
            target=self._run, args=(request, is_urgent), name="maintenance-round", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # as many as the system allows, for now
            raise OSError(errno.EAGAIN, f"a round of maintenance cannot begin: {error}") from error

    async def has_ended_within(self, seconds: float) -> bool:
        """Wait for its end, for so long."""
        await asyncio.wait([self.ended], timeout=seconds)
        return self.ended.done()

    def answer(self) -> RoundAnswer:
        """What came of it. OSError: there was no process."""
        return self.ended.result() if self.ended.done() else RoundAnswer(error="the process does not end")

    def break_off(self) -> None:
        """Have it come to its end soon; may be called again."""
        self._have(RoundProcess.leave)

    async def end(self) -> None:
        """Have it break off, and make it end if it does not."""
        if self.ended.done():
            return
        self.break_off()
        if await self.has_ended_within(END_SECONDS):
            return
        self._have(RoundProcess.kill)
        if not await self.has_ended_within(END_SECONDS):
            _log.warning("a round's process was killed, and has not ended: its storage hangs, maybe")

    def _have(self, order: _Order) -> None:
        with self._lock:
            process = self._process
            if process is None:
                self._orders.append(order)
                return
        order(process)

    def _run(self, request: RoundRequest, is_urgent: bool) -> None:
        try:
            process = RoundProcess(request, is_urgent=is_urgent)
            with self._lock:
                self._process = process
            for order in self._orders:
                order(process)
            answer = process.wait()
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            self._tell(self._failed, as_value(error))
        else:
            self._tell(self._succeeded, answer)

    def _tell(self, callback: Callable[[T], None], what: T) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(callback, what)

    def _succeeded(self, answer: RoundAnswer) -> None:
        self.ended.set_result(answer)

    def _failed(self, error: Exception) -> None:
        self.ended.set_exception(error)
        self.ended.exception()  # seen: whoever waited may be gone
