"""Records of transactions: stage_extents, instead of append_extents.

Staged extents are durable, and not part of the log yet: they have no offsets, no reader sees them, and the
client gets base offset -1. The end of the transaction appends or drops them (transactions.py). Their sequence
numbers count from when they are staged, also if they are dropped: a client of the first protocol continues
after the batches that it has aborted.

    first protocol    the partition was added before (`opens_ms` -1)
    second protocol   the batch adds its partition, and opens the transaction if none is open; the first batch
                      of an epoch in a partition has sequence 0

`StagingJudge` serves callers that decide part by part, in order (conditions.py, sparklog_server/publish):
call `refusal`, then `check_staged` for the sequence, and `note` for each part that will be staged. A part
whose sequence is a DUPLICATE is answered with success and base offset -1 if `was_staged`, else it is out of
order.

Invariants: an extent is of the producer and epoch of an open transaction, in one of its partitions; (producer
    id, epoch, sequence) is staged at most once in a partition, and not after it was appended.
Not here: bounds of an extent's fields (extent_list.py), the meaning of sequences (sequences.py), offsets
    (transactions.py).
Concurrency: pure functions; a judge belongs to one call.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass

from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.metadata.model.action import (
    ActionBase,
    ActionRefusedError,
    Column,
    column_of,
    expanded,
    invalid_plan,
    refuse,
)
from sparklog.metadata.model.draft import ImageDraft, OpenTransaction, PartitionDraft
from sparklog.metadata.model.extent_list import NO_PRODUCER_ID, DraftExtent, why_illegal_extent
from sparklog.metadata.model.extents import sequence_refusal, sequenced
from sparklog.metadata.model.image import Image, PartitionState, ProducerState
from sparklog.metadata.model.isolation import has_isolated, refuse_foreign
from sparklog.metadata.model.sequences import (
    SequenceCheck,
    appended_offset,
    check_sequence,
    check_unknown,
    last_batch,
    last_sequence,
    remember,
)
from sparklog.metadata.model.sweeping import refuse_expired, validate_births
from sparklog.metadata.model.transaction_values import (
    MAX_ROOT_STAGED_BYTES,
    MAX_ROOT_WEIGHT,
    MAX_STAGED_BYTES,
    MAX_STAGED_EXTENTS,
    MAX_STAGING_PRODUCERS,
    MAX_TRANSACTION_PARTITIONS,
    PARTITION_WEIGHT,
    STAGED_EXTENT_WEIGHT,
    STAGED_PARTITION_WEIGHT,
    TOPIC_WEIGHT,
    TopicPartition,
    Transaction,
    fenced,
    full,
    too_large,
    wrong_state,
)
from sparklog.metadata.model.transactions import opened

NEVER_OPENS = -1


class StageExtents(ActionBase, tag="stage_extents", frozen=True, kw_only=True):
    """Each extent is staged after those of its transaction in its partition, in the order given.

    Fields:
        opens_ms: a column: the time of the batch, if it may add its partition and open the transaction; -1:
            it may not, since its client adds partitions itself.
    """

    extents: tuple[DraftExtent, ...]
    opens_ms: Column = NEVER_OPENS

    @property
    def isolates(self) -> bool:
        """True if an extent is in the segment of an isolated topic."""
        return has_isolated({extent.segment for extent in self.extents})

    @property
    def extent_count(self) -> int:
        """All of them."""
        return len(self.extents)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """Batches to be staged. `opens_ms`: as of StageExtents."""

    draft: DraftExtent
    opens_ms: int = NEVER_OPENS

    @property
    def place(self) -> TopicPartition:
        return self.draft.topic_id, self.draft.partition


# --- effect ------------------------------------------------------------------------------------------


def stage_extents(draft: ImageDraft, action: StageExtents) -> None:
    """Apply: each extent becomes its transaction's last in its partition."""
    if not action.extents:
        raise ActionRefusedError("nothing is staged")
    segments = {extent.segment for extent in action.extents}
    refuse_expired(draft, segments)
    refuse_foreign(draft, action.extents, segments)
    opens = expanded(action.opens_ms, len(action.extents), "opens_ms")
    for extent, opens_ms in zip(action.extents, opens, strict=True):
        _stage(draft, extent, opens_ms)


def _stage(draft: ImageDraft, extent: DraftExtent, opens_ms: int) -> None:
    where = f"partition {extent.partition} of topic {extent.topic_id}"
    refuse(_why_illegal(extent, opens_ms), where)
    partition = draft.partition(extent.topic_id, extent.partition)
    if draft.acting is not None:
        draft.acting.require_leadership(partition)
    transaction = _open_transaction(draft, extent, opens_ms, where)
    staging = draft.transactions.staging_in(extent.topic_id, extent.partition)
    if len(staging) >= MAX_STAGING_PRODUCERS and extent.producer_id not in staging:
        raise ActionRefusedError(f"{where}: {len(staging)} producers have staged there already")
    _produce(partition, extent, opens_ms, where, staging)
    placed = sequenced(extent, transaction.end_of((extent.topic_id, extent.partition)))
    refuse(why_illegal_extent(placed), where)
    draft.transactions.stage(transaction, placed)


def _why_illegal(extent: DraftExtent, opens_ms: int) -> str | None:
    """Return why an extent cannot be staged, beyond the bounds of its fields, or None."""
    if extent.producer_id == NO_PRODUCER_ID:
        return "an extent without a producer is staged"
    if opens_ms < NEVER_OPENS:
        return f"opens_ms {opens_ms} is out of range"
    return None


def _open_transaction(draft: ImageDraft, extent: DraftExtent, opens_ms: int, where: str) -> OpenTransaction:
    place = extent.topic_id, extent.partition
    found = draft.transactions.open_of_producer(extent.producer_id)
    if found is None:
        found = _opened(draft, extent, opens_ms, where)
    if found.producer_epoch != extent.producer_epoch:
        raise ActionRefusedError(
            f"{where}: a transaction of producer {extent.producer_id} in epoch {extent.producer_epoch}, "
            f"found epoch {found.producer_epoch}"
        )
    if opens_ms != NEVER_OPENS:
        found.add(place)
    elif not found.has(place):
        raise ActionRefusedError(f"{where}: not in the transaction of producer {extent.producer_id}")
    return found


def _opened(draft: ImageDraft, extent: DraftExtent, opens_ms: int, where: str) -> OpenTransaction:
    """Open the next transaction of a producer without an ongoing one. The caller checks whether it may."""
    transaction = draft.transactions.of_producer(extent.producer_id)
    if transaction is None:
        raise ActionRefusedError(f"{where}: producer {extent.producer_id} has no transactional id")
    draft.transactions.put(opened(transaction, opens_ms, draft.commit))
    found = draft.transactions.open_of_producer(extent.producer_id)
    assert found is not None, "it was opened"
    return found


def _produce(
    partition: PartitionDraft, extent: DraftExtent, opens_ms: int, where: str, staging: Container[int]
) -> None:
    """Record its sequence, with the partition's end as its offset, which will not be lower."""
    producers = partition.changing_producers()
    known = producers.get(extent.producer_id)
    check = check_sequence(known, extent.producer_epoch, extent.base_sequence)
    if check is SequenceCheck.NEXT and _skips_first(known, extent, opens_ms):
        check = SequenceCheck.OUT_OF_ORDER
    if check is not SequenceCheck.NEXT:
        raise ActionRefusedError(
            f"{where}: producer {extent.producer_id} epoch {extent.producer_epoch} sequence "
            f"{extent.base_sequence} {check.value}, known is {known}"
        )
    state = _after(extent, partition.log_end_offset)
    remember(producers, extent.producer_id, state, partition.state.merged_batches, staging)


def _skips_first(known: ProducerState | None, extent: DraftExtent, opens_ms: int) -> bool:
    """True if the first batch of an epoch, in the second protocol, does not have sequence 0."""
    is_first = known is None or known.producer_epoch != extent.producer_epoch
    return opens_ms != NEVER_OPENS and is_first and extent.base_sequence != 0


def _after(extent: DraftExtent, log_end_offset: int) -> ProducerState:
    last = last_sequence(extent.base_sequence, extent.record_count)
    return ProducerState(extent.producer_epoch, last, log_end_offset)


# --- judging -----------------------------------------------------------------------------------------


class StagingJudge:
    """Decides which parts transactions may take, by an image and the parts noted before."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._added: set[tuple[int, TopicPartition]] = set()
        self._opened: set[int] = set()
        self._staging: dict[TopicPartition, set[int]] = {}
        self._of_transaction: dict[int, tuple[int, int, int]] = {}  # extents, bytes, partitions
        self._of_root = image.transactions.staged_bytes
        self._weight_of_root = image.transactions.weight

    def refusal(self, part: Staging) -> SparklogError | None:
        """Return the error if a part may not be staged, whatever its sequence; else None.

        FencedError PRODUCER_FENCED; InvalidRequestError PRODUCER_UNMAPPED, TRANSACTION_STATE,
        TRANSACTION_TOO_LARGE; RetriableError TRANSACTIONS_FULL.
        """
        draft = part.draft
        transaction = self._image.transactions.of_producer(draft.producer_id)
        if transaction is None:
            return InvalidRequestError(
                "PRODUCER_UNMAPPED",
                f"partition {draft.partition} of topic {draft.topic_id}: found a transaction's batch of "
                f"producer id {draft.producer_id}, which no transactional id has",
                fix="Initialise the producer again",
            )
        if transaction.producer_epoch != draft.producer_epoch:
            return fenced(transaction, draft.producer_id, draft.producer_epoch)
        if not self._is_added(transaction, part.place) and part.opens_ms == NEVER_OPENS:
            return wrong_state(
                transaction,
                f"found a batch of partition {draft.partition} of topic {draft.topic_id}, which is not added",
                fix="Abort the transaction: it was ended meanwhile, or its client is at fault",
            )
        return self._no_room(transaction, part)

    def note(self, part: Staging) -> None:
        """Record a part that will be staged."""
        place, producer_id = part.place, part.draft.producer_id
        transaction = self._image.transactions.of_producer(producer_id)
        assert transaction is not None, "`refusal` has checked it"
        extents, staged_bytes, partitions = self._has(transaction)
        self._weight_of_root += self._weight(transaction, place)
        if not self._is_added(transaction, place):
            self._added.add((producer_id, place))
            partitions += 1
        self._of_transaction[producer_id] = extents + 1, staged_bytes + part.draft.size, partitions
        self._of_root += part.draft.size
        self._staging.setdefault(place, set()).add(producer_id)

    def _is_added(self, transaction: Transaction, place: TopicPartition) -> bool:
        if transaction.is_ongoing and place in transaction.partitions:
            return True
        return (transaction.producer_id, place) in self._added

    def _weight(self, transaction: Transaction, place: TopicPartition) -> int:
        """Return the weight of one more extent."""
        weight = STAGED_EXTENT_WEIGHT
        if place not in transaction.staged and transaction.producer_id not in self._staging.get(place, ()):
            weight += STAGED_PARTITION_WEIGHT
        if not self._is_added(transaction, place):
            weight += PARTITION_WEIGHT + TOPIC_WEIGHT * (place[0] not in transaction.partitions.by_topic)
        return weight

    def _has(self, transaction: Transaction) -> tuple[int, int, int]:
        noted = self._of_transaction.get(transaction.producer_id)
        if noted is not None:
            return noted
        return transaction.staged_extents, transaction.staged_bytes, len(transaction.partitions)

    def _no_room(self, transaction: Transaction, part: Staging) -> SparklogError | None:
        extents, staged_bytes, partitions = self._has(transaction)
        if extents >= MAX_STAGED_EXTENTS:
            return too_large(transaction, f"{extents} extents staged, at most {MAX_STAGED_EXTENTS}")
        if staged_bytes + part.draft.size > MAX_STAGED_BYTES:
            return too_large(transaction, f"{staged_bytes} bytes staged, at most {MAX_STAGED_BYTES}")
        if partitions >= MAX_TRANSACTION_PARTITIONS and not self._is_added(transaction, part.place):
            return too_large(transaction, f"{partitions} partitions, at most {MAX_TRANSACTION_PARTITIONS}")
        of_root = self._of_root
        if of_root + part.draft.size > MAX_ROOT_STAGED_BYTES:
            return full(f"{of_root} bytes staged by all transactions, at most {MAX_ROOT_STAGED_BYTES}")
        weight = self._weight_of_root + self._weight(transaction, part.place)
        if weight > MAX_ROOT_WEIGHT:
            return full(f"open transactions of {weight} bytes, at most {MAX_ROOT_WEIGHT}")
        before = self._image.transactions.staging_in(*part.place)
        noted = self._staging.get(part.place, set())
        if transaction.producer_id not in before and transaction.producer_id not in noted:
            staging = len(before) + len(noted - before)
            if staging >= MAX_STAGING_PRODUCERS:
                return full(
                    f"{staging} transactions with something staged in partition {part.draft.partition} of "
                    f"topic {part.draft.topic_id}, at most {MAX_STAGING_PRODUCERS}"
                )
        return None


def check_staged(
    state: PartitionState, known: ProducerState | None, part: Staging, sent_timestamp_ms: int | None
) -> SequenceCheck:
    """Check the sequence of a part.

    Args:
        known: the producer's last batch (`last_batch`), or that of a previous part.
        sent_timestamp_ms: as the producer has sent it; None if only the time of the append is known.
    """
    draft = part.draft
    if known is None and part.opens_ms != NEVER_OPENS and draft.base_sequence == 0:
        # The first batch of an open transaction's epoch: producers with staged batches are never evicted.
        return SequenceCheck.NEXT
    if known is None:
        check = check_unknown(
            state,
            draft.producer_id,
            draft.producer_epoch,
            draft.base_sequence,
            draft.record_count,
            sent_timestamp_ms,
        )
    else:
        check = check_sequence(known, draft.producer_epoch, draft.base_sequence)
    if check is SequenceCheck.NEXT and _skips_first(known, draft, part.opens_ms):
        return SequenceCheck.OUT_OF_ORDER
    return check


def was_staged(image: Image, draft: DraftExtent) -> bool:
    """True if the producer's open transaction, or a previous one that committed, has all of the batch's
    records.

    Aborted batches are not found: no client waits for an answer to them.
    """
    transaction = image.transactions.of_producer(draft.producer_id)
    if transaction is not None:
        staged = transaction.staged_in(draft.topic_id, draft.partition)
        extent = staged.with_sequence(draft.producer_id, draft.producer_epoch, draft.base_sequence)
        if extent is not None:
            last = last_sequence(draft.base_sequence, draft.record_count)
            return staged.with_sequence(draft.producer_id, draft.producer_epoch, last) is not None
    state = image.partition_of(draft.topic_id, draft.partition)
    batch = draft.producer_id, draft.producer_epoch, draft.base_sequence
    return appended_offset(state, *batch, draft.record_count) is not None


# --- plan --------------------------------------------------------------------------------------------


def plan_stage(image: Image, parts: Sequence[Staging]) -> StageExtents:
    """Stage parts, per partition in the order given.

    Raises:
        UnknownTopicError: no topic has this id (any more), or no such partition.
        RetriableError: STAGING_EXPIRED, a segment is too old to become live; TRANSACTIONS_FULL.
        FencedError: PRODUCER_FENCED.
        InvalidRequestError: PRODUCER_UNMAPPED, TRANSACTION_STATE, TRANSACTION_TOO_LARGE, DUPLICATE_SEQUENCE,
            OUT_OF_ORDER_SEQUENCE, UNKNOWN_PRODUCER, or a malformed draft.
    """
    validate_births(image, (part.draft.segment for part in parts))
    judge = StagingJudge(image)
    producers: dict[tuple[str, int, int], ProducerState] = {}
    for part in parts:
        draft = part.draft
        state = image.partition_of(*part.place)
        reason = _why_illegal(draft, part.opens_ms) or why_illegal_extent(sequenced(draft, 0))
        if reason is not None:
            raise invalid_plan(f"extent of partition {draft.partition} of topic {draft.topic_id}: {reason}")
        refusal = judge.refusal(part)
        if refusal is not None:
            raise refusal
        key = (*part.place, draft.producer_id)
        known = producers.get(key) or last_batch(state, draft.producer_id)
        refusal = sequence_refusal(draft, known, check_staged(state, known, part, draft.max_timestamp_ms))
        if refusal is not None:
            raise refusal
        judge.note(part)
        producers[key] = _after(draft, state.log_end_offset)
    opens_ms = [
        part.opens_ms if part.opens_ms == NEVER_OPENS else image.no_earlier_ms(part.opens_ms)
        for part in parts
    ]
    return StageExtents(extents=tuple(part.draft for part in parts), opens_ms=column_of(opens_ms))
