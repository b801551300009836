"""Indexes on the local disk: fetched once, mapped, bounded, and never a reason to fail."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sparklog.storage import open_store
from sparklog.storage.object_store import DiskCache
from sparklog.storage.s3 import S3Store
from tests.seaweed import SeaweedServer

KIB = 1024


class Origin:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def fetch(self, name: str, size: int = 10 * KIB) -> Callable[[], bytes]:
        def fetch() -> bytes:
            self.asked.append(name)
            return name[:1].encode() * size

        return fetch


def test_fetched_once_and_shared(tmp_path: Path) -> None:
    origin = Origin()
    for cache in (DiskCache(tmp_path / "c", 1 << 20), DiskCache(tmp_path / "c", 1 << 20)):
        for _ in range(2):
            mapped = cache.get("a", origin.fetch("a"))
            assert bytes(mapped) == b"a" * 10 * KIB
            assert mapped.readonly
    assert origin.asked == ["a"]
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o700


def test_nothing_to_map_is_not_kept(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "c", 1 << 20)
    assert bytes(cache.get("a", lambda: b"")) == b""
    assert list((tmp_path / "c").iterdir()) == []


def test_the_limit_holds_and_what_is_used_stays(tmp_path: Path) -> None:
    origin = Origin()
    cache = DiskCache(tmp_path, 100 * KIB)
    first = cache.get("first", origin.fetch("first"))
    for number in range(50):
        cache.get(f"{number}", origin.fetch(f"{number}"))
        for age, path in enumerate(sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime)):
            os.utime(path, (age, age))  # older than anything that is used next
        cache.get("first", origin.fetch("first"))
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 120 * KIB
    assert origin.asked.count("first") == 1
    assert origin.asked.count("0") == 1
    cache.get("0", origin.fetch("0"))
    assert origin.asked.count("0") == 2
    assert bytes(first) == b"f" * 10 * KIB


def test_larger_than_the_limit(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 5 * KIB)
    assert len(cache.get("a", Origin().fetch("a"))) == 10 * KIB
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("spoil", ["file", "others may write", "unwritable parent"])
def test_a_directory_that_cannot_be_trusted_or_made_is_not_used(tmp_path: Path, spoil: str) -> None:
    directory = tmp_path / "c"
    if spoil == "file":
        directory.write_bytes(b"")
    elif spoil == "others may write":
        directory.mkdir()
        directory.chmod(0o777)
    else:
        directory = Path("/proc/none/c")
    origin = Origin()
    cache = DiskCache(directory, 1 << 20)
    for _ in range(2):
        assert len(cache.get("a", origin.fetch("a"))) == 10 * KIB
    assert origin.asked == ["a", "a"]


def test_indexes_of_an_s3_store_are_kept_and_nothing_else(
    s3_root: str, s3_server: SeaweedServer, tmp_path: Path
) -> None:
    options = {**s3_server.storage_options, "cache_dir": str(tmp_path / "cache")}
    store = open_store(s3_root, storage_options=options)
    assert isinstance(store, S3Store)
    for name in ("segments/w/0.index", "segments/w/0.log"):
        store.put_hint(name, b"12345678")
    gets = []
    for _ in range(2):
        before = store.requests.get("get_object", 0)
        for name in ("segments/w/0.index", "segments/w/0.log"):
            with store.open_read(name) as file:
                mapped = file.map()
            assert bytes(mapped) == b"12345678"
        gets.append(store.requests["get_object"] - before)
    assert gets == [2, 1]
    assert len(list((tmp_path / "cache").iterdir())) == 1
    off = open_store(s3_root, storage_options={**options, "cache_bytes": 0})
    with off.open_read("segments/w/0.index") as file:
        assert bytes(file.map()) == b"12345678"
