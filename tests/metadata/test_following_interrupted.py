"""Ctrl-C in a look: whatever it interrupts, other threads can look and publish afterwards."""

import threading
from concurrent.futures import ThreadPoolExecutor

from sparklog.clock import ManualClock
from sparklog.metadata import MetadataLog, SetConfigs, log
from sparklog.metadata import log as looks
from sparklog.metadata.log import CONCURRENT_REFRESH_MS
from sparklog.storage import MemoryStore, StoreTraits
from tests.support.interrupts import interrupt_everywhere, is_free

MODULES = (log.__name__, looks.__name__)


def test_no_interrupt_leaves_the_lock_held(memory: MemoryStore, clock: ManualClock) -> None:
    followed = MetadataLog.open(memory, clock, create=True)
    places = []
    for where in interrupt_everywhere(followed.refresh, *MODULES):
        places.append(where)
        assert is_free(followed._lock), where
    assert len(places) > 10


def test_nor_one_while_somebody_publishes(clock: ManualClock) -> None:
    """Then a look waits for the lock, and looks beside the publish."""
    store = MemoryStore(clock=clock, traits=StoreTraits(is_remote=True, appends_after_sync=False))
    followed = MetadataLog.open(store, clock, create=True)
    followed.publish(lambda _: [SetConfigs(configs={"retention.ms": "1"})])
    planned, may_go_on = threading.Event(), threading.Event()

    def plan(_: object) -> list[SetConfigs]:
        planned.set()
        assert may_go_on.wait(20)
        return []

    def look() -> None:
        clock.advance_ms(CONCURRENT_REFRESH_MS)
        followed.refresh()

    with ThreadPoolExecutor(1) as publisher:
        publishing = publisher.submit(followed.publish, plan)
        try:
            assert planned.wait(20)
            places = []
            for where in interrupt_everywhere(look, *MODULES):
                places.append(where)
                assert is_free(followed._freshness._refreshing), where
        finally:
            may_go_on.set()
        publishing.result(20)
    assert any("_refresh_concurrently" in where for where in places)
    assert is_free(followed._lock)
