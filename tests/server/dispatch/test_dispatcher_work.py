"""Requests that name thousands are decoded when there is room for what comes of them."""

import asyncio
import struct
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sparklog_server.dispatch import dispatcher
from sparklog_server.dispatch.dispatcher import ELEMENT_BYTES, WORK_BYTES
from sparklog_server.protocol.wire import CloseConnectionError, Response
from tests.server.network.conftest import request, response, serving, until

Run = Callable[[Any], Any]
FEW, MANY = dispatcher.FEW_ELEMENTS, 20_000


def topics(count: int) -> bytes:
    """Metadata's body in version 0."""
    return struct.pack(">i", count) + b"\x00\x01t" * count


@pytest.mark.parametrize("kind", [{}, {"pipelined": True}, {"waits": True, "counts": True}])
def test_what_names_thousands_waits_for_those_before_it(run: Run, kind: dict[str, Any]) -> None:
    """A hundred Produce requests of 8,000 parts at once took 468 MiB; FindCoordinators of 12,000 keys 118."""
    begun: list[int] = []
    gate = asyncio.Event()

    async def handler(asked: Any, context: Any, _broker: Any) -> Response:
        begun.append(len(asked.topics))
        if len(asked.topics) == MANY:
            await gate.wait()
        return Response(chunks=[b"x"])

    async def main() -> None:
        async with serving(handler, **kind) as served:
            large = [await served.connect() for _ in range(10)]
            for _, writer in large:
                writer.write(request(1, topics(MANY)))
            await until(lambda: served.dispatcher.work.waiting > 0)
            reader, writer = await served.connect()
            for correlation_id in range(5):  # who names few waits for nobody
                writer.write(request(correlation_id, topics(FEW)))
                assert (await response(reader))[0] == correlation_id
            at_once = begun.count(MANY)
            # The share of an address, and one request that may go beyond it.
            assert at_once * MANY * ELEMENT_BYTES <= WORK_BYTES // 4 + MANY * ELEMENT_BYTES
            gate.set()
            for reader, _ in large:
                assert (await response(reader))[0] == 1
            assert begun.count(MANY) == len(large)

    run(main)


def test_what_waits_for_long_gives_its_room_back_before(run: Run) -> None:
    """Ten ShareFetches that name thousands wait for records at the same time."""
    begun: list[int] = []
    gate = asyncio.Event()

    async def handler(_asked: Any, context: Any, _broker: Any) -> Response:
        begun.append(context.correlation_id)
        context.end_work()
        await gate.wait()
        return Response(chunks=[b"x"])

    async def main() -> None:
        async with serving(handler, waits=True, counts=True) as served:
            large = [await served.connect() for _ in range(10)]
            for number, (_, writer) in enumerate(large):
                writer.write(request(number, topics(MANY)))
            await until(lambda: len(begun) == len(large))
            assert served.dispatcher.work.used_bytes == served.dispatcher.work.waiting == 0
            gate.set()
            for number, (reader, _) in enumerate(large):
                assert (await response(reader))[0] == number

    run(main)


def test_it_is_given_back_whatever_becomes_of_the_request(run: Run) -> None:
    async def handler(asked: Any, context: Any, _broker: Any) -> Response | None:
        match context.correlation_id:
            case 0:
                raise CloseConnectionError("as acks=0")
            case 1:
                raise RuntimeError("a bug")
            case 2:
                return None
            case _:
                await asyncio.Event().wait()
                raise AssertionError

    async def main() -> None:
        async with serving(handler, pipelined=True) as served:
            network = served.network
            for correlation_id in range(3):
                _, writer = await served.connect()
                writer.write(request(correlation_id, topics(FEW + 1)))
            await until(
                lambda: served.dispatcher.work.used_bytes == 0 and network.shared.budget.used_bytes == 0
            )
            _, waiting = await served.connect()
            waiting.write(request(3, topics(MANY)))
            await until(lambda: served.dispatcher.work.used_bytes == MANY * ELEMENT_BYTES)
            _, behind = await served.connect()
            behind.write(request(4, topics(MANY)))
            await until(lambda: served.dispatcher.work.waiting == 1)
            behind.close()
            for connection in list(network.connections.values()):
                connection.abort()
            await until(lambda: not served.dispatcher.work.waiting and not served.dispatcher.work.used_bytes)

    run(main)


MUCH: Any = SimpleNamespace(elements=dispatcher.MANY_ELEMENTS + 1)  # what examining a request returned
LITTLE: Any = SimpleNamespace(elements=dispatcher.MANY_ELEMENTS)


def test_others_have_turns_between_requests_that_name_thousands(run: Run) -> None:
    """A hundred at once were all walked over before a bystander was answered."""

    async def main() -> None:
        turns = dispatcher.Turns()
        walked_at: list[tuple[int, Any]] = []
        turn = 0

        async def examine(size: int, found: Any) -> None:
            def walk() -> Any:
                walked_at.append((turn, found))
                return found

            assert await turns.examine(size, walk) is found

        sent = [(60_000, MUCH)] * 20 + [(60_000, LITTLE)] * 5 + [(dispatcher.SMALL_FRAME_BYTES, MUCH)] * 5
        tasks = [asyncio.ensure_future(examine(*one)) for one in sent]
        while not all(one.done() for one in tasks):
            turn += 1
            await asyncio.sleep(0)
        first_turn = [found for at, found in walked_at if at == 1]
        assert len(first_turn) == 1 + 5  # the first, and those that are too small to be put off
        later = Counter(at for at, found in walked_at if at > 1 and found is MUCH)
        assert sorted(later.values()) == [1] * 19
        await examine(60_000, LITTLE)

    run(main)


def test_who_is_cancelled_while_others_have_their_turn_holds_nobody_up(run: Run) -> None:
    async def main() -> None:
        turns = dispatcher.Turns()
        waiting = [asyncio.ensure_future(turns.examine(60_000, lambda: MUCH)) for _ in range(5)]
        await asyncio.sleep(0)
        for one in waiting[1::2]:
            one.cancel()
        done = await asyncio.gather(*waiting, return_exceptions=True)
        assert [one is MUCH for one in done] == [True, False, True, False, True]

    run(main)
