"""Errors of what publishers publish for each other: who gets them, and what is left behind."""

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from sparklog.errors import InvalidRequestError, RetriableError, StorageError
from sparklog.metadata import (
    Action,
    Image,
    JoinBroker,
    RequestApplied,
    SetConfigs,
    SharedPlan,
)
from sparklog.metadata.combining import LISTING_PAUSE_MS
from sparklog.metadata.documents.properties import DIRECTORY, REQUESTS
from sparklog.metadata.requests import LIST_TIMEOUT_MS, RequestBox
from sparklog.storage import IndefinitePutError, MemoryStore, StoredFile
from tests.metadata.combining_publishers import (
    REMOTE,
    Publisher,
    SleepyClock,
    a_request,
    actions_of,
    leave_request,
    lose_after_posting,
    requests_left,
)


@pytest.fixture
def clock() -> SleepyClock:
    return SleepyClock()


@pytest.fixture
def store(clock: SleepyClock) -> MemoryStore:
    return MemoryStore("combining", clock=clock, traits=REMOTE)


def test_a_look_at_who_waits_takes_a_moment_at_most(
    store: MemoryStore, clock: SleepyClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever publishes has the lock of the metadata log meanwhile."""
    looks: list[int] = []
    real = store.list

    def listed(prefix: str, *, within_ms: int = 0, **given: Any) -> list[StoredFile]:
        if prefix == REQUESTS:
            looks.append(within_ms)
        return real(prefix, within_ms=within_ms, **given)

    monkeypatch.setattr(store, "list", listed)
    Publisher(store, clock).publish("ours")
    assert looks
    assert set(looks) == {LIST_TIMEOUT_MS}


def test_what_no_longer_applies_is_an_error_of_its_publisher_and_never_happens(
    store: MemoryStore, clock: SleepyClock
) -> None:
    poster, other = Publisher(store, clock), Publisher(store, clock)
    leave_request(store, poster.log, clock, "ahead", None, "never")

    def forbid() -> None:
        other.log.publish(lambda image: [SetConfigs(configs={"stop": "x"})])

    clock.meanwhile.append(forbid)
    with pytest.raises(InvalidRequestError, match="stop is there"):
        poster.publish("ours", unless="stop")
    assert actions_of(poster.log, 1) == ["request 0 of 0", "request 0 of 1", "ahead"]
    assert poster.log.refresh().commit == 1
    # The reason goes away, and somebody still holds the request: it is settled all the same.
    other.log.publish(lambda image: [SetConfigs(configs={"stop": None})])
    again = a_request(poster.log, poster.log.combiner.publisher)
    box = RequestBox(store, clock, poster.log.cluster_id)
    box.post(again, box.encode(again, b'["ours",null,"stop"]'))
    other.publish("more")
    assert "ours" not in other.log.image.configs
    assert poster.publish("next") == other.log.image.commit + 1


def test_actions_that_do_not_apply_are_an_error(store: MemoryStore, clock: SleepyClock) -> None:
    one, other = Publisher(store, clock), Publisher(store, clock)
    leave_request(store, one.log, clock, "ahead", None, "never")

    def plan(image: Image) -> list[Action]:
        return [JoinBroker(node_id=1, broker_epoch=0, incarnation_id="I" * 22)]  # whatever the image says

    clock.meanwhile.append(lambda: other.log.publish(plan))
    one.log.combiner.contention.note()
    with pytest.raises(InvalidRequestError, match="would not apply"):
        one.log.publish(plan, shared=SharedPlan(payload=lambda: b"[]", interpret=lambda _: plan))
    assert one.publish("a") == one.log.image.commit


def test_transaction_that_others_have_applied_is_a_duplicate(store: MemoryStore, clock: SleepyClock) -> None:
    poster, other = Publisher(store, clock), Publisher(store, clock)
    leave_request(store, poster.log, clock, "ahead", None, "never")
    clock.meanwhile.append(lambda: other.publish("twin", 3))  # also publishes what waits: ours as a duplicate
    commit = poster.publish("twin", 3)
    assert commit == 1
    assert actions_of(poster.log, 1) == ["request 0 of 0"]  # taken back, so that it never comes to life
    assert poster.log.image.configs["app"] == "3"
    actions = actions_of(poster.log, 0)
    assert actions.count("twin") == 1
    assert requests_left(store) == 1


def test_lost_answer_to_the_commit_for_all(store: MemoryStore, clock: SleepyClock) -> None:
    one = Publisher(store, clock)
    leave_request(store, one.log, clock, "b", None, "never")
    lost: list[str] = []

    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent:done" and not lost:
            lost.append(name)
            raise IndefinitePutError("PUT_INDEFINITE", "no answer", fix="repeat")

    store.hook = hook
    assert one.publish("a") == 0
    store.hook = None
    assert len(store.list(DIRECTORY)) == 1
    assert sorted(one.log.refresh().configs) == ["a", "b"]


def test_crash_of_who_publishes_for_all(store: MemoryStore, clock: SleepyClock) -> None:
    class Crash(BaseException):
        pass

    for operation in ("put_if_absent", "put_if_absent:done"):
        poster, combiner = Publisher(store, clock), Publisher(store, clock)
        before = len(store.list(DIRECTORY))

        def crash(at: str, name: str, operation: str = operation) -> None:
            if at == operation:
                store.hook = None
                raise Crash

        def combine(combiner: Publisher = combiner, crash: Callable[[str, str], None] = crash) -> None:
            store.hook = crash
            with pytest.raises(Crash):
                combiner.publish(f"theirs {operation}")  # noqa: B023 - called at once

        leave_request(store, poster.log, clock, f"ahead {operation}", None, "never")
        clock.meanwhile.append(combine)
        assert poster.publish(f"ours {operation}") == before
        configs = poster.log.refresh().configs
        assert {f"ahead {operation}", f"ours {operation}", f"theirs {operation}"} <= set(configs)
        assert len(store.list(DIRECTORY)) == before + 1


@pytest.mark.parametrize("later", ["applied", "voided"])
def test_giving_up_leaves_it_open_until_the_next_publish(
    store: MemoryStore, clock: SleepyClock, later: str
) -> None:
    poster, other = Publisher(store, clock), Publisher(store, clock)
    lose_after_posting(store)
    with pytest.raises(StorageError, match="unknown whether request 0") as raised:
        poster.publish("ours")
    assert raised.value.code == "PUBLISH_UNRESOLVED"
    store.hook = None
    assert requests_left(store) == 1
    clock.advance_ms(60_000)
    if later == "applied":
        other.publish("theirs")
        assert "ours" in other.log.image.configs
        poster.crowded = False
        poster.log.refresh()
        clock.advance_ms(60_000)
        poster.publish("next")
        assert actions_of(poster.log, 1) == ["next"]
    else:
        poster.crowded = False
        poster.publish("next")
        assert actions_of(poster.log, 0) == ["request 0 of 0", "next"]
        other.publish("theirs")
        assert "ours" not in other.log.image.configs


def test_time_that_is_up(store: MemoryStore, clock: SleepyClock) -> None:
    one = Publisher(store, clock, publish_timeout_ms=100)
    leave_request(store, one.log, clock, "ahead", None, "never")
    with pytest.raises(StorageError, match="races lost until the timeout"):
        one.publish("a")
    assert clock.monotonic_ms() < 500
    clock.advance_ms(2_000)  # nobody waits for the one ahead any more
    assert one.publish("b") >= 0


def test_request_that_somebody_removed_is_published_by_its_publisher(
    store: MemoryStore, clock: SleepyClock
) -> None:
    one = Publisher(store, clock)
    leave_request(store, one.log, clock, "ahead", None, "never")

    def remove_all() -> None:
        for file in store.list(REQUESTS):
            store.delete(file.name)

    clock.meanwhile.append(remove_all)
    assert one.publish("a") == 0
    assert sorted(one.log.image.configs) == ["a"]


def test_request_that_somebody_took_back(store: MemoryStore, clock: SleepyClock) -> None:
    """Nobody does that; but then nothing was published, and the caller must know."""
    one, other = Publisher(store, clock), Publisher(store, clock)
    leave_request(store, one.log, clock, "ahead", None, "never")

    def take_back() -> None:
        (name,) = [at for at in posted if one.log.combiner.publisher in at]
        found = json.loads(store.read(name).splitlines()[1])
        marker = RequestApplied(
            publisher=one.log.combiner.publisher, sequence=0, base=found["base"], nonce=found["nonce"]
        )
        other.log.publish(lambda image: [marker])

    posted: list[str] = []
    store.hook = lambda operation, name: posted.append(name) if operation == "put_hint" else None
    clock.meanwhile.append(take_back)
    with pytest.raises(RetriableError, match="withdrawn"):
        one.publish("a")


@pytest.mark.slow
def test_child_of_a_fork_is_another_publisher(store: MemoryStore, clock: SleepyClock) -> None:
    one = Publisher(store, clock)
    one.publish("a")
    parent = one.log.combiner.publisher
    child = os.fork()
    if child == 0:
        status = 1
        try:
            one.publish("child")
            fresh = one.log.combiner
            status = 0 if fresh.publisher != parent and fresh.sequence == 0 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def blind(store: MemoryStore) -> list[str]:
    """Lets each LIST of requests fail."""
    lists: list[str] = []

    def hook(operation: str, name: str) -> None:
        if operation == "list" and name == REQUESTS:
            lists.append(name)
            raise StorageError("STORE_UNAVAILABLE", "503 SlowDown", fix="wait")

    store.hook = hook
    return lists


def test_a_busy_publisher_that_cannot_look_who_waits_publishes_on(
    store: MemoryStore, clock: SleepyClock
) -> None:
    one = Publisher(store, clock, crowded=False)
    lists = blind(store)
    for number in range(1_000):
        clock.advance_ms(100)
        one.publish(f"key {number}")
    assert len(lists) == 1 + 99_000 // LISTING_PAUSE_MS  # not one a second


def test_a_request_that_cannot_be_listed_is_published_by_its_own_publisher(
    store: MemoryStore, clock: SleepyClock
) -> None:
    one, other = Publisher(store, clock), Publisher(store, clock)
    leave_request(store, other.log, clock, "left", None, "never")
    lists = blind(store)
    one.publish("ours")
    one.publish("more")
    assert len(lists) == 1
    store.hook = None
    assert requests_left(store) == 1
    clock.advance_ms(LISTING_PAUSE_MS)
    one.publish("again")
    assert {"ours", "more", "again", "left"} <= set(other.log.refresh().configs)


def test_who_was_known_to_wait_before_a_list_failed_is_published_all_the_same(
    store: MemoryStore, clock: SleepyClock
) -> None:
    one, other = Publisher(store, clock), Publisher(store, clock)
    leave_request(store, other.log, clock, "ahead", None, "never")

    def first_list(operation: str, name: str) -> None:
        if operation == "list" and name == REQUESTS:
            blind(store)

    store.hook = first_list
    one.publish("ours")
    assert {"ours", "ahead"} <= set(other.log.refresh().configs)
