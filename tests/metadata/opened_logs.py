"""Logs as other processes open them."""

from collections.abc import Callable

from sparklog.clock import ManualClock
from sparklog.metadata import (
    Image,
    MetadataLog,
    SetConfigs,
    Topic,
)
from sparklog.metadata.documents.document import VERSION, Header
from sparklog.storage import LocalStore, MemoryStore

Create = Callable[..., Topic]
Append = Callable[..., Image]


def opened(store: LocalStore | MemoryStore) -> MetadataLog:
    return MetadataLog.open(store, ManualClock(), create=True)


def set_config(log: MetadataLog, key: str, value: str = "x") -> int:
    return log.publish(lambda image: [SetConfigs(configs={key: value})]).commit


def replace_file(memory: MemoryStore, name: str, data: bytes) -> None:
    memory.delete(name)
    memory.put_if_absent(name, data)


def newer_header(log: MetadataLog) -> Header:
    return Header(
        version=VERSION + 1,
        kind="commit",
        commit=log.image.commit + 1,
        cluster_id=log.cluster_id,
        uuid="X" * 22,
        previous=log.image.commit_uuid,
        timestamp_ms=0,
        length=0,
    )
