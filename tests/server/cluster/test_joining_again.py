"""A broker that is fenced while it joins, and nobody commits anything after that."""

import asyncio
from typing import Any

import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.metadata import plan_fence_broker
from sparklog.storage import MemoryStore
from sparklog_server.cluster import joining
from sparklog_server.cluster.joined import Joined
from tests.server.publish.surroundings import Surroundings
from tests.support.roots import founded

NODE = 7


def fence(log: SparkLog) -> None:
    """By a controller that had no sign of life of this registration."""
    action = plan_fence_broker(log.image, NODE, log.image.brokers[NODE].broker_epoch)
    assert action is not None
    log.metadata.publish(lambda _: [action])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("fenced_join", [1, 2], ids=["first", "again"])
def test_who_is_fenced_while_it_joins_notices_without_another_commit(
    fenced_join: int, store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image that says so is shown before the registration is known that it ends."""
    log = founded(store, clock)
    surroundings, joins = Surroundings(log), list[Joined]()
    root, membership, join = surroundings.root, surroundings.membership, joining.join

    async def join_and_be_fenced(*arguments: Any, **named: Any) -> Joined:
        joins.append(await join(*arguments, **named))
        if len(joins) == fenced_join:
            fence(log)
            root.show()
        return joins[-1]

    async def main() -> None:
        resumed = asyncio.Event()
        membership.on_resumed(resumed.set)
        monkeypatch.setattr("sparklog_server.cluster.registering.join", join_and_be_fenced)
        await membership.start()
        if fenced_join == 2:
            fence(log)
            root.show()
        await resumed.wait()
        assert membership.is_registered
        assert membership.current() is joins[fenced_join]
        await membership.stop()

    asyncio.run(main())
    root.close()
    log.close()
