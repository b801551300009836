"""Logs that are being cleaned."""

from sparklog.clock import ManualClock
from sparklog.metadata import MetadataLog, MetadataSettings, SetConfigs
from sparklog.metadata.documents.properties import (
    DIRECTORY,
    commit_of,
)
from sparklog.storage import LocalStore, MemoryStore

FUTURE_MS = 4_102_444_800_000  # 2100: every file is older than any grace period
SETTINGS = MetadataSettings(snapshot_bytes=10 * 4096, clean_grace_ms=3_600_000, clean_interval_ms=0)


def opened(store: LocalStore | MemoryStore, now_ms: int = FUTURE_MS) -> MetadataLog:
    return MetadataLog.open(store, ManualClock(now_ms), create=True, settings=SETTINGS)


def publish(log: MetadataLog, count: int = 1) -> int:
    commit = -1
    for _ in range(count):
        commit = log.publish(lambda image: [SetConfigs(configs={"last": str(image.commit + 1)})]).commit
    return commit


def commits(store: LocalStore | MemoryStore) -> list[int]:
    return [number for file in store.list(DIRECTORY) if (number := commit_of(file.name)) is not None]
