"""An S3 store's connections: how many, in which process, and what is told of them."""

import os
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sparklog.errors import NotFoundError, StorageError
from sparklog.storage import Store, open_store
from sparklog.storage.s3 import S3Store
from tests.seaweed import KEY, SECRET, SeaweedServer
from tests.storage import s3_proxy as faults
from tests.storage.faulty_s3 import MakeStore
from tests.storage.s3_proxy import Fault, FaultyProxy, Request


def is_get(request: Request) -> bool:
    return request.method == "GET"


def test_no_more_requests_at_a_time_than_allowed(make: MakeStore, proxy: FaultyProxy) -> None:
    store = make(max_concurrency=3)
    store.put_if_absent("a", b"x" * 1000)
    lock = threading.Lock()
    under_way, most = 0, 0
    all_there = threading.Event()

    def count(_: Request) -> Fault | None:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        return None

    real = proxy.forward

    def forward(request: Request, strip: str | None = None) -> Any:
        nonlocal under_way
        if under_way >= 3:
            all_there.set()
        all_there.wait(60)
        try:
            return real(request, strip)
        finally:
            with lock:
                under_way -= 1

    proxy.fault, proxy.forward = count, forward  # type: ignore[method-assign]
    with ThreadPoolExecutor(8) as pool:
        assert len(list(pool.map(lambda _: store.read("a"), range(24)))) == 24
    assert most == 3


def test_ranges_are_fetched_ahead_in_parallel(make: MakeStore, proxy: FaultyProxy) -> None:
    store = make()
    content = os.urandom(20 << 20)
    store.put_hint("a", content)
    with store.open_read("a") as file:
        proxy.requests.clear()
        file.will_need(0, 16 << 20)
        assert file.read(1000, 5000) == content[1000:6000]
        for start in range(0, 16 << 20, 1 << 20):
            if start:
                assert file.read(start, 1 << 20) == content[start : start + (1 << 20)]
        assert len(proxy.requests) == 4
        assert file.read(16 << 20, 4 << 20) == content[16 << 20 :]
        assert len(proxy.requests) == 5


def test_reading_ahead_leaves_requests_to_others(make: MakeStore, proxy: FaultyProxy) -> None:
    """A sign of life, or a look at the log, does not wait for a reader that has much before it."""
    store = make(max_concurrency=5)
    store.put_hint("a", bytes(200))
    held, real, under_way = threading.Event(), proxy.forward, threading.Semaphore(0)

    def forward(request: Request, strip: str | None = None) -> Any:
        if is_get(request) and request.path.endswith("/a"):
            under_way.release()
            held.wait(60)
        return real(request, strip)

    store.put_hint("b", b"b")
    store.put_hint("c", b"c")
    proxy.forward = forward  # type: ignore[method-assign]
    with store.open_read("a") as file:
        for number in range(20):
            file.will_need(10 * number, 10)
        assert under_way.acquire(timeout=60)
        assert under_way.acquire(timeout=60)
        assert store.read_many(["b", "c"], max_bytes=10) == [b"b", b"c"]
        assert store.read("b") == b"b"
        store.put_hint("b", b"d")
        assert not under_way.acquire(blocking=False)
        held.set()
        assert [file.read(10 * number, 10) for number in range(20)] == [bytes(10)] * 20


def test_a_range_that_failed_ahead_is_told_when_it_is_read(make: MakeStore, proxy: FaultyProxy) -> None:
    store = make()
    store.put_if_absent("a", b"0123456789")
    with store.open_read("a") as file:
        proxy.times(1, faults.DENIED, is_get)
        file.will_need(0, 10)
        with pytest.raises(StorageError, match="STORAGE_REFUSED"):
            file.read(0, 5)


@pytest.mark.slow
def test_a_forked_child_has_connections_of_its_own(s3_root: str, s3_server: SeaweedServer) -> None:
    store = open_store(s3_root)
    store.put_if_absent("parent", b"1")
    with store.open_read("parent") as file:
        file.will_need(0, 1)
        child = os.fork()
        if child == 0:
            try:
                assert file.read(0, 1) == b"1"
                store.put_if_absent("child", b"2")
                assert store.read_many(["parent", "child"], max_bytes=9) == [b"1", b"2"]
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert file.read(0, 1) == b"1"
    assert store.read("child") == b"2"


def test_requests_are_counted(s3_root: str, s3_server: SeaweedServer) -> None:
    store = open_store(s3_root)
    assert isinstance(store, S3Store)
    store.put_if_absent("a", b"12345")
    before = store.requests
    store.put_if_absent("b", b"12345")
    store.read("b", 1, 2)
    store.list("")
    with pytest.raises(NotFoundError):
        store.read("none")
    more = Counter(store.requests)
    more.subtract(before)
    assert +more == {
        "put_object": 1,
        "get_object": 2,
        "list_objects_v2": 1,
        "sent_bytes": 5,
        "received_bytes": 2,
    }


def test_a_store_shows_no_credentials(s3_server: SeaweedServer, s3_root: str) -> None:
    store: Store = open_store(s3_root, storage_options=s3_server.storage_options)
    assert SECRET not in repr(store)
    assert KEY not in repr(store)
    assert SECRET not in store.url


LAST_WORK = """
import threading
from sparklog.clock import SystemClock
from sparklog.storage.s3_client import S3Client
from sparklog.storage.s3_options import S3Options

client = S3Client("bucket", S3Options(), SystemClock())

def snapshot():
    threading.main_thread().join()
    parts = [client.submit(lambda number=number: 7 // number) for number in (1, 0)]
    print(parts[0].result(), type(parts[1].exception()).__name__)

threading.Thread(target=snapshot).start()
"""


@pytest.mark.slow
def test_what_the_interpreter_waits_for_is_finished_although_it_starts_no_threads_any_more() -> None:
    """The upkeep thread's snapshot, after a job that ends with its only commit: a large one goes in parts."""
    ended = subprocess.run(
        [sys.executable, "-c", LAST_WORK], check=True, timeout=60, capture_output=True, text=True
    )
    assert ended.stdout == "7 ZeroDivisionError\n", ended.stderr
