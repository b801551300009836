"""Puts whose answer is lost: whose commit it was is found out before anything else."""

import pytest

from sparklog.clock import ManualClock
from sparklog.errors import (
    StorageError,
    UnsupportedVersionError,
)
from sparklog.metadata import (
    Action,
    Image,
    MetadataLog,
    MetadataSettings,
    SetConfigs,
)
from sparklog.metadata.documents.document import CommitBody, encode_document
from sparklog.metadata.documents.properties import DIRECTORY, commit_name
from sparklog.storage import IndefinitePutError, MemoryStore
from tests.metadata.opened_logs import newer_header, opened, replace_file, set_config


def lose_answers(memory: MemoryStore, *, times: int, done: bool) -> list[str]:
    """The next puts have no answer: after they are done, or without being done."""
    names: list[str] = []

    def hook(operation: str, name: str) -> None:
        if operation == ("put_if_absent:done" if done else "put_if_absent"):
            names.append(name)
            if len(names) <= times:
                raise IndefinitePutError("PUT_INDEFINITE", "no answer", fix="repeat")

    memory.hook = hook
    return names


def test_lost_answer_to_our_own_commit_is_found_by_its_uuid(log: MetadataLog, memory: MemoryStore) -> None:
    lose_answers(memory, times=1, done=True)
    assert set_config(log, "a") == 0
    memory.hook = None
    assert len(memory.list(DIRECTORY)) == 1
    assert log.refresh().configs == {"a": "x"}


def test_put_that_never_happened_is_repeated(log: MetadataLog, memory: MemoryStore) -> None:
    names = lose_answers(memory, times=3, done=False)
    assert set_config(log, "a") == 0
    assert names == [commit_name(0)] * 4  # never commit 1 while 0 is open
    memory.hook = None
    assert len(memory.list(DIRECTORY)) == 1


def test_a_commit_of_ours_that_cannot_be_made_durable_now_is_not_told_as_nothing(
    log: MetadataLog, memory: MemoryStore
) -> None:
    """It is there: a caller who heard of a plain failure would publish the same again."""
    lose_answers(memory, times=1, done=True)
    lose = memory.hook
    assert lose is not None

    def hook(operation: str, name: str) -> None:
        lose(operation, name)
        if operation == "sync_directory":
            raise StorageError("TOO_MANY_OPEN_FILES", "cannot open for fsync", fix="wait")

    memory.hook = hook
    with pytest.raises(StorageError) as raised:
        set_config(log, "a")
    assert raised.value.code == "PUBLISH_UNRESOLVED"
    memory.hook = None
    assert set_config(log, "b") == 1
    assert log.refresh().configs == {"a": "x", "b": "x"}


def test_lost_answer_and_a_damaged_commit_in_its_place(log: MetadataLog, memory: MemoryStore) -> None:
    """It may be ours: the caller must not be told that nothing was published."""
    intact: list[bytes] = []

    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent:done":
            memory.hook = None
            intact.append(memory.read(name))
            replace_file(memory, name, intact[0][:-5])
            raise IndefinitePutError("PUT_INDEFINITE", "no answer", fix="repeat")

    memory.hook = hook
    with pytest.raises(StorageError, match="truncated") as raised:
        set_config(log, "a")
    assert raised.value.code == "PUBLISH_UNRESOLVED"
    replace_file(memory, commit_name(0), intact[0])
    assert set_config(log, "b") == 1  # which resolves the other first
    assert log.image.configs == {"a": "x", "b": "x"}


def test_lost_answer_and_a_commit_of_a_newer_version_in_its_place(
    log: MetadataLog, memory: MemoryStore
) -> None:
    """That is not ours: nothing was published, and the reader says what to do."""
    puts: list[str] = []

    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent":
            puts.append(name)
            memory.hook = None
            memory.put_if_absent(name, encode_document(newer_header(log), CommitBody(actions=())))
            raise IndefinitePutError("PUT_INDEFINITE", "no answer", fix="repeat")

    memory.hook = hook
    with pytest.raises(UnsupportedVersionError, match="Upgrade"):
        set_config(log, "a")
    with pytest.raises(UnsupportedVersionError, match="Upgrade"):
        set_config(log, "b")
    assert puts == [commit_name(0)], "it is settled: nothing is put again to find out"


def test_lost_answer_and_lost_race(memory: MemoryStore) -> None:
    """The put did not happen, and somebody else took the number before we could repeat it."""
    loser, winner = opened(memory), opened(memory)
    calls: list[str] = []

    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent":
            calls.append(name)
            if len(calls) == 1:
                memory.hook = None
                set_config(winner, "theirs")
                memory.hook = hook
                raise IndefinitePutError("PUT_INDEFINITE", "no answer", fix="repeat")

    memory.hook = hook
    assert set_config(loser, "ours") == 1
    assert loser.image.configs == {"theirs": "x", "ours": "x"}


@pytest.mark.parametrize("done", [False, True])
def test_unresolved_commit_is_resolved_before_anything_else(memory: MemoryStore, done: bool) -> None:
    clock = ManualClock()
    log = MetadataLog.open(memory, clock, create=True, settings=MetadataSettings(publish_timeout_ms=50))
    lose_answers(memory, times=10**9, done=done)

    def plan(image: Image) -> list[Action]:
        clock.advance_ms(60)
        return [SetConfigs(configs={"first": "x"})]

    with pytest.raises(StorageError, match="unknown whether commit") as raised:
        log.publish(plan)
    assert raised.value.code == "PUBLISH_UNRESOLVED"
    memory.hook = None
    assert set_config(log, "second") == 1
    assert log.image.configs == {"first": "x", "second": "x"}


def test_unresolved_commit_that_somebody_else_overtook(memory: MemoryStore) -> None:
    clock = ManualClock()
    log = MetadataLog.open(memory, clock, create=True, settings=MetadataSettings(publish_timeout_ms=0))
    lose_answers(memory, times=10**9, done=False)

    def plan(image: Image) -> list[Action]:
        clock.advance_ms(60)
        return [SetConfigs(configs={"first": "x"})]

    with pytest.raises(StorageError, match="unknown whether"):
        log.publish(plan)
    memory.hook = None
    set_config(opened(memory), "theirs")
    set_config(log, "second")
    assert log.image.configs == {"theirs": "x", "second": "x"}


def test_error_after_a_lost_answer_stays_unresolved(log: MetadataLog, memory: MemoryStore) -> None:
    calls: list[str] = []

    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent:done":
            raise IndefinitePutError("PUT_INDEFINITE", "no answer", fix="repeat")
        if operation == "put_if_absent":
            calls.append(name)
            if len(calls) > 1:
                raise StorageError("STORAGE_FULL", "no space", fix="free some")

    memory.hook = hook
    with pytest.raises(StorageError, match="unknown whether") as raised:
        set_config(log, "first")
    assert raised.value.code == "PUBLISH_UNRESOLVED"
    memory.hook = None
    assert set_config(log, "second") == 1
    assert log.image.configs == {"first": "x", "second": "x"}


def test_uuid_decides_and_not_the_content(memory: MemoryStore) -> None:
    """Two publishers with the very same actions: one of them must do it again."""
    first, second = opened(memory), opened(memory)
    action = SetConfigs(configs={"a": "same"})

    def plan(image: Image) -> list[Action]:
        if image.commit < 0:
            first.publish(lambda image: [action])
        return [action]

    assert second.publish(plan).commit == 1
