"""Walking through a root, and removing what was found, in every store."""

from typing import Any

import pytest

from sparklog.errors import InvalidRequestError, StorageError
from sparklog.storage import Store, open_store, s3_client
from sparklog.storage.s3 import S3Store


def test_a_walk_finds_everything_where_it_is_let_in(store: Store) -> None:
    inside = {"top", *(f"in/{number:02d}/x" for number in range(7)), "in/a", "in-2/b", "zz/c"}
    outside = {"in/secret/x", "in/secret/deep/y", "out/a", "out/b/c", "out0/d"}
    for name in (*inside, *outside):
        store.put_if_absent(name, name.encode())
    asked = set()

    def enters(directory: str) -> bool:
        asked.add(directory)
        return directory not in {"out", "out0", "in/secret"}

    portions = list(store.walk(enters))
    found = [file for portion in portions for file in portion]
    assert all(portions)
    assert {file.name for file in found} == inside
    assert len(found) == len(inside)
    assert {(file.name, file.size) for file in found} == {(name, len(name)) for name in inside}
    listed = {file.name: file for file in store.list("", recursive=True)}
    assert all(listed[file.name] == file for file in found)
    assert not {directory for directory in asked if directory.startswith(("out/", ".tmp", "in/secret/"))}


def test_many_files_go_at_once_and_those_that_are_gone_are_no_error(store: Store) -> None:
    for name in ("a/1", "a/2", "b"):
        store.put_if_absent(name, b"x")
    store.delete_many(["a/1", "b", "never"])
    assert [file.name for file in store.list("", recursive=True)] == ["a/2"]
    store.delete_many([])
    with pytest.raises(InvalidRequestError, match="file name"):
        store.delete_many(["../x"])


def test_a_directory_goes_when_it_is_empty(store: Store) -> None:
    for name in ("a/1", "b/2"):
        store.put_if_absent(name, b"x")
    store.delete("a/1")
    assert store.remove_directory("b") is False
    assert store.remove_directory("never") is False
    store.remove_directory("a")
    assert store.read("b/2") == b"x"
    with store.append_file("a/3") as file:
        file.write(b"y")
        file.sync()
    assert store.read("a/3") == b"y"


@pytest.mark.parametrize(
    ("code", "expected"), [("AccessDenied", "STORAGE_REFUSED"), ("InternalError", "STORAGE_FAILED")]
)
def test_a_removal_that_a_bucket_refuses_is_told(
    s3_root: str, monkeypatch: pytest.MonkeyPatch, code: str, expected: str
) -> None:
    store = open_store(s3_root)
    assert isinstance(store, S3Store)
    answers: list[dict[str, Any]] = [
        {"Errors": [{"Key": "a", "Code": "NoSuchKey"}]},
        {"Errors": [{"Key": "b", "Code": code}]},
    ]
    monkeypatch.setattr(store.client, "call", lambda *_, **__: answers.pop(0))
    with pytest.raises(StorageError, match=f"cannot delete b: the store answered {code}") as raised:
        store.delete_many([f"{number}" for number in range(1001)])
    assert raised.value.code == expected


@pytest.mark.parametrize("keys", [1, 2, 3])
def test_a_bucket_is_walked_page_by_page_and_past_what_is_left_out(
    s3_root: str, monkeypatch: pytest.MonkeyPatch, keys: int
) -> None:
    monkeypatch.setattr(s3_client, "LIST_KEYS", keys)
    store = open_store(s3_root)
    assert isinstance(store, S3Store)
    inside = {"a/1", "a/2", "log/1", "log-0/x", "log/sub/1", "log0", "zz/1"}
    outside = {*(f"log/out/{number}" for number in range(9)), *(f"log1/{number}" for number in range(9))}
    for name in (*inside, *outside):
        store.put_hint(name, b"")
    before = store.requests.get("list_objects_v2", 0)
    portions = list(store.walk(lambda directory: directory not in {"log/out", "log1"}))
    asked = store.requests["list_objects_v2"] - before
    assert sorted(file.name for portion in portions for file in portion) == sorted(inside)
    assert asked < (len(inside) + len(outside)) // keys
