"""What brokers ask of an object store while nobody asks anything of them (docs/internals/cluster.md)."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sparklog.client import SparkLog
from sparklog.clock import SystemClock
from sparklog.metadata import MetadataLog
from sparklog.metadata.documents.properties import HEARTBEATS
from sparklog.storage import MemoryStore
from sparklog.storage.base import StoreTraits
from sparklog_server.broker import CONTROLLER_POLL_MS, Broker
from sparklog_server.settings.config import ServerConfig

INTERVAL_MS = 250
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "broker.heartbeat.interval.ms": str(INTERVAL_MS),
    "broker.session.timeout.ms": "3600000",  # nobody is taken for dead, however slow this machine is
}
SIGNS, LOOKS, WRITES = "heartbeats", "looks at the log", "a heartbeat"


class Counting:
    """A store that is asked by one broker; what it is asked for is counted, once a name."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.asked: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name.startswith("_") or not callable(found):
            return found

        def counted(*words: Any, **options: Any) -> Any:
            named = words[0] if name == "read_many" else words[:1]
            for one in named:
                self.asked[_kind(name, str(one))] += 1
            return found(*words, **options)

        return counted


def _kind(method: str, name: str) -> str:
    if name.startswith(f"{HEARTBEATS}/"):
        return WRITES if method == "put_hint" else SIGNS
    return LOOKS if method == "read_many" and name.endswith(".json") else f"{method} {name}"


async def _asked_while_idle(node_ids: Sequence[int]) -> tuple[float, list[tuple[bool, Counter[str]]]]:
    """For how many intervals they were watched; whether each one is the controller, and what it asked for."""
    base = MemoryStore("idle", traits=StoreTraits(is_remote=True, appends_after_sync=False))
    brokers: list[tuple[Broker, Counting]] = []
    try:
        for node_id in node_ids:
            store: Any = Counting(base)
            clock = SystemClock()
            metadata = MetadataLog.open(store, clock, create=True)
            config = ServerConfig.parse({**SETTINGS, "node.id": str(node_id)})
            brokers.append((Broker(config, SparkLog(store, metadata, clock), clock), store))
            await brokers[-1][0].start()
        watched = None
        while watched is None:
            watched = await _watch(brokers)
        intervals, asked = watched
        roles = [broker.controller.is_controller for broker, _ in brokers]
        return intervals, list(zip(roles, asked, strict=True))
    finally:
        for broker, _ in brokers:
            await broker.stop(0)


async def _watch(
    brokers: Sequence[tuple[Broker, Counting]],
) -> tuple[float, list[Counter[str]]] | None:
    """Intervals, and what each asked for in them; None: one had something to commit, and was not idle."""
    newest = max(broker.root.image.commit for broker, _ in brokers)
    # Until all have seen it, and nobody cares any more.
    await _until(
        lambda: all(one.root.image.commit >= newest and not one.attention.is_active for one, _ in brokers)
    )
    began = time.monotonic()
    before = [Counter(store.asked) for _, store in brokers]
    await _until(
        lambda: all(
            store.asked[WRITES] >= was[WRITES] + 4 for was, (_, store) in zip(before, brokers, strict=True)
        )
    )
    if any(broker.root.image.commit != newest for broker, _ in brokers):
        return None
    asked = [Counter(store.asked) - was for was, (_, store) in zip(before, brokers, strict=True)]
    return (time.monotonic() - began) * 1000 / INTERVAL_MS, asked


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - there is no event for what stores are asked
            await asyncio.sleep(0.01)


@pytest.mark.slow
def test_an_idle_broker_asks_for_three_things_an_interval() -> None:
    """No more than is written in docs/internals/cluster.md; a busy machine makes it fewer."""
    intervals, asked = asyncio.run(_asked_while_idle((1, 2, 3)))
    most = intervals + 2  # what was due before, and what is due at the end
    assert [is_controller for is_controller, _ in asked] == [True, False, False]
    for is_controller, found in asked:
        assert set(found) == {WRITES, SIGNS, LOOKS}
        assert found[WRITES] <= most
        assert found[SIGNS] <= (2 * most if is_controller else most)
        assert found[LOOKS] <= most * (INTERVAL_MS / CONTROLLER_POLL_MS if is_controller else 1)
