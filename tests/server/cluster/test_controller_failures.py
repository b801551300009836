"""What stops a broker whose controller meets it, and what does not."""

import asyncio

import pytest

from sparklog.client import SparkLog
from sparklog.client.founding import FOUNDING
from sparklog.clock import ManualClock
from sparklog.errors import FatalStorageError, StorageError
from sparklog.metadata import MetadataLog
from sparklog.metadata.documents.paths import commit_of
from sparklog.storage import MemoryStore
from tests.server.publish.surroundings import Surroundings

FATAL = FatalStorageError("DURABILITY_UNKNOWN", "fsync failed", fix="stop")
FULL = StorageError("STORAGE_FULL", "no space left", fix="free space")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("error", [FATAL, FULL], ids=["fsync", "full"])
def test_a_failed_fsync_of_the_controllers_stops_the_broker(
    error: StorageError, store: MemoryStore, clock: ManualClock
) -> None:
    """Anything else is tried again."""
    log = SparkLog(store, MetadataLog.open(store, clock, create=True, founding=FOUNDING), clock)
    log.create_topic("orders", 1)
    surroundings, failed = Surroundings(log), 0

    def hook(operation: str, name: str) -> None:
        nonlocal failed
        if operation == "put_if_absent" and commit_of(name) is not None and failed < 2:
            failed += 1
            raise error

    async def main() -> None:
        await surroundings.membership.start()
        store.hook = hook
        await surroundings.controller.start()
        while True:
            (orders,) = surroundings.root.image.topics["orders"].partitions
            if surroundings.failures or orders.leadership.leader > 0:
                break
            await asyncio.sleep(0)
        store.hook = None
        await surroundings.controller.stop()
        await surroundings.membership.stop()

    asyncio.run(main())
    assert surroundings.failures == ([FATAL] if error is FATAL else [])
    assert failed == (1 if error is FATAL else 2)
