"""Groups that are silent go where no broker sees to them, whole, and never one that commits meanwhile."""

from collections.abc import Mapping

import pytest

from sparklog.client import OFFSETS_TOPIC, SparkLog, StagedAppend
from sparklog.client.group_expiry import SilentGroup, delete_groups, expire_groups
from sparklog.client.groups import TopicPartition
from sparklog.clock import ManualClock
from sparklog.errors import InvalidRequestError
from sparklog.maintenance import CompactionLimits, compact
from sparklog.metadata import new_id, plan_join_broker

DAY_MS = 86_400_000


@pytest.fixture
def filled(log: SparkLog, clock: ManualClock) -> SparkLog:
    """Group `old` was here two days ago, `half` commits for one of its two partitions, `new` is at work."""
    log.commit_offsets("old", {("t", 0): 5, ("t", 1): 6})
    log.commit_offsets("half", {("t", 0): 5, ("t", 1): 6})
    clock.advance_ms(2 * DAY_MS)
    log.commit_offsets("half", {("t", 0): 7})
    log.commit_offsets("new", {("t", 0): 1})
    return log


def test_whole_groups_go_that_have_committed_nothing(
    filled: SparkLog, other: SparkLog, clock: ManualClock
) -> None:
    expected = [SilentGroup(group="old", offsets=2, committed_ms=clock.now_ms() - 2 * DAY_MS)]
    assert expire_groups(filled, DAY_MS, dry_run=True) == expected
    assert filled.groups() == ["half", "new", "old"]
    assert expire_groups(filled, DAY_MS) == expected
    for one in (filled, other):
        assert one.groups() == ["half", "new"]
        assert one.committed_offsets("half") == {("t", 0): 7, ("t", 1): 6}
    assert expire_groups(filled, DAY_MS) == []


def test_only_those_that_are_named(filled: SparkLog, clock: ManualClock) -> None:
    clock.advance_ms(2 * DAY_MS)
    assert [one.group for one in expire_groups(filled, DAY_MS, ["new", "unheard of"])] == ["new"]
    assert filled.groups() == ["half", "old"]


def test_nothing_is_left_of_them_after_compaction(log: SparkLog, clock: ManualClock) -> None:
    log.alter_root({"offsets.topic.num.partitions": "1"})
    log.commit_offsets("old", {("t", 0): 5})
    log.commit_offsets("old", {("t", 0): 6})
    expire_groups(log, 0)
    for _ in range(2):  # the tombstone goes a day after the first
        compact(log.metadata, clock, [OFFSETS_TOPIC], CompactionLimits())
        clock.advance_ms(2 * DAY_MS)
    assert log.read(OFFSETS_TOPIC, 0, 0).num_rows == 0
    assert log.groups() == []


def test_who_commits_meanwhile_keeps_everything(
    filled: SparkLog, other: SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = filled.stage_offsets

    def stage_beside(_log: SparkLog, group: str, offsets: Mapping[TopicPartition, None]) -> StagedAppend:
        staged = stage(group, offsets)
        monkeypatch.undo()
        other.commit_offsets("old", {("t", 0): 9})
        return staged

    monkeypatch.setattr(SparkLog, "stage_offsets", stage_beside)
    assert expire_groups(filled, DAY_MS) == []
    assert filled.committed_offsets("old") == {("t", 0): 9, ("t", 1): 6}


def test_a_brokers_groups_are_its_own(filled: SparkLog) -> None:
    filled.metadata.publish(lambda image: [plan_join_broker(image, 7, incarnation_id=new_id())])
    with pytest.raises(InvalidRequestError, match="broker 7 coordinates its groups") as raised:
        expire_groups(filled, DAY_MS, dry_run=True)
    assert raised.value.code == "BROKER_COORDINATES"
    assert [one.group for one in expire_groups(filled, DAY_MS, force=True)] == ["old"]


def test_a_root_without_groups(log: SparkLog) -> None:
    assert expire_groups(log, 0) == []
    assert expire_groups(log, 0, ["g"]) == []


def test_groups_are_deleted_by_name_whenever_they_committed(filled: SparkLog, other: SparkLog) -> None:
    assert delete_groups(filled, ["new", "unheard of"]) == {"new": None, "unheard of": "GROUP_ID_NOT_FOUND"}
    assert other.groups() == ["half", "old"]
    filled.metadata.publish(lambda image: [plan_join_broker(image, 7, incarnation_id=new_id())])
    with pytest.raises(InvalidRequestError, match="broker 7 coordinates its groups"):
        delete_groups(filled, ["old"])
    assert delete_groups(filled, ["old"], force=True) == {"old": None}
    assert other.groups() == ["half"]
