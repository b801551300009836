"""How a query reaches its storage: options under the names that s3fs's and Hadoop's users know.

    .option("s3.endpoint_url", "http://127.0.0.1:8333")   s3fs's names after "s3."
    .option("endpoint_url", ...)                          the usual ones also as they are
    .option("fs.s3a.access.key", ...)                     Hadoop's S3A
    .option("allow_unsafe_filesystem", "true")            for a directory (docs/filesystems.md)

What is not given comes from each process's environment and AWS's files (docs/s3.md).
Invariants: values are checked on the driver; they travel to executors with the reader or writer, and are in
    no input partition, offset, commit message, repr or error message.
Sources: s3fs.S3FileSystem; Hadoop's S3A.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparklog.errors import InvalidRequestError
from sparklog.storage.filesystems import OPTION as ALLOW_UNSAFE
from sparklog.storage.filesystems import parse_flag

_PREFIX = "s3."
_PLAIN = {"anon", "endpoint_url", "key", "profile", "region", "secret", "token"}
_HADOOP = {
    "fs.s3a.access.key": "key",
    "fs.s3a.secret.key": "secret",
    "fs.s3a.session.token": "token",
    "fs.s3a.endpoint": "endpoint_url",
    "fs.s3a.endpoint.region": "region",
    "fs.s3a.path.style.access": "path_style",
    "fs.s3a.connection.ssl.enabled": "use_ssl",
}
# Spark asks a stream for news about a hundred times a second.
STREAM_REFRESH_MS = 200


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Storage options of one query; hashable and picklable. Its repr shows names only."""

    items: tuple[tuple[str, str], ...] = ()

    def to_dict(self) -> dict[str, Any] | None:
        """For sparklog.open."""
        return dict(self.items) or None

    def __repr__(self) -> str:
        return f"StorageOptions({', '.join(name for name, _ in self.items)})"


NO_STORAGE_OPTIONS = StorageOptions()


def storage_name(option: str) -> str | None:
    """The storage option that a query's option (in lower case) means; None if it is none."""
    if option.startswith(_PREFIX):
        return option.removeprefix(_PREFIX)
    return option if option in _PLAIN else _HADOOP.get(option)


def parse_storage(given: Mapping[str, str], root: str, *, streaming: bool = False) -> StorageOptions:
    """The storage options among a query's (names in lower case).

    Raises:
        InvalidRequestError: an unknown or malformed one.
    """
    values = {name: value for option, value in given.items() if (name := storage_name(option)) is not None}
    is_s3 = root.lower().startswith(("s3:", "s3a:", "s3n:"))
    if ALLOW_UNSAFE in given:
        allow = str(parse_flag(ALLOW_UNSAFE, given[ALLOW_UNSAFE])).lower()
        if not is_s3 and not values:
            return StorageOptions(((ALLOW_UNSAFE, allow),))
        raise InvalidRequestError(
            "INVALID_OPTION",
            f"{ALLOW_UNSAFE} is for a directory, and the root or the other options are of an object store",
            fix=f"remove {ALLOW_UNSAFE}, or correct the root",
        )
    if streaming and is_s3:
        values.setdefault("refresh_interval_ms", str(STREAM_REFRESH_MS))
    if values:
        from sparklog.storage.s3_options import parse_storage_options  # noqa: PLC0415 - few queries need it

        parse_storage_options(values)
    return StorageOptions(tuple(sorted(values.items())))
