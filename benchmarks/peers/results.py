"""Measurements to medians, ranges and ratios; a table, JSON and a plot of them."""

import importlib.metadata
import json
import os
import platform
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil

from benchmarks.__main__ import machine, table

Row = dict[str, Any]
OURS = "sparklog"
SECTIONS = {
    "write": "a. Spark batch write",
    "read": "b. Spark batch read",
    "copy": "c. Spark streaming copy, full speed, from start to end",
    "copy_running": "c. the same without its first micro-batch, in which the query starts",
    "latency": "c. streaming copy at a steady rate: from event time to visible",
    "first_row": "d. a new Spark process to its first row",
    "backfill": "d. records of a time, out of many",
    "grow_write": "g. growth: writing",
    "grow_read": "g. growth: reading",
    "grow_publish": "g. growth: publishing one extent to a topic of so many, and opening its root",
    "produce": "e. kafka-producer-perf-test",
    "consume": "e. kafka-consumer-perf-test",
    "transactions": "f. transactions of librdkafka's producer",
    "queue": "g. a share group, by Kafka's perf test",
    "upkeep": "e. what a run leaves to be merged, done between the runs",
}
NOT_SUMMED = ("seconds", "p50_ms", "p99_ms", "mb_per_s")


class Results:
    """What was measured, one row a repetition; `key` is what must be equal to be compared."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self.rows: list[Row] = []
        self.notes: list[str] = []

    def add(self, section: str, work: str, contender: str, **values: float | None) -> None:
        row = {"section": section, "work": work, "contender": contender, **values}
        row["load"] = round(os.getloadavg()[0], 1)
        self.rows.append(row)
        if not self._quiet:
            print("  " + json.dumps(row), flush=True)

    def note(self, text: str) -> None:
        self.notes.append(text)
        print(f"NOTE: {text}", flush=True)

    def summary(self) -> list[Row]:
        """A line for each section, work and contender; the ratio is ours over the contender's speed."""
        groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
        for row in self.rows:
            groups[row["section"], row["work"], row["contender"]].append(row)
        lines = []
        for (section, work, contender), rows in groups.items():
            measure = next(
                name for name in ("mb_per_s", "p99_ms", "seconds") if rows[0].get(name) is not None
            )
            values = [row[measure] for row in rows]
            line: Row = {"section": section, "work": work, "contender": contender, "measure": measure}
            line |= {"median": _round(statistics.median(values))}
            line |= {"range": f"{_round(min(values))}-{_round(max(values))}"}
            line["ours_times_as_good"] = self._ratio(groups, (section, work, contender), measure)
            for name in rows[0]:
                numbers = [row[name] for row in rows if isinstance(row.get(name), int | float)]
                if numbers and name not in (measure, "load"):
                    line[name] = _round(statistics.median(numbers))
            line["load"] = max(row["load"] for row in rows)
            lines.append(line)
        return lines

    def _ratio(
        self, groups: dict[tuple[str, str, str], list[Row]], key: tuple[str, str, str], measure: str
    ) -> str:
        """Within each repetition, so that what slows both does not count; median and range."""
        section, work, contender = key
        ours = groups.get((section, work, OURS))
        if ours is None or contender == OURS:
            return "" if ours is None else "1"
        pairs = [(mine[measure], theirs[measure]) for mine, theirs in zip(ours, groups[key], strict=False)]
        ratios = [
            mine / theirs if measure == "mb_per_s" else theirs / mine
            for mine, theirs in pairs
            if mine and theirs
        ]
        if not ratios:
            return ""
        return f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"

    def write(self, directory: Path, settings: Row) -> None:
        """peers.md, peers.json, peers.png."""
        directory.mkdir(exist_ok=True)
        lines = ["# sparklog beside its peers", "", *machine_lines(), ""]
        lines += [f"- {key}: {value}" for key, value in settings.items()]
        lines += [f"- note: {text}" for text in self.notes]
        summary = self.summary()
        for section, title in SECTIONS.items():
            rows = [row for row in summary if row["section"] == section]
            if rows:
                names = list(dict.fromkeys(name for row in rows for name in row if name != "section"))
                lines += [
                    "",
                    f"## {title}",
                    "",
                    *table([{name: row.get(name, "") for name in names} for row in rows]),
                ]
        (directory / "peers.md").write_text("\n".join(lines) + "\n")
        document = {"machine": machine_lines(), "settings": settings, "notes": self.notes}
        document |= {"summary": summary, "rows": self.rows}
        (directory / "peers.json").write_text(json.dumps(document, indent=1) + "\n")
        plot(summary, directory / "peers.png")
        print("\n".join(lines))


def machine_lines() -> list[str]:
    java = importlib.metadata.version("pyspark")
    memory = psutil.virtual_memory().total / 1e9
    return [
        *machine(),
        f"- {memory:.0f} GB of memory, {platform.system()} {platform.release()}, Spark {java}",
    ]


def plot(summary: list[Row], path: Path) -> None:
    """Ours times as good, a bar for each work and contender; on a logarithmic scale."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    bars = [row for row in summary if row["contender"] != OURS and row["ours_times_as_good"]]
    if not bars:
        return
    figure, axes = plt.subplots(figsize=(9, 1 + 0.22 * len(bars)))
    names = [f"{row['section']}: {row['work']} / {row['contender']}" for row in bars]
    ratios = [float(str(row["ours_times_as_good"]).split()[0]) for row in bars]
    colours = ["tab:green" if ratio >= 1 else "tab:red" for ratio in ratios]
    axes.barh(names, [ratio - 1 for ratio in ratios], left=1, color=colours)
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=6)
    axes.set_xlabel("sparklog, times as good (1: the same)")
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _round(value: float) -> float:
    """Enough digits to tell 0.9 ms from 1.1, given in seconds."""
    return round(value) if abs(value) >= 1000 else round(value, 2 if abs(value) >= 0.1 else 5)
