"""What is to become of each part of a bundle: written, answered as a duplicate, or refused.

The image knows what every producer appended to a partition last; parts of the same bundle that come before
count as well, so that a producer's pipelined requests may share a commit.

A producer that the partition does not know may start with any sequence number, as in Kafka: retention, or
a deleted and new topic, may have removed all that was known. But if its first batch has failed a moment ago
(disk full, no room for what is staged), the pipelined ones behind it must not take its place: they are out of
order until it comes again (`floors`; Kafka's VerificationStateEntry does this for transactions).

A batch that was appended already is answered with the offset that it got, found in the partition's extents:
Kafka remembers the last five batches of a producer, we find all that are still in the log. What is behind
and not to be found is out of order, as in Kafka: "duplicate" would mean success to clients. What may have
been appended by a producer that was forgotten for its silence is refused with UNKNOWN_PRODUCER_ID, upon which
clients begin a new epoch, or ask for a new id, if they can be sure of what they have sent before.

Before all that: what was accepted in a leader epoch that is over is refused, even if the broker leads the
partition again (docs/adr/0026 tells why, in four steps); and with it what the same producer sent later, which
must not take its place. The client finds the leader, and sends all of it again, in order.

Invariants: pure; for the same image the same verdicts. Within a partition parts are judged in the order
    given. (producer id, epoch, sequence) is written at most once per partition.
Concurrency: pure functions.
Sources: Kafka ProducerAppendInfo.checkSequence, ProducerStateEntry.findDuplicateBatch, KIP-98, KIP-360;
    adr/0025.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, assert_never

import msgspec
from msgspec.structs import replace

from sparklog.errors import FencedError, InvalidRequestError, SparklogError, UnknownTopicError
from sparklog.metadata import (
    NO_NUMBER,
    SEQUENCES,
    DraftExtent,
    Image,
    PartitionState,
    ProducerState,
    SequenceCheck,
    Staging,
    StagingJudge,
    appended_offset,
    changed_refusal,
    check_sequence,
    check_staged,
    check_unknown,
    last_batch,
    last_sequence,
    plain_refusal,
    unknown_producer,
    was_staged,
)
from sparklog_server.cluster.membership import Registration
from sparklog_server.publish.first_batches import Remembered
from sparklog_server.publish.parts import NO_TIMESTAMP_MS, AppendPart, PartOutcome, UncheckedPart

# --- staged parts ------------------------------------------------------------------------------------
#
# Parts of transactions: what the image must say for them to be staged, and not appended.
#
# The rules are the engine's (StagingJudge), and a few that are of the protocol: a request names its
# transactional id, which must be the producer's; and what coordinators stage of a group's offsets has no
# sequence of its own, and needs the group to be added instead of the partition.
#
# When a request of the first protocol is read, the broker notes which transaction its image shows open, since
# the epoch does not say which one is meant. Nothing else is asked then: this broker may not know yet what
# another has done for the producer a moment ago. Nor is a part refused by an image that may be older than
# that, or acknowledged as a repetition: what `may_be_early` is judged by the newest one before anybody is
# told.
#
# Invariants: pure; for the same image the same answers.
# Not here: what clients are told (api/produce.py).
# Sources: docs/adr/0028; Kafka ReplicaManager (transaction verification), TransactionCoordinator
#     .handleVerifyPartitionsInTransaction.


MOST_SHOWN: Final = 100  # characters of what a client calls itself: there is an error for each of its parts
_EARLY = frozenset(
    {
        "PRODUCER_FENCED",
        "PRODUCER_UNMAPPED",
        "TRANSACTIONS_FULL",
        "TRANSACTION_STATE",
        "TRANSACTION_TOO_LARGE",
    }
)


def staging_of(part: AppendPart) -> Staging:
    """As the engine judges it; where its bytes are does not matter for that."""
    assert part.transaction is not None
    draft = DraftExtent(
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
    return Staging(draft=draft, opens_ms=part.transaction.opens_ms)


def transaction_refusal(image: Image, judge: StagingJudge, part: AppendPart) -> SparklogError | None:
    """Why it may not be staged, whatever its sequence; None: it may."""
    said = part.transaction
    assert said is not None
    found = image.transactions.of_producer(part.producer_id)
    if found is not None and found.transactional_id != said.transactional_id:
        return InvalidRequestError(
            "PRODUCER_UNMAPPED",
            f"{part.topic}-{part.partition}: found producer id {part.producer_id} with transactional id "
            f"{said.transactional_id[:MOST_SHOWN]!r}, expected that of another",
            fix="initialise the producer again",
        )
    staging = staging_of(part)
    refusal = changed_refusal(image, staging, said.number) or judge.refusal(staging)
    if refusal is not None or said.group is None or found is None:
        return refusal
    if found.is_ongoing and said.group in found.groups:
        return None
    return InvalidRequestError(
        "TRANSACTION_STATE",
        f"transactional id {said.transactional_id!r}: found offsets of group {said.group!r}, which was not "
        "added to its transaction",
        fix="abort the transaction: it was ended meanwhile, or its client is at fault",
    )


def adding(image: Image, parts: Sequence[AppendPart]) -> Sequence[AppendPart]:
    """The parts; those of groups that were added add the partition that their offsets are in.

    They do so in the transaction that was open when they were read, and in no other: the epoch may be that of
    the next one as well, and another broker that publishes them for us does not know of groups.
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
    said = dataclasses.replace(said, opens_ms=found.started_ms)
    return replace(part, transaction=said)


def following(part: AppendPart, known: ProducerState | None) -> AppendPart:
    """The part with the next sequence of its producer, if it came without one."""
    if part.transaction is None or part.base_sequence >= 0:
        return part
    sequence = 0
    if known is not None and known.producer_epoch == part.producer_epoch:
        sequence = (known.last_sequence + 1) % SEQUENCES
    return replace(part, base_sequence=sequence)


def may_be_early(image: Image, part: AppendPart, outcome: PartOutcome) -> bool:
    """May a newer image, in which something has been done for its producer, say otherwise?

    It may take what this one refuses, and not have what this one has staged already:
    1. the answer to a batch of the first protocol is lost, and its transaction is aborted, by another broker;
    2. the client gives its sequence numbers to other records, in the next transaction and the same epoch;
    3. who goes by the old image acknowledges these as a repetition: they are staged nowhere, and lost.
    """
    if outcome.duplicate:
        return part.transaction is not None
    if getattr(outcome.error, "code", "") not in _EARLY:
        return False
    found = image.transactions.of_producer(part.producer_id)
    return found is None or part.producer_epoch >= found.producer_epoch


# --- bundle plan -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Write:
    """Append it, or stage it. `part`: as which, if it came without a sequence."""

    part: AppendPart | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Nothing to write: this is what came of it."""

    outcome: PartOutcome


@dataclass(frozen=True, slots=True)
class RepeatOf:
    """The same batch came before, in this very bundle, as part number `index`, `skipped` records into it."""

    index: int
    skipped: int


Verdict = Write | Answer | RepeatOf
ProducerKey = tuple[str, int, int]  # topic id, partition, producer id


class Floor(NamedTuple):
    """The first batch of a producer that failed. `transaction`: the number of the one it was of, if any, as
    far as was known.
    """

    producer_epoch: int
    base_sequence: int
    transaction: int = NO_NUMBER


Floors = Mapping[ProducerKey, Floor]
_NO_FLOORS: Floors = {}
_WRITE = Write()
_FIRST_NUMBER = 1  # of a transactional id


class _Producer(msgspec.Struct):
    """A producer in one partition, as this bundle has it so far."""

    state: ProducerState | None
    is_doubted: bool = False  # a batch of it may be a repetition, or comes again; none may take its place
    written: list[tuple[int, int, int, int]] = []  # index, epoch, sequence, count


def judge(
    image: Image, parts: Sequence[AppendPart], registration: Registration, floors: Floors = _NO_FLOORS
) -> list[Verdict]:
    """A verdict per part."""
    judging = _Judging(image, registration, floors, StagingJudge(image))
    return [judging.verdict(index, part) for index, part in enumerate(parts)]


def producer_key(part: AppendPart | UncheckedPart) -> ProducerKey:
    """Whose sequence a part continues."""
    return part.topic_id, part.partition, part.producer_id


def floor_of(image: Image, part: AppendPart | UncheckedPart) -> Floor:
    """What is remembered of a part that failed."""
    return Floor(part.producer_epoch, part.base_sequence, _number_of(image, part))


def _number_of(image: Image, part: AppendPart | UncheckedPart) -> int:
    """Of its transaction, which another broker may have opened after this image."""
    if part.transaction is None:
        return NO_NUMBER
    found = image.transactions.of_producer(part.producer_id)
    if found is None:
        return _FIRST_NUMBER
    return found.number if found.is_ongoing else found.number + 1


@dataclass(slots=True)
class _Judging:
    """One look at the parts of a bundle, in order."""

    image: Image
    registration: Registration
    floors: Floors
    staging: StagingJudge
    producers: dict[ProducerKey, _Producer] = field(default_factory=dict)
    lost: set[ProducerKey] = field(default_factory=set)  # of whom a part was refused for its leader epoch

    def verdict(self, index: int, part: AppendPart) -> Verdict:
        """What is to become of the next part."""
        image, topic_id, partition = self.image, part.topic_id, part.partition
        topic = image.topic_by_id.get(topic_id)
        if topic is None:
            return _refuse(_deleted(part))
        if not 0 <= partition < len(topic.partitions):
            return _refuse(_no_partition(part, len(topic.partitions)))
        state = topic.partitions[partition]
        if not self.registration.may_append(image, topic_id, partition, part.leader_epoch) or (
            self.lost and producer_key(part) in self.lost
        ):
            self.lost.add(producer_key(part))
            return _refuse(_not_led(part, state))
        if part.producer_id < 0:
            return _WRITE
        if part.transaction is not None or image.transactions:
            refusal = self._refusal(part)
            if refusal is not None:
                if refusal.code == "TRANSACTIONS_FULL" and part.base_sequence >= 0:
                    self._producer(part, state).is_doubted = True  # a smaller one may find room
                return _refuse(refusal, state)
        return self._in_sequence(index, part, state)

    def _refusal(self, part: AppendPart) -> SparklogError | None:
        """Why its producer may not send it, whatever its sequence."""
        if part.transaction is not None:
            return transaction_refusal(self.image, self.staging, part)
        return plain_refusal(self.image, part.producer_id)

    def _in_sequence(self, index: int, part: AppendPart, state: PartitionState) -> Verdict:
        producer = self._producer(part, state)
        came, part = part, following(part, producer.state)
        match self._check(part, state, producer):
            case SequenceCheck.NEXT:
                if part.transaction is not None:
                    self.staging.note(staging_of(part))
                count = part.encoded.record_count
                producer.written.append((index, part.producer_epoch, part.base_sequence, count))
                last = last_sequence(part.base_sequence, count)
                producer.state = ProducerState(part.producer_epoch, last, -1)
                return _WRITE if part is came else Write(part)
            case SequenceCheck.DUPLICATE:
                return _duplicate(part, self.image, state, producer)
            case SequenceCheck.UNKNOWN:
                producer.is_doubted = True
                return _refuse(unknown_producer(_found(part, producer, SequenceCheck.UNKNOWN)), state)
            case SequenceCheck.OUT_OF_ORDER | SequenceCheck.FENCED as check:
                return _refuse(_sequence_error(part, producer, check), state)
            case check:
                assert_never(check)

    def _producer(self, part: AppendPart, state: PartitionState) -> _Producer:
        key = producer_key(part)
        producer = self.producers.get(key)
        if producer is None:
            producer = self.producers[key] = _Producer(last_batch(state, part.producer_id))
        return producer

    def _check(self, part: AppendPart, state: PartitionState, producer: _Producer) -> SequenceCheck:
        known = producer.state
        if known is None and (producer.is_doubted or self._is_above_floor(part)):
            return SequenceCheck.OUT_OF_ORDER
        encoded, is_stamped = part.encoded, part.log_append_time_ms != NO_TIMESTAMP_MS
        sent_ms = None if is_stamped else encoded.max_timestamp_ms
        if part.transaction is not None:
            return check_staged(state, known, staging_of(part), sent_ms)
        if known is not None:
            return check_sequence(known, part.producer_epoch, part.base_sequence)
        batch = part.producer_id, part.producer_epoch, part.base_sequence
        return check_unknown(state, *batch, encoded.record_count, sent_ms)

    def _is_above_floor(self, part: AppendPart) -> bool:
        floor = self.floors.get(producer_key(part))
        return (
            floor is not None
            and (floor.producer_epoch, floor.transaction)
            == (part.producer_epoch, _number_of(self.image, part))
            and part.base_sequence > floor.base_sequence
        )


def _duplicate(part: AppendPart, image: Image, state: PartitionState, producer: _Producer) -> Verdict:
    count = part.encoded.record_count
    for index, epoch, sequence, written in producer.written:
        skipped = (part.base_sequence - sequence) % SEQUENCES
        if epoch == part.producer_epoch and skipped + count <= written:
            return RepeatOf(index, skipped)
    if part.transaction is not None:
        if was_staged(image, staging_of(part).draft):
            return Answer(PartOutcome(log_start_offset=state.log_start_offset, duplicate=True))
        return _refuse(_sequence_error(part, producer, SequenceCheck.OUT_OF_ORDER), state)
    offset = appended_offset(state, part.producer_id, part.producer_epoch, part.base_sequence, count)
    if offset is None:
        return _refuse(_sequence_error(part, producer, SequenceCheck.OUT_OF_ORDER), state)
    appended_ms = NO_TIMESTAMP_MS
    if part.log_append_time_ms != NO_TIMESTAMP_MS:  # the time of then, not of now
        (extent,) = state.extents_between(offset, offset + 1)
        appended_ms = extent.max_timestamp_ms
    return Answer(
        PartOutcome(
            base_offset=offset,
            log_append_time_ms=appended_ms,
            log_start_offset=state.log_start_offset,
            duplicate=True,
        )
    )


def _refuse(error: SparklogError, state: PartitionState | None = None) -> Answer:
    return Answer(PartOutcome(error=error, log_start_offset=-1 if state is None else state.log_start_offset))


def _deleted(part: AppendPart) -> SparklogError:
    return UnknownTopicError(
        "TOPIC_MISSING",
        f"topic {part.topic!r}: deleted, or deleted and created again, while the request was under way",
        fix="refresh the metadata and decide whether the new topic is meant",
    )


def _not_led(part: AppendPart, state: PartitionState) -> SparklogError:
    found = state.leadership
    return FencedError(
        "NOT_LEADER",
        f"{part.topic}-{part.partition}: found leader {found.leader} in epoch {found.leader_epoch}, expected "
        f"this broker in epoch {part.leader_epoch}, in which it accepted these records",
        fix="refresh the metadata and send them to the leader; nothing of them was published",
    )


def _no_partition(part: AppendPart, partitions: int) -> SparklogError:
    return UnknownTopicError(
        "PARTITION_MISSING",
        f"topic {part.topic!r}: no partition {part.partition}, it has {partitions}",
        fix="use a partition that exists, or add partitions",
    )


def _sequence_error(part: AppendPart, producer: _Producer, check: SequenceCheck) -> SparklogError:
    found = _found(part, producer, check)
    if check is SequenceCheck.FENCED:
        return FencedError("PRODUCER_FENCED", found, fix="close this producer: a newer one took over")
    return InvalidRequestError("OUT_OF_ORDER_SEQUENCE", found, fix="send the missing batches first")


def _found(part: AppendPart, producer: _Producer, check: SequenceCheck) -> str:
    return (
        f"{part.topic}-{part.partition}: producer {part.producer_id} epoch {part.producer_epoch} sequence "
        f"{part.base_sequence} {check.value}; the last one was {producer.state}"
    )


# --- failed first batches ----------------------------------------------------------------------------
#
# First batches of producers that could not be appended, until they come again: `floors` of bundle_plan.py.
#
# Invariants: only of producers that the partition does not know; MAX_FLOORS, shared among clients.
# Not here: what was refused before it came here (first_batches.py).
# Concurrency: the publisher's thread.


MAX_FLOORS = 10_000


class FailedFirstBatches(Remembered[ProducerKey, Floor]):
    """See the comment at the head of this section."""

    def __init__(self) -> None:
        super().__init__(MAX_FLOORS)

    def note(self, image: Image, part: AppendPart | UncheckedPart, *, failed: bool) -> None:
        """What became of a part."""
        if part.producer_id < 0 or part.base_sequence < 0:  # or it takes whichever sequence is next
            return
        key = producer_key(part)
        if not failed:
            self.forget(key)
        elif not _is_known(image, key):
            new, known = floor_of(image, part), self.get(key)
            if known is None or (known.producer_epoch, known.transaction) != (
                new.producer_epoch,
                new.transaction,
            ):
                self.remember(key, new, part.client)


def _is_known(image: Image, key: ProducerKey) -> bool:
    topic_id, partition, producer_id = key
    topic = image.topic_by_id.get(topic_id)
    return topic is None or producer_id in topic.partitions[partition].producers
