"""Appends rows: groups them by partition, encodes and writes them, within a memory budget.

    appender = PartitionedAppender(image, writer, clock, options)
    appender.add(arrow_batch, topic="events")      # as often as needed
    staged = appender.finish()                     # durable now, not visible yet
    publish(metadata, [staged], txn=(application, version))

Invariants: rows of a partition keep the order in which they were added; nothing is returned before it is
    durable; after an error only `abort` is allowed.
Memory: buffered rows point into the caller's batches and keep whole batches alive. So the limit counts the
    bytes of batches: above `buffer_bytes` all rows are written. Encoding takes memory on top of that, for
    one large partition or several small ones (waiting_rows.py).
Extents: each flush of the buffer writes one for each partition that has rows. Once there are many, later
    batches go to a spool on the local disk, and `finish` writes them by partition (waiting_rows.py).
Not here: visibility (publish.py).
Concurrency: one thread; the LogWriter may be shared.
Sources: docs/design.md; Kafka RecordAccumulator.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.client.rows import Piece, Rows, normalise_rows, validate_keys, validate_timestamps
from sparklog.client.topic_plan import PlannedTopic, TopicPlanner, TopicTarget
from sparklog.client.waiting_rows import (
    PartitionRows,
    PartitionSpool,
    StickyPartitioner,
    WaitingRows,
    group_rows,
    partition_rows,
)
from sparklog.clock import Clock
from sparklog.errors import InvalidRequestError
from sparklog.failpoints import failpoint
from sparklog.format.codec import Codec
from sparklog.format.encode import EncodedBatches, EncodeOptions, encode_batches
from sparklog.format.encode_partitions import EncodedPartitions, encode_partitions
from sparklog.format.record_batch import NO_SEQUENCE
from sparklog.format.schema import RecordColumns, TimestampType, value_bytes
from sparklog.log.config import TimestampMode
from sparklog.log.writer import LogWriter
from sparklog.metadata import SEQUENCES, DraftExtent, Image, Topic, is_internal

# --- sequencer ---------------------------------------------------------------------------------------
#
# Sequence numbers of a producer's records: a batch that is staged twice counts once.
#
# Invariants: in each partition they count from 0, without gaps, in the order in which batches are written.
# Not here: producer ids and epochs, and the check of sequences (metadata).
# Concurrency: one thread.
# Sources: FORMAT.md#record-batch; Kafka TransactionManager; KIP-890: each transaction begins with 0.


TopicPartition = tuple[str, int]  # topic id, partition


@dataclasses.dataclass(slots=True, kw_only=True)
class Sequencer:
    """A transactional producer in one epoch, and the next sequence of each partition."""

    producer_id: int
    producer_epoch: int
    next_sequence: dict[TopicPartition, int] = dataclasses.field(default_factory=dict)

    def following(self, topic_id: str, partition: int) -> int:
        """Return the sequence of the partition's next record."""
        return self.next_sequence.get((topic_id, partition), 0)

    def options(self, options: EncodeOptions, base_sequence: int) -> EncodeOptions:
        """Return `options` with this producer's fields, for transactional batches."""
        return dataclasses.replace(
            options,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=base_sequence,
            is_transactional=True,
        )

    def written(self, draft: DraftExtent, extends: DraftExtent | None = None) -> DraftExtent:
        """Return the draft with this producer's fields, and advance the partition's next sequence.

        Args:
            extends: the draft that `draft` replaces; it includes its records.
        """
        place = draft.topic_id, draft.partition
        before = 0 if extends is None else extends.record_count
        sequence = self.following(*place)
        self.next_sequence[place] = (sequence + draft.record_count - before) % SEQUENCES
        return msgspec.structs.replace(
            draft,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=sequence if extends is None else extends.base_sequence,
        )

    def go_back(self, next_sequence: Mapping[TopicPartition, int]) -> None:
        """Reset the next sequences, to write the same batches again."""
        self.next_sequence = dict(next_sequence)


# --- appender ----------------------------------------------------------------------------------------


MIB = 1 << 20
CHUNK_BYTES = 4 * MIB  # a table is processed in slices of about this size
MAX_EXTENT_RECORDS = (1 << 31) - 1
# With more extents, an appender spools batches. Larger: fewer bytes are written twice; smaller: more tasks
# fit into a commit, which has room for 1,024 times as many extents.
SCATTERED_EXTENTS = 256


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AppendOptions:
    """Options of an appender.

    Fields:
        compression: used if the topic's compression.type is producer.
        batch_bytes: larger: better compression, faster writes; smaller: fewer bytes to read for one record.
        max_record_bytes: None: the topic's max.message.bytes, which it can only lower.
        flush_messages, flush_ms: limits between syncs, besides the sync before publishing; None: the
            topic's.
        auto_create_topics: None: the root's setting.
        num_partitions, topic_configs: of topics that are created; None: the root's num.partitions.
    """

    compression: str = "none"
    buffer_bytes: int = 32 * MIB
    partition_bytes: int = 4 * MIB
    batch_bytes: int = 256 * 1024
    max_record_bytes: int | None = None
    flush_messages: int | None = None
    flush_ms: int | None = None
    auto_create_topics: bool | None = None
    num_partitions: int | None = None
    topic_configs: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StagedAppend:
    """Durable extents that are not visible yet, in order, and the topics they need. Picklable."""

    drafts: tuple[DraftExtent, ...] = ()
    planned: tuple[PlannedTopic, ...] = ()

    @property
    def record_count(self) -> int:
        """The number of records in all drafts."""
        return sum(int(draft.record_count) for draft in self.drafts)


@dataclasses.dataclass(frozen=True, slots=True)
class _Waiting:
    target: TopicTarget
    rows: WaitingRows


class PartitionedAppender:
    """Appends rows of any topics and partitions through one LogWriter."""

    def __init__(
        self,
        image: Image,
        writer: LogWriter,
        clock: Clock,
        options: AppendOptions | None = None,
        *,
        sticky_turn: int = 0,
        sequencer: Sequencer | None = None,
    ) -> None:
        """Write to topics as they are in `image`.

        Args:
            sticky_turn: the first partition for rows without a key, modulo the partitions; tasks use
                different numbers.
            sequencer: the sequencer of the rows' transaction; None: no transaction.
        """
        self._sequencer = sequencer
        self._writer = writer
        self._clock = clock
        self._options = options or AppendOptions()
        self._codec = Codec.from_name(self._options.compression)
        self.topics = TopicPlanner(
            image,
            auto_create=self._options.auto_create_topics,
            num_partitions=self._options.num_partitions,
            configs=self._options.topic_configs,
            overrides=_config_overrides(self._options),
        )
        self._sticky_turn = sticky_turn
        self._sticky: dict[str, StickyPartitioner] = {}
        self._waiting: dict[str, _Waiting] = {}  # by topic id
        self._drafts: dict[tuple[str, int], list[DraftExtent]] = {}
        self._spool: PartitionSpool | None = None  # for later batches, once there are many extents
        self._held_bytes = 0  # of the caller's batches that buffered rows may point into
        self._usable = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    def add(self, rows: pa.RecordBatch | pa.Table, topic: str | None = None, *, state: bool = False) -> None:
        """Buffer rows, and write the buffer if it is full.

        Args:
            rows: columns as rows.py describes.
            topic: the topic of all rows; None: the topic column has it.
            state: the rows are state of groups, for an internal topic.

        Raises:
            InvalidRequestError: an invalid column, topic, partition, timestamp or record.
            UnknownTopicError: the topic does not exist, and may not be created.
            StorageError: storage is full or failed.
        """
        assert self._usable, "the appender has finished, failed or been aborted"
        self._usable = False
        for arrow_batch, size_bytes in _arrow_batches(rows):
            normalised = normalise_rows(arrow_batch)
            self._held_bytes += size_bytes
            for name, part in _split_by_topic(normalised, topic):
                self._add_to_topic(self.topics.target(name, state=state), part)
            if self._held_bytes > self._options.buffer_bytes:
                self._spool = self._spool or self._new_spool()
                self._flush_all()
        self._usable = True

    def finish(self) -> StagedAppend:
        """Write the buffer and make all rows durable; return the drafts, ready to publish."""
        assert self._usable, "the appender has finished, failed or been aborted"
        self._usable = False
        self._flush_all()
        self._write_spooled()
        drafts = tuple(draft for drafts in self._drafts.values() for draft in drafts)
        if drafts:
            self._writer.sync(drafts)
        if self._spool is not None:
            self._spool.close()
        failpoint("task.staged")
        return StagedAppend(drafts=drafts, planned=self.topics.planned() if drafts else ())

    @property
    def waiting(self) -> list[Piece]:
        """The buffered rows that are not written yet, in the order of `add`."""
        return [piece for waiting in self._waiting.values() for piece in waiting.rows.pieces]

    def abort(self) -> None:
        """Drop the buffer and the drafts. Batches in the segment stay, unreferenced."""
        self._usable = False
        self._waiting.clear()
        self._drafts.clear()
        self._held_bytes = 0
        if self._spool is not None:
            self._spool.close()

    def _add_to_topic(self, target: TopicTarget, rows: Rows) -> None:
        now_ms = self._clock.now_ms()
        timestamp_ms = rows.timestamp_ms
        if target.config.message_timestamp_type == TimestampMode.LOG_APPEND_TIME:
            timestamp_ms = np.full(rows.num_rows, now_ms, np.int64)
        elif (timestamp_ms < 0).any():
            timestamp_ms = np.where(timestamp_ms < 0, now_ms, timestamp_ms)
        validate_timestamps(timestamp_ms, target.config, now_ms)
        validate_keys(rows.key, rows.num_rows, target.config)
        piece = Piece.of(rows, timestamp_ms)
        sticky = self._sticky.setdefault(target.name, StickyPartitioner(turn=self._sticky_turn))
        partition = partition_rows(
            rows.key,
            rows.partition,
            target.partitions,
            sticky,
            topic=target.name,
            rows=rows.num_rows,
            row_bytes=piece.data_bytes / max(1, rows.num_rows),
        )
        target.keyed = target.keyed or (rows.key is not None and rows.key.null_count < rows.num_rows)
        waiting = self._waiting.get(target.topic_id)
        if waiting is None:
            waiting = _Waiting(target, WaitingRows(target.partitions))
            self._waiting[target.topic_id] = waiting
        self._held_bytes += waiting.rows.add(piece, partition)
        for number in waiting.rows.at_least(self._options.partition_bytes):
            self._flush(target, number, waiting.rows.take(number))

    def _flush_all(self) -> None:
        for waiting in self._waiting.values():
            for part in waiting.rows.take_all():
                if not self._flush_together(waiting.target, part):
                    for number, piece in part.split():
                        self._flush(waiting.target, number, piece)
        self._held_bytes = 0

    def _flush_together(self, target: TopicTarget, part: PartitionRows) -> bool:
        """Encode and append the rows of several partitions in one call, as an extent each.

        Return False if each partition has to be written by itself.
        """
        if len(part.partition) == 1:
            return False
        sequences = {self._sequence(target, partition) for partition in part.partition.tolist()}
        if len(sequences) > 1:
            return False  # all partitions are encoded with the same sequence
        options = self._encode_options(target, sequences.pop())
        try:
            encoded = encode_partitions(_columns(part.piece), part.rows, options)
        except InvalidRequestError:
            return False  # encoding by partition raises the same error with the partition's name
        if encoded is None:
            return False
        if self._is_spooled(target, part.partition.tolist(), encoded):
            return True
        for draft in self._writer.append_partitions(
            target.topic_id, part.partition.tolist(), encoded, target.config, lane=self._lane(target)
        ):
            self._drafts.setdefault((target.topic_id, draft.partition), []).append(self._sequenced(draft))
        return True

    def _flush(self, target: TopicTarget, partition: int, piece: Piece) -> None:
        columns = _columns(piece)

        def encoded(base_offset: int) -> EncodedBatches:
            return self._encoded(target, partition, columns, base_offset)

        if self._spool is not None:
            whole = encoded(0)
            alone = EncodedPartitions(batches=whole, first_batch=np.array([0, whole.batch_count]))
            if self._is_spooled(target, [partition], alone):
                return
        self._append(target, partition, columns.num_rows, encoded)

    def _append(
        self, target: TopicTarget, partition: int, records: int, encoded: Callable[[int], EncodedBatches]
    ) -> None:
        """Append batches; extend the partition's last extent where possible.

        Args:
            encoded: returns the batches, given their base offset within the extent.
        """
        drafts = self._drafts.setdefault((target.topic_id, partition), [])
        last = drafts[-1] if drafts else None
        fits = last is not None and last.record_count + records <= MAX_EXTENT_RECORDS
        if last is not None and fits and self._writer.is_end(last):
            longer = self._written(target, partition, encoded(last.record_count), last)
            if longer is not None:
                drafts[-1] = longer
                return
        draft = self._written(target, partition, encoded(0), None)
        assert draft is not None, "only an extension can be refused"
        drafts.append(draft)

    def _written(
        self, target: TopicTarget, partition: int, encoded: EncodedBatches, extends: DraftExtent | None
    ) -> DraftExtent | None:
        draft = self._writer.append(
            target.topic_id, partition, encoded, target.config, extends=extends, lane=self._lane(target)
        )
        return None if draft is None else self._sequenced(draft, extends)

    def _encoded(
        self, target: TopicTarget, partition: int, columns: RecordColumns, base_offset: int
    ) -> EncodedBatches:
        options = self._encode_options(target, self._sequence(target, partition))
        try:
            return encode_batches(columns, options, base_offset=base_offset)
        except InvalidRequestError as error:
            where = f"{target.name}-{partition}, among the rows of this partition not yet written"
            raise InvalidRequestError(error.code, f"{where}: {error.message}", fix=error.fix) from error

    def _new_spool(self) -> PartitionSpool | None:
        """Return a spool if there would be many extents; never in a transaction: its extents are batches."""
        extents = sum(map(len, self._drafts.values()))
        extents += sum(waiting.rows.partitions for waiting in self._waiting.values())
        return PartitionSpool() if self._sequencer is None and extents > SCATTERED_EXTENTS else None

    def _is_spooled(self, target: TopicTarget, partitions: list[int], encoded: EncodedPartitions) -> bool:
        """Return True if the batches were spooled. A full spool is written first."""
        if self._spool is None:
            return False
        if self._spool.add(target.topic_id, partitions, encoded):
            return True
        self._write_spooled()
        return self._spool.add(target.topic_id, partitions, encoded)

    def _write_spooled(self) -> None:
        """Append the spooled batches by partition."""
        if self._spool is not None:
            for topic_id, partition, spooled in self._spool.take_all():
                target = self._waiting[topic_id].target
                records = spooled.batches.record_count
                self._append(target, partition, records, spooled.with_base_offset)

    def _sequence(self, target: TopicTarget, partition: int) -> int:
        return (
            NO_SEQUENCE if self._sequencer is None else self._sequencer.following(target.topic_id, partition)
        )

    def _sequenced(self, draft: DraftExtent, extends: DraftExtent | None = None) -> DraftExtent:
        return draft if self._sequencer is None else self._sequencer.written(draft, extends)

    def _lane(self, target: TopicTarget) -> str:
        return self._writer.lane_of(target.name, target.topic_id, target.config)

    def _encode_options(self, target: TopicTarget, base_sequence: int) -> EncodeOptions:
        config = target.config
        codec = self._codec
        if config.compression_type != "producer":
            codec = Codec.from_name(config.compression_type)
        log_append_time = config.message_timestamp_type == TimestampMode.LOG_APPEND_TIME
        options = EncodeOptions(
            codec=codec,
            timestamp_type=TimestampType.LOG_APPEND_TIME if log_append_time else TimestampType.CREATE_TIME,
            max_batch_bytes=min(self._options.batch_bytes, max(1, config.max_message_bytes)),
            max_message_bytes=config.max_message_bytes,
        )
        return options if self._sequencer is None else self._sequencer.options(options, base_sequence)


def _columns(piece: Piece) -> RecordColumns:
    return RecordColumns(
        key=piece.key, value=piece.value, headers=piece.headers, timestamp_ms=piece.timestamp_ms
    )


def _config_overrides(options: AppendOptions) -> dict[str, int]:
    """Return the topic settings that the caller overrides for this append."""
    given = {
        "max_message_bytes": options.max_record_bytes,
        "flush_messages": options.flush_messages,
        "flush_ms": options.flush_ms,
    }
    return {name: value for name, value in given.items() if value is not None}


def _arrow_batches(rows: pa.RecordBatch | pa.Table) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield (slice of bounded size, about its bytes). Values that rows share count once for each row."""
    if rows.num_rows == 0:
        normalise_rows(pa.RecordBatch.from_pylist([], schema=rows.schema))  # raise for wrong columns
    for arrow_batch in [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches():
        if arrow_batch.num_rows == 0:
            continue
        row_bytes = max(1.0, sum(map(value_bytes, arrow_batch.columns)) / arrow_batch.num_rows)
        step = max(1, int(CHUNK_BYTES / row_bytes))
        for start in range(0, arrow_batch.num_rows, step):
            piece = arrow_batch.slice(start, step)
            yield piece, round(row_bytes * piece.num_rows)


def _split_by_topic(rows: Rows, topic: str | None) -> Iterator[tuple[str, Rows]]:
    """Yield (topic, its rows in order). A given topic takes precedence over the column."""
    if topic is not None:
        yield topic, rows
        return
    if rows.topic is None or rows.topic.null_count:
        row = 0 if rows.topic is None else pc.index(rows.topic.is_null(), True).as_py()
        raise InvalidRequestError(
            "INVALID_ROWS",
            f"row {row}: found no topic, expected one in the topic column or for all rows",
            fix="fill the topic column, or name the topic to write to",
        )
    encoded = rows.topic.dictionary_encode()
    for code, chosen in group_rows(encoded.indices.to_numpy(zero_copy_only=False)):
        name = encoded.dictionary[code].as_py()
        yield name, rows if chosen is None else rows.take(chosen)


# --- unstaged rows -----------------------------------------------------------------------------------
#
# Rows of a transaction that are not staged yet. An appender collects them; they can be written again.
#
# Staging is a metadata commit; the rows of several appends share one, or share the transaction's last
# commit. A sweep may remove their segment before it (STAGING_EXPIRED), so the rows are kept until they are
# staged.
#
# Invariants: each row is in the drafts of the last `finish` once, with the sequence numbers that follow the
#     staged ones.
# Memory: `held_bytes` of the caller's Arrow data; the caller limits it by staging.
# Not here: commits and missing topics (transaction.py).
# Concurrency: one thread.


NewAppender = Callable[[Sequencer], PartitionedAppender]


class UnstagedRows:
    """See the comment at the head of this section."""

    def __init__(self, new_appender: NewAppender, sequencer: Sequencer) -> None:
        """`new_appender` returns an appender for topics as they are at that time."""
        self._new_appender = new_appender
        self._sequencer = sequencer
        self._sequences = dict(sequencer.next_sequence)  # after the last staged record
        self._given: list[tuple[str, pa.Table | pa.RecordBatch]] = []
        self._appender: PartitionedAppender | None = None
        self._drafts: list[DraftExtent] = []
        self.held_bytes = 0

    def __len__(self) -> int:
        """Return the number of appends."""
        return len(self._given)

    def append(self, topic: str, rows: pa.Table | pa.RecordBatch) -> None:
        """Append rows to an existing topic; the caller has checked that it is no internal one."""
        if not rows.num_rows:
            return
        self._given.append((topic, rows))
        self.held_bytes += int(rows.nbytes)
        self._write(topic, rows)

    def expect(self, topic: Topic) -> None:
        """Prepare for rows of this topic: replace the appender if the topic is newer than its image."""
        if self._appender is not None and not self._appender.topics.knows(topic):
            self._finish_appender()

    def _finish_appender(self) -> None:
        if self._appender is not None:
            self._drafts += self._appender.finish().drafts
            self._appender = None

    def finish(self) -> list[DraftExtent]:
        """Make all rows durable, and return their drafts. Repeatable."""
        self._finish_appender()
        return self._drafts

    def write_again(self) -> None:
        """Write all rows again, to another segment, with the same sequences."""
        self._drop()
        self._sequencer.go_back(self._sequences)
        for topic, rows in self._given:
            self._write(topic, rows)

    def staged(self) -> None:
        """Drop the rows and drafts after a successful staging."""
        self._given.clear()
        self._drafts = []
        self._sequences = dict(self._sequencer.next_sequence)
        self.held_bytes = 0

    def clear(self) -> None:
        """Drop all rows."""
        self._drop()
        self.staged()

    def _write(self, topic: str, rows: pa.Table | pa.RecordBatch) -> None:
        if self._appender is None:
            self._appender = self._new_appender(self._sequencer)
        self._appender.add(rows, topic, state=is_internal(topic))

    def _drop(self) -> None:
        if self._appender is not None:
            self._appender.abort()
        self._appender = None
        self._drafts = []
