"""Logs on a store where every look is a request."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from sparklog.clock import ManualClock
from sparklog.metadata import MetadataLog, MetadataSettings, SetConfigs
from sparklog.storage import MemoryStore
from sparklog.storage.base import StoreTraits

HOUR_MS = 3_600_000
REMOTE = StoreTraits(is_remote=True, appends_after_sync=False)
FREE = {"put_if_absent:done", "acquire_lock", "sync_directory", "sync_name", "write", "abort_puts"}


def opened(store: MemoryStore, clock: ManualClock, *, publish_timeout_ms: int = 60_000) -> MetadataLog:
    settings = MetadataSettings(snapshot_bytes=1 << 40, publish_timeout_ms=publish_timeout_ms)
    return MetadataLog.open(store, clock, create=True, settings=settings)


def set_config(log: MetadataLog, key: str, value: str = "x") -> int:
    return log.publish(lambda image: [SetConfigs(configs={key: value})]).commit


@contextmanager
def counted(store: MemoryStore) -> Iterator[Counter[str]]:
    """The requests made meanwhile."""
    requests: Counter[str] = Counter()

    def hook(operation: str, name: str) -> None:
        if operation not in FREE:
            requests[operation] += 1

    store.hook = hook
    try:
        yield requests
    finally:
        store.hook = None


def clean_all(remote: MemoryStore, clock: ManualClock, log: MetadataLog) -> None:
    """Two snapshots, and hours later a cleaner."""
    log.write_snapshot()
    set_config(log, "between")
    log.write_snapshot()
    clock.advance_ms(7 * HOUR_MS)
    set_config(log, "newest")
    log.write_snapshot()
    assert log.clean(grace_ms=0) > 0
