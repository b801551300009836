"""The root that a sink writes to: made by a batch write, and by micro-batch 0 of a query, but not later.

A volume that is not mounted looks like a directory where nothing has ever been. A query that has written
before must not go on in a new, empty root there: from micro-batch 1 on a missing root is an error, and so is
one that has become another since this process wrote to it for the query.

Invariants: which root a query writes to is remembered per process, and in the checkpoint where that can be
    reached. Without it a new process takes the root that it finds; where that has never seen
    the query, it says so (`warn_of_first_write`). Option clusterId beats both.
Not here: keeping roots open (roots.py).
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

if TYPE_CHECKING:
    from sparklog.storage import Store

# --- checkpoint --------------------------------------------------------------------------------------
#
# What a query's checkpoint says of a micro-batch, as a text that tells two of the same number apart.
#
#     <checkpoint>/metadata            {"id":"<query id>"}
#     <checkpoint>/offsets/<batch>     "v1", a line of metadata (clocks, watermarks, settings), one per source
#                                      "v2", the same, and each source's line begins with its name and ":"
#
# Spark writes offsets/<batch> before it runs the batch, once, and repeats the batch from that file. So the
# sources' lines of this file and of the one before say where the batch starts and ends, the same whenever it
# is repeated; what a restored or copied checkpoint makes of the same number has others. A source of files
# says only which entries of its own log the batch has (sources/<name>/), so these count too. In version 1 the
# name is the line's number; in version 2 it is the number or what readStream.name() says.
#
# Invariants: what cannot be known is "", which is compared with nothing; the same files give the same text,
# wherever they lie and in every process. Nothing of it is an error, but what is there and is not understood
# is a warning: an older copy of the checkpoint would not be noticed.
# Not here: comparing (metadata/model/writers.py).
# Sources: Spark's OffsetSeqLog, StreamMetadata, FileStreamSourceLog.


# By name within the checkpoint; None for what is missing or too large.
Reader = Callable[[Sequence[str]], list[bytes | None]]
MAX_FILE_BYTES = 4 << 20
_MAX_LOG_ENTRIES = 16  # of a source of files, in one micro-batch: it is one, or two after a crash
_S3 = ("s3", "s3a", "s3n")


class _NotUnderstoodError(ValueError):
    """A checkpoint was found, and does not say what its micro-batch holds; the text says why."""


def batch_content(place: str | None, query_id: str, batch_id: int, options: SinkOptions) -> str:
    """A checksum of where the micro-batch starts and ends; "" if that cannot be known here.

    Args:
        place: the checkpoint, as Spark was told; None if nobody knows.
        options: if the root is in S3, a checkpoint there is reached the same way.
    """
    if not place:
        return ""
    try:
        reader = _reader(place, options)
        return "" if reader is None else _content(reader, query_id, batch_id)
    except _NotUnderstoodError as problem:
        Notices({"place": place, "query": query_id}).warn(
            f"the checkpoint {place} of query {query_id} is not understood: {problem}. So it is not checked "
            "whether a micro-batch with the number of the topic's last one is the same as that: if an older "
            "copy of the checkpoint is put back, its rows are left out as a repetition"
        )
        return ""
    except (OSError, SparklogError, ValueError) as problem:
        logger.info("the checkpoint %s does not say what micro-batch %d holds: %s", place, batch_id, problem)
        return ""


def read_files(place: str, names: Sequence[str], options: SinkOptions) -> list[bytes | None]:
    """Files of a checkpoint; None for what is missing, too large, or out of reach from here.

    Raises:
        OSError, SparklogError: it could not be read.
    """
    reader = _reader(place, options)
    return [None] * len(names) if reader is None else reader(names)


def write_file(place: str, name: str, data: bytes, options: SinkOptions) -> bool:
    """Put a small file into a checkpoint, whole, in the place of one of the same name.

    Returns: whether the checkpoint can be reached from here, and is one.

    Raises:
        OSError, SparklogError: it could not be written.
    """
    if _is_beside_root(place, options):
        _s3_store(os.getpid(), place, options.storage).put_hint(name, data)
        return True
    directory = _directory(place)
    if directory is None or not (directory / "metadata").is_file():
        return False
    temporary = directory / f".{name}.{os.getpid()}.tmp"
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())  # otherwise a power cut may leave the new name with nothing in it
    temporary.replace(directory / name)
    return True


def _reader(place: str, options: SinkOptions) -> Reader | None:
    if _is_beside_root(place, options):
        return _s3_reader(os.getpid(), place, options.storage)
    directory = _directory(place)
    if directory is None:
        return None
    return lambda names: [_read_file(directory / name) for name in names]


def _is_beside_root(place: str, options: SinkOptions) -> bool:
    """In S3, as the root: it is reached the same way."""
    return _scheme(place) in _S3 and _scheme(options.root) in _S3


def _directory(place: str) -> Path | None:
    scheme = _scheme(place)
    if scheme not in ("", "file"):
        return None
    if not scheme:
        return Path(place)
    # As Hadoop's Path does, and no URL: %20, ? and # stand for themselves.
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
def _s3_store(_pid: int, place: str, storage: StorageOptions) -> "Store":
    """Kept: a client costs more than the requests; a forked child needs one of its own."""
    from sparklog.storage import open_store  # noqa: PLC0415 - only where checkpoints are in S3

    return open_store(place, storage_options=storage.to_dict())


def _s3_reader(pid: int, place: str, storage: StorageOptions) -> Reader:
    store = _s3_store(pid, place, storage)

    def read(names: Sequence[str]) -> list[bytes | None]:
        found = store.read_many(names, max_bytes=MAX_FILE_BYTES + 1)
        return [None if data is None or len(data) > MAX_FILE_BYTES else data for data in found]

    return read


def _content(read: Reader, query_id: str, batch_id: int) -> str:
    names = ["metadata", f"offsets/{batch_id}"]
    metadata, end, *before = read([*names, f"offsets/{batch_id - 1}"] if batch_id else names)
    if metadata is None:
        return ""  # none is here: perhaps it is in a file system that only Spark can reach
    if (found := _json_object(metadata).get("id")) != query_id:
        raise _NotUnderstoodError(f"the file metadata is of query {found}")
    if end is None or None in before:
        raise _NotUnderstoodError("a file in offsets is missing or too large")
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
        _NotUnderstoodError: it is not an offset file, or of a version that is not known.
    """
    version, _, rest = data.partition(b"\n")
    metadata, _, lines = rest.partition(b"\n")
    _json_object(metadata)
    if version == b"v1":
        return [(str(number), line) for number, line in enumerate(lines.split(b"\n"))]
    if version != b"v2":
        raise _NotUnderstoodError(f"a file in offsets begins with {version[:20]!r}, expected v1 or v2")
    # Spark writes a map, in no order that it promises.
    return [(_name(line), line) for line in sorted(lines.split(b"\n"))]


def _name(line: bytes) -> str:
    name, colon, _ = line.partition(b":")
    if not colon or not re.fullmatch(rb"[\w-]+", name):
        raise _NotUnderstoodError(
            f"found {line[:40]!r}, expected a source's name, and after a colon its offset"
        )
    return name.decode()


def _json_object(data: bytes) -> dict[str, object]:
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    raise _NotUnderstoodError(f"found {data[:40]!r}, expected a JSON object")


def _log_offset(line: bytes) -> int | None:
    """How far a source of files has come in its own log, if it is one."""
    if b'"logOffset"' not in line:
        return None
    found = _json_object(line[line.index(b"{") :] if b"{" in line else line)
    offset = found.get("logOffset")
    if offset is None or isinstance(offset, dict):
        return None  # a source with a topic of that name
    if len(found) > 1 or type(offset) is not int or offset < -1:
        raise _NotUnderstoodError(f'found the offset {line[:60]!r}, expected {{"logOffset":<number>}}')
    return offset


def _log_entries(read: Reader, source: str, first: int, last: int) -> list[bytes]:
    """The files of a batch, after entry `first` up to `last`.

    Raises:
        _NotUnderstoodError: they cannot be known.
    """
    if last - first > _MAX_LOG_ENTRIES:
        raise _NotUnderstoodError(
            f"a micro-batch has more than {_MAX_LOG_ENTRIES} entries of sources/{source}"
        )
    numbers = range(first + 1, last + 1)
    plain = read([f"sources/{source}/{number}" for number in numbers])
    missing = [number for number, data in zip(numbers, plain, strict=True) if data is None]
    compact = read([f"sources/{source}/{number}.compact" for number in missing])
    if None in compact:
        raise _NotUnderstoodError(
            f"an entry of sources/{source} is missing, or larger than {MAX_FILE_BYTES} bytes"
        )
    entries = [data for data in plain if data is not None]
    for number, data in zip(missing, compact, strict=True):
        # A compact entry repeats all that came before it.
        lines = (data or b"").split(b"\n")[1:]
        entries += [line for line in lines if _json_object(line).get("batchId") == number]
    return entries


# --- pinned root -------------------------------------------------------------------------------------
#
# Which root a query writes to, remembered in its checkpoint: what is found there later must be the same.
#
#     <checkpoint>/sparklog-sink     {"version": 1, "query_id": "...", "cluster_id": "..."}
#
# A process remembers it by itself, and a query that is restarted runs in new ones. Meanwhile a
# volume may have been lost, a path may have come to mean another place, or a broker's answer may have
# changed.
#
# Invariants: written by the driver after the first micro-batch with rows was published, and again only where
#     option clusterId names another root: that is how a user says that the new place is meant. What cannot be
#     read or written is nothing: the checkpoint may be where only Spark can reach it.
# Not here: where a checkpoint is (stream_writer.py), the source's own memory, which is in its offsets
#     (stream_offset.py).
# Concurrency: one driver a checkpoint, as for everything in it.


NAME = "sparklog-sink"
VERSION = 1
# process, checkpoint, query -> the root that is written there; None: it could not be, and is not tried again
_known: dict[tuple[int, str, str], str | None] = {}


def validate_pinned(
    place: str | None, query_id: str, batch_id: int, log: SparkLog, options: SinkOptions
) -> None:
    """Refuse a root that is another than the checkpoint says, unless clusterId names it.

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
            f"found the root with cluster id {log.cluster_id} at {log.url}, expected {expected}, which the "
            f"checkpoint {place} says that query {query_id} writes to: this is micro-batch {batch_id}",
            fix="mount or restore what was there, or name it; to go on in this root on purpose, set option "
            f"clusterId to {log.cluster_id}",
        )


def pin_root(place: str | None, query_id: str, log: SparkLog, options: SinkOptions) -> None:
    """Remember the root, now that something of the query is in it."""
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
        logger.info("the checkpoint %s cannot hold which root the query writes to: %s", place, problem)
    _known[key] = log.cluster_id if written else None  # a failure is not tried again with every micro-batch


def forget_pinned_roots() -> None:
    """As a process that has looked at no checkpoint."""
    _known.clear()


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
        logger.info("the checkpoint %s does not say which root the query writes to: %s", place, problem)
        return None
    if not isinstance(document, dict) or document.get("query_id") != query_id:
        return None  # of a checkpoint that was here before
    found = document.get("cluster_id")
    return found if isinstance(found, str) else None


# --- sink root ---------------------------------------------------------------------------------------


logger = logging.getLogger("sparklog.spark")
_cluster_ids: dict[tuple[int, str, str], str] = {}  # process, root, query -> the root that it wrote to


def open_sink_root(options: SinkOptions, query_id: str | None, batch_id: int | None) -> SparkLog:
    """The root to write to, now.

    Args:
        query_id, batch_id: of the micro-batch; not looked at in batch writes, also within a foreachBatch.

    Raises:
        NotFoundError: ROOT_NOT_FOUND, and this is not the first micro-batch.
        InvalidRequestError: WRONG_ROOT, it is not the one that this process wrote the query's last rows to.
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
            f"found no root at {options.root}, expected the one that the earlier micro-batches of query "
            f"{query_id} went to: this is micro-batch {batch_id} ({error.message})",
            fix="mount or restore what was there; to go on in a new place on purpose, make an empty root "
            "there first (sparklog.open) and set option clusterId to its cluster id, or start the query with "
            "a new checkpointLocation",
        ) from None
    key = (os.getpid(), options.root, query_id)
    if options.rules.cluster_id is not None:
        _cluster_ids[key] = log.cluster_id  # which is the one that it names
    expected = _cluster_ids.setdefault(key, log.cluster_id)
    if log.cluster_id != expected:
        raise InvalidRequestError(
            "WRONG_ROOT",
            f"found the root with cluster id {log.cluster_id} at {options.root}, expected {expected}, which "
            f"the earlier micro-batches of query {query_id} went to: this is micro-batch {batch_id}",
            fix="mount or restore what was there; to write to the new root on purpose, set option clusterId "
            f"to {log.cluster_id}, or start the query with a new checkpointLocation",
        )
    return log


def start_anew() -> None:
    """As a process that has written for no query."""
    _cluster_ids.clear()


def warn_of_first_write(log: SparkLog, query_id: str, application: str, batch_id: int) -> None:
    """Say it when a query that has run for a while has never written to this root: was it replaced?"""
    image = log.image
    known = any(application in topic.writer_txns for topic in image.topics.values())
    if batch_id and not known:
        logger.warning(
            "micro-batch %d of query %s is the first that writes to the root %s (cluster id %s). If earlier "
            "ones had rows, they went to another root, or to topics that were deleted: was it replaced?",
            batch_id,
            query_id,
            log.url,
            log.cluster_id,
        )
