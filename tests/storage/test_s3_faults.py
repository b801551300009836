"""An S3 store when things go wrong on the way: patient where that is harmless, honest where it is not."""

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import botocore.auth
import pytest

import sparklog.storage.s3
import sparklog.storage.s3_probe
from sparklog.clock import Clock, ManualClock
from sparklog.errors import AlreadyExistsError, NotFoundError, SparklogError, StorageError
from sparklog.storage import IndefinitePutError, Store, open_store
from sparklog.storage.s3 import S3Store
from sparklog.storage.s3_append import PART_BYTES
from sparklog.storage.s3_options import parse_storage_options
from tests.seaweed import KEY, READER_KEY, READER_SECRET, SECRET, SeaweedServer
from tests.storage import s3_proxy as faults
from tests.storage.s3_proxy import Fault, FaultyProxy, Request

MakeStore = Callable[..., S3Store]


@pytest.fixture
def proxy(s3_server: SeaweedServer) -> Iterator[FaultyProxy]:
    with FaultyProxy(s3_server.endpoint_url) as running:
        yield running


@pytest.fixture
def make(s3_root: str, proxy: FaultyProxy) -> MakeStore:
    """Makes stores behind the proxy, raced already unless told otherwise. They wait without waiting."""

    def make(fault: str = "", *, clock: Clock | None = None, ready: bool = True, **options: Any) -> S3Store:
        given: dict[str, Any] = {"key": KEY, "secret": SECRET, "endpoint_url": proxy.endpoint_url}
        given["read_timeout"] = 0.4 if fault == "LATE_ANSWER" else 20
        store = S3Store(s3_root, parse_storage_options({**given, **options}), clock or ManualClock())
        if ready:
            sparklog.storage.s3_probe._passed.add(store.client.identity)
            store.exists("ready")
            proxy.requests.clear()
        return store

    return make


def is_put(request: Request) -> bool:
    return request.method == "PUT"


def is_get(request: Request) -> bool:
    return request.method == "GET"


HARMLESS = [
    "SLOW_DOWN",
    "ERROR_BEFORE",
    "ERROR_AFTER",
    "RESET_BEFORE",
    "RESET_AFTER",
    "LATE_ANSWER",
    "CONFLICT",
    "TWICE",
    "ERROR_IN_200",
    "TRUNCATED",
]


@pytest.mark.parametrize("fault", HARMLESS)
def test_reading_is_repeated(make: MakeStore, proxy: FaultyProxy, fault: str) -> None:
    store = make(fault)
    store.put_if_absent("a", b"0123456789" * 100)
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


UNSURE = [  # (what goes wrong, did the put take effect?)
    ("SLOW_DOWN", False),
    ("ERROR_BEFORE", False),
    ("ERROR_AFTER", True),
    ("RESET_BEFORE", False),
    ("RESET_AFTER", True),
    ("LATE_ANSWER", True),
    ("CONFLICT", False),
    ("ERROR_IN_200", False),
    ("ERROR_IN_200_AFTER", True),
]


@pytest.mark.parametrize(("fault", "took_effect"), UNSURE)
def test_a_conditional_put_is_tried_once_and_its_answer_is_not_guessed(
    make: MakeStore, proxy: FaultyProxy, fault: str, took_effect: bool
) -> None:
    store = make(fault)
    proxy.once(getattr(faults, fault), is_put)
    with pytest.raises(IndefinitePutError, match="no definite answer"):
        store.put_if_absent("a", b"ours")
    assert len(proxy.requests) == 1
    if took_effect:
        with pytest.raises(AlreadyExistsError):
            store.put_if_absent("a", b"ours")
    else:
        store.put_if_absent("a", b"ours")
    assert store.read("a") == b"ours"


def test_a_put_that_lands_late_changes_nothing(make: MakeStore, proxy: FaultyProxy) -> None:
    store = make()
    proxy.once(faults.LATE_EFFECT, is_put)
    with pytest.raises(IndefinitePutError):
        store.put_if_absent("a", b"first try")
    assert not store.exists("a")
    store.put_if_absent("a", b"first try")
    assert proxy.land() == [412]
    assert store.read("a") == b"first try"


def test_a_put_that_was_sent_twice_conflicts_with_itself(make: MakeStore, proxy: FaultyProxy) -> None:
    store = make()
    proxy.once(faults.TWICE, is_put)
    with pytest.raises(AlreadyExistsError):  # hence the UUID in every commit
        store.put_if_absent("a", b"ours")
    assert store.read("a") == b"ours"


def test_the_guard_is_asked_after_signing_and_before_sending(make: MakeStore, proxy: FaultyProxy) -> None:
    store = make()
    with pytest.raises(SparklogError, match="PUT_REFUSED"):
        store.put_if_absent("a", b"x", guard=lambda: False)
    assert proxy.requests == []


def test_a_replica_is_told_of_once(
    make: MakeStore, proxy: FaultyProxy, caplog: pytest.LogCaptureFixture
) -> None:
    store = make()
    store.put_if_absent("a", b"x")
    assert store.read("a") == b"x"
    assert "replicated" not in caplog.text
    proxy.fault = lambda _: Fault(header=("x-amz-replication-status", "REPLICA"))
    for _ in range(2):
        assert store.read("a") == b"x"
    assert [record.levelname for record in caplog.records if "replicated" in record.message] == ["WARNING"]


def test_an_answer_without_an_etag_is_none(make: MakeStore, proxy: FaultyProxy) -> None:
    store = make()
    proxy.once(Fault(forward=0, answer=(204, "")), is_put)
    with pytest.raises(IndefinitePutError, match="without an ETag"):
        store.put_if_absent("a", b"x")
    assert not store.exists("a")


@pytest.mark.parametrize("fault", [*HARMLESS[:7], "ERROR_IN_200_AFTER"])
def test_an_append_file_is_finished_in_spite_of_faults(
    make: MakeStore, proxy: FaultyProxy, fault: str
) -> None:
    store = make(fault)
    with store.append_file("segments/w/0.log") as file:
        file.write(b"batch" * 100)
        proxy.times(2, getattr(faults, fault), is_put)
        file.sync()
    assert store.read("segments/w/0.log") == b"batch" * 100


def test_an_append_file_of_somebody_else_is_not_taken_for_ours(make: MakeStore, proxy: FaultyProxy) -> None:
    store = make()
    store.put_if_absent("a", b"theirs")
    proxy.once(faults.RESET_BEFORE, is_put)
    with store.append_file("a") as file:
        file.write(b"ours")
        with pytest.raises(AlreadyExistsError):
            file.sync()
    assert store.read("a") == b"theirs"


@pytest.mark.parametrize("fault", ["SLOW_DOWN", "ERROR_AFTER", "RESET_AFTER"])
def test_a_multipart_upload_in_spite_of_faults(make: MakeStore, proxy: FaultyProxy, fault: str) -> None:
    store = make(fault)
    content = os.urandom(PART_BYTES) * 3 + b"the end"
    kinds: set[str] = set()

    def first_of_its_kind(request: Request) -> Fault | None:
        kind = f"{request.method} {sorted(request.query)}"
        if request.method == "GET" or kind in kinds:
            return None
        kinds.add(kind)
        return chosen

    chosen: Fault = getattr(faults, fault)
    proxy.fault = first_of_its_kind
    with store.append_file("large") as file:
        for start in range(0, len(content), 1 << 20):
            file.write(content[start : start + (1 << 20)])
        file.sync()
    assert len(kinds) == 3  # create, upload a part, complete
    assert store.read("large") == content
    proxy.fault = lambda _: None
    store.sweep_temporary(older_than_ms=-60_000)
    assert store.sweep_temporary(older_than_ms=-60_000) == 0


def test_an_upload_that_nobody_finished_is_swept(make: MakeStore) -> None:
    store = make()
    file = store.append_file("left/behind")
    file.write(bytes(2 * PART_BYTES))
    assert store.sweep_temporary(older_than_ms=60_000) == 0
    assert store.sweep_temporary(older_than_ms=-60_000) == 1
    with pytest.raises(StorageError):
        file.sync()
    file.close()
    assert not store.exists("left/behind")


def test_what_a_killed_probe_left_is_swept(make: MakeStore) -> None:
    store = make()
    store.client.call("put_object", store.url, Key=f"{store._prefix}.tmp/probe-1", Body=b"")
    assert store.list("", recursive=True) == []
    assert store.sweep_temporary(older_than_ms=60_000) == 0
    assert store.sweep_temporary(older_than_ms=-60_000) == 1
    assert store.sweep_temporary(older_than_ms=-60_000) == 0


def test_an_upload_that_is_given_up_leaves_nothing(make: MakeStore) -> None:
    store = make()
    with store.append_file("given/up") as file:
        file.write(bytes(2 * PART_BYTES))
    assert store.sweep_temporary(older_than_ms=-60_000) == 0
    assert store.list("given") == []


@pytest.mark.parametrize("keys", [3, 4, 5, 9, 10, 11])
def test_a_list_of_more_than_a_page(make: MakeStore, monkeypatch: pytest.MonkeyPatch, keys: int) -> None:
    monkeypatch.setattr(sparklog.storage.s3, "_LIST_KEYS", keys)
    store = make()
    names = [f"many/{number}" for number in range(10)]
    for name in names:
        store.put_hint(name, b"")
    store.put_hint("many/5/below", b"")
    before = store.requests.get("list_objects_v2", 0)
    assert [file.name for file in store.list("many", recursive=True)] == [
        *names[:6],
        "many/5/below",
        *names[6:],
    ]
    assert store.requests["list_objects_v2"] - before == -(-11 // keys)
    assert [file.name for file in store.list("many", start_after="many/4")] == names[5:]
    store.delete_directory("many")
    assert store.list("many", recursive=True) == []


def test_a_denial_is_told_at_once_and_is_not_for_ever(make: MakeStore, proxy: FaultyProxy) -> None:
    store = make()
    uses: list[Callable[[], object]] = [
        lambda: store.read("a"),
        lambda: store.list(""),
        lambda: store.put_if_absent("a", b""),
        lambda: store.put_hint("a", b""),
        lambda: store.delete("a"),
    ]
    for use in uses:
        proxy.requests.clear()
        proxy.times(1, faults.DENIED)
        with pytest.raises(StorageError, match=r"STORAGE_REFUSED.*403 AccessDenied.*Check the credentials"):
            use()
        assert len(proxy.requests) == 1
    store.put_if_absent("a", b"")


@pytest.mark.parametrize("fault", [faults.UNCONDITIONAL, Fault(forward=0, answer=(501, "NotImplemented"))])
def test_a_store_without_conditional_writes_is_refused(
    make: MakeStore, proxy: FaultyProxy, fault: Fault
) -> None:
    store = make(ready=False)
    proxy.fault = lambda request: fault if "if-none-match" in request.headers else None
    for _ in range(2):
        with pytest.raises(StorageError, match=r"STORAGE_UNSUPPORTED.*Use a store with conditional writes"):
            store.put_if_absent("a", b"x")
    assert not store.exists("a")


@pytest.mark.parametrize(("fault", "_"), UNSURE)
def test_the_race_at_the_start_is_patient(make: MakeStore, proxy: FaultyProxy, fault: str, _: bool) -> None:
    store = make(fault, ready=False)
    proxy.times(4, getattr(faults, fault), is_put)
    store.put_if_absent("a", b"x")
    assert store.read("a") == b"x"
    requests = len(proxy.requests)
    store.put_if_absent("b", b"x")
    assert len(proxy.requests) == requests + 1  # once per process
    assert [file.name for file in store.list("", recursive=True)] == ["a", "b"]


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_an_hour_off(make: MakeStore, monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    store = make()
    real = botocore.auth.get_current_datetime
    shift = timedelta(hours=hours)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *args, **kw: real(*args, **kw) + shift)
    for use in (lambda: store.read("a"), lambda: store.put_if_absent("a", b"")):
        with pytest.raises(StorageError, match=r"CLOCK_SKEWED.*Set this machine's clock"):
            use()


def test_old_dates_are_refused_so_puts_do_not_land_for_ever(make: MakeStore) -> None:
    assert make().put_lifetime_ms() == 30 * 60_000
    anonymous = make(anon=True, key=None, secret=None, ready=False)
    assert anonymous.put_lifetime_ms() is None


def test_a_store_that_takes_old_dates_sets_no_bound(make: MakeStore, proxy: FaultyProxy) -> None:
    # The proxy signs anew, with a date of today.
    store = make()
    proxy.fault = lambda _: Fault(strip="no-such-header")
    assert store.put_lifetime_ms() is None


def test_a_store_that_does_not_say_sets_no_bound_yet(make: MakeStore, proxy: FaultyProxy) -> None:
    store = make()
    proxy.times(1, faults.RESET_BEFORE)
    assert store.put_lifetime_ms() is None
    assert store.put_lifetime_ms() == 30 * 60_000


def test_the_time_of_the_store(make: MakeStore) -> None:
    clock = ManualClock(1_000_000)
    store = make(clock=clock)
    store.put_if_absent("a", b"")
    written_ms = store.list("")[0].modified_ms
    assert abs(store.storage_now_ms(clock.now_ms()) - written_ms) < 60_000


class FailingUntil:
    """503 until a clock has come to a time."""

    def __init__(self, clock: ManualClock, until_ms: int) -> None:
        self._clock, self._until_ms = clock, until_ms

    def __call__(self, _: Request) -> Fault | None:
        return faults.SLOW_DOWN if self._clock.monotonic_ms() < self._until_ms else None


def test_a_store_that_fails_for_a_minute_is_waited_for(make: MakeStore, proxy: FaultyProxy) -> None:
    clock = ManualClock()
    store = make(clock=clock)
    start_ms = clock.monotonic_ms()
    proxy.fault = FailingUntil(clock, start_ms + 60_000)
    with store.append_file("a") as file:
        file.write(b"x")
        file.sync()
    assert 60_000 <= clock.monotonic_ms() - start_ms < 65_000
    assert 30 < len(proxy.requests) < 60  # not a storm, and never long without a try
    assert store.read("a") == b"x"


def test_patience_ends(make: MakeStore, proxy: FaultyProxy) -> None:
    clock = ManualClock()
    store = make(clock=clock, retry_timeout=20)
    proxy.fault = lambda _: faults.SLOW_DOWN
    for use in (lambda: store.read("a"), lambda: store.list("")):
        start_ms = clock.monotonic_ms()
        with pytest.raises(StorageError, match=r"STORE_UNAVAILABLE.*503 SlowDown.*retry_timeout"):
            use()
        assert 15_000 < clock.monotonic_ms() - start_ms <= 20_000


def test_nothing_listens(s3_root: str) -> None:
    clock = ManualClock()
    given = {"key": KEY, "secret": SECRET, "endpoint_url": "http://127.0.0.1:9", "connect_timeout": 0.5}
    store = S3Store(s3_root, parse_storage_options(given), clock)
    for use in (lambda: store.read("a"), lambda: store.put_if_absent("a", b"")):
        start_ms = clock.monotonic_ms()
        with pytest.raises(
            StorageError, match=r"STORE_UNAVAILABLE.*Could not connect.*Check the endpoint_url"
        ):
            use()
        assert clock.monotonic_ms() - start_ms <= 10_000  # it never answered: do not try for minutes


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"secret": "a wrong secret"}, "STORAGE_REFUSED.*403 SignatureDoesNotMatch.*Check the credentials"),
    ({"key": "a wrong key"}, "STORAGE_REFUSED.*InvalidAccessKeyId.*Check the credentials"),
    ({"anon": True, "key": None, "secret": None}, "STORAGE_REFUSED.*AccessDenied.*Check the credentials"),
    ({"profile": "nobody"}, r"STORAGE_REFUSED.*profile \(nobody\).*AWS_PROFILE"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=str)
def test_wrong_credentials(
    s3_server: SeaweedServer, s3_root: str, options: dict[str, Any], message: str
) -> None:
    given = {**s3_server.storage_options, **options}
    store = open_store(s3_root, storage_options=given)
    for use in (lambda: store.read("a"), lambda: store.list(""), lambda: store.put_if_absent("a", b"")):
        with pytest.raises(StorageError, match=message) as raised:
            use()
        for hidden in ("a wrong secret", "a wrong key", SECRET):
            assert hidden not in str(raised.value)
            assert hidden not in repr(raised.value)


def test_credentials_that_may_only_read(s3_server: SeaweedServer, s3_root: str) -> None:
    open_store(s3_root).put_if_absent("a", b"x")
    options = {**s3_server.storage_options, "key": READER_KEY, "secret": READER_SECRET}
    store = open_store(s3_root, storage_options=options)
    assert store.read("a") == b"x"
    with pytest.raises(StorageError, match=r"STORAGE_REFUSED.*403"):
        store.put_if_absent("b", b"x")


@pytest.mark.usefixtures("s3_server")
def test_a_missing_bucket() -> None:
    store = open_store("s3://no-such-bucket/x")
    uses: list[Callable[[], object]] = [
        lambda: store.read("a"),
        lambda: store.exists("a"),
        lambda: store.list(""),
        lambda: store.put_if_absent("a", b""),
    ]
    for use in uses:
        with pytest.raises(StorageError, match=r"BUCKET_MISSING.*Create the bucket") as raised:
            use()
        assert not isinstance(raised.value, NotFoundError)


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
        all_there.wait(5)
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


def test_a_range_that_failed_ahead_is_told_when_it_is_read(make: MakeStore, proxy: FaultyProxy) -> None:
    store = make()
    store.put_if_absent("a", b"0123456789")
    with store.open_read("a") as file:
        proxy.times(1, faults.DENIED, is_get)
        file.will_need(0, 10)
        with pytest.raises(StorageError, match="STORAGE_REFUSED"):
            file.read(0, 5)


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
