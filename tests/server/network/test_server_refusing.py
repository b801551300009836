"""A network that refuses clients for a while: it lets go of those that it has, and comes back."""

import asyncio
import socket
from typing import Any

import pytest

from sparklog_server.protocol.wire import Response
from tests.server.network.conftest import Served, request, response, serving, until
from tests.server.network.test_connection import Run

WHY = "nothing can be answered"


async def answered_at_once(*_: Any) -> Response:
    return Response(chunks=[b"answer"])


async def is_ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionResetError:
        return True


async def answers(served: Served) -> None:
    reader, writer = await served.connect()
    writer.write(request(1))
    assert (await response(reader))[0] == 1


async def is_refused(served: Served) -> bool:
    try:
        await served.connect()
    except ConnectionRefusedError:
        return True
    return False


def test_it_lets_go_of_clients_and_has_them_back(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparklog_server.network.server.ANSWERED_WITHIN_S", 600)  # nobody waits for anything

    async def main() -> None:
        async with serving(answered_at_once) as served:
            reader, _ = await served.connect()
            await until(lambda: len(served.network.connections) == 1)
            served.network.refuse(WHY)
            assert await is_ended(reader)
            assert await is_refused(served)
            served.network.listen()
            await answers(served)

    run(main)


@pytest.mark.parametrize("pipelined", [True, False])
def test_what_is_answered_soon_is_still_told(run: Run, pipelined: bool) -> None:
    async def main() -> None:
        may_answer, has_begun = asyncio.Event(), asyncio.Event()

        async def handle(*_: Any) -> Any:
            has_begun.set()
            await may_answer.wait()
            return Response(chunks=[b"answer"])

        async with serving(handle, pipelined=pipelined) as served:
            reader, writer = await served.connect()
            writer.write(request(1))
            await has_begun.wait()
            served.network.refuse(WHY)
            may_answer.set()
            assert (await response(reader))[0] == 1
            assert await is_ended(reader)

    run(main)


@pytest.mark.slow
@pytest.mark.parametrize("pipelined", [True, False])
def test_nobody_waits_for_what_is_never_answered(run: Run, pipelined: bool) -> None:
    async def main() -> None:
        may_end, has_begun = asyncio.Event(), asyncio.Event()

        async def handle(*_: Any) -> Any:
            has_begun.set()
            await may_end.wait()

        async with serving(handle, pipelined=pipelined) as served:
            reader, writer = await served.connect()
            writer.write(request(1))
            await has_begun.wait()
            served.network.refuse(WHY)
            assert await is_ended(reader)
            may_end.set()

    run(main)


@pytest.mark.parametrize("turns", range(6))
def test_who_is_accepted_in_that_moment_is_let_go(
    run: Run, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    monkeypatch.setattr("sparklog_server.network.server.ANSWERED_WITHIN_S", 600)

    async def main() -> None:
        async with serving(answered_at_once) as served:
            with socket.create_connection(("127.0.0.1", served.port)) as client:
                for _ in range(turns):
                    await asyncio.sleep(0)
                served.network.refuse(WHY)
                client.setblocking(False)
                reader, writer = await asyncio.open_connection(sock=client)
                assert await is_ended(reader)
                writer.close()

    run(main)


def test_it_listens_only_between_start_and_stop(run: Run) -> None:
    async def main() -> None:
        async with serving(answered_at_once, starts=False) as served:
            served.network.refuse(WHY)
            served.network.listen()
            assert await is_refused(served)
            served.network.start()
            await answers(served)
            served.network.refuse(WHY)
        served.network.listen()

    run(main)


def test_who_has_not_begun_to_listen_may_be_told_to_refuse(run: Run) -> None:
    async def main() -> None:
        async with serving(answered_at_once, starts=False) as served:
            served.network.refuse(WHY)
            served.network.start()
            assert await is_refused(served)
            served.network.listen()
            await answers(served)

    run(main)
