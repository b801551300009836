"""Files under a root: durable put-if-absent, append-only files, ranged reads."""

from sparklog.storage.base import (
    AdvisoryLock,
    AppendFile,
    BytesLike,
    Hold,
    IndefinitePutError,
    ReadFile,
    Store,
    StoredFile,
    StoreTraits,
    validate_name,
)
from sparklog.storage.local import LocalStore
from sparklog.storage.memory import MemoryStore
from sparklog.storage.opening import open_store

__all__ = [
    "AdvisoryLock",
    "AppendFile",
    "BytesLike",
    "Hold",
    "IndefinitePutError",
    "LocalStore",
    "MemoryStore",
    "ReadFile",
    "Store",
    "StoreTraits",
    "StoredFile",
    "open_store",
    "validate_name",
]
