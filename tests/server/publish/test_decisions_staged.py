"""Parts of transactions in a group commit: staged by the newest image, or refused with the reason."""

import dataclasses

import msgspec
import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.metadata import NEVER_OPENS, StageExtents
from sparklog.metadata.loading import read_commit
from sparklog.storage import MemoryStore
from sparklog_server.publish.group_commit import GroupCommitter
from sparklog_server.publish.parts import AppendPart
from tests.server.publish.test_group_commit import FULL, failing, offsets, values
from tests.server.publish.test_group_commit_races import before_first_commit
from tests.server.publish.transactional_parts import leading, of, orders, refused, said_by, unreachable
from tests.support.roots import opened
from tests.support.transactional_producer import TransactionalProducer


@pytest.fixture
def committer(store: MemoryStore, clock: ManualClock, log: SparkLog) -> GroupCommitter:
    """Of a broker that leads all partitions of `orders`."""
    return leading(log, store, clock)


@pytest.fixture
def producer(committer: GroupCommitter, log: SparkLog) -> TransactionalProducer:
    return TransactionalProducer(log).begin()


def test_a_transactions_part_is_staged_beside_what_is_appended(
    committer: GroupCommitter, log: SparkLog, producer: TransactionalProducer
) -> None:
    producer.add(0, 1)
    before = log.image.commit
    told: list[tuple[int, int]] = []
    committer.on_appended = lambda _, partition, offset, __: told.append((partition, offset))
    outcomes = committer.write(
        [orders(log), of(producer), orders(log, 1), of(producer, 2, count=3), of(producer, partition=1)]
    )
    assert log.image.commit == before + 1
    assert offsets(outcomes) == [0, -1, 0, -1, -1]
    assert all(one.log_start_offset == 0 for one in outcomes)
    assert sorted(told) == [(0, 0), (1, 0)]
    assert [len(values(log, partition=number)) for number in (0, 1)] == [2, 2]
    assert [one.place is not None for one in outcomes] == [False, True, False, True, True]
    (extent,) = producer.known.staged_in(log.image.topic("orders").topic_id, 0)
    assert (extent.record_count, extent.base_offset) == (5, 0), "what follows is one extent"
    producer.end()
    assert [len(values(log, partition=number)) for number in (0, 1)] == [7, 4]


def test_what_is_staged_has_its_offsets_from_the_end_of_its_transaction(
    committer: GroupCommitter, log: SparkLog, producer: TransactionalProducer
) -> None:
    producer.add(0)
    assert offsets(committer.write([of(producer)])) == [-1]
    assert offsets(committer.write([orders(log)])) == [0]
    producer.end()
    assert values(log)[2:] == values(log)[:2]
    assert offsets(committer.write([orders(log)])) == [4]


def test_an_aborted_transactions_records_are_never_read(
    committer: GroupCommitter, log: SparkLog, producer: TransactionalProducer
) -> None:
    """And the next one goes on behind their sequence, in the first protocol."""
    producer.add(0)
    committer.write([of(producer)])
    producer.end(commits=False)
    assert values(log) == []
    producer.add(0)
    assert offsets(committer.write([of(producer, 0), of(producer, 2)])) == ["OUT_OF_ORDER_SEQUENCE", -1]
    producer.end()
    assert len(values(log)) == 2


@pytest.mark.parametrize("ended", [False, True])
def test_a_repetition_is_acknowledged_and_not_staged_again(
    committer: GroupCommitter, log: SparkLog, producer: TransactionalProducer, ended: bool
) -> None:
    producer.add(0)
    committer.write([of(producer), of(producer, 2)])
    if ended:
        producer.end()
        producer.add(0)
    repeated = committer.write([of(producer, 2), of(producer), of(producer, 1, count=4), of(producer, 4)])
    assert offsets(repeated) == [-1, -1, "OUT_OF_ORDER_SEQUENCE", -1]
    assert [one.duplicate for one in repeated] == [True, True, False, False]
    producer.end()
    assert len(values(log)) == 6


def test_a_repetition_in_the_same_commit(committer: GroupCommitter, producer: TransactionalProducer) -> None:
    producer.add(0)
    outcomes = committer.write([of(producer, count=4), of(producer, 2), of(producer, 4)])
    assert offsets(outcomes) == [-1, -1, -1]
    assert [one.duplicate for one in outcomes] == [False, True, False]
    producer.end()
    assert len(values(producer.log)) == 6


def test_what_its_transaction_does_not_take_is_left_out_alone(
    committer: GroupCommitter, log: SparkLog, producer: TransactionalProducer
) -> None:
    fenced = dataclasses.replace(producer)
    producer.begin()
    producer.add(0)
    stranger = dataclasses.replace(producer, producer_id=999)
    outcomes = committer.write(
        [
            of(fenced),
            of(producer, partition=1),
            of(stranger),
            of(producer, partition=0, transactional_id="another"),
            orders(log, producer=(producer.producer_id, producer.epoch, 0)),
            of(producer),
            orders(log),
        ]
    )
    assert refused(outcomes) == [
        "PRODUCER_FENCED",
        "TRANSACTION_STATE",
        "PRODUCER_UNMAPPED",
        "PRODUCER_UNMAPPED",
        "TRANSACTION_STATE",
        "",
        "",
    ]
    producer.end()
    assert len(values(log)) == 4


def test_the_second_protocol_adds_its_partition(
    committer: GroupCommitter, log: SparkLog, producer: TransactionalProducer
) -> None:
    first_ms, second_ms = log.clock.now_ms() + 7, log.clock.now_ms() + 9
    outcomes = committer.write(
        [of(producer, 2, opens_ms=first_ms), of(producer, 0, partition=1, opens_ms=first_ms)]
    )
    assert offsets(outcomes) == ["OUT_OF_ORDER_SEQUENCE", -1], "each epoch begins with 0"
    assert (producer.known.number, producer.known.started_ms) == (1, first_ms)
    producer.end(second=True)
    assert offsets(committer.write([of(producer, 0, partition=1, opens_ms=second_ms)])) == [-1]
    assert (producer.known.number, producer.known.started_ms) == (2, second_ms)
    producer.end(second=True, commits=False)
    assert len(values(log, partition=1)) == 2


# --- images that are older than the truth --------------------------------------------------------------


def test_whoever_is_refused_for_an_old_image_is_taken_when_it_sends_again(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore
) -> None:
    """The producer was initialised, and has begun, at another broker, whose commits are not here yet."""
    with opened(store, log.clock) as other:
        producer = TransactionalProducer(other).begin()
        producer.add(0)
        behind = log.image.commit
        assert refused(committer.write([of(producer, image=log.image)])) == ["TRANSACTION_CHANGED"]
        assert log.image.commit == behind + 2, "it has looked, so that it knows which one is meant then"
        assert offsets(committer.write([of(producer, image=log.image)])) == [-1]
        producer.end()
        producer.add(1)
        outcomes = committer.write([of(producer, partition=1, image=log.image), orders(log)])
        assert offsets(outcomes) == ["TRANSACTION_CHANGED", 2]
        assert offsets(committer.write([of(producer, partition=1, image=log.image)])) == [-1]


@pytest.mark.parametrize("has_more", [False, True])
def test_records_of_an_aborted_transaction_are_not_staged_in_the_next_one(
    committer: GroupCommitter,
    log: SparkLog,
    store: MemoryStore,
    producer: TransactionalProducer,
    *,
    has_more: bool,
) -> None:
    """1. A batch is read, and waits; its client gives up, and aborts the transaction at another broker;
    2. it begins the next one in the same epoch, and gives the sequence to other records;
    3. both batches are published: the old one must not take the place of the new one.
    """
    producer.add(0)
    old = of(producer, count=2)
    with opened(store, log.clock) as other:
        elsewhere = dataclasses.replace(producer, log=other)
        elsewhere.end(commits=False)
        elsewhere.add(0)
    log.refresh()
    new = of(producer, count=3)
    outcomes = committer.write([old, new] if has_more else [old])
    assert refused(outcomes) == ["TRANSACTION_CHANGED", ""][: 1 + has_more]
    if not has_more:
        assert refused(committer.write([new])) == [""]
    producer.end()
    assert len(values(log)) == 3


def test_records_of_a_transaction_that_is_ended_while_they_are_written_are_not_staged_in_the_next_one(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore, producer: TransactionalProducer
) -> None:
    producer.add(0)
    with opened(store, log.clock) as other:
        elsewhere = dataclasses.replace(producer, log=other)

        def meanwhile() -> None:
            elsewhere.end(commits=False)
            elsewhere.add(0)

        before_first_commit(store, meanwhile)
        assert refused(committer.write([of(producer)])) == ["TRANSACTION_CHANGED"]
    assert producer.known.staged_extents == 0
    assert refused(committer.write([of(producer)])) == [""]


def test_a_fenced_producer_is_not_asked_to_send_again(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore, producer: TransactionalProducer
) -> None:
    """It would, forever."""
    producer.add(0)
    old = of(producer)
    producer.begin()
    producer.add(0)
    assert refused(committer.write([old])) == ["PRODUCER_FENCED"]


def test_a_repetition_is_not_acknowledged_by_an_old_image(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore, producer: TransactionalProducer
) -> None:
    """1. The answer to a batch of the first protocol is lost;
    2. another broker aborts the transaction, and adds the partition to the next one;
    3. the client gives the same numbers to other records, which by the old image are staged already.
    """
    producer.add(0)
    assert offsets(committer.write([of(producer)])) == [-1]
    with opened(store, log.clock) as other:
        elsewhere = dataclasses.replace(producer, log=other)
        elsewhere.add(1)
        (repeated,) = committer.write([of(producer)])
        assert (repeated.error, repeated.duplicate) == (None, True), "its transaction is still open"
        elsewhere.end(commits=False)
        elsewhere.add(0)
    assert refused(committer.write([of(producer)])) == ["TRANSACTION_CHANGED"]
    assert refused(committer.write([of(producer)])) == ["OUT_OF_ORDER_SEQUENCE"]


def test_where_the_newest_image_cannot_be_read_no_repetition_is_acknowledged(
    committer: GroupCommitter, store: MemoryStore, producer: TransactionalProducer
) -> None:
    producer.add(0)
    committer.write([of(producer)])
    store.hook = unreachable
    assert refused(committer.write([of(producer)])) == ["TRANSACTION_UNKNOWN"]
    store.hook = None
    assert [one.duplicate for one in committer.write([of(producer), of(producer, 2)])] == [True, False]


def test_who_is_fenced_by_what_is_known_costs_no_look(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore, producer: TransactionalProducer
) -> None:
    fenced = dataclasses.replace(producer)
    producer.begin()
    looks: list[str] = []
    store.hook = lambda operation, name: looks.append(f"{operation} {name}")
    assert refused(committer.write([of(fenced)])) == ["PRODUCER_FENCED"]
    assert looks == []


def test_where_the_newest_image_cannot_be_read_nobody_is_refused(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore, producer: TransactionalProducer
) -> None:
    store.hook = unreachable
    outcomes = committer.write([of(producer)])
    store.hook = None
    assert refused(outcomes) == ["TRANSACTION_UNKNOWN"]
    producer.add(0)
    assert offsets(committer.write([of(producer)])) == [-1]


def test_what_ends_before_the_commit_is_refused_and_the_rest_goes_on(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore, producer: TransactionalProducer
) -> None:
    producer.add(0)
    with opened(store, log.clock) as other:
        elsewhere = dataclasses.replace(producer, log=other)
        before_first_commit(store, lambda: elsewhere.end(commits=False))
        outcomes = committer.write([of(producer), orders(log, 1)])
    assert refused(outcomes) == ["TRANSACTION_STATE", ""]
    assert producer.known.staged_extents == 0
    assert len(values(log, partition=1)) == 2


def test_a_failed_write_stages_nothing(
    committer: GroupCommitter, store: MemoryStore, producer: TransactionalProducer
) -> None:
    producer.add(0)
    store.hook = failing("write", FULL)
    assert refused(committer.write([of(producer)])) == ["STORAGE_FULL"]
    store.hook = None
    assert producer.known.staged_extents == 0
    # The next one must not take the place of the first, which comes again.
    assert refused(committer.write([of(producer, 2)])) == ["OUT_OF_ORDER_SEQUENCE"]
    assert offsets(committer.write([of(producer), of(producer, 2)])) == [-1, -1]


def test_what_failed_in_one_transaction_is_not_waited_for_in_the_next(
    committer: GroupCommitter, store: MemoryStore, producer: TransactionalProducer
) -> None:
    """Clients without a way to begin anew go on behind what has failed, in the same epoch."""
    producer.add(0)
    store.hook = failing("write", FULL)
    committer.write([of(producer)])
    store.hook = None
    producer.end(commits=False)
    producer.add(0)
    assert offsets(committer.write([of(producer, 2)])) == [-1]


# --- offsets of groups ---------------------------------------------------------------------------------


def offsets_of(producer: TransactionalProducer, group: str | None, opens_ms: int = NEVER_OPENS) -> AppendPart:
    said = said_by(producer, opens_ms=opens_ms, group=group)
    part = orders(producer.log, 2, transaction=None)
    return msgspec.structs.replace(
        part, producer_id=producer.producer_id, producer_epoch=producer.epoch, transaction=said
    )


def test_a_long_name_is_not_repeated_for_each_part(
    committer: GroupCommitter, producer: TransactionalProducer
) -> None:
    producer.add(0)
    (outcome,) = committer.write([of(producer, transactional_id="x" * 30_000)])
    assert 100 < len(str(outcome.error)) < 500
    (outcome,) = committer.write([offsets_of(producer, "g" * 30_000)])
    assert 100 < len(str(outcome.error)) < 500


def test_offsets_take_the_next_sequence_and_need_their_group(
    committer: GroupCommitter, log: SparkLog, producer: TransactionalProducer
) -> None:
    assert refused(committer.write([offsets_of(producer, "g")])) == ["TRANSACTION_STATE"]
    producer.add(groups=("g",))
    outcomes = committer.write(
        [offsets_of(producer, "g"), offsets_of(producer, "h"), offsets_of(producer, "g")]
    )
    assert refused(outcomes) == ["", "TRANSACTION_STATE", ""]
    assert offsets(committer.write([offsets_of(producer, "g")])) == [-1]
    producer.end(commits=False)
    assert refused(committer.write([offsets_of(producer, "g")])) == ["TRANSACTION_STATE"]
    producer.add(groups=("g",))
    assert offsets(committer.write([offsets_of(producer, "g")])) == [-1]
    producer.end()
    assert len(values(log, partition=2)) == 2
    (extent,) = log.image.partition("orders", 2).extents
    assert extent.base_sequence == 6, "counted over the transactions of its epoch"


def test_offsets_are_of_the_transaction_that_was_open_when_they_were_taken(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore, producer: TransactionalProducer
) -> None:
    producer.add(groups=("g",))
    with opened(store, log.clock) as other:
        elsewhere = dataclasses.replace(producer, log=other)

        def meanwhile() -> None:
            elsewhere.end(commits=False)
            elsewhere.add(groups=("g",))

        before_first_commit(store, meanwhile)
        assert refused(committer.write([offsets_of(producer, "g")])) == ["TRANSACTION_CHANGED"]
    assert producer.known.staged_extents == 0
    assert refused(committer.write([offsets_of(producer, "g")])) == [""]


def test_offsets_that_were_not_taken_stand_in_the_way_of_no_others(
    committer: GroupCommitter, log: SparkLog, producer: TransactionalProducer
) -> None:
    producer.add(groups=("g",))
    old = offsets_of(producer, "g")
    assert refused(committer.write([msgspec.structs.replace(old, leader_epoch=old.leader_epoch + 1)])) == [
        "NOT_LEADER"
    ]
    assert refused(committer.write([offsets_of(producer, "g")])) == [""]


def test_offsets_of_the_second_protocol_add_themselves(
    committer: GroupCommitter, log: SparkLog, producer: TransactionalProducer
) -> None:
    for _ in range(2):
        assert offsets(committer.write([offsets_of(producer, None, 5), offsets_of(producer, None, 5)])) == [
            -1,
            -1,
        ]
        producer.end(second=True)
    assert len(values(log, partition=2)) == 8


def test_staging_is_one_action_of_the_commit(
    committer: GroupCommitter, log: SparkLog, producer: TransactionalProducer
) -> None:
    producer.add(0, 1)
    committer.write([of(producer), of(producer, partition=1)])
    _, actions = read_commit(log.store, log.image.commit, log.image.cluster_id)
    (staged,) = (one for one in actions if isinstance(one, StageExtents))
    assert [one.partition for one in staged.extents] == [0, 1]
