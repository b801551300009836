"""From what users write (a path or a URL) to a store.

Not here: object stores. Their conditional writes need a commit class of their own (design.md section 5),
so their URLs are refused by name rather than tried through a general file system library.
"""

import os
import re
import threading
import urllib.parse
from pathlib import Path

from sparklog.errors import InvalidRequestError, NotFoundError
from sparklog.storage.base import Store
from sparklog.storage.local import LocalStore, create_root
from sparklog.storage.memory import MemoryStore

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):/")
_memory_stores: dict[str, MemoryStore] = {}
_memory_lock = threading.Lock()


def open_store(root: str | os.PathLike[str], *, create: bool = False) -> Store:
    """The store at `root`: a path, file:///path, or memory://name (this process only).

    Args:
        create: make the root directory when it is missing.

    Raises:
        NotFoundError: no such directory, and `create` is false.
        InvalidRequestError: not a directory, or a kind of URL that this version does not support.
    """
    text = os.fspath(root)
    if not text or "\0" in text:
        raise InvalidRequestError(
            "ILLEGAL_ROOT", f"root {text!r}: not a path", fix="Give a directory or a file:// URL"
        )
    match = _SCHEME.match(text)
    if match is None:
        return _open_local(Path(text), create=create)
    scheme = match.group(1).lower()
    if scheme == "file":
        return _open_local(_file_url_path(text), create=create)
    if scheme == "memory":
        return _open_memory(text.split("//", 1)[-1], create=create)
    raise InvalidRequestError(
        "UNSUPPORTED_STORE",
        f"root {text!r}: the scheme {scheme!r} is not supported; object stores and remote file systems "
        "are not supported by this version",
        fix="Use a local directory (a path, or file:///path)",
    )


def _file_url_path(url: str) -> Path:
    parts = urllib.parse.urlsplit(url)
    if parts.netloc not in {"", "localhost"} or parts.query or parts.fragment:
        raise InvalidRequestError(
            "ILLEGAL_ROOT",
            f"root {url!r}: found a host, query or fragment, expected file:///absolute/path",
            fix="Write file:///path with three slashes, or a plain path",
        )
    return Path(urllib.parse.unquote(parts.path))


def _open_local(path: Path, *, create: bool) -> LocalStore:
    path = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow links that may move
    if not path.exists():
        if not create:
            raise NotFoundError(
                "ROOT_NOT_FOUND",
                f"root {path}: no such directory",
                fix="Check the path, or open it with create=True",
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
