"""What keeps the server finite: connections, requests being worked on, bytes of requests.

Invariants: what was taken is given back, once; whoever waits is served in order.
Memory: a frame takes bytes from the budget as they arrive, not as they are announced, so that clients
    which only announce keep nobody out. That could end with all of the budget in unfinished frames, none of
    which can be finished; so one frame at a time may overdraw. Bytes held: at most the budget plus one
    largest frame. An address has a share of it, so that a few connections keep nobody else out.
Concurrency: event loop only.
Sources: Kafka SocketServer (ConnectionQuotas, MemoryPool), RequestChannel (queue of 500).
"""

import asyncio
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

from sparklog_server.settings.addresses import is_loopback

_FOR_LOOPBACK = 1
SHARES = 4  # an address may have one of them of the bytes of requests, of answers, of work


class ByteBudget:
    """Bytes that are held at once. A holder is one frame being read or worked on, or one answer.

    Args:
        share_bytes: of it for one owner (an address); one of its frames at a time may go beyond.
    """

    def __init__(self, limit_bytes: int, share_bytes: int | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.share_bytes = limit_bytes if share_bytes is None else share_bytes
        self.used_bytes = 0
        self._used_by: Counter[str] = Counter()
        self._waiting: deque[_Waiting] = deque()
        self._overdrawn_by: object | None = None
        self._over_share: dict[str, object] = {}

    @property
    def waiting(self) -> int:
        """How many frames wait for room."""
        return len(self._waiting)

    @property
    def owners(self) -> set[str]:
        """Who holds some, or waits to hold more than a share."""
        return {*self._used_by, *self._over_share}

    def try_take(self, size: int, owner: str = "") -> bool:
        """Take room if there is some and nobody waits."""
        if self._waiting or self.used_bytes + size > self.limit_bytes:
            return False
        if owner and self._used_by[owner] + size > self.share_bytes:
            return False
        self._add(size, owner)
        return True

    async def take(self, holder: object, size: int, owner: str = "") -> None:
        """Take room for a frame, waiting for it if needed."""
        if self._overdrawn_by is holder:
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
            self._overdrawn_by = None
        if self._over_share.get(owner) is holder:
            del self._over_share[owner]
        self._grant()

    def _grant(self) -> None:
        """Serve whoever waits, in order; an owner that has used up its share keeps nobody else waiting."""
        passed_over: list[_Waiting] = []
        while self._waiting:
            one = self._waiting[0]
            if not one.granted.done():
                if not self._is_within_share(one):
                    passed_over.append(self._waiting.popleft())
                    continue
                if self.used_bytes + one.size > self.limit_bytes:
                    if self._overdrawn_by is not None:
                        break
                    self._overdrawn_by = one.holder
                if one.owner and self._used_by[one.owner] + one.size > self.share_bytes:
                    self._over_share[one.owner] = one.holder
                self._add(one.size, one.owner)
                one.granted.set_result(None)
            self._waiting.popleft()
        self._waiting.extendleft(reversed(passed_over))

    def _is_within_share(self, one: "_Waiting") -> bool:
        if not one.owner or self._used_by[one.owner] + one.size <= self.share_bytes:
            return True
        return self._over_share.get(one.owner, one.holder) is one.holder

    def _add(self, size: int, owner: str) -> None:
        self.used_bytes += size
        if owner:
            self._used_by[owner] += size
            if not self._used_by[owner]:
                del self._used_by[owner]


@dataclass(frozen=True, slots=True)
class _Waiting:
    holder: object
    size: int
    owner: str
    granted: "asyncio.Future[None]"


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
