"""Requests that somebody holds for long: none is applied twice, or after its publisher was told otherwise.

Each test is an interleaving in which a suspended process, a late put or a clone of a process meets a log that
went on without it.
"""

from collections.abc import Callable

import msgspec
import pytest

from sparklog.clock import ManualClock
from sparklog.errors import (
    FatalStorageError,
    InvalidRequestError,
    StorageError,
    UnsupportedVersionError,
)
from sparklog.metadata import (
    Action,
    Image,
    MetadataLog,
    MetadataSettings,
    RequestApplied,
    SetConfigs,
    SharedPlan,
    WriterTxn,
    new_id,
)
from sparklog.metadata.documents.document import CommitBody, Header, encode_document
from sparklog.metadata.documents.paths import REQUESTS, commit_name
from sparklog.metadata.loading import read_commit
from sparklog.metadata.model import publishers
from sparklog.metadata.posted import Posted
from sparklog.metadata.requests import RequestBox
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


@pytest.fixture(autouse=True)
def _small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishers, "REQUEST_WINDOW", WINDOW)


@pytest.fixture
def clock() -> Meanwhile:
    return Meanwhile()


@pytest.fixture
def store(clock: Meanwhile) -> MemoryStore:
    return MemoryStore("window", clock=clock, traits=REMOTE)


def opened(store: MemoryStore, clock: Meanwhile) -> MetadataLog:
    settings = MetadataSettings(snapshot_bytes=1 << 40)
    return MetadataLog.open(store, clock, create=True, settings=settings)


def interpret(payload: bytes) -> Callable[[Image], list[Action]]:
    """Counts how often the key was set; with a version, once a version."""
    key, version = msgspec.json.decode(payload, type=tuple[str, int | None])

    def plan(image: Image) -> list[Action]:
        actions: list[Action] = [SetConfigs(configs={key: str(int(image.configs.get(key, "0")) + 1)})]
        if version is not None:
            if image.writer_txns.get("app", -1) >= version:
                return []
            actions.append(WriterTxn(application="app", version=version))
        return actions

    return plan


def publish(log: MetadataLog, key: str, *, version: int | None = None, crowded: bool = True) -> int:
    payload = msgspec.json.encode([key, version])
    if crowded:
        log._combiner.note_crowd()
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
        log._combiner.start_anew()
        publish(log, f"filler {number}")


def count(log: MetadataLog, key: str) -> str | None:
    return log.refresh(force=True).configs.get(key)


# --- what was forgotten must not come back -------------------------------------------------------------


def test_owner_that_was_suspended_after_others_applied_its_request(
    store: MemoryStore, clock: Meanwhile
) -> None:
    owner, other = opened(store, clock), opened(store, clock)
    publish(other, "first")
    owner.refresh(force=True)
    post(store, clock, owner, "ahead")

    def suspended() -> None:
        publish(other, "theirs")  # and what waits, ours included
        pass_by(other, 3 * WINDOW)
        assert not other.image.has_settled(owner._combiner._publisher, 0)

    clock.meanwhile.append(suspended)
    assert publish(owner, "ours") == 1
    assert count(owner, "ours") == "1"
    publish(owner, "next")
    assert count(owner, "ours") == "1"


def test_other_that_was_suspended_between_reading_and_applying(store: MemoryStore, clock: Meanwhile) -> None:
    owner, sleeper, other = (opened(store, clock) for _ in range(3))
    publish(other, "first")
    for log in (owner, sleeper):
        log.refresh(force=True)
    post(store, clock, owner, "ours")
    woken = False

    def hook(operation: str, name: str) -> None:
        nonlocal woken
        if operation == "put_if_absent" and not woken:  # the sleeper has read the request, and planned
            woken = True
            publish(other, "theirs")
            for file in store.list(REQUESTS):
                store.delete(file.name)
            pass_by(other, 3 * WINDOW)

    store.hook = hook
    publish(sleeper, "sleeper")
    assert woken
    store.hook = None
    assert count(other, "ours") == "1"
    assert count(other, "sleeper") == "1"


def test_put_of_a_request_that_lands_after_it_was_settled(store: MemoryStore, clock: Meanwhile) -> None:
    owner, other = opened(store, clock), opened(store, clock)
    publish(other, "first")
    owner.refresh(force=True)
    name, data = post(store, clock, owner, "ours")
    publish(other, "theirs")
    assert count(other, "ours") == "1"
    store.delete(name)
    pass_by(other, 3 * WINDOW)
    clock.advance_ms(14 * 60_000)
    store.put_hint(name, data)  # the store's time of it is now
    other._combiner.start_anew()
    publish(other, "more")
    assert count(other, "ours") == "1"


def test_request_that_nobody_came_to_in_time_is_void(store: MemoryStore, clock: Meanwhile) -> None:
    """Its owner knows that, and publishes alone."""
    owner, other = opened(store, clock), opened(store, clock)
    publish(other, "first")
    owner.refresh(force=True)
    post(store, clock, owner, "ahead")

    def ignore_requests() -> None:
        for number in range(WINDOW):
            publish(other, f"alone {number}", crowded=False)

    clock.meanwhile.append(ignore_requests)
    commit = publish(owner, "ours")
    assert count(owner, "ours") == "1"
    _, actions = read_commit(store, commit, owner.cluster_id)
    assert not any(isinstance(action, RequestApplied) for action in actions)
    assert owner._combiner.fencing_actions(owner.image) == ()


def test_outcome_that_was_cleaned_is_unknown(store: MemoryStore, clock: Meanwhile) -> None:
    owner, other = opened(store, clock), opened(store, clock)
    publish(other, "first")
    owner.refresh(force=True)
    post(store, clock, owner, "ahead")

    def suspended() -> None:
        publish(other, "theirs")
        pass_by(other, 3 * WINDOW)
        other.write_snapshot()
        clock.advance_ms(7 * 3_600_000)
        publish(other, "more")
        other.write_snapshot()
        clock.advance_ms(7 * 3_600_000)
        other._settings = MetadataSettings(snapshots_kept=1)
        assert other.clean() > WINDOW

    owner._settings = MetadataSettings(publish_timeout_ms=1 << 40)
    clock.meanwhile.append(suspended)
    with pytest.raises(StorageError, match="were cleaned meanwhile") as raised:
        publish(owner, "ours")
    assert raised.value.code == "PUBLISH_UNRESOLVED"
    publish(owner, "next")
    assert count(owner, "ours") == "1"  # it was applied; nothing applies it again


# --- what was given up ----------------------------------------------------------------------------------


def test_fence_of_a_given_up_request_survives_a_call_with_nothing_to_do(
    store: MemoryStore, clock: Meanwhile
) -> None:
    owner, other = opened(store, clock), opened(store, clock)
    publish(other, "first")
    owner.refresh(force=True)
    give_up(store, owner, "ours")
    publish(other, "twin", version=3, crowded=False)
    assert publish(owner, "twin", version=3) >= 0  # a duplicate: nothing to do
    assert count(owner, "ours") is None  # so the user does it again
    publish(owner, "ours", crowded=False)
    clock.advance_ms(1)
    publish(other, "theirs")
    assert count(other, "ours") == "1"


def test_two_requests_of_one_publisher_are_not_both_applied(store: MemoryStore, clock: Meanwhile) -> None:
    """The later one says that the earlier one was given up."""
    owner, other = opened(store, clock), opened(store, clock)
    publish(other, "first")
    owner.refresh(force=True)
    give_up(store, owner, "ours")
    give_up(store, owner, "ours")
    publish(other, "theirs")
    assert count(other, "ours") == "1"
    publish(owner, "next")
    assert count(other, "ours") == "1"


def test_newer_version_that_writes_meanwhile_leaves_a_posted_request_unresolved(
    store: MemoryStore, clock: Meanwhile
) -> None:
    owner, other = opened(store, clock), opened(store, clock)
    publish(other, "first")
    owner.refresh(force=True)
    post(store, clock, owner, "ahead")

    def upgraded() -> None:
        end = other.refresh(force=True)
        header = Header(
            version=99,
            kind="commit",
            commit=end.commit + 1,
            cluster_id=end.cluster_id,
            uuid=new_id(),
            previous=end.commit_uuid,
            timestamp_ms=0,
            length=0,
        )
        store.put_if_absent(commit_name(end.commit + 1), encode_document(header, CommitBody(actions=())))

    clock.meanwhile.append(upgraded)
    with pytest.raises(StorageError, match="newer version") as raised:
        publish(owner, "ours")
    assert raised.value.code == "PUBLISH_UNRESOLVED"
    assert isinstance(raised.value.__cause__, UnsupportedVersionError)


def test_failed_fsync_stays_what_it_is(store: MemoryStore, clock: Meanwhile) -> None:
    owner = opened(store, clock)
    publish(owner, "first")
    error = FatalStorageError("DURABILITY_UNKNOWN", "fsync failed", fix="stop")

    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent":
            raise error

    store.hook = hook
    with pytest.raises(FatalStorageError) as raised:
        publish(owner, "ours")
    assert raised.value is error


def give_up(store: MemoryStore, log: MetadataLog, key: str) -> None:
    """Post a request, and lose the store before anything comes of it."""

    def hook(operation: str, name: str) -> None:
        if operation == "list" and name == REQUESTS:
            raise StorageError("STORAGE_FAILED", "no answer", fix="none")

    store.hook = hook
    with pytest.raises(StorageError) as raised:
        publish(log, key)
    store.hook = None
    assert raised.value.code == "PUBLISH_UNRESOLVED"


# --- clones of one process ------------------------------------------------------------------------------


def test_clones_do_not_take_each_others_success(store: MemoryStore, clock: Meanwhile) -> None:
    """A suspended machine that is resumed twice: both go on as the same publisher, with the same number."""
    one, clone, other = (opened(store, clock) for _ in range(3))
    publish(other, "first")
    for log in (one, clone):
        log.refresh(force=True)
    clone._combiner._publisher = one._combiner._publisher
    clone._combiner._sequence = one._combiner._sequence
    post(store, clock, other, "ahead")

    def go_on() -> None:
        publish(clone, "of the clone")
        clock.advance_ms(1)

    clock.meanwhile.append(go_on)
    publish(one, "of the one")
    assert (count(other, "of the one"), count(other, "of the clone")) == ("1", "1")
    publish(one, "more")
    publish(clone, "more")
    assert count(other, "more") == "2"
    assert one._combiner._publisher != clone._combiner._publisher


def test_clone_that_comes_when_its_number_is_taken(store: MemoryStore, clock: Meanwhile) -> None:
    """Its request would outlive what images remember of the number, and be applied twice."""
    one, clone, other = (opened(store, clock) for _ in range(3))
    publish(other, "first")
    for log in (one, clone):
        log.refresh(force=True)
    clone._combiner._publisher = one._combiner._publisher
    publish(one, "of the one")
    for number in range(WINDOW - 2):
        publish(other, f"filler {number}", crowded=False)
    clone.refresh(force=True)
    posted: list[tuple[str, bytes]] = []

    def hook(operation: str, name: str) -> None:
        if operation == "delete" and not posted:  # its request, which a late attempt will put once more
            posted.append((name, store.read(name)))

    store.hook = hook
    publish(clone, "of the clone")
    store.hook = None
    pass_by(other, 3)
    for name, data in posted:
        store.put_hint(name, data)
    publish(other, "more")
    assert count(other, "of the clone") == "1"
    assert clone._combiner._publisher != one._combiner._publisher


# --- no room to remember one more -----------------------------------------------------------------------


def test_publisher_that_no_image_can_remember_publishes_alone(
    store: MemoryStore, clock: Meanwhile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishers, "MAX_PUBLISHERS", 1)
    one, other = opened(store, clock), opened(store, clock)
    publish(other, "first")
    one.refresh(force=True)
    commit = publish(one, "second")
    _, actions = read_commit(store, commit, one.cluster_id)
    assert [type(action) for action in actions] == [SetConfigs]


def test_publisher_that_finds_no_room_when_its_turn_comes_publishes_without(
    store: MemoryStore, clock: Meanwhile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There was room when it posted its request. Others must not apply that after its own commit."""
    monkeypatch.setattr(publishers, "MAX_PUBLISHERS", 1)
    one, other = opened(store, clock), opened(store, clock)
    publish(one, "alone", crowded=False)
    clock.meanwhile = [lambda: publish(other, "first")]
    commit = publish(one, "second")
    header, actions = read_commit(store, commit, one.cluster_id)
    assert header.commit == 2
    marker, ours = actions
    assert isinstance(marker, RequestApplied)
    assert marker.actions == 0
    assert isinstance(ours, SetConfigs)
    assert other.refresh(force=True).has_settled(marker.publisher, marker.sequence)


def test_a_publisher_that_a_commit_forgets_makes_no_room_in_it(
    store: MemoryStore, clock: Meanwhile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is forgotten after the last action. Who applied others' requests as if there were room could publish
    nothing: its commit was refused, and the next one too.
    """
    monkeypatch.setattr(publishers, "MAX_PUBLISHERS", 2)
    one, other = opened(store, clock), opened(store, clock)
    first = publish(other, "first")
    for number in range(WINDOW):
        publish(other, f"filler {number}", crowded=False)
    assert len(one.refresh(force=True).publishers) == 1
    post(store, clock, one, "stranger")
    assert publish(one, "ours") == first + WINDOW + 1
    assert count(one, "ours") == "1"
    assert len(one.image.publishers) == 1
    assert count(one, "stranger") is None
    publish(one, "next")
    assert count(one, "stranger") == "1"


def test_request_of_before_is_left_to_its_publisher(store: MemoryStore, clock: Meanwhile) -> None:
    log = opened(store, clock)
    publish(log, "first")
    name, data = post(store, clock, log, "old")
    header, body = (msgspec.json.decode(line) for line in data.splitlines())
    old = Header(**{**header, "version": 1})

    class OldBody(msgspec.Struct):
        publish: msgspec.Raw

    encoded = encode_document(old, OldBody(publish=msgspec.Raw(msgspec.json.encode(body["publish"]))))  # type: ignore[arg-type]
    store.put_hint(name, encoded)
    publish(log, "ours")
    assert count(log, "old") is None


def test_illegal_plan_is_a_definite_error_and_takes_the_request_back(
    store: MemoryStore, clock: Meanwhile
) -> None:
    log = opened(store, clock)
    publish(log, "first")

    def plan(image: Image) -> list[Action]:
        if image.commit >= 0 and store.list(REQUESTS):
            raise InvalidRequestError("TOPIC_EXISTS", "no", fix="none")
        return [SetConfigs(configs={"ours": "1"})]

    log._combiner.note_crowd()
    shared = SharedPlan(payload=lambda: b"[]", interpret=lambda _: plan)
    with pytest.raises(InvalidRequestError, match="no"):
        log.publish(plan, shared=shared)
    assert log.image.commit == 0
    assert log.refresh(force=True).commit == 1
    assert log.image.has_settled(log._combiner._publisher, 1)
