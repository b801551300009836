"""The embedded log behind a proxy: a commit whose answer was lost is of unknown fate, and is there once."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import StorageError
from tests.seaweed import SeaweedServer
from tests.storage import s3_proxy as faults
from tests.storage.http_proxies import KINDS, Route, proxied


@pytest.fixture(params=KINDS)
def route(request: pytest.FixtureRequest, s3_server: SeaweedServer, tmp_path: Path) -> Iterator[Route]:
    with proxied(request.param, s3_server, tmp_path) as running:
        yield running


@pytest.fixture
def log(s3_root: str, route: Route) -> Iterator[SparkLog]:
    """A log behind the proxy, whose waiting takes no time."""
    with route.told():
        opened = sparklog.open(s3_root, storage_options=route.options, clock=ManualClock())
    with opened:
        opened.create_topic("t", partitions=1)
        opened.append("t", rows("before"))
        yield opened


def rows(*values: str) -> pa.Table:
    return pa.table({"value": list(values)})


def values_seen_directly(root: str) -> list[str]:
    with sparklog.open(root, create=False) as log:
        return [value.decode() for value in log.read("t", 0, 0)["value"].to_pylist()]


def commits_put(route: Route) -> list[str]:
    """The names of the commits that were sent, each as often as it was."""
    return [request.key.rpartition("/")[2] for request in route.faulty.requests if request.is_commit]


def is_commit(request: faults.Request) -> bool:
    return request.is_commit


@pytest.mark.parametrize("fault", ["RESET_BEFORE", "RESET_AFTER", "CLOSE_AFTER", "LATE_EFFECT"])
def test_a_lost_answer_doubles_nothing(log: SparkLog, route: Route, s3_root: str, fault: str) -> None:
    route.faulty.once(getattr(faults, fault), is_commit)
    log.append("t", rows("doubtful"))
    assert len(route.faulty.faults) == 1
    assert all(status == 412 for status in route.faulty.land())
    log.append("t", rows("after"))
    assert values_seen_directly(s3_root) == ["before", "doubtful", "after"]


@pytest.mark.parametrize("took_effect", [True, False])
def test_a_proxy_that_dies_with_the_answer_leaves_the_commit_unresolved(
    log: SparkLog, route: Route, s3_root: str, took_effect: bool
) -> None:
    """A definite error here would let the caller append again: twice there."""
    route.faulty.once(faults.Fault(forward=int(took_effect), reset=True, then=route.proxy.die), is_commit)
    with pytest.raises(StorageError, match="PUBLISH_UNRESOLVED"):
        log.append("t", rows("doubtful"))
    assert values_seen_directly(s3_root) == (["before", "doubtful"] if took_effect else ["before"])

    with pytest.raises(StorageError, match="STORE_UNAVAILABLE"):
        log.append("t", rows("never sent"))
    route.proxy.revive()
    route.faulty.requests.clear()
    for value in ("after", "and after"):
        log.append("t", rows(value))
    put = commits_put(route)
    assert len(put) == len(set(put)) == (2 if took_effect else 3), (
        "the doubtful one again, if it is not there"
    )
    assert values_seen_directly(s3_root) == ["before", "doubtful", "after", "and after"]


def test_a_proxy_that_is_not_there_publishes_nothing_and_says_so(
    log: SparkLog, route: Route, s3_root: str
) -> None:
    """It dies with the data's answer, so the commit is never sent."""
    route.faulty.once(faults.Fault(then=route.proxy.die), lambda request: request.method == "PUT")
    with pytest.raises(StorageError, match="STORE_UNAVAILABLE"):
        log.append("t", rows("never sent"))
    route.proxy.revive()
    route.faulty.requests.clear()
    log.append("t", rows("after"))
    assert len(commits_put(route)) == 1, "nothing was left to be settled"
    assert values_seen_directly(s3_root) == ["before", "after"]
