from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparklog.demo import plot
from sparklog.demo.dataset import DELAYS_SCHEMA


def hourly(*rows: tuple[str, str, int, int]) -> pa.Table:
    names = ("origin", "time_hour", "departures", "delay_min")
    records = [dict(zip(names, row, strict=True), flights=row[2]) for row in rows]
    return pa.Table.from_pylist(records, schema=DELAYS_SCHEMA)


def test_hours_are_those_of_new_yorks_clock() -> None:
    times = pa.chunked_array([["2013-01-01T10:00:00Z", "2013-03-10T06:00:00Z", "2013-03-10T07:00:00Z"]])
    assert plot.local_hours(times).tolist() == [5, 68 * 24 + 1, 68 * 24 + 3]
    assert plot.local_hours(pa.chunked_array([["2013-11-03T06:00:00Z"]])).tolist() == [306 * 24 + 1]


def test_grid_holds_means_and_the_worst_day() -> None:
    grid = plot.delay_grid(
        hourly(
            ("JFK", "2013-01-01T10:00:00Z", 2, 30),
            ("JFK", "2013-01-02T11:00:00Z", 1, 40),
            ("EWR", "2013-01-03T11:00:00Z", 1, 99),
        ),
        "JFK",
    )
    assert grid.minutes[0, 5] == 15
    assert grid.worst_day == 1
    assert grid.mean == 70 / 3
    assert int(np.isfinite(grid.minutes).sum()) == 2


@pytest.mark.slow
def test_plot_is_a_png(tmp_path: Path) -> None:
    rows = [(airport, "2013-07-10T22:00:00Z", 3, 60) for airport in plot.AIRPORTS]
    plot.draw(hourly(*rows), tmp_path / "delays.png", flights=9)
    assert (tmp_path / "delays.png").read_bytes().startswith(b"\x89PNG")
