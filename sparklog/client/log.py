"""SparkLog: the embedded client. Everything that a root offers, without a server.

    log = sparklog.open("/data/log")
    log.create_topic("events", partitions=4)
    log.append("events", table)
    log.read("events", 0, 0)

Invariants: reading calls refresh first; `image` is as of the last refresh.
Not here: the work itself (admin.py, appender.py, publish.py, transaction.py, consumer.py, groups.py).
Concurrency: any thread. After a fork the child writes to segments of its own (log/writer.py).
After a crash: open it again; there is nothing to repair.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from sparklog.client import consumer
from sparklog.client.appender import AppendOptions, PartitionedAppender, Sequencer, StagedAppend
from sparklog.client.groups import CommittedOffset, OffsetTable, delete_topic, stage_offsets, validate_group
from sparklog.client.publish import AppendResult, WriterVersion, applied_before, publish
from sparklog.client.root import OpenedRoot, open_root
from sparklog.client.rows import validate_rows, with_partition
from sparklog.client.transaction import DEFAULT_TIMEOUT_MS, LogTransaction
from sparklog.clock import Clock
from sparklog.errors import RetriableError
from sparklog.forking import notify_after_fork
from sparklog.log.past_retention import RetentionNotice
from sparklog.log.writer import LogWriter
from sparklog.metadata import Image, MetadataLog
from sparklog.storage import Store

_log = logging.getLogger("sparklog.client")
TopicPartition = tuple[str, int]
_APPEND_ATTEMPTS = 3
_STAGE_AGAIN = {"TOPIC_CHANGED", "STAGING_EXPIRED"}
# On a remote store: rows may be encoded by settings that are out of date by up to this.
_STAGE_MAX_AGE_MS = 1000


class SparkLog(OpenedRoot):
    """An opened root."""

    def __init__(
        self, store: Store, metadata: MetadataLog, clock: Clock, *, writer: LogWriter | None = None
    ) -> None:
        """`writer` writes the segments, until `close`; None: opened with the first append."""
        super().__init__(store, metadata, clock)
        self._offsets = OffsetTable(metadata)
        self._writer = writer
        self.after_fork_in_child()
        self._retention_notice = RetentionNotice(clock, _log)
        self._sticky_turn = 0
        notify_after_fork(self)

    def after_fork_in_child(self) -> None:
        """Replace the lock, which another thread of the parent may have held."""
        self._writer_lock = threading.Lock()

    def __repr__(self) -> str:
        return f"SparkLog({self.url!r}, commit {self.image.commit})"

    def close(self) -> None:
        """Close the writer's files, and finish a snapshot that is due. A later append opens new files."""
        with self._writer_lock:
            writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        super().close()

    # Topics

    def delete_topic(self, name: str) -> None:
        """Delete a topic, its records, and what groups have committed for it (groups.py)."""
        delete_topic(self.metadata, self._offsets, lambda: self.appender(sticky_turn=0), name, self.clock)

    # Writing

    @property
    def writer(self) -> LogWriter:
        """The segments of this process; opened with the first append."""
        with self._writer_lock:
            if self._writer is None:
                self._writer = LogWriter(
                    self.store,
                    self.clock,
                    seen=self._seen,
                    is_retired=self._is_retired,
                )
            return self._writer

    def _seen(self) -> tuple[int, int]:
        image = self.image
        return image.birth, image.sweep_horizon

    def _is_retired(self, segment: str) -> bool:
        return self.image.retired.has(segment)

    def appender(
        self,
        options: AppendOptions | None = None,
        *,
        sticky_turn: int | None = None,
        sequencer: Sequencer | None = None,
    ) -> PartitionedAppender:
        """Return an appender for several calls: add rows, finish, then `publish` what it staged."""
        if sticky_turn is None:
            sticky_turn = self._sticky_turn
            self._sticky_turn += 1
        return PartitionedAppender(
            self.image, self.writer, self.clock, options, sticky_turn=sticky_turn, sequencer=sequencer
        )

    def publish(
        self, staged: Iterable[StagedAppend], *, txn: tuple[str, int] | None = None, content: str = ""
    ) -> AppendResult:
        """Make staged appends visible, in one commit; with `txn`, once in each topic (see publish.py)."""
        result = publish(self.metadata, staged, txn=txn, content=content, now_ms=self.clock.now_ms())
        self._retention_notice.note(result.past_retention)
        return result

    def append(
        self,
        topic: str,
        rows: pa.Table | pa.RecordBatch,
        *,
        partition: int | None = None,
        txn: tuple[str, int] | None = None,
        compression_type: str | None = None,
    ) -> AppendResult:
        """Append rows durably: they are visible to all readers when this returns.

        Args:
            rows: columns key, value (string or binary), headers, partition, timestamp; at least one of key
                and value.
            partition: of all rows; None: by the partition column, the key's hash or the sticky partitioner.
            txn: (application, version): a rerun with the same pair, or an older version, changes nothing in
                this topic; `skipped` of the result names the commit that has it. Each topic has versions of
                its own. A write without rows leaves no version.
            compression_type: none, gzip, snappy, lz4 or zstd; a topic's compression.type takes precedence.

        Raises:
            InvalidRequestError: invalid rows or arguments.
            UnknownTopicError: no such topic, and auto.create.topics.enable is false.
            StorageError: nothing was published. FatalStorageError: unknown whether published; a rerun with
                the same txn is safe.
        """
        validate_rows(rows)
        if partition is not None:
            rows = with_partition(rows, partition)
        options = AppendOptions(compression=compression_type or "none")

        def stage() -> StagedAppend:
            with self.appender(options) as appender:
                appender.add(rows, topic)
                return appender.finish()

        found = None if txn is None else applied_before(self.refresh(), *txn, topic)
        if found is not None:
            return AppendResult(commit=None, duplicate=True, ranges={}, skipped={topic: found})
        return self._stage_and_publish(stage, txn)

    def _stage_and_publish(
        self, stage: Callable[[], StagedAppend], txn: tuple[str, int] | None
    ) -> AppendResult:
        """Stage and publish; stage again if a planned topic was created otherwise in the meantime."""
        for attempt in range(_APPEND_ATTEMPTS):
            self.metadata.refresh(max_age_ms=0 if attempt else _STAGE_MAX_AGE_MS)
            try:
                return self.publish([stage()], txn=txn)
            except RetriableError as error:
                if error.code not in _STAGE_AGAIN:
                    raise
                changed = error
        raise changed

    def transaction(
        self,
        transactional_id: str,
        *,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        version: int | None = None,
        compression_type: str | None = None,
    ) -> LogTransaction:
        """Return a transaction over topics and groups' offsets: `with log.transaction("app") as txn:`.

        `with` takes the transactional id, and fences the process that had it. One object serves for any
        number of transactions, one after the other.

        Args:
            transactional_id: a different one for each concurrent process.
            timeout_ms: brokers abort a transaction that has been open, with staged records, for longer.
            version: a growing number: if the root has it, nothing is committed (`result.duplicate` is true),
                and an older one is rejected. For a streaming query, its batch id.
            compression_type: as for `append`.
        """
        options = AppendOptions(compression=compression_type or "none")
        writer = None if version is None else WriterVersion(application=transactional_id, version=version)
        if writer is not None:
            writer.validate()
        return LogTransaction(
            self.metadata,
            self.clock,
            lambda sequencer: self.appender(options, sequencer=sequencer),
            transactional_id,
            timeout_ms=timeout_ms,
            version=writer,
            note=self._retention_notice.note,
        )

    # Reading

    def offset_for_time(
        self, topic: str, partition: int, timestamp_ms: int, *, image: Image | None = None
    ) -> int | None:
        """Return the first offset whose record is at or after a time; None if there is none.

        `image`: read by this image instead of the newest; by a newer one only if files are gone.
        """
        reader = consumer.partition_reader(
            self.metadata, self.refresh() if image is None else image, topic, partition
        )
        found = reader.offset_for_time(timestamp_ms)
        return None if found is None else found[0]

    def offset_of_max_timestamp(self, topic: str, partition: int) -> int | None:
        """Return the first offset whose record has the largest timestamp; None if there is no record."""
        found = consumer.partition_reader(
            self.metadata, self.refresh(), topic, partition
        ).offset_of_max_timestamp()
        return None if found is None else found[0]

    def offsets_for_time(self, topic: str, timestamp_ms: int) -> dict[int, int | None]:
        """Return `offset_for_time` of every partition."""
        return {
            partition: self.offset_for_time(topic, partition, timestamp_ms)
            for partition in range(self.partition_count(topic))
        }

    def read(
        self,
        topic: str,
        partition: int,
        start_offset: int,
        *,
        max_records: int | None = None,
        max_bytes: int | None = None,
        include_headers: bool = False,
    ) -> pa.Table:
        """Read records from `start_offset` on; an empty table only at the log's end. Columns: consumer.py.

        Raises:
            OffsetOutOfRangeError: outside [log_start_offset, log_end_offset].
            UnknownTopicError, CorruptLogError, DataLossError.
        """
        return consumer.read_table(
            self.metadata,
            self.refresh(),
            topic,
            partition,
            start_offset,
            max_records=max_records,
            max_bytes=max_bytes,
            include_headers=include_headers,
        )

    def read_batches(
        self,
        topic: str,
        partition: int,
        start_offset: int | None = None,
        end_offset: int | None = None,
        *,
        include_headers: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Read all records of a range (default: all there are now), in bounded memory."""
        return consumer.read_batches(
            self.metadata,
            self.refresh(),
            topic,
            partition,
            start_offset=start_offset,
            end_offset=end_offset,
            include_headers=include_headers,
        )

    # Consumer groups

    def commit_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int | None], *, metadata: str = ""
    ) -> None:
        """Commit the next offsets that `group` will read, all or nothing; None deletes one."""
        self._stage_and_publish(lambda: self.stage_offsets(group, offsets, metadata=metadata), None)

    def stage_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int | None], *, metadata: str = ""
    ) -> StagedAppend:
        """As `commit_offsets`, for publishing together with records in one commit."""
        return stage_offsets(
            self.appender(sticky_turn=0),
            group,
            offsets,
            metadata=metadata,
            now_ms=self.image.no_earlier_ms(self.clock.now_ms()),
        )

    def committed_offsets(self, group: str, *, image: Image | None = None) -> dict[TopicPartition, int]:
        """What `group` has committed; empty if nothing. `image`: to go by, or by a newer one once asked."""
        return {where: one.offset for where, one in self.describe_offsets(group, image=image).items()}

    def describe_offsets(
        self, group: str, *, image: Image | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """As `committed_offsets`, with each commit's metadata and time."""
        validate_group(group)
        return self._offsets.committed(self.refresh() if image is None else image, group)

    def groups(self, *, image: Image | None = None) -> list[str]:
        """Names of all groups that have committed offsets, sorted. `image`: as of `committed_offsets`."""
        return self._offsets.groups(self.refresh() if image is None else image)

    def consumer_groups(self, *, image: Image | None = None) -> frozenset[str]:
        """Names of groups of the consumer protocol (KIP-848); all others are classic groups."""
        return self._offsets.consumer_groups(self.refresh() if image is None else image)


def open_log(
    root: str | os.PathLike[str],
    *,
    create: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
    cluster_id: str | None = None,
    allowed_roots: str | Iterable[str] | None = None,
) -> SparkLog:
    """Open the log under a root.

    Args:
        root: a directory, file:///directory, s3://bucket/prefix, or memory://name (this process only).
        create: make an empty log where there is none; False makes that an error.
        storage_options: how to reach an object store, under s3fs's names: key, secret, endpoint_url, profile
            ...; what is not given comes from the environment (AWS_ACCESS_KEY_ID ...). See docs/s3.md. For a
            directory allow_unsafe_filesystem, see docs/filesystems.md.
        clock: for tests.
        cluster_id: of the root that is meant: another one is refused, and none is made.
        allowed_roots: the root must lie under one of these paths and URLs (a list, or text with commas);
            and under one of those in the environment's SPARKLOG_ALLOWED_ROOTS, if that is set.

    Raises:
        NotFoundError, InvalidRequestError: no root there, or not one that can be opened, or may be.
        CorruptLogError, UnsupportedVersionError: its metadata cannot be used.
    """
    opened = open_root(
        root,
        create=create,
        storage_options=storage_options,
        clock=clock,
        cluster_id=cluster_id,
        allowed_roots=allowed_roots,
    )
    return SparkLog(opened.store, opened.metadata, opened.clock)
