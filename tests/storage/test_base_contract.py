"""What every store promises; runs over the local store, the one in memory, and an S3 server."""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sparklog.errors import (
    AlreadyExistsError,
    InvalidRequestError,
    NotFoundError,
    RetriableError,
    StorageError,
)
from sparklog.storage import LocalStore, Store


def test_put_then_read(store: Store) -> None:
    store.put_if_absent("a/b/c", b"hello")
    assert store.read("a/b/c") == b"hello"
    assert store.read("a/b/c", 1, 3) == b"ell"
    assert store.read("a/b/c", 3) == b"lo"
    assert store.exists("a/b/c")


def test_second_put_changes_nothing(store: Store) -> None:
    store.put_if_absent("a", b"first")
    with pytest.raises(AlreadyExistsError, match=r"exists, expected no such file"):
        store.put_if_absent("a", b"second")
    assert store.read("a") == b"first"


def test_put_of_nothing_is_a_file(store: Store) -> None:
    store.put_if_absent("empty", b"")
    assert store.exists("empty")
    assert store.read("empty") == b""


def test_one_of_many_racing_puts_wins(store: Store) -> None:
    winners: list[int] = []
    barrier = threading.Barrier(8)

    def race(number: int) -> None:
        barrier.wait()
        for key in range(10):
            try:
                store.put_if_absent(f"race/{key}", str(number).encode())
            except AlreadyExistsError:
                continue
            winners.append(key)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(winners) == list(range(10))


def test_put_asks_its_guard_and_obeys(store: Store) -> None:
    with pytest.raises(RetriableError, match="overtaken"):
        store.put_if_absent("a", b"x", guard=lambda: False)
    assert not store.exists("a")
    store.put_if_absent("a", b"x", guard=lambda: True)
    assert store.read("a") == b"x"


def test_guard_that_fails_leaves_nothing(store: Store) -> None:
    def guard() -> bool:
        raise NotFoundError("FILE_NOT_FOUND", "the guard failed", fix="none")

    with pytest.raises(NotFoundError, match="the guard failed"):
        store.put_if_absent("a", b"x", guard=guard)
    assert store.list("", recursive=True) == []


def test_read_of_a_missing_file(store: Store) -> None:
    with pytest.raises(NotFoundError, match="nothing/here"):
        store.read("nothing/here")
    with pytest.raises(NotFoundError):
        store.open_read("nothing").read()
    with pytest.raises(NotFoundError):
        _ = store.open_read("nothing").size
    assert not store.exists("nothing")


def test_reads_past_the_end_are_short(store: Store) -> None:
    store.put_if_absent("a", b"12345")
    assert store.read("a", 3, 100) == b"45"
    assert store.read("a", 5, 1) == b""
    assert store.read("a", 99) == b""
    with store.open_read("a") as file:
        buffer = bytearray(8)
        assert file.read_into(memoryview(buffer), 3) == 2
        assert buffer[:2] == b"45"


def test_a_directory_is_not_a_file(store: Store) -> None:
    store.put_if_absent("a/b", b"x")
    assert not store.exists("a")
    assert not store.exists("a/b/c")


def test_list_is_sorted_and_says_sizes(store: Store) -> None:
    for name in ("d/2", "d/10", "d/sub/3", "e"):
        store.put_if_absent(name, name.encode())
    assert [(file.name, file.size) for file in store.list("d")] == [("d/10", 4), ("d/2", 3)]
    assert [file.name for file in store.list("d/")] == ["d/10", "d/2"]
    assert [file.name for file in store.list("d", recursive=True)] == ["d/10", "d/2", "d/sub/3"]
    assert [file.name for file in store.list("", recursive=True)] == ["d/10", "d/2", "d/sub/3", "e"]
    assert [file.name for file in store.list("")] == ["e"]
    assert store.list("nowhere") == []
    assert store.list("d")[0].modified_ms > 1_600_000_000_000


def test_what_is_at_the_top(store: Store) -> None:
    assert [name for name in store.top_names(10) if name != ".tmp/"] == []
    for name in ("d/sub/1", "d/2", "e", "_f/g"):
        store.put_if_absent(name, b"")
    assert sorted(name for name in store.top_names(10) if name != ".tmp/") == ["_f/", "d/", "e"]
    assert len(store.top_names(2)) == 2


def test_delete_is_idempotent(store: Store) -> None:
    store.put_if_absent("a/b", b"x")
    store.delete("a/b")
    store.delete("a/b")
    store.delete("never/was")
    assert not store.exists("a/b")
    store.put_if_absent("a/b", b"again")
    assert store.read("a/b") == b"again"


def test_delete_directory(store: Store) -> None:
    for name in ("d/1", "d/sub/2", "d2/3"):
        store.put_if_absent(name, b"x")
    store.delete_directory("d")
    store.delete_directory("d")
    assert [file.name for file in store.list("", recursive=True)] == ["d2/3"]


def test_append_file_grows(store: Store) -> None:
    with store.append_file("segments/w/0.log") as file:
        assert file.name == "segments/w/0.log"
        assert file.position == 0
        assert file.write(b"ab", bytearray(b"cd"), memoryview(b"ef")) == 0
        assert file.write() == 6
        assert file.write(b"", b"g", b"") == 6
        if store.traits.appends_after_sync:
            file.sync()
        assert file.write(b"h") == 7
        assert file.position == 8
        file.sync()
    assert store.read("segments/w/0.log") == b"abcdefgh"


def test_what_sync_has_finished_does_not_grow(store: Store) -> None:
    if store.traits.appends_after_sync:
        pytest.skip("files of this store grow after sync")
    with store.append_file("a") as file:
        file.write(b"x")
        file.sync()
        file.sync()
        with pytest.raises(StorageError, match="finished by sync"):
            file.write(b"y")
    assert store.read("a") == b"x"


def test_append_takes_any_bytes(store: Store) -> None:
    with store.append_file("a") as file:
        words = memoryview(bytearray(8)).cast("Q")
        words[0] = 1
        file.write(words)
        assert file.position == 8


def test_append_of_thousands_of_chunks(store: Store) -> None:
    chunks = [bytes([number % 256]) * (number % 7) for number in range(3000)]
    with store.append_file("a") as file:
        file.write(b"start")
        assert file.write(*chunks) == 5
        file.sync()
    assert store.read("a") == b"start" + b"".join(chunks)


def test_append_file_is_exclusive(store: Store) -> None:
    with store.append_file("a") as file:
        file.sync()
    store.put_if_absent("b", b"x")

    def create(name: str) -> None:
        with store.append_file(name) as file:
            file.write(b"other")
            file.sync()

    for name, content in (("a", b""), ("b", b"x")):
        with pytest.raises(AlreadyExistsError):
            create(name)
        assert store.read(name) == content


def test_a_file_that_was_never_synced_is_not_there_or_is_short(store: Store) -> None:
    with store.append_file("a") as file:
        file.write(b"x")
    assert store.traits.appends_after_sync or not store.exists("a")


def test_list_after_a_name(store: Store) -> None:
    for number in range(5):
        store.put_if_absent(f"d/{number}", b"")
    assert [file.name for file in store.list("d", start_after="d/2")] == ["d/3", "d/4"]
    assert [file.name for file in store.list("d", start_after="d/15")] == ["d/2", "d/3", "d/4"]
    assert store.list("d", start_after="d/9") == []


def test_reading_many(store: Store) -> None:
    store.put_if_absent("a", b"first")
    store.put_if_absent("b", b"x" * 100)
    assert store.read_many(["b", "none", "a"], max_bytes=10) == [b"x" * 10, None, b"first"]
    assert store.read_many(["none"], max_bytes=10) == [None]
    assert store.read_many([], max_bytes=10) == []


def test_reading_ahead(store: Store) -> None:
    content = bytes(range(256)) * 64
    store.put_if_absent("a", content)
    with store.open_read("a") as file:
        file.will_need(100, 5000)
        file.will_need(4000, 20_000)
        assert file.read(100, 1000) == content[100:1100]
        assert file.read(1000, 6000) == content[1000:7000]
        assert file.read(50, 100) == content[50:150]
        assert file.read(10_000, 20_000) == content[10_000:]


def test_closed_append_file_refuses(store: Store) -> None:
    file = store.append_file("a")
    file.close()
    file.close()
    for use in (lambda: file.write(b"x"), file.sync):
        with pytest.raises(StorageError, match="closed"):
            use()


def test_hint_is_replaced(store: Store) -> None:
    store.put_hint("h/i", b"one")
    store.put_hint("h/i", bytearray(b"two!"))
    assert store.read("h/i") == b"two!"


def test_read_file(store: Store) -> None:
    store.put_if_absent("a", b"0123456789")
    with store.open_read("a") as file:
        assert (file.name, file.size) == ("a", 10)
        assert file.read(2, 3) == b"234"
        mapped = file.map()
    assert bytes(mapped) == b"0123456789"
    assert mapped.readonly
    with pytest.raises(StorageError, match="closed"):
        file.read()


def test_map_of_an_empty_file(store: Store) -> None:
    store.put_if_absent("a", b"")
    with store.open_read("a") as file:
        assert bytes(file.map()) == b""


def test_mapping_outlives_deletion(store: Store) -> None:
    store.put_if_absent("a", b"still here")
    with store.open_read("a") as file:
        mapped = file.map()
    store.delete("a")
    assert bytes(mapped) == b"still here"


ILLEGAL = ["", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/..", "./a", "a\0b", ".tmp", ".tmp/x"]
TOO_LONG = ["x" * 256, "a/" * 1100 + "a"]


@pytest.mark.parametrize("name", [*ILLEGAL, *TOO_LONG, "\udc80"])
def test_names_that_could_leave_the_root_are_refused(store: Store, name: str) -> None:
    uses: list[Callable[[], object]] = [
        lambda: store.put_if_absent(name, b""),
        lambda: store.read(name),
        lambda: store.exists(name),
        lambda: store.delete(name),
        lambda: store.append_file(name),
        lambda: store.put_hint(name, b""),
        lambda: store.open_read(name),
        lambda: store.delete_directory(name),
        lambda: store.abort_puts(name),
    ]
    for use in uses:
        with pytest.raises(InvalidRequestError, match="file name"):
            use()


@pytest.mark.parametrize("name", ["a", "...", "..a", "a b", "ä/ö", ".tmp-0/1", "-", "x" * 255])
def test_odd_names_that_are_legal(store: Store, name: str) -> None:
    store.put_if_absent(name, b"x")
    assert [file.name for file in store.list("", recursive=True)] == [name]


def test_advisory_locks_exclude_each_other(store: Store) -> None:
    store.put_if_absent("d/a", b"")
    one, other = store.advisory_lock("d"), store.advisory_lock("d")
    assert one.acquire()
    assert store.traits.is_remote or not other.acquire()
    other.release()  # nothing, and so no one else's
    assert store.traits.is_remote or not other.acquire()
    one.release()
    one.release()
    assert other.acquire()
    assert store.traits.is_remote or not one.acquire()
    other.release()
    assert one.acquire()
    one.release()


def test_sync_of_a_directory(store: Store) -> None:
    store.put_if_absent("d/a", b"")
    store.sync_directory("d")
    store.sync_directory("")


def test_sweep_of_nothing(store: Store) -> None:
    assert store.sweep_temporary(older_than_ms=0) == 0


def test_what_a_store_can_do_is_asked_and_not_known_by_its_class(store: Store) -> None:
    first = store.hold("held", b"the first")
    assert first.holder is None
    second = store.hold("held", b"the second")
    assert second.holder in {None, b"the first"}
    first.release()
    second.release()
    assert store.hold("held", b"").holder is None
    space = store.space()
    assert space is None or 0 < space[1] <= space[0]
    store.put_if_absent("file", b"12345")
    with store.open_read("file") as file:
        if file.descriptor is not None:
            assert os.pread(file.descriptor, 3, 1) == b"234"


def test_a_directory_has_locks_space_and_descriptors(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    kept = store.hold("held", b"us")
    assert store.hold("held", b"them").holder == b"us"
    kept.release()
    usage = shutil.disk_usage(tmp_path)
    assert store.space()[0] == usage.total
    store.put_if_absent("file", b"12345")
    with store.open_read("file") as file:
        assert file.descriptor is not None
    with pytest.raises(StorageError, match="the file is closed"):
        file.descriptor  # noqa: B018
