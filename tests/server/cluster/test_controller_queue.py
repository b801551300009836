"""What clients ask of a controller holds up nothing that it has to do by itself."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from sparklog.clock import ManualClock
from sparklog.metadata import Action, Image
from sparklog.storage import MemoryStore
from sparklog_server.cluster.membership import Registration
from tests.server.publish.surroundings import Surroundings
from tests.support.roots import opened

SILENT, INTERVAL_MS = 8, 50


def test_who_falls_silent_is_fenced_while_clients_ask_without_a_pause(
    store: MemoryStore, clock: ManualClock
) -> None:
    """The queue is never empty: each order that is carried out is followed by another one."""
    log = opened(store, clock)
    surroundings = Surroundings(
        log,
        broker_heartbeat_interval_ms=str(INTERVAL_MS),
        broker_session_timeout_ms=str(2 * INTERVAL_MS),
        sparklog_metadata_poll_ms="1",
    )
    root, controller = surroundings.root, surroundings.controller

    def order(_image: Image, _epoch: int) -> Sequence[Action]:
        clock.sleep_ms(INTERVAL_MS)
        return []

    async def main() -> None:
        is_fenced = asyncio.Event()

        def ask(*_done: object) -> None:
            if root.image.brokers[SILENT].is_fenced:
                is_fenced.set()
            else:
                controller.submit(order).add_done_callback(ask)

        await surroundings.membership.start()
        Registration.join(log.metadata, SILENT)
        await controller.start()
        ask()
        ask()
        try:
            async with asyncio.timeout(30):
                await is_fenced.wait()
        finally:
            await controller.stop()
            await surroundings.membership.stop()

    asyncio.run(main())
    assert surroundings.failures == []
    root.close()
    log.close()


@pytest.mark.slow
def test_the_balance_is_counted_beside_the_event_loop(
    store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks at each partition, of which there may be 200,000."""
    surroundings = Surroundings(opened(store, clock), leader_imbalance_check_interval_seconds="1")
    threads: set[str] = set()

    async def main() -> None:
        loop, is_counted = asyncio.get_running_loop(), asyncio.Event()

        def count(_image: Image, _most_percent: int) -> bool:
            threads.add(threading.current_thread().name)
            loop.call_soon_threadsafe(is_counted.set)
            return False

        monkeypatch.setattr("sparklog_server.cluster.controller.is_imbalanced", count)
        await surroundings.membership.start()
        await surroundings.controller.start()
        await asyncio.wait_for(is_counted.wait(), 30)
        await surroundings.controller.stop()
        await surroundings.membership.stop()

    asyncio.run(main())
    assert [name.rpartition("_")[0] for name in threads] == ["controller"]
    surroundings.root.close()
