"""Budgets: how many bytes clients can make a broker hold, for their requests, for the work, for the answers.

Invariants: what was taken is given back, once.
Memory: a frame takes bytes from its budget as they arrive, not as they are announced, so that clients which
    only announce keep nobody out. That could end with all of the budget in unfinished frames, none of which
    can be finished; so one holder at a time may overdraw. Bytes held: at most the budget plus one largest
    frame.
Shares: an owner (an address) may hold a third of what is free. One alone gets a quarter of the budget, n
    greedy ones 1/(n+3) each: the more owners there are, the smaller is the share of each, and 3/(n+3) stays
    free for others. What needs more than its owner's share waits for the overdraft, of which there is one for
    all owners: else a few addresses that stall large frames would fill the budget, and keep small requests
    out.
Order: what waits within its share is served as soon as there is room, smallest first. The overdraft goes to
    the smallest and to the one that has waited longest in turns, so that neither keeps the other out.
Not here: batches that threads decompress (publish/produced_batches.py, CheckMemory), and batches that wait to
    be published (publish/backlog.py).
Concurrency: event loop only.
Sources: Kafka SocketServer (MemoryPool), KIP-72; Choudhury and Hahne, Dynamic Queue Length Thresholds for
    Shared-Memory Packet Switches (1998).
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

FREE_PARTS: Final = 3  # an owner may hold one of so many of what is free


class Budget:
    """So many bytes, held by many. A holder is one frame that is read or worked on, or one answer.

    An owner "" has no share: it may hold all.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._used_by: Counter[str] = Counter()
        self._waiting: list[_Waiting] = []  # in the order in which they came
        self._overdrawn_by: object | None = None
        self._overdrawn_bytes = 0  # which come on top of the limit
        self._overdrafts = 0

    @property
    def waiting(self) -> int:
        """How many frames wait for room."""
        return len(self._waiting)

    @property
    def owners(self) -> set[str]:
        """The owners that hold some."""
        return set(self._used_by)

    def try_take(self, size: int, owner: str = "") -> bool:
        """Take room if there is some within the owner's share. It may pass those that wait for more."""
        if not self._fits(size, owner):
            return False
        self._add(size, owner)
        return True

    async def take(self, holder: object, size: int, owner: str = "") -> None:
        """Take room for a frame, waiting for it if needed."""
        if self._overdrawn_by is holder:
            self._overdrawn_bytes += size
            self._add(size, owner)
            return
        if self.try_take(size, owner):
            return
        granted = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(holder, size, owner, granted))
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.give_back(holder, size, owner)  # granted just before: the caller will never know
            else:
                self._grant()
            raise

    def overdraw(self, size: int, owner: str = "") -> None:
        """Count what is there already, room or not: others wait for it, too."""
        self._add(size, owner)

    def give_back(self, holder: object, size: int, owner: str = "") -> None:
        """Return all that a frame took."""
        self._add(-size, owner)
        if self._overdrawn_by is holder:
            self._overdrawn_by, self._overdrawn_bytes = None, 0
        self._grant()

    def _fits(self, size: int, owner: str) -> bool:
        held = self._used_by[owner] + size if owner else 0
        return FREE_PARTS * held <= self.limit_bytes + self._overdrawn_bytes - self.used_bytes - size

    def _grant(self) -> None:
        """Serve what waits, as the module's docstring says."""
        self._waiting = [one for one in self._waiting if not one.granted.done()]
        for one in sorted(self._waiting, key=_size):
            if self._fits(one.size, one.owner):
                self._serve(one)
        if self._waiting and self._overdrawn_by is None:
            self._overdrafts += 1
            one = min(self._waiting, key=_size) if self._overdrafts % 2 else self._waiting[0]
            self._overdrawn_by, self._overdrawn_bytes = one.holder, one.size
            self._serve(one)

    def _serve(self, one: "_Waiting") -> None:
        self._waiting.remove(one)
        self._add(one.size, one.owner)
        one.granted.set_result(None)

    def _add(self, size: int, owner: str) -> None:
        self.used_bytes += size
        if owner:
            self._used_by[owner] += size
            if not self._used_by[owner]:
                del self._used_by[owner]


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    holder: object
    size: int
    owner: str
    granted: "asyncio.Future[None]"


def _size(one: _Waiting) -> int:
    return one.size


class Held:
    """What one request holds of a budget: its bytes, its work or its answer; given back once.

    Args:
        owner: an address, which has a share of the budget.
        before_waiting: called where there is no room immediately.
    """

    __slots__ = ("_before_waiting", "_budget", "_owner", "_taken")

    def __init__(
        self, budget: Budget, owner: str = "", before_waiting: Callable[[], None] | None = None
    ) -> None:
        self._budget = budget
        self._owner = owner
        self._before_waiting = before_waiting
        self._taken = 0

    @property
    def is_held(self) -> bool:
        """True if others may wait for it."""
        return self._taken > 0

    async def take(self, size: int) -> bool:
        """Take so much more. Before it waits, it gives back what others must not wait for.

        Returns: True if it had to wait.
        """
        waits = not self._budget.try_take(size, self._owner)
        if waits:
            self.give_way()
            await self._budget.take(self, size, self._owner)
        self._taken += size
        return waits

    def give_way(self) -> None:
        """Give back what others must not wait for: the holder begins to wait."""
        if self._before_waiting is not None:
            self._before_waiting()

    def raise_to(self, size: int) -> None:
        """Count what turned out to be more than was taken. It exists already, so it does not wait."""
        if size > self._taken:
            self._budget.overdraw(size - self._taken, self._owner)
            self._taken = size

    def release(self) -> None:
        """Give all of it back; may be called again."""
        taken, self._taken = self._taken, 0
        if taken:
            self._budget.give_back(self, taken, self._owner)
