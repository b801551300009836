"""What keeps the server finite: connections, requests being worked on, bytes of requests.

Invariants: what was taken is given back, once.
Memory: a frame takes bytes from the budget as they arrive, not as they are announced, so that clients
    which only announce keep nobody out. That could end with all of the budget in unfinished frames, none of
    which can be finished; so one frame at a time may overdraw. Bytes held: at most the budget plus one
    largest frame.
Shares: an owner (an address) may hold a third of what is free. One alone gets a quarter of the budget, n
    greedy ones 1/(n+3) each: the more owners there are, the smaller is the share of each, and 3/(n+3) stays
    free for others. What needs more than its owner's share waits for the overdraft, which is one for all
    owners: else a few addresses that stall large frames would fill the budget, and keep small requests out.
Order: what waits within its share is served as soon as there is room, smallest first. The overdraft goes to
    the smallest and to the one that has waited longest in turns, so that neither keeps the other out.
Concurrency: event loop only.
Sources: Kafka SocketServer (ConnectionQuotas, MemoryPool), RequestChannel (queue of 500); Choudhury and
    Hahne, Dynamic Queue Length Thresholds for Shared-Memory Packet Switches (1998).
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sparklog_server.settings.addresses import is_loopback

_FOR_LOOPBACK = 1
FREE_PARTS: Final = 3  # an owner may hold one of so many of what is free


class ByteBudget:
    """Bytes that are held at once. A holder is one frame being read or worked on, or one answer.

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


class ConnectionQuota:
    """How many connections there may be, in all and from one address.

    One more is kept for this machine itself: a limit that is too low could else be raised by nobody, who
    would need a connection for that.
    """

    def __init__(self, max_connections: int, max_per_ip: int, overrides: Mapping[str, int]) -> None:
        self._max_connections = max_connections
        self._max_per_ip = max_per_ip
        self._overrides = overrides
        self._by_ip: Counter[str] = Counter()
        self._room = asyncio.Event()
        self._room.set()
        self.count = 0

    def change(self, max_connections: int, max_per_ip: int, overrides: Mapping[str, int]) -> None:
        """Other limits from now on; connections that are too many already go on."""
        self._max_connections = max_connections
        self._max_per_ip = max_per_ip
        self._overrides = overrides
        self._room.set()

    async def wait_for_room(self) -> None:
        """Wait until another connection may be accepted: until then they queue in the kernel."""
        while self.count >= self._max_connections + _FOR_LOOPBACK:
            self._room.clear()
            await self._room.wait()

    def has_room_for(self, ip: str) -> bool:
        """Or is what is left for this machine itself alone?"""
        return self.count < self._max_connections or is_loopback(ip)

    def try_add(self, ip: str) -> bool:
        """Count a connection in; False: this address has too many."""
        if self._by_ip[ip] >= self._overrides.get(ip, self._max_per_ip):
            return False
        self._by_ip[ip] += 1
        self.count += 1
        return True

    def remove(self, ip: str) -> None:
        """Count a connection out."""
        self.count -= 1
        self._by_ip[ip] -= 1
        if not self._by_ip[ip]:
            del self._by_ip[ip]
        self._room.set()
