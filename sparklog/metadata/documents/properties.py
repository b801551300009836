"""meta.properties: a root's cluster id and layout version.

Invariants: created once by put-if-absent, so that racing creators agree, and never in a directory with other
files (a table's directory, a home); never changed. Unknown keys or versions are refused; so is a damaged
file, since the cluster id protects every commit.
Sources: FORMAT.md#layout-of-a-root; Kafka's meta.properties.
"""

import contextlib
import re

from sparklog.errors import (
    AlreadyExistsError,
    CorruptLogError,
    InvalidRequestError,
    NotFoundError,
    UnsupportedVersionError,
)
from sparklog.metadata.documents.document import checksum
from sparklog.metadata.model.action import is_id
from sparklog.storage import IndefinitePutError, Store

# --- paths -------------------------------------------------------------------------------------------
#
# Names of the metadata log's files.
#
# Sources: FORMAT.md#metadata-log.


DIRECTORY = "__cluster_metadata"
# Put before the first commit is removed, and never removed itself; see cleaning.py.
CLEANED_MARKER = f"{DIRECTORY}/cleaned"
# The number of the newest snapshot, on stores that list slowly; see snapshot.py.
SNAPSHOT_HINT = f"{DIRECTORY}/newest-snapshot"
# Requests to publish, for other processes to apply; see requests.py.
REQUESTS = f"{DIRECTORY}/requests"
# A heartbeat of each broker, which is not metadata.
HEARTBEATS = f"{DIRECTORY}/heartbeats"
# The id of the newest incarnation, on stores where publishing does not list; see metadata/loading.py.
INCARNATION = f"{DIRECTORY}/incarnation"
MANIFEST = "manifest.json"
# [0-9], since \d matches digits of any script, whose files are not ours.
_COMMIT = re.compile(DIRECTORY + r"/([0-9]{20})\.json")
_MANIFEST = re.compile(DIRECTORY + r"/([0-9]{20})\.snapshot/manifest\.json")
_SNAPSHOT = re.compile(DIRECTORY + r"/([0-9]{20})\.snapshot/.+")
_REQUEST = re.compile(REQUESTS + r"/([0-9A-Za-z_-]{22})\.([0-9]{20})\.([0-9]{13})\.json")


def commit_name(commit: int) -> str:
    """Return the file of a commit."""
    return f"{DIRECTORY}/{commit:020d}.json"


def snapshot_directory(commit: int) -> str:
    """Return the directory of the snapshot taken after `commit`."""
    return f"{DIRECTORY}/{commit:020d}.snapshot"


def manifest_name(commit: int) -> str:
    """Return the manifest's file, whose presence makes a snapshot."""
    return f"{snapshot_directory(commit)}/{MANIFEST}"


def commit_of(name: str) -> int | None:
    """Return the commit of a file, or None."""
    return _number(_COMMIT.fullmatch(name))


def manifest_of(name: str) -> int | None:
    """Return the snapshot of a manifest's file, or None."""
    return _number(_MANIFEST.fullmatch(name))


def snapshot_of(name: str) -> int | None:
    """Return the snapshot of a file, complete or not, or None."""
    return _number(_SNAPSHOT.fullmatch(name))


def request_name(publisher: str, sequence: int, posted_ms: int) -> str:
    """Return the file of a request."""
    return f"{REQUESTS}/{publisher}.{sequence:020d}.{posted_ms % 10**13:013d}.json"


def request_of(name: str) -> tuple[str, int, int] | None:
    """Return (publisher, sequence, posted_ms) of a request's file, or None."""
    match = _REQUEST.fullmatch(name)
    return (match.group(1), int(match.group(2)), int(match.group(3))) if match else None


def _number(match: re.Match[str] | None) -> int | None:
    return int(match.group(1)) if match else None


# --- properties --------------------------------------------------------------------------------------


META_PROPERTIES = "meta.properties"
VERSION = 1
_MAX_BYTES = 4096
_PUT_ATTEMPTS = 3
_NAMES_LOOKED_AT = 100
_NAMES_SHOWN = 3
_OF_VOLUMES = {"lost+found"}
# Hidden names at the start of tables of other formats: Delta, Spark's file sink, Hudi.
_TABLES = {"_delta_log", "_spark_metadata", ".hoodie"}


def encode_properties(cluster_id: str) -> bytes:
    """Encode the file."""
    text = f"version={VERSION}\ncluster.id={cluster_id}\n".encode()
    return text + f"crc32c={checksum(text)}\n".encode()


def decode_properties(data: bytes, where: str) -> str:
    """Return the cluster id."""
    body, mark, crc = data.rpartition(b"crc32c=")
    pairs = dict(_pairs(body, where)) if mark else {}
    if not mark or crc != f"{checksum(body)}\n".encode():
        raise _damaged(where, f"found checksum {crc[:16]!r}, expected {checksum(body)}")
    version = pairs.pop("version", "")
    if version.isdecimal() and int(version[:9]) > VERSION:
        raise UnsupportedVersionError(
            "UNSUPPORTED_META_VERSION",
            f"{where}: found version {version}, expected {VERSION}; written by a newer version of sparklog",
            fix="Upgrade sparklog on every machine that uses this root",
        )
    cluster_id = pairs.pop("cluster.id", "")
    if version != str(VERSION) or pairs or not is_id(cluster_id):
        raise _damaged(
            where, f"found version {version!r}, cluster.id {cluster_id!r}, other keys {sorted(pairs)}"
        )
    return cluster_id


def open_properties(store: Store, *, create: bool, new_cluster_id: str) -> str:
    """Return the cluster id of a root; create the file, with `new_cluster_id`, if allowed.

    Raises:
        InvalidRequestError: not a root, and `create` is false, or the directory has other files.
        StorageError: the root is to be created, and the storage refuses a request that roots need.
    """
    where = f"{store.url}/{META_PROPERTIES}"
    try:
        return decode_properties(store.read(META_PROPERTIES, 0, _MAX_BYTES), where)
    except NotFoundError:
        pass
    if store.list("__cluster_metadata"):
        # The file precedes all commits: it was created between the two reads, or it is indeed missing.
        with contextlib.suppress(NotFoundError):
            return decode_properties(store.read(META_PROPERTIES, 0, _MAX_BYTES), where)
        raise _damaged(where, "the file is missing, but the root has metadata commits")
    if not create:
        raise InvalidRequestError(
            "ROOT_NOT_FOUND",
            f"{where}: not found, so this is not a root",
            fix="Check the path, or create a root: sparklog topics create, or create=True in Python",
        )
    strangers = [name for name in store.top_names(_NAMES_LOOKED_AT) if not _may_be_in_root(name)]
    if strangers:
        with contextlib.suppress(NotFoundError):  # created between the two reads
            return decode_properties(store.read(META_PROPERTIES, 0, _MAX_BYTES), where)
        raise _taken(store, strangers)
    store.try_requests()  # before anything is written that could not be cleaned later
    _put_definitely(store, encode_properties(new_cluster_id))
    store.restore_reserve()
    return decode_properties(store.read(META_PROPERTIES, 0, _MAX_BYTES), where)


def _may_be_in_root(name: str) -> bool:
    """True if a name may also be in a root: hidden from Spark (checkpoints), or part of a volume."""
    bare = name.rstrip("/")
    return (bare.startswith((".", "_")) and bare not in _TABLES) or bare in _OF_VOLUMES


def _taken(store: Store, strangers: list[str]) -> InvalidRequestError:
    shown = sorted(strangers)[:_NAMES_SHOWN]
    more = " and more" if len(strangers) > len(shown) else ""
    return InvalidRequestError(
        "ROOT_NOT_EMPTY",
        f"{store.url}: found {', '.join(shown)}{more}, and no {META_PROPERTIES}: expected a root, "
        "or an empty directory to create one in",
        fix=f"Name an existing root, or a new directory for a new root, such as {store.url}/log",
    )


def _put_definitely(store: Store, data: bytes) -> None:
    """Put until the file exists, our own or another creator's: both are fine."""
    for attempts_left in reversed(range(_PUT_ATTEMPTS)):
        try:
            store.put_if_absent(META_PROPERTIES, data)
        except AlreadyExistsError:
            # Another creator was faster, or an attempt of ours whose answer was lost. Its name may not be
            # durable yet, and we rely on it next.
            store.sync_directory("")
        except IndefinitePutError:
            if attempts_left == 0:
                raise
            continue
        return


def _pairs(body: bytes, where: str) -> list[tuple[str, str]]:
    try:
        lines = body.decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise _damaged(where, f"not ASCII text: {error}") from error
    split = [line.partition("=") for line in lines]
    if not all(mark for _, mark, _ in split) or len({key for key, _, _ in split}) != len(split):
        raise _damaged(where, "a line is not key=value, or a key occurs twice")
    return [(key, value) for key, _, value in split]


def _damaged(where: str, problem: str) -> CorruptLogError:
    return CorruptLogError(
        "CORRUPT_META_PROPERTIES",
        f"{where}: {problem}",
        fix="Restore the file from a copy; the cluster id is also in every file of __cluster_metadata",
    )
