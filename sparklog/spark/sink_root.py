"""The root of a sink: a batch write, or micro-batch 0 of a query, may create it; later micro-batches may not.

A volume that is not mounted looks like an empty directory. A query that has written before must not continue
in a new, empty root there: from micro-batch 1 on a missing root is an error, and so is a root with another
cluster id than the one that this process wrote to for the query.

Invariants: the cluster id of a query's root is kept per process, and in the checkpoint if it is accessible.
    Without either, a new process uses the root that it finds, with a warning if the query has never written
    there (`warn_of_first_write`). Option clusterId takes precedence over both.
Not here: the cache of open roots (roots.py).
Concurrency: as roots.py.
"""

import functools
import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sparklog.client import SparkLog
from sparklog.errors import InvalidRequestError, NotFoundError, SparklogError
from sparklog.spark.notices import Notices
from sparklog.spark.options import SinkOptions
from sparklog.spark.roots import StorageOptions, open_root
from sparklog.storage.root_rules import store_kind

if TYPE_CHECKING:
    from sparklog.storage import Store

# --- checkpoint --------------------------------------------------------------------------------------
#
# A checksum of a micro-batch's start and end, from the query's checkpoint: it distinguishes two micro-batches
# of the same number.
#
#     <checkpoint>/metadata            {"id":"<query id>"}
#     <checkpoint>/offsets/<batch>     "v1", a line of metadata (clocks, watermarks, settings), one per source
#                                      "v2", the same, and each source's line begins with its name and ":"
#
# Spark writes offsets/<batch> once, before it runs the batch, and repeats the batch from that file. So the
# sources' lines of this file and of the previous one are the batch's end and start, the same for every
# repetition; with a restored or copied checkpoint they differ. A file source's line only has numbers of
# entries in its own log (sources/<name>/), so these entries are included. In version 1 the name is the line's
# number; in version 2 it is the number or the name from readStream.name().
#
# Invariants: "" stands for unknown, and is not compared; the same files give the same checksum, in every
# place and process. Nothing here is an error, but a checkpoint that cannot be parsed is a warning: an older
# copy of it would go undetected.
# Not here: comparing (metadata/model/writers.py).
# Sources: Spark's OffsetSeqLog, StreamMetadata, FileStreamSourceLog.


# Reads files by name within the checkpoint; None for one that is missing or too large.
Reader = Callable[[Sequence[str]], list[bytes | None]]
MAX_FILE_BYTES = 4 << 20
_MAX_LOG_ENTRIES = 16  # of a file source, in one micro-batch: usually one, two after a crash


class _UnparsableError(ValueError):
    """A checkpoint exists, but cannot be parsed; the text has the reason."""


def batch_content(place: str | None, query_id: str, batch_id: int, options: SinkOptions) -> str:
    """Return a checksum of the micro-batch's start and end; "" if it is unknown.

    Args:
        place: the checkpoint's location, as in Spark's option; None: unknown.
        options: have the storage options for a checkpoint in a bucket, if the root is there too.
    """
    if not place:
        return ""
    try:
        reader = _reader(place, options)
        return "" if reader is None else _content(reader, query_id, batch_id)
    except _UnparsableError as problem:
        Notices({"place": place, "query": query_id}).warn(
            f"cannot parse the checkpoint {place} of query {query_id}: {problem}. So micro-batches of the "
            "same number cannot be compared: if an older copy of the checkpoint is restored, rows of its "
            "next micro-batch are skipped as a repetition"
        )
        return ""
    except (OSError, SparklogError, ValueError) as problem:
        logger.info("the checkpoint %s has no offsets of micro-batch %d: %s", place, batch_id, problem)
        return ""


def read_files(place: str, names: Sequence[str], options: SinkOptions) -> list[bytes | None]:
    """Return files of a checkpoint; None for one that is missing, too large, or not accessible from here.

    Raises:
        OSError, SparklogError: a file could not be read.
    """
    reader = _reader(place, options)
    return [None] * len(names) if reader is None else reader(names)


def write_file(place: str, name: str, data: bytes, options: SinkOptions) -> bool:
    """Write or replace a small file in a checkpoint, atomically.

    Return False if the checkpoint does not exist or is not accessible from here.

    Raises:
        OSError, SparklogError: it could not be written.
    """
    if _has_storage_of_root(place, options):
        _bucket(os.getpid(), place, options.storage).put_hint(name, data)
        return True
    directory = _directory(place)
    if directory is None or not (directory / "metadata").is_file():
        return False
    temporary = directory / f".{name}.{os.getpid()}.tmp"
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())  # else a power cut may leave an empty file
    temporary.replace(directory / name)
    return True


def _reader(place: str, options: SinkOptions) -> Reader | None:
    if _has_storage_of_root(place, options):
        return _bucket_reader(os.getpid(), place, options.storage)
    directory = _directory(place)
    if directory is None:
        return None
    return lambda names: [_read_file(directory / name) for name in names]


def _has_storage_of_root(place: str, options: SinkOptions) -> bool:
    """Return True if both are in S3, or another store: the root's storage options are used for both."""
    kind = store_kind(options.root, options.storage.to_dict())
    return kind in {"s3", "gs", "azure", "hdfs"} and store_kind(place) == kind


def _directory(place: str) -> Path | None:
    scheme = _scheme(place)
    if scheme not in ("", "file"):
        return None
    if not scheme:
        return Path(place)
    # As Hadoop's Path does, not as a URL: %20, ? and # are literal.
    rest = place.partition(":")[2]
    return Path(rest[rest.index("/", 2) :] if rest.startswith("//") else rest)


def _scheme(url: str) -> str:
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", url)
    return match[1].lower() if match else ""


def _read_file(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    return data if len(data) <= MAX_FILE_BYTES else None


@functools.lru_cache(maxsize=8)
def _bucket(_pid: int, place: str, storage: StorageOptions) -> "Store":
    """Cached by process: a client costs more than the requests; a forked child needs its own."""
    from sparklog.storage import open_store  # noqa: PLC0415 - only where checkpoints are in buckets

    return open_store(place, storage_options=storage.to_dict())


def _bucket_reader(pid: int, place: str, storage: StorageOptions) -> Reader:
    store = _bucket(pid, place, storage)

    def read(names: Sequence[str]) -> list[bytes | None]:
        found = store.read_many(names, max_bytes=MAX_FILE_BYTES + 1)
        return [None if data is None or len(data) > MAX_FILE_BYTES else data for data in found]

    return read


def _content(read: Reader, query_id: str, batch_id: int) -> str:
    names = ["metadata", f"offsets/{batch_id}"]
    metadata, end, *before = read([*names, f"offsets/{batch_id - 1}"] if batch_id else names)
    if metadata is None:
        return ""  # not found: perhaps it is in a file system that only Spark can access
    if (found := _json_object(metadata).get("id")) != query_id:
        raise _UnparsableError(f"the file metadata belongs to query {found}")
    if end is None or None in before:
        raise _UnparsableError("a file in offsets is missing or too large")
    ends = _sources(end)
    starts = [source for data in before if data is not None for source in _sources(data)]
    parts = [*(line for _, line in starts), b"end", *(line for _, line in ends)]
    first = {name: _log_offset(line) for name, line in starts}
    for name, line in ends:
        last = _log_offset(line)
        if last is not None:
            reached = first.get(name)
            parts += [b"files", *_log_entries(read, name, -1 if reached is None else reached, last)]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"%d:%s" % (len(part), part))
    return digest.hexdigest()[:32]


def _sources(data: bytes) -> list[tuple[str, bytes]]:
    """Return each source's name in the checkpoint, and its line of an offset file, in a fixed order.

    Raises:
        _UnparsableError: it is not an offset file, or its version is unknown.
    """
    version, _, rest = data.partition(b"\n")
    metadata, _, lines = rest.partition(b"\n")
    _json_object(metadata)
    if version == b"v1":
        return [(str(number), line) for number, line in enumerate(lines.split(b"\n"))]
    if version != b"v2":
        raise _UnparsableError(f"a file in offsets begins with {version[:20]!r}, expected v1 or v2")
    # Spark writes a map, in an unspecified order.
    return [(_name(line), line) for line in sorted(lines.split(b"\n"))]


def _name(line: bytes) -> str:
    name, colon, _ = line.partition(b":")
    if not colon or not re.fullmatch(rb"[\w-]+", name):
        raise _UnparsableError(f"found {line[:40]!r}, expected a source's name, a colon and its offset")
    return name.decode()


def _json_object(data: bytes) -> dict[str, object]:
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    raise _UnparsableError(f"found {data[:40]!r}, expected a JSON object")


def _log_offset(line: bytes) -> int | None:
    """Return a file source's position in its own log; None: another kind of source."""
    if b'"logOffset"' not in line:
        return None
    found = _json_object(line[line.index(b"{") :] if b"{" in line else line)
    offset = found.get("logOffset")
    if offset is None or isinstance(offset, dict):
        return None  # a source with a topic of that name
    if len(found) > 1 or type(offset) is not int or offset < -1:
        raise _UnparsableError(f'found the offset {line[:60]!r}, expected {{"logOffset":<number>}}')
    return offset


def _log_entries(read: Reader, source: str, first: int, last: int) -> list[bytes]:
    """Return the entries of a batch in a file source's log, after `first` up to `last`.

    Raises:
        _UnparsableError: too many entries, or one is missing.
    """
    if last - first > _MAX_LOG_ENTRIES:
        raise _UnparsableError(f"a micro-batch has more than {_MAX_LOG_ENTRIES} entries of sources/{source}")
    numbers = range(first + 1, last + 1)
    plain = read([f"sources/{source}/{number}" for number in numbers])
    missing = [number for number, data in zip(numbers, plain, strict=True) if data is None]
    compact = read([f"sources/{source}/{number}.compact" for number in missing])
    if None in compact:
        raise _UnparsableError(
            f"an entry of sources/{source} is missing, or larger than {MAX_FILE_BYTES} bytes"
        )
    entries = [data for data in plain if data is not None]
    for number, data in zip(missing, compact, strict=True):
        # A compact entry repeats all earlier entries.
        lines = (data or b"").split(b"\n")[1:]
        entries += [line for line in lines if _json_object(line).get("batchId") == number]
    return entries


# --- pinned root -------------------------------------------------------------------------------------
#
# The cluster id of a query's root, stored in its checkpoint: the query refuses any other root later.
#
#     <checkpoint>/sparklog-sink     {"version": 1, "query_id": "...", "cluster_id": "..."}
#
# A process keeps it in memory, but a restarted query runs in new processes. Before the restart a volume may
# have been lost, a path may have been changed to another place, or a broker's answer may have changed.
#
# Invariants: written by the driver after the first micro-batch with rows was published, and again only if
#     option clusterId names another root: the user's confirmation. A file that cannot be read or written is
#     ignored: the checkpoint may be where only Spark has access.
# Not here: the checkpoint's location (stream_writer.py), the source's cluster id, in its offsets
#     (stream_offset.py).
# Concurrency: one driver per checkpoint, as for all its files.


NAME = "sparklog-sink"
VERSION = 1
# process, checkpoint, query -> the stored cluster id; None: it could not be written, and is not tried again
_known: dict[tuple[int, str, str], str | None] = {}


def validate_pinned(
    place: str | None, query_id: str, batch_id: int, log: SparkLog, options: SinkOptions
) -> None:
    """Refuse a root whose cluster id is not the checkpoint's, unless clusterId names it.

    Raises:
        InvalidRequestError: WRONG_ROOT.
    """
    if not place or options.rules.cluster_id is not None:
        return
    expected = _pinned(place, query_id, options)
    if expected is not None and expected != log.cluster_id:
        _known.pop((os.getpid(), place, query_id))  # another process may have written it since
        expected = _pinned(place, query_id, options)
    if expected is not None and expected != log.cluster_id:
        raise InvalidRequestError(
            "WRONG_ROOT",
            f"found the root with cluster id {log.cluster_id} at {log.url}, expected {expected}, the root of "
            f"query {query_id} in the checkpoint {place}: this is micro-batch {batch_id}",
            fix="mount or restore the expected root, or correct the path; to continue in this root on "
            f"purpose, set option clusterId to {log.cluster_id}",
        )


def pin_root(place: str | None, query_id: str, log: SparkLog, options: SinkOptions) -> None:
    """Store the root's cluster id in the checkpoint, after the query has written to it."""
    if not place or _pinned(place, query_id, options) == log.cluster_id:
        return
    key = (os.getpid(), place, query_id)
    if key in _known and _known[key] is None:
        return
    document = {"version": VERSION, "query_id": query_id, "cluster_id": log.cluster_id}
    written = False
    try:
        written = write_file(place, NAME, json.dumps(document).encode(), options)
    except (OSError, SparklogError, ValueError) as problem:
        logger.info("cannot store the query's root in the checkpoint %s: %s", place, problem)
    _known[key] = log.cluster_id if written else None  # a failure is not tried again with every micro-batch


def _pinned(place: str, query_id: str, options: SinkOptions) -> str | None:
    key = (os.getpid(), place, query_id)
    if key not in _known:
        found = _read(place, query_id, options)
        if found is None:
            return None
        _known[key] = found
    return _known[key]


def _read(place: str, query_id: str, options: SinkOptions) -> str | None:
    try:
        (data,) = read_files(place, [NAME], options)
        document = {} if data is None else json.loads(data)
    except (OSError, SparklogError, ValueError) as problem:
        logger.info("cannot read the query's root from the checkpoint %s: %s", place, problem)
        return None
    if not isinstance(document, dict) or document.get("query_id") != query_id:
        return None  # of an earlier checkpoint in this place
    found = document.get("cluster_id")
    return found if isinstance(found, str) else None


# --- sink root ---------------------------------------------------------------------------------------


logger = logging.getLogger("sparklog.spark")
_cluster_ids: dict[tuple[int, str, str], str] = {}  # (process, root, query) -> cluster id


def open_sink_root(options: SinkOptions, query_id: str | None, batch_id: int | None) -> SparkLog:
    """Return the root to write to.

    Args:
        query_id, batch_id: of the micro-batch; ignored in batch writes, also in those of foreachBatch.

    Raises:
        NotFoundError: ROOT_NOT_FOUND, and this is not the first micro-batch.
        InvalidRequestError: WRONG_ROOT, this process wrote the query's last rows to another root.
    """
    if not options.streaming or query_id is None or not batch_id:
        log = open_root(options.root, create=True, storage=options.storage, rules=options.rules)
        if options.streaming and query_id is not None:
            _cluster_ids[os.getpid(), options.root, query_id] = log.cluster_id
        return log
    try:
        log = open_root(
            options.root, create=False, writing=True, storage=options.storage, rules=options.rules
        )
    except (NotFoundError, InvalidRequestError) as error:
        if error.code != "ROOT_NOT_FOUND":
            raise
        raise NotFoundError(
            "ROOT_NOT_FOUND",
            f"found no root at {options.root}, expected that of the earlier micro-batches of query "
            f"{query_id}: this is micro-batch {batch_id} ({error.message})",
            fix="mount or restore the root; to continue in a new place on purpose, create an empty root "
            "there first (sparklog.open) and set option clusterId to its cluster id, or start the query with "
            "a new checkpointLocation",
        ) from None
    key = (os.getpid(), options.root, query_id)
    if options.rules.cluster_id is not None:
        _cluster_ids[key] = log.cluster_id  # the option's
    expected = _cluster_ids.setdefault(key, log.cluster_id)
    if log.cluster_id != expected:
        raise InvalidRequestError(
            "WRONG_ROOT",
            f"found the root with cluster id {log.cluster_id} at {options.root}, expected {expected}, that "
            f"of the earlier micro-batches of query {query_id}: this is micro-batch {batch_id}",
            fix="mount or restore the expected root; to write to the new root on purpose, set option "
            f"clusterId to {log.cluster_id}, or start the query with a new checkpointLocation",
        )
    return log


def reset() -> None:
    """Forget all roots, as in a new process."""
    _cluster_ids.clear()
    _known.clear()


def warn_of_first_write(log: SparkLog, query_id: str, application: str, batch_id: int) -> None:
    """Warn if a query that is past its first micro-batch has never written to this root."""
    image = log.image
    known = any(application in topic.writer_txns for topic in image.topics.values())
    if batch_id and not known:
        logger.warning(
            "micro-batch %d of query %s is the first one that writes to the root %s (cluster id %s). If "
            "earlier ones had rows, the root was replaced, or their topics were deleted",
            batch_id,
            query_id,
            log.url,
            log.cluster_id,
        )
