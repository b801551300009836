"""Open a store by a path or a URL.

A URL without a store of its own is opened through fsspec, and must prove what commits need (ADR 0036). Client
libraries are imported only for the roots that need them.
"""

import importlib.util
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparklog.clock import Clock
from sparklog.errors import InvalidRequestError, NotFoundError, shown
from sparklog.storage.base import Store
from sparklog.storage.filesystems import OPTION, allows_unsafe, validate_filesystem
from sparklog.storage.local import LocalStore
from sparklog.storage.local_files import create_root
from sparklog.storage.memory import MemoryStore
from sparklog.storage.root_rules import local_path, memory_name, store_kind

_memory_stores: dict[str, MemoryStore] = {}
_memory_lock = threading.Lock()


def open_store(
    root: str | os.PathLike[str],
    *,
    create: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
) -> Store:
    """Open the store at `root`: a path, file:///path, memory://name (this process only), s3://bucket/prefix,
    gs://bucket/prefix, abfss://container@account.dfs.core.windows.net/prefix, az://container/prefix,
    hdfs://host/path, or webhdfs://host:port/path.

    Args:
        create: create the root directory if it is missing. Buckets are never created.
        storage_options: how to reach an object store, in the format of s3fs, gcsfs or adlfs; see
            docs/object-stores.md. For a directory allow_unsafe_filesystem: open it also where names are
            cached; see docs/filesystems.md.
        clock: the clock for waits for an object store; for tests.

    Raises:
        NotFoundError: no such directory, and `create` is false.
        InvalidRequestError: not a directory, a file system that could lose commits, or a kind of URL that
            this version does not support.
    """
    text = os.fspath(root)
    if not text or "\0" in text:
        raise InvalidRequestError(
            "ILLEGAL_ROOT", f"root {shown('root', text)}: not a path", fix="Give a directory or a file:// URL"
        )
    kind = store_kind(text, storage_options)
    if kind == "directory":
        _refuse_options(text, storage_options, OPTION)
        return _open_local(
            Path(local_path(text)), create=create, allow_unsafe=allows_unsafe(storage_options, os.environ)
        )
    if kind == "memory":
        _refuse_options(text, storage_options)
        return _open_memory(memory_name(text), create=create)
    options = parse_options(text, storage_options, os.environ)
    return _STORES[kind](text, options, clock)


def parse_options(
    root: str, given: Mapping[str, Any] | None, environment: Mapping[str, str] | None = None
) -> Any:
    """Parse the storage options of a root that is not a directory.

    Raises:
        InvalidRequestError: an unknown or malformed option; an extra that is not installed.
    """
    kind = store_kind(root, given)
    for module in _MODULES.get(kind, ()):
        if not is_installed(module):
            raise InvalidRequestError(
                "S3_NOT_INSTALLED" if kind == "s3" else "STORE_NOT_INSTALLED",
                f"{_WHAT[kind]} needs the package {module.replace('.', '-')}, which is not installed",
                fix=f"Install it: pip install 'sparklog[{kind}]'",
            )
    return _PARSERS[kind](given, environment)


# Client libraries are imported only by the roots that need them.
_MODULES = {
    "s3": ("botocore",),
    "gs": ("google.auth", "urllib3"),
    "azure": ("azure.identity", "urllib3"),
    "hdfs": ("urllib3",),
    "fsspec": ("fsspec",),
}
_WHAT = {
    "s3": "an s3:// root",
    "gs": "a gs:// root",
    "azure": "an abfss:// or az:// root",
    "hdfs": "an hdfs:// or webhdfs:// root",
    "fsspec": "a root through fsspec",
}


def _parse_s3(given: Mapping[str, Any] | None, environment: Mapping[str, str] | None) -> Any:
    from sparklog.storage.s3_options import parse_storage_options  # noqa: PLC0415

    return parse_storage_options(given, environment)


def _parse_gcs(given: Mapping[str, Any] | None, environment: Mapping[str, str] | None) -> Any:
    from sparklog.storage.gcs import parse_gcs_options  # noqa: PLC0415

    return parse_gcs_options(given, environment)


def _parse_azure(given: Mapping[str, Any] | None, environment: Mapping[str, str] | None) -> Any:
    from sparklog.storage.azure import parse_azure_options  # noqa: PLC0415

    return parse_azure_options(given, environment)


def _parse_hdfs(given: Mapping[str, Any] | None, environment: Mapping[str, str] | None) -> Any:
    from sparklog.storage.hdfs import parse_hdfs_options  # noqa: PLC0415

    return parse_hdfs_options(given, environment)


def _parse_fsspec(given: Mapping[str, Any] | None, _: Mapping[str, str] | None) -> Any:
    from sparklog.storage.fsspec_store import parse_fsspec_options  # noqa: PLC0415

    return parse_fsspec_options(given)


def _open_s3(url: str, options: Any, clock: Clock | None) -> Store:
    from sparklog.storage.s3 import S3Store  # noqa: PLC0415

    return S3Store(url, options, clock)


def _open_gcs(url: str, options: Any, clock: Clock | None) -> Store:
    from sparklog.storage.gcs import GcsStore  # noqa: PLC0415

    return GcsStore(url, options, clock)


def _open_azure(url: str, options: Any, clock: Clock | None) -> Store:
    from sparklog.storage.azure import AzureStore  # noqa: PLC0415

    return AzureStore(url, options, clock)


def _open_hdfs(url: str, options: Any, clock: Clock | None) -> Store:
    from sparklog.storage.hdfs import HdfsStore  # noqa: PLC0415

    return HdfsStore(url, options, clock)


def _open_fsspec(url: str, options: Any, clock: Clock | None) -> Store:
    from sparklog.storage.fsspec_store import FsspecStore  # noqa: PLC0415

    return FsspecStore(url, options, clock)


_PARSERS = {
    "s3": _parse_s3,
    "gs": _parse_gcs,
    "azure": _parse_azure,
    "hdfs": _parse_hdfs,
    "fsspec": _parse_fsspec,
}
_STORES = {
    "s3": _open_s3,
    "gs": _open_gcs,
    "azure": _open_azure,
    "hdfs": _open_hdfs,
    "fsspec": _open_fsspec,
}


def _refuse_options(root: str, given: Mapping[str, Any] | None, *known: str) -> None:
    if set(given or ()) - set(known):
        raise InvalidRequestError(
            "INVALID_OPTION",
            f"root {shown('root', root)}: found storage options, expected "
            f"{' but '.join(('none', *known))}: they are for object stores",
            fix="Remove the storage options, or correct the root",
        )


def is_installed(module: str) -> bool:
    """True if a module can be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # of a parent; it was made unavailable
        return False


def _open_local(path: Path, *, create: bool, allow_unsafe: bool) -> LocalStore:
    if create or path.exists():
        validate_filesystem(str(path), allow_unsafe=allow_unsafe)
    if not path.exists():
        if not create:
            raise NotFoundError(
                "ROOT_NOT_FOUND",
                f"root {path}: no such directory",
                fix="Check the path, or create a root: sparklog topics create, or create=True in Python",
            )
        create_root(path)
    if not path.is_dir():
        raise InvalidRequestError(
            "ILLEGAL_ROOT",
            f"root {path}: found a file, expected a directory",
            fix="Give the directory of the root",
        )
    return LocalStore(path)


def _open_memory(name: str, *, create: bool) -> MemoryStore:
    with _memory_lock:
        store = _memory_stores.get(name)
        if store is None:
            if not create:
                raise NotFoundError(
                    "ROOT_NOT_FOUND",
                    f"memory://{name}: no such store in this process",
                    fix="Open it with create=True",
                )
            store = _memory_stores[name] = MemoryStore(name)
        return store
