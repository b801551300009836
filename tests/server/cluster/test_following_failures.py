"""What stops a broker that follows the log, and what is tried again."""

import asyncio
from collections.abc import Callable

import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import CorruptLogError, FatalStorageError, FencedError, SparklogError, StorageError
from sparklog.storage import MemoryStore
from sparklog_server.cluster.following import Follower
from sparklog_server.root.live_root import Attention
from sparklog_server.runtime.lifecycle import Lifecycle
from tests.server.publish.surroundings import Surroundings
from tests.support.roots import opened
from tests.support.told import Told

FATAL = FatalStorageError("DURABILITY_UNKNOWN", "fsync failed", fix="stop")
DAMAGED = CorruptLogError("CORRUPT_METADATA_COMMIT", "no JSON", fix="restore it")
RESTORED = FencedError("ROOT_RESTORED", "another incarnation", fix="start anew")
AWAY = StorageError("STORE_UNAVAILABLE", "no answer", fix="wait")


def followed(
    log: SparkLog,
    lifecycle: Lifecycle,
    until: Callable[[SparkLog], bool],
    begin: Callable[[Surroundings], None],
) -> None:
    """Follow the log until the broker is to stop, or something has been seen."""

    async def main() -> None:
        surroundings, seen = Surroundings(log), asyncio.Event()

        def look(*_images: object) -> None:
            if until(log):
                seen.set()

        surroundings.root.on_image(look)
        lifecycle.on_failed(seen.set)
        follower = Follower(
            surroundings.root,
            surroundings.membership,
            lifecycle,
            surroundings.metrics,
            Attention(),
            poll_ms=1,
            idle_ms=lambda: 1,
        )
        begin(surroundings)
        follower.start()
        await seen.wait()
        follower.stop()
        surroundings.root.close()

    asyncio.run(main())


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "error", [FATAL, DAMAGED, RESTORED, AWAY], ids=["fsync", "damaged", "restored", "away"]
)
def test_a_failed_fsync_and_a_damaged_or_restored_log_stop_the_broker_and_all_else_is_tried_again(
    error: SparklogError, log: SparkLog, store: MemoryStore, clock: ManualClock, told: Told
) -> None:
    """Its heartbeats go on: it would lead forever what it can neither read nor write."""
    lifecycle, failed = Lifecycle(), 0
    with opened(store, clock) as other:
        other.create_topic("by-another", 1)

    def hook(_operation: str, _name: str) -> None:
        nonlocal failed
        failed += 1
        if failed <= 2:
            raise error

    def begin(_surroundings: Surroundings) -> None:
        store.hook = hook

    followed(log, lifecycle, lambda log: "by-another" in log.image.topics, begin)
    store.hook = None
    assert lifecycle.failure is (None if error is AWAY else error)
    assert ("by-another" in log.image.topics) is (error is AWAY)
    lines = [one for one in told("sparklog_server") if "looking for commits failed" in one]
    assert len(lines) == (error is AWAY)


@pytest.mark.timeout(60)
def test_a_fault_of_the_followers_own_stops_the_broker(
    log: SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would see any more what others commit, nor that the role is lost."""
    lifecycle = Lifecycle()

    def begin(surroundings: Surroundings) -> None:
        def review() -> None:
            raise KeyError("review")

        monkeypatch.setattr(surroundings.membership, "review", review)

    followed(log, lifecycle, lambda _log: False, begin)
    assert isinstance(lifecycle.failure, KeyError)


def test_a_follower_that_is_stopped_has_not_failed(log: SparkLog) -> None:
    lifecycle = Lifecycle()

    def begin(_surroundings: Surroundings) -> None:
        log.create_topic("another", 1)

    followed(log, lifecycle, lambda log: "another" in log.image.topics, begin)
    assert lifecycle.failure is None
