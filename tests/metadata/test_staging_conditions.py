"""Transactional parts that a broker has accepted: staged by the same judgement, whoever publishes them."""

import pytest

from sparklog.client.publish import BrokerAsks, decode_payload, encode_broker_payload
from sparklog.errors import CorruptLogError
from sparklog.metadata import (
    AcceptedDraft,
    AppendExtents,
    Decision,
    Image,
    StageExtents,
    decide_accepted,
    plan_accepted,
    plan_add_to_transaction,
    plan_begin_producer,
    plan_end_transaction,
    which_hold,
)
from sparklog.metadata.model import staging
from sparklog.metadata.model.action import ActionRefusedError
from sparklog.metadata.model.registry import ActAsBroker
from tests.metadata.broker_requests import draft
from tests.metadata.cluster_roots import TOPIC, applied, cluster, epoch_of, led
from tests.metadata.test_conditions import NO_CONDITIONS, ends, planned

PRODUCER = 0, 0


@pytest.fixture
def image() -> Image:
    """Broker 1 leads everything; a transaction of producer 0 has partitions 0 and 1."""
    image = led(cluster(), [1, 1, 1])
    image = applied(image, *plan_begin_producer(image, "app", timeout_ms=1_000, now_ms=1).actions)
    places = [(TOPIC, 0), (TOPIC, 1)]
    return applied(image, *plan_add_to_transaction(image, "app", *PRODUCER, partitions=places, now_ms=1))


def staged(
    partition: int, sequence: int, *, opens_ms: int = -1, epoch: int = 1, producer: tuple[int, int] = PRODUCER
) -> AcceptedDraft:
    one = draft(partition, producer=(*producer, sequence))
    return AcceptedDraft(
        draft=one, leader_epoch=epoch, sent_timestamp_ms=1_000, transactional=True, opens_ms=opens_ms
    )


def plain(partition: int, sequence: int = 0, producer_id: int = 7, *, epoch: int = 1) -> AcceptedDraft:
    one = draft(partition, producer=(producer_id, 0, sequence))
    return AcceptedDraft(draft=one, leader_epoch=epoch, sent_timestamp_ms=1_000)


def verdicts(image: Image, *parts: AcceptedDraft) -> list[str]:
    """And the codes of those that are refused."""
    return [
        one.error.code if one.error is not None and one.decision is Decision.REFUSED else one.decision.name
        for one in decide_accepted(image, parts, node_id=1)
    ]


def test_what_is_staged_and_what_is_appended_share_a_commit(image: Image) -> None:
    parts = [staged(0, 0), plain(0), staged(0, 1), plain(2), staged(2, 0, opens_ms=5)]
    assert verdicts(image, *parts) == ["STAGE", "APPEND", "STAGE", "APPEND", "STAGE"]
    actions = plan_accepted(image, parts, node_id=1, broker_epoch=epoch_of(image, 1))
    acting, append, stage = actions
    assert isinstance(acting, ActAsBroker)
    assert acting.actions == 2
    assert isinstance(append, AppendExtents)
    assert isinstance(stage, StageExtents)
    assert [one.draft for one in parts if one.transactional] == list(stage.extents)
    assert stage.opens_ms == (-1, -1, 5)
    after = applied(image, *actions)
    assert ends(after) == [1, 0, 1]
    assert after.transactions["app"].staged_extents == 3


def test_epochs_are_of_extents_in_the_order_of_actions(image: Image) -> None:
    image = led(led(image, {1: 2}), {1: 1})
    parts = [staged(0, 0), staged(1, 0, epoch=3), plain(1, epoch=3), plain(2)]
    acting = plan_accepted(image, parts, node_id=1, broker_epoch=epoch_of(image, 1))[0]
    assert isinstance(acting, ActAsBroker)
    assert acting.leader_epoch == (3, 1, 1, 3)
    planned(image, parts)


def test_staging_is_the_leaders(image: Image) -> None:
    moved = led(led(image, {0: 2}), {0: 1})
    assert verdicts(moved, staged(0, 0), staged(1, 0)) == ["NOT_LEADER", "STAGE"]
    assert verdicts(moved, staged(0, 0, epoch=3)) == ["STAGE"]
    actions = plan_accepted(image, [staged(0, 0)], node_id=1, broker_epoch=epoch_of(image, 1))
    with pytest.raises(ActionRefusedError, match="broker 1 in leader epoch 1, expected 1 in 3"):
        applied(moved, *actions)


def test_what_a_transaction_does_not_take_is_left_out(image: Image) -> None:
    assert verdicts(image, staged(2, 0)) == ["TRANSACTION_STATE"]
    assert verdicts(image, staged(0, 0, producer=(0, 1))) == ["PRODUCER_FENCED"]
    assert verdicts(image, staged(0, 0, producer=(9, 0))) == ["PRODUCER_UNMAPPED"]
    assert verdicts(image, staged(0, 1, opens_ms=5)) == ["OUT_OF_ORDER_SEQUENCE"]
    ended = applied(
        image,
        *plan_end_transaction(image, "app", *PRODUCER, committed=True, second=False, now_ms=2).actions,
    )
    assert verdicts(ended, staged(0, 0)) == ["TRANSACTION_STATE"]
    assert verdicts(ended, staged(0, 0, opens_ms=5)) == ["STAGE"]


def test_what_follows_in_the_partition_is_left_out_too(image: Image) -> None:
    parts = [staged(0, 0, producer=(0, 1)), plain(0), staged(1, 0)]
    assert verdicts(image, *parts) == ["PRODUCER_FENCED", "BEHIND", "STAGE"]
    assert which_hold(image, parts, node_id=1) == [2]


def test_parts_count_against_each_other(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "MAX_STAGED_EXTENTS", 2)
    parts = [staged(0, 0), staged(1, 0), staged(0, 1), staged(1, 1)]
    assert verdicts(image, *parts) == ["STAGE", "STAGE", "TRANSACTION_TOO_LARGE", "TRANSACTION_TOO_LARGE"]
    planned(image, parts)


def test_a_repetition_is_answered(image: Image) -> None:
    image = planned(image, [staged(0, 0), staged(0, 1)])
    assert verdicts(image, staged(0, 1)) == ["DUPLICATE"]
    assert [one.base_offset for one in decide_accepted(image, [staged(0, 1)], node_id=1)] == [-1]
    assert verdicts(image, staged(0, 3)) == ["OUT_OF_ORDER_SEQUENCE"]
    image = planned(image, [plain(2, 4)])
    assert [one.base_offset for one in decide_accepted(image, [plain(2, 4)], node_id=1)] == [0]


def test_a_transactional_producer_appends_in_transactions_only(image: Image) -> None:
    assert verdicts(image, plain(0, 0, producer_id=0)) == ["TRANSACTION_STATE"]


@pytest.mark.parametrize("count", [1, 3, 8, 50])
def test_a_request_says_all_of_it(count: int) -> None:
    parts = tuple(
        staged(0, number, opens_ms=number % 3 - 1) if number % 2 == 0 else plain(1, number)
        for number in range(count)
    )
    asks = BrokerAsks(accepted=parts, node_id=4, broker_epoch=17)
    assert decode_payload(encode_broker_payload(asks)) == asks
    bare = BrokerAsks(accepted=(plain(0),), node_id=4, broker_epoch=17)
    assert b"staging" not in encode_broker_payload(bare)


@pytest.mark.parametrize(
    ("payload", "found"),
    [
        (b'{"staging":{"transactional":1}}', "staged drafts of no broker"),
        (
            b'{"act_as_broker":' + NO_CONDITIONS + b',"staging":{"transactional":[1,0]}}',
            "column transactional: 2 numbers, expected 0",
        ),
    ],
)
def test_malformed_requests(payload: bytes, found: str) -> None:
    with pytest.raises(CorruptLogError, match=found):
        decode_payload(payload)
