"""Requests that somebody holds for long, and what happens meanwhile."""

from collections.abc import Callable

import msgspec

from sparklog.clock import ManualClock
from sparklog.metadata import (
    Action,
    Image,
    MetadataLog,
    MetadataSettings,
    SetConfigs,
    SharedPlan,
    new_id,
)
from sparklog.metadata.requests import Posted, RequestBox
from sparklog.storage import MemoryStore
from sparklog.storage.base import StoreTraits

REMOTE = StoreTraits(is_remote=True, appends_after_sync=False)
WINDOW = 8
NONCE = "N" * 22
PUBLISHER = "P" * 22


class Meanwhile(ManualClock):
    """Others act while somebody sleeps, and time goes by."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: list[Callable[[], object]] = []

    def sleep_ms(self, duration_ms: float) -> None:
        super().sleep_ms(duration_ms)
        if self.meanwhile:
            self.meanwhile.pop(0)()


def opened(
    store: MemoryStore, clock: Meanwhile, *, publish_timeout_ms: int = 60_000, snapshots_kept: int = 2
) -> MetadataLog:
    settings = MetadataSettings(
        snapshot_bytes=1 << 40, publish_timeout_ms=publish_timeout_ms, snapshots_kept=snapshots_kept
    )
    return MetadataLog.open(store, clock, create=True, settings=settings)


def interpret(payload: bytes) -> Callable[[Image], list[Action]]:
    """Counts how often the key was set; with a version, once a version."""
    key, version = msgspec.json.decode(payload, type=tuple[str, int | None])

    def plan(image: Image) -> list[Action]:
        actions: list[Action] = [SetConfigs(configs={key: str(int(image.configs.get(key, "0")) + 1)})]
        if version is not None:
            if int(image.configs.get("app", "-1")) >= version:
                return []
            actions.append(SetConfigs(configs={"app": str(version)}))
        return actions

    return plan


def publish(log: MetadataLog, key: str, *, version: int | None = None, crowded: bool = True) -> int:
    payload = msgspec.json.encode([key, version])
    if crowded:
        log.combiner.contention.note()
    shared = SharedPlan(payload=lambda: payload, interpret=interpret) if crowded else None
    return log.publish(interpret(payload), shared=shared).commit


def post(store: MemoryStore, clock: Meanwhile, log: MetadataLog, key: str) -> tuple[str, bytes]:
    """A request of somebody who is gone; its name and bytes."""
    box = RequestBox(store, clock, log.cluster_id)
    posted = Posted(publisher=new_id(), sequence=0, base=log.image.commit, nonce=new_id())
    data = box.encode(posted, msgspec.json.encode([key, None]))
    name = box.post(posted, data)
    clock.advance_ms(1)
    return name, data


def pass_by(log: MetadataLog, commits: int) -> None:
    """Others publish, each as a publisher of its own, so that publishers are forgotten."""
    for number in range(commits):
        log.combiner.start_anew()
        publish(log, f"filler {number}")


def count(log: MetadataLog, key: str) -> str | None:
    return log.refresh(force=True).configs.get(key)
