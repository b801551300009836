"""The last hour of groups: right to the record, bounded, shown, and no way in for a hostile name."""

import html
import re
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from sparklog.client import SparkLog
from sparklog.client.lag import LagHistory
from sparklog.console import app
from sparklog.console.app import create_app
from tests.console.conftest import HOSTILE, NOW_MS, rows

Get = Callable[[str], Any]
STEP_MS = 10_000


@pytest.fixture
def orders(log: SparkLog) -> SparkLog:
    log.create_topic("orders", partitions=2)
    for partition in range(2):
        log.append("orders", rows(100), partition=partition)
    return log


def consume(log: SparkLog, history: LagHistory, *offsets: tuple[int, int], group: str = "etl") -> None:
    """Commit these offsets of both partitions, one pair each STEP_MS, with a sample after each."""
    for first, second in offsets:
        log.commit_offsets(group, {("orders", 0): first, ("orders", 1): second})
        assert history.sample(log)
        log.clock.sleep_ms(STEP_MS)


def test_history_is_right_to_the_record(orders: SparkLog, history: LagHistory, api: Get) -> None:
    consume(orders, history, (0, 0), (20, 0), (50, 30))
    orders.append("orders", rows(40), partition=1)
    consume(orders, history, (50, 130))
    assert api("/groups/etl/history") == {
        "group": "etl",
        "interval_ms": STEP_MS,
        "points": [
            {
                "at_ms": NOW_MS + at * STEP_MS,
                "lag": lag,
                "consumed_per_second": consumed,
                "produced_per_second": produced,
            }
            for at, (lag, consumed, produced) in enumerate(
                [(200, None, None), (180, 2.0, 0.0), (120, 6.0, 0.0), (60, 10.0, 4.0)]
            )
        ],
    }
    second = api("/groups/etl/history?topic=orders&partition=1")["points"]
    assert [one["lag"] for one in second] == [100, 100, 70, 10]
    newest = api(f"/groups/etl/history?since_ms={NOW_MS + 3 * STEP_MS}")["points"]
    assert [(one["lag"], one["consumed_per_second"]) for one in newest] == [(60, 10.0)]


def test_lists_have_the_hour_by_minute_and_the_rate(orders: SparkLog, history: LagHistory, api: Get) -> None:
    consume(orders, history, (0, 0), (20, 0), (50, 30))
    orders.clock.sleep_ms(120_000)
    consume(orders, history, (50, 50), (80, 100))
    (row,) = api("/groups")["groups"]
    assert (row["lag"], row["lag_minutes"][-3:]) == (20, [200, None, 100])
    assert row["consumed_per_second"] == pytest.approx((20 / 130 + 8) / 2)
    found = api("/group?group=etl")
    assert found["group"]["lag_minutes"] == row["lag_minutes"]
    assert [one["consumed_per_second"] for one in found["offsets"]] == [
        1.5,
        pytest.approx((20 / 130 + 5) / 2),
    ]
    assert found["consumed_minutes"][-3:-1] == [4.0, None]
    assert found["produced_minutes"][-1] == 0
    assert api("/overview")["groups"][0]["lag_minutes"] == row["lag_minutes"]


@pytest.mark.slow
def test_history_is_bounded(orders: SparkLog, history: LagHistory, api: Get) -> None:
    consume(orders, history, *[(0, at % 100) for at in range(500)])
    points = api("/groups/etl/history")["points"]
    assert len(points) == 361
    assert points[-1]["at_ms"] - points[0]["at_ms"] == 3_600_000
    (row,) = api("/groups")["groups"]
    assert len(row["lag_minutes"]) == 60
    assert None not in row["lag_minutes"][1:]


def test_pages_show_it_in_lines_and_words(orders: SparkLog, history: LagHistory, client: TestClient) -> None:
    consume(orders, history, (0, 0), (20, 0))
    orders.clock.sleep_ms(60_000)
    consume(orders, history, (50, 30))
    for path in ("/", "/groups", "/group?group=etl"):
        text = client.get(path).text
        assert "Lag in the last hour: now 120, at least 120, at most 200" in text, path
        assert '<polyline class="l0"' in text, path
    text = client.get("/group?group=etl").text
    assert '<polyline class="l1"' in text
    assert 'data-src="/api/v1/groups/etl/history"' in text


def test_nothing_yet_is_said(orders: SparkLog, api: Get, client: TestClient) -> None:
    orders.commit_offsets("etl", {("orders", 0): 1})
    assert api("/groups/etl/history")["points"] == []
    assert "Lag in the last hour: nothing yet" in client.get("/groups").text
    answer = client.get("/api/v1/groups/nope/history")
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    "group", [HOSTILE, "a/b/history", '"><img src=x onerror=alert(1)>', "100%", "?a=b#c"]
)
def test_any_name_has_a_history_and_is_only_text(
    group: str, orders: SparkLog, history: LagHistory, client: TestClient
) -> None:
    consume(orders, history, (0, 0), (20, 0), group=group)
    text = client.get(f"/group?group={quote(group, safe='')}").text
    assert not re.search(r"<img|<script(?! src=\"/static/)|\son\w+=\"", text)
    (path,) = re.findall(r'id="history" data-src="([^"]*)"', text)
    found = client.get(html.unescape(path)).json()
    assert (found["group"], [one["lag"] for one in found["points"]]) == (group, [200, 180])


def test_the_application_samples_while_it_runs(orders: SparkLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first sample fails, as with a storage that is away; the next ones are taken all the same."""
    threads: list[threading.Thread] = []
    sampled = threading.Event()

    class Counted(LagHistory):
        def sample(self, log: SparkLog, **given: Any) -> bool:
            threads.append(threading.current_thread())
            if len(threads) == 1:
                raise OSError(5, "away")
            super().sample(log, **given)
            sampled.set()
            return True

    monkeypatch.setattr(app, "LagHistory", lambda: Counted(interval_ms=1))
    orders.commit_offsets("etl", {("orders", 0): 100, ("orders", 1): 93})
    with TestClient(create_app(orders)) as client:
        assert client.portal is not None
        loop_thread = client.portal.call(threading.current_thread)
        assert sampled.wait(30)
        points = client.get("/api/v1/groups/etl/history").json()["points"]
        assert points[0]["lag"] == 7
    assert loop_thread not in threads
