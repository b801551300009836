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
Not here: the plans (transaction_plans.py), gathering rows (unstaged_rows.py), who aborts what takes too long
    (brokers, `sparklog transactions abort`).
Concurrency: one thread, or one after the other. Not to be used in a forked child.
After a crash: what was not committed never is; the next one to take the id aborts it.
Sources: docs/adr/0028; Kafka KafkaProducer (initTransactions, sendOffsetsToTransaction), TransactionManager.
"""

import dataclasses
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

import pyarrow as pa

from sparklog.client.groups import offset_rows, validate_group, validate_offsets
from sparklog.client.offsets_topic import OFFSETS_TOPIC
from sparklog.client.publish import AppendResult
from sparklog.client.rows import validate_rows, with_partition
from sparklog.client.sequencer import Sequencer
from sparklog.client.topic_plan import refuse_internal
from sparklog.client.transaction_plans import (
    Ending,
    Owner,
    Staged,
    plan_abort,
    plan_commit,
    plan_going_on,
    plan_staging,
)
from sparklog.client.transaction_steps import (
    create_topic,
    is_unresolved,
    publish_drafts,
    publish_planned,
    result_of,
)
from sparklog.client.unstaged_rows import NewAppender, UnstagedRows
from sparklog.client.writer_version import WriterVersion
from sparklog.clock import Clock
from sparklog.errors import FencedError, InvalidRequestError, SparklogError
from sparklog.failpoints import failpoint
from sparklog.metadata import Begun, DraftExtent, Image, MetadataLog, plan_begin_producer

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
