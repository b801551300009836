"""What a transaction of Python asks of the metadata log, as plans: begin, stage, commit, abort, go on.

Each transaction has an epoch of its own (KIP-890): its end raises the epoch, whatever becomes of it. The
image says who had the one before, if that producer raised it itself; so a commit that was tried, and whose
outcome is not known, is found in the next image.

Invariants: a plan is pure; what it says besides its actions counts if they are published.
Not here: when they are asked for, and what is tried again (transaction.py); what may be done at all
    (metadata/model).
Concurrency: pure functions.
Sources: docs/adr/0028; Kafka TransactionManager; KIP-360, KIP-890.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from sparklog.client.writer_version import WriterVersion
from sparklog.errors import FencedError, InvalidRequestError, RetriableError, SparklogError
from sparklog.metadata import (
    LAST_PRODUCER_EPOCH,
    NO_PRODUCER_EPOCH,
    Action,
    Begun,
    DraftExtent,
    Image,
    Staging,
    Transaction,
    TransactionPhase,
    WriterTxn,
    apply_actions,
    is_internal,
    plan_add_to_transaction,
    plan_begin_producer,
    plan_end_transaction,
    plan_stage,
    plan_writer_txn,
    was_staged,
)

Producer = tuple[int, int]  # producer id, producer epoch


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose transaction it is.

    Fields:
        staged_extents: how many it has staged. More of them are those of a clone of its process.
        has_tried: to commit it, so that it may be committed.
    """

    transactional_id: str
    producer: Producer
    staged_extents: int = 0
    has_tried: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """What stages."""

    actions: Sequence[Action]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What an end amounts to.

    Fields:
        producer: who goes on.
        commit: that has it; None: nothing is committed.
        ranges: (topic id, partition) -> base offset, how many offsets; of what is committed.
        transaction: as it was when it was committed, with what it has staged.
        is_duplicate: it was aborted, since its version is in the log already.
        is_over: an attempt before this has committed it, as it had planned.
    """

    actions: Sequence[Action]
    producer: Producer
    commit: int | None = None
    ranges: Mapping[tuple[str, int], tuple[int, int]] = dataclasses.field(default_factory=dict)
    transaction: Transaction | None = None
    is_duplicate: bool = False
    is_over: bool = False


def plan_going_on(image: Image, owner: Owner, *, is_settled: bool, timeout_ms: int, now_ms: int) -> Begun:
    """Who may begin the next transaction; what is open still is aborted.

    Args:
        is_settled: it is known how the last one ended, and that the owner followed. Who has followed the
            owner then is a clone of its process.

    Raises:
        FencedError: PRODUCER_FENCED, another process has taken the id since.
    """
    name = owner.transactional_id
    known = image.transactions.get(name)
    if known is None:
        return plan_begin_producer(image, name, timeout_ms=timeout_ms, now_ms=now_ms)
    if known.is_of(*owner.producer) and known.is_ongoing:
        producer_id, producer_epoch = owner.producer
        return plan_begin_producer(
            image,
            name,
            timeout_ms=timeout_ms,
            now_ms=now_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )
    goes_on = known.is_of(*owner.producer) or _is_aborted_by_others(known, owner)
    if goes_on or (not is_settled and _has_followed(known, owner)):
        return Begun(actions=(), producer_id=known.producer_id, producer_epoch=known.producer_epoch)
    raise _lost(known, owner)


def plan_staging(
    image: Image,
    owner: Owner,
    drafts: Sequence[DraftExtent],
    groups: Sequence[str],
    *,
    now_ms: int,
    again: bool,
) -> Staged:
    """Stage these, and say whose offsets are among them.

    Args:
        again: an attempt before may have staged them.

    Raises: as `plan_commit`.
    """
    if again and was_staged(image, drafts[-1]):
        return Staged(actions=())
    _require_own(image, owner)
    actions: list[Action] = [plan_stage(image, [Staging(draft=draft, opens_ms=now_ms) for draft in drafts])]
    if groups:
        actions += plan_add_to_transaction(
            _after(image, actions), owner.transactional_id, *owner.producer, groups=groups, now_ms=now_ms
        )
    return Staged(actions=actions)


def plan_commit(
    image: Image, owner: Owner, drafts: Sequence[DraftExtent], version: WriterVersion | None, *, now_ms: int
) -> Ending:
    """Commit what is staged, and these, and the version that it is of: one commit.

    Raises:
        FencedError: PRODUCER_FENCED.
        RetriableError: TRANSACTION_ABORTED, by somebody else. STAGING_EXPIRED: write these drafts again.
        InvalidRequestError: VERSION_OUTDATED, a later version is in the log.
        UnknownTopicError: a topic of these drafts was deleted.
    """
    known = image.transactions.get(owner.transactional_id)
    if owner.has_tried and known is not None and _has_followed(known, owner):
        return Ending(
            actions=(),
            producer=(known.producer_id, known.producer_epoch),
            is_over=known.phase is TransactionPhase.COMMITTED,
            is_duplicate=known.phase is TransactionPhase.ABORTED,
        )
    known = _require_own(image, owner)
    planned, actions = image, list[Action]()
    if drafts:
        actions.append(plan_stage(image, [Staging(draft=draft, opens_ms=now_ms) for draft in drafts]))
        planned = _after(image, actions)
        known = planned.transactions[owner.transactional_id]
    if not known.is_ongoing:
        return Ending(actions=(), producer=owner.producer)
    if version is not None and known.staged_extents:
        marker = _plan_version(planned, known, version)
        if marker is None:
            return dataclasses.replace(plan_abort(image, owner, now_ms=now_ms), is_duplicate=True)
        actions.append(marker)
    ended = plan_end_transaction(
        planned, owner.transactional_id, *owner.producer, committed=True, second=True, now_ms=now_ms
    )
    return Ending(
        actions=(*actions, *ended.actions),
        producer=(ended.producer_id, ended.producer_epoch),
        commit=image.commit + 1,
        ranges=ended.ranges,
        transaction=known,
    )


def plan_abort(image: Image, owner: Owner, *, now_ms: int) -> Ending:
    """Drop what is staged; there is nothing to do if that is nothing, or no longer this producer's."""
    known = image.transactions.get(owner.transactional_id)
    if known is None or not known.is_of(*owner.producer) or not known.is_ongoing:
        return Ending(actions=(), producer=owner.producer)
    ended = plan_end_transaction(
        image, owner.transactional_id, *owner.producer, committed=False, second=True, now_ms=now_ms
    )
    return Ending(actions=ended.actions, producer=(ended.producer_id, ended.producer_epoch))


def _after(image: Image, actions: Sequence[Action]) -> Image:
    return apply_actions(image, actions, commit=image.commit + 1, commit_uuid="planned")


def _plan_version(image: Image, transaction: Transaction, version: WriterVersion) -> WriterTxn | None:
    """What notes the version for the topics of a transaction; None: one has it, so that all of it is there.

    Internal topics count only where there are no others.
    """
    staged = dict.fromkeys(topic_id for topic_id, _ in transaction.staged)
    topic_ids = [one for one in staged if not is_internal(image.topic_by_id[one].name)] or list(staged)
    found = [image.applied(version.application, version.version, one) for one in topic_ids]
    newest = max((one.version for one in found if one is not None), default=None)
    if newest is None:
        return plan_writer_txn(
            image, version.application, version.version, topic_ids, content=version.content
        )
    if newest == version.version:
        return None
    raise InvalidRequestError(
        "VERSION_OUTDATED",
        f"transactional id {version.application!r}: found version {version.version}, and version "
        f"{newest} is in the log already",
        fix="give each version a larger number than the one before. If it is a streaming query's batch id: "
        "its checkpoint is new, or an older copy; use another transactional id for a new one",
    )


# --- whose it is -------------------------------------------------------------------------------------


def _require_own(image: Image, owner: Owner) -> Transaction:
    """The transaction of this producer, which nobody has followed."""
    known = image.transactions.get(owner.transactional_id)
    is_own = known is not None and known.is_of(*owner.producer)
    if known is None or not is_own or known.staged_extents > owner.staged_extents:
        raise _lost(known, owner)
    return known


def _lost(known: Transaction | None, owner: Owner) -> SparklogError:
    """Why it is not this producer's any more."""
    name = owner.transactional_id
    if known is None:
        return RetriableError(
            "TRANSACTION_ABORTED",
            f"transactional id {name!r}: found none, it was not used for transactional.id.expiration.ms",
            fix="do the transaction again, from its `with` on",
        )
    if _is_aborted_by_others(known, owner):
        return RetriableError(
            "TRANSACTION_ABORTED",
            f"transactional id {name!r}: transaction {known.number} was aborted by a broker, since it took "
            f"longer than {known.timeout_ms} ms, or by an administrator",
            fix="do the transaction again, from its `with` on; give it a larger timeout_ms if it takes long",
        )
    producer_id, producer_epoch = owner.producer
    return FencedError(
        "PRODUCER_FENCED",
        f"transactional id {name!r}: found producer {producer_id} in epoch {producer_epoch}, expected "
        f"{known.producer_id} in epoch {known.producer_epoch}: another process has begun to use the id",
        fix="stop this process, or give each its own transactional id; nothing of this transaction was "
        "committed",
    )


def _is_aborted_by_others(known: Transaction, owner: Owner) -> bool:
    """Return True if somebody else aborted what was open, and nobody has taken the id since.

    It was this owner's: each of its transactions has an epoch of its own, and that was the one before.
    """
    return (
        known.phase is TransactionPhase.ABORTED
        and known.previous_producer_epoch == NO_PRODUCER_EPOCH
        and _is_next(known, owner.producer)
    )


def _has_followed(known: Transaction, owner: Owner) -> bool:
    """Is who has it now what this producer itself became, by an end or by going on?"""
    before = known.previous_producer_id, known.previous_producer_epoch
    return before == owner.producer and _is_next(known, owner.producer)


def _is_next(known: Transaction, producer: Producer) -> bool:
    producer_id, producer_epoch = producer
    if producer_epoch == LAST_PRODUCER_EPOCH:
        return known.previous_producer_id == producer_id and known.producer_epoch == 0
    return known.is_of(producer_id, producer_epoch + 1)
