"""All stores, for the contract that they share; a record of what reaches the disk; S3 behind a proxy."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from sparklog.clock import Clock, ManualClock
from sparklog.storage import LocalStore, MemoryStore, Store, object_probe, open_store
from sparklog.storage.s3 import S3Store
from sparklog.storage.s3_options import parse_storage_options
from tests.bucket_servers import NAMES, are_built
from tests.seaweed import KEY, SECRET, SeaweedServer
from tests.storage.faulty_s3 import MakeStore
from tests.storage.linking_files import LinkingFileSystem
from tests.storage.s3_proxy import FaultyProxy


@pytest.fixture
def local(tmp_path: Path) -> LocalStore:
    store = open_store(tmp_path / "root", create=True)
    assert isinstance(store, LocalStore)
    return store


BUCKETS = [pytest.param(name, marks=pytest.mark.slow) for name in NAMES if are_built()]


@pytest.fixture(params=["local", "memory", "fsspec", pytest.param("s3", marks=pytest.mark.slow), *BUCKETS])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "fsspec":
        fsspec.register_implementation("linking", LinkingFileSystem, clobber=True)
        return open_store(f"linking://{tmp_path}/root")
    if request.param in NAMES:
        return open_store(request.getfixturevalue("bucket_server")(request.param).new_root())
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


@pytest.fixture
def proxy(s3_server: SeaweedServer) -> Iterator[FaultyProxy]:
    with FaultyProxy(s3_server.endpoint_url) as running:
        yield running


@pytest.fixture
def make(s3_root: str, proxy: FaultyProxy) -> MakeStore:
    """Makes stores behind the proxy. They wait without waiting.

    `ready`: raced already; not raced, as the first store at this address; None: as it is.
    For a LATE_ANSWER the client waits a moment only, for each: what is tried once needs a store of its own.
    """

    def make(
        fault: str = "", *, clock: Clock | None = None, ready: bool | None = True, **options: Any
    ) -> S3Store:
        given: dict[str, Any] = {"key": KEY, "secret": SECRET, "endpoint_url": proxy.endpoint_url}
        given["read_timeout"] = 0.4 if fault == "LATE_ANSWER" else 20
        store = S3Store(s3_root, parse_storage_options({**given, **options}), clock or ManualClock())
        if ready is False:
            object_probe.passed.discard(store.client.identity)
        if ready:
            object_probe.passed.add(store.client.identity)
            store.exists("ready")
        proxy.requests.clear()
        return store

    return make
