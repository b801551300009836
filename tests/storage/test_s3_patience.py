"""An S3 store that is denied or not answered: how patient it is, and what time it is there."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import botocore.auth
import pytest

from sparklog.clock import ManualClock, SystemClock
from sparklog.errors import NotFoundError, StorageError
from sparklog.storage import open_store
from sparklog.storage.object_probe import probe_put_if_absent
from sparklog.storage.s3 import S3Store
from sparklog.storage.s3_options import parse_storage_options
from tests.seaweed import KEY, READER_KEY, READER_SECRET, SECRET, SeaweedServer
from tests.storage import s3_proxy as faults
from tests.storage.faulty_s3 import UNSURE, MakeStore, is_put
from tests.storage.s3_proxy import Fault, FaultyProxy, Request


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


def test_a_look_that_nothing_depends_on_is_given_up_in_time(make: MakeStore, proxy: FaultyProxy) -> None:
    """Else one that hangs takes read_timeout, and is repeated up to retry_timeout."""
    store, clock = make(), SystemClock()
    store.put_if_absent("d/a", b"x")
    assert [file.name for file in store.list("d", within_ms=20_000)] == ["d/a"]
    proxy.times(1, faults.SLOW_DOWN)
    assert [file.name for file in store.list("d", within_ms=20_000)] == ["d/a"]
    proxy.times(1, faults.LATE_ANSWER)
    began_ms = clock.monotonic_ms()
    with pytest.raises(StorageError, match="STORE_UNAVAILABLE"):
        store.list("d", within_ms=200)
    assert clock.monotonic_ms() - began_ms < 10_000  # it may have twenty seconds
    assert store.read("d/a") == b"x"  # which waits for nothing
    proxy.release.set()


def test_an_object_in_an_archive_is_told_at_once(make: MakeStore, proxy: FaultyProxy) -> None:
    store = make()
    store.put_if_absent("a", b"x")
    proxy.requests.clear()
    proxy.times(1, Fault(forward=0, answer=(403, "InvalidObjectState")))
    with pytest.raises(StorageError, match=r"STORAGE_REFUSED.*InvalidObjectState.*from the archive"):
        store.read("a")
    assert len(proxy.requests) == 1


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
    assert not store.exists("a")  # it has answered, so it is waited for
    proxy.times(4, getattr(faults, fault), is_put)
    probe_put_if_absent(store.client, store.key_prefix, store.url)
    assert proxy.faults == [getattr(faults, fault)] * 4
    store = make(ready=None)  # what follows is to be answered, in whatever time that takes
    store.put_if_absent("b", b"x")
    assert len(proxy.requests) == 1  # once per process
    assert [file.name for file in store.list("", recursive=True)] == ["b"]


def test_a_store_at_the_address_of_an_earlier_one_is_raced(make: MakeStore, proxy: FaultyProxy) -> None:
    """Ports come again, a few hundred tests later; what a process knows of the store there was another's."""
    make()
    make(ready=False).put_if_absent("a", b"x")
    assert "DELETE" in [request.method for request in proxy.requests], "of what was raced for"


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


@pytest.mark.parametrize("fault", [faults.RESET_BEFORE, faults.SLOW_DOWN, faults.ERROR_BEFORE, faults.DENIED])
def test_a_store_that_does_not_say_sets_no_bound_yet(
    make: MakeStore, proxy: FaultyProxy, fault: Fault
) -> None:
    store = make()
    proxy.times(1, fault)
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
