"""Clones of one process, and publishers that no image has room for: nothing is applied twice."""

import pytest

from sparklog.errors import (
    InvalidRequestError,
)
from sparklog.metadata import (
    Action,
    Image,
    RequestApplied,
    SetConfigs,
    SharedPlan,
)
from sparklog.metadata.documents.properties import REQUESTS
from sparklog.metadata.loading import read_commit
from sparklog.metadata.model import writers
from sparklog.storage import MemoryStore
from tests.metadata.held_requests import (
    REMOTE,
    WINDOW,
    Meanwhile,
    count,
    opened,
    pass_by,
    post,
    publish,
)


@pytest.fixture(autouse=True)
def _small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "REQUEST_WINDOW", WINDOW)


@pytest.fixture
def clock() -> Meanwhile:
    return Meanwhile()


@pytest.fixture
def store(clock: Meanwhile) -> MemoryStore:
    return MemoryStore("window", clock=clock, traits=REMOTE)


def test_clones_do_not_take_each_others_success(store: MemoryStore, clock: Meanwhile) -> None:
    """A suspended machine that is resumed twice: both go on as the same publisher, with the same number."""
    one, clone, other = (opened(store, clock) for _ in range(3))
    publish(other, "first")
    for log in (one, clone):
        log.refresh(force=True)
    clone.combiner.publisher = one.combiner.publisher
    clone.combiner.sequence = one.combiner.sequence
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
    assert one.combiner.publisher != clone.combiner.publisher


def test_clone_that_comes_when_its_number_is_taken(store: MemoryStore, clock: Meanwhile) -> None:
    """Its request would outlive what images remember of the number, and be applied twice."""
    one, clone, other = (opened(store, clock) for _ in range(3))
    publish(other, "first")
    for log in (one, clone):
        log.refresh(force=True)
    clone.combiner.publisher = one.combiner.publisher
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
    assert clone.combiner.publisher != one.combiner.publisher


def test_publisher_that_no_image_can_remember_publishes_alone(
    store: MemoryStore, clock: Meanwhile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "MAX_PUBLISHERS", 1)
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
    monkeypatch.setattr(writers, "MAX_PUBLISHERS", 1)
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
    monkeypatch.setattr(writers, "MAX_PUBLISHERS", 2)
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


def test_illegal_plan_is_a_definite_error_and_takes_the_request_back(
    store: MemoryStore, clock: Meanwhile
) -> None:
    log = opened(store, clock)
    publish(log, "first")

    def plan(image: Image) -> list[Action]:
        if image.commit >= 0 and store.list(REQUESTS):
            raise InvalidRequestError("TOPIC_EXISTS", "no", fix="none")
        return [SetConfigs(configs={"ours": "1"})]

    log.combiner.contention.note()
    shared = SharedPlan(payload=lambda: b"[]", interpret=lambda _: plan)
    with pytest.raises(InvalidRequestError, match="no"):
        log.publish(plan, shared=shared)
    assert log.image.commit == 0
    assert log.refresh(force=True).commit == 1
    assert log.image.has_settled(log.combiner.publisher, 1)
