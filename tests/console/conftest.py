"""What the tests of the console share: a root with some of everything, and a client of its console."""

import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from starlette.datastructures import Headers
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from sparklog.client import SparkLog
from sparklog.client.lag import LagHistory
from sparklog.clock import ManualClock
from sparklog.console.app import create_app
from sparklog.metadata import MetadataLog
from sparklog.storage import MemoryStore

NOW_MS = 1_800_000_000_000
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e'\"&\n"


def rows(count: int, *, time_ms: int = NOW_MS, size: int = 10) -> pa.Table:
    """Records with keys, a second apart, the last at `time_ms`."""
    times = [time_ms - 1000 * (count - 1 - at) for at in range(count)]
    return pa.table(
        {
            "key": [f"k{at}".encode() for at in range(count)],
            "value": [os.urandom(size) for _ in range(count)],
            "timestamp": pa.array(times, pa.timestamp("ms", "UTC")),
        }
    )


def as_user(app: ASGIApp) -> ASGIApp:
    """As a broker's login: here a header says who asks."""

    async def with_user(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["state"] = {**scope.get("state", {}), "user": Headers(scope=scope).get("x-user", "")}
        await app(scope, receive, send)

    return with_user


@pytest.fixture
def log() -> Iterator[SparkLog]:
    """An empty root in memory, at NOW_MS."""
    clock = ManualClock(NOW_MS)
    store = MemoryStore(clock=clock)
    with SparkLog(store, MetadataLog.open(store, clock, create=True), clock) as log:
        yield log


@pytest.fixture
def history() -> LagHistory:
    """What the client's console shows; only the test samples it."""
    return LagHistory()


@pytest.fixture
def client(log: SparkLog, history: LagHistory) -> Iterator[TestClient]:
    with TestClient(create_app(log, history=history)) as client:
        yield client


@pytest.fixture
def page(client: TestClient) -> Callable[[str], str]:
    """The text of a page, which must be there, without its markup."""

    def get(path: str) -> str:
        answer = client.get(path)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        text = re.sub(r"<[^>]*>", " ", answer.text.partition("<main")[2])
        return " ".join(text.split())

    return get


@pytest.fixture
def api(client: TestClient) -> Callable[[str], Any]:
    """The document at a path of the API, which must be there."""

    def get(path: str) -> Any:
        answer = client.get(f"/api/v1{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    return get
