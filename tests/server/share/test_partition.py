"""Acquisition locks: what a member gets, keeps and gives back; against a dictionary of records."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.metadata import DeliveryState, ShareRange, ShareState, share_after
from sparklog_server.protocol.apis import ErrorCode
from sparklog_server.share.partition import (
    AckBatch,
    AcknowledgeType,
    Acquired,
    AcquireMode,
    Cause,
    Letter,
    ShareLimits,
    SharePartition,
    Transition,
)

ACCEPT, RELEASE, REJECT, RENEW = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
    AcknowledgeType.RENEW,
)
LIMITS = ShareLimits(max_deliveries=3, max_locks=100, lock_ms=1_000)
BATCHES = AcquireMode.BATCH_OPTIMIZED
STRICT = AcquireMode.RECORD_LIMIT


def partition(start: int = 0, *ranges: ShareRange) -> SharePartition:
    return SharePartition(ShareState(1, start, ranges), leader_epoch=1)


def acquire(
    one: SharePartition,
    member: str = "a",
    *,
    spans: tuple[tuple[int, int], ...] = ((0, 9), (10, 19)),
    most: int = 1_000,
    mode: AcquireMode = BATCHES,
    now_ms: float = 0,
    limits: ShareLimits = LIMITS,
) -> list[Acquired]:
    return one.acquire(member, spans, max_records=most, mode=mode, now_ms=now_ms, limits=limits)


def plan(one: SharePartition, first: int, last: int, *types: int, member: str = "a") -> Transition:
    found = one.acknowledge(member, [AckBatch(first, last, types)], now_ms=0, limits=LIMITS)
    assert isinstance(found, Transition), found
    return found


def write(one: SharePartition, transition: Transition) -> None:
    one.settle(transition, share_after(one.state, transition.ranges))


def refused(one: SharePartition, first: int, last: int, *types: int, member: str = "a") -> ErrorCode:
    before = [(lock.first, lock.last, lock.is_writing) for lock in one.locks]
    found = one.acknowledge(member, [AckBatch(first, last, types)], now_ms=0, limits=LIMITS)
    assert isinstance(found, ErrorCode)
    assert [(lock.first, lock.last, lock.is_writing) for lock in one.locks] == before
    return found


# --- acquiring ---------------------------------------------------------------------------------------


def test_whole_batches_are_acquired() -> None:
    one = partition()
    assert acquire(one, most=3) == [Acquired(0, 9, 1)]
    assert acquire(one, most=3) == [Acquired(10, 19, 1)]
    assert acquire(one) == []


def test_the_record_limit_is_strict() -> None:
    one = partition()
    assert acquire(one, most=12, mode=STRICT) == [Acquired(0, 9, 1), Acquired(10, 11, 1)]
    assert acquire(one, most=3, mode=STRICT) == [Acquired(12, 14, 1)]
    one = partition(0, ShareRange(1, 1, DeliveryState.ACKNOWLEDGED, 1))
    assert acquire(one, most=1, mode=STRICT) == [Acquired(0, 0, 1)]


def test_what_is_between_is_available() -> None:
    one = partition(
        2,
        ShareRange(4, 5, DeliveryState.ACKNOWLEDGED, 1),
        ShareRange(7, 8, DeliveryState.AVAILABLE, 2),
        ShareRange(9, 9, DeliveryState.AVAILABLE, 3),
    )
    expected = [Acquired(2, 3, 1), Acquired(6, 6, 1), Acquired(7, 8, 3), Acquired(10, 12, 1)]
    assert acquire(one, spans=((0, 12),)) == expected
    assert one.locked_count == 8


def test_no_more_than_the_window_is_acquired() -> None:
    limits = ShareLimits(max_locks=5)
    one = partition(3)
    assert acquire(one, limits=limits) == [Acquired(3, 7, 1)]
    assert one.next_free(100, limits) is None
    write(one, plan(one, 3, 4, ACCEPT))
    assert acquire(one, limits=limits) == [Acquired(8, 9, 1)]


def test_the_next_free_offset() -> None:
    one = partition(3)
    assert one.next_free(3, LIMITS) is None
    assert one.next_free(9, LIMITS) == 3
    acquire(one, spans=((0, 9),))
    assert one.next_free(20, LIMITS) == 10


# --- acknowledging -----------------------------------------------------------------------------------


def test_records_end_when_that_is_written() -> None:
    one = partition()
    acquire(one)
    transition = plan(one, 0, 4, ACCEPT)
    assert transition.ranges == [ShareRange(0, 4, DeliveryState.ACKNOWLEDGED, 1)]
    assert refused(one, 0, 4, ACCEPT) is ErrorCode.invalid_record_state
    assert acquire(one, "b") == []
    assert one.expire(5_000, LIMITS).ranges == [
        ShareRange(5, 9, DeliveryState.AVAILABLE, 1),
        ShareRange(10, 19, DeliveryState.AVAILABLE, 1),
    ]
    write(one, transition)
    assert one.state.start_offset == 5


def test_what_is_not_written_stays_as_it_was() -> None:
    one = partition()
    acquire(one)
    one.settle(plan(one, 3, 4, ACCEPT), None)
    write(one, plan(one, 0, 19, ACCEPT))
    assert (one.state.start_offset, list(one.locks)) == (20, [])


def test_a_type_for_each_record() -> None:
    one = partition()
    acquire(one)
    transition = plan(one, 2, 7, ACCEPT, ACCEPT, 0, REJECT, RELEASE, RELEASE)
    assert transition.ranges == [
        ShareRange(2, 3, DeliveryState.ACKNOWLEDGED, 1),
        ShareRange(4, 4, DeliveryState.ARCHIVED, 1),
        ShareRange(5, 5, DeliveryState.ARCHIVED, 1),
        ShareRange(6, 7, DeliveryState.AVAILABLE, 1),
    ]
    assert transition.letters == [Letter(5, 5, 1, Cause.REJECTED)]
    write(one, transition)
    assert acquire(one, "b") == [Acquired(6, 7, 2)]


def test_a_record_is_delivered_so_often_and_then_is_a_dead_letter() -> None:
    one = partition()
    for deliveries in (1, 2, 3):
        assert acquire(one, spans=((0, 0),)) == [Acquired(0, 0, deliveries)]
        transition = plan(one, 0, 0, RELEASE)
        write(one, transition)
    assert transition.letters == [Letter(0, 0, 3, Cause.EXHAUSTED)]
    assert one.state.start_offset == 1


def test_a_lock_expires_and_its_member_has_lost_it() -> None:
    one = partition()
    acquire(one, spans=((0, 9),))
    assert one.next_deadline_ms() == 1_000
    assert one.expire(999, LIMITS) == Transition()
    write(one, one.expire(1_000, LIMITS))
    assert refused(one, 0, 0, ACCEPT) is ErrorCode.invalid_record_state
    assert acquire(one, "b", spans=((0, 9),), now_ms=1_000) == [Acquired(0, 9, 2)]
    assert refused(one, 0, 0, ACCEPT) is ErrorCode.invalid_record_state
    assert plan(one, 0, 0, ACCEPT, member="b").ranges


def test_renewing_moves_the_deadline_of_these_records() -> None:
    one = partition()
    acquire(one, spans=((0, 9),))
    found = one.acknowledge("a", [AckBatch(3, 4, [RENEW])], now_ms=600, limits=LIMITS)
    assert found == Transition()
    assert [(lock.first, lock.last, lock.deadline_ms) for lock in one.locks] == [
        (0, 2, 1_000),
        (3, 4, 1_600),
        (5, 9, 1_000),
    ]
    batches = [AckBatch(3, 4, [RENEW])]
    assert (
        one.acknowledge("a", batches, now_ms=0, limits=LIMITS, may_renew=False) is ErrorCode.invalid_request
    )


@pytest.mark.parametrize(
    ("first", "last", "types"),
    [
        (0, 0, ()),
        (0, 2, (1, 1)),
        (2, 1, (1,)),
        (-1, 0, (1,)),
        (0, 0, (5,)),
        (0, 0, (-1,)),
        (0, 100, (1,) * 101),
    ],
)
def test_malformed_batches(first: int, last: int, types: tuple[int, ...]) -> None:
    one = partition()
    acquire(one, spans=((0, 99),))
    assert refused(one, first, last, *types) is ErrorCode.invalid_request


def test_batches_have_a_bound() -> None:
    one = partition()
    batches = [AckBatch(number, number, [1]) for number in range(101)]
    assert one.acknowledge("a", batches, now_ms=0, limits=LIMITS) is ErrorCode.invalid_request


def test_batches_ascend() -> None:
    one = partition()
    acquire(one)
    batches = [AckBatch(3, 4, [1]), AckBatch(4, 5, [1])]
    assert one.acknowledge("a", batches, now_ms=0, limits=LIMITS) is ErrorCode.invalid_request


@pytest.mark.parametrize(("first", "last"), [(20, 20), (0, 20), (0, 1 << 62)])
def test_records_that_nobody_has(first: int, last: int) -> None:
    one = partition()
    acquire(one)
    assert refused(one, first, last, ACCEPT) is ErrorCode.invalid_record_state
    assert refused(one, 0, 0, ACCEPT, member="b") is ErrorCode.invalid_record_state


def test_one_wrong_batch_spoils_all() -> None:
    one = partition()
    acquire(one)
    batches = [AckBatch(0, 4, [1]), AckBatch(19, 20, [1])]
    assert one.acknowledge("a", batches, now_ms=0, limits=LIMITS) is ErrorCode.invalid_record_state
    assert not any(lock.is_writing for lock in one.locks)


def test_what_lies_below_the_start_is_ignored() -> None:
    one = partition()
    acquire(one)
    write(one, plan(one, 0, 4, ACCEPT))
    assert plan(one, 0, 5, ACCEPT).ranges == [ShareRange(5, 5, DeliveryState.ACKNOWLEDGED, 1)]
    assert plan(one, 0, 3, ACCEPT) == Transition()


# --- ending ------------------------------------------------------------------------------------------


def test_a_member_that_is_gone_counts_or_does_not() -> None:
    one = partition()
    acquire(one, spans=((0, 4),))
    acquire(one, "b", spans=((5, 9),))
    assert one.release("a", LIMITS, is_counted=False) == Transition()
    assert acquire(one, "c", spans=((0, 4),)) == [Acquired(0, 4, 1)]
    write(one, one.release("b", LIMITS, is_counted=True))
    assert acquire(one, "c", spans=((5, 9),)) == [Acquired(5, 9, 2)]


def test_a_lowered_limit_ends_what_was_delivered_as_often() -> None:
    one = partition(0, ShareRange(0, 3, DeliveryState.AVAILABLE, 3))
    assert acquire(one, spans=((0, 4),)) == [Acquired(4, 4, 1)]
    transition = one.expire(0, LIMITS)
    assert transition.letters == [Letter(0, 3, 3, Cause.EXHAUSTED)]
    assert one.expire(0, LIMITS) == Transition()
    one.settle(transition, None)
    assert one.expire(0, LIMITS).letters == transition.letters


def test_offsets_without_records_are_skipped() -> None:
    one = partition()
    acquire(one, spans=((0, 4),))
    transition = one.skip(3, 8, LIMITS)
    assert (transition.ranges, transition.letters) == ([ShareRange(5, 7, DeliveryState.ARCHIVED, 0)], [])
    assert one.next_free(8, LIMITS) is None
    one.settle(transition, None)
    assert one.next_free(8, LIMITS) == 5
    write(one, one.skip(3, 8, LIMITS))
    write(one, plan(one, 0, 4, ACCEPT))
    assert one.state.start_offset == 8


def test_a_write_that_failed_and_was_done_all_the_same_is_noticed() -> None:
    one = partition()
    acquire(one)
    transition = plan(one, 0, 4, ACCEPT)
    one.settle(transition, None)
    one.follow(share_after(one.state, transition.ranges))
    assert [(lock.first, lock.last) for lock in one.locks] == [(5, 9), (10, 19)]


def test_a_lock_of_records_that_have_ended_goes_when_that_is_refused() -> None:
    """They were acquired while an older write was on its way: from a partition that was let go meanwhile."""
    one = partition()
    acquire(one, spans=((0, 4),))
    acquire(one, spans=((5, 9),))
    ended = ShareRange(2, 4, DeliveryState.ACKNOWLEDGED, 1)
    one.follow(ShareState(1, 0, (ended,)))
    expired = one.expire(1_000, LIMITS)
    with pytest.raises(ValueError, match="have ended"):
        share_after(one.state, expired.ranges)
    one.settle(expired, None)
    write(one, one.expire(1_000, LIMITS))
    assert list(one.free(0, 10, LIMITS)) == [Acquired(0, 1, 0), Acquired(5, 9, 1)]


def test_the_start_moves_with_the_log() -> None:
    one = partition()
    acquire(one)
    one.follow(ShareState(1, 12))
    assert [(lock.first, lock.last) for lock in one.locks] == [(10, 19)]
    assert plan(one, 10, 19, ACCEPT).ranges == [ShareRange(12, 19, DeliveryState.ACKNOWLEDGED, 1)]


def test_what_has_no_dead_letters_is_written_apart() -> None:
    one = partition(0, ShareRange(0, 1, DeliveryState.AVAILABLE, 2))
    acquire(one, spans=((0, 4),))
    plain, lettered = one.expire(1_000, LIMITS).apart()
    assert plain.ranges == [ShareRange(2, 4, DeliveryState.AVAILABLE, 1)]
    assert lettered.letters == [Letter(0, 1, 3, Cause.EXHAUSTED)]
    assert (plain.count, lettered.count) == (3, 2)


def test_halves_are_written_one_after_the_other() -> None:
    one = partition()
    acquire(one)
    transition = plan(one, 0, 4, REJECT)
    first, second = one.halves(transition)
    assert first.letters == [Letter(0, 2, 1, Cause.REJECTED)]
    assert second.letters == [Letter(3, 4, 1, Cause.REJECTED)]
    write(one, first)
    one.settle(second, None)
    assert one.state.start_offset == 3
    both = plan(one, 3, 4, REJECT, RELEASE)
    assert [half.count for half in one.halves(both)] == [1, 1]


# --- against a dictionary ----------------------------------------------------------------------------

_STEPS = st.one_of(
    st.tuples(st.just("acquire"), st.integers(0, 1), st.integers(0, 29), st.integers(1, 12)),
    st.tuples(st.just("acknowledge"), st.integers(0, 1), st.integers(0, 29), st.integers(1, 4)),
    st.tuples(st.just("expire"), st.just(0), st.just(0), st.just(0)),
    st.tuples(st.just("release"), st.integers(0, 1), st.just(0), st.integers(0, 1)),
)


@pytest.mark.slow
@settings(max_examples=300)
@given(steps=st.lists(_STEPS, max_size=30), fails=st.lists(st.booleans(), min_size=30, max_size=30))
def test_ranges_do_what_single_records_do(steps: list[tuple[str, int, int, int]], fails: list[bool]) -> None:
    """Each record: available with deliveries, held by a member, or ended."""
    one = partition()
    deliveries = [0] * 30
    holder: list[str | None] = [None] * 30
    has_ended = [False] * 30
    for now, (kind, member, offset, number) in enumerate(steps):
        name = f"m{member}"
        if kind == "acquire":
            span = (offset, min(29, offset + number - 1))
            got = acquire(one, name, spans=(span,), now_ms=1_000 * now, limits=LIMITS)
            found = {(at, part.deliveries) for part in got for at in range(part.first, part.last + 1)}
            free = [
                at
                for at in range(span[0], span[1] + 1)
                if holder[at] is None and not has_ended[at] and deliveries[at] < LIMITS.max_deliveries
            ]
            assert found == {(at, deliveries[at] + 1) for at in free}
            for at in free:
                holder[at] = name
            continue
        touched = [at for at in range(30) if holder[at] == name]
        if kind == "acknowledge":
            touched = [at for at in range(offset, min(30, offset + number)) if at >= one.state.start_offset]
            last = min(29, offset + number - 1)
            result = one.acknowledge(
                name, [AckBatch(offset, last, [number])], now_ms=1_000 * now, limits=LIMITS
            )
            is_held = all(holder[at] == name for at in touched)
            assert isinstance(result, Transition) is is_held
            if not isinstance(result, Transition) or number == RENEW:
                continue
            transition = result
        elif kind == "expire":
            transition = one.expire(1 << 40, LIMITS)
            touched = [at for at in range(30) if holder[at] is not None]
        else:
            transition = one.release(name, LIMITS, is_counted=bool(number))
        is_written = not fails[now]
        if is_written:
            write(one, transition)
        else:
            one.settle(transition, None)
        is_dropped = kind == "release" and not number
        for at in touched:
            if is_dropped:
                holder[at] = None
            elif is_written:
                holder[at] = None
                ends = kind == "acknowledge" and number in (ACCEPT, REJECT)
                deliveries[at] += 1
                has_ended[at] = ends or deliveries[at] >= LIMITS.max_deliveries
        start = next((at for at in range(30) if not has_ended[at]), 30)
        assert one.state.start_offset == start
