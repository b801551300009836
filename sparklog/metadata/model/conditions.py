"""What a broker has accepted, and what must hold for each part of it to be appended still.

A broker judges what it accepted by each image that it has to follow, and leaves out what may not be appended
any more. On a slow store others publish for it (combining.py), so they have to come to the same judgement:
the parts say all that it takes, and everybody asks this module.

    a part is appended if its broker leads the partition in the epoch in which it accepted the part, and it
    continues what the partition, and the parts before it, have of its producer; and none before it in its
    partition was left out, whose place it would take.

Nothing at all is appended for a broker whose registration is over. What is left out stays so: its leader
epoch does not come back, and its broker answers its client for what it was left out by that image (adr/0029).

Invariants: pure; the same parts of the same image for everybody. What apply checks (acting.py, extents.py)
    is checked here before, or planned by the same functions: a part that does not hold makes no commit void.
Not here: what clients are told of parts that do not hold (sparklog_server/publish), who asks whom
(combining.py).
Sources: FORMAT.md#metadata-log, requests; adr/0029; tests/models/conditions.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sparklog.metadata.model.acting import AcceptedPart, may_append, plan_act_as_broker
from sparklog.metadata.model.actions import Action
from sparklog.metadata.model.extent import NO_PRODUCER_ID, DraftExtent
from sparklog.metadata.model.extents import plan_append
from sparklog.metadata.model.image import Image, PartitionState, ProducerState
from sparklog.metadata.model.registry import validate_broker
from sparklog.metadata.model.sequences import (
    SequenceCheck,
    check_sequence,
    check_unknown,
    last_batch,
    last_sequence,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedDraft:
    """Batches of one partition, and of one producer or none, that a broker has accepted and made durable.

    Fields:
        leader_epoch: in which it led the partition when it accepted them.
        sent_timestamp_ms: the largest of the first batch, as its producer sent it; None if only the time of
            the append is known.
    """

    draft: DraftExtent
    leader_epoch: int
    sent_timestamp_ms: int | None


def plan_accepted(
    image: Image, accepted: Sequence[AcceptedDraft], *, node_id: int, broker_epoch: int
) -> list[Action]:
    """The broker's actions that append those that hold; none for none.

    Raises:
        FencedError: BROKER_FENCED, its registration is over.
        RetriableError: STAGING_EXPIRED, a segment is too old to come to life.
        InvalidRequestError: a malformed draft.
    """
    validate_broker(image, node_id, broker_epoch)
    held = [accepted[index] for index in which_hold(image, accepted, node_id=node_id)]
    if not held:
        return []
    append = plan_append(image, [one.draft for one in held])
    epochs = [one.leader_epoch for one in held]
    acting: list[Action] = [append]
    return list(
        plan_act_as_broker(image, acting, node_id=node_id, broker_epoch=broker_epoch, leader_epochs=epochs)
    )


def which_hold(image: Image, accepted: Sequence[AcceptedDraft], *, node_id: int) -> list[int]:
    """Which of them may be appended, by their indices, all in one commit."""
    held: list[int] = []
    broken: set[tuple[str, int]] = set()
    producers: dict[tuple[str, int, int], ProducerState] = {}
    for index, one in enumerate(accepted):
        place = one.draft.topic_id, one.draft.partition
        if place not in broken and _holds(image, one, node_id, producers):
            held.append(index)
        else:
            broken.add(place)
    return held


def _holds(
    image: Image,
    one: AcceptedDraft,
    node_id: int,
    producers: dict[tuple[str, int, int], ProducerState],
) -> bool:
    draft = one.draft
    part = AcceptedPart(topic_id=draft.topic_id, partition=draft.partition, leader_epoch=one.leader_epoch)
    if not may_append(image, node_id, part):
        return False
    if draft.producer_id == NO_PRODUCER_ID:
        return True
    key = draft.topic_id, draft.partition, draft.producer_id
    state = image.partition_of(draft.topic_id, draft.partition)
    known = producers.get(key) or last_batch(state, draft.producer_id)
    if _check(state, known, one) is not SequenceCheck.NEXT:
        return False
    last = last_sequence(draft.base_sequence, draft.record_count)
    producers[key] = ProducerState(draft.producer_epoch, last, -1)
    return True


def _check(state: PartitionState, known: ProducerState | None, one: AcceptedDraft) -> SequenceCheck:
    """As for the first of its batches: the others follow that."""
    draft = one.draft
    if known is not None:
        return check_sequence(known, draft.producer_epoch, draft.base_sequence)
    return check_unknown(
        state,
        draft.producer_id,
        draft.producer_epoch,
        draft.base_sequence,
        draft.record_count,
        one.sent_timestamp_ms,
    )
