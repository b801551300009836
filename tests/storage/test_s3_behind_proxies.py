"""An S3 store behind a proxy that its client was told of: what is lost behind it is unknown, not unsent."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ConnectTimeoutError, EndpointConnectionError, ProxyConnectionError
from urllib3 import exceptions as urllib3

import sparklog.storage.object_probe
from sparklog.clock import ManualClock
from sparklog.errors import AlreadyExistsError, StorageError
from sparklog.storage import IndefinitePutError
from sparklog.storage.object_client import Outcome
from sparklog.storage.s3 import S3Store
from sparklog.storage.s3_client import outcome_of
from sparklog.storage.s3_options import parse_storage_options
from tests.seaweed import SECRET, SeaweedServer
from tests.storage import s3_proxy as faults
from tests.storage.http_proxies import KINDS, ConnectTunnel, Route, proxied


@pytest.fixture(params=KINDS)
def route(request: pytest.FixtureRequest, s3_server: SeaweedServer, tmp_path: Path) -> Iterator[Route]:
    with proxied(request.param, s3_server, tmp_path) as running:
        yield running


def make(route: Route, root: str, clock: ManualClock | None = None, **options: Any) -> S3Store:
    """A store that has been raced and has answered, unless the proxy is dead. It waits without waiting."""
    given = {"read_timeout": 20, **route.options, **options}
    store = S3Store(root, parse_storage_options(given), clock or ManualClock())
    with route.told():
        sparklog.storage.object_probe.passed.add(store.client.identity)  # makes the client, too
    return store


def is_put(request: faults.Request) -> bool:
    return request.method == "PUT"


def test_requests_go_through_the_proxy(route: Route, s3_root: str) -> None:
    store = make(route, s3_root)
    store.put_if_absent("a", b"ours")
    assert store.read("a") == b"ours"
    assert [request.method for request in route.faulty.requests] == ["PUT", "GET"]
    if isinstance(route.proxy, ConnectTunnel):
        assert route.proxy.asked == [f"127.0.0.1:{route.faulty.port}"]


LOST = [  # (what goes wrong, did the put take effect?)
    ("RESET_BEFORE", False),
    ("RESET_AFTER", True),
    ("CLOSE_AFTER", True),
    ("LATE_ANSWER", True),
    ("ERROR_AFTER", True),
]


@pytest.mark.parametrize(("fault", "took_effect"), LOST)
@pytest.mark.parametrize("first", [True, False], ids=["new connection", "used connection"])
def test_a_lost_answer_is_not_taken_for_an_unsent_request(
    route: Route, s3_root: str, fault: str, took_effect: bool, first: bool
) -> None:
    store = make(route, s3_root, read_timeout=0.4 if fault == "LATE_ANSWER" else 20)
    if not first:
        assert not store.exists("a")
    route.faulty.requests.clear()
    route.faulty.once(getattr(faults, fault), is_put)
    with pytest.raises(IndefinitePutError, match="no definite answer"):
        store.put_if_absent("a", b"ours")
    route.faulty.until_forwarded(1)
    assert len(route.faulty.requests) == 1
    if fault == "LATE_ANSWER":
        store = make(route, s3_root)
    if took_effect:
        with pytest.raises(AlreadyExistsError):
            store.put_if_absent("a", b"ours")
    else:
        store.put_if_absent("a", b"ours")
    assert store.read("a") == b"ours"


def test_a_proxy_that_dies_with_the_answer(route: Route, s3_root: str) -> None:
    store = make(route, s3_root)
    route.faulty.once(faults.Fault(then=route.proxy.die), is_put)
    with pytest.raises(IndefinitePutError, match="no definite answer"):
        store.put_if_absent("a", b"ours")
    route.proxy.revive()
    with pytest.raises(AlreadyExistsError):
        store.put_if_absent("a", b"ours")


@pytest.mark.parametrize("fault", ["RESET_BEFORE", "RESET_AFTER", "CLOSE_AFTER"])
def test_an_append_file_is_finished_in_spite_of_faults(route: Route, s3_root: str, fault: str) -> None:
    store = make(route, s3_root)
    with store.append_file("segments/w/0.log") as file:
        file.write(b"batch" * 100)
        route.faulty.times(2, getattr(faults, fault), is_put)
        file.sync()
    assert store.read("segments/w/0.log") == b"batch" * 100


def test_a_proxy_that_is_not_there_means_nothing_was_sent(route: Route, s3_root: str) -> None:
    store = make(route, s3_root)
    route.proxy.die()
    with pytest.raises(StorageError, match="STORE_UNAVAILABLE") as raised:
        store.put_if_absent("a", b"ours")
    assert not isinstance(raised.value, IndefinitePutError)
    assert SECRET not in str(raised.value)
    assert route.faulty.requests == []


def test_a_proxy_that_comes_back_is_waited_for(route: Route, s3_root: str) -> None:
    class Reviving(ManualClock):
        def sleep_ms(self, duration_ms: float) -> None:
            super().sleep_ms(duration_ms)
            if self.monotonic_ms() > 3_000 and not revived:
                revived.append(True)
                route.proxy.revive()

    revived: list[bool] = []
    store = make(route, s3_root, Reviving())
    route.proxy.die()
    store.put_if_absent("a", b"ours")
    assert len(route.faulty.requests) == 1
    assert revived


def behind_proxy(cause: Exception) -> ProxyConnectionError:
    return ProxyConnectionError(proxy_url="http://proxy", error=urllib3.ProxyError("", cause))


NO_CONNECTION = urllib3.NewConnectionError(None, "refused")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (behind_proxy(NO_CONNECTION), Outcome.UNSENT),
        (behind_proxy(urllib3.ConnectTimeoutError()), Outcome.UNSENT),
        (behind_proxy(urllib3.ReadTimeoutError(None, None, "")), Outcome.BUSY),  # type: ignore[arg-type]
        (behind_proxy(ConnectionResetError()), Outcome.BUSY),
        (behind_proxy(OSError("Tunnel connection failed: 502 Bad Gateway")), Outcome.BUSY),
        (ProxyConnectionError(proxy_url="http://proxy", error="unheard of"), Outcome.BUSY),
        (EndpointConnectionError(endpoint_url="", error=NO_CONNECTION), Outcome.UNSENT),
        (ConnectTimeoutError(endpoint_url="", error=""), Outcome.UNSENT),
    ],
    ids=[
        "refused",
        "connect time-out",
        "read time-out",
        "reset",
        "no tunnel",
        "unknown",
        "direct",
        "direct time-out",
    ],
)
def test_only_a_connection_that_was_never_made_is_unsent(error: Exception, outcome: Outcome) -> None:
    assert outcome_of(error) is outcome
