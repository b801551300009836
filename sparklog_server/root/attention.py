"""Does anybody wait for news of the root? While nobody does, it need not be asked for them.

On an object store each look at the metadata log is a request, and one after the other they are what an idle
broker costs. So the log is followed as often as sparklog.metadata.poll.ms says while requests are worked on,
waiting fetches among them, and for a moment after each; else seldom. A request that finds the log followed
seldom waits for a look first: no answer rests on an older image than it would among others.

Invariants: whoever has begun ends, once. Nobody waits for a look longer than LOOK_SECONDS: what may be
    answered on an image that is older is for the role to say (cluster/membership.py).
Not here: looking (cluster/following.py).
Concurrency: event loop only.
"""

import asyncio
import contextlib
from collections.abc import Callable
from time import monotonic
from typing import Final

LINGER_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 1.0


class Attention:
    """See the module's docstring."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._wanting = 0
        self._last = -LINGER_SECONDS
        self._napping: asyncio.Future[None] | None = None  # until somebody wants news
        self._looked: asyncio.Future[None] | None = None

    @property
    def is_paid(self) -> bool:
        """Does anybody want news, or did a moment ago?"""
        return self._wanting > 0 or self._now() - self._last < LINGER_SECONDS

    @property
    def is_napping(self) -> bool:
        """Is nobody looking, and would whoever came now wait for a look? Not so yet when no attention is
        paid any more, but a look among others is under way: that may not find what has come since it began.
        """
        return self._napping is not None and not self._napping.done()

    async def begin(self) -> None:
        """Want news until `end`; the newest image is shown when this returns, as far as it can be had."""
        self._wanting += 1
        if self._napping is not None and not self._napping.done():
            self._napping.set_result(None)
        if self._looked is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await asyncio.shield(self._looked)

    def end(self) -> None:
        """After `begin`, also one that was cancelled."""
        self._wanting -= 1
        self._last = self._now()

    async def nap(self, seconds: float) -> None:
        """Until somebody wants news, or so long. Whoever comes waits for `has_looked`."""
        loop = asyncio.get_running_loop()
        self._napping = loop.create_future()
        self._looked = loop.create_future()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._napping

    def has_looked(self) -> None:
        """The log was looked at after the nap, or could not be."""
        looked, self._looked, self._napping = self._looked, None, None
        if looked is not None and not looked.done():
            looked.set_result(None)
