"""A proxy in front of a broker that hangs up when it would hand over an answer: the broker has done what was
asked for, and the client does not know.

The client's connections come here because the broker advertises this address. Requests and answers are
frames; an answer belongs to the oldest request of its connection that is not answered yet.
"""

import contextlib
import random
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator

PRODUCE = 0
INIT_PRODUCER_ID = 22


class CuttingProxy:
    """See the module's docstring.

    Args:
        cut: called with the API key before an answer is handed over; True hangs up instead.
        seen: called with every request, without the length before it.
    """

    def __init__(
        self, cut: Callable[[int], bool], seen: Callable[[bytes], object] = lambda request: None
    ) -> None:
        self._cut = cut
        self._seen = seen
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.target: tuple[str, int] | None = None
        self.cuts = 0
        self._sockets: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def close(self) -> None:
        """End everything."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in list(self._sockets):
            _hang_up(one)
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            assert self.target is not None
            try:
                broker = socket.create_connection(self.target, timeout=10)
            except OSError:  # the broker is down just now
                client.close()
                continue
            broker.settimeout(None)
            for one in (client, broker):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets.add(one)
            asked: deque[int] = deque()
            for work in (self._requests, self._answers):
                thread = threading.Thread(target=self._run, args=(work, client, broker, asked), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _run(
        self,
        work: Callable[[socket.socket, socket.socket, deque[int]], None],
        client: socket.socket,
        broker: socket.socket,
        asked: deque[int],
    ) -> None:
        with contextlib.suppress(OSError):
            work(client, broker, asked)
        for one in (client, broker):
            _hang_up(one)
            self._sockets.discard(one)

    def _requests(self, client: socket.socket, broker: socket.socket, asked: deque[int]) -> None:
        for frame in _frames(client):
            self._seen(frame[4:])
            asked.append(struct.unpack_from(">h", frame, 4)[0])
            broker.sendall(frame)

    def _answers(self, client: socket.socket, broker: socket.socket, asked: deque[int]) -> None:
        for frame in _frames(broker):
            if self._cut(asked.popleft()):
                self.cuts += 1
                return
            client.sendall(frame)


def _frames(source: socket.socket) -> Iterator[bytes]:
    """Frames with the length before them, until the end."""
    with source.makefile("rb") as file:
        while head := file.read(4):
            (size,) = struct.unpack(">i", head)
            yield head + file.read(size)


def _hang_up(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


def at_random(seed: int, share: float, keys: frozenset[int] = frozenset({PRODUCE})) -> Callable[[int], bool]:
    """Cut the first answer to some APIs, and a share of the others."""
    dice = random.Random(seed)
    lock = threading.Lock()
    first = True

    def cut(key: int) -> bool:
        nonlocal first
        with lock:
            if key not in keys:
                return False
            was_first, first = first, False
            return was_first or dice.random() < share

    return cut
