"""What may not take the place of a first batch that was refused."""

import pytest
from msgspec.structs import replace

from sparklog.clock import ManualClock
from sparklog.metadata import PartitionState, ProducerState, empty_image, plan_create_topic
from sparklog_server.publish.first_batches import MAX_REMEMBERED, REMEMBERED_MS, FirstBatches
from tests.metadata.cluster_roots import TOPIC, applied
from tests.server.publish.batches import batch

KEY = ("orders", 0)


def sent(sequence: int, producer_id: int = 5, epoch: int = 0) -> bytes:
    return batch(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


CLIENT, OTHER = "10.0.0.1", "10.0.0.2"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def first(clock: ManualClock) -> FirstBatches:
    return FirstBatches(clock.monotonic_ms)


@pytest.fixture
def state() -> PartitionState:
    image = applied(
        empty_image("C" * 22), plan_create_topic(empty_image("C" * 22), "orders", 1, topic_id=TOPIC)
    )
    return image.topic("orders").partitions[0]


def test_what_is_behind_waits_until_it_has_come_again(first: FirstBatches, state: PartitionState) -> None:
    first.refuse(KEY, sent(2), CLIENT)
    first.refuse(KEY, sent(4), CLIENT)  # it is the first one that counts
    assert first.is_behind(KEY, sent(4), state)
    assert first.is_behind(KEY, sent(6), state)
    assert not first.is_behind(KEY, sent(2), state)
    assert not first.is_behind(KEY, sent(4), state)
    assert len(first) == 0


def test_an_earlier_one_that_is_refused_later_counts(first: FirstBatches, state: PartitionState) -> None:
    first.refuse(KEY, sent(4), CLIENT)
    first.refuse(KEY, sent(2), CLIENT)
    assert first.is_behind(KEY, sent(4), state)


def test_it_is_remembered_for_as_long_after_each_refusal(
    first: FirstBatches, state: PartitionState, clock: ManualClock
) -> None:
    """An outage may take longer: what is sent again and again has not been given up."""
    for _ in range(2):
        first.refuse(KEY, sent(0), CLIENT)
        clock.sleep_ms(REMEMBERED_MS - 1)
    assert first.is_behind(KEY, sent(2), state)
    clock.sleep_ms(1)
    assert not first.is_behind(KEY, sent(2), state)


def test_one_that_was_given_up_makes_room_for_a_later_one(
    first: FirstBatches, state: PartitionState, clock: ManualClock
) -> None:
    first.refuse(KEY, sent(0), CLIENT)
    clock.sleep_ms(REMEMBERED_MS)
    first.refuse(KEY, sent(2), CLIENT)
    assert first.is_behind(KEY, sent(4), state)


def test_others_do_not_wait(first: FirstBatches, state: PartitionState) -> None:
    first.refuse(KEY, sent(0), CLIENT)
    assert not first.is_behind(KEY, sent(2, producer_id=6), state)
    assert not first.is_behind(("orders", 1), sent(2), state)
    assert not first.is_behind(KEY, batch(), state)
    assert first.is_behind(KEY, sent(2), state)


def test_another_epoch_begins_anew(first: FirstBatches, state: PartitionState) -> None:
    first.refuse(KEY, sent(2), CLIENT)
    assert not first.is_behind(KEY, sent(4, epoch=1), state)
    first.refuse(KEY, sent(2), CLIENT)
    first.refuse(KEY, sent(0, epoch=1), CLIENT)
    assert first.is_behind(KEY, sent(2, epoch=1), state)


def test_whom_the_partition_knows_has_written_elsewhere(first: FirstBatches, state: PartitionState) -> None:
    first.refuse(KEY, sent(0), CLIENT)
    assert not first.is_behind(KEY, sent(2), replace(state, producers={5: ProducerState(0, 1, 1)}))


def test_it_is_forgotten_in_the_end(first: FirstBatches, state: PartitionState, clock: ManualClock) -> None:
    first.refuse(KEY, sent(0), CLIENT)
    clock.sleep_ms(REMEMBERED_MS - 1)
    assert first.is_behind(KEY, sent(2), state)
    clock.sleep_ms(1)
    assert not first.is_behind(KEY, sent(2), state)


@pytest.mark.parametrize("records", [None, b"", b"x" * 60, batch()])
def test_who_has_no_sequence_is_not_remembered(first: FirstBatches, records: bytes | None) -> None:
    first.refuse(KEY, records, CLIENT)
    assert len(first) == 0


def test_so_many_are_remembered(first: FirstBatches, state: PartitionState) -> None:
    one = sent(0)
    for producer_id in range(MAX_REMEMBERED + 1):
        first.refuse(KEY, one[:43] + producer_id.to_bytes(8) + one[51:], CLIENT)
    assert len(first) == MAX_REMEMBERED
    assert not first.is_behind(KEY, sent(2, 0), state)
    assert first.is_behind(KEY, sent(2, 1), state)


@pytest.mark.slow
def test_a_client_with_many_pushes_out_its_own(first: FirstBatches, state: PartitionState) -> None:
    """One request may name so many partitions."""
    first.refuse(KEY, sent(0), OTHER)
    for partition in range(1, 2 * MAX_REMEMBERED):
        first.refuse(("orders", partition), sent(0, 7), CLIENT)
    assert len(first) == MAX_REMEMBERED
    assert first.is_behind(KEY, sent(2), state)
    assert not first.is_behind(("orders", MAX_REMEMBERED), sent(2, 7), state)
    assert first.is_behind(("orders", MAX_REMEMBERED + 1), sent(2, 7), state)


def test_names_that_no_topic_has_are_not_kept(first: FirstBatches) -> None:
    first.refuse(("x" * 250, 0), sent(0), CLIENT)
    assert len(first) == 0
