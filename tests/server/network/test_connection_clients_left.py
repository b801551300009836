"""Clients of waiting requests that are gone, whatever they sent before they left."""

import asyncio
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.server.network.conftest import request, serving, until
from tests.server.network.test_connection import Run


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """How often connections are looked at is a matter of real time."""
    monkeypatch.setattr("sparklog_server.network.server.LOOK_MS", 10)


def _close(sock: socket.socket) -> None:
    sock.close()


def _reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def _send_no_more(sock: socket.socket) -> None:
    sock.shutdown(socket.SHUT_WR)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody can be asked")
@pytest.mark.parametrize("leave", [_close, _reset, _send_no_more])
@pytest.mark.parametrize("behind", [b"", b"\0", request(2), bytes(10_000)])
def test_what_a_client_sent_behind_its_request_does_not_keep_it_there(
    run: Run, leave: Callable[[socket.socket], None], behind: bytes
) -> None:
    """43 clients that had gone held all the room of Fetches that wait, for as long as they had asked for."""

    async def main() -> None:
        begun = asyncio.Event()

        async def handler(_request: Any, _context: Any, _broker: Any) -> None:
            begun.set()
            await asyncio.Event().wait()

        async with serving(handler, waits=True) as served:
            address = "127.0.0.1", served.port
            with socket.create_connection(address) as stays, socket.create_connection(address) as other:
                for sock in (stays, other):
                    sock.sendall(request(1))
                    await begun.wait()
                    begun.clear()
                    sock.sendall(behind)
                looked = served.network.looks
                await until(lambda: served.network.looks > looked + 1)
                assert len(served.network.connections) == 2
                leave(other)
                await until(lambda: len(served.network.connections) == 1)
                looked = served.network.looks
                await until(lambda: served.network.looks > looked + 1)
                assert len(served.network.connections) == 1

    run(main)
