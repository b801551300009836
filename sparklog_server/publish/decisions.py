"""What happens to each part of a group commit: appended, staged, answered as a duplicate, or refused.

The rule is the engine's (sparklog/metadata/model/conditions.py); brokers that publish for this one apply it,
too. A broker adds rules on the client's request, which only it knows:
- a request names its transactional id, which must be the producer's; staged offsets of a group have no
  sequence of their own, and need the group to be added instead of the partition;
- a producer's first batch that just failed (disk full, no room to stage) keeps its place: the pipelined
  batches after it are out of order until it is sent again (first_batches.py names the loss that this
  prevents; Kafka's VerificationStateEntry does it for transactions);
- if a part is refused for its leader epoch, later parts of the same producer are refused, too
  (docs/adr/0026).

An image that may be older than another broker's commit for the producer neither refuses a part for its
transaction nor answers it as a duplicate: if `may_be_early`, the newest image decides.

Invariants: pure; for the same image the same decisions. Parts of a partition
    are decided in the order given. (producer id, epoch, sequence) is written at most once per partition.
Not here: answers to clients (api/produce.py).
Concurrency: pure functions.
Sources: Kafka ProducerAppendInfo.checkSequence, ProducerStateEntry.findDuplicateBatch, ReplicaManager
    (transaction verification), KIP-98, KIP-360; adr/0025, adr/0028.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from sparklog.errors import InvalidRequestError, RetriableError, SparklogError
from sparklog.metadata import (
    APPEND,
    NEVER_OPENS,
    NO_NUMBER,
    SEQUENCES,
    AcceptedDraft,
    AppendRule,
    Decided,
    Decision,
    DraftExtent,
    Image,
    refused,
)
from sparklog_server.publish.first_batches import NO_FLOORS, Floors, ProducerKey, number_of, producer_key
from sparklog_server.publish.parts import NO_TIMESTAMP_MS, AppendPart, PartOutcome

MOST_SHOWN: Final = 100  # characters of an id that a client chose: each of its parts may have an error
# Errors that a newer image may remove: another broker has committed something for the producer.
_EARLY = frozenset(
    {
        "PRODUCER_FENCED",
        "PRODUCER_UNMAPPED",
        "TRANSACTIONS_FULL",
        "TRANSACTION_STATE",
        "TRANSACTION_TOO_LARGE",
    }
)
# Errors upon which a client sends the batch again.
_COMES_AGAIN = frozenset(
    {"UNKNOWN_PRODUCER", "NOT_LEADER", "TRANSACTIONS_FULL", "TRANSACTION_CHANGED", "TRANSACTION_UNKNOWN"}
)


def decide(
    image: Image, parts: Sequence[AppendPart], node_id: int, floors: Floors = NO_FLOORS
) -> tuple[list[AppendPart], list[Decided]]:
    """Return the parts as they will be written, and a decision on each."""
    rule = _ProducedRule(image, node_id, floors)
    decided = [rule.decide_part(part) for part in adding(image, parts)]
    return rule.parts, decided


def accepted(part: AppendPart, draft: DraftExtent) -> AcceptedDraft:
    """Return the part in the form of the engine's rule; `draft`: its written bytes."""
    said = part.transaction
    is_stamped = part.log_append_time_ms != NO_TIMESTAMP_MS
    return AcceptedDraft(
        draft=draft,
        leader_epoch=part.leader_epoch,
        sent_timestamp_ms=None if is_stamped else part.encoded.max_timestamp_ms,
        transactional=said is not None,
        opens_ms=NEVER_OPENS if said is None else said.opens_ms,
        number=NO_NUMBER if said is None else said.number,
    )


def draft_of(part: AppendPart) -> DraftExtent:
    """Return the part as an extent without a place: the decision does not depend on its place."""
    return DraftExtent(
        topic_id=part.topic_id,
        partition=part.partition,
        segment="",
        position=0,
        size=part.size_bytes,
        record_count=part.encoded.record_count,
        max_timestamp_ms=part.encoded.max_timestamp_ms,
        producer_id=part.producer_id,
        producer_epoch=part.producer_epoch,
        base_sequence=part.base_sequence,
    )


class _ProducedRule(AppendRule):
    """The engine's rule, extended by the broker's rules."""

    def __init__(self, image: Image, node_id: int, floors: Floors) -> None:
        super().__init__(image, node_id)
        self.parts: list[AppendPart] = []
        self._floors = floors
        self._part: AppendPart | None = None  # the part under decision
        self._lost: dict[ProducerKey, Decided] = {}  # first parts that failed by their leader epoch
        self._awaited: set[ProducerKey] = set()  # a batch may be a duplicate, or will come again

    def decide_part(self, part: AppendPart) -> Decided:
        """Decide on the next part, and append it to `parts`."""
        number, lost = len(self.parts), self._lost.get(producer_key(part)) if self._lost else None
        self.parts.append(part)
        if lost is not None:
            return lost
        if part.producer_id < 0 and part.transaction is None:  # fast path: there is no sequence
            refusal = self.place_refusal(part.topic_id, part.partition, part.leader_epoch)
            return APPEND if refusal is None else self._refused(part, refused(refusal))
        self._part, draft = part, draft_of(part)
        if part.transaction is not None and part.base_sequence < 0:
            draft = self._with_sequence(part, draft)
            self.parts[number] = replace(part, base_sequence=draft.base_sequence)
        decided = self.decide(number, accepted(part, draft))
        return decided if decided.error is None else self._refused(part, decided)

    def _refused(self, part: AppendPart, decided: Decided) -> Decided:
        """Record that later parts must not take its place. `part`: as received."""
        code, key = "" if decided.error is None else decided.error.code, producer_key(part)
        if code == "NOT_LEADER":
            self._lost[key] = decided
        elif code == "UNKNOWN_PRODUCER" or (code == "TRANSACTIONS_FULL" and part.base_sequence >= 0):
            self._awaited.add(key)  # without room: a smaller one might fit
        return decided

    def refusal(self, part: AcceptedDraft) -> SparklogError | None:
        """Return the engine's refusal, or that of the request's transaction."""
        sent, draft = self._part, part.draft
        if sent is None or sent.transaction is None:
            return super().refusal(part)
        return (
            self.place_refusal(draft.topic_id, draft.partition, part.leader_epoch)
            or unmapped(self.image, sent)
            or super().refusal(part)
            or group_missing(self.image, sent)
        )

    def is_awaited(self, draft: DraftExtent) -> bool:
        """True if the producer's first batch failed a moment ago, or another of its batches is in doubt."""
        key = draft.topic_id, draft.partition, draft.producer_id
        if key in self._awaited:
            return True
        floor = self._floors.get(key)
        assert self._part is not None
        return (
            floor is not None
            and (floor.producer_epoch, floor.transaction)
            == (draft.producer_epoch, number_of(self.image, self._part))
            and draft.base_sequence > floor.base_sequence
        )

    def _with_sequence(self, part: AppendPart, draft: DraftExtent) -> DraftExtent:
        """Return the draft with the next sequence of its producer: the part has none."""
        if self.place_refusal(part.topic_id, part.partition, part.leader_epoch) is not None:
            return draft
        known, sequence = self.last_of(draft), 0
        if known is not None and known.producer_epoch == part.producer_epoch:
            sequence = (known.last_sequence + 1) % SEQUENCES
        return replace(draft, base_sequence=sequence)


# --- transactions ------------------------------------------------------------------------------------


def unmapped(image: Image, part: AppendPart) -> SparklogError | None:
    """Return the error if the transactional id is another producer's; else None."""
    said, found = part.transaction, image.transactions.of_producer(part.producer_id)
    if said is None or found is None or found.transactional_id == said.transactional_id:
        return None
    return InvalidRequestError(
        "PRODUCER_UNMAPPED",
        f"{part.topic}-{part.partition}: found producer id {part.producer_id} with transactional id "
        f"{said.transactional_id[:MOST_SHOWN]!r}, expected the transactional id of this producer",
        fix="initialise the producer again",
    )


def group_missing(image: Image, part: AppendPart) -> SparklogError | None:
    """Return the error for offsets of a group that is not in their transaction; else None."""
    said, found = part.transaction, image.transactions.of_producer(part.producer_id)
    if said is None or said.group is None or found is None:
        return None
    if found.is_ongoing and said.group in found.groups:
        return None
    return InvalidRequestError(
        "TRANSACTION_STATE",
        f"transactional id {said.transactional_id[:MOST_SHOWN]!r}: found offsets of group "
        f"{said.group[:MOST_SHOWN]!r}, which was not added to its transaction",
        fix="abort the transaction: it has ended concurrently, or its client has a bug",
    )


def adding(image: Image, parts: Sequence[AppendPart]) -> Sequence[AppendPart]:
    """Return the parts; those of an added group also add the partition of their offsets.

    They add it only to the transaction that was open when the request was read: the next one may have the
    same epoch, and another broker that publishes the parts for this one does not know groups.
    """
    if not any(part.transaction is not None and part.transaction.group is not None for part in parts):
        return parts
    return [_adding(image, part) for part in parts]


def _adding(image: Image, part: AppendPart) -> AppendPart:
    said, found = part.transaction, image.transactions.of_producer(part.producer_id)
    if said is None or said.group is None or found is None or not found.is_ongoing:
        return part
    if said.number != found.number:
        return part
    return replace(part, transaction=dataclasses.replace(said, opens_ms=found.started_ms))


def may_be_early(image: Image, part: AppendPart, decided: Decided) -> bool:
    """True if a newer image, with another broker's commit for the producer, may decide differently.

    It may accept a part that this one refuses, or lack records that are staged in this one:
    1. the answer to a batch of the first protocol is lost, and its transaction is aborted, by another broker;
    2. the client reuses its sequence numbers for other records, in the next transaction and the same epoch;
    3. a broker with the old image acknowledges these as a duplicate: they are not staged, and lost.
    """
    if decided.decision is Decision.DUPLICATE:
        return part.transaction is not None
    if decided.error is None or decided.error.code not in _EARLY:
        return False
    found = image.transactions.of_producer(part.producer_id)
    return found is None or part.producer_epoch >= found.producer_epoch


# --- outcomes ----------------------------------------------------------------------------------------


def outcome_of(image: Image, part: AppendPart, decided: Decided) -> PartOutcome:
    """Return the outcome of a part that is not written."""
    topic = image.topic_by_id.get(part.topic_id)
    if topic is None or not 0 <= part.partition < len(topic.partitions):
        return PartOutcome(error=decided.error)
    state = topic.partitions[part.partition]
    if decided.decision is not Decision.DUPLICATE:
        return PartOutcome(error=decided.error, log_start_offset=state.log_start_offset)
    appended_ms = NO_TIMESTAMP_MS
    if part.log_append_time_ms != NO_TIMESTAMP_MS and decided.base_offset >= 0:  # of the first append
        (extent,) = state.extents_between(decided.base_offset, decided.base_offset + 1)
        appended_ms = extent.max_timestamp_ms
    return PartOutcome(
        base_offset=decided.base_offset,
        log_append_time_ms=appended_ms,
        log_start_offset=state.log_start_offset,
        duplicate=True,
    )


def not_known(error: SparklogError) -> Decided:
    """Return the decision if the newest image cannot be read: it is unknown whether the part is stored."""
    return refused(
        RetriableError(
            "TRANSACTION_UNKNOWN",
            f"the newest state of the transaction cannot be read: {error.message}",
            fix="retry: the batch is not staged twice",
        )
    )


def comes_again(decided: Decided) -> bool:
    """True if the client will send the part again: parts after it must not take its place."""
    return decided.error is not None and decided.error.code in _COMES_AGAIN
