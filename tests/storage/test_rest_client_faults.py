"""gs:// and az:// when things go wrong on the way: patient where that is harmless, honest where it is not.

Runs on the emulators (tests/bucket_servers.py), behind the proxy of the S3 tests.
"""

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sparklog.clock import ManualClock
from sparklog.errors import AlreadyExistsError, NotFoundError, SparklogError, StorageError
from sparklog.storage import IndefinitePutError, object_probe
from sparklog.storage.azure import AzureStore, parse_azure_options
from sparklog.storage.gcs import GcsStore, parse_gcs_options
from sparklog.storage.object_store import PART_BYTES
from tests.bucket_servers import BucketServer, are_built
from tests.storage import s3_proxy as faults
from tests.storage.faulty_s3 import UNSURE
from tests.storage.s3_proxy import Fault, FaultyProxy, Request
from tests.storage.test_s3_faults import HARMLESS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not are_built(), reason="make test-stores has the servers"),
]

BucketStore = GcsStore | AzureStore
Make = Callable[..., BucketStore]


@pytest.fixture(params=("gs", "azure"))
def server(request: pytest.FixtureRequest, bucket_server: Callable[[str], BucketServer]) -> BucketServer:
    return bucket_server(str(request.param))


@pytest.fixture
def proxy(server: BucketServer) -> Iterator[FaultyProxy]:
    with FaultyProxy(server.endpoint_url) as running:
        yield running


@pytest.fixture
def make(server: BucketServer, proxy: FaultyProxy) -> Make:
    """Make stores behind the proxy, which wait without waiting. Not `ready`: not raced yet."""
    root = server.new_root()

    def make(fault: str = "", *, ready: bool = True, **options: Any) -> BucketStore:
        given = {"read_timeout": 0.4 if fault == "LATE_ANSWER" else 20, **options}
        environment = server.environment_at(proxy.endpoint_url)
        clock = ManualClock()
        store: BucketStore = (
            GcsStore(root, parse_gcs_options(given, environment), clock)
            if root.startswith("gs:")
            else AzureStore(root, parse_azure_options(given, environment), clock)
        )
        if ready:
            object_probe.passed.add(store.client.identity)
            store.exists("ready")
        else:
            object_probe.passed.discard(store.client.identity)
        proxy.requests.clear()
        return store

    return make


def is_put(request: Request) -> bool:
    return request.method == "PUT" or "/upload/" in request.path or "/compose" in request.path


@pytest.mark.parametrize("fault", HARMLESS)
def test_reading_is_repeated(make: Make, proxy: FaultyProxy, fault: str) -> None:
    make().put_if_absent("a", b"0123456789" * 100)
    store = make(fault)
    proxy.times(2, getattr(faults, fault))
    assert store.read("a", 10, 500) == b"0123456789" * 50
    proxy.times(2, getattr(faults, fault))
    assert store.list("", start_after="Z")[0].name == "a"
    proxy.times(2, getattr(faults, fault))
    store.put_hint("h", b"hint")
    proxy.times(2, getattr(faults, fault))
    store.delete("a")
    with pytest.raises(NotFoundError):
        store.read("a")
    assert store.read("h") == b"hint"


@pytest.mark.parametrize(("fault", "took_effect"), UNSURE)
def test_a_conditional_put_is_tried_once_and_its_answer_is_not_guessed(
    make: Make, proxy: FaultyProxy, fault: str, took_effect: bool
) -> None:
    store = make(fault)
    proxy.once(getattr(faults, fault), is_put)
    with pytest.raises(IndefinitePutError, match="no definite answer"):
        store.put_if_absent("a", b"ours")
    proxy.until_forwarded(1)
    assert sum(map(is_put, proxy.requests)) == 1
    store = make() if fault == "LATE_ANSWER" else store
    if took_effect:
        with pytest.raises(AlreadyExistsError):
            store.put_if_absent("a", b"ours")
    else:
        store.put_if_absent("a", b"ours")
    assert store.read("a") == b"ours"


def test_a_put_that_lands_late_changes_nothing(make: Make, proxy: FaultyProxy) -> None:
    store = make()
    proxy.once(faults.LATE_EFFECT, is_put)
    with pytest.raises(IndefinitePutError):
        store.put_if_absent("a", b"first try")
    assert not store.exists("a")
    store.put_if_absent("a", b"first try")
    (status,) = proxy.land()
    assert status in {409, 412}
    assert store.read("a") == b"first try"


def test_a_put_that_was_sent_twice_conflicts_with_itself(make: Make, proxy: FaultyProxy) -> None:
    store = make()
    proxy.once(faults.TWICE, is_put)
    with pytest.raises(AlreadyExistsError):
        store.put_if_absent("a", b"ours")
    assert store.read("a") == b"ours"


def test_the_guard_is_asked_before_anything_is_sent(make: Make, proxy: FaultyProxy) -> None:
    store = make()
    with pytest.raises(SparklogError, match="PUT_REFUSED"):
        store.put_if_absent("a", b"x", guard=lambda: False)
    assert proxy.requests == []


def test_nobody_listens(make: Make, proxy: FaultyProxy) -> None:
    store = make()
    proxy.die()
    with pytest.raises(StorageError, match="STORE_UNAVAILABLE") as raised:
        store.put_if_absent("a", b"x")
    assert not isinstance(raised.value, IndefinitePutError)
    with pytest.raises(StorageError, match="STORE_UNAVAILABLE"):
        store.read("a")


@pytest.mark.parametrize("fault", [*HARMLESS[:7], "ERROR_IN_200_AFTER"])
def test_an_append_file_is_finished_in_spite_of_faults(make: Make, proxy: FaultyProxy, fault: str) -> None:
    store = make(fault)
    with store.append_file("segments/w/0.log") as file:
        file.write(b"batch" * 100)
        proxy.times(2, getattr(faults, fault), is_put)
        file.sync()
    assert store.read("segments/w/0.log") == b"batch" * 100


@pytest.mark.parametrize("fault", ["SLOW_DOWN", "ERROR_BEFORE", "ERROR_AFTER", "RESET_BEFORE", "RESET_AFTER"])
def test_parts_are_repeated_and_go_on_where_they_were(make: Make, proxy: FaultyProxy, fault: str) -> None:
    store, content = make(fault), os.urandom(2 * PART_BYTES + 5000)
    met: set[str] = set()

    def fate(request: Request) -> Fault | None:
        """Each request of the upload fails once."""
        name = request.path if "comp=block" in request.path else str(len(request.body))
        if not is_put(request) or name in met:
            return None
        met.add(name)
        return getattr(faults, fault)  # type: ignore[no-any-return]

    proxy.fault = fate
    with store.append_file("large") as file:
        file.write(content)
        file.sync()
    assert len(met) >= 3
    assert store.read("large") == content
    assert store.top_names(10) == ["large"]


def test_a_large_file_of_somebody_else_is_not_taken_for_ours(make: Make) -> None:
    store = make()
    if isinstance(store, GcsStore):
        pytest.skip("the emulator's compose knows no condition")
    store.put_if_absent("a", b"theirs")
    with store.append_file("a") as file:
        file.write(b"o" * (2 * PART_BYTES + 1))
        with pytest.raises(AlreadyExistsError):
            file.sync()
    assert store.read("a") == b"theirs"


def test_a_store_without_the_condition_is_rejected(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make(ready=False)
    monkeypatch.setattr(store.client, "create", lambda key, data, guard: store.client.put("", key, data))
    with pytest.raises(StorageError, match="several writers created the same object") as raised:
        store.put_if_absent("a", b"x")
    assert raised.value.code == "STORAGE_UNSUPPORTED"
    assert list(store.walk(lambda _: True)) == []
    assert store.top_names(10) == []


def test_winners_and_losers_of_a_race_learn_the_truth(make: Make, proxy: FaultyProxy) -> None:
    """Every answer of the first round is lost; who won is found out by repeating, and comparing."""
    stores = [make() for _ in range(4)]
    left = [faults.RESET_AFTER] * 8
    proxy.fault = lambda request: left.pop() if left and is_put(request) else None
    won: list[tuple[int, int]] = []

    def race(number: int) -> None:
        for key in range(5):
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
    assert sorted(key for key, _ in won) == list(range(5))
    assert all(stores[0].read(f"k{key}") == b"writer %d" % number for key, number in won)


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


def test_credentials_are_in_no_message(make: Make, server: BucketServer, proxy: FaultyProxy) -> None:
    if not server.new_root().startswith("az:"):
        pytest.skip("the emulator of Google's has no credentials")
    from tests.bucket_servers import ACCOUNT_KEY

    store = make()
    proxy.fault = lambda _: faults.DENIED
    for use in (lambda: store.read("a"), lambda: store.put_if_absent("a", b""), lambda: store.list("")):
        with pytest.raises(StorageError, match="STORAGE_REFUSED") as raised:
            use()
        assert ACCOUNT_KEY not in str(raised.value)
    assert ACCOUNT_KEY not in repr(store.client.options)
    assert ACCOUNT_KEY not in repr(store)


def test_what_every_root_needs_is_tried_and_leaves_nothing(make: Make) -> None:
    store = make(ready=False)
    store.try_requests()
    assert store.top_names(10) == []
    assert store.put_lifetime_ms() is None  # the emulators take any date and any token


def test_parts_of_a_killed_writer_are_swept_after_a_week(make: Make, proxy: FaultyProxy) -> None:
    store = make()
    file = store.append_file("large")
    file.write(b"x" * (3 * PART_BYTES))  # and is never closed
    proxy.until_forwarded(2)
    week_ms = 7 * 24 * 3_600_000
    assert store.sweep_temporary(older_than_ms=-week_ms) == 0
    left = store.sweep_temporary(older_than_ms=0, unfinished_older_than_ms=-week_ms)
    assert left == (2 if isinstance(store, GcsStore) else 0)
    assert store.top_names(10) == []


def test_a_refused_request_is_named(make: Make, proxy: FaultyProxy) -> None:
    store = make()
    proxy.fault = lambda request: (
        Fault(forward=0, answer=(501, "NotImplemented")) if request.method == "DELETE" else None
    )
    with pytest.raises(StorageError, match="lacks a request that a root needs: to delete objects"):
        store.try_requests()
