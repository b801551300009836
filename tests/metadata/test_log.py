"""Following and publishing: races, lost answers, damage, forks, and what is synced before it is shown."""

import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sparklog.clock import ManualClock, SystemClock
from sparklog.errors import (
    AlreadyExistsError,
    CorruptLogError,
    FatalStorageError,
    InvalidRequestError,
    RetriableError,
    StorageError,
    UnsupportedVersionError,
)
from sparklog.metadata import (
    Action,
    DraftExtent,
    Image,
    MetadataLog,
    MetadataSettings,
    SetConfigs,
    Topic,
    plan_append,
    plan_create_topic,
)
from sparklog.metadata.documents.document import VERSION, CommitBody, Header, encode_document
from sparklog.metadata.documents.paths import DIRECTORY, commit_name
from sparklog.storage import IndefinitePutError, LocalStore, MemoryStore, open_store

Draft = Callable[..., DraftExtent]
Create = Callable[..., Topic]
Append = Callable[..., Image]


def opened(store: LocalStore | MemoryStore) -> MetadataLog:
    return MetadataLog.open(store, ManualClock(), create=True)


def set_config(log: MetadataLog, key: str, value: str = "x") -> int:
    return log.publish(lambda image: [SetConfigs(configs={key: value})]).commit


def test_empty_log(log: MetadataLog) -> None:
    assert log.image.commit == -1
    assert log.refresh() is log.image


def test_followers_see_what_is_published(memory: MemoryStore, create: Create, append: Append) -> None:
    writer, follower = opened(memory), opened(memory)
    topic = create(writer)
    append(writer, topic, 3)
    assert follower.image.commit == -1
    assert follower.refresh() == writer.image
    held = follower.image
    append(writer, topic)
    assert follower.refresh().partition("orders", 0).log_end_offset == 40
    assert held.partition("orders", 0).log_end_offset == 30  # an image stays as it is


def test_result_says_what_was_assigned(log: MetadataLog, create: Create, draft: Draft) -> None:
    topic = create(log)
    for expected in (0, 10):
        result = log.publish(lambda image: [plan_append(image, [draft(topic)])])
        action = result.actions[0]
        assert hasattr(action, "extents")
        assert [extent.base_offset for extent in action.extents] == [expected]
    assert result.commit == log.image.commit == 2


def test_nothing_to_do_publishes_nothing(log: MetadataLog, memory: MemoryStore) -> None:
    set_config(log, "a")
    result = log.publish(lambda image: [])
    assert (result.commit, result.actions) == (0, ())
    assert len(memory.list(DIRECTORY)) == 1


def test_plan_is_run_again_after_a_lost_race(memory: MemoryStore, create: Create, draft: Draft) -> None:
    loser, winner = opened(memory), opened(memory)
    topic = create(loser)
    seen: list[int] = []

    def plan(image: Image) -> list[Action]:
        seen.append(image.commit)
        if len(seen) <= 3:
            winner.publish(lambda image: [plan_append(image, [draft(topic)])])
        return [plan_append(image, [draft(topic)])]

    result = loser.publish(plan)
    assert seen == [0, 1, 2, 3]
    assert result.commit == 4
    assert loser.image.partition("orders", 0).log_end_offset == 40
    assert winner.refresh() == loser.image


def test_plan_may_find_its_work_done_by_the_winner(memory: MemoryStore, topic_id: str) -> None:
    loser, winner = opened(memory), opened(memory)

    def plan(image: Image) -> list[Action]:
        if "a" in image.configs:
            return []
        set_config(winner, "a")
        return [SetConfigs(configs={"a": "y"})]

    result = loser.publish(plan)
    assert (result.actions, result.commit) == ((), 0)
    assert loser.image.configs == {"a": "x"}


def test_errors_of_the_plan_go_to_the_caller(log: MetadataLog, memory: MemoryStore) -> None:
    def plan(image: Image) -> list[Action]:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        log.publish(plan)
    assert memory.list(DIRECTORY) == []
    set_config(log, "a")


def test_losing_for_too_long_gives_up(memory: MemoryStore) -> None:
    clock = ManualClock()
    loser = MetadataLog.open(memory, clock, create=True, settings=MetadataSettings(publish_timeout_ms=100))
    winner = opened(memory)

    def plan(image: Image) -> list[Action]:
        clock.advance_ms(10)
        set_config(winner, "a")
        return [SetConfigs(configs={"b": "x"})]

    with pytest.raises(RetriableError, match="lost 10 races") as raised:
        loser.publish(plan)
    assert raised.value.code == "PUBLISH_CONTENDED"
    assert "b" not in winner.refresh().configs
    assert set_config(loser, "b") == winner.image.commit + 1


def test_threads_share_a_log(local: LocalStore, create: Create, append: Append) -> None:
    log = MetadataLog.open(local, SystemClock(), create=True)
    topic = create(log)
    threads = [threading.Thread(target=append, args=(log, topic, 20)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        image = log.refresh()
        assert image.partition("orders", 0).log_end_offset == 10 * len(image.partition("orders", 0).extents)
    for thread in threads:
        thread.join()
    assert log.image.partition("orders", 0).log_end_offset == 800


# --- lost answers (invariant 6) ----------------------------------------------------------------------


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
    calls: list[str] = []

    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent" and not calls:
            calls.append(name)
            memory.put_if_absent(name, encode_document(newer_header(log), CommitBody(actions=())))
            raise IndefinitePutError("PUT_INDEFINITE", "no answer", fix="repeat")

    memory.hook = hook
    with pytest.raises(UnsupportedVersionError, match="Upgrade"):
        set_config(log, "a")
    assert not log._creator.has_open_put


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


# --- durability (invariants 4 and 5) -----------------------------------------------------------------


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


# --- damage (invariant 1) ----------------------------------------------------------------------------


def replace_file(memory: MemoryStore, name: str, data: bytes) -> None:
    memory.delete(name)
    memory.put_if_absent(name, data)


def test_damaged_commit_halts_followers_at_the_one_before(memory: MemoryStore) -> None:
    writer, follower = opened(memory), opened(memory)
    for key in "abc":
        set_config(writer, key)
    good = memory.read(commit_name(1))
    replace_file(memory, commit_name(1), good.replace(b'"b"', b'"B"'))
    for _ in range(2):
        with pytest.raises(CorruptLogError, match=r"00000000000000000001\.json@0: found CRC-32C"):
            follower.refresh()
        assert follower.image.commit == 0
        with pytest.raises(CorruptLogError):
            set_config(follower, "d")
    with pytest.raises(CorruptLogError):
        opened(memory)
    replace_file(memory, commit_name(1), good)
    assert follower.refresh().configs == {"a": "x", "b": "x", "c": "x"}


def test_missing_commit_is_not_the_end(memory: MemoryStore) -> None:
    writer = opened(memory)
    for key in "abc":
        set_config(writer, key)
    memory.delete(commit_name(1))
    with pytest.raises(CorruptLogError, match="commit 1 is missing, but commit 2 exists"):
        opened(memory)


def test_commit_that_does_not_apply_halts_the_log(
    memory: MemoryStore, create: Create, append: Append
) -> None:
    """Two roots of one history, published to apart, and then a commit copied from one to the other."""
    writer = opened(memory)
    append(writer, create(writer), 2)
    memory.delete(commit_name(2))
    other = opened(memory)
    set_config(other, "a")
    replace_file(memory, commit_name(3), encoded_after(writer, other))
    with pytest.raises(
        CorruptLogError, match=r"does not apply: action 0 \(append_extents\).*expected the log end 10"
    ):
        other.refresh()
    assert other.image.commit == 2


def encoded_after(source: MetadataLog, target: MetadataLog) -> bytes:
    """A commit planned against `source`, dressed up as the next one of `target`."""
    from sparklog.metadata.documents.document import CommitBody, Header, encode_document

    state = source.image.partition("orders", 0)
    header = Header(
        version=1,
        kind="commit",
        commit=target.image.commit + 1,
        cluster_id=target.cluster_id,
        uuid="X" * 22,
        previous=target.image.commit_uuid,
        timestamp_ms=0,
        length=0,
    )
    draft = DraftExtent(
        topic_id=state.topic_id,
        partition=0,
        segment="s",
        position=0,
        size=100,
        record_count=1,
        max_timestamp_ms=0,
    )
    return encode_document(header, CommitBody(actions=(plan_append(source.image, [draft]),)))


def test_two_histories_mixed_are_told_apart_by_the_previous_uuid(memory: MemoryStore) -> None:
    writer = opened(memory)
    set_config(writer, "a")
    set_config(writer, "b")
    second = memory.read(commit_name(1))
    memory.delete(commit_name(1))
    memory.delete(commit_name(0))
    fresh = opened(memory)  # same cluster id
    set_config(fresh, "c")
    memory.put_if_absent(commit_name(1), second)
    with pytest.raises(CorruptLogError, match="two histories are mixed"):
        fresh.refresh()


def test_commit_copied_from_another_root_is_refused(memory: MemoryStore) -> None:
    ours, theirs = opened(memory), opened(MemoryStore())
    set_config(ours, "a")
    set_config(theirs, "a")
    set_config(theirs, "b")
    memory.put_if_absent(commit_name(1), theirs.store.read(commit_name(1)))
    with pytest.raises(CorruptLogError, match="a file of another root"):
        ours.refresh()


def newer_header(log: MetadataLog) -> Header:
    return Header(
        version=VERSION + 1,
        kind="commit",
        commit=log.image.commit + 1,
        cluster_id=log.cluster_id,
        uuid="X" * 22,
        previous=log.image.commit_uuid,
        timestamp_ms=0,
        length=0,
    )


def test_commit_of_a_newer_version_stops_a_follower(memory: MemoryStore) -> None:
    log = opened(memory)
    set_config(log, "a")
    memory.put_if_absent(commit_name(1), encode_document(newer_header(log), CommitBody(actions=())))
    with pytest.raises(UnsupportedVersionError, match="Upgrade"):
        log.refresh()
    with pytest.raises(UnsupportedVersionError):
        set_config(log, "b")


def test_root_replaced_by_an_older_copy_is_noticed(tmp_path: Path) -> None:
    store = open_store(tmp_path / "root", create=True)
    log = MetadataLog.open(store, SystemClock(), create=True)
    set_config(log, "a")
    shutil.copytree(tmp_path / "root", tmp_path / "copy")
    set_config(log, "b")
    set_config(log, "c")
    shutil.rmtree(tmp_path / "root")
    (tmp_path / "copy").rename(tmp_path / "root")
    for use in (log.refresh, lambda: set_config(log, "d")):
        with pytest.raises(CorruptLogError, match="older copy"):
            use()
    assert log.image.commit == 2
    assert [file.name for file in store.list(DIRECTORY)] == [commit_name(0)]


def test_storage_errors_are_not_the_end_of_the_log(log: MetadataLog, memory: MemoryStore) -> None:
    set_config(log, "a")

    def hook(operation: str, name: str) -> None:
        if operation == "exists":
            raise StorageError("STORAGE_FAILED", "I/O error", fix="none")

    memory.hook = hook
    with pytest.raises(StorageError, match="I/O error"):
        log.refresh()


# --- forks -------------------------------------------------------------------------------------------


def in_child(work: Callable[[], bool]) -> bool:
    child = os.fork()
    if child == 0:
        status = 1
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)  # a child that waits for ever fails, and is gone
        try:
            status = 0 if work() else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0


def test_child_publishes_and_parent_follows(local: LocalStore) -> None:
    log = MetadataLog.open(local, SystemClock(), create=True)
    set_config(log, "a")
    assert in_child(lambda: set_config(log, "child") == 1)
    assert log.refresh().configs == {"a": "x", "child": "x"}


def test_fork_while_another_thread_holds_the_lock(local: LocalStore) -> None:
    log = MetadataLog.open(local, SystemClock(), create=True)
    inside, leave = threading.Event(), threading.Event()

    def plan(image: Image) -> list[Action]:
        inside.set()
        leave.wait()
        return [SetConfigs(configs={"parent": "x"})]

    thread = threading.Thread(target=log.publish, args=(plan,))
    thread.start()
    inside.wait()
    # The child cannot take the turn, which the parent holds; it goes ahead without.
    try:
        assert in_child(lambda: set_config(log, "child") == 0)
    finally:
        leave.set()
        thread.join()
    assert log.refresh().configs == {"child": "x", "parent": "x"}


# --- exports -----------------------------------------------------------------------------------------


def test_exports() -> None:
    import sparklog.metadata

    assert len(set(sparklog.metadata.__all__)) == len(sparklog.metadata.__all__) == 64
    for name in sparklog.metadata.__all__:
        assert hasattr(sparklog.metadata, name)


def test_put_if_absent_conflicts_are_no_errors_of_publish(memory: MemoryStore, topic_id: str) -> None:
    """A store that says "exists" although it was read as missing a moment ago."""
    log = opened(memory)
    calls: list[str] = []

    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent" and not calls:
            calls.append(name)
            raise AlreadyExistsError("FILE_EXISTS", "exists", fix="none")

    memory.hook = hook
    log.publish(lambda image: [plan_create_topic(image, "a", 1, topic_id=topic_id)])
    assert log.image.commit == 0
