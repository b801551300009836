"""Share groups in the metadata log: who may say what became of a record, and when that is refused."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sparklog.clock import ManualClock
from sparklog.errors import CorruptLogError, FencedError, InvalidRequestError, UnknownTopicError
from sparklog.metadata import (
    Action,
    BeginShare,
    DeliveryState,
    ForgetShare,
    Image,
    MetadataLog,
    PartitionLeadership,
    RequireFeatures,
    ShareRange,
    ShareRecords,
    ShareState,
    empty_image,
    plan_act_as_broker,
    plan_append,
    plan_assign_replicas,
    plan_begin_share,
    plan_create_topic,
    plan_delete_topic,
    plan_forget_share,
    share_refusal,
)
from sparklog.metadata.documents import snapshot
from sparklog.metadata.documents.snapshot import SnapshotState, read_snapshot, write_snapshot
from sparklog.metadata.model import sharing
from sparklog.metadata.model.action import ActionRefusedError
from sparklog.metadata.model.extent_list import DraftExtent
from sparklog.storage import MemoryStore
from tests.metadata.cluster_roots import TOPIC, applied, elected, epoch_of, joined, led

OTHER = "B" * 22
PLACE = (TOPIC, 0)
AVAILABLE, ACKNOWLEDGED, ARCHIVED = DeliveryState


def of_range(first: int, last: int, state: DeliveryState = ACKNOWLEDGED, deliveries: int = 1) -> ShareRange:
    return ShareRange(first, last, state, deliveries)


@pytest.fixture
def image() -> Image:
    """Broker 1 leads partition 0, of 20 records; the group `workers` begins there at 2."""
    found = joined(applied(empty_image("C" * 22), *[]), 1, 2)
    found = elected(found, 1)
    for name, topic_id in (("orders", TOPIC), ("other", OTHER)):
        found = applied(found, plan_create_topic(found, name, 2, topic_id=topic_id))
    replicas = {(TOPIC, one): PartitionLeadership((1, 2)) for one in range(2)}
    found = applied(found, plan_assign_replicas(found, replicas, controller_epoch=1))
    found = led(found, [1, 2])
    draft = DraftExtent(
        topic_id=TOPIC,
        partition=0,
        segment="segments/w/0.log",
        position=0,
        size=100,
        record_count=20,
        max_timestamp_ms=1,
    )
    found = applied(found, plan_append(found, [draft]))
    return begun(found, {PLACE: 2})


def begun(image: Image, starts: dict[tuple[str, int], int], *, reset: bool = False) -> Image:
    return applied(image, *plan_begin_share(image, "workers", starts, is_reset=reset))


def state_of(image: Image, group: str = "workers") -> ShareState:
    return image.shares[group][PLACE]


def records(image: Image, *ranges: ShareRange, leader_epoch: int = 1, state_epoch: int = -2) -> ShareRecords:
    return ShareRecords(
        group="workers",
        topic_id=TOPIC,
        partition=0,
        leader_epoch=leader_epoch,
        state_epoch=state_of(image).state_epoch if state_epoch == -2 else state_epoch,
        ranges=ranges,
    )


def acting(image: Image, *actions: Action, node: int = 1) -> Sequence[Action]:
    return plan_act_as_broker(image, actions, node_id=node, broker_epoch=epoch_of(image, node))


def test_a_group_begins_and_its_records_end(image: Image) -> None:
    assert state_of(image) == ShareState(image.commit, 2)
    image = applied(image, *acting(image, records(image, of_range(2, 4), of_range(6, 6, AVAILABLE, 1))))
    assert state_of(image) == ShareState(state_of(image).state_epoch, 5, (of_range(6, 6, AVAILABLE),))


def test_the_first_share_needs_the_feature(image: Image) -> None:
    assert image.reader_features == {"share-groups"}
    fresh = applied(
        empty_image("C" * 22), plan_create_topic(empty_image("C" * 22), "orders", 1, topic_id=TOPIC)
    )
    first = plan_begin_share(fresh, "workers", {PLACE: 0}, is_reset=False)
    assert [type(one) for one in first] == [RequireFeatures, BeginShare]
    with pytest.raises(ActionRefusedError, match="does not need the feature"):
        applied(fresh, first[1])


def test_a_group_begins_once_unless_it_is_reset(image: Image) -> None:
    assert plan_begin_share(image, "workers", {PLACE: 9}, is_reset=False) == []
    done = applied(image, *acting(image, records(image, of_range(5, 9))))
    after = begun(done, {PLACE: 9}, reset=True)
    assert state_of(after) == ShareState(after.commit, 9)


def test_it_begins_within_the_log(image: Image) -> None:
    assert state_of(begun(image, {PLACE: 99}, reset=True)).start_offset == 20
    with pytest.raises(ActionRefusedError, match="expected 0 to 20"):
        applied(image, BeginShare(group="workers", topic_id=TOPIC, partition=0, start_offset=21))
    with pytest.raises(UnknownTopicError):
        plan_begin_share(image, "workers", {(TOPIC, 7): 0}, is_reset=False)


def test_only_the_leader_says_what_became_of_records(image: Image) -> None:
    change = records(image, of_range(2, 2))
    with pytest.raises(ActionRefusedError, match="of broker None"):
        applied(image, change)
    with pytest.raises(ActionRefusedError, match="of broker 2"):
        applied(image, *acting(image, change, node=2))
    assert share_refusal(image, change, node_id=1) is None
    refusal = share_refusal(image, change, node_id=2)
    assert isinstance(refusal, FencedError)
    assert refusal.code == "NOT_LEADER"


def test_a_leader_that_returns_does_not_end_what_it_gave_out_before(image: Image) -> None:
    change = records(image, of_range(2, 2))
    image = led(led(image, {0: 2}), {0: 1})  # epoch 3
    with pytest.raises(ActionRefusedError, match="in epoch 1"):
        applied(image, *acting(image, change))
    assert share_refusal(image, change, node_id=1) is not None
    assert share_refusal(image, records(image, of_range(2, 2), leader_epoch=3), node_id=1) is None


def test_a_change_of_before_a_reset_does_not_apply(image: Image) -> None:
    change = records(image, of_range(2, 2))
    image = begun(image, {PLACE: 2}, reset=True)
    with pytest.raises(ActionRefusedError, match="state epoch"):
        applied(image, *acting(image, change))
    refusal = share_refusal(image, change, node_id=1)
    assert refusal is not None
    assert "SHARE_STATE_CHANGED" in str(refusal)


@pytest.mark.parametrize(
    "ranges",
    [(), (of_range(2, 20),), (of_range(4, 3),), (of_range(2, 2, AVAILABLE, 0),) * 2],
    ids=["none", "beyond the end", "backwards", "twice"],
)
def test_illegal_changes(image: Image, ranges: tuple[ShareRange, ...]) -> None:
    change = records(image, *ranges)
    with pytest.raises(ActionRefusedError):
        applied(image, *acting(image, change))
    refusal = share_refusal(image, change, node_id=1)
    assert isinstance(refusal, InvalidRequestError)


def test_a_record_ends_once(image: Image) -> None:
    image = applied(image, *acting(image, records(image, of_range(4, 4))))
    again = records(image, of_range(4, 4, ARCHIVED, 5))
    with pytest.raises(ActionRefusedError, match="have ended"):
        applied(image, *acting(image, again))
    assert share_refusal(image, again, node_id=1) is not None


def test_a_state_has_a_bound(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "MAX_SHARE_RANGES", 1)
    change = records(image, of_range(3, 3), of_range(5, 5))
    with pytest.raises(ActionRefusedError, match="2 ranges"):
        applied(image, *acting(image, change))
    assert "2 ranges" in str(share_refusal(image, change, node_id=1))


def test_states_have_a_bound(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "MAX_SHARE_STATES", 1)
    with pytest.raises(InvalidRequestError, match="SHARE_GROUPS_FULL"):
        plan_begin_share(image, "others", {PLACE: 0}, is_reset=False)
    with pytest.raises(ActionRefusedError, match="more than 1"):
        applied(image, BeginShare(group="others", topic_id=TOPIC, partition=0, start_offset=0))
    assert plan_begin_share(image, "workers", {PLACE: 0}, is_reset=True)
    with pytest.raises(InvalidRequestError, match="INVALID_GROUP"):
        plan_begin_share(image, "", {PLACE: 0}, is_reset=False)


def test_long_names_count_as_states(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "MAX_SHARE_STATES", 10)
    long = "x" * 9 * sharing.NAME_CHARACTERS
    with pytest.raises(InvalidRequestError, match="SHARE_GROUPS_FULL"):
        plan_begin_share(image, long, {PLACE: 0}, is_reset=False)
    image = applied(
        image, *plan_begin_share(image, long[: -2 * sharing.NAME_CHARACTERS], {PLACE: 0}, is_reset=False)
    )
    with pytest.raises(InvalidRequestError, match="SHARE_GROUPS_FULL"):
        plan_begin_share(image, "others", {PLACE: 0, (TOPIC, 1): 0}, is_reset=False)
    assert plan_begin_share(image, "others", {PLACE: 0}, is_reset=False)


class Counted(dict[tuple[str, int], ShareState]):
    """Counts how often its size is asked for."""

    asked = 0

    def __len__(self) -> int:
        Counted.asked += 1
        return super().__len__()


def test_states_are_counted_once_for_a_commit(image: Image) -> None:
    """A request may begin in thousands of partitions, and there may be thousands of groups."""
    states = {f"g-{number}": Counted({PLACE: state_of(image)}) for number in range(10)}
    image = replace(image, shares=states)
    begins = [
        BeginShare(group=f"n-{number}", topic_id=TOPIC, partition=0, start_offset=0) for number in range(50)
    ]
    Counted.asked = 0
    applied(image, *begins)
    assert Counted.asked < 100


def test_a_group_is_forgotten(image: Image) -> None:
    image = begun(image, {(OTHER, 0): 0, (OTHER, 1): 0})
    assert plan_forget_share(image, "workers", ["D" * 22]) is None
    assert plan_forget_share(image, "unknown") is None
    action = plan_forget_share(image, "workers", [OTHER])
    assert action == ForgetShare(group="workers", topics=(OTHER,))
    image = applied(image, action)
    assert set(image.shares["workers"]) == {PLACE}
    assert applied(image, plan_forget_share(image, "workers")).shares == {}


def test_a_topic_takes_its_states_along(image: Image) -> None:
    image = begun(image, {(OTHER, 0): 0})
    image = applied(image, plan_delete_topic(image, "orders"))
    assert set(image.shares["workers"]) == {(OTHER, 0)}


def test_an_image_does_not_change(image: Image) -> None:
    before = image.shares["workers"]
    applied(image, *acting(image, records(image, of_range(2, 2))))
    assert state_of(image).start_offset == 2
    assert image.shares["workers"] is before


def test_snapshots_have_them(image: Image) -> None:
    image = applied(image, *acting(image, records(image, of_range(3, 4), of_range(6, 7, AVAILABLE, 3))))
    store = MemoryStore()
    write_snapshot(store, image, timestamp_ms=0)
    found = read_snapshot(store, image.commit, cluster_id=image.cluster_id)
    assert found.shares == image.shares
    assert found.reader_features == {"share-groups"}


@pytest.mark.parametrize(
    ("group", "place", "state"),
    [
        ("workers", (TOPIC, 9), ShareState(1, 0)),
        ("workers", ("D" * 22, 0), ShareState(1, 0)),
        ("workers", PLACE, ShareState(1, 21)),
        ("workers", PLACE, ShareState(1, 5, (of_range(2, 9),))),
        ("", PLACE, ShareState(1, 0)),
    ],
    ids=["partition", "topic", "start", "ranges", "group"],
)
def test_damage_in_a_snapshot(
    image: Image,
    group: str,
    place: tuple[str, int],
    state: ShareState,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    stored = {group: {place[0]: {place[1]: state}}}
    monkeypatch.setattr(snapshot, "stored_shares", lambda _: stored)
    write_snapshot(store, image, timestamp_ms=0)
    with pytest.raises(CorruptLogError, match="found share group"):
        read_snapshot(store, image.commit, cluster_id=image.cluster_id)
    assert "shares" in SnapshotState.__struct_fields__


def test_a_log_is_read_again_with_them() -> None:
    store = MemoryStore()
    log = MetadataLog.open(store, clock=ManualClock(), create=True)
    log.publish(lambda now: [plan_create_topic(now, "orders", 1, topic_id=TOPIC)])
    log.publish(lambda now: plan_begin_share(now, "workers", {PLACE: 0}, is_reset=False))
    assert MetadataLog.open(store, clock=ManualClock()).image.shares == log.image.shares
