"""Damaged, missing, foreign and newer commits stop a log where it is."""

import shutil
from pathlib import Path

import pytest

from sparklog.clock import ManualClock, SystemClock
from sparklog.errors import (
    CorruptLogError,
    StorageError,
    UnsupportedVersionError,
)
from sparklog.metadata import (
    DraftExtent,
    MetadataLog,
    plan_append,
)
from sparklog.metadata.cleaning import put_marker
from sparklog.metadata.documents.document import CommitBody, encode_document
from sparklog.metadata.documents.properties import DIRECTORY, commit_name
from sparklog.storage import MemoryStore, StoreTraits, open_store
from tests.metadata.opened_logs import Append, Create, newer_header, opened, replace_file, set_config
from tests.metadata.remote_logs import REMOTE, counted
from tests.metadata.remote_logs import opened as opened_at


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


@pytest.mark.parametrize("traits", [None, REMOTE])
def test_a_newest_commit_that_is_missing_is_told_and_not_looked_for_without_end(
    traits: StoreTraits | None,
) -> None:
    """A snapshot says what it said; but a commit behind it could never be told from one that is too late."""
    clock = ManualClock()
    store = MemoryStore("lost", clock=clock, traits=traits)
    writer = opened_at(store, clock)
    for key in "abc":
        set_config(writer, key)
    writer.write_snapshot()
    store.delete(commit_name(2))
    follower = opened_at(store, clock)
    assert follower.image.commit == 2
    with counted(store) as requests:
        for use in (lambda: follower.refresh(force=True), lambda: set_config(follower, "d")):
            with pytest.raises(CorruptLogError, match="commit 2 is missing, snapshot 2 exists") as raised:
                use()
            assert raised.value.code == "CORRUPT_METADATA_LOG"
    assert requests.total() < 50
    assert clock.monotonic_ms() == ManualClock().monotonic_ms()  # nobody has waited


def test_a_root_cut_back_to_its_first_commit_is_told(memory: MemoryStore) -> None:
    writer = opened(memory)
    set_config(writer, "a")
    put_marker(memory)
    with pytest.raises(CorruptLogError, match="nothing after commit 0"):
        writer.refresh()


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
