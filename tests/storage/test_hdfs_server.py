"""webhdfs:// on a real NameNode, behind a proxy that loses requests and answers (tests/bucket_servers.py).

The proxy is before the NameNode; data goes straight to the DataNodes.
"""

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sparklog.clock import ManualClock
from sparklog.errors import AlreadyExistsError, NotFoundError, RetriableError, StorageError
from sparklog.storage import IndefinitePutError, object_probe
from sparklog.storage.hdfs import HdfsStore, parse_hdfs_options
from sparklog.storage.object_store import PART_BYTES
from tests.bucket_servers import BucketServer, are_built
from tests.storage import s3_proxy as faults
from tests.storage.s3_proxy import FaultyProxy, Request

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not are_built(), reason="make test-hdfs has the server"),
]

Make = Callable[..., HdfsStore]


@pytest.fixture
def server(bucket_server: Callable[[str], BucketServer]) -> BucketServer:
    return bucket_server("hdfs")


@pytest.fixture
def proxy(server: BucketServer) -> Iterator[FaultyProxy]:
    with FaultyProxy(server.endpoint_url) as running:
        yield running


@pytest.fixture
def make(server: BucketServer, proxy: FaultyProxy) -> Make:
    root = server.new_root()

    def make(**options: Any) -> HdfsStore:
        store = HdfsStore(
            root, parse_hdfs_options(options, server.environment_at(proxy.endpoint_url)), ManualClock()
        )
        object_probe.passed.add(store.client.identity)
        store.put_hint("ready", b"")
        proxy.requests.clear()
        return store

    return make


def is_rename(request: Request) -> bool:
    return "op=RENAME" in request.path


@pytest.mark.parametrize("fault", ["ERROR_BEFORE", "ERROR_AFTER", "RESET_BEFORE", "RESET_AFTER"])
def test_everything_but_the_rename_is_repeated(make: Make, proxy: FaultyProxy, fault: str) -> None:
    store = make()

    def twice() -> None:
        proxy.times(2, getattr(faults, fault), lambda request: not is_rename(request))

    twice()
    store.put_if_absent("d/a", b"0123456789")
    twice()
    assert store.read("d/a", 2, 3) == b"234"
    twice()
    assert [file.name for file in store.list("d")] == ["d/a"]
    twice()
    store.delete("d/a")
    with pytest.raises(NotFoundError):
        store.read("d/a")


@pytest.mark.parametrize("fault", ["ERROR_AFTER", "RESET_AFTER"])
def test_a_rename_whose_answer_is_lost_is_not_sent_again(make: Make, proxy: FaultyProxy, fault: str) -> None:
    store = make()
    proxy.once(getattr(faults, fault), is_rename)
    with pytest.raises(IndefinitePutError):
        store.put_if_absent("a", b"ours")
    assert sum(map(is_rename, proxy.requests)) == 1
    assert store.read("a") == b"ours"


@pytest.mark.parametrize("fault", ["ERROR_BEFORE", "RESET_BEFORE"])
def test_a_rename_that_never_arrived_is_made_with_another_file(
    make: Make, proxy: FaultyProxy, fault: str
) -> None:
    store = make()
    proxy.once(getattr(faults, fault), is_rename)
    store.put_if_absent("a", b"ours")
    renames = [request.path for request in proxy.requests if is_rename(request)]
    assert len(set(renames)) == len(renames) == 2
    assert store.read("a") == b"ours"


def test_a_rename_that_arrives_late_changes_nothing(make: Make, proxy: FaultyProxy) -> None:
    store = make()
    proxy.once(faults.LATE_EFFECT, is_rename)
    store.put_if_absent("a", b"first")
    store.delete("a")
    (status,) = proxy.land()
    assert status == 404
    assert not store.exists("a")


def test_winners_and_losers_of_a_race_learn_the_truth(make: Make, proxy: FaultyProxy) -> None:
    """Answers to renames are lost; who won is found out by repeating, and comparing."""
    stores = [make() for _ in range(4)]
    left = [faults.RESET_AFTER] * 8
    proxy.fault = lambda request: left.pop() if left and is_rename(request) else None
    won: list[tuple[int, int]] = []

    def race(number: int) -> None:
        for key in range(10):
            data = b"writer %d" % number
            while True:
                try:
                    stores[number].put_if_absent(f"k{key}", data)
                except IndefinitePutError:
                    continue
                except AlreadyExistsError:
                    if stores[number].read(f"k{key}") != data:
                        break
                won.append((key, number))
                break

    threads = [threading.Thread(target=race, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not left
    assert sorted(key for key, _ in won) == list(range(10))
    assert all(stores[0].read(f"k{key}") == b"writer %d" % number for key, number in won)


def test_nobody_sees_a_name_before_its_content(make: Make) -> None:
    writer, reader = make(), make()
    content = os.urandom(1 << 20)
    seen: list[int] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            seen.extend(file.size for file in reader.list("") if file.name.startswith("k"))

    thread = threading.Thread(target=look)
    thread.start()
    for key in range(20):
        writer.put_if_absent(f"k{key}", content)
    done.set()
    thread.join()
    assert set(seen) <= {len(content)}


def test_a_large_file_survives_lost_answers(make: Make, proxy: FaultyProxy) -> None:
    store, content = make(), os.urandom(2 * PART_BYTES + 5000)
    proxy.once(faults.RESET_AFTER, is_rename)
    with store.append_file("large") as file:
        file.write(content)
        file.sync()
    assert store.read("large") == content
    assert store.read("large", PART_BYTES, 10) == content[PART_BYTES : PART_BYTES + 10]


def test_an_aborted_put_fails_after_its_guard(make: Make) -> None:
    store = make()

    def abort() -> bool:
        store.abort_puts("a")
        return True

    with pytest.raises(RetriableError, match="overtaken"):
        store.put_if_absent("a", b"late", guard=abort)
    assert not store.exists("a")
    assert store.sweep_temporary(older_than_ms=-3_600_000) == 0


def test_what_a_killed_writer_leaves_is_swept(make: Make) -> None:
    store = make()
    store.client.write_temporary("root/a", b"x")
    assert store.sweep_temporary(older_than_ms=3_600_000) == 0
    assert store.sweep_temporary(older_than_ms=-3_600_000) == 1


def test_directories_go_only_if_they_are_empty(make: Make) -> None:
    store = make()
    store.put_if_absent("d/s/a", b"")
    assert not store.remove_directory("d/s")
    store.delete("d/s/a")
    empty = [file for portion in store.walk(lambda _: True) for file in portion if file.name.endswith("/")]
    assert [file.name for file in empty] == ["d/s/"]
    assert empty[0].modified_ms > 1_600_000_000_000
    assert store.remove_directory("d/s")
    store.put_if_absent("d/s/a", b"again")
    assert store.read("d/s/a") == b"again"


def test_what_every_root_needs_is_tried_and_leaves_nothing(make: Make) -> None:
    store = make()
    store.try_requests()
    assert [name for name in store.top_names(10) if name != "ready"] == []


def test_a_user_without_rights_is_refused(make: Make) -> None:
    with pytest.raises(StorageError, match="Permission denied"):
        make(user="nobody-else").put_hint("x", b"")


def test_a_forked_child_makes_its_own_connections(make: Make) -> None:
    store = make()
    store.put_if_absent("a", b"parent's")
    pid = os.fork()
    if not pid:  # pragma: no cover
        try:
            store.put_if_absent("b", store.read("a"))
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert store.read("b") == b"parent's"
