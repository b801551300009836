"""Requests that somebody holds for long: none is applied twice, or after its publisher was told otherwise.

Each test is an interleaving in which a suspended process, a late put or a clone of a process meets a log that
went on without it.
"""

import pytest

from sparklog.errors import (
    FatalStorageError,
    StorageError,
    UnsupportedVersionError,
)
from sparklog.metadata import (
    MetadataLog,
    RequestApplied,
    new_id,
)
from sparklog.metadata.documents.document import CommitBody, Header, encode_document
from sparklog.metadata.documents.properties import REQUESTS, commit_name
from sparklog.metadata.loading import read_commit
from sparklog.metadata.model import writers
from sparklog.storage import MemoryStore
from tests.metadata.combining_publishers import lose_after_posting
from tests.metadata.held_requests import REMOTE, WINDOW, Meanwhile, count, opened, pass_by, post, publish


@pytest.fixture(autouse=True)
def _small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "REQUEST_WINDOW", WINDOW)


@pytest.fixture
def clock() -> Meanwhile:
    return Meanwhile()


@pytest.fixture
def store(clock: Meanwhile) -> MemoryStore:
    return MemoryStore("window", clock=clock, traits=REMOTE)


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
        assert not other.image.has_settled(owner.combiner.publisher, 0)

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
    other.combiner.start_anew()
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
    assert owner.combiner.fencing_actions(owner.image) == ()


def test_outcome_that_was_cleaned_is_unknown(store: MemoryStore, clock: Meanwhile) -> None:
    owner = opened(store, clock, publish_timeout_ms=1 << 40)
    other = opened(store, clock, snapshots_kept=1)
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
        assert other.clean() > WINDOW

    clock.meanwhile.append(suspended)
    with pytest.raises(StorageError, match="were cleaned meanwhile") as raised:
        publish(owner, "ours")
    assert raised.value.code == "PUBLISH_UNRESOLVED"
    publish(owner, "next")
    assert count(owner, "ours") == "1"  # it was applied; nothing applies it again


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
    lose_after_posting(store)
    with pytest.raises(StorageError) as raised:
        publish(log, key)
    store.hook = None
    assert raised.value.code == "PUBLISH_UNRESOLVED"
