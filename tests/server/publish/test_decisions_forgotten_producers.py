"""Batches of producers that a partition has forgotten for their silence: what is new gets in, what may be a
repetition does not."""

from typing import Any

import msgspec
import pytest

from sparklog.client import SparkLog
from sparklog.metadata import ExpireProducers, replacement
from sparklog_server.protocol.apis import ErrorCode, error_code
from sparklog_server.publish.group_commit import GroupCommitter
from sparklog_server.publish.parts import AppendPart
from tests.server.publish.batches import NOW_MS, batch, part
from tests.server.publish.test_group_commit import offsets, orders


def at(log: SparkLog, sequence: int, time_ms: int, **configs: Any) -> AppendPart:
    """Two records of producer 1 in partition 0, of this time."""
    data = batch(
        [b"%d-%d" % (sequence, number) for number in range(2)],
        timestamps=[time_ms] * 2,
        producer_id=1,
        producer_epoch=0,
        base_sequence=sequence,
    )
    return part(data, topic_id=log.image.topic("orders").topic_id, **configs)


def forget_all(log: SparkLog) -> None:
    log.metadata.publish(lambda _: [ExpireProducers(time_ms=0, marks_only=True)])
    log.metadata.publish(lambda _: [ExpireProducers(time_ms=1)])


def merge_all(log: SparkLog) -> None:
    """No extent shows any more whose batches it holds."""
    state = log.refresh().partition("orders", 0)
    first = state.extents[0]
    merged = msgspec.structs.replace(
        first, record_count=state.log_end_offset, producer_id=-1, producer_epoch=-1, base_sequence=-1
    )
    columns = state.extents.columns()
    action = replacement(columns, [merged], topic_id=state.topic_id, partition=0)
    log.metadata.publish(lambda _: [action])


@pytest.fixture
def forgotten(committer: GroupCommitter, log: SparkLog) -> None:
    """Producer 1 has sent four records, and was forgotten."""
    committer.write([orders(log, producer=(1, 0, 0))])
    committer.write([orders(log, producer=(1, 0, 2))])
    forget_all(log)


@pytest.mark.usefixtures("forgotten")
def test_a_repetition_gets_its_offset_while_its_extent_is_there(
    committer: GroupCommitter, log: SparkLog
) -> None:
    outcomes = committer.write([orders(log, producer=(1, 0, 0)), orders(log, producer=(1, 0, 2))])
    assert offsets(outcomes) == [0, 2]
    assert all(one.duplicate for one in outcomes)
    assert log.log_end_offset("orders", 0) == 4


@pytest.mark.usefixtures("forgotten")
def test_what_may_be_a_repetition_is_refused(committer: GroupCommitter, log: SparkLog) -> None:
    merge_all(log)
    (outcome,) = committer.write([orders(log, producer=(1, 0, 2))])
    assert outcome.error is not None
    assert error_code(outcome.error) is ErrorCode.unknown_producer_id
    assert outcome.log_start_offset == 0  # Java asks again without it
    assert log.log_end_offset("orders", 0) == 4


@pytest.mark.usefixtures("forgotten")
def test_a_new_epoch_and_a_new_id_get_in(committer: GroupCommitter, log: SparkLog) -> None:
    merge_all(log)
    assert offsets(committer.write([orders(log, producer=(1, 0, 4))])) == ["UNKNOWN_PRODUCER"]
    outcomes = committer.write([orders(log, producer=(1, 1, 0)), orders(log, producer=(2, 0, 0))])
    assert offsets(outcomes) == [4, 6]
    assert committer.floors == {}


@pytest.mark.usefixtures("forgotten")
def test_who_goes_on_with_later_records_is_not_held_up(committer: GroupCommitter, log: SparkLog) -> None:
    merge_all(log)
    assert offsets(committer.write([at(log, 4, NOW_MS + 1), at(log, 6, NOW_MS)])) == [4, 6]
    assert offsets(committer.write([at(log, 4, NOW_MS + 1)])) == [4]


@pytest.mark.usefixtures("forgotten")
def test_nothing_takes_the_place_of_what_was_refused(committer: GroupCommitter, log: SparkLog) -> None:
    """Its later records cannot be repetitions, but would come before it."""
    merge_all(log)
    outcomes = committer.write([at(log, 4, NOW_MS), at(log, 6, NOW_MS + 1)])
    assert offsets(outcomes) == ["UNKNOWN_PRODUCER", "OUT_OF_ORDER_SEQUENCE"]
    assert offsets(committer.write([at(log, 8, NOW_MS + 2)])) == ["OUT_OF_ORDER_SEQUENCE"]
    assert log.log_end_offset("orders", 0) == 4


@pytest.mark.usefixtures("forgotten")
def test_the_time_that_the_broker_gives_it_says_nothing(committer: GroupCommitter, log: SparkLog) -> None:
    merge_all(log)
    stamped = at(log, 2, NOW_MS - 5, message_timestamp_type="LogAppendTime")
    later = msgspec.structs.replace(stamped.encoded, max_timestamp_ms=NOW_MS + 1)  # its clock goes on
    outcomes = committer.write(
        [msgspec.structs.replace(stamped, encoded=later, log_append_time_ms=NOW_MS + 1)]
    )
    assert offsets(outcomes) == ["UNKNOWN_PRODUCER"]
