"""A group commit: what is published, what fails alone, and what nobody is told of."""

from collections.abc import Callable

import msgspec

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import StorageError
from sparklog.log.config import TopicConfig
from sparklog.log.past_retention import INTERVAL_MS, past_retention_text
from sparklog.metadata import leadership_of
from sparklog.storage import MemoryStore
from sparklog_server.publish.group_commit import GroupCommitter
from sparklog_server.publish.parts import AppendPart, PartOutcome
from tests.server.publish.batches import NOW_MS, batch, part
from tests.support.roots import opened
from tests.support.several_brokers import take_over
from tests.support.told import Told

FULL = StorageError("STORAGE_FULL", "no space", fix="make some")


def failing(operation: str, error: Exception, after: int = 0) -> Callable[[str, str], None]:
    left = [after]

    def hook(found: str, name: str) -> None:
        if found == operation and (operation != "put_if_absent" or "__cluster_metadata" in name):
            left[0] -= 1
            if left[0] < 0:
                raise error

    return hook


def orders(log: SparkLog, partition: int = 0, **fields: object) -> AppendPart:
    return led(log, part(topic_id=log.image.topic("orders").topic_id, partition=partition, **fields))  # type: ignore[arg-type]


def led(log: SparkLog, one: AppendPart) -> AppendPart:
    """As it is accepted now, by the broker that leads its partition."""
    found = leadership_of(log.image, one.topic_id, one.partition)
    return one if found is None else msgspec.structs.replace(one, leader_epoch=found.leader_epoch)


def values(log: SparkLog, topic: str = "orders", partition: int = 0) -> list[bytes]:
    found: list[bytes] = log.read(topic, partition, 0).column("value").to_pylist()
    return found


def offsets(outcomes: list[PartOutcome]) -> list[int | str]:
    return [
        outcome.base_offset if outcome.error is None else getattr(outcome.error, "code", "?")
        for outcome in outcomes
    ]


def test_one_part(committer: GroupCommitter, log: SparkLog) -> None:
    (outcome,) = committer.write([orders(log)])
    assert outcome == PartOutcome(base_offset=0, log_start_offset=0)
    assert values(log) == [b"orders-0-0", b"orders-0-1"]


def test_a_commit_is_one_commit_and_few_extents(committer: GroupCommitter, log: SparkLog) -> None:
    before = log.image.commit
    parts = [orders(log, number % 3, count=number + 1) for number in range(9)]
    outcomes = committer.write(parts)
    assert log.image.commit == before + 1
    assert [len(state.extents) for state in log.image.topic("orders").partitions] == [1, 1, 1]
    assert offsets(outcomes) == [0, 0, 0, 1, 2, 3, 5, 7, 9]
    assert [log.log_end_offset("orders", p) for p in range(3)] == [12, 15, 18]
    for number in range(3):
        assert len(values(log, partition=number)) == 12 + 3 * number


def test_records_past_their_retention_are_told_of_once_they_are_published(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore, told: Told
) -> None:
    log.alter_topic("orders", {"retention.ms": "1000"})
    told.forget()
    old = [NOW_MS - 2_000] * 4
    parts = [orders(log, 0), orders(log, 1, data=batch([b"v"] * 4, timestamps=old))]
    store.hook = failing("write", FULL)
    assert offsets(committer.write(parts)) == ["STORAGE_FULL"] * 2
    assert told("sparklog_server.publish") == []
    store.hook = None
    for _ in range(2):
        committer.write(parts)
    assert told("sparklog_server.publish") == [past_retention_text({"orders": 4})]
    log.alter_topic("orders", {"retention.ms": "-1"})
    assert isinstance(log.clock, ManualClock)
    log.clock.advance_ms(INTERVAL_MS)
    committer.write(parts)
    assert len(told("sparklog_server.publish")) == 1


def test_order_in_a_partition_is_the_order_of_parts(committer: GroupCommitter, log: SparkLog) -> None:
    committer.write([orders(log, data=batch([b"%d" % n])) for n in range(50)])
    assert values(log) == [b"%d" % n for n in range(50)]


def test_producers_do_not_share_an_extent(committer: GroupCommitter, log: SparkLog) -> None:
    outcomes = committer.write(
        [
            orders(log, producer=(1, 0, 0)),
            orders(log, producer=(1, 0, 2)),
            orders(log, producer=(2, 0, 0)),
            orders(log),
            orders(log, producer=(1, 0, 4)),
            orders(log, producer=(1, 1, 0)),
        ]
    )
    assert offsets(outcomes) == [0, 2, 4, 6, 8, 10]
    extents = log.image.partition("orders", 0).extents
    assert [(e.producer_id, e.producer_epoch, e.base_sequence, e.record_count) for e in extents] == [
        (1, 0, 0, 4),
        (2, 0, 0, 2),
        (-1, -1, -1, 2),
        (1, 0, 4, 2),
        (1, 1, 0, 2),
    ]


def test_a_bad_part_fails_alone(committer: GroupCommitter, log: SparkLog) -> None:
    committer.write([orders(log, producer=(1, 5, 0))])
    outcomes = committer.write(
        [
            orders(log, producer=(1, 5, 2)),
            orders(log, producer=(1, 5, 9)),  # a gap
            orders(log, producer=(1, 4, 4)),  # an old epoch
            orders(log, producer=(1, 6, 3)),  # a new epoch that does not begin at 0
            part(topic_id="Z" * 22, topic="gone"),
            orders(log, 3),
            orders(log, producer=(1, 5, 4)),
            orders(log, 1),
        ]
    )
    assert offsets(outcomes) == [
        2,
        "OUT_OF_ORDER_SEQUENCE",
        "PRODUCER_FENCED",
        "OUT_OF_ORDER_SEQUENCE",
        "TOPIC_MISSING",
        "PARTITION_MISSING",
        4,
        0,
    ]
    assert log.log_end_offset("orders", 0) == 6


def test_nothing_to_write_is_no_commit(committer: GroupCommitter, log: SparkLog) -> None:
    committer.write([orders(log, producer=(1, 0, 0))])
    before = log.image.commit
    outcomes = committer.write([orders(log, producer=(1, 0, 0)), part(topic_id="Z" * 22)])
    assert offsets(outcomes) == [0, "TOPIC_MISSING"]
    assert log.image.commit == before
    assert committer.write([]) == []


# --- duplicates --------------------------------------------------------------------------------------


def test_duplicates_get_the_offset_of_the_first_time(committer: GroupCommitter, log: SparkLog) -> None:
    for sequence in range(0, 40, 2):  # more than the five batches that Kafka remembers
        committer.write([orders(log, producer=(1, 0, sequence)), orders(log)])
    for sequence in range(0, 40, 2):
        (outcome,) = committer.write([orders(log, producer=(1, 0, sequence))])
        assert (outcome.base_offset, outcome.duplicate) == (2 * sequence, True)
    assert log.log_end_offset("orders", 0) == 80


def test_duplicates_after_a_restart(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore, clock: ManualClock
) -> None:
    committer.write([orders(log), orders(log, producer=(1, 3, 0)), orders(log, producer=(1, 3, 2))])
    log.metadata.write_snapshot()
    store.crash()
    with opened(store, clock) as again:
        registration = take_over(again)
        writer = GroupCommitter(again, lambda: registration, lambda topic: TopicConfig.parse(topic.configs))
        outcomes = writer.write([orders(again, producer=(1, 3, 2)), orders(again, producer=(1, 3, 4))])
        assert offsets(outcomes) == [4, 6]
        assert [outcome.duplicate for outcome in outcomes] == [True, False]


def test_duplicates_within_a_commit(committer: GroupCommitter, log: SparkLog) -> None:
    """A producer that repeats what is still under way, over another connection."""
    committer.write([orders(log)])
    first, second = orders(log, producer=(1, 0, 0)), orders(log, producer=(1, 0, 2))
    outcomes = committer.write([first, second, first, second, orders(log, producer=(1, 0, 4))])
    assert offsets(outcomes) == [2, 4, 2, 4, 6]
    assert [outcome.duplicate for outcome in outcomes] == [False, False, True, True, False]
    assert log.log_end_offset("orders", 0) == 8


def test_part_of_a_batch_is_no_duplicate(committer: GroupCommitter, log: SparkLog) -> None:
    committer.write([orders(log, producer=(1, 0, 0), count=4)])
    outcomes = committer.write([orders(log, producer=(1, 0, 2), count=4)])
    assert offsets(outcomes) == ["OUT_OF_ORDER_SEQUENCE"]


def test_duplicate_whose_extent_is_gone(committer: GroupCommitter, log: SparkLog) -> None:
    """Retention has removed it. To clients "duplicate" would mean success, so that is never guessed."""
    from sparklog.metadata import plan_advance_log_start

    committer.write([orders(log, producer=(1, 0, 0))])
    topic_id = log.image.topic("orders").topic_id
    advance = plan_advance_log_start(log.image, topic_id, 0, 2)
    assert advance is not None
    log.metadata.publish(lambda image: [advance])
    (outcome,) = committer.write([orders(log, producer=(1, 0, 0))])
    assert offsets([outcome]) == ["OUT_OF_ORDER_SEQUENCE"]
    assert outcome.log_start_offset == 2


def test_a_duplicate_keeps_its_log_append_time(committer: GroupCommitter, log: SparkLog) -> None:

    log.alter_topic("orders", {"message.timestamp.type": "LogAppendTime"})
    first = orders(log, producer=(1, 0, 0), message_timestamp_type="LogAppendTime")
    (outcome,) = committer.write([first])
    (repeated,) = committer.write(
        [msgspec.structs.replace(first, log_append_time_ms=first.log_append_time_ms + 99)]
    )
    assert repeated.log_append_time_ms == outcome.log_append_time_ms == first.log_append_time_ms


def test_sequences_wrap(committer: GroupCommitter, log: SparkLog) -> None:
    last = 2**31 - 1
    outcomes = committer.write(
        [
            orders(log, producer=(1, 0, last - 3)),
            orders(log, producer=(1, 0, last - 1)),
            orders(log, producer=(1, 0, 0)),
        ]
    )
    assert offsets(outcomes) == [0, 2, 4]
    assert len(log.image.partition("orders", 0).extents) == 1
    outcomes = committer.write([orders(log, producer=(1, 0, 0)), orders(log, producer=(1, 0, 2))])
    assert offsets(outcomes) == [4, 6]


def test_a_batch_across_the_wrap(committer: GroupCommitter, log: SparkLog) -> None:
    producer = (1, 0, 2**31 - 1)
    assert offsets(committer.write([orders(log, producer=producer), orders(log, producer=(1, 0, 1))])) == [
        0,
        2,
    ]
    assert offsets(committer.write([orders(log, producer=producer)])) == [0]
