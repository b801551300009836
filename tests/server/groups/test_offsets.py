"""The timeline of a partition's offsets: committed, appended, staged, and the bytes of all."""

import dataclasses
import random

import pytest

from sparklog.format.consumer_offsets import OffsetKey, OffsetValue
from sparklog_server.groups.offsets import GroupsState, OffsetRecord, staged_bytes


def record(group: str = "g", partition: int = 0, offset: int | None = 1, note: str = "") -> OffsetRecord:
    key = OffsetKey(group=group, topic="orders", partition=partition)
    value = None if offset is None else OffsetValue(offset=offset, commit_timestamp_ms=0, metadata=note)
    return OffsetRecord(key, value)


def copied(one: OffsetRecord) -> OffsetRecord:
    """Equal, and another object."""
    assert one.value is not None
    return OffsetRecord(one.key, dataclasses.replace(one.value))


def test_what_is_planned_counts_what_is_appended() -> None:
    state, first, second, tombstone = GroupsState(), record(offset=1), record(offset=2), record(offset=None)
    state.begin(first)
    state.begin(second)
    state.begin(tombstone)
    assert (state.planned_offset(first.key), state.planned("g")) == (None, {})
    state.end(tombstone)  # it was not appended
    assert state.planned("g") == {("orders", 0): second.value}
    assert state.committed("g") == {}
    for one in (first, second):
        state.apply(one)
        state.end(one)
    assert state.committed("g") == state.planned("g") == {("orders", 0): second.value}


def test_what_is_staged_is_not_planned() -> None:
    state, staged = GroupsState(), record(offset=5)
    state.stage(staged)
    assert (state.staged("g"), state.has_offsets("g")) == (frozenset({("orders", 0)}), True)
    assert not state.planned("g")
    assert state.held_bytes == staged_bytes(staged)
    state.unstage(staged)
    assert (state.staged("g"), state.held_bytes, state.has_offsets("g")) == (frozenset(), 0, False)
    assert state.unstaged_topics == {"orders"}


def test_equal_records_end_each_by_itself() -> None:
    state, first = GroupsState(), record(offset=1)
    second = copied(first)
    state.begin(first)
    state.begin(second)
    state.stage(first)
    state.end(second)
    state.unstage(first)
    state.end(first)
    assert (state.held_bytes, state.count_groups()) == (0, 0)


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_held_for_what_is_gone(seed: int) -> None:
    """Whatever is appended, staged, applied and refused, in any order."""
    dice = random.Random(seed)
    state, ahead, committed = GroupsState(), list[tuple[OffsetRecord, bool]](), set[tuple[str, int]]()
    for _ in range(2_000):
        if ahead and dice.random() < 0.5:
            one, is_staged = ahead.pop(dice.randrange(len(ahead)))
            if is_staged:
                state.unstage(one)
                continue
            if dice.random() < 0.7:
                state.apply(one)
                place = one.key.group, one.key.partition
                (committed.discard if one.value is None else committed.add)(place)
            state.end(one)
        else:
            offset = dice.choice([None, 1, 2])
            one = record(dice.choice("ab"), dice.randrange(3), offset, "n" * dice.randrange(9))
            is_staged = offset is not None and dice.random() < 0.3
            (state.stage if is_staged else state.begin)(one)
            ahead.append((one, is_staged))
        found = {(group, partition) for group in "ab" for _, partition in state.committed(group)}
        assert found == committed
        assert set(state.groups()) == {group for group, _ in committed}
    for one, is_staged in ahead:
        (state.unstage if is_staged else state.end)(one)
    again = GroupsState()
    for group in state.groups():
        for (_, partition), value in state.committed(group).items():
            again.apply(record(group, partition, value.offset, value.metadata))
    assert state.held_bytes == again.held_bytes
    for group, partition in committed:
        state.apply(record(group, partition, None))
    assert (state.held_bytes, state.count_groups()) == (0, 0)
    again.clear()
    assert again.held_bytes == 0
