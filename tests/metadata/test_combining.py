"""Publishers that publish for each other: at most once, whole or not at all, whoever fails meanwhile."""

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import pytest

from sparklog.clock import ManualClock
from sparklog.errors import InvalidRequestError, RetriableError, StorageError
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
from sparklog.metadata.combining import PATIENCE_MS
from sparklog.metadata.documents.paths import DIRECTORY, REQUESTS
from sparklog.metadata.documents.snapshot import read_snapshot
from sparklog.metadata.loading import read_commit
from sparklog.metadata.model.action import ActionRefusedError
from sparklog.metadata.model.apply import apply_actions
from sparklog.metadata.model.image import empty_image
from sparklog.metadata.posted import Posted
from sparklog.metadata.requests import MAX_AGE_MS, MAX_REQUEST_BYTES, SWEEP_AGE_MS, RequestBox
from sparklog.storage import IndefinitePutError, MemoryStore
from sparklog.storage.base import StoreTraits

REMOTE = StoreTraits(is_remote=True, appends_after_sync=False)
FREE = {"put_if_absent:done", "take_turn", "sync_directory", "sync_name", "write", "abort_puts"}
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


@pytest.fixture
def clock() -> SleepyClock:
    return SleepyClock()


@pytest.fixture
def store(clock: SleepyClock) -> MemoryStore:
    return MemoryStore("combining", clock=clock, traits=REMOTE)


class Publisher:
    """One process: sets a key of the root's settings for each publish, once, and counts it."""

    def __init__(self, store: MemoryStore, clock: SleepyClock, *, crowded: bool = True) -> None:
        self.log = MetadataLog.open(
            store, clock, create=True, settings=MetadataSettings(snapshot_bytes=1 << 40)
        )
        self.crowded = crowded

    def publish(self, key: str, txn: int | None = None, *, unless: str = "never", check: bool = True) -> int:
        payload = msgspec.json.encode([key, txn, unless])
        if self.crowded:
            self.log._combiner.note_crowd()
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


def legacy_txn(image: Image, version: int) -> WriterTxn | None:
    """The root-wide form, which needs no topic."""
    known = image.writer_txns.get("app", -1)
    return None if known >= version else WriterTxn(application="app", version=version)


def interpret(payload: bytes) -> Plan:
    key, txn, unless = msgspec.json.decode(payload, type=tuple[str, int | None, str])

    def plan(image: Image) -> list[Action]:
        if unless in image.configs:
            raise InvalidRequestError("TOPIC_EXISTS", f"{unless} is there", fix="none")
        actions: list[Action] = [SetConfigs(configs={key: "x"})]
        if txn is not None:
            marker = legacy_txn(image, txn)
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


# --- who publishes what ------------------------------------------------------------------------------


def test_crowded_publisher_that_finds_nobody(store: MemoryStore, clock: SleepyClock) -> None:
    one = Publisher(store, clock)
    one.publish("a")
    requests: Counter[str] = Counter()
    store.hook = lambda operation, name: requests.update([operation] if operation not in FREE else [])
    one.publish("b", check=False)
    store.hook = None
    assert requests == {"put_hint": 1, "list": 1, "open_read": 1, "put_if_absent": 1, "delete": 1}
    assert actions_of(one.log, 1) == ["request 1 of 1", "b"]
    assert requests_left(store) == 0


def test_lost_race_makes_a_publisher_post(store: MemoryStore, clock: SleepyClock) -> None:
    one, other = Publisher(store, clock, crowded=False), Publisher(store, clock, crowded=False)
    one.publish("a")
    other.publish("b")
    assert actions_of(one.log, 0) == ["a"]
    one.log._company_until_ms = None
    one.publish("c")
    assert actions_of(one.log, 2) == ["request 0 of 1", "c"]
    clock.advance_ms(60_000)
    one.publish("d")
    assert actions_of(one.log, 3) == ["d"]


def test_a_publisher_that_sees_a_queue_joins_it(store: MemoryStore, clock: SleepyClock) -> None:
    one, other = Publisher(store, clock, crowded=False), Publisher(store, clock)
    one.publish("a")
    other.publish("b")
    one.log.refresh()
    assert one.log._combiner.is_crowded
    one.publish("c")
    assert actions_of(one.log, 2) == ["request 0 of 1", "c"]


def test_first_of_the_queue_publishes_for_all(store: MemoryStore, clock: SleepyClock) -> None:
    one = Publisher(store, clock)
    clock.advance_ms(1)
    requests = {"b": leave_request(store, one.log, clock, "b", None, "never")}

    def hook(operation: str, name: str) -> None:
        if operation == "put_hint":  # the others are younger
            store.hook = None
            requests["c"] = leave_request(store, one.log, clock, "c", None, "never")

    store.hook = hook
    assert one.publish("a") == 0
    assert actions_of(one.log, 0) == ["request 0 of 1", "a", "request 0 of 1", "b", "request 0 of 1", "c"]
    for publisher in requests.values():
        assert one.log.image.has_settled(publisher, 0)
    assert one.publish("d") == 1  # what is left of the others is not applied again
    assert actions_of(one.log, 1) == ["request 1 of 1", "d"]


def test_a_waiting_publisher_finds_itself_published(store: MemoryStore, clock: SleepyClock) -> None:
    poster, combiner = Publisher(store, clock), Publisher(store, clock)
    leave_request(store, poster.log, clock, "ahead", None, "never")
    clock.meanwhile.append(lambda: combiner.publish("theirs"))
    assert poster.publish("ours") == 0
    assert sorted(poster.log.image.configs) == ["ahead", "ours", "theirs"]
    assert poster.log.image.commit == 0
    assert requests_left(store) == 1  # of the crashed one; the sweeper takes it
    assert poster.publish("again") == 1
    assert combiner.log.refresh() == poster.log.image


def test_a_publisher_that_waits_costs_one_request_to_post_and_one_to_delete(
    store: MemoryStore, clock: SleepyClock
) -> None:
    poster, combiner = Publisher(store, clock), Publisher(store, clock)
    leave_request(store, poster.log, clock, "ahead", None, "never")
    requests: Counter[str] = Counter()
    hook = lambda operation, name: requests.update([operation] if operation not in FREE else [])  # noqa: E731

    def combine() -> None:
        store.hook = None
        combiner.publish("theirs")
        store.hook = hook

    clock.meanwhile.append(combine)
    poster.crowded = False
    poster.log.refresh()
    poster.log._combiner.note_crowd()
    store.hook = hook
    poster.publish("ours", check=False)
    assert requests == {"put_hint": 1, "list": 1, "open_read": 1, "delete": 1}


def test_all_or_nothing_and_in_the_order_of_the_queue(store: MemoryStore, clock: SleepyClock) -> None:
    """The second request of one transaction is not applied; one that cannot apply is left alone."""
    one = Publisher(store, clock)
    leave_request(store, one.log, clock, "first", 7, "never")
    leave_request(store, one.log, clock, "second", 7, "never")
    refused = leave_request(store, one.log, clock, "third", None, "first")
    leave_request(store, one.log, clock, "fourth", 8, "never")
    one.publish("own")
    assert actions_of(one.log, 0) == [
        "request 0 of 1",
        "own",
        "request 0 of 2",
        "first",
        "WriterTxn",
        "request 0 of 2",
        "fourth",
        "WriterTxn",
    ]
    assert not one.log.image.has_settled(refused, 0)


@pytest.mark.parametrize("damage", ["truncated", "another root", "payload", "version", "huge", "gone"])
def test_unusable_requests_are_passed_over(store: MemoryStore, clock: SleepyClock, damage: str) -> None:
    one = Publisher(store, clock)
    publisher = leave_request(store, one.log, clock, "x", None, "never")
    (name,) = [file.name for file in store.list(REQUESTS)]
    data = store.read(name)
    if damage == "truncated":
        store.put_hint(name, data[:-9])
    elif damage == "another root":
        box = RequestBox(store, clock, "X" * 22)
        store.put_hint(name, box.encode(a_request(one.log, publisher), b'["x",null,"never"]'))
    elif damage == "payload":
        box = RequestBox(store, clock, one.log.cluster_id)
        store.put_hint(name, box.encode(a_request(one.log, publisher), b'{"a":1}'))
    elif damage == "version":
        store.put_hint(name, data.replace(b'"version":4', b'"version":9'))
    elif damage == "huge":
        store.put_hint(name, data + bytes(MAX_REQUEST_BYTES))
    else:
        store.hook = lambda operation, at: (
            store.delete(name) if operation == "open_read" and at == name else None
        )
    one.publish("a")
    store.hook = None
    assert sorted(one.log.image.configs) == ["a"]


def test_old_requests_are_not_applied(store: MemoryStore, clock: SleepyClock) -> None:
    one = Publisher(store, clock)
    leave_request(store, one.log, clock, "old", None, "never")
    clock.advance_ms(MAX_AGE_MS)
    one.publish("a")
    assert sorted(one.log.image.configs) == ["a"]
    clock.advance_ms(SWEEP_AGE_MS)
    RequestBox(store, clock, one.log.cluster_id).sweep()
    assert requests_left(store) == 0


def test_too_large_a_request_is_published_alone(store: MemoryStore, clock: SleepyClock) -> None:
    one = Publisher(store, clock)
    key = "k" * MAX_REQUEST_BYTES
    one.publish(key)
    assert actions_of(one.log, 0) == [key]


def test_others_publish_without_requests_as_well(store: MemoryStore, clock: SleepyClock) -> None:
    """A plan that nobody else can carry out races as ever, and those who wait see it."""
    one, other = Publisher(store, clock), Publisher(store, clock)
    leave_request(store, one.log, clock, "ahead", None, "never")
    clock.meanwhile.append(lambda: other.log.publish(lambda image: [SetConfigs(configs={"plain": "x"})]))
    assert one.publish("a") == 1
    assert sorted(one.log.image.configs) == ["a", "ahead", "plain"]


# --- errors, and who gets them -------------------------------------------------------------------------


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
    again = a_request(poster.log, poster.log._combiner._publisher)
    box = RequestBox(store, clock, poster.log.cluster_id)
    box.post(again, box.encode(again, b'["ours",null,"stop"]'))
    other.publish("more")
    assert "ours" not in other.log.image.configs
    assert poster.publish("next") == other.log.image.commit + 1


def test_actions_that_do_not_apply_are_an_error(store: MemoryStore, clock: SleepyClock) -> None:
    one, other = Publisher(store, clock), Publisher(store, clock)
    leave_request(store, one.log, clock, "ahead", None, "never")

    def plan(image: Image) -> list[Action]:
        return [WriterTxn(application="app", version=5)]  # whatever the image says

    clock.meanwhile.append(lambda: other.log.publish(plan))
    one.log._combiner.note_crowd()
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
    assert poster.log.image.writer_txns == {"app": 3}
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

    def hook(operation: str, name: str) -> None:
        if operation == "list" and name == REQUESTS:
            raise StorageError("STORAGE_FAILED", "no answer", fix="none")

    store.hook = hook
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
    one = Publisher(store, clock)
    one.log._settings = MetadataSettings(publish_timeout_ms=100)
    leave_request(store, one.log, clock, "ahead", None, "never")
    with pytest.raises(StorageError, match="the time was up"):
        one.publish("a")
    assert clock.monotonic_ms() < 500
    one.log._settings = MetadataSettings()
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
        (name,) = [at for at in posted if one.log._combiner._publisher in at]
        found = json.loads(store.read(name).splitlines()[1])
        marker = RequestApplied(
            publisher=one.log._combiner._publisher, sequence=0, base=found["base"], nonce=found["nonce"]
        )
        other.log.publish(lambda image: [marker])

    posted: list[str] = []
    store.hook = lambda operation, name: posted.append(name) if operation == "put_hint" else None
    clock.meanwhile.append(take_back)
    with pytest.raises(RetriableError, match="taken back"):
        one.publish("a")


def test_child_of_a_fork_is_another_publisher(store: MemoryStore, clock: SleepyClock) -> None:
    one = Publisher(store, clock)
    one.publish("a")
    parent = one.log._combiner._publisher
    child = os.fork()
    if child == 0:
        status = 1
        try:
            one.publish("child")
            fresh = one.log._combiner
            status = 0 if fresh._publisher != parent and fresh._sequence == 0 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- what an image remembers ---------------------------------------------------------------------------


def applied(image: Image, *actions: Action) -> Image:
    return apply_actions(image, actions, commit=image.commit + 1, commit_uuid="u")


def test_no_image_takes_a_sequence_twice() -> None:
    image = applied(empty_image("C" * 22), RequestApplied(publisher="P" * 22, sequence=3, nonce="N" * 22))
    assert image.has_settled("P" * 22, 3)
    assert image.has_settled("P" * 22, 2)
    assert not image.has_settled("P" * 22, 4)
    for sequence in (3, 2):
        with pytest.raises(ActionRefusedError, match="expected one above 3"):
            applied(image, RequestApplied(publisher="P" * 22, sequence=sequence, nonce="M" * 22))


@pytest.mark.parametrize(
    ("action", "found"),
    [
        (RequestApplied(publisher="P", sequence=0), "malformed"),
        (RequestApplied(publisher="P" * 22, sequence=-1), "sequence -1"),
        (RequestApplied(publisher="P" * 22, sequence=0, actions=-1), "-1 actions"),
        (RequestApplied(publisher="P" * 22, sequence=0, actions=1), "1 actions of a request, found 0"),
        (RequestApplied(publisher="P" * 22, sequence=0, nonce="N"), "nonce 'N' is malformed"),
        (RequestApplied(publisher="P" * 22, sequence=0, nonce="N" * 22, base=-2), "base -2"),
    ],
)
def test_illegal_markers(action: RequestApplied, found: str) -> None:
    with pytest.raises(ActionRefusedError, match=found):
        applied(empty_image("C" * 22), action)


def test_snapshots_keep_what_is_settled_in_its_order(store: MemoryStore, clock: SleepyClock) -> None:
    publishers = [Publisher(store, clock) for _ in range(3)]
    for number in (0, 1, 2, 0):
        publishers[number].publish(f"key-{number}")
    log = publishers[0].log
    commit = log.write_snapshot()
    image = read_snapshot(store, commit, cluster_id=log.cluster_id)
    assert image == log.image
    assert list(image.publishers) == list(log.image.publishers)
    assert list(image.publishers)[-1] == log._combiner._publisher


def test_a_dead_request_holds_nobody_up_though_the_log_keeps_moving(
    store: MemoryStore, clock: SleepyClock
) -> None:
    """A publisher alone, which meets no queue, commits all the time; that is no sign of life of others."""
    one, busy = Publisher(store, clock), Publisher(store, clock)
    for number in range(3):
        leave_request(store, one.log, clock, f"dead {number}", None, "never")
    count = 0

    def publish() -> None:
        nonlocal count
        count += 1
        busy.log.publish(lambda image: [SetConfigs(configs={f"busy {count}": "x"})])
        clock.meanwhile.append(publish)

    clock.meanwhile.append(publish)
    start_ms = clock.monotonic_ms()
    one.publish("a", check=False)
    assert clock.monotonic_ms() - start_ms < 7 * PATIENCE_MS
    assert "a" in one.log.image.configs


def test_what_a_publisher_gave_up_is_not_waited_for(store: MemoryStore, clock: SleepyClock) -> None:
    one = Publisher(store, clock)
    box = RequestBox(store, clock, one.log.cluster_id)
    publisher = new_id()
    for sequence in range(20):
        payload = msgspec.json.encode((f"old {sequence}", None, "never"))
        posted = a_request(one.log, publisher, sequence)
        box.post(posted, box.encode(posted, payload))
        clock.advance_ms(1)
    start_ms = clock.monotonic_ms()
    one.publish("a", check=False)
    assert clock.monotonic_ms() - start_ms < 3 * PATIENCE_MS
