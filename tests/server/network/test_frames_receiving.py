"""Bytes from a socket: those that were asked for, without keeping the loop busy or to itself."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.clock import ManualClock
from sparklog_server.network.frames import IN_A_ROW, FrameError, FrameReader, SocketReceiver
from sparklog_server.runtime.budget import Budget
from tests.server.network.conftest import request, response, serving, until

Run = Callable[[Any], Any]


@contextlib.contextmanager
def pair() -> Iterator[tuple[SocketReceiver, socket.socket, socket.socket]]:
    """A receiver, its socket, and the other side's."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    receiver = SocketReceiver(ours)
    try:
        yield receiver, ours, theirs
    finally:
        receiver.close()
        ours.close()
        theirs.close()


async def received(receiver: SocketReceiver, size: int) -> bytes:
    buffer = bytearray(size)
    count = await receiver.receive_into(memoryview(buffer))
    return bytes(buffer[:count])


def test_what_is_there_and_what_comes_later(run: Run) -> None:
    async def main() -> None:
        with pair() as (receiver, _, theirs):
            theirs.send(b"abcdef")
            assert await received(receiver, 4) == b"abcd"
            assert not receiver.is_watched, "it was there: nothing had to be waited for"
            assert await received(receiver, 4) == b"ef"
            waiting = asyncio.ensure_future(received(receiver, 100))
            await until(lambda: receiver.is_watched)
            theirs.send(b"later")
            assert await waiting == b"later"
            theirs.close()
            assert await received(receiver, 100) == b""

    run(main)


def test_the_loop_is_told_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Loop:
        def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
            self._loop = loop
            self.told = 0

        def add_reader(self, *args: Any) -> None:
            self.told += 1
            self._loop.add_reader(*args)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._loop, name)

    async def main() -> None:
        loop = Loop(asyncio.get_running_loop())
        monkeypatch.setattr("sparklog_server.network.frames.asyncio.get_running_loop", lambda: loop)
        with pair() as (receiver, _, theirs):
            for number in range(50):
                waiting = asyncio.ensure_future(received(receiver, 100))
                await asyncio.sleep(0)
                theirs.send(b"%d" % number)
                assert await waiting == b"%d" % number
        assert loop.told == 1
        monkeypatch.undo()

    run(main)


def test_what_nobody_asks_for_stays_where_it_is(run: Run) -> None:
    """The loop would find the socket readable in every turn."""

    async def main() -> None:
        with pair() as (receiver, ours, theirs):
            waiting = asyncio.ensure_future(received(receiver, 3))
            await until(lambda: receiver.is_watched)
            theirs.send(b"abcdef")
            assert await waiting == b"abc"
            await until(lambda: not receiver.is_watched)
            assert ours.recv(100, socket.MSG_PEEK) == b"def"
            assert await received(receiver, 100) == b"def"

    run(main)


def test_who_always_sends_leaves_others_their_turns(run: Run) -> None:
    async def main() -> None:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        with pair() as (receiver, _, theirs):
            theirs.send(bytes(10 * IN_A_ROW))
            task = asyncio.create_task(other())
            for _ in range(10 * IN_A_ROW):
                assert await received(receiver, 1) == b"\0"
            task.cancel()
        assert turns >= 8

    run(main)


def test_a_connection_that_is_lost_is_an_error(run: Run) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            theirs = socket.create_connection(server.getsockname())
            ours, _ = server.accept()
        ours.setblocking(False)
        receiver = SocketReceiver(ours)
        waiting = asyncio.ensure_future(received(receiver, 3))
        await until(lambda: receiver.is_watched)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()
        with pytest.raises(ConnectionResetError):
            await waiting
        receiver.close()
        ours.close()

    run(main)


def test_who_stops_waiting_is_not_told(run: Run) -> None:
    async def main() -> None:
        with pair() as (receiver, ours, theirs):
            waiting = asyncio.ensure_future(received(receiver, 3))
            await until(lambda: receiver.is_watched)
            theirs.send(b"abc")
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await received(receiver, 3) == b"abc"
            receiver.close()
            assert not asyncio.get_running_loop().remove_reader(ours), "it is looked at no more"

    run(main)


def test_a_connection_that_ended_is_not_looked_at(run: Run) -> None:
    async def main() -> None:
        async def handler(_body: Any, _context: Any, _services: Any) -> None:
            return None

        async with serving(handler) as served:
            for number in range(3):
                reader, writer = await served.connect()
                await until(lambda: len(served.network.connections) == 1)
                (connection,) = served.network.connections.values()
                writer.write(request(number, key=18))
                assert (await response(reader))[0] == number
                receiver = connection.receiver
                await until(lambda: receiver.is_watched)  # noqa: B023 - of this round
                connection.abort()
                await until(lambda: not served.network.connections)
                assert not receiver.is_watched

    run(main)


class Pieces(SocketReceiver):
    """A receiver that has its bytes from elsewhere, in pieces of these sizes."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:  # of no socket
        self._data, self._sizes = data, sizes
        self.most = 0

    async def receive_into(self, buffer: memoryview) -> int:
        self.most = max(self.most, len(buffer))
        size = min(len(buffer), self._sizes.pop(0) if self._sizes else 1 << 30)
        piece, self._data = self._data[:size], self._data[size:]
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        """Nothing to do."""


@given(
    frames=st.lists(
        st.sampled_from([1, 3, 4000, 8187, 8188, 8189, 65_536, 65_537, 200_000]), min_size=1, max_size=6
    ),
    sizes=st.lists(st.sampled_from([1, 2, 3, 5, 100, 8192, 70_000]), max_size=40),
    cut=st.integers(0, 3),
)
def test_frames_are_whole_however_they_come(frames: list[int], sizes: list[int], cut: int) -> None:
    contents = [bytes([number + 1]) * size for number, size in enumerate(frames)]
    data = b"".join(struct.pack(">i", len(one)) + one for one in contents)
    budget = Budget(1 << 20)

    async def main() -> list[bytes]:
        receiver = Pieces(data[: len(data) - cut], list(sizes))
        reader = FrameReader(receiver, budget, ManualClock(), 1 << 18)
        found = []
        while (frame := await reader.read()) is not None:
            found.append(bytes(frame.data))
            frame.release()
        assert receiver.most <= 65_536 * 3
        return found

    if cut:
        with pytest.raises(FrameError):
            asyncio.run(main())
    else:
        assert asyncio.run(main()) == contents
    assert budget.used_bytes == 0
