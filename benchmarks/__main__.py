"""All benchmarks, one after the other, as one report: python -m benchmarks [--quick] [NAME ...]

Each bench_NAME.py runs in a process of its own, so that none inherits another's memory or
threads. Lines of JSON are gathered into tables; everything else passes through. The report is
printed, and kept as bench-output/report.md.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO

HERE = Path(__file__).resolve().parent
FIRST = ("format", "publish")  # what needs no Spark comes first
LAST = "spark"
QUICK = {
    "upkeep": ["--publishes", "5000", "--large", "300"],
    "publish": ["--seconds", "2", "--processes", "1,2", "--open", "100000"],
    "broker": ["--quick"],
    "produce": ["--megabytes", "60"],
    "offsets": ["--commits", "20000", "--groups", "100", "--in-flight", "100"],
    "requests": ["--megabytes", "16"],
    "spark_maintenance": ["--gigabytes", "1", "--rounds", "1"],
    "stream_maintenance": ["--batches", "200"],
    "s3": ["--quick", "--seconds", "2", "--processes", "1,4"],
}
Row = dict[str, object]


def names() -> list[str]:
    """The benchmarks that exist, Spark's last."""
    found = {path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py")}
    return sorted(found, key=lambda name: (name == LAST, name not in FIRST, name))


def machine() -> list[str]:
    """What the figures were measured on."""
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("pyspark", "pyarrow", "numpy")
    )
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        model = next((line.split(": ", 1)[1] for line in cpuinfo.read_text().splitlines() if ": " in line
                      and line.startswith("model name")), model)  # fmt: skip
    return [f"- {os.cpu_count()} cores, {model}", f"- Python {platform.python_version()}, {versions}"]


def table(rows: list[Row]) -> list[str]:
    """Rows of the same keys as an aligned Markdown table."""
    cells = [list(rows[0])] + [
        [f"{v:,}" if isinstance(v, int) else str(v) for v in row.values()] for row in rows
    ]
    widths = [max(len(line[n]) for line in cells) for n in range(len(cells[0]))]
    lines = [
        "| " + " | ".join(text.ljust(w) for text, w in zip(line, widths, strict=True)) + " |"
        for line in cells
    ]
    return [lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]]


def parse_row(line: str) -> Row | None:
    """The row in a line, if it is one."""
    if not line.startswith("{"):
        return None
    try:
        row = json.loads(line)
    except json.JSONDecodeError:
        return None
    return row if isinstance(row, dict) else None


class Report:
    """Prints, and keeps, what the benchmarks say."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._rows: list[Row] = []

    def line(self, text: str = "") -> None:
        row = parse_row(text)
        if self._rows and (row is None or list(row) != list(self._rows[0])):
            self._flush()
        if row is None:
            self._write(text)
        else:
            self._rows.append(row)
            print(f"  {text}", flush=True)  # progress, before the table

    def end(self) -> None:
        if self._rows:
            self._flush()

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        for text in ["", *table(rows), ""]:
            self._write(text)

    def _write(self, text: str) -> None:
        print(text, flush=True)
        print(text, file=self._file, flush=True)


def run(name: str, report: Report, *, quick: bool) -> int:
    """One benchmark; returns its exit code."""
    arguments = (QUICK.get(name, []) if name != LAST else ["--quick"]) if quick else []
    started = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.bench_{name}", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=HERE.parent,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            report.line(line.rstrip("\n"))
    report.end()
    report.line(f"({name}: {time.monotonic() - started:.0f} s)")
    return process.returncode


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[[], *names()], metavar="NAME", help=", ".join(names()))
    parser.add_argument("--quick", action="store_true", help="fewer rounds, less data")
    options = parser.parse_args()
    output = HERE.parent / "bench-output"
    output.mkdir(exist_ok=True)
    failed = []
    with (output / "report.md").open("w") as file:
        report = Report(file)
        report.line("# sparklog benchmarks")
        report.line()
        for text in machine():
            report.line(text)
        for name in options.names or names():
            report.line()
            report.line(f"## {name}")
            report.line()
            if run(name, report, quick=options.quick) != 0:
                failed.append(name)
    print(f"\nreport: {output / 'report.md'}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
