"""Which parts of what a broker has accepted may still be appended."""

import pytest

from sparklog.client.publish import BrokerAsks, decode_payload, encode_broker_payload
from sparklog.errors import CorruptLogError, FencedError
from sparklog.metadata import (
    AcceptedDraft,
    ActAsBroker,
    Image,
    plan_accepted,
    which_hold,
)
from tests.metadata.broker_requests import accepted, draft
from tests.metadata.cluster_roots import applied, cluster, epoch_of, fenced, joined, led

NO_CONDITIONS = b'{"node_id":1,"broker_epoch":1,"leader_epoch":1}'


def planned(image: Image, parts: list[AcceptedDraft], node_id: int = 1) -> Image:
    """With those that hold, which apply."""
    return applied(
        image, *plan_accepted(image, parts, node_id=node_id, broker_epoch=epoch_of(image, node_id))
    )


def ends(image: Image) -> list[int]:
    return [state.log_end_offset for state in image.topic("orders").partitions]


def test_all_hold_while_nothing_changes() -> None:
    image = led(cluster(), [1, 1, 1])
    parts = [accepted(0), accepted(1, producer=(7, 0, 5)), accepted(1, producer=(7, 0, 6)), accepted(2)]
    assert which_hold(image, parts, node_id=1) == [0, 1, 2, 3]
    assert ends(planned(image, parts)) == [1, 2, 1]


@pytest.mark.parametrize(
    ("sequences", "held"),
    [
        ([5, 6], [0, 1]),
        ([4, 5], []),  # the first is there already: the second is not told from one that skips it
        ([6, 5], []),
        ([5, 7], [0]),
        ([5, 5], [0]),
        ([5, 7, 6], [0]),
    ],
)
def test_sequences_follow_each_other(sequences: list[int], held: list[int]) -> None:
    image = planned(led(cluster(), [1, 1, 1]), [accepted(0, producer=(7, 0, 4))])
    parts = [accepted(0, producer=(7, 0, sequence)) for sequence in sequences]
    assert which_hold(image, parts, node_id=1) == held
    assert ends(planned(image, [*parts, accepted(1)])) == [1 + len(held), 1, 0]


def test_an_older_epoch_of_a_producer_is_left_out() -> None:
    image = planned(led(cluster(), [1, 1, 1]), [accepted(0, producer=(7, 3, 4))])
    parts = [accepted(1), accepted(0, producer=(7, 2, 5)), accepted(0, producer=(8, 0, 0))]
    assert which_hold(image, parts, node_id=1) == [0]
    assert which_hold(image, [accepted(0, producer=(7, 4, 0))], node_id=1) == [0]
    assert which_hold(image, [accepted(0, producer=(7, 4, 1))], node_id=1) == []


def test_only_in_the_epoch_in_which_it_was_accepted() -> None:
    image = led(cluster(), [1, 1, 1])
    there_and_back = led(led(image, {0: 2}), {0: 1})
    assert which_hold(there_and_back, [accepted(0), accepted(1)], node_id=1) == [1]
    assert which_hold(there_and_back, [accepted(0, epoch=3)], node_id=1) == [0]
    assert which_hold(there_and_back, [accepted(0, epoch=3)], node_id=2) == []
    # One that was accepted later does not take the place of one before it in its partition.
    assert which_hold(there_and_back, [accepted(0), accepted(0, epoch=3), accepted(1)], node_id=1) == [2]


def test_registrations_that_are_over() -> None:
    image = led(cluster(), [2, 2, 2])
    epoch = epoch_of(image, 2)
    for after in (fenced(image, 2), joined(fenced(image, 2), 2)):
        with pytest.raises(FencedError, match="BROKER_FENCED"):
            plan_accepted(after, [accepted(0)], node_id=2, broker_epoch=epoch)
    assert plan_accepted(image, [accepted(0, epoch=9)], node_id=2, broker_epoch=epoch) == []


def test_epochs_are_of_the_extents_that_are_taken() -> None:
    image = led(led(led(cluster(), [1, 1, 1]), {1: 2}), {1: 1})
    parts = [accepted(2, epoch=9), accepted(0, epoch=1), accepted(1, epoch=3)]
    acting, _ = plan_accepted(image, parts, node_id=1, broker_epoch=epoch_of(image, 1))
    assert isinstance(acting, ActAsBroker)
    assert acting.leader_epoch == (1, 3)


@pytest.mark.parametrize("count", [1, 3, 8, 50])
@pytest.mark.parametrize("stamped", [False, True])
def test_a_request_says_all_of_it(count: int, stamped: bool) -> None:
    parts = tuple(
        AcceptedDraft(
            draft=draft(number % 3, producer=(number, 0, 7) if number % 2 else None, max_timestamp_ms=number),
            leader_epoch=1 if count == 3 else number,
            sent_timestamp_ms=None if stamped else number,
        )
        for number in range(count)
    )
    asks = BrokerAsks(accepted=parts, node_id=4, broker_epoch=17)
    payload = encode_broker_payload(asks)
    assert decode_payload(payload) == asks
    assert (b"sent_timestamp_ms" in payload) == stamped
    assert (b'"columns"' in payload) == (count >= 8)


@pytest.mark.parametrize(
    ("payload", "found"),
    [
        (b'{"act_as_broker":{"node_id":1,"broker_epoch":1}}', "missing required field `leader_epoch`"),
        (
            b'{"act_as_broker":{"node_id":1,"broker_epoch":1,"leader_epoch":[1]}}',
            "column leader_epoch: 1 numbers, expected 0",
        ),
        (
            b'{"act_as_broker":{"node_id":1,"broker_epoch":1,"leader_epoch":1,"sent_timestamp_ms":[1,2]}}',
            "column sent_timestamp_ms: 2 numbers, expected 0",
        ),
        (
            b'{"act_as_broker":{"node_id":1,"broker_epoch":1,"leader_epoch":1,"rack":""}}',
            "unknown field `rack`",
        ),
        (
            b'{"writer_txn":{"application":"a","version":1},"act_as_broker":%b}' % NO_CONDITIONS,
            "a broker's request with topics or a writer's version",
        ),
    ],
)
def test_requests_that_cannot_be_understood(payload: bytes, found: str) -> None:
    with pytest.raises(CorruptLogError, match=found):
        decode_payload(payload)
