"""A transaction of Python, without a broker: appends to any topics and offsets of groups, all or nothing.

    txn = log.transaction("totals")
    while ...:
        with txn:                                        # commits at its end, aborts on an exception
            done = log.committed_offsets("totals")       # after `with`: nobody else can commit from here on
            ...
            txn.append("totals", table)
            txn.commit_offsets("totals", {("orders", 0): end_offset})

Who enters first takes the transactional id: the process that had it before is fenced, and what it had open is
aborted. The object is used again for the next transaction, without taking the id again.

Rows are durable and staged at the latest with the commit, by the same metadata commit, so that a small
transaction costs one. What is large, or takes long, is staged before (STAGE_BYTES, STAGE_AFTER_MS); only then
others know that it is open.
Invariants: nothing is visible before the commit; after it all is, from one commit on. What cannot be
    committed is aborted, or its id is taken by somebody else; nobody is told that it is committed who did not
    do so (a fork, a clone of the machine).
Not here: gathering rows (appender.py), who aborts what takes too long (brokers, `sparklog transactions
    abort`).
Concurrency: one thread, or one after the other. Not to be used in a forked child.
After a crash: what was not committed never is; the next one to take the id aborts it.
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
# What a transaction of Python asks of the metadata log, as plans: begin, stage, commit, abort, go on.
#
# Each transaction has an epoch of its own (KIP-890): its end raises the epoch, whatever becomes of it. The
# image says who had the one before, if that producer raised it itself; so a commit that was tried, and whose
# outcome is not known, is found in the next image.
#
# Invariants: a plan is pure; what it says besides its actions counts if they are published.
# Not here: what may be done at all (metadata/model).
# Concurrency: pure functions.
# Sources: docs/adr/0028; Kafka TransactionManager; KIP-360, KIP-890.


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


# --- transaction steps -------------------------------------------------------------------------------
#
# Steps of a transaction: missing topics, plans whose outcome is not known at once, drafts that expire.
#
# Concurrency: any thread; nothing is kept here.


_ATTEMPTS = 3


class _Planned(Protocol):
    @property
    def actions(self) -> Sequence[Action]: ...


PlannedT = TypeVar("PlannedT", bound=_Planned)
ResultT = TypeVar("ResultT")


def create_topic(metadata: MetadataLog, topic: str) -> None:
    """Create a topic that is missing, if it may be; that is in no transaction, as in Kafka.

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
    """Publish what is planned, and return it.

    Args:
        plan: pure; told whether an attempt before may have been published. If it was, no actions.
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
    """Write rows, and publish where they are; once more if what was written is gone by then."""
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
    """Is it unknown whether a publish has happened?"""
    return isinstance(error, StorageError) and error.code == "PUBLISH_UNRESOLVED"


def result_of(ending: Ending, image: Image, now_ms: int) -> AppendResult:
    """Where everything is, by name."""
    topics = image.topic_by_id
    ranges = {
        (topics[topic_id].name, partition): AppendedRange(base_offset=base, record_count=count)
        for (topic_id, partition), (base, count) in ending.ranges.items()
        if topic_id in topics
    }
    expired: dict[str, int] = {}
    if ending.transaction is not None:
        staged = (one for extents in ending.transaction.staged.values() for one in extents)
        expired = past_retention(image, staged, now_ms)
    return AppendResult(
        commit=ending.commit, duplicate=ending.is_duplicate, ranges=ranges, past_retention=expired
    )


# --- transaction -------------------------------------------------------------------------------------


_log = logging.getLogger(__name__)
TopicPartition = tuple[str, int]
DEFAULT_TIMEOUT_MS = 60_000  # Kafka's transaction.timeout.ms
MIB = 1 << 20
# What is not staged yet is kept, to be written again if need be.
STAGE_BYTES = 32 * MIB
# What is older is staged, so that no sweep takes it, and others see that it is open.
STAGE_AFTER_MS = 10_000
_MAX_AGE_MS = 1000  # on a remote store: of what is known of topics when a transaction begins


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
        """`note`: told what is past its retention already, when it is committed."""
        self.transactional_id = transactional_id
        self.result: AppendResult | None = None  # of the last one that was committed
        self._metadata = metadata
        self._clock = clock
        self._new_appender = new_appender
        self._timeout_ms = timeout_ms
        self._version = version
        self._note = note
        self._pid = os.getpid()
        self._owner: Owner | None = None
        self._fenced: FencedError | None = None
        self._is_settled = False  # how the last one ended is known, and what follows it
        # Of the one that is open; rows None: there is none.
        self._rows: UnstagedRows | None = None
        self._groups: dict[str, None] = {}  # with offsets among these rows
        self._waits_since_ms = 0
        self._may_be_staged = False
        self._failure: BaseException | None = None

    def __repr__(self) -> str:
        return f"LogTransaction({self.transactional_id!r}, {'closed' if self._rows is None else 'open'})"

    # --- beginning and ending ----------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Begin a transaction; the first time, take the transactional id.

        Raises:
            FencedError: PRODUCER_FENCED, another process has taken it since.
            InvalidRequestError: INVALID_TRANSACTIONAL_ID, INVALID_TRANSACTION_TIMEOUT,
                TRANSACTION_STATE, one is open; TRANSACTION_FORKED.
            StorageError: none is begun.
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
        """Commit; abort if there is an exception. Raises as `commit`."""
        if self._rows is None:
            return  # it was ended by hand
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
        """Make all of it visible, in one metadata commit, and say where the records are.

        `with` does so at its end. After an error nothing is committed, unless it says otherwise.

        Raises:
            FencedError: PRODUCER_FENCED, another process has taken the id.
            RetriableError: TRANSACTION_ABORTED, by a broker since it took too long, or by an administrator:
                do it again.
            InvalidRequestError: VERSION_OUTDATED; TRANSACTION_STATE, an append before has failed.
            UnknownTopicError: a topic was deleted before its records were staged.
            StorageError: nothing is committed. PUBLISH_UNRESOLVED: that is not known.
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
        """Drop all of it. The end of `with` has nothing to commit then.

        Raises:
            StorageError: it may be open still; who takes the id next aborts it.
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
        """Append rows when it is committed; as `SparkLog.append` does, which says what rows are.

        Where they will be is known after the commit: `result`.

        Raises:
            InvalidRequestError, UnknownTopicError: as SparkLog.append; the transaction can only be aborted.
            StorageError: the same.
            FencedError, RetriableError: as `commit`, if it is time to stage.
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
        """Store the next offsets that `group` wants to read when it is committed; None deletes one.

        Of several for one partition the last one counts. Brokers do not check that a member of the group
        asks, as they would for one of Kafka's consumers.
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
        """Stage what there is by now: others see that the transaction is open, and nothing of what is in it.

        It is not needed. Raises: as `append`.
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
        """Take the transactional id, or find out who has it."""

        def plan(image: Image, _: bool) -> Begun:
            now_ms = self._clock.now_ms()
            if owner is not None:
                return plan_going_on(
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
        self._owner, self._is_settled = taken, True  # no interrupt comes between, as in `_close`

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
        """It is over; None: nobody knows how."""
        if self._rows is not None:
            self._rows.clear()
        owner = self._owned if ending is None else dataclasses.replace(self._owned, producer=ending.producer)
        self._rows, self._owner, self._is_settled = None, owner, ending is not None

    def _abort_quietly(self, *, is_unresolved: bool = False) -> None:
        """While another error is on its way."""
        if is_unresolved:
            self._close(None)
            return
        try:
            self.abort()
        except (SparklogError, OSError) as error:
            _log.warning("transaction of %r was not aborted: %s", self.transactional_id, error)

    def _note_fence(self, error: BaseException) -> None:
        """Another process has the id, and this one does not take it back."""
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
