"""Transactions: begin_producer, add_to_transaction, forget_transactions, end_transaction.

A transactional id has one producer at a time: a producer id, and an epoch that only grows. A process that is
initialised with the id gets the next epoch, and the same commit aborts what was open; so an older process can
neither stage nor end anything from then on. All state is in the image: any broker may plan for any id.

A root has room for a bounded number of ids. When it is full, the ids that were unused for longest are
forgotten for new ones. A producer whose id was forgotten gets PRODUCER_UNMAPPED for every request, and has to
be initialised anew: with another producer id, so that nothing of the old one can follow.

A transaction is open from the first partition or group that is added to it (first protocol), or the first
batch that is staged (second), until it is ended. Transactions of an id are numbered.

The plans are pure, and called with each image that the commit may follow. A refusal holds for that image: a
broker MUST refresh before it returns one to a client, since the client may have been initialised at another
broker a moment ago.

    begun = plan_begin_producer(image, "app", timeout_ms=60_000, now_ms=now)     # InitProducerId
    plan_add_to_transaction(image, "app", pid, epoch, partitions=[(topic_id, 0)], groups=["g"], now_ms=now)
    plan_stage(image, [Staging(draft=draft, opens_ms=-1)])                       # Produce: staging.py
    plan_end_transaction(image, "app", pid, epoch, committed=True, second=False, number=n, now_ms=now)
                                                                                 # EndTxn
Errors, and what they are to Kafka's clients:
    PRODUCER_FENCED             PRODUCER_FENCED, INVALID_PRODUCER_EPOCH (older versions)
    PRODUCER_UNMAPPED           INVALID_PRODUCER_ID_MAPPING
    TRANSACTION_STATE           INVALID_TXN_STATE
    TRANSACTION_TOO_LARGE       TRANSACTION_ABORTABLE: a bound of this transaction is reached
    TRANSACTIONS_FULL           a bound of the root is reached: ids, staged bytes, or additions
    INVALID_TRANSACTIONAL_ID    INVALID_REQUEST
    INVALID_TRANSACTION_TIMEOUT INVALID_TRANSACTION_TIMEOUT
    TRANSACTION_MISSING         TRANSACTIONAL_ID_NOT_FOUND

Invariants: as of transaction_values.py. An action names the producer and its epoch, and applies in that epoch
    only; an epoch goes up by one, or a new producer id begins with 0.
Not here: staging (staging.py), coordinators and their settings (sparklog_server).
Concurrency: pure functions.
Sources: FORMAT.md#metadata-log; adr/0028, adr/0030; tests/models/transactions.py; Kafka
    TransactionCoordinator, TransactionMetadata; KIP-98, KIP-360, KIP-890.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from sparklog.errors import InvalidRequestError
from sparklog.metadata.model.action import (
    MAX_OFFSET,
    ActionBase,
    ActionRefusedError,
    Column,
    Int64,
    invalid_plan,
    named,
    partitions_of,
    refuse,
)
from sparklog.metadata.model.draft import ImageDraft
from sparklog.metadata.model.extent_list import ExtentList
from sparklog.metadata.model.image import Image, ProducerState
from sparklog.metadata.model.sequences import AllocateProducerIds, plan_allocate_producer_ids, remember
from sparklog.metadata.model.transaction_values import (
    LAST_PRODUCER_EPOCH,
    MAX_ROOT_WEIGHT,
    MAX_TRANSACTION_GROUP_CHARACTERS,
    MAX_TRANSACTION_GROUPS,
    MAX_TRANSACTION_PARTITIONS,
    MAX_TRANSACTIONAL_IDS,
    NO_ID,
    NO_NUMBER,
    NO_PRODUCER_EPOCH,
    PARTITION_WEIGHT,
    TOPIC_WEIGHT,
    TopicPartition,
    Transaction,
    TransactionPhase,
    fenced,
    full,
    too_large,
    unmapped,
    weight_of_groups,
    why_illegal_transactional_id,
    why_no_new_transactional_id,
    wrong_state,
)

# --- transactions ------------------------------------------------------------------------------------


MAX_TIMEOUT_MS = (1 << 31) - 1
MAX_FORGOTTEN_IDS = 10_000
_PARTS_FORGOTTEN = 64  # forget this part of the ids together, so that not each new id scans all


class BeginProducer(ActionBase, tag="begin_producer", frozen=True, kw_only=True):
    """Initialise a process with a transactional id; what was open under it is aborted.

    Fields:
        producer_id, producer_epoch: the process's from now on.
        follows: it is the process that had the id before, and named its producer id and epoch: they are
            remembered, so that the request can be repeated.
    """

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int64
    timeout_ms: Int64
    time_ms: Int64
    follows: bool = False


class AddToTransaction(ActionBase, tag="add_to_transaction", frozen=True, kw_only=True):
    """Add partitions that the producer will write to, and groups whose offsets it will commit.

    It opens a transaction if none is open. `topics`, `topic` and `partition` are columns.
    """

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int64
    time_ms: Int64
    topics: tuple[str, ...] = ()
    topic: Column = 0
    partition: tuple[Int64, ...] = ()
    groups: tuple[str, ...] = ()


class ForgetTransactions(ActionBase, tag="forget_transactions", frozen=True, kw_only=True):
    """Forget these transactional ids and their producers; none has an open transaction."""

    transactional_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The result of an initialisation; without actions it was done already, and this is its answer."""

    actions: Sequence[ForgetTransactions | AllocateProducerIds | BeginProducer]
    producer_id: int
    producer_epoch: int


# --- effects -----------------------------------------------------------------------------------------


def begin_producer(draft: ImageDraft, action: BeginProducer) -> None:
    """Apply: the id has a new producer, or the next epoch, and no open transaction."""
    refuse(why_illegal_transactional_id(action.transactional_id), "begin_producer")
    refuse(_why_illegal_times(action.timeout_ms, action.time_ms), "begin_producer")
    known = draft.transactions.get(action.transactional_id)
    require_next_producer(draft, known, action.producer_id, action.producer_epoch)
    if known is None:
        draft.transactions.put(
            Transaction(
                transactional_id=action.transactional_id,
                producer_id=action.producer_id,
                producer_epoch=action.producer_epoch,
                timeout_ms=action.timeout_ms,
                changed_ms=action.time_ms,
                changed_commit=draft.commit,
            )
        )
        return
    draft.count_dropped(known)
    draft.transactions.put(
        replace(
            draft.transactions.clear(known),
            producer_id=action.producer_id,
            producer_epoch=action.producer_epoch,
            previous_producer_id=known.producer_id,
            previous_producer_epoch=known.producer_epoch if action.follows else NO_PRODUCER_EPOCH,
            timeout_ms=action.timeout_ms,
            changed_ms=action.time_ms,
            changed_commit=draft.commit,
            phase=TransactionPhase.EMPTY,
        )
    )


def require_next_producer(draft: ImageDraft, known: Transaction | None, producer_id: int, epoch: int) -> None:
    """ActionRefusedError unless it is the next epoch of the producer, or a new producer's first."""
    if known is not None and producer_id == known.producer_id:
        if known.producer_epoch < LAST_PRODUCER_EPOCH and epoch == known.producer_epoch + 1:
            return
    elif 0 <= producer_id < draft.next_producer_id and epoch == 0:
        other = draft.transactions.of_producer(producer_id)
        if other is None:
            return
        raise ActionRefusedError(f"producer id {producer_id} is that of {other.transactional_id!r}")
    now = "none" if known is None else f"{known.producer_id} in epoch {known.producer_epoch}"
    raise ActionRefusedError(f"producer {producer_id} in epoch {epoch}, expected the one after {now}")


def require_producer(draft: ImageDraft, transactional_id: str, producer_id: int, epoch: int) -> Transaction:
    """The transaction; ActionRefusedError unless this is its producer, in its epoch."""
    known = draft.transactions.get(transactional_id)
    if known is None or not known.is_of(producer_id, epoch):
        now = "unknown" if known is None else f"of producer {known.producer_id} epoch {known.producer_epoch}"
        raise ActionRefusedError(f"{transactional_id!r} of producer {producer_id} epoch {epoch} is {now}")
    return known


def add_to_transaction(draft: ImageDraft, action: AddToTransaction) -> None:
    """Apply: the transaction is open, with these partitions and groups added."""
    known = require_producer(draft, action.transactional_id, action.producer_id, action.producer_epoch)
    refuse(_why_illegal_times(1, action.time_ms), "add_to_transaction")
    added = partitions_of(action.topics, action.topic, action.partition) if action.partition else []
    if not added and not action.groups:
        raise ActionRefusedError("nothing is added to a transaction")
    for topic_id, partition in added:
        draft.partition(topic_id, partition)  # there is such a partition
    if not known.is_ongoing:
        known = opened(known, action.time_ms, draft.commit)
    known = draft.transactions.add_partitions(known, added)
    groups = dict.fromkeys((*known.groups, *action.groups))
    draft.transactions.put(replace(known, groups=tuple(groups)))


def opened(transaction: Transaction, time_ms: int, commit: int) -> Transaction:
    """Return the next transaction of its id."""
    return replace(
        transaction,
        phase=TransactionPhase.ONGOING,
        number=transaction.number + 1,
        started_ms=time_ms,
        changed_ms=time_ms,
        changed_commit=commit,
    )


def forget_transactions(draft: ImageDraft, action: ForgetTransactions) -> None:
    """Apply; an open transaction is refused."""
    for transactional_id in action.transactional_ids:
        known = draft.transactions.get(transactional_id)
        if known is None or known.is_ongoing:
            raise ActionRefusedError(f"{transactional_id!r} is unknown, or has a transaction that is open")
        draft.transactions.remove(known)


def _why_illegal_times(timeout_ms: int, time_ms: int) -> str | None:
    if not 1 <= timeout_ms <= MAX_TIMEOUT_MS:
        return f"timeout {timeout_ms} ms, expected 1 to {MAX_TIMEOUT_MS}"
    if not 0 <= time_ms <= MAX_OFFSET:
        return f"time {time_ms}, expected 0 to {MAX_OFFSET}"
    return None


# --- plans -------------------------------------------------------------------------------------------


def plan_begin_producer(
    image: Image,
    transactional_id: str,
    *,
    timeout_ms: int,
    now_ms: int,
    producer_id: int = NO_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    replaceable: Collection[str] = (),
) -> Begun:
    """Initialise a process with a transactional id: fence the others, abort what is open.

    If the root is full, the ids that were unused for longest are forgotten for a new one.

    Args:
        producer_id, producer_epoch: those of the process, if it goes on after an error. It gets the next
            epoch; if the request is a repetition, the same answer as before.
        replaceable: for a new id, forget some of these that were unused for longest.

    Raises:
        FencedError: PRODUCER_FENCED, another process was initialised since.
        RetriableError: TRANSACTIONS_FULL, too many ids, of which none can be forgotten.
        InvalidRequestError: INVALID_TRANSACTIONAL_ID, INVALID_TRANSACTION_TIMEOUT.
    """
    known = image.transactions.get(transactional_id)
    _validate_beginning(transactional_id, timeout_ms, is_new=known is None)
    follows = known is not None and producer_id != NO_ID
    forgotten: list[ForgetTransactions] = []
    if known is None:
        forgotten = _room_for_new(image, replaceable)
    elif follows and not known.is_of(producer_id, producer_epoch):
        before = known.previous_producer_id, known.previous_producer_epoch
        if producer_epoch != NO_PRODUCER_EPOCH and before == (producer_id, producer_epoch):
            return Begun(actions=(), producer_id=known.producer_id, producer_epoch=known.producer_epoch)
        raise fenced(known, producer_id, producer_epoch)
    next_id, next_epoch = next_producer(known, image.next_producer_id)
    begin = BeginProducer(
        transactional_id=transactional_id,
        producer_id=next_id,
        producer_epoch=next_epoch,
        timeout_ms=timeout_ms,
        time_ms=image.no_earlier_ms(now_ms),
        follows=follows,
    )
    reason = _why_illegal_times(timeout_ms, now_ms)
    if reason is not None:
        raise invalid_plan(reason)
    allocated = allocation(image, [next_id])
    return Begun(actions=(*forgotten, *allocated, begin), producer_id=next_id, producer_epoch=next_epoch)


def _room_for_new(image: Image, replaceable: Collection[str]) -> list[ForgetTransactions]:
    present = len(image.transactions)
    unused: Sequence[str] = ()
    if replaceable:
        unused = longest_unused(image, replaceable)[: max(1, len(replaceable) // _PARTS_FORGOTTEN)]
        if not unused:
            raise full(f"{len(replaceable)} transactional ids of one client in use, fewer")
    elif present >= MAX_TRANSACTIONAL_IDS:
        count = present - MAX_TRANSACTIONAL_IDS + max(1, present // _PARTS_FORGOTTEN)
        unused = longest_unused(image, image.transactions)[:count]
        if present - len(unused) >= MAX_TRANSACTIONAL_IDS:
            raise full(
                f"{present} transactional ids that are open or were used recently, at most "
                f"{MAX_TRANSACTIONAL_IDS}"
            )
    return [ForgetTransactions(transactional_ids=tuple(unused))] if unused else []


def longest_unused(image: Image, transactional_ids: Collection[str]) -> list[str]:
    """Return the ids that can be forgotten: none that is open, and none of the most recently used half.

    Ids that never had a transaction come first, then those that were unused for longest, by the commits that
    changed them: clocks of the past may have been wrong.
    """
    found = [image.transactions.get(name) for name in transactional_ids]
    known = sorted((each for each in found if each is not None), key=lambda each: each.changed_commit)
    unused = [each for each in known[: len(known) // 2] if not each.is_ongoing]
    unused.sort(key=lambda each: each.number > 0)
    return [each.transactional_id for each in unused]


def validate_producer(
    image: Image, transactional_id: str, producer_id: int, producer_epoch: int
) -> Transaction:
    """Return the transaction of an id, of this producer in its present epoch.

    Raises:
        InvalidRequestError: PRODUCER_UNMAPPED.
        FencedError: PRODUCER_FENCED.
    """
    known = image.transactions.get(transactional_id)
    if known is None or known.producer_id != producer_id:
        raise unmapped(transactional_id, producer_id, known)
    if known.producer_epoch != producer_epoch:
        raise fenced(known, producer_id, producer_epoch)
    return known


def next_producer(known: Transaction | None, fresh_id: int) -> tuple[int, int]:
    """Return the next producer id and epoch: the next epoch, or the first one of a new id."""
    if known is None or known.producer_epoch >= LAST_PRODUCER_EPOCH:
        return fresh_id, 0
    return known.producer_id, known.producer_epoch + 1


def allocation(image: Image, producer_ids: Collection[int]) -> list[AllocateProducerIds]:
    """Return the action that allocates the new ones of these ids."""
    new = sum(producer_id >= image.next_producer_id for producer_id in producer_ids)
    return [plan_allocate_producer_ids(image, new)] if new else []


def _validate_beginning(transactional_id: str, timeout_ms: int, *, is_new: bool) -> None:
    reason = why_illegal_transactional_id(transactional_id)
    if reason is None and is_new:
        reason = why_no_new_transactional_id(transactional_id)
    if reason is not None:
        raise InvalidRequestError(
            "INVALID_TRANSACTIONAL_ID", reason, fix="choose another transactional.id for the producer"
        )
    if not 1 <= timeout_ms <= MAX_TIMEOUT_MS:
        raise InvalidRequestError(
            "INVALID_TRANSACTION_TIMEOUT",
            f"transaction of {transactional_id!r}: found a timeout of {timeout_ms} ms, expected 1 to "
            f"{MAX_TIMEOUT_MS}",
            fix="set transaction.timeout.ms of the producer within these bounds",
        )


def plan_add_to_transaction(
    image: Image,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    *,
    partitions: Sequence[TopicPartition] = (),
    groups: Sequence[str] = (),
    now_ms: int,
) -> list[AddToTransaction]:
    """Add partitions (by topic id) and groups; open a transaction if none is open. Empty if it has them.

    Raises:
        UnknownTopicError: no such topic or partition.
        FencedError: PRODUCER_FENCED.
        InvalidRequestError: PRODUCER_UNMAPPED, TRANSACTION_TOO_LARGE.
        RetriableError: TRANSACTIONS_FULL.
    """
    known = validate_producer(image, transactional_id, producer_id, producer_epoch)
    has = known.partitions  # none, unless it is open
    new = [place for place in dict.fromkeys(partitions) if place not in has]
    for place in new:
        image.partition_of(*place)
    has_groups = known.groups
    new_groups = tuple(group for group in dict.fromkeys(groups) if group not in has_groups)
    if not new and not new_groups:
        return []
    _validate_room(known, len(has) + len(new), (*has_groups, *new_groups))
    weight = image.transactions.weight + _weight_of_new(known, new) + weight_of_groups(new_groups)
    if weight > MAX_ROOT_WEIGHT:
        raise full(f"open transactions of {weight} bytes, at most {MAX_ROOT_WEIGHT}")
    topics, topic, partition = named(new) if new else ((), 0, ())
    return [
        AddToTransaction(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            time_ms=image.no_earlier_ms(now_ms),
            topics=topics,
            topic=topic,
            partition=partition,
            groups=new_groups,
        )
    ]


def _weight_of_new(known: Transaction, new: Sequence[TopicPartition]) -> int:
    """Return the weight of partitions that the transaction does not have yet."""
    topics = {topic_id for topic_id, _ in new} - known.partitions.by_topic.keys()
    return PARTITION_WEIGHT * len(new) + TOPIC_WEIGHT * len(topics)


def _validate_room(known: Transaction, partitions: int, groups: Sequence[str]) -> None:
    if partitions > MAX_TRANSACTION_PARTITIONS:
        raise too_large(known, f"{partitions} partitions, at most {MAX_TRANSACTION_PARTITIONS}")
    characters = sum(map(len, groups))
    if len(groups) > MAX_TRANSACTION_GROUPS or characters > MAX_TRANSACTION_GROUP_CHARACTERS:
        raise too_large(
            known,
            f"{len(groups)} groups of {characters} characters, at most {MAX_TRANSACTION_GROUPS} of "
            f"{MAX_TRANSACTION_GROUP_CHARACTERS}",
        )


def plan_forget_transactions(image: Image, now_ms: int, expiration_ms: int) -> ForgetTransactions | None:
    """Forget the expired ids, at most MAX_FORGOTTEN_IDS; None if there are none. Reads each id."""
    unused = tuple(
        transactional_id
        for transactional_id, transaction in image.transactions.items()
        if not transaction.is_ongoing and now_ms - transaction.changed_ms >= expiration_ms
    )
    return ForgetTransactions(transactional_ids=unused[:MAX_FORGOTTEN_IDS]) if unused else None


def plan_forget_ids(image: Image, transactional_ids: Collection[str]) -> ForgetTransactions:
    """Forget these ids, for an administrator.

    Raises:
        InvalidRequestError: TRANSACTION_MISSING; TRANSACTION_STATE, one has a transaction that is open.
    """
    for name in transactional_ids:
        known = image.transactions.get(name)
        if known is None:
            raise InvalidRequestError(
                "TRANSACTION_MISSING",
                f"transactional id {name!r}: unknown",
                fix="`sparklog transactions list` shows those that are known",
            )
        if known.is_ongoing:
            raise wrong_state(
                known, "found it open, expected an id without an open transaction", fix="abort it before"
            )
    return ForgetTransactions(transactional_ids=tuple(dict.fromkeys(transactional_ids)))


# --- ending ------------------------------------------------------------------------------------------
#
# The end of a transaction: end_transaction, one small action however much is staged.
#
# Committed: all staged extents get their offsets, in each partition after its present end, in the order in
# which they were staged. Aborted: they are dropped. Either way the staged sequences stay known. Extents
# for a topic that was deleted in the meantime are gone with it.
#
# An end names the producer and its epoch. With the second protocol, at a timeout and by an administrator it
# also raises the epoch, so that nothing of the transaction can follow it. With the first protocol it does
# not: there it names the number of the transaction that was open when the request came in, so that a slow
# coordinator does not end the next one.
#
# A repeated request is answered with the decision (`Ended` without actions).
#
# Invariants: as of transaction_values.py; an end appends all that was staged, once.
# Not here: detecting timeouts (sparklog_server).
# Concurrency: pure functions.
# Sources: FORMAT.md#metadata-log; adr/0028, adr/0030; Kafka TransactionCoordinator.endTransaction, KIP-890.


MAX_TIMED_OUT_TRANSACTIONS = 1_000


class EndTransaction(ActionBase, tag="end_transaction", frozen=True, kw_only=True):
    """End the transaction of this producer.

    Fields:
        committed: false: it is aborted.
        number: of the transaction; -1: the open one.
        next_producer_id, next_producer_epoch: the producer from now on; -1: as before. An abort that raises
            the epoch applies although nothing is open.
        fences: it is not the producer's own end: no request of the old producer is answered with the new one.
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
        """True for an abort."""
        return not self.committed


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The result of an end; without actions it was decided already, and this is its answer.

    Fields:
        producer_id, producer_epoch: the producer from now on; the second protocol's answer.
        ranges: of a commit: the first offset and the number of offsets in each partition.
    """

    actions: Sequence[AllocateProducerIds | EndTransaction]
    producer_id: int
    producer_epoch: int
    ranges: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)


# --- effect ------------------------------------------------------------------------------------------


def end_transaction(draft: ImageDraft, action: EndTransaction) -> None:
    """Apply: append or drop what is staged; the producer is the next one, if the end names one."""
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
    else:  # the epoch before this one has ended nothing
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
    """End the open transaction at its producer's request; or return the answer to a repeated request.

    Args:
        second: the request is of the second protocol (EndTxn from version 5 on): the end raises the epoch,
            and an abort may have nothing to abort.
        number: first protocol: `number` of the transaction when the coordinator received the request, by an
            image that has all that the client has been answered before; -1: the open one.

    Raises:
        FencedError: PRODUCER_FENCED.
        InvalidRequestError: PRODUCER_UNMAPPED; TRANSACTION_STATE: nothing is open, or it ended the other way.
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
            fix="no action needed: that transaction has ended, and its client has the answer",
        )
    return _ended(image, known, committed=committed, now_ms=now_ms, number=known.number)


def _is_repetition(known: Transaction, producer_id: int, producer_epoch: int) -> bool:
    """True if a request of the second protocol names the producer of the transaction that ended last.

    False if that end was one of the first protocol, which raises no epoch. Then the epoch before is an
    older process's, which must not learn that its transaction was committed, or the present producer.
    """
    if known.phase not in (TransactionPhase.COMMITTED, TransactionPhase.ABORTED):
        return False
    if known.previous_producer_id == NO_ID:
        return False
    if known.producer_epoch == 0:
        return (producer_id, producer_epoch) == (known.previous_producer_id, LAST_PRODUCER_EPOCH)
    return (producer_id, producer_epoch) == (known.producer_id, known.producer_epoch - 1)


def _answered(known: Transaction, *, committed: bool) -> Ended:
    """Return the answer by the decision; TRANSACTION_STATE if there is none, or another one."""
    decided = TransactionPhase.COMMITTED if committed else TransactionPhase.ABORTED
    if known.phase is decided:
        return Ended(actions=(), producer_id=known.producer_id, producer_epoch=known.producer_epoch)
    raise _nothing_open(known)


def _nothing_open(known: Transaction) -> Exception:
    return wrong_state(
        known,
        "found the end of a transaction that is not open, or was decided the other way",
        fix="close this producer; the phase is the outcome of its last transaction",
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
    """Abort those that are open, and fence their producers: for administrators, and after a timeout.

    Empty if none is open.
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
    return [*allocation(image, [end.next_producer_id for end in ends]), *ends]


def timed_out(image: Image, now_ms: int) -> list[str]:
    """Return the ids of open transactions past their timeouts, at most MAX_TIMED_OUT_TRANSACTIONS."""
    late = (name for name, deadline_ms in image.transactions.deadlines.items() if deadline_ms <= now_ms)
    return list(islice(late, MAX_TIMED_OUT_TRANSACTIONS))
