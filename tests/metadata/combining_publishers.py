"""Publishers on a store that is looked at with every call, and what they leave for each other."""

from collections.abc import Callable, Sequence

import msgspec

from sparklog.clock import ManualClock
from sparklog.errors import InvalidRequestError, StorageError
from sparklog.metadata import (
    Action,
    Image,
    MetadataLog,
    MetadataSettings,
    RequestApplied,
    SetConfigs,
    SharedPlan,
    new_id,
)
from sparklog.metadata.documents.properties import REQUESTS
from sparklog.metadata.loading import read_commit
from sparklog.metadata.model.actions import apply_actions
from sparklog.metadata.requests import Posted, RequestBox
from sparklog.storage import MemoryStore
from sparklog.storage.base import StoreTraits

REMOTE = StoreTraits(is_remote=True, appends_after_sync=False)
Plan = Callable[[Image], Sequence[Action]]


class SleepyClock(ManualClock):
    """Others may act while somebody sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: list[Callable[[], object]] = []

    def sleep_ms(self, duration_ms: float) -> None:
        super().sleep_ms(duration_ms)
        if self.meanwhile:
            self.meanwhile.pop(0)()


class Publisher:
    """One process: sets a key of the root's settings for each publish, once, and counts it."""

    def __init__(
        self,
        store: MemoryStore,
        clock: SleepyClock,
        *,
        crowded: bool = True,
        publish_timeout_ms: int = 60_000,
    ) -> None:
        settings = MetadataSettings(snapshot_bytes=1 << 40, publish_timeout_ms=publish_timeout_ms)
        self.log = MetadataLog.open(store, clock, create=True, settings=settings)
        self.crowded = crowded

    def publish(self, key: str, txn: int | None = None, *, unless: str = "never", check: bool = True) -> int:
        payload = msgspec.json.encode([key, txn, unless])
        if self.crowded:
            self.log.combiner.contention.note()
        shared = SharedPlan(payload=lambda: payload, interpret=interpret)
        result = self.log.publish(interpret(payload), shared=shared)
        if result.actions and check:
            expected = [SetConfigs(configs={key: "x"})]
            assert result.actions[:1] == tuple(expected)
            _, actions = read_commit(self.log.store, result.commit, self.log.cluster_id)
            assert expected[0] in actions
        elif not result.actions:
            assert txn is not None
        return result.commit


def once(image: Image, version: int) -> SetConfigs | None:
    """A version of an application, kept in the settings; None: it has it."""
    is_known = int(image.configs.get("app", "-1")) >= version
    return None if is_known else SetConfigs(configs={"app": str(version)})


def interpret(payload: bytes) -> Plan:
    key, txn, unless = msgspec.json.decode(payload, type=tuple[str, int | None, str])

    def plan(image: Image) -> list[Action]:
        if unless in image.configs:
            raise InvalidRequestError("TOPIC_EXISTS", f"{unless} is there", fix="none")
        actions: list[Action] = [SetConfigs(configs={key: "x"})]
        if txn is not None:
            marker = once(image, txn)
            if marker is None:
                return []
            actions.append(marker)
        return actions

    return plan


def leave_request(store: MemoryStore, log: MetadataLog, clock: ManualClock, *payload: object) -> str:
    """A request whose publisher crashed after it had posted it; returns the publisher."""
    box = RequestBox(store, clock, log.cluster_id)
    posted = a_request(log)
    box.post(posted, box.encode(posted, msgspec.json.encode(payload)))
    clock.advance_ms(1)
    return posted.publisher


def a_request(log: MetadataLog, publisher: str | None = None, sequence: int = 0) -> Posted:
    return Posted(publisher=publisher or new_id(), sequence=sequence, base=log.image.commit, nonce=new_id())


def requests_left(store: MemoryStore) -> int:
    return len(store.list(REQUESTS))


def actions_of(log: MetadataLog, commit: int) -> list[str]:
    _, actions = read_commit(log.store, commit, log.cluster_id)
    return [
        f"request {action.sequence} of {action.actions}"
        if isinstance(action, RequestApplied)
        else ",".join(action.configs)
        if isinstance(action, SetConfigs)
        else type(action).__name__
        for action in actions
    ]


def applied(image: Image, *actions: Action) -> Image:
    return apply_actions(image, actions, commit=image.commit + 1, commit_uuid="u")


def lose_after_posting(store: MemoryStore) -> None:
    """Let the store answer nothing any more once a request is there."""
    is_away = False

    def hook(operation: str, name: str) -> None:
        nonlocal is_away
        if is_away:
            raise StorageError("STORE_UNAVAILABLE", "no answer", fix="wait")
        is_away = operation == "put_hint" and name.startswith(REQUESTS)

    store.hook = hook
