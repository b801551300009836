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
from sparklog.storage.root_rules import (
    AZURE_SCHEMES,
    GS_SCHEMES,
    S3_SCHEMES,
    local_path,
    memory_name,
    scheme_of,
)

# The storage option that opens a URL through fsspec, though it has a store of its own.
PROTOCOL = "protocol"
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
    gs://bucket/prefix, abfss://container@account.dfs.core.windows.net/prefix, or az://container/prefix.

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
    scheme = scheme_of(text)
    if (storage_options or {}).get(PROTOCOL) is not None:
        return _open_fsspec(text, storage_options, clock)
    if scheme in S3_SCHEMES | GS_SCHEMES | AZURE_SCHEMES:
        return _open_object_store(scheme, text, storage_options, clock)
    is_local = scheme in {"", "file"}
    if (
        storage_options
        and (is_local or scheme == "memory")
        and not (is_local and set(storage_options) == {OPTION})
    ):
        known = f"none but {OPTION}" if is_local else "none"
        raise InvalidRequestError(
            "INVALID_OPTION",
            f"root {shown('root', text)}: found storage options, expected {known}: they are for "
            "object stores",
            fix="Remove the storage options, or correct the root",
        )
    if is_local:
        return _open_local(
            Path(local_path(text)), create=create, allow_unsafe=allows_unsafe(storage_options, os.environ)
        )
    if scheme == "memory":
        return _open_memory(memory_name(text), create=create)
    return _open_fsspec(text, storage_options, clock)


def _open_object_store(
    scheme: str, url: str, storage_options: Mapping[str, Any] | None, clock: Clock | None
) -> Store:
    """Open a bucket. Its client library is imported only here: only such roots pay for it."""
    if scheme in S3_SCHEMES:
        _require("S3_NOT_INSTALLED", "an s3:// root", "s3", "botocore")
        from sparklog.storage.s3 import S3Store  # noqa: PLC0415
        from sparklog.storage.s3_options import parse_storage_options  # noqa: PLC0415

        return S3Store(url, parse_storage_options(storage_options, os.environ), clock)
    if scheme in GS_SCHEMES:
        _require("STORE_NOT_INSTALLED", "a gs:// root", "gs", "google.auth", "urllib3")
        from sparklog.storage.gcs import GcsStore, parse_gcs_options  # noqa: PLC0415

        return GcsStore(url, parse_gcs_options(storage_options, os.environ), clock)
    _require("STORE_NOT_INSTALLED", f"an {scheme}:// root", "azure", "azure.identity", "urllib3")
    from sparklog.storage.azure import AzureStore, parse_azure_options  # noqa: PLC0415

    return AzureStore(url, parse_azure_options(storage_options, os.environ), clock)


def _open_fsspec(url: str, storage_options: Mapping[str, Any] | None, clock: Clock | None) -> Store:
    found = (storage_options or {}).get(PROTOCOL, "fsspec")
    if found != "fsspec":
        raise InvalidRequestError(
            "INVALID_OPTION",
            f"storage option {PROTOCOL}: found {found!r}, expected fsspec",
            fix="Remove the option: the URL says which store it is",
        )
    _require("STORE_NOT_INSTALLED", "a root through fsspec", "fsspec", "fsspec")
    from sparklog.storage.fsspec_store import FsspecStore, parse_fsspec_options  # noqa: PLC0415

    return FsspecStore(url, parse_fsspec_options(storage_options), clock)


def _require(code: str, what: str, extra: str, *modules: str) -> None:
    missing = [module for module in modules if not _is_installed(module)]
    if missing:
        packages = ", ".join(module.replace(".", "-") for module in missing)
        raise InvalidRequestError(
            code,
            f"{what} needs the package {packages}, which is not installed",
            fix=f"Install it: pip install 'sparklog[{extra}]'",
        )


def _is_installed(module: str) -> bool:
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
