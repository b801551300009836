"""The end of a transaction: end_transaction, one small action however much it has staged.

Committed: all that is staged gets its offsets, in each partition behind what is there then, in the order in
which it was staged. Aborted: it is dropped. Either way the sequences that were staged stay known. What was
staged for a topic that was deleted meanwhile has gone with it.

An end names the producer and its epoch. With the second protocol, by its time-out and by an administrator it
raises the epoch as well, so that nothing of the transaction can come after it. With the first protocol it
does not: there it names the number of the transaction that was open when the request came in, so that a slow
coordinator does not end the next one.

A request that comes again is answered by what was decided (`Ended` without actions).

Invariants: as of transaction_values.py; what an end appends is all that was staged, once.
Not here: who looks for what takes too long, and how often (sparklog_server).
Concurrency: pure functions.
Sources: FORMAT.md#metadata-log; adr/0028, adr/0030; Kafka TransactionCoordinator.endTransaction, KIP-890.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from sparklog.metadata.model.action import ActionBase, ActionRefusedError, invalid_plan
from sparklog.metadata.model.draft import ImageDraft
from sparklog.metadata.model.extent_list import ExtentList
from sparklog.metadata.model.image import Image, ProducerState
from sparklog.metadata.model.numbers import MAX_OFFSET, Int64
from sparklog.metadata.model.producers import AllocateProducerIds
from sparklog.metadata.model.sequences import remember
from sparklog.metadata.model.transaction_refusals import fenced, unmapped, wrong_state
from sparklog.metadata.model.transaction_values import (
    LAST_PRODUCER_EPOCH,
    NO_ID,
    NO_NUMBER,
    NO_PRODUCER_EPOCH,
    TopicPartition,
    Transaction,
    TransactionPhase,
)
from sparklog.metadata.model.transactions import (
    allocation,
    next_producer,
    require_next_producer,
    require_producer,
)

MAX_TIMED_OUT_AT_ONCE = 1_000


class EndTransaction(ActionBase, tag="end_transaction", frozen=True, kw_only=True):
    """The transaction of this producer is over.

    Fields:
        committed: else it is aborted.
        number: of the transaction that is meant; -1: whichever is open.
        next_producer_id, next_producer_epoch: who may go on; -1: as before. An abort that raises the epoch
            applies although nothing is open.
        fences: it is not the producer's own end, so that nobody is told who follows it.
    """

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int64
    committed: bool
    time_ms: Int64
    number: Int64 = NO_NUMBER
    next_producer_id: Int64 = NO_ID
    next_producer_epoch: Int64 = NO_PRODUCER_EPOCH
    fences: bool = False

    @property
    def frees_space(self) -> bool:
        """An abort."""
        return not self.committed


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What an end amounts to; no actions: it was decided already, and this is the answer.

    Fields:
        producer_id, producer_epoch: who may go on; the second protocol's answer.
        ranges: where the records of each partition begin, and how many offsets they take; of a commit only.
    """

    actions: Sequence[AllocateProducerIds | EndTransaction]
    producer_id: int
    producer_epoch: int
    ranges: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)


# --- effect ------------------------------------------------------------------------------------------


def end_transaction(draft: ImageDraft, action: EndTransaction) -> None:
    """What is staged is appended, or dropped; the producer is the next one, if the end names one."""
    known = require_producer(draft, action.transactional_id, action.producer_id, action.producer_epoch)
    raises = (action.next_producer_id, action.next_producer_epoch) != (NO_ID, NO_PRODUCER_EPOCH)
    _require_open(known, action, raises=raises)
    if not 0 <= action.time_ms <= MAX_OFFSET:
        raise ActionRefusedError(f"time {action.time_ms} is out of range")
    if raises:
        require_next_producer(draft, known, action.next_producer_id, action.next_producer_epoch)
    if action.committed:
        for extents in known.staged.values():
            _publish(draft, known, extents)
    else:
        draft.count_dropped(known)
    ended = replace(
        draft.transactions.clear(known),
        phase=TransactionPhase.COMMITTED if action.committed else TransactionPhase.ABORTED,
        changed_ms=action.time_ms,
        changed_commit=draft.commit,
    )
    if raises:
        ended = replace(
            ended,
            producer_id=action.next_producer_id,
            producer_epoch=action.next_producer_epoch,
            previous_producer_id=known.producer_id,
            previous_producer_epoch=NO_PRODUCER_EPOCH if action.fences else known.producer_epoch,
        )
    else:  # the epoch before this one has ended nothing: it is that of another process, or of before
        ended = replace(ended, previous_producer_id=NO_ID, previous_producer_epoch=NO_PRODUCER_EPOCH)
    draft.transactions.put(ended)


def _require_open(known: Transaction, action: EndTransaction, *, raises: bool) -> None:
    if action.number not in (NO_NUMBER, known.number):
        raise ActionRefusedError(
            f"{known.transactional_id!r}: an end of transaction {action.number}, expected {known.number}"
        )
    if not known.is_ongoing and (action.committed or not raises):
        raise ActionRefusedError(f"{known.transactional_id!r}: an end of what is {known.phase}")


def _publish(draft: ImageDraft, transaction: Transaction, staged: ExtentList) -> None:
    partition = draft.partition(staged.topic_id, staged.partition)
    if staged.end_offset > MAX_OFFSET - partition.log_end_offset:
        raise ActionRefusedError(
            f"partition {staged.partition} of topic {staged.topic_id}: no offsets are left for {len(staged)} "
            "extents"
        )
    partition.publish(staged)
    producers = partition.changing_producers()
    known = producers.get(transaction.producer_id)
    if known is None:
        raise ActionRefusedError(f"producer {transaction.producer_id} is unknown where it has staged")
    state = ProducerState(known.producer_epoch, known.last_sequence, partition.log_end_offset - 1)
    staging = draft.transactions.staging_in(staged.topic_id, staged.partition)
    remember(producers, transaction.producer_id, state, partition.state.merged_batches, staging)


# --- plans -------------------------------------------------------------------------------------------


def plan_end_transaction(
    image: Image,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    *,
    committed: bool,
    second: bool,
    now_ms: int,
    number: int = NO_NUMBER,
) -> Ended:
    """End what is open, as its producer asks; or the answer to a request that came before.

    Args:
        second: the request is of the second protocol (EndTxn from version 5 on): the end raises the epoch,
            and an abort may have nothing to abort.
        number: of the first protocol: `number` of the transaction as the coordinator had it when it took
            the request in, by an image that has all that was answered to the client before; -1: whichever is
            open.

    Raises:
        FencedError: PRODUCER_FENCED.
        InvalidRequestError: PRODUCER_UNMAPPED; TRANSACTION_STATE: nothing is open, or it was ended otherwise.
    """
    known = image.transactions.get(transactional_id)
    if known is not None and second and _is_repetition(known, producer_id, producer_epoch):
        return _answered(known, committed=committed)
    if known is None or known.producer_id != producer_id:
        raise unmapped(transactional_id, producer_id, known)
    if known.producer_epoch != producer_epoch:
        raise fenced(known, producer_id, producer_epoch)
    if second:
        if committed and not known.is_ongoing:
            raise _nothing_open(known)
        return _ended(image, known, committed=committed, now_ms=now_ms, raises=True)
    if not known.is_ongoing:
        return _answered(known, committed=committed)
    if number not in (NO_NUMBER, known.number):
        raise wrong_state(
            known,
            f"found an end of transaction {number}",
            fix="nothing: that one was ended, and its client was told so",
        )
    return _ended(image, known, committed=committed, now_ms=now_ms, number=known.number)


def _is_repetition(known: Transaction, producer_id: int, producer_epoch: int) -> bool:
    """Does a request of the second protocol name who had the transaction that was ended last?

    Not if that end was one of the first protocol, which raises no epoch. Then the epoch before is that of a
    process that is gone, and it must not be told that its transaction was committed, or who has the id now.
    """
    if known.phase not in (TransactionPhase.COMMITTED, TransactionPhase.ABORTED):
        return False
    if known.previous_producer_id == NO_ID:
        return False
    if known.producer_epoch == 0:
        return (producer_id, producer_epoch) == (known.previous_producer_id, LAST_PRODUCER_EPOCH)
    return (producer_id, producer_epoch) == (known.producer_id, known.producer_epoch - 1)


def _answered(known: Transaction, *, committed: bool) -> Ended:
    """By what was decided; TRANSACTION_STATE if that was nothing, or something else."""
    decided = TransactionPhase.COMMITTED if committed else TransactionPhase.ABORTED
    if known.phase is decided:
        return Ended(actions=(), producer_id=known.producer_id, producer_epoch=known.producer_epoch)
    raise _nothing_open(known)


def _nothing_open(known: Transaction) -> Exception:
    return wrong_state(
        known,
        "found an end where nothing is open, or what was ended was ended otherwise",
        fix="close this producer; its last transaction is as its phase says",
    )


def _ended(
    image: Image,
    known: Transaction,
    *,
    committed: bool,
    now_ms: int,
    number: int = NO_NUMBER,
    raises: bool = False,
) -> Ended:
    if not 0 <= now_ms <= MAX_OFFSET:
        raise invalid_plan(f"time {now_ms}, expected one from 0 to {MAX_OFFSET}")
    following = known.producer_id, known.producer_epoch
    if raises:
        following = next_producer(known, image.next_producer_id)
    end = EndTransaction(
        transactional_id=known.transactional_id,
        producer_id=known.producer_id,
        producer_epoch=known.producer_epoch,
        committed=committed,
        time_ms=image.no_earlier_ms(now_ms),
        number=number,
        next_producer_id=following[0] if raises else NO_ID,
        next_producer_epoch=following[1] if raises else NO_PRODUCER_EPOCH,
    )
    return Ended(
        actions=(*allocation(image, [following[0]]), end),
        producer_id=following[0],
        producer_epoch=following[1],
        ranges=_ranges(image, known) if committed else {},
    )


def _ranges(image: Image, known: Transaction) -> dict[TopicPartition, tuple[int, int]]:
    return {
        place: (image.partition_of(*place).log_end_offset, extents.end_offset)
        for place, extents in known.staged.items()
    }


def plan_abort_transactions(
    image: Image, transactional_ids: Sequence[str], *, now_ms: int
) -> list[AllocateProducerIds | EndTransaction]:
    """Abort those of these that are open, for somebody else than their producers, who are fenced by it.

    For administrators, and `timed_out`. Empty: none is open.
    """
    ends: list[EndTransaction] = []
    fresh = image.next_producer_id
    for transactional_id in dict.fromkeys(transactional_ids):
        known = image.transactions.get(transactional_id)
        if known is None or not known.is_ongoing:
            continue
        next_id, next_epoch = next_producer(known, fresh)
        fresh = max(fresh, next_id + 1)
        ends.append(
            EndTransaction(
                transactional_id=transactional_id,
                producer_id=known.producer_id,
                producer_epoch=known.producer_epoch,
                committed=False,
                time_ms=image.no_earlier_ms(now_ms),
                number=known.number,
                next_producer_id=next_id,
                next_producer_epoch=next_epoch,
                fences=True,
            )
        )
    return [*allocation(image, [one.next_producer_id for one in ends]), *ends]


def timed_out(image: Image, now_ms: int) -> list[str]:
    """The transactional ids whose transactions take longer than they may, MAX_TIMED_OUT_AT_ONCE at most.

    Cost: a comparison for each that is open.
    """
    late = (name for name, deadline_ms in image.transactions.deadlines.items() if deadline_ms <= now_ms)
    return list(islice(late, MAX_TIMED_OUT_AT_ONCE))
