"""Brokers that publish for each other: what holds is taken, the rest is left out, and each is told so."""

import json

import pytest

from sparklog.client.appender import StagedAppend
from sparklog.client.publish import publish
from sparklog.errors import FencedError, StorageError
from sparklog.metadata import (
    ActAsBroker,
    AppendExtents,
    MetadataLog,
    RequestApplied,
    SetConfigs,
    plan_begin_producer,
    plan_delete_topic,
    plan_end_transaction,
    which_hold,
)
from sparklog.metadata import requests as posted
from sparklog.metadata.combining import COSTLY_LOSS_MS
from sparklog.metadata.documents.properties import REQUESTS, commit_name
from sparklog.metadata.loading import Commit, read_commit
from sparklog.metadata.requests import image_before
from sparklog.storage import MemoryStore
from tests.metadata.broker_requests import Broker, accepted, cluster, draft, ends, taken
from tests.metadata.combining_publishers import REMOTE, SleepyClock, requests_left
from tests.metadata.test_staging_conditions import staged


@pytest.fixture
def clock() -> SleepyClock:
    return SleepyClock()


@pytest.fixture
def store(clock: SleepyClock) -> MemoryStore:
    return MemoryStore("brokers", clock=clock, traits=REMOTE)


@pytest.fixture
def brokers(store: MemoryStore, clock: SleepyClock) -> list[Broker]:
    return cluster(store, clock, 1, 1, 2)


def kinds(log: MetadataLog, commit: int) -> list[type]:
    return [type(action) for action in read_commit(log.store, commit, log.cluster_id)[1]]


def test_one_broker_publishes_for_another(brokers: list[Broker]) -> None:
    one, two, _ = brokers
    request = one.leave([accepted(0), accepted(1, producer=(7, 0, 0))])
    result = two.publish([accepted(2)])
    assert ends(one.log) == [1, 1, 1]
    assert kinds(one.log, result.commit) == [RequestApplied, ActAsBroker, AppendExtents] * 2
    assert taken(result) == [(2, 0)]
    assert one.log.image.has_settled(request.publisher, 0)


def test_a_broker_that_waits_finds_its_own(
    brokers: list[Broker], store: MemoryStore, clock: SleepyClock
) -> None:
    one, two, three = brokers
    three.leave([])  # is ahead, and stands still
    clock.meanwhile.append(lambda: two.publish([accepted(2)]))
    result = one.publish([accepted(0), accepted(1), accepted(0)])
    assert taken(result) == [(0, 0), (1, 0), (0, 1)]
    assert kinds(one.log, result.commit) == [RequestApplied, ActAsBroker, AppendExtents] * 2
    assert ends(two.log) == [2, 1, 1]
    assert requests_left(store) == 1


def test_writers_and_brokers_publish_for_each_other(
    brokers: list[Broker], store: MemoryStore, clock: SleepyClock
) -> None:
    one, two, _ = brokers
    writer = MetadataLog.open(store, clock)
    one.leave([accepted(0)])
    writer.combiner.contention.note()
    result = publish(writer, [StagedAppend(drafts=(draft(0), draft(2)))])
    assert result.ranges["orders", 0].base_offset == 0
    assert ends(writer) == [2, 0, 1]
    two.leave([accepted(2)])
    writer.combiner.contention.note()
    publish(writer, [StagedAppend(drafts=(draft(1),))])
    assert ends(writer) == [2, 1, 2]


def test_what_was_lost_is_left_out_and_the_rest_is_taken(brokers: list[Broker], clock: SleepyClock) -> None:
    one, two, three = brokers

    def meanwhile() -> None:
        three.lead(p0=2)
        two.publish([accepted(2), accepted(0, epoch=2)])

    three.leave([])
    clock.meanwhile.append(meanwhile)
    parts = [accepted(0), accepted(1), accepted(0)]
    plans = one.plans
    result = one.publish(parts)
    assert taken(result) == [(1, 0)]
    assert ends(one.log) == [1, 1, 1]
    before = result.planned_against()
    assert before is not None
    assert which_hold(before, parts, node_id=1) == [1]
    assert one.plans > plans


def test_a_leadership_that_came_back_is_another(brokers: list[Broker]) -> None:
    one, two, three = brokers
    one.leave([accepted(0), accepted(1), accepted(0, epoch=3)])
    three.lead(p0=2)
    three.lead(p0=1)
    two.publish([accepted(2)])
    assert ends(two.log) == [0, 1, 1]  # nor what was accepted since: it was accepted behind the other


def test_nothing_of_a_fenced_broker_applies(brokers: list[Broker], store: MemoryStore) -> None:
    one, two, three = brokers
    request = one.leave([accepted(0), accepted(1)])
    three.fence(1)
    two.publish([accepted(2)])
    one.join()  # another registration
    three.lead(p0=1, p1=1)
    two.publish([accepted(2)])
    assert ends(two.log) == [0, 0, 2]
    assert not two.log.image.has_settled(request.publisher, 0)


def test_a_broker_that_is_fenced_while_it_waits(brokers: list[Broker], clock: SleepyClock) -> None:
    one, two, three = brokers

    def meanwhile() -> None:
        three.fence(1)
        two.publish([accepted(2)])

    three.leave([])
    clock.meanwhile.append(meanwhile)
    with pytest.raises(FencedError, match="BROKER_FENCED"):
        one.publish([accepted(0)])
    assert ends(two.log) == [0, 0, 1]
    (marker,) = read_commit(two.log.store, two.log.image.commit, two.log.cluster_id)[1]
    assert isinstance(marker, RequestApplied)
    assert (marker.publisher, marker.actions) == (one.log.combiner.publisher, 0)


def test_a_topic_that_is_gone_takes_its_parts_only(brokers: list[Broker]) -> None:
    one, two, _ = brokers
    one.leave([accepted(0, topic_id="B" * 22), accepted(7), accepted(1)])
    two.publish([accepted(2)])
    assert ends(two.log) == [0, 1, 1]
    two.log.publish(lambda image: [plan_delete_topic(image, "orders")])
    assert two.publish([accepted(2)]).actions == ()


def test_a_batch_that_two_requests_have_is_taken_once(brokers: list[Broker]) -> None:
    """As after a request that was given up: its client has sent the batch again."""
    one, two, _ = brokers
    one.leave([accepted(0, producer=(7, 0, 0))])
    one.leave([accepted(0, producer=(7, 0, 0)), accepted(0, producer=(7, 0, 1)), accepted(1)])
    two.publish([accepted(2)])
    assert ends(two.log) == [1, 1, 1]


def test_what_was_left_out_is_judged_as_whoever_published_did(
    brokers: list[Broker], clock: SleepyClock
) -> None:
    """After all that came before it in that commit, and before all that has come since."""
    one, two, three = brokers
    given_up = accepted(0, producer=(7, 0, 0))
    one.leave([given_up])

    def meanwhile() -> None:
        two.publish([accepted(2)])
        three.lead(p0=2)
        two.publish([accepted(2), accepted(0, epoch=2, producer=(7, 0, 1))])

    parts = [accepted(0, producer=(7, 0, 0)), accepted(1)]
    clock.meanwhile.append(meanwhile)
    result = one.publish(parts)
    assert taken(result) == [(1, 0)]
    before = result.planned_against()
    assert before is not None
    state = before.topic("orders").partitions[0]
    assert (state.log_end_offset, state.leadership.leader, state.leadership.leader_epoch) == (1, 1, 1)
    now = one.log.refresh(force=True).topic("orders").partitions[0]
    assert (now.log_end_offset, now.leadership.leader) == (2, 2)
    assert before.topic("orders").partitions[1].log_end_offset == 0


def test_the_image_that_it_was_planned_against(brokers: list[Broker], store: MemoryStore) -> None:
    one, two, _ = brokers
    before = one.log.image
    alone = one.publish([accepted(0)], crowded=False)
    assert alone.planned_against() is before
    before = one.log.image
    combined = one.publish([accepted(0)])
    assert combined.planned_against() is before
    two.log.refresh(force=True)
    nothing = two.publish([accepted(0)])
    assert (nothing.actions, nothing.planned_against()) == ((), two.log.image)


def test_an_image_that_nobody_can_tell_any_more(
    brokers: list[Broker], store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, _ = brokers
    seen = one.log.image
    one.publish([accepted(1)], crowded=False)
    request = one.leave([accepted(0)])
    commit = two.publish([accepted(2)]).commit
    commits = [
        read_commit(store, number, one.log.cluster_id) for number in range(seen.commit + 1, commit + 1)
    ]

    def found(*followed: Commit) -> list[int] | None:
        image = image_before(store, seen, commit, request, followed)
        if image is None:
            return None
        return [state.log_end_offset for state in image.topic("orders").partitions]

    assert found() == found(*commits[1:]) == [0, 1, 1]
    monkeypatch.setattr(posted, "MOST_TO_REPLAY", 0)
    assert found(*commits) is None
    monkeypatch.undo()

    def unavailable(operation: str, name: str) -> None:
        raise StorageError("STORE_UNAVAILABLE", f"{operation} {name}", fix="wait")

    store.hook = unavailable
    assert found(*commits[1:]) is None  # and no error: what was asked for is published
    store.hook = None
    store.delete(commit_name(seen.commit + 1))
    assert found(*commits[1:]) is None
    assert found(*commits) == [0, 1, 1]


def test_a_request_of_a_broker_says_by_whom_it_holds(brokers: list[Broker], store: MemoryStore) -> None:
    one, *_ = brokers
    one.leave([accepted(0)])
    (name,) = [file.name for file in store.list(REQUESTS)]
    _, body = map(json.loads, store.read(name).splitlines())
    assert body["publish"]["act_as_broker"] == {
        "node_id": 1,
        "broker_epoch": one.broker_epoch,
        "leader_epoch": 1,
    }


def test_a_lone_broker_posts_nothing(brokers: list[Broker], store: MemoryStore) -> None:
    one, *_ = brokers
    names: list[str] = []
    store.hook = lambda operation, name: names.append(name) if operation.startswith("put") else None
    for _ in range(3):
        one.publish([accepted(0)], crowded=False)
    store.hook = None
    puts = sorted(set(names))
    assert puts == [commit_name(one.log.image.commit - ago) for ago in (2, 1, 0)]


@pytest.mark.parametrize(
    ("races", "took_ms", "posts"),
    [(1, 0, False), (7, 100, False), (8, 0, True), (1, COSTLY_LOSS_MS, True), (2, COSTLY_LOSS_MS, True)],
)
def test_races_that_make_a_broker_post(
    brokers: list[Broker], store: MemoryStore, clock: SleepyClock, races: int, took_ms: int, posts: bool
) -> None:
    """A request takes longer than a race that costs nothing; where losers wait, nobody races twice."""
    one, two, _ = brokers
    left = list(range(races))

    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent" and left:
            number = left.pop()
            store.hook = None
            two.log.publish(lambda _: [SetConfigs(configs={f"x{number}": "1"})])
            clock.advance_ms(took_ms)
            store.hook = hook

    store.hook = hook
    result = one.publish([accepted(0)], crowded=False)
    store.hook = None
    kind = [RequestApplied, ActAsBroker, AppendExtents] if posts else [ActAsBroker, AppendExtents]
    assert kinds(one.log, result.commit) == kind
    assert ends(two.log) == [1, 0, 0]


def lose_a_dear_race(one: Broker, two: Broker, store: MemoryStore, clock: SleepyClock) -> None:
    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent":
            store.hook = None
            two.log.publish(lambda _: [SetConfigs(configs={"x": "1"})])
            clock.advance_ms(1_000)

    store.hook = hook
    one.publish([accepted(0)], crowded=False)


def test_a_broker_posts_for_as_long_as_it_pays_to_believe_that_races_are_dear(
    brokers: list[Broker], store: MemoryStore, clock: SleepyClock
) -> None:
    """Others' requests alone do not make it post, or two that met once would do so forever."""
    one, two, _ = brokers
    lose_a_dear_race(one, two, store, clock)
    posted = []
    for _ in range(30):
        clock.advance_ms(4_000)
        two.publish([accepted(2)])  # each is a request that others have to see
        result = one.publish([accepted(0)], crowded=False)
        posted.append(kinds(one.log, result.commit)[0] is RequestApplied)
    assert posted == [True] * 24 + [False] * 6


def test_a_broker_that_others_starve_beside_joins_them(
    brokers: list[Broker], store: MemoryStore, clock: SleepyClock
) -> None:
    one, two, _ = brokers
    two.leave([accepted(2)])
    posted = []
    for _ in range(40):
        clock.advance_ms(200)
        result = one.publish([accepted(0)], crowded=False)
        posted.append(kinds(one.log, result.commit)[0] is RequestApplied)
    assert 10 <= posted.index(True) <= 20  # it looks once a second, for who has waited for 2.5
    assert ends(two.log)[2] == 1
    assert not posted[-1]  # nobody waits any more


def test_a_broker_that_loses_to_a_queue_joins_it(
    brokers: list[Broker], store: MemoryStore, clock: SleepyClock
) -> None:
    one, two, _ = brokers

    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent":
            store.hook = None
            two.publish([accepted(2)])

    store.hook = hook
    result = one.publish([accepted(0)], crowded=False)
    assert kinds(one.log, result.commit)[0] is RequestApplied
    clock.advance_ms(5_000)
    result = one.publish([accepted(0)], crowded=False)
    assert kinds(one.log, result.commit)[0] is ActAsBroker


# --- transactions ----------------------------------------------------------------------------------------


def test_another_broker_stages_what_holds(brokers: list[Broker]) -> None:
    one, two, _ = brokers
    one.log.publish(lambda image: plan_begin_producer(image, "app", timeout_ms=1_000, now_ms=1).actions)
    parts = [staged(0, 0, opens_ms=5), accepted(1), staged(0, 1, opens_ms=5), staged(1, 5)]
    request = one.leave(parts)
    two.publish([accepted(2)])
    assert ends(two.log) == [0, 1, 1]
    assert two.log.image.has_settled(request.publisher, 0)
    assert two.log.image.transactions["app"].staged_extents == 2
    two.log.publish(
        lambda image: plan_end_transaction(image, "app", 0, 0, committed=True, second=True, now_ms=9).actions
    )
    assert ends(one.log) == [2, 1, 1]


def test_a_request_says_what_it_stages(brokers: list[Broker], store: MemoryStore) -> None:
    brokers[0].leave([staged(0, 0, opens_ms=5), accepted(1)])
    (name,) = [file.name for file in store.list(REQUESTS)]
    _, body = map(json.loads, store.read(name).splitlines())
    assert body["publish"]["staging"] == {"transactional": [1, 0], "opens_ms": [5, -1]}
