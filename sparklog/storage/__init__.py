"""Files under a root: durable put-if-absent, append-only files, ranged reads."""

from sparklog.storage.base import (
    AppendFile,
    BytesLike,
    Hold,
    IndefinitePutError,
    ReadFile,
    Store,
    StoredFile,
    StoreTraits,
    Turn,
    validate_name,
)
from sparklog.storage.local import LocalStore
from sparklog.storage.memory import MemoryStore
from sparklog.storage.opening import open_store

__all__ = [
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
    "Turn",
    "open_store",
    "validate_name",
]
