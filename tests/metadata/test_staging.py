"""Staging: which batches a transaction takes, what their sequences mean, and what refers to them."""

import pytest

from sparklog.errors import FencedError, InvalidRequestError, RetriableError, SparklogError, UnknownTopicError
from sparklog.metadata import (
    ExpireProducers,
    MoveSweepHorizon,
    StageExtents,
    TransactionPhase,
    plan_delete_topic,
    plan_stage,
    was_staged,
)
from sparklog.metadata.model import staging as model
from sparklog.metadata.model.action import ActionRefusedError
from sparklog.metadata.model.transaction_values import (
    PARTITION_WEIGHT,
    STAGED_EXTENT_WEIGHT,
    STAGED_PARTITION_WEIGHT,
    TOPIC_WEIGHT,
)
from tests.metadata.transacting import OTHER, TOPIC, Root, draft

# Of a partition in which one extent is staged, and of its topic.
_WEIGHT = TOPIC_WEIGHT + PARTITION_WEIGHT + STAGED_PARTITION_WEIGHT + STAGED_EXTENT_WEIGHT


@pytest.fixture
def root() -> Root:
    return Root()


def refused(root: Root, *args: object, **fields: object) -> str:
    """The plan's code; what is refused changes nothing, and apply refuses it as well."""
    staging = root.staging(*args, **fields)  # type: ignore[arg-type]
    with pytest.raises(SparklogError) as raised:
        plan_stage(root.image, [staging])
    with pytest.raises(ActionRefusedError):
        root.apply(StageExtents(extents=(staging.draft,), opens_ms=staging.opens_ms))
    return raised.value.code


def test_staged_extents_count_from_0_and_are_no_records(root: Root) -> None:
    producer = root.open("app", 0, 1)
    root.stage(producer, 0, 3)
    root.stage(producer, 3, 2)
    root.stage(producer, 0, 1, partition=1)
    staged = root.transaction().staged_in(TOPIC, 0)
    assert [(one.base_offset, one.offset_delta, one.record_count) for one in staged] == [(0, 0, 3), (3, 3, 2)]
    assert root.visible() == root.visible(1) == []
    assert root.image.partition("orders", 0).log_end_offset == 0
    one, all_of_them = root.transaction(), root.image.transactions
    assert (one.staged_extents, one.staged_bytes) == (3, 300)
    assert (all_of_them.staged_extents, all_of_them.staged_bytes) == (3, 300)
    assert all_of_them.staging == {(TOPIC, 0): {0}, (TOPIC, 1): {0}}


# --- first protocol ----------------------------------------------------------------------------------


def test_a_partition_is_added_before(root: Root) -> None:
    producer = root.begin()
    assert refused(root, producer, 0) == "TRANSACTION_STATE"
    root.add(producer, 0)
    assert refused(root, producer, 0, partition=1) == "TRANSACTION_STATE"
    root.end(producer)
    assert refused(root, producer, 0) == "TRANSACTION_STATE"


def test_who_stages_is_the_producer_of_a_transactional_id(root: Root) -> None:
    root.open()
    assert refused(root, (0, 1), 0) == "PRODUCER_FENCED"
    assert refused(root, (9, 0), 0) == "PRODUCER_UNMAPPED"
    assert refused(root, (-1, -1), -1) == "INVALID_ACTIONS"
    assert refused(root, (0, 0), 0, size=60) == "INVALID_ACTIONS"


def test_the_partition_exists(root: Root) -> None:
    producer = root.open()
    with pytest.raises(UnknownTopicError):
        root.stage(producer, 0, topic_id="Z" * 22)
    with pytest.raises(UnknownTopicError):
        root.stage(producer, 0, partition=3)


def test_sequences_count_when_they_are_staged(root: Root) -> None:
    producer = root.open()
    root.stage(producer, 0, 3)
    assert refused(root, producer, 4) == "OUT_OF_ORDER_SEQUENCE"
    assert refused(root, producer, 0, 3) == "DUPLICATE_SEQUENCE"
    root.stage(producer, 3)


@pytest.mark.parametrize("committed", [True, False])
def test_sequences_go_on_behind_either_verdict(root: Root, *, committed: bool) -> None:
    producer = root.open()
    root.stage(producer, 0, 3)
    root.end(producer, committed=committed)
    root.add(producer, 0)
    assert refused(root, producer, 0, 3) == "DUPLICATE_SEQUENCE"
    assert refused(root, producer, 4) == "OUT_OF_ORDER_SEQUENCE"
    root.stage(producer, 3, 2)
    root.end(producer)
    assert root.visible() == ([(0, 3, 0), (3, 2, 3)] if committed else [(0, 2, 3)])


def test_what_was_staged_is_known_by_its_sequence(root: Root) -> None:
    producer = root.open()
    root.stage(producer, 0, 3)
    root.stage(producer, 3, 2)
    assert was_staged(root.image, draft(producer, 0, 3))
    assert was_staged(root.image, draft(producer, 1, 2))
    assert not was_staged(root.image, draft(producer, 3, 3))
    root.end(producer)
    assert was_staged(root.image, draft(producer, 3, 2))  # appended
    root.add(producer, 0)
    root.stage(producer, 5)
    root.end(producer, committed=False)
    assert not was_staged(root.image, draft(producer, 5))


# --- second protocol ---------------------------------------------------------------------------------


def test_a_batch_opens_and_adds(root: Root) -> None:
    producer = root.begin()
    root.now_ms = 7_000
    root.stage(producer, 0, opens=True)
    root.stage(producer, 0, partition=2, opens=True)
    one = root.transaction()
    assert (one.phase, one.number, one.started_ms) == (TransactionPhase.ONGOING, 1, 7_000)
    assert list(one.partitions) == [(TOPIC, 0), (TOPIC, 2)]


def test_several_batches_of_one_commit_open_once(root: Root) -> None:
    producer = root.begin()
    parts = [
        root.staging(producer, 0, 2, opens=True),
        root.staging(producer, 2, 2, opens=True),
        root.staging(producer, 0, 2, opens=True, partition=1),
    ]
    root.apply(plan_stage(root.image, parts))
    assert root.transaction().number == 1
    assert root.transaction().staged_extents == 3
    assert root.transaction().staged_in(TOPIC, 0).end_offset == 4


def test_an_epoch_begins_with_sequence_0(root: Root) -> None:
    first = root.begin()
    assert refused(root, first, 5, opens=True) == "OUT_OF_ORDER_SEQUENCE"
    root.stage(first, 0, 5, opens=True)
    root.stage(first, 5, opens=True)
    second = root.end(first, second=True)
    assert second == (0, 1)
    assert refused(root, second, 6, opens=True) == "OUT_OF_ORDER_SEQUENCE"
    assert refused(root, first, 6, opens=True) == "PRODUCER_FENCED"
    root.stage(second, 0, opens=True)


def test_in_the_first_protocol_a_producer_that_is_not_known_may_start_anywhere(root: Root) -> None:
    root.stage(root.open(), 5)


# --- bounds ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "bound", "code"),
    [
        ("MAX_STAGED_EXTENTS", 2, "TRANSACTION_TOO_LARGE"),
        ("MAX_STAGED_BYTES", 299, "TRANSACTION_TOO_LARGE"),
        ("MAX_ROOT_WEIGHT", _WEIGHT + STAGED_EXTENT_WEIGHT, "TRANSACTIONS_FULL"),
        ("MAX_ROOT_STAGED_BYTES", 299, "TRANSACTIONS_FULL"),
    ],
)
def test_what_is_staged_is_bounded(
    root: Root, monkeypatch: pytest.MonkeyPatch, name: str, bound: int, code: str
) -> None:
    monkeypatch.setattr(model, name, bound)
    producer = root.open()
    three = [root.staging(producer, number) for number in range(3)]
    root.apply(plan_stage(root.image, three[:1]))
    with pytest.raises(SparklogError) as raised:
        plan_stage(root.image, three[1:])
    assert raised.value.code == code
    root.apply(plan_stage(root.image, three[1:2]))
    with pytest.raises(SparklogError) as raised:
        plan_stage(root.image, three[2:])
    assert raised.value.code == code
    root.end(producer, committed=False)
    root.add(producer, 0)
    root.stage(producer, 2)  # there is room again


def test_bytes_of_a_root_are_those_of_all_transactions(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "MAX_ROOT_STAGED_BYTES", 250)
    one, two = root.open("one", 0), root.open("two", 0)
    root.stage(one, 0)
    root.stage(two, 0)
    with pytest.raises(RetriableError):
        root.stage(two, 1)
    root.abort("one")
    root.stage(two, 1)


def test_partitions_are_bounded_when_batches_add_them(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "MAX_TRANSACTION_PARTITIONS", 2)
    producer = root.begin()
    parts = [root.staging(producer, 0, opens=True, partition=number) for number in range(3)]
    with pytest.raises(InvalidRequestError, match="2 partitions"):
        plan_stage(root.image, parts)
    root.apply(plan_stage(root.image, parts[:2]))
    root.stage(producer, 1, opens=True, partition=1)


def test_partitions_of_all_transactions_are_bounded_when_batches_add_them(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "MAX_ROOT_WEIGHT", 3 * _WEIGHT + STAGED_EXTENT_WEIGHT)
    one, two = root.begin("one"), root.begin("two")
    parts = [root.staging(one, 0, opens=True, partition=number) for number in range(2)]
    parts += [root.staging(two, 0, opens=True, partition=number) for number in range(2)]
    with pytest.raises(RetriableError, match=f"{4 * _WEIGHT} bytes") as raised:
        plan_stage(root.image, parts)
    assert raised.value.code == "TRANSACTIONS_FULL"
    root.apply(plan_stage(root.image, parts[:3]))
    assert root.image.transactions.weight == 3 * _WEIGHT - TOPIC_WEIGHT  # two partitions are of one topic
    with pytest.raises(RetriableError):
        root.stage(two, 0, opens=True, partition=1)
    root.stage(one, 1, opens=True, partition=1)
    root.abort("one")
    root.stage(two, 0, opens=True, partition=1)


def test_producers_that_stage_in_a_partition_are_bounded(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "MAX_STAGING_PRODUCERS", 2)
    producers = [root.open(str(number), 0, 1) for number in range(3)]
    parts = [root.staging(one, 0) for one in producers]
    with pytest.raises(RetriableError, match="2 transactions with something staged in partition 0"):
        plan_stage(root.image, parts)
    root.apply(plan_stage(root.image, parts[:2]))
    assert refused(root, producers[2], 0) == "TRANSACTIONS_FULL"
    root.stage(producers[0], 1)
    root.stage(producers[2], 0, partition=1)


# --- what refers to it, and who is remembered --------------------------------------------------------


def test_a_staged_extent_is_live(root: Root) -> None:
    producer = root.open()
    root.stage(producer, 0, segment="segments/w/00000000.3.log")
    assert root.image.refers_to("segments/w/00000000.3.log")
    root.apply(MoveSweepHorizon(horizon=root.image.commit))
    # What is live already may be referred to again, as of the actions before.
    root.stage(producer, 1, segment="segments/w/00000000.3.log", position=100)
    with pytest.raises(RetriableError) as raised:
        root.stage(producer, 2, segment="segments/w/00000001.3.log")
    assert raised.value.code == "STAGING_EXPIRED"
    root.end(producer, committed=False)
    assert not root.image.refers_to("segments/w/00000000.3.log")
    root.add(producer, 0)
    with pytest.raises(ActionRefusedError, match="found a dead segment"):
        root.apply(StageExtents(extents=(draft(producer, 2, segment="segments/w/00000000.3.log"),)))


def test_what_was_staged_stays_live_when_it_is_committed(root: Root) -> None:
    producer = root.open()
    root.stage(producer, 0, segment="segments/w/00000000.3.log")
    root.apply(MoveSweepHorizon(horizon=root.image.commit))
    root.end(producer)
    assert root.image.refers_to("segments/w/00000000.3.log")


def test_a_topic_that_is_deleted_takes_its_part_with_it(root: Root) -> None:
    producer = root.begin()
    root.stage(producer, 0, opens=True, segment="segments/w/1.log")
    root.stage(producer, 0, opens=True, partition=2, segment="segments/w/2.log")
    root.stage(producer, 0, 4, opens=True, topic_id=OTHER, segment="segments/w/3.log")
    root.apply(plan_delete_topic(root.image, "orders"))
    one, all_of_them = root.transaction(), root.image.transactions
    assert list(one.partitions) == [(OTHER, 0)]
    assert (one.staged_extents, one.staged_bytes) == (1, 100)
    assert (all_of_them.staged_extents, all_of_them.staged_bytes) == (1, 100)
    assert all_of_them.staging == {(OTHER, 0): {0}}
    assert [root.image.refers_to(f"segments/w/{number}.log") for number in (1, 2, 3)] == [False, False, True]
    root.end(producer)
    assert root.visible(topic="other") == [(0, 4, 0)]


def test_a_partition_that_was_only_added_goes_by_too(root: Root) -> None:
    producer = root.open("app", 0, 1)
    root.stage(producer, 0)
    root.apply(plan_delete_topic(root.image, "orders"))
    root.end(producer)
    assert root.transaction().phase is TransactionPhase.COMMITTED


def test_a_producer_with_something_staged_is_not_forgotten_by_time(root: Root) -> None:
    producer = root.open()
    root.append(9, 0)
    root.stage(producer, 0)
    root.append(9, 1)
    root.append(9, 2)
    for _ in range(3):
        root.apply(ExpireProducers(time_ms=1))
    assert set(root.image.partition("orders", 0).producers) == {producer[0]}
    root.stage(producer, 1)
    root.end(producer)
    assert root.image.partition("orders", 0).producers[producer[0]].last_offset == 4
    for _ in range(3):
        root.apply(ExpireProducers(time_ms=1))
    assert root.image.partition("orders", 0).producers == {}


def test_a_producer_that_staged_since_the_mark_is_not_forgotten_after_an_abort(root: Root) -> None:
    producer = root.open()
    root.append(9, 0)
    root.apply(ExpireProducers(time_ms=1, marks_only=True))
    root.stage(producer, 0)
    root.end(producer, committed=False)
    root.append(9, 1)
    root.apply(ExpireProducers(time_ms=1))
    assert producer[0] in root.image.partition("orders", 0).producers
    root.append(9, 2)
    root.apply(ExpireProducers(time_ms=1))
    assert producer[0] not in root.image.partition("orders", 0).producers


def test_nor_by_the_number_of_others(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparklog.metadata.model.sequences.MAX_PRODUCERS", 3)
    producer = root.open()
    root.stage(producer, 0)
    for number in range(100, 110):
        root.append(number, 0)
    producers = root.image.partition("orders", 0).producers
    assert list(producers) == [producer[0], 108, 109]
    other = root.open("other", 0)
    root.stage(other, 0)
    assert list(root.image.partition("orders", 0).producers) == [producer[0], 109, other[0]]
    root.end(producer)
    for number in range(200, 203):
        root.append(number, 0)
    assert producer[0] not in root.image.partition("orders", 0).producers


def test_illegal_opens(root: Root) -> None:
    producer = root.open()
    with pytest.raises(ActionRefusedError, match="opens_ms -2 is out of range"):
        root.apply(StageExtents(extents=(draft(producer, 0),), opens_ms=-2))
    with pytest.raises(ActionRefusedError, match="column opens_ms: 2 numbers, expected 1"):
        root.apply(StageExtents(extents=(draft(producer, 0),), opens_ms=(-1, -1)))
    with pytest.raises(ActionRefusedError, match="nothing is staged"):
        root.apply(StageExtents(extents=()))


def test_a_plan_judges_parts_in_order(root: Root) -> None:
    producer = root.open()
    parts = [root.staging(producer, number) for number in (0, 1, 3)]
    with pytest.raises(InvalidRequestError, match="sequence 3"):
        plan_stage(root.image, parts)
    with pytest.raises(FencedError):
        plan_stage(root.image, [root.staging((0, 1), 0)])
