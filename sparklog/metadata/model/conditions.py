"""What a broker has accepted, and what must hold for each part of it to be appended still.

A broker judges what it accepted by each image that it has to follow, and leaves out what may not be appended
any more. On a slow store others publish for it (combining.py), so they have to come to the same judgement:
the parts say all that it takes, and everybody asks this module.

    a part is appended if its broker leads the partition in the epoch in which it accepted the part, and it
    continues what the partition, and the parts before it, have of its producer; and none before it in its
    partition was left out, whose place it would take. A part of a transaction is staged under the same
    conditions, and if its transaction takes it (staging.py).

Nothing at all is appended for a broker whose registration is over. What is left out stays so: its leader
epoch does not come back, and its broker answers its client for what it was left out by that image (adr/0029).

Invariants: pure; the same parts of the same image for everybody. What apply checks (registry.py, extents.py)
    is checked here before, or planned by the same functions: a part that does not hold makes no commit void.
Not here: what clients are told of parts that do not hold (sparklog_server/publish), who asks whom
(combining.py).
Sources: FORMAT.md#metadata-log, requests; adr/0029; tests/models/conditions.py.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from sparklog.errors import FencedError, InvalidRequestError, RetriableError, SparklogError
from sparklog.metadata.model.actions import Action
from sparklog.metadata.model.extent_list import NO_PRODUCER_ID, DraftExtent
from sparklog.metadata.model.extents import plan_append, sequence_refusal
from sparklog.metadata.model.image import Image, ProducerState
from sparklog.metadata.model.registry import AcceptedPart, may_append, plan_act_as_broker, validate_broker
from sparklog.metadata.model.sequences import (
    SequenceCheck,
    appended_offset,
    check_sequence,
    check_unknown,
    last_batch,
    last_sequence,
)
from sparklog.metadata.model.staging import (
    NEVER_OPENS,
    Staging,
    StagingJudge,
    check_staged,
    plan_stage,
    was_staged,
)
from sparklog.metadata.model.transaction_values import NO_NUMBER

NO_OFFSET = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedDraft:
    """Batches of one partition, and of one producer or none, that a broker has accepted and made durable.

    Fields:
        leader_epoch: in which it led the partition when it accepted them.
        sent_timestamp_ms: the largest of the first batch, as its producer sent it; None if only the time of
            the append is known.
        transactional: they are a transaction's.
        opens_ms: as of StageExtents.
        number: of the transaction that must be open; NO_NUMBER: any that takes them.
    """

    draft: DraftExtent
    leader_epoch: int
    sent_timestamp_ms: int | None
    transactional: bool = False
    opens_ms: int = NEVER_OPENS
    number: int = NO_NUMBER


class Verdict(enum.Enum):
    """What is to become of a part."""

    APPEND = "append it"
    STAGE = "stage it"
    DUPLICATE = "nothing: it was appended, or staged, before"
    REFUSED = "nothing: it breaks a rule"
    BEHIND = "nothing: one before it in its partition was left out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The verdict on a part.

    Fields:
        error: why it is REFUSED, or stands BEHIND another; None else.
        base_offset: of a DUPLICATE, where its first record is; -1: a transaction's, or that is not known.
    """

    verdict: Verdict
    error: SparklogError | None = None
    base_offset: int = NO_OFFSET

    @property
    def holds(self) -> bool:
        """Does the commit take it?"""
        return self.verdict in (Verdict.APPEND, Verdict.STAGE)


def plan_accepted(
    image: Image, accepted: Sequence[AcceptedDraft], *, node_id: int, broker_epoch: int
) -> list[Action]:
    """The broker's actions that append, and stage, those that hold; none for none.

    Raises:
        FencedError: BROKER_FENCED, its registration is over.
        RetriableError: STAGING_EXPIRED, a segment is too old to come to life.
        InvalidRequestError: a malformed draft.
    """
    validate_broker(image, node_id, broker_epoch)
    held = [accepted[index] for index in which_hold(image, accepted, node_id=node_id)]
    if not held:
        return []
    actions, epochs = plan_held(image, held)
    return list(
        plan_act_as_broker(image, actions, node_id=node_id, broker_epoch=broker_epoch, leader_epochs=epochs)
    )


def plan_held(image: Image, held: Sequence[AcceptedDraft]) -> tuple[list[Action], list[int]]:
    """The actions that append and stage what holds, and the leader epochs of their extents, in order."""
    plain = [one for one in held if not one.transactional]
    staged = [one for one in held if one.transactional]
    actions: list[Action] = []
    if plain:
        actions.append(plan_append(image, [one.draft for one in plain]))
    if staged:
        actions.append(plan_stage(image, [Staging(draft=one.draft, opens_ms=one.opens_ms) for one in staged]))
    return actions, [one.leader_epoch for one in (*plain, *staged)]


def which_hold(image: Image, accepted: Sequence[AcceptedDraft], *, node_id: int) -> list[int]:
    """Which of them may be appended or staged, by their indices, all in one commit."""
    judged = judge_accepted(image, accepted, node_id=node_id)
    return [index for index, one in enumerate(judged) if one.holds]


def judge_accepted(image: Image, accepted: Sequence[AcceptedDraft], *, node_id: int) -> list[Judged]:
    """A verdict on each; those that hold may be in one commit."""
    judging = _Judging(image, node_id, StagingJudge(image))
    return [judging.judged(one) for one in accepted]


_APPEND, _STAGE = Judged(verdict=Verdict.APPEND), Judged(verdict=Verdict.STAGE)


@dataclass(slots=True)
class _Judging:
    """One look at parts, in order."""

    image: Image
    node_id: int
    staging: StagingJudge
    broken: set[tuple[str, int]] = field(default_factory=set)
    producers: dict[tuple[str, int, int], ProducerState] = field(default_factory=dict)

    def judged(self, one: AcceptedDraft) -> Judged:
        place = one.draft.topic_id, one.draft.partition
        if place in self.broken:
            return Judged(verdict=Verdict.BEHIND, error=_behind(one.draft))
        found = self._judged(one)
        if not found.holds:
            self.broken.add(place)
        return found

    def _judged(self, one: AcceptedDraft) -> Judged:
        draft = one.draft
        led = AcceptedPart(topic_id=draft.topic_id, partition=draft.partition, leader_epoch=one.leader_epoch)
        if not may_append(self.image, self.node_id, led):
            return _refused(_not_led(one))
        if one.transactional:
            part = Staging(draft=draft, opens_ms=one.opens_ms)
            refusal = changed_refusal(self.image, part, one.number) or self.staging.refusal(part)
            return self._sequenced(one, _STAGE) if refusal is None else _refused(refusal)
        if draft.producer_id == NO_PRODUCER_ID:
            return _APPEND
        refusal = plain_refusal(self.image, draft.producer_id)
        return self._sequenced(one, _APPEND) if refusal is None else _refused(refusal)

    def _sequenced(self, one: AcceptedDraft, taken: Judged) -> Judged:
        draft = one.draft
        key = draft.topic_id, draft.partition, draft.producer_id
        state = self.image.partition_of(draft.topic_id, draft.partition)
        known = self.producers.get(key) or last_batch(state, draft.producer_id)
        check = self._check(one, known)
        if check is SequenceCheck.NEXT:
            last = last_sequence(draft.base_sequence, draft.record_count)
            self.producers[key] = ProducerState(draft.producer_epoch, last, NO_OFFSET)
            if one.transactional:
                self.staging.note(Staging(draft=draft, opens_ms=one.opens_ms))
            return taken
        if check is SequenceCheck.DUPLICATE:
            if one.transactional:
                if was_staged(self.image, draft):
                    return Judged(verdict=Verdict.DUPLICATE)
            else:
                batch = draft.producer_id, draft.producer_epoch, draft.base_sequence
                offset = appended_offset(state, *batch, draft.record_count)
                if offset is not None:
                    return Judged(verdict=Verdict.DUPLICATE, base_offset=offset)
            check = SequenceCheck.OUT_OF_ORDER
        refusal = sequence_refusal(draft, known, check)
        assert refusal is not None, "NEXT was taken"
        return _refused(refusal)

    def _check(self, one: AcceptedDraft, known: ProducerState | None) -> SequenceCheck:
        """As for the first of its batches: the others follow that."""
        draft = one.draft
        state = self.image.partition_of(draft.topic_id, draft.partition)
        if one.transactional:
            part = Staging(draft=draft, opens_ms=one.opens_ms)
            return check_staged(state, known, part, one.sent_timestamp_ms)
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


def changed_refusal(image: Image, part: Staging, number: int) -> SparklogError | None:
    """Return why a part of this transaction may not be staged: another one of its producer is open.

    With the first protocol the epoch does not tell them apart:
    1. a broker reads a batch of transaction 1, and is slow; its client gives up;
    2. the client aborts 1 at another broker, begins 2 in the same epoch, and gives the sequence to other
       records;
    3. the batch of 1 would be staged in 2, and 2's own answered as a repetition: records are lost.
    What adds its partition for a transaction that is over would open the next one.
    """
    producer_id, epoch = part.draft.producer_id, part.draft.producer_epoch
    known = image.transactions.of_producer(producer_id)
    if number == NO_NUMBER or known is None or not known.is_of(producer_id, epoch):
        return None  # if it is fenced, the judge of staging says so
    if known.is_ongoing and known.number == number:
        return None
    if not known.is_ongoing and part.opens_ms == NEVER_OPENS:
        return None  # likewise: nothing takes it
    return RetriableError(
        "TRANSACTION_CHANGED",
        f"transactional id {known.transactional_id!r}: found transaction {known.number} ({known.phase}), "
        f"expected {number or 'none'}, as this broker knew when it read the request",
        fix="send it again, if it is of the transaction that is open; nothing of it was published",
    )


def plain_refusal(image: Image, producer_id: int) -> SparklogError | None:
    """Why a batch that is no transaction's may not be appended: its producer is transactional; None: it may.

    So no producer has both, and what is staged need not be told in order with what is appended.
    """
    transaction = image.transactions.of_producer(producer_id)
    if transaction is None:
        return None
    return InvalidRequestError(
        "TRANSACTION_STATE",
        f"transactional id {transaction.transactional_id!r}: found a batch of its producer {producer_id} "
        "that is in no transaction",
        fix="send it in a transaction, or from a producer without transactional.id",
    )


def _refused(error: SparklogError) -> Judged:
    return Judged(verdict=Verdict.REFUSED, error=error)


def _not_led(one: AcceptedDraft) -> SparklogError:
    return FencedError(
        "NOT_LEADER",
        f"partition {one.draft.partition} of topic {one.draft.topic_id}: not led any more in epoch "
        f"{one.leader_epoch}, in which these records were accepted, or gone",
        fix="refresh the metadata and send them to the leader; nothing of them was published",
    )


def _behind(draft: DraftExtent) -> SparklogError:
    return RetriableError(
        "PUBLISH_CONTENDED",
        f"partition {draft.partition} of topic {draft.topic_id}: a batch before this one was left out",
        fix="send the batch again; nothing of it was published",
    )
