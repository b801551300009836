"""Members of a share group: epochs, and who fetches what."""

import itertools

import pytest

from sparklog_server.protocol.apis import ErrorCode
from sparklog_server.share.members import ShareGroup, ShareHeartbeat, ShareHeartbeatResult, Topics

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
    now_ms: float = 0,
) -> ShareHeartbeatResult:
    request = ShareHeartbeat(
        member_id=member, epoch=epoch, client_id="c", client_host="/h", topics=topics if epoch == 0 else None
    )
    topics_now = Topics(0 if known is TOPICS else next(_versions) + 1, known.get)
    return group.heartbeat(request, topics_now, now_ms=now_ms, session_ms=1_000, max_size=3)


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
    assert [sum(len(one) for one in member.assignment.values()) for member in group.assigned()] == [1, 1, 1]


@pytest.mark.parametrize(("members", "partitions"), [(1, 5), (2, 5), (3, 3), (3, 2), (3, 7)])
def test_each_partition_has_a_member_and_each_member_a_partition(members: int, partitions: int) -> None:
    group = ShareGroup("g")
    known: Known = {"orders": ("A" * 22, partitions)}
    for name in "abc"[:members]:
        beat(group, name, known=known)
    counts = [len(member.assignment["A" * 22]) for member in group.assigned()]
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
