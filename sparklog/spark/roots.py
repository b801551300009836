"""Opened roots, one per process and directory, cached between Spark's calls.

Spark's Python workers serve many micro-batches, and opening a root reads its metadata; so each process caches
its open roots. A root may be removed and created again under the same path while a worker lives (tests and
notebooks do it); the next commit of a cached root would then go to the wrong log. Hence every use compares
the cluster id on storage; readers of a remote root, where that is a request, do so every few seconds. The
caller decides whether a new root is acceptable (sink_root.py).

Each plan asks the broker for its root, on the driver only: executors and checkpoints get the root. Reading
does not need the broker, so a process that knows the root continues without it.

Concurrency: Spark's workers are single-threaded; a forked child starts with an empty table.
"""

import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sparklog.errors import InvalidRequestError, RetriableError
from sparklog.storage.filesystems import OPTION as ALLOW_UNSAFE
from sparklog.storage.filesystems import parse_flag
from sparklog.storage.root_rules import ANY_ROOT, PROTOCOL, RootRules, store_kind

if TYPE_CHECKING:
    from sparklog.client import SparkLog
    from sparklog.client.brokers import BrokerRoot
    from sparklog.client.security import ClientSecurity

# --- storage options ---------------------------------------------------------------------------------
#
# A query's storage options, under the names of fsspec's file systems and of Hadoop.
#
#     .option("s3.endpoint_url", "http://127.0.0.1:8333")   s3fs's names after "s3."
#     .option("gs.token", "/keys/sparklog.json")            gcsfs's after "gs.", adlfs's after "azure."
#     .option("hdfs.user", "etl")                           webhdfs's after "hdfs."
#     .option("fsspec.host", ...)                           a file system's own, for a root through fsspec
#     .option("storage.protocol", "fsspec")                 open through fsspec what has a store of its own
#     .option("endpoint_url", ...)                          the common ones also without prefix
#     .option("fs.s3a.access.key", ...)                     Hadoop's S3A, GCS and ABFS connectors
#     .option("allow_unsafe_filesystem", "true")            for a directory (docs/filesystems.md)
#
# Defaults come from each process's environment and the clouds' files (docs/object-stores.md).
# Invariants: values are validated on the driver, and pickled to executors with the reader or writer; they are
#     in no input partition, offset, commit message, repr or error message.
# Sources: s3fs, gcsfs, adlfs; Hadoop's S3A and ABFS, Google's Cloud Storage connector.


_PREFIXES = {"s3.": "s3", "gs.": "gs", "azure.": "azure", "hdfs.": "hdfs", "fsspec.": "fsspec"}
_PLAIN = {
    *("anon", "endpoint_url", "key", "profile", "region", "secret", "token"),
    *("account_name", "account_key", "sas_token", "connection_string"),
    *("tenant_id", "client_id", "client_secret"),
}
_HADOOP = {
    "fs.s3a.access.key": "key",
    "fs.s3a.secret.key": "secret",
    "fs.s3a.session.token": "token",
    "fs.s3a.endpoint": "endpoint_url",
    "fs.s3a.endpoint.region": "region",
    "fs.s3a.path.style.access": "path_style",
    "fs.s3a.connection.ssl.enabled": "use_ssl",
    "fs.gs.auth.service.account.json.keyfile": "token",
    "google.cloud.auth.service.account.json.keyfile": "token",
    "fs.gs.storage.root.url": "endpoint_url",
    "fs.gs.requester.pays.project.id": "project",
}
# Hadoop's, which may end with ".<account>.dfs.core.windows.net".
_ABFS = {
    "fs.azure.account.key": "account_key",
    "fs.azure.sas.fixed.token": "sas_token",
    "fs.azure.account.oauth2.client.id": "client_id",
    "fs.azure.account.oauth2.client.secret": "client_secret",
    "fs.azure.account.oauth2.msi.tenant": "tenant_id",
}
_ABFS_ENDPOINT = "fs.azure.account.oauth2.client.endpoint"
# What these say follows from the credentials that are given; other values need code of Hadoop's.
_ABFS_TYPES = {
    "fs.azure.account.auth.type": {"sharedkey", "oauth", "sas"},
    "fs.azure.account.oauth.provider.type": {
        "org.apache.hadoop.fs.azurebfs.oauth2.clientcredstokenprovider",
        "org.apache.hadoop.fs.azurebfs.oauth2.msitokenprovider",
    },
}
_GCS_TYPE = "fs.gs.auth.type"
_GCS_TYPES = {
    "application_default": "google_default",
    "compute_engine": "cloud",
    "unauthenticated": "anon",
    "service_account_json_keyfile": None,
}
# Spark polls a stream for its latest offset about a hundred times a second.
STREAM_REFRESH_MS = 200


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Storage options of one query; hashable and picklable. Its repr shows names only."""

    items: tuple[tuple[str, str], ...] = ()

    def to_dict(self) -> dict[str, Any] | None:
        """Return the argument `storage_options` of sparklog.open."""
        return dict(self.items) or None

    def __repr__(self) -> str:
        return f"StorageOptions({', '.join(name for name, _ in self.items)})"


NO_STORAGE_OPTIONS = StorageOptions()


def storage_name(option: str) -> str | None:
    """Return the name of the storage option that a query's option (in lower case) sets; None if none."""
    if option == "storage.protocol":
        return PROTOCOL
    prefix, dot, rest = option.partition(".")
    if dot and f"{prefix}." in _PREFIXES:
        return rest
    if option in _PLAIN or option == _GCS_TYPE:
        return option
    if (name := _HADOOP.get(option)) is not None:
        return name
    name = _without_account(option)
    return name if name in {*_ABFS, *_ABFS_TYPES, _ABFS_ENDPOINT} else None


def _without_account(option: str) -> str:
    """Return the name of an option of ABFS without its account."""
    return next(
        (name for name in (*_ABFS, *_ABFS_TYPES, _ABFS_ENDPOINT) if option.startswith(f"{name}.")), option
    )


def parse_storage(given: Mapping[str, str], root: str, *, streaming: bool = False) -> StorageOptions:
    """Return the storage options among a query's options (names in lower case).

    Raises:
        InvalidRequestError: an unknown or malformed storage option.
    """
    values: dict[str, str] = {}
    for option, value in given.items():
        values.update(_storage_values(option, value, root))
    kind = store_kind(root, values)
    is_remote = kind not in {"directory", "memory"}
    if ALLOW_UNSAFE in given:
        allow = str(parse_flag(ALLOW_UNSAFE, given[ALLOW_UNSAFE])).lower()
        if not is_remote and not values:
            return StorageOptions(((ALLOW_UNSAFE, allow),))
        raise InvalidRequestError(
            "INVALID_OPTION",
            f"{ALLOW_UNSAFE} is for a directory, and the root or the other options are of an object store",
            fix=f"remove {ALLOW_UNSAFE}, or correct the root",
        )
    if streaming and is_remote:
        values.setdefault("refresh_interval_ms", str(STREAM_REFRESH_MS))
    if values:
        from sparklog.storage.opening import parse_options  # noqa: PLC0415 - few queries need it

        parse_options(root if is_remote else "s3://bucket", values)
    return StorageOptions(tuple(sorted(values.items())))


def _storage_values(option: str, value: str, root: str) -> dict[str, str]:
    """Return the storage options that a query's option sets."""
    name = storage_name(option)
    if name is None:
        return {}
    if option == _GCS_TYPE:
        token = _known_value(option, value, _GCS_TYPES)
        return {} if _GCS_TYPES[token] is None else {"token": str(_GCS_TYPES[token])}
    hadoops = _without_account(option)
    account = option[len(hadoops) + 1 :]
    if account and not root.lower().partition("@")[2].startswith(account):
        raise InvalidRequestError(
            "INVALID_OPTION",
            f"option {option} is of account {account}, and the root is not",
            fix="Remove the option, or correct the root: abfss://container@account.dfs.core.windows.net/prefix",
        )
    if hadoops in _ABFS_TYPES:
        _known_value(option, value, _ABFS_TYPES[hadoops])
        return {}
    if hadoops == _ABFS_ENDPOINT:  # https://login.microsoftonline.com/<tenant>/oauth2/token
        return {"tenant_id": urlsplit(value).path.strip("/").partition("/")[0]}
    return {_ABFS.get(hadoops, name): value}


def _known_value(option: str, value: str, known: Collection[str]) -> str:
    if value.lower() not in known:
        raise InvalidRequestError(
            "INVALID_OPTION",
            f"option {option}: not a value that sparklog can follow, expected one of "
            f"{', '.join(sorted(known))}",
            fix="Give the credentials by the names of gcsfs or adlfs; see docs/object-stores.md",
        )
    return value.lower()


# --- catalog tables ----------------------------------------------------------------------------------
#
# Tables in Spark's catalog: Spark drops the options of a table over a Python source, so none are allowed.
#
# Spark stores the options of CREATE TABLE, and its location, but does not pass them to a Python data source
# when the table is read or written: the source only gets the WITH clause of the query. A table with a path
# would neither read nor write it. CREATE TABLE calls `schema`, with the table's properties; it is refused if
# they include options. A table without options works for SELECT ... WITH and INSERT ... WITH.
# Not detected: CREATE TABLE with columns; saveAsTable and writeTo(...).create(), which write with their own
# options, while the created table has none (docs/sql.md).
# Sources: Spark's V2SessionCatalog and PythonDataSourceV2, as observed with Spark 4.3.


# Spark's own property of a table; no query has an option of this name.
_TABLE = "provider"
_LOCATION = ("path", "location")
_OPTION_PREFIX = "option."

FIX = (
    "give the options in the query, SELECT * FROM t WITH (path = '...', subscribe = '...'), or use a "
    "temporary view: CREATE TEMPORARY VIEW t USING sparklog OPTIONS (...); docs/sql.md has both"
)


def refuse_options_of_a_table(given: Mapping[str, str]) -> None:
    """Refuse a CREATE TABLE with options, given the options of a call of `schema` (names in lower case).

    Raises:
        InvalidRequestError: UNSUPPORTED_TABLE.
    """
    if _TABLE not in given:
        return
    dropped = [name.removeprefix(_OPTION_PREFIX) for name in given if name.startswith(_OPTION_PREFIX)]
    dropped += [name for name in _LOCATION if name in given]
    if dropped:
        raise InvalidRequestError(
            "UNSUPPORTED_TABLE",
            f"a table in Spark's catalog cannot have options ({', '.join(sorted(set(dropped)))}): Spark does "
            "not pass them to a Python source when the table is used",
            fix=FIX,
        )


# --- roots -------------------------------------------------------------------------------------------


logger = logging.getLogger("sparklog.spark")
_Key = tuple[int, str, StorageOptions]
_CHECK_REMOTE_MS = 5_000
_opened: "dict[_Key, SparkLog]" = {}
_checked_ms: dict[_Key, int] = {}
_broker_roots: "dict[str, BrokerRoot]" = {}  # bootstrap servers -> their last answer


def root_of_broker(
    bootstrap_servers: str, rules: RootRules = ANY_ROOT, security: "ClientSecurity | None" = None
) -> str:
    """Return the URL of a broker's root; the last answer if no server answers.

    Raises:
        InvalidRequestError: the servers are no sparklog brokers, or their root is not visible here or refused
            by the rules.
        RetriableError: BROKER_UNREACHABLE.
    """
    from sparklog.client.brokers import find_broker_root  # noqa: PLC0415 - few queries need it
    from sparklog.client.security import PLAINTEXT  # noqa: PLC0415 - as above

    try:
        found = find_broker_root(bootstrap_servers, rules=rules, security=security or PLAINTEXT)
        _broker_roots[bootstrap_servers] = found
    except RetriableError as error:
        known = _broker_roots.get(bootstrap_servers)
        if known is None:
            raise
        rules.validate_cluster_id(known.cluster_id, f"broker {known.server}")
        rules.validate_place(known.root)
        logger.warning("%s; continuing with its root %s", error, known.root)
        return known.root
    return found.root


def open_root(
    root: str,
    *,
    create: bool,
    refresh: bool = True,
    storage: StorageOptions = NO_STORAGE_OPTIONS,
    rules: RootRules = ANY_ROOT,
    writing: bool | None = None,
) -> "SparkLog":
    """Return the log of `root`, refreshed unless `refresh` is False.

    Args:
        root: directory or URL.
        create: create an empty root if there is none; else raise. Ignored if `rules` have a cluster id.
        writing: check each time that it is the same root; None: as `create`.
        storage: storage options.
        rules: allowed places and cluster id; checked with every call, since a link or a mount may change.
    """
    rules.validate_place(root)
    writing = create if writing is None else writing
    create = create and rules.cluster_id is None
    key = (os.getpid(), root, storage)
    log = _opened.get(key)
    if log is None or (refresh and _is_due(key, log, writing=writing) and not log.is_same_root()):
        from sparklog.client import open_log  # noqa: PLC0415 - options are parsed without the engine

        log = _opened[key] = open_log(
            root, create=create, storage_options=storage.to_dict(), cluster_id=rules.cluster_id
        )
    elif refresh:
        log.refresh()
    rules.validate_cluster_id(log.cluster_id, f"root {log.url}")
    return log


def reset() -> None:
    """Drop all cached roots, as in a new process."""
    _opened.clear()
    _checked_ms.clear()
    _broker_roots.clear()


def _is_due(key: _Key, log: "SparkLog", *, writing: bool) -> bool:
    if writing or not log.store.traits.is_remote:
        return True
    now_ms = log.clock.monotonic_ms()
    if now_ms - _checked_ms.get(key, -_CHECK_REMOTE_MS) < _CHECK_REMOTE_MS:
        return False
    _checked_ms[key] = now_ms
    return True
