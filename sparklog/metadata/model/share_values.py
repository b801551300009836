"""What share groups have done with the records of a partition, as values.

A share group's state in a partition is a start offset and ranges of records from there on. A record without a
range is available, and was never delivered. Acquired records are in the memory of the partition's leader
only (sparklog_server/share); here is what survives it.

Invariants: ranges ascend, do not overlap, and begin at the start offset or later; neighbours differ; the
    first record at the start offset has not ended; a record that has ended never changes, and the number of
    deliveries of one that has not only grows (but for begin_share, which sets the state anew).
Not here: the actions that change them (sharing.py).
Concurrency: immutable; pure functions.
Sources: FORMAT.md#share-groups; tests/models/sharing.py; KIP-932.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from sparklog.errors import why_not_utf8
from sparklog.metadata.model.action import MAX_OFFSET, Int64

MAX_SHARE_RANGES = 20_000  # of a share group in a partition; brokers acquire within 10,000 records
MAX_SHARE_STATES = 200_000  # partitions of all share groups
MAX_SHARE_GROUP_LENGTH = 10_000
MAX_DELIVERIES = (1 << 15) - 1


class DeliveryState(enum.IntEnum):
    """Kafka's numbers; 1 is acquired, which is not stored."""

    AVAILABLE = 0
    ACKNOWLEDGED = 2
    ARCHIVED = 4


class ShareRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Consecutive records of one state and one number of deliveries; `last` is inclusive."""

    first: Int64
    last: Int64
    state: DeliveryState
    deliveries: Int64

    @property
    def has_ended(self) -> bool:
        """True if it is never delivered again."""
        return self.state is not DeliveryState.AVAILABLE


class ShareState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A share group in a partition; `state_epoch`: the commit that has set the start offset."""

    state_epoch: Int64
    start_offset: Int64
    ranges: tuple[ShareRange, ...] = ()

    @property
    def ended_count(self) -> int:
        """Return the number of records from the start offset on that have ended."""
        return sum(one.last - one.first + 1 for one in self.ranges if one.has_ended)


SharePlace = tuple[str, int]  # topic id, partition
Shares = Mapping[str, Mapping[SharePlace, ShareState]]  # by group


def why_illegal_share_group(group: str) -> str | None:
    """Return the rule that the id of a share group breaks, or None."""
    if not 1 <= len(group) <= MAX_SHARE_GROUP_LENGTH:
        return f"a group id of {len(group)} characters, expected 1 to {MAX_SHARE_GROUP_LENGTH}"
    wrong = why_not_utf8(group)
    return None if wrong is None else f"group id {wrong}"


def why_illegal_ranges(ranges: Sequence[ShareRange]) -> str | None:
    """Return the rule that ranges break, or None."""
    if len(ranges) > MAX_SHARE_RANGES:
        return f"{len(ranges)} ranges, expected at most {MAX_SHARE_RANGES:,}"
    end = 0
    for one in ranges:
        if not end <= one.first <= one.last < MAX_OFFSET:
            return f"a range from {one.first} to {one.last}, expected one from {end} on"
        if not 0 <= one.deliveries <= MAX_DELIVERIES:
            return f"{one.deliveries} deliveries, expected 0 to {MAX_DELIVERIES:,}"
        end = one.last + 1
    return None


def why_illegal_share(state: ShareState, log_end_offset: int) -> str | None:
    """Return the rule that a state breaks, or None."""
    ranges = state.ranges
    if not 0 <= state.start_offset <= log_end_offset:
        return f"a start offset of {state.start_offset}, expected 0 to {log_end_offset}"
    if ranges and not state.start_offset <= ranges[0].first <= ranges[-1].last < log_end_offset:
        return f"ranges from {ranges[0].first} to {ranges[-1].last}, expected them within the log"
    return why_illegal_ranges(ranges)


def share_after(state: ShareState, changes: Sequence[ShareRange], *, log_start_offset: int = 0) -> ShareState:
    """Return the state after these records were acknowledged, archived or released.

    Records below the log's start have ended, and are left out of the changes.

    Args:
        changes: legal ranges.

    Raises:
        ValueError: a record has ended already, or its number of deliveries would not grow.
    """
    start = max(state.start_offset, log_start_offset)
    changes = clipped(changes, start)
    ranges = [*_outside(clipped(state.ranges, start), changes), *changes]
    ranges.sort(key=lambda one: one.first)
    ended = 0
    for one in ranges:
        if one.first != start or not one.has_ended:
            break
        start = one.last + 1
        ended += 1
    return ShareState(state.state_epoch, start, tuple(_joined(ranges[ended:])))


def clipped(ranges: Iterable[ShareRange], start_offset: int) -> list[ShareRange]:
    """Return the parts from an offset on."""
    return [
        one if one.first >= start_offset else msgspec.structs.replace(one, first=start_offset)
        for one in ranges
        if one.last >= start_offset
    ]


def _outside(ranges: Sequence[ShareRange], changes: Sequence[ShareRange]) -> list[ShareRange]:
    """Return the parts of ranges that no change covers. Cost: one pass over both."""
    parts: list[ShareRange] = []
    number = 0
    for one in ranges:
        first = one.first
        while number < len(changes) and changes[number].last < first:
            number += 1
        at = number
        while at < len(changes) and changes[at].first <= one.last:
            change = changes[at]
            _validate(one, change)
            if change.first > first:
                parts.append(msgspec.structs.replace(one, first=first, last=change.first - 1))
            first = change.last + 1
            at += 1
        if first <= one.last:
            parts.append(msgspec.structs.replace(one, first=first))
    return parts


def _validate(before: ShareRange, after: ShareRange) -> None:
    if before.has_ended:
        raise ValueError(f"records {before.first} to {before.last} have ended: {before.state.name.lower()}")
    if not after.has_ended and after.deliveries <= before.deliveries:
        raise ValueError(
            f"records from {after.first} on: {after.deliveries} deliveries after {before.deliveries}"
        )


def _joined(ranges: Iterable[ShareRange]) -> list[ShareRange]:
    joined: list[ShareRange] = []
    for one in ranges:
        last = joined[-1] if joined else None
        if last is not None and (last.last + 1, last.state, last.deliveries) == (
            one.first,
            one.state,
            one.deliveries,
        ):
            joined[-1] = msgspec.structs.replace(last, last=one.last)
        else:
            joined.append(one)
    return joined
