"""Group commits that another broker publishes for us, where racing is dear: clients are told what is so."""

from collections.abc import Callable, Iterator

import msgspec
import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.client.publish import share_accepted
from sparklog.format.encode import EncodedBatches
from sparklog.metadata import AcceptedDraft, Image, PublishResult, RequestApplied
from sparklog.metadata.loading import read_commit
from sparklog.metadata.requests import RequestBox
from sparklog.storage import MemoryStore
from sparklog_server.publish.group_commit import Written
from sparklog_server.publish.parts import AppendPart, InTransaction, make_runs
from tests.metadata.broker_requests import draft
from tests.metadata.combining_publishers import (
    REMOTE,
    SleepyClock,
    a_request,
    leave_request,
    lose_after_posting,
)
from tests.server.publish.batches import NOW_MS, batch, part
from tests.server.publish.test_decisions_leaderships import Node
from tests.server.publish.test_group_commit import orders, values
from tests.support.roots import opened
from tests.support.several_brokers import SeveralBrokers
from tests.support.transactional_producer import TransactionalProducer

A, B = 1, 2
Appended = list[tuple[int, int, int]]


@pytest.fixture
def clock() -> SleepyClock:
    return SleepyClock()


@pytest.fixture
def store(clock: SleepyClock) -> MemoryStore:
    return MemoryStore("publish", clock=clock, traits=REMOTE)


@pytest.fixture
def brokers(store: MemoryStore, clock: SleepyClock, log: SparkLog) -> SeveralBrokers:
    return SeveralBrokers(store, clock)


@pytest.fixture
def nodes(
    store: MemoryStore, clock: SleepyClock, log: SparkLog, brokers: SeveralBrokers
) -> Iterator[tuple[Node, Node]]:
    """A leads partitions 0 and 1 of `orders`, B partition 2; somebody is ahead of both, and stands still."""
    with opened(store, clock) as other:
        joined = brokers.join(A, log), brokers.join(B, other)
        for partition, leader in enumerate((A, A, B)):
            brokers.lead(leader, partition=partition)
        nodes = Node(log, joined[0]), Node(other, joined[1])
        leave_request(store, log.metadata, clock, "ahead", None, "never")
        yield nodes


def crowded(node: Node) -> None:
    """It has just met others."""
    node.log.metadata.combiner.contention.note_costly(60_000)


def published_by(b: Node, *also: Callable[[], object]) -> Callable[[], None]:
    """B publishes a part of its own, with all that wait."""

    def publish() -> None:
        crowded(b)
        b.write(b.accept(partition=2))
        for step in also:
            step()

    return publish


def markers(log: SparkLog) -> int:
    """How many requests the newest commit applies."""
    image = log.refresh(force=True)
    _, actions = read_commit(log.store, image.commit, image.cluster_id)
    return sum(isinstance(action, RequestApplied) for action in actions)


def test_a_commit_is_published_by_another(nodes: tuple[Node, Node], clock: SleepyClock) -> None:
    a, b = nodes
    appended: Appended = []

    def on_appended(topic_id: str, partition: int, base_offset: int, encoded: EncodedBatches) -> None:
        appended.append((partition, base_offset, encoded.record_count))

    a.committer.on_appended = on_appended
    parts = a.accept(0), a.accept(2), a.accept(partition=1)
    clock.meanwhile.append(published_by(b))
    crowded(a)
    assert a.write(*parts) == [0, 2, 0]
    assert markers(a.log) == 2
    assert appended == [(0, 0, 4), (1, 0, 2)]
    assert len(values(b.log)) == 4
    assert len(values(b.log, partition=2)) == 2
    assert a.write(a.accept(4)) == [4]


def test_what_is_lost_is_told_so_and_the_rest_is_published(
    nodes: tuple[Node, Node], brokers: SeveralBrokers, clock: SleepyClock
) -> None:
    a, b = nodes

    def meanwhile() -> None:
        brokers.lead(B)
        published_by(b)()
        b.write(b.accept(0))  # the client of the lost part has not waited

    parts = a.accept(0), a.accept(partition=1), a.accept(2)
    clock.meanwhile.append(meanwhile)
    crowded(a)
    outcomes = a.committer.write(parts)
    assert [getattr(one.error, "code", one.base_offset) for one in outcomes] == [
        "NOT_LEADER",
        0,
        "NOT_LEADER",
    ]
    assert "found leader 2 in epoch 2" in str(outcomes[0].error)
    assert len(values(a.log)) == 2


def test_what_may_be_at_one_offset_only_is_left_to_nobody(
    nodes: tuple[Node, Node], clock: SleepyClock
) -> None:
    """A request cannot say so: whoever published it would not look."""
    a, b = nodes
    assert a.write(a.accept()) == [0]
    planned = msgspec.structs.replace(a.accept(), at_offset=2)
    b.log.append("orders", pa.table({"value": [b"spark"]}), partition=0)
    clock.meanwhile.append(published_by(b))
    crowded(a)
    assert a.write(planned, a.accept(partition=1)) == ["PUBLISH_CONTENDED", 0]
    assert a.log.log_end_offset("orders", 0) == 3


def left_behind(a: Node, store: MemoryStore, clock: SleepyClock, sequence: int) -> None:
    """A request of A's that it gave up: two records of producer 5 for partition 0."""
    log = a.log.metadata
    one = draft(
        0,
        producer=(5, 0, sequence),
        record_count=2,
        topic_id=log.image.topic("orders").topic_id,
        max_timestamp_ms=1_700_000_000_000,
    )
    parts = [AcceptedDraft(draft=one, leader_epoch=1, sent_timestamp_ms=one.max_timestamp_ms)]
    registration = a.registration
    shared = share_accepted(
        lambda: parts, node_id=registration.node_id, broker_epoch=registration.broker_epoch
    )
    box, posted = RequestBox(store, clock, log.cluster_id), a_request(log)
    box.post(posted, box.encode(posted, shared.payload()))
    clock.advance_ms(1)


def test_a_duplicate_gets_its_offset_although_the_leadership_is_lost_since(
    nodes: tuple[Node, Node], brokers: SeveralBrokers, store: MemoryStore, clock: SleepyClock
) -> None:
    """It was one by the image of whoever published it; what has come after that changes nothing."""
    a, b = nodes
    left_behind(a, store, clock, 0)
    parts = a.accept(0), a.accept(partition=1), a.accept(2)
    clock.meanwhile.append(published_by(b, lambda: brokers.lead(B)))
    crowded(a)
    outcomes = a.committer.write(parts)
    first, second, third = outcomes
    assert (first.error, first.base_offset, first.duplicate) == (None, 0, True)
    assert (second.error, second.base_offset) == (None, 0)
    # It was left out for the sake of the one before it: it is told to come again, and will hear who leads.
    assert getattr(third.error, "code", "") == "PUBLISH_CONTENDED"
    assert a.log.refresh().partition("orders", 0).log_end_offset == 2


def test_what_cannot_be_judged_any_more_is_to_be_sent_again(
    nodes: tuple[Node, Node], store: MemoryStore, clock: SleepyClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = nodes
    left_behind(a, store, clock, 0)
    parts = a.accept(0), a.accept(partition=1)
    clock.meanwhile.append(published_by(b))
    crowded(a)
    publish = a.log.metadata.publish

    def forgetful(*args: object, **kwargs: object) -> PublishResult:
        result = publish(*args, **kwargs)  # type: ignore[arg-type]
        return PublishResult(commit=result.commit, actions=result.actions, planned_against=nothing)

    def nothing() -> Image | None:
        return None

    monkeypatch.setattr(a.log.metadata, "publish", forgetful)
    assert a.write(*parts) == ["PUBLISH_CONTENDED", 0]
    monkeypatch.undo()
    outcome = a.committer.write([a.accept(0)])[0]
    assert (outcome.base_offset, outcome.duplicate) == (0, True)


def test_a_fenced_broker_hears_it_and_nothing_of_it_is_there(
    nodes: tuple[Node, Node], brokers: SeveralBrokers, clock: SleepyClock
) -> None:
    a, b = nodes

    def meanwhile() -> None:
        brokers.fence(A)
        published_by(b)()

    parts = a.accept(0), a.accept(partition=1)
    clock.meanwhile.append(meanwhile)
    crowded(a)
    assert a.write(*parts) == ["BROKER_FENCED"] * 2
    assert [a.log.refresh().partition("orders", one).log_end_offset for one in range(3)] == [0, 0, 2]


def test_a_commit_of_unknown_fate(nodes: tuple[Node, Node], store: MemoryStore, clock: SleepyClock) -> None:
    """The storage fails while the request is out; it is published, and who sends again hears where."""
    a, b = nodes
    parts = a.accept(0), a.accept(partition=1)
    crowded(a)
    lose_after_posting(store)
    assert a.write(*parts) == ["PUBLISH_UNRESOLVED"] * 2
    store.hook = None
    published_by(b)()
    outcomes = a.committer.write([a.accept(0), a.accept(2)])
    assert [(one.base_offset, one.duplicate) for one in outcomes] == [(0, True), (2, False)]


def test_a_commit_that_was_given_up_does_not_come_later(
    nodes: tuple[Node, Node], store: MemoryStore, clock: SleepyClock
) -> None:
    a, b = nodes
    parts = a.accept(), a.accept(partition=1)
    crowded(a)
    lose_after_posting(store)
    assert a.write(*parts) == ["PUBLISH_UNRESOLVED"] * 2
    store.hook = None
    clock.advance_ms(10_000)  # A has forgotten that there was a crowd
    assert a.write(a.accept()) == [0]
    published_by(b)()
    assert [a.log.refresh().partition("orders", one).log_end_offset for one in range(3)] == [2, 0, 2]


@pytest.mark.parametrize(("kind", "sent_ms"), [("CreateTime", NOW_MS), ("LogAppendTime", None)])
def test_what_must_hold_for_a_run_is_what_is_judged_of_its_first_part(kind: str, sent_ms: int | None) -> None:
    parts = [
        part(producer=(5, 0, 7), message_timestamp_type=kind),
        part(batch(timestamps=[NOW_MS + 1] * 2, producer_id=5, producer_epoch=0, base_sequence=9)),
    ]
    (run,) = make_runs(parts, [0, 1], 1 << 20)
    one = draft(producer=(5, 0, 7), record_count=4, max_timestamp_ms=NOW_MS + 1)
    written = Written(run, run.encoded(), one, False)
    assert written.accepted == AcceptedDraft(draft=one, leader_epoch=1, sent_timestamp_ms=sent_ms)


# --- transactions ------------------------------------------------------------------------------------------


def in_transaction(node: Node, producer: TransactionalProducer, sequence: int, partition: int) -> AppendPart:
    """A batch of the first protocol that this broker reads now."""
    image = node.log.refresh()
    ids = (producer.producer_id, producer.epoch)
    said = InTransaction.of_first_protocol(image, producer.transactional_id, *ids)
    sequenced = (producer.producer_id, producer.epoch, sequence)
    found = orders(node.log, partition, producer=sequenced, transaction=said)
    epoch = node.log.image.partition("orders", partition).leadership.leader_epoch
    return msgspec.structs.replace(found, leader_epoch=epoch)


def test_what_is_staged_is_published_by_another(nodes: tuple[Node, Node], clock: SleepyClock) -> None:
    a, b = nodes
    producer = TransactionalProducer(a.log).begin()
    producer.add(0, 1)
    parts = [in_transaction(a, producer, 0, 0), a.accept(0), in_transaction(a, producer, 0, 1)]
    clock.meanwhile.append(published_by(b))
    crowded(a)
    outcomes = a.committer.write(parts)
    assert [one.base_offset if one.error is None else one.error for one in outcomes] == [-1, 0, -1]
    assert all(outcomes[number].place is not None for number in (0, 2))
    assert markers(a.log) == 2
    assert producer.known.staged_extents == 2
    producer.end()
    assert (len(values(b.log)), len(values(b.log, partition=1))) == (4, 2)


def test_what_its_transaction_did_not_take_is_told_by_the_image_of_whoever_published(
    nodes: tuple[Node, Node], clock: SleepyClock
) -> None:
    a, b = nodes
    producer, other = (TransactionalProducer(b.log, name).begin() for name in ("app", "other"))
    producer.add(0)
    other.add(1)

    def meanwhile() -> None:
        producer.end(commits=False)
        published_by(b)()
        producer.add(0)  # by now another one is open

    parts = [in_transaction(a, producer, 0, 0), in_transaction(a, other, 0, 1)]
    clock.meanwhile.append(meanwhile)
    crowded(a)
    outcomes = a.committer.write(parts)
    assert [getattr(one.error, "code", None) for one in outcomes] == ["TRANSACTION_STATE", None]
    assert (producer.known.staged_extents, other.known.staged_extents) == (0, 1)
    assert a.committer.write([in_transaction(a, producer, 0, 0)])[0].error is None


def test_records_of_a_transaction_that_is_over_are_not_published_by_another_in_the_next_one(
    nodes: tuple[Node, Node], clock: SleepyClock
) -> None:
    a, b = nodes
    producer = TransactionalProducer(b.log).begin()
    producer.add(0)

    def meanwhile() -> None:
        producer.end(commits=False)
        producer.add(0)
        published_by(b)()

    old = in_transaction(a, producer, 0, 0)
    clock.meanwhile.append(meanwhile)
    crowded(a)
    (outcome,) = a.committer.write([old])
    assert getattr(outcome.error, "code", None) == "TRANSACTION_CHANGED"
    assert producer.known.staged_extents == 0
    assert a.committer.write([in_transaction(a, producer, 0, 0)])[0].error is None, (
        "its client may send it again"
    )


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_groups_offsets_of_a_transaction_that_is_over_are_of_no_other(
    nodes: tuple[Node, Node], clock: SleepyClock, *, goes_on: bool
) -> None:
    """Whoever publishes them does not know of groups: they would open the next transaction, or be in it."""
    a, b = nodes
    producer = TransactionalProducer(b.log).begin()
    producer.add(groups=("g",))
    a.log.refresh(force=True)

    def read() -> AppendPart:
        ids = (producer.producer_id, producer.epoch)
        said = InTransaction.of_first_protocol(a.log.image, "app", *ids, group="g")
        return msgspec.structs.replace(in_transaction(a, producer, 0, 0), base_sequence=-1, transaction=said)

    def meanwhile() -> None:
        producer.end(commits=False)
        if goes_on:
            producer.add(groups=("g",))
        published_by(b)()

    clock.meanwhile.append(meanwhile)
    crowded(a)
    (outcome,) = a.committer.write([read()])
    assert getattr(outcome.error, "code", None) == "TRANSACTION_CHANGED"
    assert (producer.known.staged_extents, producer.known.is_ongoing) == (0, goes_on)
    assert (a.committer.write([read()])[0].error is None) is goes_on, (
        "if it comes again, it is of what is open"
    )


def test_a_lost_leadership_is_told_of_what_is_staged_as_well(
    nodes: tuple[Node, Node], brokers: SeveralBrokers
) -> None:
    a, b = nodes
    producer = TransactionalProducer(a.log).begin()
    producer.add(0, 1)
    parts = [in_transaction(a, producer, 0, number) for number in (0, 1)]
    brokers.lead(B)
    outcomes = a.committer.write(parts)
    assert [getattr(one.error, "code", None) for one in outcomes] == ["NOT_LEADER", None]
    assert b.committer.write([in_transaction(b, producer, 0, 0)])[0].error is None
    producer.end()
    assert (len(values(a.log)), len(values(a.log, partition=1))) == (2, 2)
