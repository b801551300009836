"""The one rule for appending a broker's batches: leader epochs, sequences and transactions.

A broker applies it to each batch that it has validated (sparklog_server/publish), and again for each image
that its commit may follow. On a slow store other brokers publish for it (combining.py): their requests
contain all inputs of the decision, and they apply the same rule.

    A part is appended if its broker leads the partition in the epoch in which it accepted the part, if it
    continues its producer's sequence in the partition and in the parts before it, and if no earlier part of
    its partition was left out, whose place it would take. A part of a transaction is staged under the same
    conditions, if its transaction accepts it (staging.py).

Nothing is appended for a broker whose registration has ended. A part that is left out stays out: its leader
epoch does not return, and its broker sends its client the refusal by that image (adr/0029).

Invariants: pure; the same image gives the same decisions in every process. The checks of apply (registry.py,
    extents.py) are made here first, or the actions are planned by the same functions: a refused part makes no
    commit invalid.
Not here: answers to clients (sparklog_server/publish), requests to other brokers (combining.py).
Sources: FORMAT.md#metadata-log, requests; adr/0029; tests/models/conditions.py.
"""

import enum
from collections.abc import Sequence

import msgspec

from sparklog.errors import (
    FencedError,
    InvalidRequestError,
    RetriableError,
    SparklogError,
    UnknownTopicError,
)
from sparklog.metadata.model.actions import Action
from sparklog.metadata.model.extent_list import NO_PRODUCER_ID, SEQUENCES, DraftExtent
from sparklog.metadata.model.extents import plan_append, sequence_refusal
from sparklog.metadata.model.image import Image, ProducerState
from sparklog.metadata.model.registry import leadership_of, may_append, plan_act_as_broker, validate_broker
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
from sparklog.metadata.model.transaction_values import NO_NUMBER, TopicPartition

NO_OFFSET = -1
ProducerKey = tuple[str, int, int]  # topic id, partition, producer id


class AcceptedDraft(msgspec.Struct, frozen=True, kw_only=True):
    """Batches of one partition, and of one producer or none, that a broker has accepted and made durable.

    Fields:
        leader_epoch: the broker's epoch in the partition when it accepted them.
        sent_timestamp_ms: the largest timestamp of the first batch, as its producer sent it; None if only the
            append time is known.
        transactional: the batches belong to a transaction.
        opens_ms: as in StageExtents.
        number: of the transaction that must be open; NO_NUMBER: any that accepts them.
    """

    draft: DraftExtent
    leader_epoch: int
    sent_timestamp_ms: int | None
    transactional: bool = False
    opens_ms: int = NEVER_OPENS
    number: int = NO_NUMBER


class Decision(enum.Enum):
    """What happens to a part."""

    APPEND = "append it"
    STAGE = "stage it"
    DUPLICATE = "nothing: it was appended, or staged, before"
    REPEATED = "nothing: a part before it in the same commit has its records"
    REFUSED = "nothing: it breaks a rule"
    BEHIND = "nothing: one before it in its partition was left out"


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on a part.

    Fields:
        error: the reason of REFUSED or BEHIND; else None.
        base_offset: the first offset of a DUPLICATE; -1: unknown, or of a transaction.
        repeats: of a REPEATED part: the number of the part that has its records, and the number of records
            before them in that part.
    """

    decision: Decision
    error: SparklogError | None = None
    base_offset: int = NO_OFFSET
    repeats: tuple[int, int] | None = None

    @property
    def holds(self) -> bool:
        """True if the commit contains the part."""
        return self.decision in _TAKEN


_TAKEN = frozenset({Decision.APPEND, Decision.STAGE})


def plan_accepted(
    image: Image, accepted: Sequence[AcceptedDraft], *, node_id: int, broker_epoch: int
) -> list[Action]:
    """Return the broker's actions that append and stage the accepted parts; no parts, no actions.

    Raises:
        FencedError: BROKER_FENCED, its registration has ended.
        RetriableError: STAGING_EXPIRED, a segment is too old to be referenced.
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
    """Return the actions that append and stage these parts, and their extents' leader epochs, in order."""
    plain = [one for one in held if not one.transactional]
    staged = [one for one in held if one.transactional]
    actions: list[Action] = []
    if plain:
        actions.append(plan_append(image, [one.draft for one in plain]))
    if staged:
        actions.append(plan_stage(image, [Staging(draft=one.draft, opens_ms=one.opens_ms) for one in staged]))
    return actions, [one.leader_epoch for one in (*plain, *staged)]


def which_hold(image: Image, accepted: Sequence[AcceptedDraft], *, node_id: int) -> list[int]:
    """Return the indices of the parts that may be appended or staged, all in one commit."""
    decided = decide_accepted(image, accepted, node_id=node_id)
    return [index for index, one in enumerate(decided) if one.holds]


def decide_accepted(image: Image, accepted: Sequence[AcceptedDraft], *, node_id: int) -> list[Decided]:
    """Return a decision on each; accepted parts may share a commit. Parts after a left-out one are BEHIND."""
    rule = AppendRule(image, node_id)
    left_out: set[TopicPartition] = set()
    found = []
    for number, part in enumerate(accepted):
        place = part.draft.topic_id, part.draft.partition
        if place in left_out:
            found.append(Decided(decision=Decision.BEHIND, error=_behind(part.draft)))
            continue
        decided = rule.decide(number, part)
        if not decided.holds:
            left_out.add(place)
        found.append(decided)
    return found


APPEND, STAGE = Decided(decision=Decision.APPEND), Decided(decision=Decision.STAGE)


class AppendRule:
    """Decides part by part, in order, whether they may be appended or staged. The only such place.

    Earlier accepted parts count. A subclass may refuse more (`refusal`, `is_awaited`), never less.
    """

    def __init__(self, image: Image, node_id: int) -> None:
        self.image = image
        self._node_id = node_id
        self._staging = StagingJudge(image)
        self._last: dict[ProducerKey, ProducerState] = {}
        self._taken: dict[ProducerKey, list[tuple[int, int, int, int]]] = {}  # number, epoch, sequence, count

    def decide(self, number: int, part: AcceptedDraft) -> Decided:
        """Decide on the next part; `number`: its name in `repeats` of a REPEATED part."""
        refusal = self.refusal(part)
        if refusal is not None:
            return refused(refusal)
        if part.draft.producer_id == NO_PRODUCER_ID:
            return APPEND
        known = self.last_of(part.draft)
        check = self._check(part, known)
        if check is SequenceCheck.NEXT:
            self._take(number, part)
            return STAGE if part.transactional else APPEND
        if check is SequenceCheck.DUPLICATE:
            found = self._found(part)
            if found is not None:
                return found
            check = SequenceCheck.OUT_OF_ORDER
        error = sequence_refusal(part.draft, known, check)
        assert error is not None, "NEXT was taken"
        return refused(error)

    def refusal(self, part: AcceptedDraft) -> SparklogError | None:
        """Return the error if the part may not be appended, whatever its sequence; else None."""
        draft = part.draft
        refusal = self.place_refusal(draft.topic_id, draft.partition, part.leader_epoch)
        if refusal is not None:
            return refusal
        if part.transactional:
            staging = _staging_of(part)
            return changed_refusal(self.image, staging, part.number) or self._staging.refusal(staging)
        if draft.producer_id == NO_PRODUCER_ID or not self.image.transactions:
            return None
        return plain_refusal(self.image, draft.producer_id)

    def place_refusal(self, topic_id: str, partition: int, leader_epoch: int) -> SparklogError | None:
        """Return the error if the broker may not append parts of this leader epoch; else None."""
        if may_append(self.image, self._node_id, topic_id, partition, leader_epoch):
            return None
        leadership = leadership_of(self.image, topic_id, partition)
        if leadership is None:
            return _missing(self.image, topic_id, partition)
        return FencedError(
            "NOT_LEADER",
            f"{_where(self.image, topic_id, partition)}: found leader {leadership.leader} in epoch "
            f"{leadership.leader_epoch}, expected this broker in epoch {leader_epoch}, in which it accepted "
            "these records",
            fix="refresh the metadata and send them to the leader; none of them was published",
        )

    def is_awaited(self, _draft: DraftExtent) -> bool:
        """True if an earlier batch of this producer, unknown to the partition, will be sent again."""
        return False

    def last_of(self, draft: DraftExtent) -> ProducerState | None:
        """Return the producer's last batch in the partition, with accepted parts."""
        key = draft.topic_id, draft.partition, draft.producer_id
        return self._last.get(key) or last_batch(
            self.image.partition_of(draft.topic_id, draft.partition), draft.producer_id
        )

    def _check(self, part: AcceptedDraft, known: ProducerState | None) -> SequenceCheck:
        """Check the first of its batches: the others follow it."""
        draft = part.draft
        if known is None and self.is_awaited(draft):
            return SequenceCheck.OUT_OF_ORDER
        state = self.image.partition_of(draft.topic_id, draft.partition)
        if part.transactional:
            return check_staged(state, known, _staging_of(part), part.sent_timestamp_ms)
        if known is not None:
            return check_sequence(known, draft.producer_epoch, draft.base_sequence)
        batch = draft.producer_id, draft.producer_epoch, draft.base_sequence, draft.record_count
        return check_unknown(state, *batch, part.sent_timestamp_ms)

    def _take(self, number: int, part: AcceptedDraft) -> None:
        draft = part.draft
        key = draft.topic_id, draft.partition, draft.producer_id
        last = last_sequence(draft.base_sequence, draft.record_count)
        self._last[key] = ProducerState(draft.producer_epoch, last, NO_OFFSET)
        batch = number, draft.producer_epoch, draft.base_sequence, draft.record_count
        self._taken.setdefault(key, []).append(batch)
        if part.transactional:
            self._staging.note(_staging_of(part))

    def _found(self, part: AcceptedDraft) -> Decided | None:
        """Return the decision on a DUPLICATE with the place of its records; None if they cannot be found."""
        draft = part.draft
        key = draft.topic_id, draft.partition, draft.producer_id
        for number, epoch, sequence, count in self._taken.get(key, ()):
            skipped = (draft.base_sequence - sequence) % SEQUENCES
            if epoch == draft.producer_epoch and skipped + draft.record_count <= count:
                return Decided(decision=Decision.REPEATED, repeats=(number, skipped))
        if part.transactional:
            return Decided(decision=Decision.DUPLICATE) if was_staged(self.image, draft) else None
        state = self.image.partition_of(draft.topic_id, draft.partition)
        batch = draft.producer_id, draft.producer_epoch, draft.base_sequence, draft.record_count
        offset = appended_offset(state, *batch)
        return None if offset is None else Decided(decision=Decision.DUPLICATE, base_offset=offset)


def refused(error: SparklogError) -> Decided:
    """Return the decision to refuse a part."""
    return Decided(decision=Decision.REFUSED, error=error)


def _staging_of(part: AcceptedDraft) -> Staging:
    return Staging(draft=part.draft, opens_ms=part.opens_ms)


def changed_refusal(image: Image, part: Staging, number: int) -> SparklogError | None:
    """Return the error if a part may not be staged because another transaction is open; else None.

    With the first protocol the epoch does not distinguish them:
    1. a broker reads a batch of transaction 1, and is slow; its client gives up;
    2. the client aborts 1 at another broker, begins 2 in the same epoch, and gives the sequence to other
       records;
    3. the batch of 1 would be staged in 2, and 2's own answered as a duplicate: records are lost.
    A part that adds its partition for an ended transaction would open the next one.
    """
    producer_id, epoch = part.draft.producer_id, part.draft.producer_epoch
    known = image.transactions.of_producer(producer_id)
    if number == NO_NUMBER or known is None or not known.is_of(producer_id, epoch):
        return None  # if it is fenced, staging refuses it
    if known.is_ongoing and known.number == number:
        return None
    if not known.is_ongoing and part.opens_ms == NEVER_OPENS:
        return None  # likewise: staging refuses it
    return RetriableError(
        "TRANSACTION_CHANGED",
        f"transactional id {known.transactional_id!r}: found transaction {known.number} ({known.phase}), "
        f"expected {number or 'none'}, as this broker knew when it read the request",
        fix="retry if the batch belongs to the open transaction; nothing of it was published",
    )


def plain_refusal(image: Image, producer_id: int) -> SparklogError | None:
    """Return the error for a batch outside a transaction whose producer is transactional; else None.

    So no producer has both kinds, and staged and appended batches need no common order.
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


def _where(image: Image, topic_id: str, partition: int) -> str:
    topic = image.topic_by_id.get(topic_id)
    return f"partition {partition} of topic {topic_id}" if topic is None else f"{topic.name}-{partition}"


def _missing(image: Image, topic_id: str, partition: int) -> SparklogError:
    topic = image.topic_by_id.get(topic_id)
    if topic is None:
        return UnknownTopicError(
            "TOPIC_MISSING",
            f"topic {topic_id}: deleted, or deleted and created again, while the request was under way",
            fix="refresh the metadata and decide whether the new topic is meant",
        )
    return UnknownTopicError(
        "PARTITION_MISSING",
        f"topic {topic.name!r}: no partition {partition}, it has {len(topic.partitions)}",
        fix="use a partition that exists, or add partitions",
    )


def _behind(draft: DraftExtent) -> SparklogError:
    return RetriableError(
        "PUBLISH_CONTENDED",
        f"partition {draft.partition} of topic {draft.topic_id}: a batch before this one was left out",
        fix="send the batch again; nothing of it was published",
    )
