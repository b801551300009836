"""Restoring a root from a backup begins a new incarnation: restore_root.

A restore takes the root back in time, but not its clients. Clients still have producer ids, epochs and leader
epochs that the root has handed out since the backup, writers have staged segments, and publishers have posted
requests. Without this action the root would hand the same numbers out again:

1. a producer gets id 7 from the root, after the backup; the backup is restored;
2. another producer gets id 7, and appends its batches 0, 1, 2;
3. the first one sends its batch 2: a duplicate of the other's. It is acknowledged, and lost.

An *incarnation* is the time from one restore to the next. The image has its id, and with each one begin, in
one commit,

    producer ids            far above those of earlier incarnations
    transactional ids       with new producer ids of their own, and nothing open
    sequences               unknown to all partitions: a batch is new, or refused (sequences.py)
    leader epochs           far above those that any client has seen; no partition has a leader, and every
                            broker is fenced
    versions of segments    far above those of earlier incarnations, and so is the sweep horizon: everything
                            staged before is dead (sweeping.py)

"Far above" is derived from the clock: a second is worth a million ids and versions, and one leader epoch,
which no root uses up. So the same backup may be restored again, in yet another incarnation.

Invariants: incarnation ids differ; each number only grows; the root's records do not change.
Not here: who notices that a root is of another incarnation (metadata/loading.py), who orders a restore
    (maintenance/restoring.py).
Concurrency: pure functions.
Sources: FORMAT.md#metadata-log; adr/0033; tests/models/restoring.py.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from sparklog.metadata.model.action import (
    MAX_OFFSET,
    ActionBase,
    ActionRefusedError,
    Int64,
    invalid_plan,
    is_id,
    refuse,
)
from sparklog.metadata.model.image import (
    NEVER_MARKED_MS,
    NO_NODE,
    Controller,
    Image,
    Incarnation,
    PartitionLeadership,
    PartitionState,
)
from sparklog.metadata.model.sequences import forgetting_all
from sparklog.metadata.model.sweeping import pass_horizon
from sparklog.metadata.model.transaction_values import NO_ID, NO_PRODUCER_EPOCH, TransactionPhase

if TYPE_CHECKING:
    from sparklog.metadata.model.draft import ImageDraft

MAX_LEADER_EPOCH = (1 << 31) - 1  # in Kafka's protocol
MAX_BIRTHS_AHEAD = 1 << 58  # a version has 18 digits at most
_PER_SECOND_BITS = 20
_LEAST_AHEAD = 1 << 40  # of ids and versions, for a clock that is far behind
_LEAST_LEADER_EPOCHS = 1 << 20
_LEADER_EPOCHS_SINCE_S = 1_577_836_800  # 2020: Kafka's 31 bits end in 2088


class RestoreRoot(ActionBase, tag="restore_root", frozen=True, kw_only=True):
    """A new incarnation of the root begins.

    Fields:
        incarnation_id: new with each restore.
        producer_id: the first one to be handed out, to transactional ids first.
        leader_epoch: the minimum for all partitions.
        births_ahead: the lead of segments' versions over commit numbers.
        time_ms: when, by the clock of the restoring process.
    """

    incarnation_id: str
    producer_id: Int64
    leader_epoch: Int64
    births_ahead: Int64
    time_ms: Int64


# --- effect ------------------------------------------------------------------------------------------


def restore_root(draft: "ImageDraft", action: RestoreRoot) -> None:
    """See the module's docstring."""
    if draft.acting is not None:
        raise ActionRefusedError("a restore among a broker's actions")
    refuse(_why_illegal(draft.incarnation, draft.next_producer_id, action), "restore")
    draft.incarnation = Incarnation(
        action.incarnation_id, draft.commit, action.births_ahead, action.leader_epoch
    )
    pass_horizon(draft, draft.commit + action.births_ahead)
    for broker in draft.brokers.values():
        fenced = msgspec.structs.replace(broker, is_fenced=True, in_controlled_shutdown=False)
        draft.brokers[broker.node_id] = fenced
    draft.controller = Controller(controller_epoch=draft.controller.controller_epoch)
    draft.next_producer_id = _restart_transactions(draft, action)
    draft.producers_marked_ms = NEVER_MARKED_MS
    for state in list(draft.states()):
        draft.partition(state.topic_id, state.partition).state = _restored(state, action)


def _restart_transactions(draft: "ImageDraft", action: RestoreRoot) -> int:
    """Give each the next producer id, in the order of the transactional ids; return the next free one."""
    producer_id = action.producer_id
    for known in list(draft.transactions.transactions().values()):
        if producer_id >= MAX_OFFSET:
            raise ActionRefusedError("the producer ids are used up")
        draft.transactions.put(
            replace(
                draft.transactions.clear(known),
                producer_id=producer_id,
                producer_epoch=0,
                previous_producer_id=NO_ID,
                previous_producer_epoch=NO_PRODUCER_EPOCH,
                phase=TransactionPhase.ABORTED if known.is_ongoing else known.phase,
                changed_ms=max(known.changed_ms, action.time_ms) if known.is_ongoing else known.changed_ms,
            )
        )
        producer_id += 1
    return producer_id


def _restored(state: PartitionState, action: RestoreRoot) -> PartitionState:
    before = state.leadership
    epoch = max(before.leader_epoch + 1, action.leader_epoch)
    if epoch > MAX_LEADER_EPOCH:
        raise ActionRefusedError(f"the leader epochs of partition {state.partition} are used up")
    return msgspec.structs.replace(
        forgetting_all(state, action.time_ms) if state.producers or state.merged_batches else state,
        leadership=PartitionLeadership(before.replicas, NO_NODE, epoch, before.adding, before.removing),
        restored_end_offset=state.log_end_offset,
    )


def _why_illegal(before: Incarnation, next_producer_id: int, action: RestoreRoot) -> str | None:
    if not is_id(action.incarnation_id) or action.incarnation_id == before.incarnation_id:
        return f"incarnation {action.incarnation_id!r} is malformed, or the previous one"
    for name, least, found, most in (
        ("producer id", next_producer_id, action.producer_id, MAX_OFFSET - 1),
        ("leader epoch", before.leader_epoch + 1, action.leader_epoch, MAX_LEADER_EPOCH),
        ("births ahead", before.births_ahead + 1, action.births_ahead, MAX_BIRTHS_AHEAD),
        ("time", 0, action.time_ms, MAX_OFFSET),
    ):
        if not least <= found <= most:
            return f"{name} {found}, expected {least} to {most}"
    return None


# --- plan --------------------------------------------------------------------------------------------


def plan_restore_root(image: Image, *, incarnation_id: str, now_ms: int) -> RestoreRoot:
    """Return the action of a new incarnation; `incarnation_id` from new_id()."""
    seconds = now_ms // 1000
    by_time = seconds << _PER_SECOND_BITS
    states = [state for topic in image.topics.values() for state in topic.partitions]
    before = max(
        image.incarnation.leader_epoch, max((one.leadership.leader_epoch for one in states), default=0)
    )
    action = RestoreRoot(
        incarnation_id=incarnation_id,
        producer_id=max(image.next_producer_id + _LEAST_AHEAD, by_time),
        leader_epoch=max(before + _LEAST_LEADER_EPOCHS, seconds - _LEADER_EPOCHS_SINCE_S),
        births_ahead=max(image.incarnation.births_ahead + _LEAST_AHEAD, by_time),
        time_ms=now_ms,
    )
    reason = _why_illegal(image.incarnation, image.next_producer_id, action)
    if reason is not None:
        raise invalid_plan(reason)
    return action
