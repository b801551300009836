"""Transactions without a broker: appends to any topics and offsets of groups, all or nothing.

    txn = log.transaction("totals")
    while ...:
        with txn:                                        # commits at its end, aborts on an exception
            done = log.committed_offsets("totals")       # inside `with`: older owners of the id are fenced
            ...
            txn.append("totals", table)
            txn.commit_offsets("totals", {("orders", 0): end_offset})

The first `with` acquires the transactional id: it fences the previous owner and aborts its open transaction.
Later transactions of the same object keep the id.

A small transaction costs one metadata commit, which stages and commits its rows. A large or long one stages
rows before (STAGE_BYTES, STAGE_AFTER_MS); from then on others can see that it is open.
Invariants: nothing is visible before the commit; all of it is visible from that commit on. A transaction
    that cannot be committed is aborted, unless another process has acquired its id. `commit` returns only to
    the process that committed, not to a fork of it or a clone of its machine.
Not here: buffering rows (appender.py), aborting transactions that time out (brokers, `sparklog transactions
    abort`).
Concurrency: one thread at a time. Not usable in a forked child.
After a crash: an uncommitted transaction stays uncommitted; the next owner of the id aborts it.
Sources: docs/adr/0028; Kafka KafkaProducer (initTransactions, sendOffsetsToTransaction), TransactionManager.
"""

import dataclasses
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeVar

import pyarrow as pa

from sparklog.client.appender import NewAppender, Sequencer, UnstagedRows
from sparklog.client.groups import offset_rows, validate_group, validate_offsets
from sparklog.client.publish import AppendedRange, AppendResult, WriterVersion
from sparklog.client.rows import validate_rows, with_partition
from sparklog.client.topic_plan import OFFSETS_TOPIC, TopicPlanner, refuse_internal
from sparklog.clock import Clock
from sparklog.errors import FencedError, InvalidRequestError, RetriableError, SparklogError, StorageError
from sparklog.failpoints import failpoint
from sparklog.log.past_retention import past_retention
from sparklog.metadata import (
    LAST_PRODUCER_EPOCH,
    NO_PRODUCER_EPOCH,
    Action,
    Begun,
    DraftExtent,
    Image,
    MetadataLog,
    Staging,
    Transaction,
    TransactionPhase,
    WriterTxn,
    apply_actions,
    is_internal,
    plan_add_to_transaction,
    plan_begin_producer,
    plan_create_topic,
    plan_end_transaction,
    plan_stage,
    plan_writer_txn,
    was_staged,
)

# --- transaction plans -------------------------------------------------------------------------------
#
# The metadata changes of a transaction, as plans: begin, continue, stage, commit, abort.
#
# Each transaction has an epoch of its own (KIP-890): a commit or an abort raises the epoch. The image has the
# previous producer and epoch if that producer raised it itself; so the next image shows the outcome of a
# commit whose answer was lost.
#
# Invariants: a plan is pure; its results are valid once its actions are published.
# Not here: the validation of actions (metadata/model).
# Concurrency: pure functions.
# Sources: docs/adr/0028; Kafka TransactionManager; KIP-360, KIP-890.


Producer = tuple[int, int]  # producer id, producer epoch


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The producer of a transaction.

    Fields:
        staged_extents: the number that it has staged. If the image has more, a clone of the process is
            active.
        has_tried: True if a commit was tried, and may have succeeded.
    """

    transactional_id: str
    producer: Producer
    staged_extents: int = 0
    has_tried: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """The actions that stage drafts."""

    actions: Sequence[Action]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The plan of a commit or an abort.

    Fields:
        producer: the producer id and epoch of the next transaction.
        commit: the metadata commit; None: nothing is committed.
        ranges: (topic id, partition) -> (base offset, number of offsets), of the committed records.
        transaction: the transaction before its end, with its staged extents.
        is_duplicate: True if it was aborted because its version is in the log already.
        is_over: True if an earlier attempt has committed it.
    """

    actions: Sequence[Action]
    producer: Producer
    commit: int | None = None
    ranges: Mapping[tuple[str, int], tuple[int, int]] = dataclasses.field(default_factory=dict)
    transaction: Transaction | None = None
    is_duplicate: bool = False
    is_over: bool = False


def plan_continue(image: Image, owner: Owner, *, is_settled: bool, timeout_ms: int, now_ms: int) -> Begun:
    """Plan the next transaction of this owner; abort its open one.

    Args:
        is_settled: True if the outcome of the last one is known and `owner` has its next epoch. A later epoch
            in the image is then that of a clone of the process.

    Raises:
        FencedError: PRODUCER_FENCED, another process has acquired the id.
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
    """Stage drafts, and add the groups whose offsets are among them.

    Args:
        again: True if an earlier attempt may have staged them.

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
    """Commit the staged extents, these drafts and the version, in one metadata commit.

    Raises:
        FencedError: PRODUCER_FENCED.
        RetriableError: TRANSACTION_ABORTED, by a broker or an administrator. STAGING_EXPIRED: write these
            drafts again.
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
    """Abort the transaction; no action if it is not open, or no longer this producer's."""
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
    """Return the action that records the version for the transaction's topics; None: it is a duplicate.

    The version is recorded for internal topics only if there are no others.
    """
    staged = dict.fromkeys(topic_id for topic_id, _ in transaction.staged)
    topic_ids = [id_ for id_ in staged if not is_internal(image.topic_by_id[id_].name)] or list(staged)
    found = [image.applied(version.application, version.version, id_) for id_ in topic_ids]
    newest = max((applied.version for applied in found if applied is not None), default=None)
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


# --- ownership ---------------------------------------------------------------------------------------


def _require_own(image: Image, owner: Owner) -> Transaction:
    """Return the transaction; raise if it is no longer this producer's."""
    known = image.transactions.get(owner.transactional_id)
    is_own = known is not None and known.is_of(*owner.producer)
    if known is None or not is_own or known.staged_extents > owner.staged_extents:
        raise _lost(known, owner)
    return known


def _lost(known: Transaction | None, owner: Owner) -> SparklogError:
    """Return the error for a transaction that is no longer this producer's."""
    name = owner.transactional_id
    if known is None:
        return RetriableError(
            "TRANSACTION_ABORTED",
            f"transactional id {name!r} expired: it was unused for transactional.id.expiration.ms",
            fix="repeat the transaction, beginning at its `with`",
        )
    if _is_aborted_by_others(known, owner):
        return RetriableError(
            "TRANSACTION_ABORTED",
            f"transactional id {name!r}: transaction {known.number} was aborted by a broker, since it took "
            f"longer than {known.timeout_ms} ms, or by an administrator",
            fix="repeat the transaction, beginning at its `with`; raise timeout_ms if it takes long",
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
    """Return True if this owner's transaction was aborted by others, and the id has no newer owner.

    Each transaction has its own epoch: the aborted one had this owner's, which is the previous epoch.
    """
    return (
        known.phase is TransactionPhase.ABORTED
        and known.previous_producer_epoch == NO_PRODUCER_EPOCH
        and _is_next(known, owner.producer)
    )


def _has_followed(known: Transaction, owner: Owner) -> bool:
    """Return True if this producer itself raised the epoch, by an end or by continuing."""
    before = known.previous_producer_id, known.previous_producer_epoch
    return before == owner.producer and _is_next(known, owner.producer)


def _is_next(known: Transaction, producer: Producer) -> bool:
    producer_id, producer_epoch = producer
    if producer_epoch == LAST_PRODUCER_EPOCH:
        return known.previous_producer_id == producer_id and known.producer_epoch == 0
    return known.is_of(producer_id, producer_epoch + 1)


# --- transaction steps -------------------------------------------------------------------------------
#
# Steps of a transaction: missing topics, publishes with an unresolved outcome, drafts that expire.
#
# Concurrency: any thread; stateless.


_ATTEMPTS = 3


class _Planned(Protocol):
    @property
    def actions(self) -> Sequence[Action]: ...


PlannedT = TypeVar("PlannedT", bound=_Planned)
ResultT = TypeVar("ResultT")


def create_topic(metadata: MetadataLog, topic: str) -> None:
    """Create a missing topic, outside of the transaction, as in Kafka.

    Raises:
        UnknownTopicError: auto.create.topics.enable is false.
    """
    target = TopicPlanner(metadata.image).target(topic, state=topic == OFFSETS_TOPIC)
    configs = {} if target.planned is None else dict(target.planned.configs)

    def plan(image: Image) -> list[Action]:
        if topic in image.topics:
            return []
        return [plan_create_topic(image, topic, target.partitions, topic_id=target.topic_id, configs=configs)]

    metadata.publish(plan)


def publish_planned(metadata: MetadataLog, plan: Callable[[Image, bool], PlannedT]) -> PlannedT:
    """Publish a plan's actions, and return the plan's result.

    Args:
        plan: pure; its second argument is True if an earlier attempt may have been published. It returns no
            actions if it was.
    """
    for attempt in range(_ATTEMPTS):
        planned: list[PlannedT] = []

        def actions(
            image: Image, *, again: bool = attempt > 0, to: list[PlannedT] = planned
        ) -> Sequence[Action]:
            to[:] = [plan(image, again)]
            return to[0].actions

        try:
            metadata.publish(actions)
        except StorageError as error:
            if not is_unresolved(error):
                raise
            unresolved = error
        else:
            return planned[0]
    raise unresolved


def publish_drafts(
    metadata: MetadataLog, rows: UnstagedRows, publish: Callable[[Sequence[DraftExtent]], ResultT]
) -> ResultT:
    """Write rows and publish their drafts; write them again if a sweep has removed the segment."""
    for attempt in range(_ATTEMPTS):
        try:
            if attempt:
                metadata.refresh(force=True)
                rows.write_again()
            return publish(rows.finish())
        except RetriableError as error:
            if error.code != "STAGING_EXPIRED":
                raise
            expired = error
    raise expired


def is_unresolved(error: BaseException) -> bool:
    """Return True if the outcome of a publish is unknown."""
    return isinstance(error, StorageError) and error.code == "PUBLISH_UNRESOLVED"


def result_of(ending: Ending, image: Image, now_ms: int) -> AppendResult:
    """Return the result of a commit, by topic name."""
    topics = image.topic_by_id
    ranges = {
        (topics[topic_id].name, partition): AppendedRange(base_offset=base, record_count=count)
        for (topic_id, partition), (base, count) in ending.ranges.items()
        if topic_id in topics
    }
    expired: dict[str, int] = {}
    if ending.transaction is not None:
        staged = (extent for extents in ending.transaction.staged.values() for extent in extents)
        expired = past_retention(image, staged, now_ms)
    return AppendResult(
        commit=ending.commit, duplicate=ending.is_duplicate, ranges=ranges, past_retention=expired
    )


# --- transaction -------------------------------------------------------------------------------------


_log = logging.getLogger(__name__)
TopicPartition = tuple[str, int]
DEFAULT_TIMEOUT_MS = 60_000  # Kafka's transaction.timeout.ms
MIB = 1 << 20
# Unstaged rows stay in memory, to be written again if need be.
STAGE_BYTES = 32 * MIB
# Older rows are staged: a sweep then keeps them, and others see that the transaction is open.
STAGE_AFTER_MS = 10_000
_MAX_AGE_MS = 1000  # on a remote store: the image's age at the begin of a transaction


class LogTransaction:
    """See the module's docstring."""

    def __init__(
        self,
        metadata: MetadataLog,
        clock: Clock,
        new_appender: NewAppender,
        transactional_id: str,
        *,
        timeout_ms: int,
        version: WriterVersion | None,
        note: Callable[[Mapping[str, int]], None],
    ) -> None:
        """`note` is called after a commit, with the topics whose records are past their retention."""
        self.transactional_id = transactional_id
        self.result: AppendResult | None = None  # of the last commit
        self._metadata = metadata
        self._clock = clock
        self._new_appender = new_appender
        self._timeout_ms = timeout_ms
        self._version = version
        self._note = note
        self._pid = os.getpid()
        self._owner: Owner | None = None
        self._fenced: FencedError | None = None
        self._is_settled = False  # as in `plan_continue`
        # Of the open transaction; rows None: none is open.
        self._rows: UnstagedRows | None = None
        self._groups: dict[str, None] = {}  # those with offsets among these rows
        self._waits_since_ms = 0
        self._may_be_staged = False
        self._failure: BaseException | None = None

    def __repr__(self) -> str:
        return f"LogTransaction({self.transactional_id!r}, {'closed' if self._rows is None else 'open'})"

    # --- beginning and ending ----------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Begin a transaction; the first call acquires the transactional id.

        Raises:
            FencedError: PRODUCER_FENCED, another process has acquired the id.
            InvalidRequestError: INVALID_TRANSACTIONAL_ID, INVALID_TRANSACTION_TIMEOUT,
                TRANSACTION_STATE, a transaction is open; TRANSACTION_FORKED.
            StorageError: no transaction was begun.
        """
        self._require_same_process()
        if self._rows is not None:
            raise self._wrong_state("found a transaction open", "end it before the next one begins")
        if self._fenced is not None:
            raise self._fenced.with_traceback(None)
        image = self._metadata.refresh(max_age_ms=_MAX_AGE_MS)
        owner = self._owner
        if owner is None or not self._is_settled or not _has(image, owner):
            self._take(owner)
        producer_id, producer_epoch = producer = self._owned.producer
        self._owner = Owner(transactional_id=self.transactional_id, producer=producer)
        sequencer = Sequencer(producer_id=producer_id, producer_epoch=producer_epoch)
        rows = UnstagedRows(self._new_appender, sequencer)
        self._groups.clear()
        self._may_be_staged, self._failure, self.result = False, None, None
        self._rows = rows  # last: no interrupt comes between this and the body of `with`
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Commit, or abort after an exception. Raises as `commit`."""
        if self._rows is None:
            return  # the block called `commit` or `abort`
        try:
            if error is None:
                self.commit()
            elif self._pid == os.getpid():
                self._abort_quietly()
        except BaseException:  # an interrupt, before one of them has begun, or after it
            if self._rows is not None and self._pid == os.getpid():
                self._abort_quietly()
            raise

    def commit(self) -> AppendResult:
        """Make the transaction visible, in one metadata commit; return the ranges of its records.

        The end of `with` calls it. After an error nothing is committed, except PUBLISH_UNRESOLVED.

        Raises:
            FencedError: PRODUCER_FENCED, another process has acquired the id.
            RetriableError: TRANSACTION_ABORTED, by a broker after its timeout or by an administrator; repeat
                it.
            InvalidRequestError: VERSION_OUTDATED; TRANSACTION_STATE, an earlier append failed.
            UnknownTopicError: a topic was deleted before its records were staged.
            StorageError: nothing is committed. PUBLISH_UNRESOLVED: the outcome is unknown.
        """
        rows = self._require_open()
        try:
            ending = self._commit(rows)
        except BaseException as error:
            self._note_fence(error)
            self._abort_quietly(is_unresolved=is_unresolved(error))
            raise
        self._close(ending)
        self.result = result = result_of(ending, self._metadata.image, self._clock.now_ms())
        self._note(result.past_retention)
        return result

    def abort(self) -> None:
        """Abort the transaction. The end of `with` does nothing then.

        Raises:
            StorageError: it may still be open; the next owner of the id aborts it.
        """
        self._require_open()
        owner = self._owned
        if not self._may_be_staged:
            self._close(Ending(actions=(), producer=owner.producer))
            return
        self._close(None)
        ending = publish_planned(
            self._metadata, lambda image, _: plan_abort(image, owner, now_ms=self._clock.now_ms())
        )
        if ending.actions:
            self._close(ending)

    # --- within ------------------------------------------------------------------------------------------

    def append(self, topic: str, rows: pa.Table | pa.RecordBatch, *, partition: int | None = None) -> None:
        """Append rows as part of the transaction; `rows` are as for `SparkLog.append`.

        Their offsets are known after the commit: `result`.

        Raises:
            InvalidRequestError, UnknownTopicError: as SparkLog.append; the transaction can only be aborted.
            StorageError: likewise.
            FencedError, RetriableError: as `commit`, if rows are staged.
        """
        self._require_open()
        refuse_internal(topic)
        validate_rows(rows)
        if partition is not None:
            rows = with_partition(rows, partition)
        self._take_in(topic, lambda: rows)

    def commit_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int | None], *, metadata: str = ""
    ) -> None:
        """Commit the group's next offsets with the transaction; None deletes an offset.

        The last offset of a partition counts. There is no check that the caller is a member of the group,
        as brokers do for Kafka's consumers.
        """
        self._require_open()
        validate_group(group)
        validate_offsets(offsets, metadata)
        if not offsets:
            return
        self._groups[group] = None
        now_ms = self._clock.now_ms()

        def rows() -> pa.RecordBatch:
            partitions = len(self._metadata.image.topic(OFFSETS_TOPIC).partitions)
            return offset_rows(group, offsets, partitions, metadata=metadata, now_ms=now_ms)

        self._take_in(OFFSETS_TOPIC, rows)

    def flush(self) -> None:
        """Stage the rows so far: others see that the transaction is open, but none of its rows.

        Optional. Raises: as `append`.
        """
        rows = self._require_open()
        try:
            self._stage(rows)
        except BaseException as error:
            self._note_fence(error)
            self._failure = error
            raise

    def _take_in(self, topic: str, make_rows: Callable[[], pa.Table | pa.RecordBatch]) -> None:
        rows = self._require_open()
        try:
            if topic not in self._metadata.image.topics:
                create_topic(self._metadata, topic)
            rows.expect(self._metadata.image.topic(topic))
            if not rows.held_bytes:
                self._waits_since_ms = self._clock.monotonic_ms()
            rows.append(topic, make_rows())
            waited_ms = self._clock.monotonic_ms() - self._waits_since_ms
            if rows.held_bytes > STAGE_BYTES or waited_ms > STAGE_AFTER_MS:
                self._stage(rows)
        except BaseException as error:
            self._note_fence(error)
            self._failure = error
            raise

    # --- what is published -------------------------------------------------------------------------------

    def _take(self, owner: Owner | None) -> None:
        """Acquire the transactional id, or continue with it."""

        def plan(image: Image, _: bool) -> Begun:
            now_ms = self._clock.now_ms()
            if owner is not None:
                return plan_continue(
                    image, owner, is_settled=self._is_settled, timeout_ms=self._timeout_ms, now_ms=now_ms
                )
            return plan_begin_producer(
                image, self.transactional_id, timeout_ms=self._timeout_ms, now_ms=now_ms
            )

        try:
            begun = publish_planned(self._metadata, plan)
        except FencedError as error:
            self._note_fence(error)
            raise
        failpoint("transaction.begun")
        producer = begun.producer_id, begun.producer_epoch
        taken = Owner(transactional_id=self.transactional_id, producer=producer)
        self._owner, self._is_settled = taken, True  # one statement: no interrupt between, as in `_close`

    def _stage(self, rows: UnstagedRows) -> None:
        if not rows.held_bytes:
            return
        groups = tuple(self._groups)

        def stage(drafts: Sequence[DraftExtent]) -> Staged:
            self._may_be_staged = True
            return publish_planned(
                self._metadata,
                lambda image, again: plan_staging(
                    image, self._owned, drafts, groups, now_ms=self._clock.now_ms(), again=again
                ),
            )

        publish_drafts(self._metadata, rows, stage)
        extents = self._owned.staged_extents + len(rows.finish())
        self._owner = dataclasses.replace(self._owned, staged_extents=extents)
        rows.staged()
        self._groups.clear()
        failpoint("transaction.staged")

    def _commit(self, rows: UnstagedRows) -> Ending:
        if self._failure is not None:
            raise self._wrong_state("found an append that failed", "abort it") from self._failure

        def end(drafts: Sequence[DraftExtent]) -> Ending:
            planned: list[Ending] = []
            self._may_be_staged = self._may_be_staged or bool(drafts)

            def plan(image: Image, again: bool) -> Ending:
                owner = dataclasses.replace(self._owned, has_tried=again)
                ending = plan_commit(image, owner, drafts, self._version, now_ms=self._clock.now_ms())
                if not ending.is_over:
                    planned.append(ending)
                return ending

            ending = publish_planned(self._metadata, plan)
            return dataclasses.replace(planned[-1], producer=ending.producer) if ending.is_over else ending

        ending = publish_drafts(self._metadata, rows, end)
        failpoint("transaction.committed")
        return ending

    # --- its state ---------------------------------------------------------------------------------------

    @property
    def _owned(self) -> Owner:
        assert self._owner is not None, "it was entered"
        return self._owner

    def _close(self, ending: Ending | None) -> None:
        """End the transaction; None: its outcome is unknown."""
        if self._rows is not None:
            self._rows.clear()
        owner = self._owned if ending is None else dataclasses.replace(self._owned, producer=ending.producer)
        self._rows, self._owner, self._is_settled = None, owner, ending is not None

    def _abort_quietly(self, *, is_unresolved: bool = False) -> None:
        """Abort while another error is being raised; log a failure."""
        if is_unresolved:
            self._close(None)
            return
        try:
            self.abort()
        except (SparklogError, OSError) as error:
            _log.warning("transaction of %r was not aborted: %s", self.transactional_id, error)

    def _note_fence(self, error: BaseException) -> None:
        """Remember that another process has the id: this object does not acquire it again."""
        if isinstance(error, FencedError) and error.code == "PRODUCER_FENCED":
            self._fenced = error

    def _require_open(self) -> UnstagedRows:
        self._require_same_process()
        if self._rows is None:
            raise self._wrong_state("found none open", "use it within `with`")
        return self._rows

    def _require_same_process(self) -> None:
        if self._pid != os.getpid():
            raise InvalidRequestError(
                "TRANSACTION_FORKED",
                f"transactional id {self.transactional_id!r}: found process {os.getpid()}, expected "
                f"{self._pid}, of which it was forked",
                fix="make a transaction in the child, under a transactional id of its own",
            )

    def _wrong_state(self, found: str, fix: str) -> InvalidRequestError:
        return InvalidRequestError(
            "TRANSACTION_STATE", f"transactional id {self.transactional_id!r}: {found}", fix=fix
        )


def _has(image: Image, owner: Owner) -> bool:
    known = image.transactions.get(owner.transactional_id)
    return known is not None and known.is_of(*owner.producer)
