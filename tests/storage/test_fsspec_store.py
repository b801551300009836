"""An fsspec file system is opened only if it proves what commits need."""

import json
import os
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import AlreadyExistsError, InvalidRequestError, StorageError
from sparklog.storage import IndefinitePutError, fsspec_race, object_probe, open_store
from sparklog.storage.fsspec_store import FsspecStore, is_conflict, parse_fsspec_options
from sparklog.storage.object_options import hide
from sparklog.storage.object_store import PART_BYTES
from tests.storage.linking_files import BROKEN, AsksFirst, LinkingFileSystem


@pytest.fixture(autouse=True)
def registered() -> None:
    kinds: list[Any] = [LinkingFileSystem, *BROKEN]
    for kind in kinds:
        fsspec.register_implementation(kind.protocol, kind, clobber=True)


@pytest.mark.slow
def test_a_log_on_a_file_system_that_keeps_the_promise(tmp_path: Path) -> None:
    root = f"linking://{tmp_path}/log"
    log = sparklog.open(root, create=True)
    log.create_topic("t", partitions=2)
    log.append("t", pa.table({"value": ["hello"]}), partition=1)
    again = sparklog.open(root)
    assert isinstance(again.store, FsspecStore)
    assert again.read("t", 1, 0)["value"].to_pylist() == [b"hello"]
    assert list((tmp_path / "log" / ".tmp").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "missing"), BROKEN.items())
def test_one_that_breaks_it_is_rejected_and_left_as_it_was(
    tmp_path: Path, kind: type[Any], missing: str
) -> None:
    with pytest.raises(StorageError, match=missing) as raised:
        sparklog.open(f"{kind.protocol}://{tmp_path}/log", create=True)
    assert raised.value.code == "STORAGE_UNSUPPORTED"
    assert kind.__name__ in str(raised.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_one_in_the_memory_of_each_process_is_rejected() -> None:
    with pytest.raises(StorageError, match="2 of two processes created the same file"):
        sparklog.open("memory://log", create=True, storage_options={"protocol": "fsspec"})
    assert fsspec.filesystem("memory").find("/log") == []


def test_each_process_races_before_its_first_commit(tmp_path: Path) -> None:
    store = open_store(f"lastwins://{tmp_path}/log")
    with pytest.raises(StorageError, match="several writers created the same object"):
        store.put_if_absent("a", b"x")
    assert store.list("", recursive=True) == []


def test_what_a_racer_finds(tmp_path: Path) -> None:
    contents = [b"A" * 10, b"B" * 10]
    good, asks = LinkingFileSystem(), AsksFirst()
    path = str(tmp_path / "a")
    assert fsspec_race.attempt(good, path, contents, 0) == "created"
    assert fsspec_race.attempt(good, path, contents, 1) == "taken"
    assert fsspec_race.attempt(good, path, contents, 0) == "created"  # a repetition finds its own
    (tmp_path / "a").write_bytes(b"A" * 9)
    assert fsspec_race.attempt(asks, path, contents, 1) == "torn"


def test_a_url_of_no_file_system() -> None:
    with pytest.raises(InvalidRequestError, match="fsspec cannot open nosuch://") as raised:
        open_store("nosuch://host/path")
    assert raised.value.code == "UNSUPPORTED_STORE"


@pytest.mark.parametrize(
    "url", ["linking://user:pw@host/x", "linking://h/../x", "linking://h/x?y", "linking://h/x::memory"]
)
def test_urls_with_what_they_must_not_have(url: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        open_store(url)
    assert "pw" not in str(raised.value)


def test_options_go_to_the_file_system_and_into_no_message(tmp_path: Path) -> None:
    options = parse_fsspec_options({"protocol": "fsspec", "password": "hidden-password", "retry_timeout": 1})
    assert options.retry_timeout == 1
    assert options.given == (("password", "hidden-password"),)
    assert "hidden" not in repr(options)
    store = FsspecStore(f"linking://{tmp_path}", options)
    error = OSError("login with hidden-password failed")
    assert "hidden" not in store.client.describe(error)
    assert "hidden" not in repr(store)


def test_options_that_other_processes_could_not_use() -> None:
    with pytest.raises(InvalidRequestError, match="no text, number, list or dict"):
        parse_fsspec_options({"session": object()})


def test_another_protocol_is_none() -> None:
    with pytest.raises(InvalidRequestError, match="expected fsspec"):
        open_store("s3://b/x", storage_options={"protocol": "s3fs"})


def test_conflicts_of_client_libraries_are_known() -> None:
    class Botocore(Exception):
        response = {"ResponseMetadata": {"HTTPStatusCode": 412}}

    class Azure(Exception):
        status_code = 409

    def raised(cause: Exception) -> OSError:
        error = OSError(22, "Invalid argument")
        error.__cause__ = cause
        return error

    assert is_conflict(raised(Botocore()))
    assert is_conflict(raised(Azure()))
    assert is_conflict(raised(FileExistsError("a")))
    assert not is_conflict(raised(TimeoutError()))


class AnswerLost(LinkingFileSystem):
    """Looks, writes, and then fails."""

    protocol = "answerlost"
    error: Exception | None = None

    def pipe_file(self, path: Any, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        try:
            self.info(path)
        except FileNotFoundError:
            super().pipe_file(path, value, mode)
            if self.error is not None:
                raise self.error  # noqa: B904 - libraries do so
        else:
            raise FileExistsError(path)


@pytest.mark.parametrize(
    "error", [TimeoutError("late"), OSError("reset"), json.JSONDecodeError("cut", "", 0), TypeError("None")]
)
def test_a_write_that_fails_after_it_was_sent_is_indefinite(tmp_path: Path, error: Exception) -> None:
    store = made(AnswerLost, tmp_path)
    store.client.file_system().error = error
    with pytest.raises(IndefinitePutError, match="no definite answer"):
        store.put_if_absent("a", b"ours")
    with pytest.raises(AlreadyExistsError):
        store.put_if_absent("a", b"ours")
    assert store.read("a") == b"ours"


class NamesWithScheme(LinkingFileSystem):
    """Lists URLs where it takes paths."""

    protocol = "nameswithscheme"

    def find(self, path: Any, **options: Any) -> Any:
        return {f"x://{name}": entry for name, entry in super().find(path, **options).items()}


class LosesTheEnd(LinkingFileSystem):
    """Closes a file without an error, and without its end."""

    protocol = "losestheend"

    def open(self, path: Any, mode: str = "rb", **options: Any) -> Any:
        file = super().open(path, mode, **options)
        if mode == "wb":
            real = file.close

            def close() -> None:
                real()
                os.truncate(path, 5)

            file.close = close
        return file


class DeletesNothing(LinkingFileSystem):
    """Has no deletion."""

    protocol = "deletesnothing"

    def rm_file(self, path: Any) -> None:
        raise NotImplementedError(path)


def made(kind: Any, directory: Path) -> FsspecStore:
    fsspec.register_implementation(kind.protocol, kind, clobber=True)
    store = FsspecStore(f"{kind.protocol}://{directory}", parse_fsspec_options({"retry_timeout": 0.01}))
    object_probe.passed.add(store.client.identity)
    return store


def test_a_listing_of_other_names_is_none(tmp_path: Path) -> None:
    store = made(NamesWithScheme, tmp_path)
    store.put_if_absent("d/a", b"x")
    with pytest.raises(StorageError, match="expected names that begin with") as raised:
        store.list("", recursive=True)
    assert raised.value.code == "STORAGE_UNSUPPORTED"


def test_a_large_file_is_measured_when_it_is_closed(tmp_path: Path) -> None:
    store = made(LosesTheEnd, tmp_path)
    with store.append_file("large") as file:
        file.write(b"x" * (2 * PART_BYTES))
        with pytest.raises(StorageError, match="closed without an error at 5 bytes of 16777216"):
            file.sync()


@pytest.mark.slow
def test_each_kind_of_request_is_tried(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot delete object: NotImplementedError"):
        made(DeletesNothing, tmp_path).try_requests()


class EmptyDirectories(LinkingFileSystem):
    """Gives directories the size 0, as those over object stores do."""

    protocol = "emptydirectories"

    def info(self, path: Any, **options: Any) -> Any:
        found = super().info(path, **options)
        return {**found, "size": 0} if found["type"] == "directory" else found


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    store = made(EmptyDirectories, tmp_path)
    store.put_if_absent("d/a", b"x")
    assert not store.exists("d")
    assert not store.exists("d/b")


def test_credentials_in_lists_and_dicts_are_hidden() -> None:
    nested = {"client_kwargs": {"secret": "hush-1", "more": [{"deep": "hush-2"}]}, "key": "hush"}
    text = hide("hush-1, hush-2 and hush", parse_fsspec_options(nested))
    assert text == "***, *** and ***"


@pytest.mark.slow
def test_a_forked_child_makes_its_own(tmp_path: Path) -> None:
    store = FsspecStore(f"linking://{tmp_path}", parse_fsspec_options({}))
    store.put_if_absent("a", b"x")
    before = store.client.file_system()
    pid = os.fork()
    if not pid:  # pragma: no cover
        os._exit(0 if store.read("a") == b"x" and store.client.file_system() is not before else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert store.client.file_system() is before


def test_a_large_file_whose_name_is_taken_is_refused(tmp_path: Path) -> None:
    store = FsspecStore(f"linking://{tmp_path}", parse_fsspec_options({}))
    with store.append_file("large") as file:
        file.write(b"x" * (2 * PART_BYTES))
        file.sync()
    assert store.open_read("large").size == 2 * PART_BYTES
    with store.append_file("large") as file, pytest.raises(AlreadyExistsError):
        file.write(b"y" * (2 * PART_BYTES + 1))
    assert store.read("large", 0, 1) == b"x"
