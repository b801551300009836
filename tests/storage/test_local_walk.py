"""What a walk shows of a directory tree, and writers whose directory goes while they make a file."""

import os
from pathlib import Path

import pytest

from sparklog.errors import NotFoundError, StorageError
from sparklog.storage import LocalStore
from sparklog.storage import local as local_tree
from tests.support.rights import closed


def walked(store: LocalStore) -> list[str]:
    return sorted(file.name for portion in store.walk(lambda _: True) for file in portion)


def test_empty_directories_and_nothing_that_is_no_file(local: LocalStore, tmp_path: Path) -> None:
    root = Path(local.root)
    for directory in ("empty", "full/empty", ".tmp/x"):
        (root / directory).mkdir(parents=True)
    local.put_if_absent("full/a", b"x")
    (root / "link").symlink_to("full/a")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    (root / "linked").symlink_to(outside)
    os.mkfifo(root / "pipe")
    assert walked(local) == ["empty/", "full/a", "full/empty/"]
    (found,) = [file for portion in local.walk(lambda name: name == "empty") for file in portion]
    assert found.modified_ms == (root / "empty").stat().st_mtime_ns // 1_000_000


def test_in_portions(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_tree, "PORTION", 2)
    for number in range(5):
        local.put_if_absent(f"d{number}/a", b"")
    assert [len(portion) for portion in local.walk(lambda _: True)] == [2, 2, 1]


def test_what_is_removed_in_the_midst_of_it_is_no_error(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_tree, "PORTION", 1)
    for number in range(20):
        local.put_if_absent(f"d{number}/a", b"")
    for portion in local.walk(lambda _: True):
        for file in portion:
            if not file.name.endswith("/"):
                local.delete(file.name)
                assert local.remove_directory(file.name.partition("/")[0])
    assert [file.name for file in local.list("", recursive=True)] == []


def test_a_directory_that_cannot_be_listed_ends_it_unless_that_is_noted(unprivileged: Path) -> None:
    store = LocalStore(unprivileged)
    for name in ("a/x", "b/c/x", "b/x", "d/x"):
        store.put_if_absent(name, b"")
    noted: dict[str, str] = {}
    with closed(unprivileged / "b/c"):
        with pytest.raises(StorageError, match="b/c: cannot list"):
            walked(store)
        found = store.walk(lambda _: True, lambda directory, error: noted.update({directory: error.code}))
        assert sorted(file.name for portion in found for file in portion) == ["a/x", "b/x", "d/x"]
    assert noted == {"b/c": "STORAGE_REFUSED"}


@pytest.mark.parametrize("times", [1, 3, 4])
def test_a_file_is_made_although_its_directory_goes_meanwhile(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    real, left = os.open, [times]

    def swept_first(path: str, flags: int, *rest: int) -> int:
        if left[0] and path.endswith("/w/file"):
            left[0] -= 1
            assert local.remove_directory("segments/w")
        return real(path, flags, *rest)

    local.put_if_absent("segments/other/file", b"")
    monkeypatch.setattr(os, "open", swept_first)
    if times > 3:  # somebody does nothing else
        with pytest.raises(NotFoundError):
            local.append_file("segments/w/file")
        return
    with local.append_file("segments/w/file") as file:
        file.write(b"x")
        file.sync()
    assert LocalStore(Path(local.root)).read("segments/w/file") == b"x"


def test_a_file_that_was_swept_with_its_directory_fails_nothing(local: LocalStore) -> None:
    """Its writer was too slow: whoever publishes it is told. Its store goes on."""
    with local.append_file("segments/w/file") as file:
        file.write(b"x")
        local.delete("segments/w/file")
        assert local.remove_directory("segments/w")
        file.sync()
    with local.append_file("segments/w/next") as file:
        file.write(b"x")
        file.sync()
    assert local.exists("segments/w/next")


def test_the_time_is_that_of_the_file_system(local: LocalStore) -> None:
    before = local.storage_now_ms(here_ms=5)
    local.put_if_absent("a", b"")
    (file,) = local.list("")
    assert before <= file.modified_ms <= local.storage_now_ms(here_ms=5)
    assert [name.name for name in (Path(local.root) / ".tmp").iterdir()] == []


def test_a_dry_sweep_only_counts(local: LocalStore) -> None:
    temporary = Path(local.root) / ".tmp" / "left"
    temporary.parent.mkdir(exist_ok=True)
    temporary.touch()
    assert local.sweep_temporary(older_than_ms=0, dry_run=True) == 1
    assert temporary.exists()
    assert local.sweep_temporary(older_than_ms=0) == 1
    assert not temporary.exists()


@pytest.mark.parametrize("prefix", ["", "d"])
def test_list_after_a_name_of_a_tree(local: LocalStore, prefix: str) -> None:
    names = ["c", "d/1", "d/2-a/x", "d/2.b/x", "d/2/1", "d/2/3", "d/20/x", "d/3.d/x", "e/1"]
    for name in names:
        local.put_if_absent(name, b"")
    there = [name for name in sorted(names) if name.startswith(prefix)]
    for after in ("", "a", *names, "d", "d/", "d/2", "d/2.", "d/2/2", "d/29", "d/3", "d/3.d/y", "da", "z"):
        found = [file.name for file in local.list(prefix, recursive=True, start_after=after)]
        assert found == [name for name in there if name > after], after
