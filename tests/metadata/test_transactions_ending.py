"""Ends of transactions: what they append, in which order, who may, and how repetitions are answered."""

from collections.abc import Sequence

import pytest

from sparklog.errors import FencedError, InvalidRequestError, SparklogError
from sparklog.metadata import (
    AllocateProducerIds,
    EndTransaction,
    TransactionPhase,
    plan_abort_transactions,
    plan_end_transaction,
    timed_out,
)
from sparklog.metadata.model import transactions as model
from sparklog.metadata.model.action import ActionRefusedError
from tests.metadata.test_transactions import begin
from tests.metadata.transacting import TOPIC, Producer, Root


@pytest.fixture
def root() -> Root:
    return Root()


def code_of(root: Root, producer: Producer, **fields: bool | int | str) -> str:
    before = root.image
    with pytest.raises(SparklogError) as raised:
        root.end(producer, **fields)  # type: ignore[arg-type]
    assert root.image is before
    return raised.value.code


# --- what an end does --------------------------------------------------------------------------------


def test_a_commit_appends_in_the_order_of_staging_behind_what_is_there(root: Root) -> None:
    producer = root.open("app", 1, 0)
    root.stage(producer, 0, 3)
    root.append(9, 0, 5)
    root.stage(producer, 0, 2, partition=1)
    root.stage(producer, 3, 1)
    root.append(9, 5, 2)
    ended = plan_end_transaction(root.image, "app", *producer, committed=True, second=False, now_ms=2_000)
    assert ended.ranges == {(TOPIC, 0): (7, 4), (TOPIC, 1): (0, 2)}
    root.apply(*ended.actions)
    assert root.visible() == [(0, 5, 0), (5, 2, 5), (7, 3, 0), (10, 1, 3)]
    assert [one.offset_delta for one in root.image.partition("orders", 0).extents] == [0, 5, 7, 10]
    assert root.visible(1) == [(0, 2, 0)]
    assert [one.log_end_offset for one in root.image.topic("orders").partitions] == [11, 2, 0]
    assert root.image.partition("orders", 0).producers[producer[0]].last_offset == 10
    one = root.transaction()
    assert (one.phase, one.changed_ms, list(one.partitions), one.groups) == (
        TransactionPhase.COMMITTED,
        2_000,
        [],
        (),
    )
    assert (root.image.transactions.staged_extents, root.image.transactions.staging) == (0, {})


def test_many_staged_extents_become_records(root: Root) -> None:
    producer = root.open()
    for number in range(100):
        root.stage(producer, number)
    root.append(9, 0, 5)
    root.end(producer)
    root.append(9, 5)
    assert root.visible() == [(0, 5, 0), *((5 + number, 1, number) for number in range(100)), (105, 1, 5)]


def test_an_abort_drops(root: Root) -> None:
    producer = root.open()
    root.stage(producer, 0, 3)
    root.append(9, 0)
    root.end(producer, committed=False)
    assert root.visible() == [(0, 1, 0)]
    assert root.transaction().phase is TransactionPhase.ABORTED
    assert (root.image.transactions.staged_bytes, root.image.transactions.staging) == (0, {})


def test_an_end_needs_nothing_staged(root: Root) -> None:
    producer = root.open()
    root.end(producer)
    assert root.transaction().phase is TransactionPhase.COMMITTED


# --- first protocol ----------------------------------------------------------------------------------


@pytest.mark.parametrize("committed", [True, False])
def test_a_repeated_end_is_answered_by_what_was_decided(root: Root, *, committed: bool) -> None:
    producer = root.open()
    root.stage(producer, 0)
    number = root.transaction().number
    root.end(producer, committed=committed, number=number)
    commit = root.image.commit
    assert root.end(producer, committed=committed, number=number) == producer
    assert root.image.commit == commit
    assert code_of(root, producer, committed=not committed, number=number) == "TRANSACTION_STATE"


def test_a_slow_end_does_not_end_the_next_transaction(root: Root) -> None:
    producer = root.open()
    slow = root.transaction().number
    root.end(producer)
    root.add(producer, 0)
    root.stage(producer, 0)
    assert code_of(root, producer, number=slow) == "TRANSACTION_STATE"
    with pytest.raises(ActionRefusedError, match="an end of transaction 1, expected 2"):
        root.apply(end(number=1))
    root.end(producer, number=2)
    assert root.visible() == [(0, 1, 0)]


def test_nothing_is_open(root: Root) -> None:
    producer = root.begin()
    assert code_of(root, producer) == "TRANSACTION_STATE"
    assert code_of(root, producer, committed=False) == "TRANSACTION_STATE"


def test_who_ends_is_its_producer(root: Root) -> None:
    root.open()
    assert code_of(root, (0, 1)) == "PRODUCER_FENCED"
    assert code_of(root, (1, 0)) == "PRODUCER_UNMAPPED"
    assert code_of(root, (0, 0), name="job") == "PRODUCER_UNMAPPED"
    assert code_of(root, (0, 1), second=True) == "PRODUCER_FENCED"
    assert code_of(root, (1, 0), second=True) == "PRODUCER_UNMAPPED"


# --- second protocol ---------------------------------------------------------------------------------


@pytest.mark.parametrize("committed", [True, False])
def test_each_end_raises_the_epoch(root: Root, *, committed: bool) -> None:
    first = root.begin()
    root.stage(first, 0, 2, opens=True)
    second = root.end(first, committed=committed, second=True)
    assert second == (0, 1)
    assert root.visible() == ([(0, 2, 0)] if committed else [])
    commit = root.image.commit
    assert root.end(first, committed=committed, second=True) == second  # the answer was lost
    assert root.image.commit == commit
    assert code_of(root, first, committed=not committed, second=True) == "TRANSACTION_STATE"
    root.stage(second, 0, opens=True)
    assert code_of(root, first, committed=committed, second=True) == "PRODUCER_FENCED"
    assert root.end(second, second=True) == (0, 2)


def test_an_abort_of_nothing_raises_it_too(root: Root) -> None:
    first = root.begin()
    second = root.end(first, committed=False, second=True)
    assert second == (0, 1)
    assert root.end(first, committed=False, second=True) == second
    assert root.end(second, committed=False, second=True) == (0, 2)


def test_a_commit_of_nothing_is_refused(root: Root) -> None:
    producer = root.begin()
    assert code_of(root, producer, second=True) == "TRANSACTION_STATE"
    root.stage(producer, 0, opens=True)
    after = root.end(producer, second=True)
    assert code_of(root, after, second=True) == "TRANSACTION_STATE"


def test_an_end_that_another_process_has_followed_is_fenced(root: Root) -> None:
    first = root.begin()
    root.stage(first, 0, opens=True)
    root.end(first, second=True)
    root.begin()
    assert code_of(root, first, second=True) == "PRODUCER_FENCED"
    assert code_of(root, (0, 1), second=True) == "PRODUCER_FENCED"


@pytest.mark.parametrize("committed", [True, False])
def test_an_end_of_the_first_protocol_is_no_answer_to_the_epoch_before(
    root: Root, *, committed: bool
) -> None:
    gone = root.begin()
    root.stage(gone, 0, opens=True)
    producer = root.open()  # another process, of an older client: what is open is aborted
    root.end(producer, committed=committed)
    assert code_of(root, gone, committed=committed, second=True) == "PRODUCER_FENCED"


def test_nor_when_it_is_of_the_process_that_had_that_epoch(root: Root) -> None:
    before = root.begin()
    producer = root.begin(known=before)
    root.add(producer, 0)
    root.end(producer)
    assert code_of(root, before, second=True) == "PRODUCER_FENCED"
    with pytest.raises(FencedError, match="PRODUCER_FENCED"):
        root.begin(known=before)


def test_a_process_that_was_not_told_of_its_end_may_initialise_itself(root: Root) -> None:
    first = root.begin()
    root.stage(first, 0, opens=True)
    second = root.end(first, second=True)
    assert root.begin(known=first) == second
    assert root.transaction().phase is TransactionPhase.COMMITTED


def test_epochs_run_out_at_an_end(root: Root) -> None:
    root.begin()
    root.apply(*(begin(0, epoch) for epoch in range(1, 32_767)))
    last = 0, 32_766
    root.stage(last, 0, opens=True)
    ended = plan_end_transaction(root.image, "app", *last, committed=True, second=True, now_ms=1)
    assert [type(one) for one in ended.actions] == [AllocateProducerIds, EndTransaction]
    root.apply(*ended.actions)
    assert root.visible() == [(0, 1, 0)]
    assert root.end(last, second=True) == (1, 0)  # the answer was lost
    assert code_of(root, last, committed=False, second=True) == "TRANSACTION_STATE"
    assert root.begin(known=last) == (1, 0)
    root.stage((1, 0), 0, opens=True)
    assert code_of(root, last, second=True) == "PRODUCER_UNMAPPED"


# --- by others ---------------------------------------------------------------------------------------


def test_what_takes_too_long_is_aborted_and_its_producer_fenced(root: Root) -> None:
    producer = root.open()
    root.stage(producer, 0)
    assert timed_out(root.image, 60_999) == []
    root.now_ms = 61_000
    assert timed_out(root.image, 61_000) == ["app"]
    root.abort("app")
    assert timed_out(root.image, 200_000) == []
    assert root.visible() == []
    assert root.transaction().phase is TransactionPhase.ABORTED
    assert code_of(root, producer) == "PRODUCER_FENCED"
    with pytest.raises(FencedError):
        root.stage(producer, 1)
    with pytest.raises(FencedError):
        root.begin(known=producer)  # nobody was told that it has the next epoch


def test_a_late_end_of_the_second_protocol_is_told_that_it_was_aborted(root: Root) -> None:
    producer = root.begin()
    root.stage(producer, 0, opens=True)
    root.abort("app")
    assert code_of(root, producer, second=True) == "TRANSACTION_STATE"
    assert root.end(producer, committed=False, second=True) == (0, 1)


def test_only_what_is_open_is_aborted(root: Root) -> None:
    root.begin("empty")
    root.open("open", 0)
    root.end(root.open("over", 1), name="over")
    names = ["empty", "open", "over", "unknown", "open"]
    actions = plan_abort_transactions(root.image, names, now_ms=1)
    assert [one.transactional_id for one in actions if isinstance(one, EndTransaction)] == ["open"]
    assert plan_abort_transactions(root.image, ["over"], now_ms=1) == []


@pytest.mark.slow
def test_several_that_have_run_out_of_epochs_get_an_id_each(root: Root) -> None:
    for number, name in enumerate(("one", "two")):
        root.begin(name)
        root.apply(*(begin(number, epoch, name) for epoch in range(1, 32_767)))
        root.add((number, 32_766), 0, name=name)
    root.open("three")
    root.abort("one", "two", "three")
    found = {name: (one.producer_id, one.producer_epoch) for name, one in root.image.transactions.items()}
    assert found == {"one": (3, 0), "two": (4, 0), "three": (2, 1)}


def test_not_more_are_aborted_at_once_than_a_commit_should_have(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "MAX_TIMED_OUT_TRANSACTIONS", 2)
    for name in ("a", "b", "c"):
        root.open(name)
    first = timed_out(root.image, 1 << 40)
    assert len(set(first)) == 2
    root.abort(*first)
    assert {*first, *timed_out(root.image, 1 << 40)} == {"a", "b", "c"}


# --- what apply refuses ------------------------------------------------------------------------------


def end(**fields: object) -> EndTransaction:
    values = {
        "transactional_id": "app",
        "producer_id": 0,
        "producer_epoch": 0,
        "committed": True,
        "time_ms": 1,
        **fields,
    }
    return EndTransaction(**values)  # type: ignore[arg-type]


ILLEGAL: Sequence[tuple[dict[str, object], str]] = (
    ({"producer_epoch": 1}, "of producer 0 epoch 0"),
    ({"producer_id": 1}, "of producer 0 epoch 0"),
    ({"transactional_id": "job"}, "is unknown"),
    ({"number": 2}, "an end of transaction 2, expected 1"),
    ({"time_ms": -1}, "time -1 is out of range"),
    ({"next_producer_id": 0, "next_producer_epoch": 2}, "expected the one after 0 in epoch 0"),
    ({"next_producer_id": 0, "next_producer_epoch": 0}, "expected the one after 0 in epoch 0"),
    ({"next_producer_id": 5, "next_producer_epoch": 0}, "expected the one after 0 in epoch 0"),
    ({"next_producer_epoch": 1}, "expected the one after 0 in epoch 0"),
)


@pytest.mark.parametrize(("fields", "reason"), ILLEGAL)
def test_illegal_ends(root: Root, fields: dict[str, object], reason: str) -> None:
    root.open()
    with pytest.raises(ActionRefusedError, match=reason):
        root.apply(end(**fields))


def test_a_second_end_does_not_apply(root: Root) -> None:
    root.open()
    root.apply(end())
    for again in (end(), end(committed=False)):
        with pytest.raises(ActionRefusedError, match="an end of what is committed"):
            root.apply(again)


def test_offsets_run_out(root: Root) -> None:
    producer = root.open()
    root.stage(producer, 0, (1 << 63) - 1)
    root.append(9, 0)
    with pytest.raises(ActionRefusedError, match="no offsets are left"):
        root.end(producer)
    with pytest.raises(ActionRefusedError, match="record_count"):
        root.stage(producer, 0x7FFFFFFF, 1)
    root.end(producer, committed=False)


def test_a_plan_needs_a_time(root: Root) -> None:
    producer = root.open()
    root.now_ms = -1
    with pytest.raises(InvalidRequestError, match="time -1"):
        root.end(producer)
