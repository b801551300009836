"""What keeps the server finite: connections, requests being worked on, bytes of requests.

Invariants: what was taken is given back, once; whoever waits is served in order.
Memory: a frame takes bytes from the budget as they arrive, not as they are announced, so that clients
    which only announce keep nobody out. That could end with all of the budget in unfinished frames, none of
    which can be finished; so one frame at a time may overdraw. Bytes held: at most the budget plus one
    largest frame.
Concurrency: event loop only.
Sources: Kafka SocketServer (ConnectionQuotas, MemoryPool), RequestChannel (queue of 500).
"""

import asyncio
from collections import Counter, deque
from collections.abc import Mapping


class ByteBudget:
    """Bytes of requests that are held at once. A holder is one frame being read or worked on."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._waiting: deque[tuple[object, int, asyncio.Future[None]]] = deque()
        self._overdrawn_by: object | None = None

    @property
    def waiting(self) -> int:
        """How many frames wait for room."""
        return len(self._waiting)

    def try_take(self, size: int) -> bool:
        """Take room if there is some and nobody waits."""
        if self._waiting or self.used_bytes + size > self.limit_bytes:
            return False
        self.used_bytes += size
        return True

    async def take(self, holder: object, size: int) -> None:
        """Take room for a frame, waiting for it if needed."""
        if self._overdrawn_by is holder:
            self.used_bytes += size
            return
        if self.try_take(size):
            return
        granted = asyncio.get_running_loop().create_future()
        self._waiting.append((holder, size, granted))
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.used_bytes -= size  # granted just before: the caller will never know
            self._grant()
            raise

    def give_back(self, holder: object, size: int) -> None:
        """Return all that a frame took."""
        self.used_bytes -= size
        if self._overdrawn_by is holder:
            self._overdrawn_by = None
        self._grant()

    def _grant(self) -> None:
        while self._waiting:
            holder, size, granted = self._waiting[0]
            if not granted.done():
                if self.used_bytes + size > self.limit_bytes:
                    if self._overdrawn_by is not None:
                        return
                    self._overdrawn_by = holder
                self.used_bytes += size
                granted.set_result(None)
            self._waiting.popleft()


class ConnectionQuota:
    """How many connections there may be, in all and from one address."""

    def __init__(self, max_connections: int, max_per_ip: int, overrides: Mapping[str, int]) -> None:
        self._max_connections = max_connections
        self._max_per_ip = max_per_ip
        self._overrides = overrides
        self._by_ip: Counter[str] = Counter()
        self._room = asyncio.Event()
        self._room.set()
        self.count = 0

    async def wait_for_room(self) -> None:
        """Wait until another connection may be accepted: until then they queue in the kernel."""
        while self.count >= self._max_connections:
            self._room.clear()
            await self._room.wait()

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
