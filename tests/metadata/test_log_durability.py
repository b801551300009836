"""What is synced before it is shown or built on."""

import pytest

from sparklog.errors import (
    FatalStorageError,
    InvalidRequestError,
    StorageError,
)
from sparklog.metadata import (
    Action,
    Image,
    MetadataLog,
)
from sparklog.metadata.documents.properties import DIRECTORY
from sparklog.storage import MemoryStore
from tests.metadata.opened_logs import opened, set_config


def record_syncs(memory: MemoryStore) -> list[str]:
    seen: list[str] = []
    memory.hook = lambda operation, name: seen.append(operation) if name == DIRECTORY else None
    return seen


def test_follower_syncs_commits_of_others_before_it_shows_them(memory: MemoryStore) -> None:
    """
    1. A publisher links commit n and is killed before it syncs the directory.
    2. A follower shows n; its user acts on it, for instance skips a batch that n has applied.
    3. The power fails, and n is gone: the batch is lost. Hence the sync between 1 and 2.
    """
    writer, follower = opened(memory), opened(memory)
    set_config(writer, "a")
    seen = record_syncs(memory)
    follower.refresh()
    assert "sync_directory" in seen
    seen.clear()
    follower.refresh()
    assert seen == []


def test_a_commit_is_linked_behind_durable_ones_only(memory: MemoryStore) -> None:
    """
    1. A publisher links commit n and is killed before it syncs the directory.
    2. Another one links n+1, and the power fails before it has synced.
    3. A disk that does not keep names in order has n+1 and not n: the root does not open.
    """
    writer, other = opened(memory), opened(memory)
    set_config(writer, "a")
    seen: list[str] = []
    memory.hook = lambda operation, name: seen.append(operation) if name.endswith(".json") else None
    set_config(other, "b")
    assert seen[-3:] == ["sync_name", "put_if_absent", "put_if_absent:done"]
    seen.clear()
    set_config(other, "c")  # behind its own, which is durable
    assert "sync_name" not in seen


@pytest.mark.parametrize("answer", ["nothing to do", "error"])
def test_answers_that_rest_on_commits_of_others_are_synced(memory: MemoryStore, answer: str) -> None:
    writer, other = opened(memory), opened(memory)
    set_config(writer, "a")
    seen = record_syncs(memory)

    def plan(image: Image) -> list[Action]:
        if answer == "error":
            raise InvalidRequestError("TOPIC_EXISTS", "exists", fix="none")
        return []

    try:
        other.publish(plan)
    except InvalidRequestError:
        assert answer == "error"
    assert "sync_directory" in seen


def test_opening_syncs_what_it_shows(memory: MemoryStore) -> None:
    set_config(opened(memory), "a")
    seen = record_syncs(memory)
    opened(memory)
    assert "sync_directory" in seen


def test_nothing_is_published_after_a_failed_fsync(log: MetadataLog, memory: MemoryStore) -> None:
    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent:done":
            raise FatalStorageError("DURABILITY_UNKNOWN", "fsync failed", fix="stop")

    memory.hook = hook
    with pytest.raises(FatalStorageError):
        set_config(log, "a")
    memory.hook = None
    with pytest.raises(FatalStorageError):
        set_config(log, "b")
    assert len(memory.list(DIRECTORY)) == 1


def test_definite_refusal_leaves_the_log_usable(log: MetadataLog, memory: MemoryStore) -> None:
    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent":
            raise StorageError("STORAGE_FULL", "no space", fix="free some")

    memory.hook = hook
    with pytest.raises(StorageError, match="no space"):
        set_config(log, "a")
    memory.hook = None
    assert set_config(log, "b") == 0
    assert log.image.configs == {"b": "x"}
