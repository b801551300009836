"""All stores, for the contract that they share; and a record of what reaches the disk."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sparklog.clock import ManualClock
from sparklog.storage import LocalStore, MemoryStore, Store, open_store


@pytest.fixture
def local(tmp_path: Path) -> LocalStore:
    store = open_store(tmp_path / "root", create=True)
    assert isinstance(store, LocalStore)
    return store


@pytest.fixture(params=["local", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return open_store(tmp_path / "root", create=True)
    if request.param == "s3":
        return open_store(request.getfixturevalue("s3_root"))
    return MemoryStore("contract", clock=ManualClock())


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the code asks of the operating system that matters for durability, in order."""
    seen: list[str] = []

    def record(function: str, describe: Callable[..., str]) -> None:
        real = getattr(os, function)

        def shim(*args: object, **keywords: object) -> object:
            text = describe(*args)
            result = real(*args, **keywords)
            seen.append(f"{function} {text}")
            return result

        monkeypatch.setattr(os, function, shim)

    def kind(path: str) -> str:
        return "temporary" if "/.tmp/" in path else Path(path).name

    def fd_kind(fd: int) -> str:
        return kind(os.readlink(f"/proc/self/fd/{fd}"))

    record("fsync", fd_kind)
    record("fdatasync", fd_kind)
    record("link", lambda source, target, **_: f"{kind(source)} {kind(target)}")
    record("unlink", lambda path, **_: kind(path))
    record("pwritev", lambda fd, *_: fd_kind(fd))
    return seen
