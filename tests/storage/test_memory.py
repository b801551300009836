"""The faults of the store in memory."""

import pytest

from sparklog.errors import StorageError
from sparklog.storage import MemoryStore


def test_crash_forgets_what_was_not_synced() -> None:
    store = MemoryStore()
    store.put_if_absent("put", b"x")
    synced, unsynced = store.append_file("synced"), store.append_file("unsynced")
    synced.write(b"kept")
    synced.sync()
    synced.write(b" and lost")
    unsynced.write(b"lost")
    store.put_hint("hint", b"x")
    store.crash()
    assert [(file.name, file.size) for file in store.list("")] == [("put", 1), ("synced", 4)]


def test_hook_sees_and_fails_operations() -> None:
    store = MemoryStore()
    seen: list[tuple[str, str]] = []

    def hook(operation: str, name: str) -> None:
        seen.append((operation, name))
        if operation == "put_if_absent:done":
            raise StorageError("STORAGE_FAILED", "the answer was lost", fix="none")

    store.hook = hook
    with pytest.raises(StorageError, match="lost"):
        store.put_if_absent("a", b"x")
    store.hook = None
    assert seen == [("put_if_absent", "a"), ("put_if_absent:done", "a")]
    assert store.read("a") == b"x"
