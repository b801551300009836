"""Bytes from a socket, as many as there are and as there is room for, when somebody wants them.

A socket is tried first, and only if nothing has come yet is it waited for. The loop is told once that it is,
and not each time: an event loop's sock_recv_into has it look at the socket, and look no more, around every
call, of which a request of 128 KB takes three.

Invariants: nothing is received that nobody asked for, so that whoever does not ask pushes the client back by
    TCP; while bytes lie there that nobody asks for, the loop does not look at the socket (it would find it
    readable in every turn). A client that always has something to say does not keep the loop from others:
    after IN_A_ROW receptions the next one waits for the loop's turn.
The end of what the other side sends lies behind all that it sent before, which nobody may ever ask for: on
    Linux the connection itself is asked for it, elsewhere it is seen only where nothing lies before it.
Not here: frames (frames.py). TLS would be another Receiver: records in, plain bytes out.
Concurrency: event loop; one caller at a time.
Sources: asyncio's and uvloop's sock_recv_into; tcp(7), TCP_INFO; Linux net/tcp_states.h.
"""

import asyncio
import socket
import sys
from typing import Protocol

from sparklog.errors import as_value

IN_A_ROW = 8  # receptions without a turn of the loop: two requests of a usual producer
_CLOSE, _CLOSE_WAIT = 7, 8  # Linux: reset, or nothing there any more; the other side has sent all


class Receiver(Protocol):
    """Where a connection's bytes come from."""

    async def receive_into(self, buffer: memoryview) -> int:
        """At least one byte, as soon as there is one; 0: the other side has sent all. OSError: it is lost."""

    def close(self) -> None:
        """Before the socket is closed. Nobody is waiting any more."""


def has_ended(sock: socket.socket) -> bool:
    """Has the other side sent all that it will, or is it lost? Whatever lies there unread stays there."""
    if sys.platform == "linux":
        try:
            state = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        except OSError:
            pass  # no TCP
        else:
            return state[0] in {_CLOSE, _CLOSE_WAIT}
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True


class SocketReceiver:
    """A Receiver for a non-blocking socket, as it is."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop: asyncio.AbstractEventLoop | None = None  # while it looks at the socket
        self._wanted: memoryview | None = None
        self._waiter: asyncio.Future[int] | None = None
        self._in_a_row = 0

    @property
    def is_watched(self) -> bool:
        """Does the loop look at the socket?"""
        return self._loop is not None

    async def receive_into(self, buffer: memoryview) -> int:
        """See Receiver."""
        if self._in_a_row < IN_A_ROW:
            self._in_a_row += 1
            try:
                count = self._sock.recv_into(buffer)
            except (BlockingIOError, InterruptedError):
                pass
            else:
                return count
        self._in_a_row = 0
        loop = asyncio.get_running_loop()
        if self._loop is None:
            loop.add_reader(self._sock, self._on_readable)
            self._loop = loop
        waiter: asyncio.Future[int] = loop.create_future()
        self._waiter = waiter
        self._wanted = buffer
        try:
            return await waiter
        finally:
            self._waiter = self._wanted = None
            del waiter  # it may hold the exception that holds this frame

    def close(self) -> None:
        """See Receiver."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.remove_reader(self._sock)

    def _on_readable(self) -> None:
        waiter, buffer = self._waiter, self._wanted
        if waiter is None or buffer is None or waiter.done():
            self.close()  # until somebody wants what is there
            return
        try:
            count = self._sock.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            waiter.set_exception(as_value(error))
        else:
            waiter.set_result(count)
