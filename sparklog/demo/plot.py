"""The demo's picture: a year of departure delays, one cell for each hour of each day.

Drawn from what the streaming query wrote to the topic `delays`, not from the CSV.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

AIRPORTS = {"EWR": "Newark", "JFK": "Kennedy", "LGA": "LaGuardia"}
DAYS, HOURS = 365, 24
FIRST_HOUR = 5
HOUR_S, DAY_S = 3_600, 86_400
YEAR_START_S = 1_356_998_400  # 2013-01-01T00:00:00Z
# New York's clock in 2013, spelt out so that no time zone database is needed: UTC-5, and UTC-4
# between these two moments.
SUMMER_START_S, SUMMER_END_S = 1_362_898_800, 1_383_458_400
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
MONTH_STARTS = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)


@dataclass(frozen=True, slots=True)
class DelayGrid:
    """Mean delay in minutes by day of the year and local hour; NaN where nothing departed."""

    airport: str
    minutes: npt.NDArray[np.float64]
    daily: npt.NDArray[np.float64]
    mean: float

    @property
    def worst_day(self) -> int:
        return int(np.nanargmax(self.daily))


def local_hours(time_hour: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Hours since 2013-01-01T00:00 on New York's clock."""
    parsed = pc.strptime(time_hour, format="%Y-%m-%dT%H:%M:%SZ", unit="s")
    utc_s = parsed.cast(pa.int64()).to_numpy()
    summer = (utc_s >= SUMMER_START_S) & (utc_s < SUMMER_END_S)
    result: npt.NDArray[np.int64] = (utc_s - YEAR_START_S) // HOUR_S - np.where(summer, 4, 5)
    return result


def delay_grid(hourly: pa.Table, airport: str) -> DelayGrid:
    """The grid of one airport."""
    rows = hourly.filter(pc.equal(hourly["origin"], airport))
    hours = local_hours(rows["time_hour"])
    totals = np.zeros((2, DAYS * HOURS))
    for line, column in enumerate(("delay_min", "departures")):
        np.add.at(totals[line], hours, rows[column].to_numpy())
    delay, departures = totals.reshape(2, DAYS, HOURS)
    with np.errstate(invalid="ignore", divide="ignore"):
        minutes = delay / departures
        # A day of storms may see few departures; those still are its delay.
        daily = delay.sum(axis=1) / departures.sum(axis=1)
    return DelayGrid(airport, minutes, daily, float(delay.sum() / departures.sum()))


def draw(hourly: pa.Table, path: Path, *, flights: int) -> None:
    """Write the plot of `hourly` (columns of verify.DELAYS_SCHEMA) to `path` as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 8.2), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(AIRPORTS), 1, sharex=True)
    for axes, airport in zip(panels, AIRPORTS, strict=True):
        image = _draw_airport(axes, delay_grid(hourly, airport))
    panels[-1].set_xticks([start + 15 for start in MONTH_STARTS], MONTHS)
    panels[-1].set_xlabel("day of 2013")
    bar = figure.colorbar(image, ax=panels, pad=0.01, aspect=45, extend="both")
    bar.set_label("mean departure delay (minutes)")
    figure.suptitle(
        "Delays build up through the day, and come in storms", x=0.01, ha="left", fontsize=17, weight="bold"
    )
    panels[0].set_title(
        f"Mean departure delay from New York's airports, by hour, 2013 ({flights:,} flights; white: none)\n",
        loc="left",
        fontsize=11,
        color="#444444",
    )
    figure.savefig(path, dpi=130)


def _draw_airport(axes: Axes, grid: DelayGrid) -> AxesImage:
    from matplotlib.colors import TwoSlopeNorm

    image = axes.imshow(
        grid.minutes[:, FIRST_HOUR:].T,
        aspect="auto",
        origin="lower",
        cmap="RdYlBu_r",
        norm=TwoSlopeNorm(vmin=-10, vcenter=5, vmax=90),
        extent=(0, DAYS, FIRST_HOUR, HOURS),
        interpolation="nearest",
    )
    for start in MONTH_STARTS[1:]:
        axes.axvline(start, color="white", linewidth=0.8)
    axes.set_yticks(range(6, HOURS + 1, 6), [f"{hour}:00" for hour in range(6, HOURS + 1, 6)])
    axes.set_ylabel("local hour")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    day = grid.worst_day
    axes.annotate(
        f"{_date(day)}: {grid.daily[day]:.0f} min on average",
        xy=(day + 0.5, HOURS),
        xytext=(0, 4),
        textcoords="offset points",
        ha="left" if day < 300 else "right",
        fontsize=9,
        color="#a50026",
        annotation_clip=False,
    )
    axes.text(
        1.0,
        1.02,
        f"{AIRPORTS[grid.airport]} ({grid.airport}), mean {grid.mean:.1f} min",
        transform=axes.transAxes,
        ha="right",
        va="bottom",
        weight="bold",
    )
    return image


def _date(day: int) -> str:
    month = max(index for index, start in enumerate(MONTH_STARTS) if start <= day)
    return f"{day - MONTH_STARTS[month] + 1} {MONTHS[month]}"
