"""Mutants: sparklog with one safeguard switched off; some test must notice each. `make mutants`.

    python scripts/mutants.py              all of them
    python scripts/mutants.py fsync uuid   those whose name or file contains one of the words
    --missing                              those that docs/mutants.md does not have yet
    --write                                what came of them goes into docs/mutants.md
    --trust                                do not run the tests without any mutant first

Every mutant is a text that occurs once in a file, and what is put in its place. It is applied to a copy of
the tree, never to the tree itself, and the tests that should notice run there. Exit code 1: one survived (a
test is missing), or one cannot be applied any more (the code has moved on).
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "docs" / "mutants.md"
COPIED = ("sparklog", "sparklog_server", "pyspark_sparklog", "tests", "FORMAT.md", "pyproject.toml", "docs")
TESTS_FAILED = 1  # pytest's exit code
TIMEOUT_SECONDS = 180
# So that nothing of a failing run is random but what a test draws itself.
PYTEST = ("-m", "pytest", "-q", "-x", "-rf", "--timeout=120", "-p", "no:cacheprovider", "-p", "no:randomly")


@dataclass(frozen=True)
class Mutant:
    """One safeguard, and how it is switched off."""

    safeguard: str
    path: str
    old: str
    new: str
    tests: str


MUTANTS = (
    # --- storage ---
    Mutant(
        "data is synced before a draft may be published",
        "sparklog/storage/local_files.py",
        'failpoint("file.sync")\n            os.fdatasync(self._fd)',
        'failpoint("file.sync")',
        "tests/storage/test_local_durability.py",
    ),
    Mutant(
        "a new segment's name is synced",
        "sparklog/storage/local_files.py",
        "                self._sync_names()\n",
        "                pass\n",
        "tests/storage/test_local_durability.py",
    ),
    Mutant(
        "a put's bytes are synced before they get their name",
        "sparklog/storage/local.py",
        'failpoint("put.sync")\n            os.fsync(fd)',
        'failpoint("put.sync")',
        "tests/storage/test_local_durability.py",
    ),
    Mutant(
        "a put's name is synced",
        "sparklog/storage/local.py",
        "            self._names.sync(os.path.dirname(path))  # noqa: PTH120 - strings",
        "            #",
        "tests/storage/test_local_durability.py",
    ),
    Mutant(
        "new parent directories are synced up to the root",
        "sparklog/storage/durable_names.py",
        "if directory == self._root or self._durable.get(directory) == seen:",
        "if directory:",
        "tests/storage/test_local_durability.py",
    ),
    Mutant(
        "a directory that we made is not taken for its predecessor",
        "sparklog/storage/durable_names.py",
        "                self._durable.clear()\n",
        "",
        "tests/storage/test_local_durability.py -k same_inode",
    ),
    Mutant(
        "a directory that somebody made is not taken for its predecessor with the same inode",
        "sparklog/storage/durable_names.py",
        "beside_ns = 0 if directory == self._root else self._modified_ns(parent)",
        "beside_ns = 0",
        "tests/storage/test_local_durability.py",
    ),
    Mutant(
        "a directory counts as durable when its parent is synced, not before",
        "sparklog/storage/durable_names.py",
        "            synced.append((directory, seen))\n",
        "            self._durable[directory] = seen\n",
        "tests/storage/test_local_durability.py",
    ),
    Mutant(
        "after a failed link the inode says whose file has the name",
        "sparklog/storage/local.py",
        "if os.path.samestat(found, self._own(fd, path, error)):",
        "if self._own(fd, path, error).st_nlink >= 2:",
        "tests/storage/test_local_durability.py",
    ),
    Mutant(
        "a put never overwrites: link, not rename",
        "sparklog/storage/local.py",
        "            os.link(temporary, path)\n",
        "            os.replace(temporary, path)\n",
        "tests/storage/test_contract.py tests/storage/test_local_faults.py",
    ),
    Mutant(
        "after a failed fsync the store refuses to write",
        "sparklog/storage/local.py",
        "        if self._poison is not None:\n            raise self._poison\n",
        "        return\n",
        "tests/storage/test_local_faults.py tests/test_failpoints.py",
    ),
    Mutant(
        "the guard is asked before the name is made",
        "sparklog/storage/local.py",
        "if guard is not None and not guard():",
        "if False:",
        "tests/storage tests/metadata/test_cleaning.py",
    ),
    Mutant(
        "a sweep spares young temporary files",
        "sparklog/storage/local.py",
        "if os.stat(path).st_mtime_ns <= limit_ns:  # noqa: PTH116",
        "if True:",
        "tests/storage -k sweep",
    ),
    Mutant(
        "a child does not write to its parent's segment",
        "sparklog/storage/local_files.py",
        "        if self._pid != os.getpid():\n            raise StorageError(\n",
        "        if False:\n            raise StorageError(\n",
        "tests/storage",
    ),
    Mutant(
        "a root on a file system that caches names is refused",
        "sparklog/storage/filesystems.py",
        "    if trust is Trust.UNSAFE and not allow_unsafe:",
        "    if False:",
        "tests/storage/test_filesystems.py -k refused",
    ),
    Mutant(
        "NFS that caches attributes is not taken for one that does not",
        "sparklog/storage/filesystems.py",
        'return "noac" in mount.options or zero <= mount.options or "actimeo=0" in mount.options',
        "return True",
        "tests/storage/test_filesystems.py -k nfs",
    ),
    Mutant(
        "the file system is looked at before the root is made",
        "sparklog/storage/opening.py",
        "    if create or path.exists():",
        "    if path.exists():",
        "tests/storage/test_filesystems.py -k refused",
    ),
    Mutant(
        "what the user allows reaches the executors",
        "sparklog/spark/storage_options.py",
        "return StorageOptions(((ALLOW_UNSAFE, allow),))",
        "return NO_STORAGE_OPTIONS",
        "tests/spark/test_storage_options.py",
    ),
    Mutant(
        "minOffsetsPerTrigger does not put off the first micro-batch after a start",
        "sparklog/spark/stream_planner.py",
        "early = last_ms is not None and ",
        "early = last_ms is None or ",
        "tests/spark/test_stream_planner.py",
    ),
    Mutant(
        "on a Spark without admission control a query that goes on is not taken for a new one",
        "sparklog/spark/stream_reader.py",
        "        if self._is_new:\n            return end\n",
        "        if end:\n            return end\n",
        "tests/spark/test_features.py",
    ),
    Mutant(
        "a micro-batch that a Spark without admission control has planned starts where it did",
        "sparklog/spark/limited_reader.py",
        "input_partitions(start, self._as_it_goes_on(end))",
        "input_partitions(start, end)",
        "tests/spark/test_features.py",
    ),
    Mutant(
        "on a Spark without admission control a topic that is dropped is reported",
        "sparklog/spark/stream_reader.py",
        "        self._plan().report_left_out(start, end)\n",
        "",
        "tests/spark/test_features.py",
    ),
    Mutant(
        "on a Spark without admission control no lag is told, rather than none",
        "sparklog/spark/lag_listener.py",
        "if not CAN_LIMIT_READS and ",
        "if CAN_LIMIT_READS and ",
        "tests/spark/test_lag_listener.py",
    ),
    Mutant(
        "an option whose name says that it is a secret is not quoted",
        "sparklog/redaction.py",
        "if may_hold_secret(name) or ",
        "if ",
        "tests/spark/test_secrets.py",
    ),
    Mutant(
        "a value that looks like a secret is not quoted",
        "sparklog/redaction.py",
        "if may_hold_secret(name) or _SECRET_VALUE.search(text):",
        "if may_hold_secret(name):",
        "tests/spark/test_secrets.py",
    ),
    Mutant(
        "a password in a URL is not quoted",
        "sparklog/redaction.py",
        "    text = without_user_info(text)\n",
        "",
        "tests/spark/test_secrets.py",
    ),
    Mutant(
        "topics that the sink creates get the settings it was given",
        "sparklog/client/topic_plan.py",
        "self._configs = dict(configs or {})",
        "self._configs = {}",
        "tests/client/test_appender.py",
    ),
    Mutant(
        "of many partitions only small ones share a task unasked",
        "sparklog/spark/ranges.py",
        "count < most and held_bytes + size_bytes <= SMALL_BYTES",
        "count < most",
        "tests/spark/test_ranges.py",
    ),
    Mutant(
        "a table in Spark's catalog with options that Spark would drop is refused",
        "sparklog/spark/catalog_tables.py",
        "    if dropped:\n",
        "    if False:\n",
        "tests/spark/test_catalog_tables.py",
    ),
    Mutant(
        "a pattern never finds internal topics",
        "sparklog/spark/subscription.py",
        "compiled.search(topic) and not is_internal(topic)",
        "compiled.search(topic)",
        "tests/spark/test_subscription.py",
    ),
    Mutant(
        "a commit is linked behind durable ones only",
        "sparklog/metadata/log.py",
        "            self._before_linking(image)\n",
        "",
        "tests/metadata/test_log.py",
    ),
    Mutant(
        "the name of a put that is not done is synced by who builds on it",
        "sparklog/storage/local.py",
        "if os.stat(path).st_nlink == 1:  # noqa: PTH116",
        "if os.stat(path).st_nlink >= 1:",
        "tests/storage/test_local_durability.py",
    ),
    Mutant(
        "one link is believed only where links are counted",
        "sparklog/storage/local.py",
        "        if self._counts_links:\n",
        "        if True:\n",
        "tests/storage/test_local_durability.py",
    ),
    Mutant(
        "a temporary file stays until the name is durable",
        "sparklog/storage/local.py",
        "            may_unlink = False  # until the name",
        "            # until the name",
        "tests/storage/test_local_durability.py",
    ),
    Mutant(
        "a sweep makes durable what will look so",
        "sparklog/storage/local.py",
        "                        os.sync()  # with one link",
        "                        pass  # with one link",
        "tests/storage/test_local_durability.py",
    ),
    Mutant(
        "a sweep takes a file away before it looks at its links",
        "sparklog/storage/local.py",
        "                    os.rename(path, aside)  # noqa: PTH104\n"
        "                    if os.stat(aside).st_nlink > 1:  # noqa: PTH116 - its",
        "                    found = os.stat(path)\n"
        "                    os.rename(path, aside)\n"
        "                    if found.st_nlink > 1:  # its",
        "tests/storage/test_local_durability.py",
    ),
    Mutant(
        "that the commit before was cleaned is no error of a publisher",
        "sparklog/metadata/log.py",
        "with contextlib.suppress(NotFoundError):  # cleaned since",
        "with contextlib.nullcontext():  # cleaned since",
        "tests/metadata/test_cleaning.py",
    ),
    Mutant(
        "a file that readers map is not cut back",
        "sparklog/log/growing_index.py",
        "self._store.append_file(self._name, mapped=True)",
        "self._store.append_file(self._name)",
        "tests/storage/test_local_faults.py",
    ),
    Mutant(
        "nothing follows torn bytes that stay",
        "sparklog/storage/local_files.py",
        "            self._broken = self._broken or torn\n",
        "",
        "tests/storage/test_local_faults.py",
    ),
    Mutant(
        "a segment whose drafts are looked at is not forgotten",
        "sparklog/log/writer.py",
        "        self._synced.pop(segment, None)\n",
        "",
        "tests/log/test_writer.py",
    ),
    Mutant(
        "S3: If-None-Match is sent",
        "sparklog/storage/s3_client.py",
        'arguments = {"Key": key, "Body": data, "IfNoneMatch": "*"}',
        'arguments = {"Key": key, "Body": data}',
        "tests/storage/test_contract.py",
    ),
    Mutant(
        "S3: a store that lets two writers win is refused",
        "sparklog/storage/s3_probe.py",
        "    if winners > 1:\n",
        "    if False:\n",
        "tests/storage/test_s3_faults.py",
    ),
    Mutant(
        "S3: after a lost answer, taken means ours only with our bytes",
        "sparklog/storage/s3_append.py",
        "if self._client.get(self._url, self._key, 0, None)[0] != data:",
        "if False:",
        "tests/storage/test_s3_faults.py",
    ),
    Mutant(
        "S3: a large object is completed only if its name is free",
        "sparklog/storage/s3_client.py",
        'url, **arguments, IfNoneMatch="*")',
        "url, **arguments)",
        "tests/storage/test_s3_append.py",
    ),
    Mutant(
        "S3: a large object that is there is ours only with our bytes",
        "sparklog/storage/s3_append.py",
        "                return crc == self._parts_crc\n",
        "                return True\n",
        "tests/storage/test_s3_append.py",
    ),
    Mutant(
        "S3: behind a proxy, a lost answer is not taken for a request that was never sent",
        "sparklog/storage/s3_errors.py",
        "    return isinstance(cause, NewConnectionError | ConnectTimeoutError)\n",
        "    return True\n",
        "tests/storage/test_s3_behind_proxies.py",
    ),
    # --- log ---
    Mutant(
        "batches lie within the offsets of their extent",
        "sparklog/log/stored_batches.py",
        " & not_before & not_beyond\n",
        "\n",
        "tests/log/test_stored_batches.py tests/log/test_segment_file.py",
    ),
    Mutant(
        "batches of a segment without gaps follow each other",
        "sparklog/log/stored_batches.py",
        "    fine[1:] &= (base[1:] == last[:-1] + 1) | ((base[1:] > last[:-1]) & ~(dense[1:] & same))\n",
        "",
        "tests/log/test_stored_batches.py tests/log/test_segment_file.py",
    ),
    Mutant(
        "an extent whose last batches are missing is told",
        "sparklog/log/stored_batches.py",
        "    if fine.all() and not short.any():\n",
        "    if fine.all():\n",
        "tests/log/test_stored_batches.py tests/log/test_segment_file.py",
    ),
    Mutant(
        "headers that are walked one by one follow each other",
        "sparklog/log/segment_file.py",
        "                validate_next(span, position, header, next_offset, within)\n",
        "                pass\n",
        "tests/log/test_reader.py tests/log/test_time_lookup.py tests/server/fetch/test_reader.py",
    ),
    # --- metadata ---
    Mutant(
        "a taken commit is ours only with our UUID",
        "sparklog/metadata/creating.py",
        "        if header.uuid != candidate.uuid:\n            return False\n",
        "",
        "tests/metadata/test_log.py",
    ),
    Mutant(
        "a put without an answer is repeated under its own name",
        "sparklog/metadata/creating.py",
        "                self._unresolved, problem = candidate, error\n",
        "                return False\n",
        "tests/metadata/test_log.py",
    ),
    Mutant(
        "what others linked is synced before it is shown",
        "sparklog/metadata/log.py",
        "        if image.commit != NO_COMMIT:\n            self._store.sync_directory(DIRECTORY)\n",
        "",
        "tests/metadata/test_log.py",
    ),
    Mutant(
        "an append must begin at the log end of the image",
        "sparklog/metadata/model/extents.py",
        "    if extent.base_offset != partition.log_end_offset:\n",
        "    if False:\n",
        "tests/metadata/test_plan_and_apply.py",
    ),
    Mutant(
        "a commit names the one before it",
        "sparklog/metadata/loading.py",
        "        if header.previous != uuid:\n",
        "        if False:\n",
        "tests/metadata/test_log.py tests/metadata/test_snapshot.py",
    ),
    Mutant(
        "a commit's checksum is verified",
        "sparklog/metadata/documents/document.py",
        "checksum(data[:digits], _CRC_PLACEHOLDER, data[digits + 8 :])",
        "data[digits : digits + 8].decode('ascii', 'replace')",
        "tests/metadata/test_document.py",
    ),
    Mutant(
        "a (application, version) is applied once",
        "sparklog/metadata/model/writers.py",
        "        if found is None:\n            left.append(topic_id)\n        elif",
        "        left.append(topic_id)\n        if found is not None and",
        "tests/client/test_publish.py tests/metadata/test_writer_txns.py",
    ),
    Mutant(
        "a writer's versions are per topic",
        "sparklog/metadata/model/image.py",
        "found = None if topic is None else topic.writer_txns.get(application)",
        "found = max((t.writer_txns.get(application, WriterTxnState(-1, -1)) for t in self.topics.values()),"
        " key=lambda state: state.version, default=None)",
        "tests/client/test_publish.py tests/metadata/test_writer_txns.py",
    ),
    Mutant(
        "a replayed version must be above the topic's last",
        "sparklog/metadata/model/writers.py",
        "known = of_root if found is None else max(of_root, found.version)",
        "known = of_root",
        "tests/metadata/test_writer_txns.py",
    ),
    Mutant(
        "a version from before versions were per topic counts for every topic",
        "sparklog/metadata/model/image.py",
        "return WriterTxnState(of_root, NO_COMMIT) if of_root >= version else None",
        "return None",
        "tests/metadata/test_writer_txns.py",
    ),
    Mutant(
        "a version that comes again with other content is refused",
        "sparklog/metadata/model/writers.py",
        "content != found.content",
        "content is None",
        "tests/metadata/test_writer_txns.py",
    ),
    Mutant(
        "a micro-batch of the same number that starts elsewhere is another one",
        "sparklog/spark/checkpoint.py",
        'parts = [*starts, b"end", *ends]',
        "parts = [*ends]",
        "tests/spark/test_writers.py",
    ),
    Mutant(
        "a micro-batch that ends elsewhere is another one",
        "sparklog/spark/checkpoint.py",
        'parts = [*starts, b"end", *ends]',
        "parts = [*starts]",
        "tests/spark/test_writers.py",
    ),
    Mutant(
        "a checkpoint of another query says nothing",
        "sparklog/spark/checkpoint.py",
        '_json_object(metadata).get("id") != query_id',
        "False",
        "tests/spark/test_writers.py",
    ),
    Mutant(
        "a repeated micro-batch is the same whenever it was planned",
        "sparklog/spark/checkpoint.py",
        '    _json_object(metadata)\n    return lines.split(b"\\n")',
        '    return [metadata, *lines.split(b"\\n")]',
        "tests/spark/test_writers.py",
    ),
    Mutant(
        "what a checkpoint says of a micro-batch is in its commit",
        "sparklog/spark/stream_writer.py",
        "txn=txn, content=content).skipped",
        "txn=txn).skipped",
        "tests/spark/test_writers.py",
    ),
    Mutant(
        "a root is made by the first micro-batch only",
        "sparklog/spark/sink_root.py",
        "create=False, writing=True",
        "create=True, writing=True",
        "tests/spark/test_sink_roots.py",
    ),
    Mutant(
        "a query goes on in the root that it wrote to",
        "sparklog/spark/sink_root.py",
        "if log.cluster_id != expected:",
        "if False:",
        "tests/spark/test_sink_roots.py",
    ),
    Mutant(
        "a topic that is no longer subscribed to is reported as data loss",
        "sparklog/spark/stream_planner.py",
        "        if lost is not None:\n            self._loss.report(lost)\n",
        "",
        "tests/spark/test_stream_planner.py",
    ),
    Mutant(
        "a topic that is subscribed to again goes on where it was left",
        "sparklog/spark/stream_planner.py",
        "{**dict.fromkeys(wanted, 0), **still_kept(start, log.image), **positions}",
        "{**dict.fromkeys(wanted, 0), **positions}",
        "tests/spark/test_stream_planner.py",
    ),
    Mutant(
        "a compacted topic takes no record without a key",
        "sparklog/client/appender.py",
        "        validate_keys(rows.key, rows.num_rows, target.config)\n",
        "",
        "tests/client/test_appender.py",
    ),
    Mutant(
        "a batch query that ends before it starts is refused",
        "sparklog/spark/batch_reader.py",
        "        check_ends_after_start(begin, end, image)\n",
        "",
        "tests/spark/test_batch_planning.py",
    ),
    Mutant(
        "a topic remembers a bounded number of applications",
        "sparklog/metadata/model/writers.py",
        "if len(writer_txns) > MAX_WRITER_TXNS:",
        "if False:",
        "tests/metadata/test_writer_txns.py",
    ),
    Mutant(
        "versions of topics are in documents that older versions refuse",
        "sparklog/metadata/model/writers.py",
        "return FIRST_VERSION if self.topics is None and not self.content else 4",
        "return FIRST_VERSION",
        "tests/metadata/test_document.py tests/metadata/test_writer_txns.py",
    ),
    Mutant(
        "cleaning aborts puts of the number it frees",
        "sparklog/metadata/cleaning.py",
        "        store.abort_puts(commit_name(commit))\n",
        "",
        "tests/metadata/test_cleaning.py",
    ),
    Mutant(
        "cleaning leaves its marker before it removes",
        "sparklog/metadata/cleaning.py",
        "            put_marker(store)\n",
        "            pass\n",
        "tests/metadata/test_cleaning.py",
    ),
    Mutant(
        "producers' sequences survive in snapshots",
        "sparklog/metadata/documents/snapshot.py",
        "                    producers=stored.producers,\n",
        "                    producers={},\n",
        "tests/metadata/test_snapshot.py",
    ),
    Mutant(
        "sequences follow each other",
        "sparklog/metadata/model/sequences.py",
        "    return SequenceCheck.DUPLICATE if behind < SEQUENCES // 2 else SequenceCheck.OUT_OF_ORDER\n",
        "    return SequenceCheck.DUPLICATE if behind < SEQUENCES // 2 else SequenceCheck.NEXT\n",
        "tests/metadata/test_plan_and_apply.py",
    ),
    Mutant(
        "combining: a request is applied once",
        "sparklog/metadata/model/publishers.py",
        "        and (action.nonce or _was_remembered(publishers, action.publisher))\n",
        "        and False\n",
        "tests/metadata/test_combining.py",
    ),
    Mutant(
        "combining: who finds no room to be remembered publishes all the same",
        "sparklog/metadata/combining.py",
        "        if can_settle(image.publishers, self._publisher):\n",
        "        if True:\n",
        "tests/metadata/test_request_window.py",
    ),
    Mutant(
        "combining: who is forgotten by a commit makes no room in it",
        "sparklog/metadata/others.py",
        "if not can_settle(remembered, ticket.publisher):",
        "if not can_settle(draft.publishers, ticket.publisher):",
        "tests/metadata/test_request_window.py",
    ),
    Mutant(
        "combining: a request is applied within its window only",
        "sparklog/metadata/model/publishers.py",
        "        if not action.base < commit <= last:\n",
        "        if False:\n",
        "tests/metadata/test_publishers.py",
    ),
    Mutant(
        "combining: an image remembers what has been settled for the window",
        "sparklog/metadata/model/publishers.py",
        "        if commit <= last_commit_for(state.commit):\n",
        "        if commit <= state.commit + 1:\n",
        "tests/metadata/test_request_window.py",
    ),
    Mutant(
        "combining: a request beyond its window is looked for before it is done again",
        "sparklog/metadata/posted.py",
        "    if not request.is_settled(image) and remembers_all_of(request.base, image.commit):\n",
        "    if not request.is_settled(image):\n",
        "tests/metadata/test_request_window.py",
    ),
    Mutant(
        "combining: clones of a process do not take each other's success",
        "sparklog/metadata/posted.py",
        "isinstance(action, RequestApplied) and action.nonce == self.nonce",
        "isinstance(action, RequestApplied) and action.publisher == self.publisher",
        "tests/metadata/test_request_window.py",
    ),
    Mutant(
        "combining: a clone does not post a number that is settled",
        "sparklog/metadata/combining.py",
        "        if image.has_settled(self._publisher, self._sequence + 1):\n",
        "        if False:\n",
        "tests/metadata/test_request_window.py",
    ),
    Mutant(
        "combining: who posts again has given up the request before",
        "sparklog/metadata/combining.py",
        "    return [ticket for ticket in tickets if ticket.sequence == newest[ticket.publisher]]\n",
        "    return list(tickets)\n",
        "tests/metadata/test_request_window.py",
    ),
    Mutant(
        "combining: a call with nothing to do takes back what was given up",
        "sparklog/metadata/combining.py",
        "            own = tuple(one.plan(image))\n",
        "            own = tuple(one.plan(image))\n"
        "            if not own:\n"
        "                self._open = None\n"
        "                return Settled(image=image, commit=image.commit, actions=(), made=False)\n",
        "tests/metadata/test_request_window.py",
    ),
    Mutant(
        "combining: any error while a request is out leaves it unresolved",
        "sparklog/metadata/combining.py",
        "        except Exception as error:\n",
        "        except StorageError as error:\n",
        "tests/metadata/test_request_window.py",
    ),
    Mutant(
        "combining: a request that was given up cannot be applied later",
        "sparklog/metadata/combining.py",
        "        return (self._open.marker(),)\n",
        "        return ()\n",
        "tests/metadata/test_combining.py",
    ),
    Mutant(
        "a producer that was forgotten is looked up in the extents",
        "sparklog/metadata/model/sequences.py",
        "    extent = state.extents.last_of_producer(producer_id)\n",
        "    extent = None\n",
        "tests/metadata/test_plan_and_apply.py",
    ),
    Mutant(
        "a damaged commit where ours was open is of unknown outcome",
        "sparklog/metadata/creating.py",
        "        except (StorageError, CorruptLogError) as error:\n",
        "        except StorageError as error:\n",
        "tests/metadata/test_log.py",
    ),
    Mutant(
        "combining: old requests are not applied",
        "sparklog/metadata/requests.py",
        "        oldest_ms = self._store.storage_now_ms(self._clock.now_ms()) - MAX_AGE_MS\n",
        "        oldest_ms = 0\n",
        "tests/metadata/test_combining.py",
    ),
    Mutant(
        "combining: what has been settled survives in snapshots",
        "sparklog/metadata/documents/snapshot.py",
        "        publishers=state.publishers,\n",
        "        publishers={},\n",
        "tests/metadata/test_combining.py",
    ),
    Mutant(
        "remote: nothing is put on an end that was not confirmed within the hour",
        "sparklog/metadata/following.py",
        "        return lambda: self.is_confirmed(commit - 1)\n",
        "        return lambda: True\n",
        "tests/metadata/test_remote.py",
    ),
    Mutant(
        "remote: when all snapshots from the hint on are damaged, the older ones are looked for",
        "sparklog/metadata/loading.py",
        "            if base is None and not listing.is_whole:\n",
        "            if base is None and not listing.is_whole and not listing.snapshots:\n",
        "tests/metadata/test_remote.py",
    ),
    Mutant(
        "remote: a clock that was ahead when the end was asked for does not prolong the hour",
        "sparklog/metadata/following.py",
        "asked._replace(wall_ms=min(asked.wall_ms, self._clock.now_ms()))",
        "asked",
        "tests/metadata/test_remote.py",
    ),
    Mutant(
        "an opener asks whether a cleaner has overtaken its listing",
        "sparklog/metadata/loading.py",
        "    return store.traits.is_remote or not commit_was_cleaned(store, image.commit)\n",
        "    return True\n",
        "tests/metadata/test_cleaning.py",
    ),
    Mutant(
        "a listing with other snapshots is another one",
        "sparklog/metadata/loading.py",
        "return self.commits[:2], self.snapshots\n",
        "return self.commits[:2], self.snapshots[:1]\n",
        "tests/metadata/test_cleaning.py",
    ),
    Mutant(
        "the wall clock is read after each answer of a look",
        "sparklog/metadata/following.py",
        "            asked = self._not_later_than_now(asked)\n",
        "",
        "tests/metadata/test_remote.py",
    ),
    Mutant(
        "remote: an old end is asked for exactly",
        "sparklog/metadata/following.py",
        "if self.is_confirmed(image.commit) or not commit_was_cleaned(self._store, image.commit):",
        "if True:",
        "tests/metadata/test_remote.py",
    ),
    Mutant(
        "no root is made among other files",
        "sparklog/metadata/documents/properties.py",
        "        raise _taken(store, strangers)\n",
        "",
        "tests/metadata/test_properties.py",
    ),
    Mutant(
        "a root made between two looks is not taken for other files",
        "sparklog/metadata/documents/properties.py",
        "        with contextlib.suppress(NotFoundError):  # made between our two looks\n"
        "            return decode_properties(store.read(META_PROPERTIES, 0, _MAX_BYTES), where)\n",
        "",
        "tests/metadata/test_properties.py",
    ),
    Mutant(
        "sink: a micro-batch below the last one is refused",
        "sparklog/spark/stream_writer.py",
        "        if later:\n",
        "        if False:\n",
        "tests/spark/test_writers.py",
    ),
    # --- log and client ---
    Mutant(
        "stored batches are verified when they are read",
        "sparklog/format/batch_table.py",
        "(verify_crc and crc32c(view[at + CRC_START : at + size]) != crc)",
        "False",
        "tests/format/test_corruption.py tests/log/test_reader.py",
    ),
    Mutant(
        "a clone of a process that finds a name taken goes on under names of its own",
        "sparklog/log/writer.py",
        "        self.writer_id, self._number = uuid.uuid4().hex, 0\n",
        "        pass\n",
        "tests/log/test_writer.py tests/client/test_s3.py",
    ),
    Mutant(
        "a child starts a segment of its own",
        "sparklog/log/writer.py",
        "    for writer in list(_writers):\n        writer.after_fork_in_child()\n",
        "    return\n",
        "tests/log/test_writer.py",
    ),
    Mutant(
        "nothing is appended behind torn bytes",
        "sparklog/log/writer.py",
        "never append after them.\n                self._retire()\n",
        "\n",
        "tests/log/test_writer.py",
    ),
    Mutant(
        "a draft of a failed sync cannot be published",
        "sparklog/log/writer.py",
        "        if draft.position + draft.size > durable:\n",
        "        if False:\n",
        "tests/log/test_writer.py",
    ),
    Mutant(
        "an appender's rows are synced before they are staged",
        "sparklog/client/appender.py",
        "            self._writer.sync(drafts)\n",
        "            pass\n",
        "tests/crash/test_log_kill.py tests/client/test_appender.py",
    ),
    Mutant(
        "who sets what nothing acts on is warned",
        "sparklog/client/admin.py",
        "    warn_of_settings(actions, metadata.image)\n",
        "",
        "tests/client/test_admin.py tests/cli/test_topics.py",
    ),
    Mutant(
        "doctor: settings that nothing acts on",
        "sparklog/cli/root_checks.py",
        '        Status.WARN,\n        f"kept',
        '        Status.OK,\n        f"kept',
        "tests/cli/test_doctor.py",
    ),
    # --- who may say where the root is ---
    Mutant(
        "an allowed place ends where a part of a path ends",
        "sparklog/storage/allowed_roots.py",
        "    return place[: len(prefix)] == prefix\n",
        '    return "/".join(place).startswith("/".join(prefix))\n',
        "tests/storage/test_allowed_roots.py",
    ),
    Mutant(
        "links are followed before a place is judged",
        "sparklog/storage/allowed_roots.py",
        "real = os.path.realpath(local_path(root))",
        "real = local_path(root)",
        "tests/storage/test_allowed_roots.py",
    ),
    Mutant(
        "a root must lie within every list of allowed places",
        "sparklog/storage/root_rules.py",
        "        allowed += (parse_allowed_roots(allowed_roots),)\n",
        "        allowed = (parse_allowed_roots(allowed_roots),)\n",
        "tests/spark/test_bootstrap_servers.py tests/client/test_log.py",
    ),
    Mutant(
        "a list of allowed places that is set to nothing is an error",
        "sparklog/storage/allowed_roots.py",
        "return () if text is None else",
        "return () if not text else",
        "tests/storage/test_allowed_roots.py",
    ),
    Mutant(
        "a broker's answer is judged before its place is looked at",
        "sparklog/client/broker_root.py",
        "            rules.validate_place(found.root)\n            _validate_visible(found)\n",
        "            _validate_visible(found)\n            rules.validate_place(found.root)\n",
        "tests/client/test_hostile_broker.py",
    ),
    Mutant(
        "a broker of another cluster is refused before its place is looked at",
        "sparklog/client/broker_root.py",
        '            rules.validate_cluster_id(found.cluster_id, f"broker {server}")\n',
        "",
        "tests/client/test_hostile_broker.py",
    ),
    Mutant(
        "a root that is named by its cluster id is not made",
        "sparklog/client/log.py",
        "    create = create and rules.cluster_id is None\n",
        "",
        "tests/client/test_log.py",
    ),
    Mutant(
        "another root than the named one is refused before it is loaded",
        "sparklog/client/log.py",
        '        rules.validate_cluster_id(found, f"root {store.url}")\n',
        "        del found\n",
        "tests/client/test_log.py",
    ),
    Mutant(
        "a root that is open already is compared with the cluster id of each query",
        "sparklog/spark/roots.py",
        '    rules.validate_cluster_id(log.cluster_id, f"root {log.url}")\n',
        "",
        "tests/spark/test_bootstrap_servers.py",
    ),
    Mutant(
        "a root that is open already is looked for again within the allowed places",
        "sparklog/spark/roots.py",
        "    rules.validate_place(root)\n    writing",
        "    writing",
        "tests/spark/test_bootstrap_servers.py",
    ),
    Mutant(
        "a sink refuses another root than its checkpoint remembers",
        "sparklog/spark/stream_writer.py",
        "        validate_pinned(checkpoint, query_id, batchId, log, options)\n",
        "",
        "tests/spark/test_sink_roots.py",
    ),
    Mutant(
        "a sink's checkpoint remembers the root",
        "sparklog/spark/stream_writer.py",
        "        pin_root(checkpoint, query_id, log, options)\n",
        "",
        "tests/spark/test_sink_roots.py",
    ),
    # --- the broker ---
    Mutant(
        "broker: who sets what nothing acts on leaves a line in the log",
        "sparklog_server/admin/changes.py",
        "        warn_of_settings(actions, self._root.image)\n",
        "",
        "tests/server/admin/test_configs.py",
    ),
    Mutant(
        "broker: a deposed one publishes nothing",
        "sparklog_server/cluster/broker_epoch.py",
        "        if image.broker is None or image.broker.incarnation_id != self.incarnation_id:\n",
        "        if False:\n",
        "tests/server/cluster/test_broker_epoch.py",
    ),
    Mutant(
        "broker: one that sees a newer registration stops",
        "sparklog_server/cluster/membership.py",
        "        if lost is not None:\n",
        "        if False:\n",
        "tests/server/cluster/test_membership.py",
    ),
    Mutant(
        "broker: an image that takes the role away counts before it is shown",
        "sparklog_server/cluster/membership.py",
        "        return self.lost() is None and self.left_ms > 0\n",
        "        return self.left_ms > 0\n",
        "tests/server/cluster/test_membership.py",
    ),
    Mutant(
        "broker: who cannot follow the log answers for nothing",
        "sparklog_server/cluster/membership.py",
        "        return self.lost() is None and self.left_ms > 0\n",
        "        return self.lost() is None\n",
        "tests/server/cluster/test_membership.py",
    ),
    Mutant(
        "broker: who cannot follow the log sends waiting members away",
        "sparklog_server/cluster/membership.py",
        "        self._resigned_callbacks.append(callback)\n",
        "        pass\n",
        "tests/server/cluster/test_membership.py",
    ),
    Mutant(
        "broker: groups that were resigned are taken up from the log",
        "sparklog_server/coordinator/directory.py",
        "        self._topic_id, self.shards = None, []\n",
        "        pass\n",
        "tests/server/coordinator/test_coordinator.py",
    ),
    Mutant(
        "broker: members that waited are told nothing by one that lost its role meanwhile",
        "sparklog_server/coordinator/directory.py",
        "        if not result.error and not self.host.role.is_in_charge:\n",
        "        if False:\n",
        "tests/server/coordinator/test_coordinator.py",
    ),
    Mutant(
        "an image's age counts a suspend",
        "sparklog/metadata/log.py",
        "        return max(now.monotonic_ms - looked.monotonic_ms, now.wall_ms - looked.wall_ms)\n",
        "        return now.monotonic_ms - looked.monotonic_ms\n",
        "tests/metadata/test_image_age.py",
    ),
    Mutant(
        "an image's age is that of a look that succeeded",
        "sparklog/metadata/log.py",
        "                self._refreshed_ms, self._looked = now_ms, asked\n",
        "            self._refreshed_ms, self._looked = now_ms, self._follower.now()\n",
        "tests/metadata/test_image_age.py",
    ),
    Mutant(
        "broker: a member that was never told its id goes with its connection",
        "sparklog_server/coordinator/coordinator.py",
        "            if member_id is not None and directory.groups.get(group_id) is handle:\n",
        "            if False:\n",
        "tests/server/coordinator/test_coordinator_bounds.py",
    ),
    Mutant(
        "broker: the list of all groups has a limit",
        "sparklog_server/api/list_groups.py",
        "    if not context.answer.fits(",
        "    if False and context.answer.fits(",
        "tests/server/api/test_repeated_names.py",
    ),
    Mutant(
        "broker: others have turns between requests that name thousands",
        "sparklog_server/dispatch/work.py",
        "            self._is_crowded = True\n",
        "            self._is_crowded = False\n",
        "tests/server/dispatch/test_work.py",
    ),
    Mutant(
        "broker: a member has a hundred protocols at most",
        "sparklog_server/coordinator/coordinator.py",
        "        if len(request.protocols) > MAX_PROTOCOLS:\n",
        "        if False:\n",
        "tests/server/coordinator/test_coordinator_bounds.py",
    ),
    Mutant(
        "broker: a large answer that is taken at a trickle ends with its connection",
        "sparklog_server/network/server.py",
        "        elif connection.writer.is_too_slow(now_ms, patience_ms):\n",
        "        elif False:\n",
        "tests/server/network/test_connection_ends.py",
    ),
    Mutant(
        "broker: a request that names thousands waits for those before it",
        "sparklog_server/dispatch/dispatcher.py",
        "            await work.reserve(examined.elements)\n",
        "            pass\n",
        "tests/server/dispatch/test_work.py",
    ),
    Mutant(
        "broker: what a request took is given back when its handler is ended",
        "sparklog_server/network/connection.py",
        "            request.release()\n            raise\n",
        "            raise\n",
        "tests/server/dispatch/test_work.py",
    ),
    Mutant(
        "broker: a list that occurs again in an answer takes no more memory",
        "sparklog_server/protocol/response_writer.py",
        "            piece = out.repeated[key] = b",
        "            piece = b",
        "tests/server/protocol/test_response_writer.py",
    ),
    Mutant(
        "broker: a change that timed out before its turn is not made",
        "sparklog_server/admin/changes.py",
        "            if self._is_given_up:\n",
        "            if False:\n",
        "tests/server/admin/test_changes.py",
    ),
    Mutant(
        "broker: offsets do not expire by a wall clock that was set forward",
        "sparklog_server/coordinator/retention.py",
        "        return min(now.wall_ms, began.wall_ms + ",
        "        return max(now.wall_ms, began.wall_ms + ",
        "tests/server/coordinator/test_coordinator_expiry.py",
    ),
    Mutant(
        "broker: a record without a key closes nobody's groups",
        "sparklog_server/coordinator/replay.py",
        "    latest.pop(None, None)\n",
        "    pass\n",
        "tests/server/coordinator/test_coordinator.py",
    ),
    Mutant(
        "broker: nothing is acknowledged when the commit failed",
        "sparklog_server/publish/group_writer.py",
        "        except SparklogError as error:\n            plan.fail(outcomes, error)\n        else:\n",
        "        except SparklogError:\n            for one in plan._written:\n"
        "                _succeed(outcomes, one.run, 0, self._log.image)\n        else:\n",
        "tests/server/publish/test_group_writer.py",
    ),
    Mutant(
        "broker: a group is synced before it is committed",
        "sparklog_server/publish/group_writer.py",
        "            self._log.writer.sync([one.draft for one in written])\n",
        "            pass\n",
        "tests/server/publish/test_group_writer.py",
    ),
    Mutant(
        "broker: parts are judged again when the image moved",
        "sparklog_server/publish/group_writer.py",
        "        if image is not self._judged:\n",
        "        if False:\n",
        "tests/server/publish/test_group_writer.py",
    ),
    Mutant(
        "broker: a repeated batch is answered, not appended",
        "sparklog_server/publish/group_plan.py",
        "            return _duplicate(part, state, producer)\n",
        "            return _WRITE\n",
        "tests/server/publish/test_group_writer.py",
    ),
    Mutant(
        "broker: a batch behind one that failed is out of order",
        "sparklog_server/publish/group_plan.py",
        "    if producer.state is None and floors and _is_above(floors.get(key), part):\n",
        "    if False:\n",
        "tests/server/publish/test_group_writer.py",
    ),
    Mutant(
        "broker: a failed fsync or a newer broker stops it",
        "sparklog_server/publish/publisher.py",
        "        if not fenced and not isinstance(error, FatalStorageError):\n",
        "        if True:\n",
        "tests/server/publish/test_publisher_failures.py",
    ),
    Mutant(
        "broker: parts of a partition wait for those before them",
        "sparklog_server/publish/publisher.py",
        "                blocked |= one.partitions\n",
        "",
        "tests/server/publish/test_publisher.py",
    ),
    Mutant(
        "broker: a produced batch's CRC is verified",
        "sparklog_server/publish/produced_batches.py",
        "    if crc != header.crc:\n",
        "    if False:\n",
        "tests/server/publish/test_produced_batches.py",
    ),
    Mutant(
        "broker: a produced batch's records are inspected for keys and times",
        "sparklog_server/publish/produced_batches.py",
        "    if keyless or out_of_range or inspected.max_timestamp_ms < NO_TIMESTAMP_MS:\n",
        "    if False:\n",
        "tests/server/publish/test_produced_batches.py",
    ),
    Mutant(
        "broker: a produced batch counts its offsets from 0",
        "sparklog_server/publish/produced_batches.py",
        "    if header.base_offset != 0:\n",
        "    if False:\n",
        "tests/server/publish/test_produced_batches.py",
    ),
    Mutant(
        "broker: a produced batch is not larger than it may be",
        "sparklog_server/publish/produced_batches.py",
        "    if size > limit:\n",
        "    if False:\n",
        "tests/server/publish/test_produced_batches.py",
    ),
    Mutant(
        "broker: producer ids are never handed out twice",
        "sparklog_server/publish/producer_ids.py",
        "            self._next += 1\n",
        "",
        "tests/server/publish",
    ),
    Mutant(
        "broker: batches are fetched with the offsets that they got",
        "sparklog_server/fetch/reader.py",
        "            set_base_offsets(data, table.position, base)\n",
        "            pass\n",
        "tests/server/fetch/test_reader.py",
    ),
    Mutant(
        "broker: cached batches carry the offsets that they got",
        "sparklog_server/fetch/cache.py",
        "            set_base_offsets(block.data, positions, offsets)\n",
        "",
        "tests/server/fetch/test_cache.py",
    ),
    Mutant(
        "purgatory: a completed operation is forgotten everywhere",
        "sparklog_server/runtime/purgatory.py",
        "                self._release(operation)\n                operation.on_complete(expired=False)\n",
        "                operation.on_complete(expired=False)\n",
        "tests/server/runtime/test_purgatory.py",
    ),
    Mutant(
        "purgatory: an operation ends when its time is over",
        "sparklog_server/runtime/purgatory.py",
        "            self.on_complete(expired=True)\n",
        "            pass\n",
        "tests/server/runtime/test_purgatory.py",
    ),
    Mutant(
        "group: an old generation is refused",
        "sparklog_server/coordinator/group.py",
        "        if not error and generation_id != self.generation_id:\n",
        "        if False:\n",
        "tests/server/coordinator/test_group.py",
    ),
    Mutant(
        "group: an assignment of an old generation is not handed out",
        "sparklog_server/coordinator/group.py",
        "        if write.generation_id == self.generation_id:\n",
        "        if True:\n",
        "tests/server/coordinator/test_group.py tests/server/coordinator/test_group_schedules.py",
    ),
    Mutant(
        "group: a rebalance waits for all members",
        "sparklog_server/coordinator/rebalancing.py",
        "            and self.roster.joining == len(self.roster)\n",
        "",
        "tests/server/coordinator/test_group.py",
    ),
    Mutant(
        "group: offsets are refused while assignments are under way",
        "sparklog_server/coordinator/transitions.py",
        "            _C: ErrorCode.rebalance_in_progress,\n",
        "            _C: ErrorCode.none,\n",
        "tests/server/coordinator/test_transitions.py tests/server/coordinator/test_group.py",
    ),
    Mutant(
        "group: an offset commit is durable before it is answered",
        "sparklog_server/coordinator/shard.py",
        "        self._waiting.append(_Waiting(records, encoded, future))\n        return future\n",
        "        self._waiting.append(_Waiting(records, encoded, loop.create_future()))\n"
        "        future.set_result(None)\n        return future\n",
        "tests/server/coordinator/test_coordinator.py",
    ),
    Mutant(
        "group: offsets of others are applied before later ones of ours",
        "sparklog_server/coordinator/shard.py",
        "            await self._catch_up(base_offset)\n        if base_offset != self.next_offset:\n"
        "            return  # read from the log already\n",
        "            pass\n",
        "tests/server/coordinator/test_coordinator.py",
    ),
    Mutant(
        "group: nobody is served before the offsets are loaded",
        "sparklog_server/coordinator/coordinator.py",
        "ErrorCode.coordinator_load_in_progress\n            case ShardStatus.READY:\n",
        "ErrorCode.none\n            case ShardStatus.READY:\n",
        "tests/server/coordinator/test_coordinator.py",
    ),
    # --- what a few bytes can cost ---
    Mutant(
        "an error that is kept holds no buffers",
        "sparklog/errors.py",
        "    error.__traceback__ = error.__cause__ = error.__context__ = None\n",
        "",
        "tests/server/publish/test_part_checks.py",
    ),
    Mutant(
        "a batch decompresses to a multiple of its size only",
        "sparklog_server/publish/part_checks.py",
        "    max_plain_bytes = min(rules.max_decompressed_bytes, max(MAX_RATIO * len(data), granted))\n",
        "    max_plain_bytes = rules.max_decompressed_bytes\n",
        "tests/server/publish/test_part_checks.py",
    ),
    Mutant(
        "parts of a request share what each may decompress to",
        "sparklog_server/publish/part_checks.py",
        "MAX_GRANTED_BYTES // max(1, parts)",
        "MAX_GRANTED_BYTES",
        "tests/server/publish/test_part_checks.py",
    ),
    Mutant(
        "a batch of many records is not checked in the publisher's thread",
        "sparklog_server/publish/part_checks.py",
        "count <= QUICK_RECORDS and ",
        "",
        "tests/server/publish/test_part_checks.py",
    ),
    Mutant(
        "threads decompress within one budget",
        "sparklog_server/publish/check_memory.py",
        "not self.used_bytes or self.used_bytes + size <= self.limit_bytes",
        "True",
        "tests/server/publish/test_part_checks.py",
    ),
    Mutant(
        "whoever wants more memory to decompress in gives back first",
        "sparklog_server/publish/check_memory.py",
        "        self._give_back()\n        self._memory.take(size)\n",
        "        self._memory.take(size)\n        self._give_back()\n",
        "tests/server/publish/test_part_checks.py",
    ),
    Mutant(
        "a panic of a codec does not end a thread",
        "sparklog_server/publish/checkers.py",
        "        except BaseException as error:  # noqa: BLE001 - see above\n",
        "        except Exception as error:  # noqa: BLE001 - see above\n",
        "tests/server/publish/test_part_checks.py",
    ),
    Mutant(
        "looking at records ends at the first wrong one",
        "sparklog/format/record_inspection.py",
        "walk_records(data.data, count, row=row, at=at)",
        "walk_records(data.data, count)",
        "tests/format/test_record_inspection.py",
    ),
    Mutant(
        "a produced batch has a bound on records",
        "sparklog/format/produced.py",
        "    if header.record_count > MAX_RECORDS:\n",
        "    if False:\n",
        "tests/format/test_record_inspection.py",
    ),
    Mutant(
        "tagged fields of a request are counted",
        "sparklog_server/protocol/guard.py",
        "    walk.elements += count\n    if 2 * count >",
        "    if 2 * count >",
        "tests/server/protocol/test_guard.py",
    ),
    Mutant(
        "a header has few tagged fields",
        "sparklog_server/protocol/messages.py",
        "    if count > MAX_HEADER_TAGS:\n",
        "    if False:\n",
        "tests/server/protocol/test_guard.py",
    ),
    Mutant(
        "links in a root are not followed",
        "sparklog/storage/local_files.py",
        "os.O_NOFOLLOW | ",
        "",
        "tests/storage/test_local_faults.py",
    ),
    Mutant(
        "pipes in a root are not read",
        "sparklog/storage/local_files.py",
        "    if not stat.S_ISREG(os.fstat(fd).st_mode):\n",
        "    if False:\n",
        "tests/storage/test_local_faults.py",
    ),
    Mutant(
        "the lock file is opened like any file of a root",
        "sparklog/storage/holding.py",
        "        descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)\n",
        "        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)\n",
        "tests/server/cluster/test_broker_epoch.py",
    ),
    Mutant(
        "a root has a bound on partitions, in every plan",
        "sparklog/metadata/model/capacity.py",
        "    if present + added > limit:\n",
        "    if False:\n",
        "tests/metadata/test_plan_and_apply.py",
    ),
    Mutant(
        "parts of a request share the root's bound on partitions",
        "sparklog_server/admin/changes.py",
        "                    added += more\n",
        "                    added = more\n",
        "tests/server/admin/test_create_topics.py",
    ),
    Mutant(
        "a request makes ten thousand partitions at most",
        "sparklog_server/admin/changes.py",
        "        if added > MAX_ADDED_PARTITIONS:\n",
        "        if False:\n",
        "tests/server/admin/test_create_topics.py",
    ),
    Mutant(
        "a group is described once, however often it is named",
        "sparklog_server/api/describe_groups.py",
        "    names = dict.fromkeys(request.groups)\n",
        "    names = list(request.groups)\n",
        "tests/server/api/test_repeated_names.py",
    ),
    Mutant(
        "descriptions of groups have a limit",
        "sparklog_server/api/describe_groups.py",
        "    if group is not None and not fits:\n",
        "    if False:\n",
        "tests/server/api/test_repeated_names.py",
    ),
    Mutant(
        "offsets of whole groups have a limit",
        "sparklog_server/api/offset_fetch.py",
        " if context.answer.fits(_size_of(services, name, topics))",
        "",
        "tests/server/api/test_repeated_names.py",
    ),
    Mutant(
        "descriptions of settings have a limit",
        "sparklog_server/api/describe_configs.py",
        "        if known is None:\n",
        "        if False:\n",
        "tests/server/api/test_repeated_names.py",
    ),
    Mutant(
        "large answers wait for each other",
        "sparklog_server/protocol/answers.py",
        "            await self._budget.take(self, size, self._owner)\n",
        "            pass\n",
        "tests/server/protocol/test_answers.py",
    ),
    Mutant(
        "others have turns while an answer is made",
        "sparklog_server/protocol/answers.py",
        "        if len(made) % _SLICE == 0:\n",
        "        if False:\n",
        "tests/server/protocol/test_answers.py",
    ),
    Mutant(
        "an answer about all topics is made once",
        "sparklog_server/admin/topic_listing.py",
        "        if chunks is None:\n",
        "        if True:\n",
        "tests/server/admin/test_topic_listing.py",
    ),
    Mutant(
        "an answer about all topics is that of the image",
        "sparklog_server/admin/topic_listing.py",
        "        if image is not self._image:\n",
        "        if self._image is None:\n",
        "tests/server/admin/test_topic_listing.py",
    ),
    Mutant(
        "a fetch session ends with its connection",
        "sparklog_server/broker.py",
        "on_closed=self.fetches.sessions.end_of,",
        "on_closed=lambda _: None,",
        "tests/server/fetch/test_bounds.py",
    ),
    Mutant(
        "fetch sessions have a bound on bytes",
        "sparklog_server/fetch/sessions.py",
        "        if self.size_bytes + size_bytes > self._max_bytes:\n",
        "        if False:\n",
        "tests/server/fetch/test_bounds.py",
    ),
    Mutant(
        "a fetch session that grows too large ends",
        "sparklog_server/fetch/sessions.py",
        " or self.size_bytes > self._max_bytes\n",
        "\n",
        "tests/server/fetch/test_bounds.py",
    ),
    Mutant(
        "illegal names are not remembered in fetch sessions",
        "sparklog_server/api/fetch.py",
        "        wanted = [one for one in wanted if one.topic not in illegal]\n",
        "        pass\n",
        "tests/server/fetch/test_bounds.py",
    ),
    Mutant(
        "fetches that wait have a bound on bytes",
        "sparklog_server/fetch/service.py",
        " > self._settings.fetch_waiting_bytes",
        " > 1 << 62",
        "tests/server/fetch/test_bounds.py",
    ),
    Mutant(
        "a fetch that waits does not keep its request",
        "sparklog_server/api/fetch.py",
        "    del request, wanted  # it may wait for weeks\n",
        "",
        "tests/server/fetch/test_bounds.py",
    ),
    Mutant(
        "a connection keeps no body of a request that waits",
        "sparklog_server/dispatch/dispatcher.py",
        "        body, self._body = self._body, None\n",
        "        body = self._body\n",
        "tests/server/fetch/test_bounds.py",
    ),
    Mutant(
        "a SyncGroup that waits keeps no assignments",
        "sparklog_server/coordinator/coordinator.py",
        "        del request  # of a follower's nothing is needed\n",
        "",
        "tests/server/coordinator/test_coordinator_bounds.py",
    ),
    Mutant(
        "assignments on their way to the log count",
        "sparklog_server/coordinator/directory.py",
        "        self._count(handle, group.held_bytes)\n",
        "        self._count(handle, group.roster.held_bytes)\n",
        "tests/server/coordinator/test_coordinator_bounds.py",
    ),
    Mutant(
        "ids given to members to be count",
        "sparklog_server/coordinator/roster.py",
        " + PENDING_BYTES * len(self.pending)\n",
        "\n",
        "tests/server/coordinator/test_coordinator_bounds.py",
    ),
    Mutant(
        "idle HTTP connections give way",
        "sparklog_server/http/connections.py",
        "        if len(connections) > MAX_CONNECTIONS:\n",
        "        if False:\n",
        "tests/server/http/test_endpoint.py::test_idle_connections_do_not_make_a_broker_ill",
    ),
    Mutant(
        "an HTTP connection without a request ends",
        "sparklog_server/http/connections.py",
        "        if self.is_idle:\n",
        "        if False:\n",
        "tests/server/http/test_endpoint.py::test_a_connection_without_a_request_ends",
    ),
    Mutant(
        "an address has a share of the bytes of requests",
        "sparklog_server/network/limits.py",
        "        return self._over_share.get(one.owner, one.holder) is one.holder\n",
        "        return True\n",
        "tests/server/network/test_limits.py",
    ),
    Mutant(
        "who waits for its share keeps nobody else waiting",
        "sparklog_server/network/limits.py",
        "                    passed_over.append(self._waiting.popleft())\n                    continue\n",
        "                    break\n",
        "tests/server/network/test_limits.py",
    ),
    Mutant(
        "a large frame that stalls ends soon",
        "sparklog_server/network/server.py",
        "        elif connection.reader.is_too_slow(now_ms, patience_ms):\n",
        "        elif False:\n",
        "tests/server/network/test_connection_ends.py",
    ),
    Mutant(
        "doctor warns of a root that everybody may write to",
        "sparklog/cli/root_checks.py",
        "if path.stat().st_mode & stat.S_IWOTH]",
        "if False]",
        "tests/cli/test_doctor.py",
    ),
)


@dataclass(frozen=True)
class Result:
    """What became of a mutant."""

    mutant: Mutant
    outcome: str  # caught, survived, stale, broken
    by: str
    seconds: float


def main(words: list[str]) -> int:
    """Run the mutants that were asked for."""
    flags = {word for word in words if word.startswith("-")}
    words = [word.lower() for word in words if not word.startswith("-")]
    chosen = [one for one in MUTANTS if not words or any(word in _text_of(one) for word in words)]
    known = _rows(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
    if "--missing" in flags:
        chosen = [one for one in chosen if one.safeguard not in known]
    with tempfile.TemporaryDirectory(prefix="sparklog-mutants-") as directory:
        tree = Path(directory)
        for name in COPIED:
            _copy(ROOT / name, tree / name)
        selection = sorted({test for one in chosen for test in one.tests.split(" -k ")[0].split()})
        began = time.monotonic()
        code, output = (0, "") if "--trust" in flags else _run(tree, selection, 10 * TIMEOUT_SECONDS)
        if code:
            print(output, "\nThe tests fail without any mutant.", sep="")
            return 1
        print(
            f"without a mutant all {len(selection)} selections pass ({time.monotonic() - began:.0f} s)",
            flush=True,
        )
        results = []
        for one in chosen:
            results.append(_try(tree, one))
            result = results[-1]
            print(f"{result.outcome:9}{result.seconds:6.1f} s  {one.safeguard}  [{result.by}]", flush=True)
            if "--write" in flags:
                known[one.safeguard] = (result.outcome, result.by)
                TABLE.write_text(_table(known), encoding="utf-8")
    bad = [result for result in results if result.outcome != "caught"]
    print(f"{len(results)} mutants, {len(results) - len(bad)} caught")
    return 1 if bad else 0


def _text_of(mutant: Mutant) -> str:
    return f"{mutant.safeguard} {mutant.path}".lower()


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def _try(tree: Path, mutant: Mutant) -> Result:
    path = tree / mutant.path
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        return Result(mutant, "stale", f"found the text {text.count(mutant.old)} times, expected once", 0)
    began = time.monotonic()
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        code, output = _run(tree, mutant.tests.split())
    finally:
        path.write_text(text, encoding="utf-8")
    seconds = time.monotonic() - began
    failed = re.search(r"^(?:FAILED|ERROR) (\S+?::\S+)", output, re.MULTILINE)
    if code == 0:
        return Result(mutant, "survived", mutant.tests, seconds)
    if code == TESTS_FAILED and failed:
        return Result(mutant, "caught", failed[1].partition("[")[0], seconds)
    return Result(mutant, "broken", output.strip().rpartition("\n")[2], seconds)


def _run(tree: Path, tests: list[str], timeout_seconds: int = TIMEOUT_SECONDS) -> tuple[int, str]:
    # Bytecode is looked up by a file's time in seconds and its size: a mutant may have both of the original.
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(  # noqa: S603 - our own tests
            [sys.executable, *PYTEST, *tests],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_seconds,
        )
    except subprocess.TimeoutExpired:
        return 1, f"FAILED {tests[0]}::timeout"
    return done.returncode, done.stdout + done.stderr


def _rows(table: str) -> dict[str, tuple[str, str]]:
    """What a table says of each safeguard: the outcome, and the test."""
    found = re.findall(r"^\|([^|]+)\|`[^|]+`\|([^|]+)\|`([^|]+)`\|$", table, re.MULTILINE)
    return {safeguard: (outcome, by) for safeguard, outcome, by in found}


def _table(rows: dict[str, tuple[str, str]]) -> str:
    """Those that have been run, in the order of MUTANTS."""
    lines = [
        "# Mutants",
        "",
        "sparklog with one safeguard switched off at a time, and the test that noticed when it was last run.",
        "Written by `make mutants`; how each is switched off: `scripts/mutants.py`.",
        "",
        "|safeguard|where|outcome|first noticed by|",
        "|-|-|-|-|",
    ]
    for one in MUTANTS:
        if one.safeguard in rows:
            outcome, by = rows[one.safeguard]
            lines.append(f"|{one.safeguard}|`{one.path}`|{outcome}|`{by}`|")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
