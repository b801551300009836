"""Writing and reading: formats, segments, readers, the Python client and Spark."""

from scripts.mutants.mutant import Mutant, edit, patch

MUTANTS: tuple[Mutant, ...] = (
    # A commit names only bytes that are durable, and nobody writes to a byte that a commit names.
    patch(
        "Extents are published before they are synced: a power cut leaves offsets without records.",
        "sparklog.log.writer.LogWriter.sync",
        "tests/client/test_appender.py tests/log/test_writer.py",
    ),
    edit(
        "A draft of a failed sync is published.",
        "sparklog/log/writer.py",
        "if draft.position + draft.size > durable:",
        "if False:",
        "tests/log/test_writer.py",
    ),
    edit(
        "A writer appends after torn bytes of its own: readers stop there.",
        "sparklog/log/writer.py",
        "never append after them.\n            self._retire(segment)",
        "",
        "tests/log/test_writer.py",
    ),
    edit(
        "A forked child goes on in the segment of its parent.",
        "sparklog/log/writer.py",
        "notify_after_fork(self)",
        "pass",
        "tests/log/test_writer.py",
    ),
    edit(
        "A clone of a process goes on under the same names: it overwrites the segments of the other one.",
        "sparklog/log/writer.py",
        "self.writer_id, self._number = uuid.uuid4().hex, 0",
        "pass",
        "tests/log/test_writer.py",
    ),
    edit(
        "A writer keeps a segment that is older than the sweep horizon: all its publishes fail.",
        "sparklog/log/writer.py",
        "is_too_old = self._seen is not None and born_of(segment.name) < self._seen()[1]",
        "is_too_old = False",
        "tests/client/test_publish_sweep_horizon.py",
    ),
    edit(
        "A segment grows for longer than half of what sweeps retain: a sweep removes it before its publish.",
        "sparklog/log/writer.py",
        "min(self.limit_ms, config.segment_ms, MAX_AGE_MS)",
        "min(self.limit_ms, config.segment_ms)",
        "tests/log/test_writer_removed_segments.py",
    ),
    edit(
        "A writer publishes extents of a segment that was removed.",
        "sparklog/log/writer.py",
        "if segment.file.is_removed:",
        "if False:",
        "tests/log/test_writer_removed_segments.py",
    ),
    edit(
        "All extents of one write begin at one place: offsets return records of other partitions.",
        "sparklog/log/writer.py",
        "position += appended.encoded.size_bytes",
        "pass",
        "tests/log/test_writer_append_topics.py",
    ),
    # What is stored is verified when it is read.
    edit(
        "A batch with unknown attributes is read: its records mean something else.",
        "sparklog/format/record_batch.py",
        "if header.attributes & ~KNOWN_ATTRIBUTES:",
        "if False:",
        "tests/format/test_record_batch.py",
    ),
    edit(
        "The CRC of stored batches is not verified.",
        "sparklog/format/batch_table.py",
        "(verify_crc and crc32c(view[at + CRC_START : at + size]) != crc)",
        "False",
        "tests/format/test_records_corrupted.py",
    ),
    edit(
        "Batches beyond the offsets of their extent are returned: an offset yields two records.",
        "sparklog/log/segment_file.py",
        "& not_before & not_beyond",
        "",
        "tests/log/test_segment_file_stored_batches.py",
    ),
    edit(
        "Missing batches at the end of an extent go unnoticed.",
        "sparklog/log/segment_file.py",
        "if fine.all() and not short.any():",
        "if fine.all():",
        "tests/log/test_segment_file_stored_batches.py",
    ),
    edit(
        "A small read does not check that its batches follow each other.",
        "sparklog/log/reader.py",
        "if not follows or batch.base <= before:",
        "if False:",
        "tests/log/test_segment_file_few_batches.py",
    ),
    edit(
        "Memory is allocated for as many records as a batch claims.",
        "sparklog/format/decode.py",
        "if count * MIN_RECORD_BYTES > len(body):",
        "if count < 0:",
        "tests/property/test_format_hostile.py",
    ),
    edit(
        "A record without a key goes into a compacted topic: compaction cannot place it.",
        "sparklog/client/appender.py",
        "validate_keys(rows.key, rows.num_rows, target.config)",
        "pass",
        "tests/client/test_appender.py",
    ),
    # Readers whose files go.
    edit(
        "A reader that misses a file begins its range again: records come twice.",
        "sparklog/log/partition_reader.py",
        "next_offset, misses = int(records.offset[-1]) + 1, 0",
        "misses = 0",
        "tests/client/test_consumer_removed_files.py",
    ),
    edit(
        "A reader that misses a file plans by its old image: a merged segment counts as lost.",
        "sparklog/client/consumer.py",
        "metadata.refresh(force=True).partition_of(state.topic_id, partition)",
        "metadata.image.partition_of(state.topic_id, partition)",
        "tests/client/test_consumer_removed_files.py",
    ),
    edit(
        "A reader follows the name of a topic that was made anew: it returns records of another topic.",
        "sparklog/client/consumer.py",
        "metadata.refresh(force=True).partition_of(state.topic_id, partition)",
        "metadata.refresh(force=True).partition(topic, partition)",
        "tests/client/test_consumer_removed_files.py",
    ),
    # Clients: the right root, offsets of groups.
    patch(
        "Another root than the named one is opened: rows go into the log of others.",
        "sparklog.storage.root_rules.RootRules.validate_cluster_id",
        "tests/client/test_log.py tests/client/test_brokers_hostile.py",
    ),
    edit(
        "A place that a broker names is opened before it is checked.",
        "sparklog/client/brokers.py",
        "rules.validate_place(found.root)\n            _validate_visible(found)",
        "_validate_visible(found)\n            rules.validate_place(found.root)",
        "tests/client/test_brokers_hostile.py",
    ),
    patch(
        "Rows of users go into __consumer_offsets: coordinators cannot load.",
        "sparklog.client.transaction.refuse_internal",
        "tests/client/test_appender_internal_topics.py",
    ),
    # Spark: a micro-batch once, all of its offsets, in the root of its checkpoint.
    edit(
        "A commit does not say what its micro-batch holds: another one under its number is dropped.",
        "sparklog/spark/stream_writer.py",
        "txn=txn, content=content)",
        "txn=txn)",
        "tests/spark/test_stream_writer_driver.py",
    ),
    edit(
        "A micro-batch below the last one is acknowledged: its rows are lost.",
        "sparklog/spark/stream_writer.py",
        "if overtaken:\n            raise _outdated(query_id, batchId, overtaken)",
        "pass",
        "tests/spark/test_stream_writer_driver.py",
    ),
    patch(
        "A query goes on in another root than its checkpoint remembers.",
        "sparklog.spark.stream_writer.validate_pinned",
        "tests/spark/test_sink_root_creation.py",
    ),
    edit(
        "A topic that is no longer subscribed to is not reported as data loss.",
        "sparklog/spark/stream_planner.py",
        "if lost is not None:\n            self._loss.report(lost)",
        "pass",
        "tests/spark/test_stream_planner.py",
    ),
)
