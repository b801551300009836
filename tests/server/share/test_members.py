"""Members of a share group: epochs, and who fetches what."""

import itertools

import pytest

from sparklog_server.groups.pacing import MAX_INLINE_WEIGHT
from sparklog_server.protocol.apis import ErrorCode
from sparklog_server.share.members import (
    ShareGroup,
    ShareGroupLimits,
    ShareHeartbeat,
    ShareHeartbeatResult,
    Topics,
)

Known = dict[str, tuple[str, int]]
TOPICS: Known = {"orders": ("A" * 22, 4), "returns": ("B" * 22, 1)}
_versions = itertools.count()


def beat(
    group: ShareGroup,
    member: str = "a",
    epoch: int = 0,
    topics: tuple[str, ...] | None = ("orders",),
    *,
    known: Known = TOPICS,
    now_ms: int = 0,
    interval_ms: int = 0,
    max_size: int = 3,
) -> ShareHeartbeatResult:
    request = ShareHeartbeat(
        member_id=member, epoch=epoch, client_id="c", client_host="/h", topics=topics if epoch == 0 else None
    )
    topics_now = Topics(0 if known is TOPICS else next(_versions) + 1, known.get)
    limits = ShareGroupLimits(max_size=max_size, session_timeout_ms=1_000, assignment_interval_ms=interval_ms)
    return group.heartbeat(request, topics_now, limits, now_ms)


def parts(result: ShareHeartbeatResult) -> list[int]:
    assert result.assignment is not None
    return [number for numbers in result.assignment.values() for number in numbers]


def test_partitions_are_shared_out() -> None:
    group = ShareGroup("g")
    assert parts(beat(group)) == [0, 1, 2, 3]
    assert parts(beat(group, "b")) == [1, 3]
    after = beat(group, "a", epoch=2)
    assert (after.epoch, parts(after)) == (3, [0, 2])
    assert beat(group, "a", epoch=3).assignment is None


def test_more_members_than_partitions_share_them() -> None:
    group = ShareGroup("g")
    for name in "abc":
        beat(group, name, topics=("returns",))
    assert [sum(len(one) for one in member.assignment.values()) for member in group] == [1, 1, 1]


@pytest.mark.parametrize(("members", "partitions"), [(1, 5), (2, 5), (3, 3), (3, 2), (3, 7)])
def test_each_partition_has_a_member_and_each_member_a_partition(members: int, partitions: int) -> None:
    group = ShareGroup("g")
    known: Known = {"orders": ("A" * 22, partitions)}
    for name in "abc"[:members]:
        beat(group, name, known=known)
    counts = [len(member.assignment["A" * 22]) for member in group]
    assigned = {number for member in group for number in member.assignment["A" * 22]}
    assert assigned == set(range(partitions))
    assert max(counts) - min(counts) <= 1
    assert min(counts) >= 1


def test_new_partitions_and_lost_topics_are_changes() -> None:
    group = ShareGroup("g")
    first = beat(group, topics=("orders", "missing"))
    grown = beat(group, epoch=first.epoch, known={"orders": ("A" * 22, 5)})
    assert parts(grown) == [0, 1, 2, 3, 4]
    assert parts(beat(group, epoch=grown.epoch, known={})) == []


def test_epochs_that_are_refused() -> None:
    group = ShareGroup("g")
    first = beat(group)
    assert beat(group, epoch=first.epoch + 1).error is ErrorCode.fenced_member_epoch
    assert beat(group, "stranger", epoch=1).error is ErrorCode.unknown_member_id
    assert beat(group, "stranger", epoch=-1).error is ErrorCode.unknown_member_id
    assert beat(group, epoch=-2).error is ErrorCode.invalid_request
    assert beat(group, "new", topics=()).error is ErrorCode.invalid_request
    assert beat(group, "new", topics=("t",) * 1_001).error is ErrorCode.invalid_request
    assert len(group) == 1


def test_an_answer_that_was_lost_comes_again() -> None:
    group = ShareGroup("g")
    first = beat(group)
    beat(group, "b")
    lost = beat(group, epoch=first.epoch)
    again = beat(group, epoch=first.epoch)
    assert (again.epoch, again.assignment) == (lost.epoch, lost.assignment)
    beat(group, "c")
    beat(group, epoch=again.epoch)
    assert beat(group, epoch=first.epoch).error is ErrorCode.fenced_member_epoch


def test_members_leave_and_fall_silent() -> None:
    group = ShareGroup("g")
    first = beat(group)
    second = beat(group, "b", now_ms=500)
    assert beat(group, "a", epoch=-1).epoch == -1
    assert parts(beat(group, "b", epoch=second.epoch, now_ms=900)) == [0, 1, 2, 3]
    assert group.expire(1_899) == []
    assert group.expire(1_900) == ["b"]
    assert len(group) == 0
    assert first.epoch < group.epoch


def test_a_group_has_a_size() -> None:
    group = ShareGroup("g")
    for name in "abc":
        beat(group, name)
    assert beat(group, "d").error is ErrorCode.group_max_size_reached
    assert not beat(group, "a").error
    assert group.held_bytes > 3 * 600


def test_an_assignment_is_computed_once_in_an_interval() -> None:
    """Members that come meanwhile have the epoch of the last one, and nothing to fetch."""
    group = ShareGroup("g")
    first = beat(group, interval_ms=500, now_ms=100)
    second = beat(group, "b", interval_ms=500, now_ms=110)
    assert (second.epoch, second.assignment) == (first.epoch, {})
    assert (group.epoch, group.assignment_epoch, group.pace.next_ms) == (3, 2, 600)
    assert beat(group, epoch=first.epoch, interval_ms=500, now_ms=599).assignment is None
    group.assign_if_due(600, 500)  # without a heartbeat
    assert not group.needs_assignment
    assert parts(beat(group, epoch=first.epoch, interval_ms=500, now_ms=601)) == [0, 2]
    assert parts(beat(group, "b", epoch=second.epoch, interval_ms=500, now_ms=601)) == [1, 3]
    assert group.pace.next_ms == 1_100


def test_a_large_assignment_is_computed_apart() -> None:
    """An epoch of 0 would have its members join again."""
    group = ShareGroup("g")
    names = tuple(f"t{number}" for number in range(1_000))
    known: Known = {name: (name, 1) for name in names}
    count = MAX_INLINE_WEIGHT // len(names) + 1
    for number in range(count):
        beat(group, f"m{number:02}", topics=names, known=known, max_size=count + 1)
        group.pace.next_ms = 1_000
    task = group.task()
    group.is_assigning = True
    assert not group.must_assign_apart(1_000)
    late = beat(group, "late", topics=names, known=known, max_size=count + 1)
    assert beat(group, "m01", epoch=-1).epoch == -1
    assert (late.epoch, late.assignment) == (2, {})
    group.assign(task, task.run(), 1_000, interval_ms=100, took_ms=30)
    assert [len(one.assignment) for one in group] == [1_000] * (count - 1) + [0]
    assert (group.assignment_epoch, group.pace.next_ms) == (task.epoch, 1_300)
    group.assign_if_due(1_300, 0)
    assert group.must_assign_apart(1_300)
    assert not group.must_assign_apart(1_299)


def test_the_first_epoch_is_not_that_of_joining() -> None:
    group = ShareGroup("g")
    group.is_assigning = True
    assert beat(group).epoch > 0


def test_who_subscribes_to_other_topics_keeps_what_it_has_of_them() -> None:
    group = ShareGroup("g")
    beat(group, topics=("orders", "returns"), interval_ms=1_000)
    answer = beat(group, topics=("missing", "returns"), interval_ms=1_000)
    assert answer.assignment is not None
    assert {topic: list(some) for topic, some in answer.assignment.items()} == {"B" * 22: [0]}
    group.assign_if_due(1_000, 0)
    assert [list(member.assignment) for member in group] == [["B" * 22]]


def test_what_members_hold_is_counted() -> None:
    group = ShareGroup("g")
    beat(group)
    held = group.held_bytes
    beat(group, "b", topics=("orders", "x" * 100))
    assert group.held_bytes > held + 100
    beat(group, "b", topics=("orders",))
    assert group.held_bytes == 2 * held
    beat(group, "b", epoch=-1)
    assert group.held_bytes == held
