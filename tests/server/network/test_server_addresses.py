"""Which addresses a listener has, and what several of them share."""

import asyncio
import socket

import pytest

from tests.server.network.conftest import request, response, serving, until
from tests.server.network.test_connection import Run, echo


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
@pytest.mark.parametrize("host", ["", "*", "[::]"])
def test_everywhere_is_every_address_of_both_families(run: Run, host: str) -> None:
    """As with Kafka: `localhost` is ::1 first for most clients."""

    async def main() -> None:
        async with serving(echo, {"listeners": f"PLAINTEXT://{host}:0"}) as served:
            port = served.network.listeners[0].address.port
            for number, address in enumerate(("127.0.0.1", "::1")):
                reader, writer = await asyncio.open_connection(address, port)
                writer.write(request(number))
                assert (await response(reader))[0] == number
                writer.close()

    run(main)


def test_listeners_share_the_connections_there_may_be(run: Run) -> None:
    """Each waited for room by itself, and each took what there was."""

    async def main() -> None:
        listeners = "PLAINTEXT://127.0.0.1:0,INSIDE://127.0.0.1:0"
        configs = {
            "listeners": listeners,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
            "max.connections": "1",
        }
        async with serving(echo, configs) as served:
            ports = [one.address.port for one in served.network.listeners]
            # In the one more place, which is kept for this machine.
            _, own = await asyncio.open_connection("127.0.0.1", ports[0])
            await until(lambda: served.network.shared.quota.count == 1)
            both = [await asyncio.open_connection("127.0.0.1", port) for port in ports]
            await until(lambda: served.network.shared.quota.count > 1)
            for number, (_, writer) in enumerate(both):
                writer.write(request(number))
            answers = [asyncio.create_task(response(reader)) for reader, _ in both]
            (first,), (second,) = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
            number = (await first)[0]
            assert served.network.shared.quota.count == 2
            both[number][1].close()
            assert (await second)[0] == 1 - number
            both[1 - number][1].close()
            own.close()

    run(main)
