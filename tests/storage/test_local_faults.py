"""Full disks, short writes, read-only mounts, forks: refused with a reason, and usable afterwards."""

import errno
import fcntl
import os
import resource
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from sparklog.errors import FatalStorageError, NotFoundError, StorageError
from sparklog.storage import LocalStore


def limit_writes(monkeypatch: pytest.MonkeyPatch, *, bytes_per_call: int, total: int) -> None:
    """pwritev that writes little at a time, and says ENOSPC after `total` bytes."""
    real = os.pwritev
    left = total

    def pwritev(fd: int, buffers: Sequence[memoryview], position: int) -> int:
        nonlocal left
        count = min(bytes_per_call, left)
        if count == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real(fd, [b"".join(buffers)[:count]], position)
        left -= written
        return written

    monkeypatch.setattr(os, "pwritev", pwritev)


def test_short_writes_are_continued(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_writes(monkeypatch, bytes_per_call=3, total=1000)
    local.put_if_absent("a", b"0123456789")
    with local.append_file("b") as file:
        file.write(b"01234", b"", b"5", b"6789")
    assert local.read("a") == local.read("b") == b"0123456789"


def test_full_disk_cuts_an_append_back(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    file = local.append_file("a")
    file.write(b"before")
    with monkeypatch.context() as patch:
        limit_writes(patch, bytes_per_call=4, total=10)
        with pytest.raises(StorageError, match="No space left") as raised:
            file.write(b"x" * 20)
    assert raised.value.code == "STORAGE_FULL"
    assert not isinstance(raised.value, FatalStorageError)
    assert file.position == 6
    assert local.read("a") == b"before"
    assert file.write(b" after") == 6
    file.sync()
    file.close()
    assert local.read("a") == b"before after"


def test_append_that_cannot_be_cut_back_refuses_further_use(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ftruncate(fd: int, size: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    file = local.append_file("a")
    with monkeypatch.context() as patch:
        limit_writes(patch, bytes_per_call=4, total=6)
        patch.setattr(os, "ftruncate", ftruncate)
        with pytest.raises(StorageError, match="truncate"):
            file.write(b"x" * 20)
    with pytest.raises(StorageError, match="truncate"):
        file.write(b"y")
    file.close()


MAPPED_WHILE_TORN = """
    import errno, os, sys
    import numpy as np
    from sparklog.errors import StorageError
    from sparklog.format.encode import EncodedBatches
    from sparklog.log.writer import GrowingIndex
    from sparklog.storage import open_store
    store = open_store(sys.argv[1], create=True)
    count = 4096
    columns = np.arange(count)
    batches = EncodedBatches(
        data=[], base_offset=columns, position=columns * 5000, size=np.full(count, 5000),
        record_count=count, size_bytes=count * 5000, max_timestamp_ms=0,
        batch_record_count=np.ones(count, int), batch_max_timestamp_ms=np.zeros(count, int),
    )
    real, mapped = os.pwritev, []
    def pwritev(fd, buffers, position):
        if mapped:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real(fd, [b"".join(buffers)[:20_001]], position)
        with store.open_read("s/0.index") as reader:
            mapped.append(reader.map())
        return written
    os.pwritev = pwritev
    index = GrowingIndex(store, "s/0.index")
    index.add(batches, 0, interval_bytes=1, limit_bytes=1 << 20)
    index.write()
    assert len(bytes(mapped[0])) == 20_001
    index.add(batches, 0, interval_bytes=1, limit_bytes=1 << 20)
    index.write()
    index.close()
    assert len(store.read("s/0.index")) == 20_001
    print("alive")
"""


@pytest.mark.slow
def test_an_index_that_a_reader_has_mapped_is_not_cut_back(tmp_path: Path) -> None:
    """In a process of its own: touching a page that is gone kills with SIGBUS."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MAPPED_WHILE_TORN), str(tmp_path / "root")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def test_a_mapped_file_refuses_to_go_on_after_torn_bytes(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = local.append_file("a", mapped=True)
    file.write(b"before")
    with monkeypatch.context() as patch:
        limit_writes(patch, bytes_per_call=4, total=10)
        with pytest.raises(StorageError, match="No space left"):
            file.write(b"x" * 20)
    with pytest.raises(StorageError, match="No space left"):
        file.write(b"after")
    file.close()
    assert local.read("a") == b"before" + b"x" * 10


def test_full_disk_leaves_no_put(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        limit_writes(patch, bytes_per_call=4, total=6)
        with pytest.raises(StorageError, match="No space left"):
            local.put_if_absent("d/a", b"x" * 20)
    assert not local.exists("d/a")
    assert list((Path(local.root) / ".tmp").iterdir()) == []
    local.put_if_absent("d/a", b"x" * 20)


def test_file_size_limit(local: LocalStore) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    file = local.append_file("a")
    file.write(b"x" * 1000)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(StorageError, match="ulimit -f") as raised:
            file.write(b"y" * 8192)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert raised.value.code == "FILE_TOO_LARGE"
    assert local.read("a") == b"x" * 1000
    file.close()


def test_errors_of_reading_are_not_absence(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    local.put_if_absent("a", b"x")

    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for function, use in (
        ("stat", lambda: local.exists("a")),
        ("preadv", lambda: local.read("a")),
        ("listdir", lambda: local.list("")),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(os, function, broken)
            with pytest.raises(StorageError, match="Input/output error") as raised:
                use()
        assert raised.value.code == "STORAGE_FAILED"


def test_too_many_open_files(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    local.put_if_absent("a", b"x")
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_)
        for use in (
            lambda: local.read("a"),
            lambda: local.append_file("b"),
            lambda: local.sync_directory(""),
        ):
            with pytest.raises(StorageError, match="ulimit -n") as raised:
                use()
            assert not isinstance(raised.value, FatalStorageError)
    local.sync_directory("")


def test_removed_root_is_not_brought_back(local: LocalStore) -> None:
    shutil.rmtree(local.root)
    with pytest.raises(NotFoundError, match="cannot"):
        local.put_if_absent("a", b"x")
    with pytest.raises(NotFoundError):
        local.append_file("d/a")
    assert not Path(local.root).exists()


@pytest.mark.slow
def test_forked_append_file_refuses_to_write(local: LocalStore) -> None:
    file = local.append_file("a")
    file.write(b"parent")
    child = os.fork()
    if child == 0:
        try:
            file.write(b"child")
        except StorageError as error:
            os._exit(0 if error.code == "FILE_FORKED" else 1)
        os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    file.sync()
    file.close()
    assert local.read("a") == b"parent"


def test_a_lock_that_cannot_be_released_blocks_no_publisher(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system is away for a moment: neither the commit that was made fails, nor the next publish."""
    flock, failed = fcntl.flock, list[int]()

    def failing(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_UN and not failed:
            failed.append(descriptor)
            raise OSError(errno.EIO, "Input/output error")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", failing)
    lock = local.advisory_lock("")
    assert lock.acquire()
    lock.release()
    assert failed
    assert lock.acquire()
    lock.release()
    assert local.advisory_lock("").acquire()


@pytest.mark.slow
def test_the_lock_is_free_again_though_a_forked_child_lives(local: LocalStore) -> None:
    lock = local.advisory_lock("")
    assert lock.acquire()
    hold, let_go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(let_go)
        os.read(hold, 1)
        os._exit(0)
    lock.release()
    again = local.advisory_lock("")
    assert again.acquire()
    again.release()
    os.close(let_go)
    os.close(hold)
    os.waitpid(child, 0)


SMALL_MOUNT = """
    import sys
    from sparklog.clock import SystemClock
    from sparklog.errors import StorageError, FatalStorageError
    from sparklog.metadata import MetadataLog, SetConfigs
    from sparklog.storage import open_store
    log = MetadataLog.open(open_store(sys.argv[1], create=True), SystemClock(), create=True)
    file = log.store.append_file("fill")
    size = 1 << 16
    while size:
        try:
            file.write(bytes(size))
        except StorageError as error:
            assert error.code == "STORAGE_FULL" and not isinstance(error, FatalStorageError), error
            size //= 2
    try:
        for number in range(10):
            log.publish(lambda image: [SetConfigs(configs={"a": str(number)})])
    except StorageError as error:
        print("full:", error.code)
    before = log.refresh()
    file.close()
    log.store.delete("fill")
    log.publish(lambda image: [SetConfigs(configs={"b": "1"})])
    again = MetadataLog.open(open_store(sys.argv[1]), SystemClock()).image
    assert again.commit == before.commit + 1 and again.configs == {**before.configs, "b": "1"}
"""
READ_ONLY_MOUNT = """
    import sys
    from sparklog.clock import SystemClock
    from sparklog.errors import StorageError
    from sparklog.metadata import MetadataLog, SetConfigs
    from sparklog.storage import open_store
    log = MetadataLog.open(open_store(sys.argv[1]), SystemClock())
    assert log.refresh().configs["b"] == "1"
    for use in (
        lambda: log.publish(lambda image: [SetConfigs(configs={"c": "1"})]),
        lambda: log.store.append_file("x"),
        lambda: log.store.put_hint("x", b""),
        lambda: log.store.delete("meta.properties"),
    ):
        try:
            use()
        except StorageError as error:
            print("read-only:", error.code)
    assert log.refresh().configs["b"] == "1"
"""


@pytest.mark.slow
def test_real_full_disk_and_real_read_only_mount(tmp_path: Path) -> None:
    """In a mount namespace of its own, which ends with it."""
    for name, text in (("full.py", SMALL_MOUNT), ("ro.py", READ_ONLY_MOUNT)):
        (tmp_path / name).write_text(textwrap.dedent(text))
    (tmp_path / "mount").mkdir()
    script = """
        mount -t tmpfs -o size=256k tmpfs "$1/mount" || exit 77
        "$2" "$1/full.py" "$1/mount/root" && mount -o remount,ro "$1/mount" && "$2" "$1/ro.py" "$1/mount/root"
    """
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("needs unshare(1)")
    done = subprocess.run(
        [unshare, "--mount", "sh", "-c", script, "sh", str(tmp_path), sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == ["full: STORAGE_FULL", *["read-only: STORAGE_REFUSED"] * 4]


def test_a_failed_early_sync_is_not_forgotten(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reports a failed write-back once: if the early fsync saw it, the last one must fail too."""
    monkeypatch.setattr("sparklog.storage.local_files.EARLY_SYNC_BYTES", 10)
    file = local.append_file("segments/w/0.log")
    real = os.fdatasync
    calls: list[int] = []

    def fails_once(fd: int) -> None:
        calls.append(fd)
        if len(calls) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    monkeypatch.setattr(os, "fdatasync", fails_once)
    file.write(b"x" * 20)
    for use in (file.sync, lambda: file.write(b"more"), lambda: local.put_if_absent("a", b"x")):
        with pytest.raises(FatalStorageError, match="DURABILITY_UNKNOWN"):
            use()
    file.close()
    assert len(calls) == 1


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "directory link"])
def test_only_regular_files_are_opened(local: LocalStore, tmp_path: Path, kind: str) -> None:
    """Whoever may write to a root could lead us out of it, or have us wait forever."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"secret")
    local.put_if_absent("there", b"x")
    planted = Path(local.root) / "planted"
    match kind:
        case "link":
            planted.symlink_to(outside)
        case "dangling link":
            planted.symlink_to(tmp_path / "nowhere")
        case "directory link":
            planted.symlink_to(tmp_path)
        case _:
            os.mkfifo(planted)
    with pytest.raises(StorageError, match="expected a regular file") as caught:
        local.open_read("planted")
    assert caught.value.code == "STORAGE_REFUSED"
    assert not local.exists("planted")
    assert [file.name for file in local.list("")] == ["there"]
