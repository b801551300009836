"""Producers that are forgotten once they have been silent for long: expire_producers.

A replay has no clock, and images of older snapshots do not say when a producer wrote last. So time comes in
by marks. Each expire_producers notes where the partitions end, and when that was by the clock of whoever
publishes it; the next one, an expiration later, makes each partition forget the producers whose last batch
lies below its mark. Who has written in between lies above it. So a producer is forgotten when it has been
silent for between one and two expirations, whatever the timestamps of its records say.

What is forgotten must not come back as new. A batch of a producer that the partition does not know is new for
certain if its producer id, its epoch or its largest timestamp is above all that was forgotten there, which is
all that an image keeps of it (`Forgotten`). Else it may be a repetition, and is refused (sequences.py).

Invariants: where a partition's forgotten part ends only goes up, and never beyond the log's end; nothing of a
    producer that a partition knows lies above its last batch. Whose transaction is open is not forgotten.
Not here: when it is due (maintenance/steps.py).
Sources: Kafka ProducerStateManager.removeExpiredProducers, isProducerExpired; adr/0025.
"""

from collections.abc import Container, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from sparklog.metadata.model.action import ActionBase, ActionRefusedError, invalid_plan
from sparklog.metadata.model.draft import ImageDraft
from sparklog.metadata.model.extent import NO_PRODUCER_ID
from sparklog.metadata.model.image import NEVER_MARKED_MS, Forgotten, Image, PartitionState, ProducerState
from sparklog.metadata.model.numbers import MAX_OFFSET, Int64
from sparklog.metadata.model.sequences import merged_above


class ExpireProducers(ActionBase, tag="expire_producers", frozen=True, kw_only=True):
    """All partitions forget the producers that have not written since their marks, and are marked anew.

    Fields:
        time_ms: when that is, by the clock of whoever publishes it, or the newest commit's if that is later;
            the next one is planned by it.
        max_timestamp_ms: no batch that is forgotten has a later timestamp, as far as extents do not show it.
        marks_only: nothing is forgotten, since there are no marks, or nobody knows how old they are.
    """

    time_ms: Int64
    max_timestamp_ms: Int64 = -1
    marks_only: bool = False


# --- effect ------------------------------------------------------------------------------------------


def expire_producers(draft: ImageDraft, action: ExpireProducers) -> None:
    """Every partition that knows any producer."""
    reason = _why_illegal(action)
    if reason is not None:
        raise ActionRefusedError(reason)
    draft.producers_marked_ms = action.time_ms
    for state in list(draft.states()):
        if state.producers:
            partition = draft.partition(state.topic_id, state.partition)
            staging = draft.transactions.staging_in(state.topic_id, state.partition)
            partition.state = _marked(state) if action.marks_only else _expired(state, action, staging)


def forgetting_all(state: PartitionState, time_ms: int) -> PartitionState:
    """Every producer, however lately it wrote, and nothing of one is staged; it is `time_ms`."""
    marked = _marked(state)
    return _expired(marked, ExpireProducers(time_ms=time_ms, max_timestamp_ms=time_ms), ())


def _why_illegal(action: ExpireProducers) -> str | None:
    for name, value in (("time", action.time_ms), ("largest timestamp", action.max_timestamp_ms)):
        if not NEVER_MARKED_MS <= value <= MAX_OFFSET:
            return f"{name} {value} is out of range"
    return None


def _marked(state: PartitionState) -> PartitionState:
    forgotten = Forgotten(state.log_end_offset, *_fields(state.forgotten)[1:])
    return state if forgotten == state.forgotten else replace(state, forgotten=forgotten)


def _expired(state: PartitionState, action: ExpireProducers, staging: Container[int]) -> PartitionState:
    """`staging`: producers whose transactions are open; what they have staged shows in no extent."""
    before = state.forgotten
    end = before.mark_offset
    kept = {
        number: one for number, one in state.producers.items() if one.last_offset >= end or number in staging
    }
    gone = [(number, one) for number, one in state.producers.items() if number not in kept]
    largest = _largest(state, kept, end)
    return replace(
        state,
        producers=kept,
        merged_batches=merged_above(state.merged_batches, end) if state.merged_batches else {},
        forgotten=Forgotten(
            mark_offset=state.log_end_offset,
            end_offset=end,
            producer_id=max(before.producer_id, largest.producer_id, *(number for number, _ in gone), -1),
            producer_epoch=max(
                before.producer_epoch, largest.producer_epoch, *(one.producer_epoch for _, one in gone), -1
            ),
            max_timestamp_ms=max(before.max_timestamp_ms, largest.max_timestamp_ms, action.max_timestamp_ms),
        ),
    )


class _Largest(NamedTuple):
    """Of extents that are forgotten now; -1 if there is none."""

    producer_id: int = -1
    producer_epoch: int = -1
    max_timestamp_ms: int = -1


def _largest(state: PartitionState, kept: Mapping[int, ProducerState], end: int) -> _Largest:
    """Of the extents below `end` that were not below the last one.

    The timestamps are also of those who are kept: they may be forgotten later, and then by later extents.
    Who was forgotten by number before (sequences.py) is known from extents only, which may be merged now.
    """
    start, stop = state.extents.index_after(state.forgotten.end_offset), state.extents.index_from(end)
    if start >= stop:
        return _Largest()
    columns = state.extents.columns_between(start, stop)
    newest = int(columns.column("max_timestamp_ms").max())
    producers = zip(
        columns.column("producer_id").tolist(), columns.column("producer_epoch").tolist(), strict=True
    )
    silent = {one for one in set(producers) if one[0] != NO_PRODUCER_ID and one[0] not in kept}
    if not silent:
        return _Largest(max_timestamp_ms=newest)
    return _Largest(max(number for number, _ in silent), max(epoch for _, epoch in silent), newest)


def _fields(forgotten: Forgotten) -> tuple[int, ...]:
    return tuple(getattr(forgotten, name) for name in Forgotten.__struct_fields__)


# --- plan --------------------------------------------------------------------------------------------


def plan_expire_producers(
    image: Image, now_ms: int, expiration_ms: int, *, latest_ms: int = 0
) -> ExpireProducers | None:
    """Forget who has been silent for `expiration_ms` at least, as far as marks tell; None: not yet.

    A mark is never set below the last one, nor below the newest commit. Else it would look old to the next
    clock that is right:

    1. a producer writes; a machine whose clock is two days behind marks partitions, as of two days ago;
    2. one whose clock is right, a minute later: that was two days ago. Who was silent for the minute goes.

    So a clock that is ahead delays what follows by as much as it is ahead.

    Args:
        latest_ms: what the clock says that is ahead, if several were asked; `now_ms` is the other's.

    Cost: a comparison, and once in an expiration a look at each partition until one has a producer.
    """
    if not 0 <= now_ms <= MAX_OFFSET or not 0 <= latest_ms <= MAX_OFFSET or expiration_ms < 1:
        raise invalid_plan(f"times {now_ms}, {latest_ms} and expiration {expiration_ms}, expected times")
    marked_ms = image.producers_marked_ms
    is_marked = marked_ms != NEVER_MARKED_MS
    if is_marked and now_ms - marked_ms < expiration_ms:
        return None
    if not any(state.producers for topic in image.topics.values() for state in topic.partitions):
        return None
    time_ms = max(image.no_earlier_ms(now_ms), latest_ms)
    if not is_marked:
        return ExpireProducers(time_ms=time_ms, marks_only=True)
    # What was appended before the mark is of that time or earlier, give or take clocks and what a topic
    # allows (message.timestamp.after.max.ms, an hour); and what comes from now on is later by a half.
    latest = min(MAX_OFFSET, marked_ms + expiration_ms // 2)
    return ExpireProducers(time_ms=time_ms, max_timestamp_ms=latest)
