"""The file of samples: what a restart shows, what is kept, and what is refused."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from sparklog.client import SparkLog
from sparklog.client.lag import HOUR_MS, LagHistory
from sparklog.console import history_file
from sparklog.console.app import create_app
from sparklog.console.history_file import KEEP_MS, HistoryFile
from sparklog.errors import InvalidRequestError
from tests.console.conftest import NOW_MS, rows
from tests.support.told import Told

AT = ("orders", 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lag.sqlite"


def stored(path: Path) -> list[Any]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT * FROM lag ORDER BY at_ms, group_name, topic, partition").fetchall()
    finally:
        connection.close()


def test_a_restart_shows_the_last_hour(path: Path, log: SparkLog) -> None:
    log.create_topic("orders")
    log.append("orders", rows(100))
    file = HistoryFile(path, "root")
    before = LagHistory()
    before.keep = file.add
    for step in range(720):  # two hours
        before.add(NOW_MS - 10_000 * (720 - step), log.image, {"etl": {AT: min(100, step)}})
    file.close()
    after, again = LagHistory(), HistoryFile(path, "root")
    again.restore(after, NOW_MS)
    again.close()
    expected = before.points("etl", since_ms=NOW_MS - HOUR_MS)
    assert len(expected) == 360
    first, *others = after.points("etl")
    assert (first.at_ms, first.lag) == (expected[0].at_ms, expected[0].lag)
    assert others == expected[1:]
    assert len(stored(path)) == 720


def test_a_console_stores_its_samples(path: Path, log: SparkLog) -> None:
    log.create_topic("orders")
    log.append("orders", rows(10))
    log.commit_offsets("<b>etl", {AT: 4})
    for _ in range(2):
        with TestClient(create_app(log, history_file=path)) as client:
            page = client.get("/group", params={"group": "<b>etl"})
            while not stored(path) or stored(path)[-1][0] != log.clock.now_ms():
                client.get("/")
            assert "kept in a file" in page.text
        log.clock.advance_ms(10_000)  # type: ignore[attr-defined]
    assert stored(path) == [
        (NOW_MS, "<b>etl", "orders", 0, 4, 10),
        (NOW_MS + 10_000, "<b>etl", "orders", 0, 4, 10),
    ]
    with TestClient(create_app(log, history_file=path)) as client:
        points = client.get("/api/v1/groups/<b>etl/history").json()["points"]
        assert [one["at_ms"] for one in points][:2] == [NOW_MS, NOW_MS + 10_000]


def test_what_is_old_goes(path: Path) -> None:
    file = HistoryFile(path, "root")
    for at_ms in (0, 10_000, KEEP_MS + 10_000):
        file.add(at_ms, {"etl": {AT: (1, 2)}})
    file.close()
    assert [row[0] for row in stored(path)] == [10_000, KEEP_MS + 10_000]


def test_the_number_of_rows_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_file, "MAX_ROWS", 10)
    sample = {"etl": {("orders", number): (1, 2) for number in range(4)}}
    for _ in range(2):  # a restart counts them
        file = HistoryFile(path, "root")
        for at_ms in range(5):
            file.add(at_ms, sample)
            file.add(at_ms, sample)  # another console, at the same time
        file.close()
        assert sorted({row[0] for row in stored(path)}) == [3, 4]


def test_a_file_of_another_root_is_refused(path: Path) -> None:
    HistoryFile(path, "root").close()
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="found a file of another root"):
            HistoryFile(path, "other")
    HistoryFile(path, "root").close()


def test_what_is_no_file_of_samples_is_refused(path: Path, tmp_path: Path) -> None:
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(InvalidRequestError, match="file is not a database"):
        HistoryFile(path, "root")
    with pytest.raises(InvalidRequestError, match="unable to open"):
        HistoryFile(tmp_path / "nowhere" / "lag.sqlite", "root")


def test_a_file_that_cannot_be_written_is_reported_once(path: Path, told: Told) -> None:
    file = HistoryFile(path, "root")
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE lag")
    connection.close()
    make: Callable[[int], None] = lambda at_ms: file.add(at_ms, {"etl": {AT: (1, 2)}})  # noqa: E731
    make(0)
    make(1)
    file.close()
    (message,) = told("sparklog.console")
    assert message.startswith(f"the lag of groups cannot be stored in {path}: ")
