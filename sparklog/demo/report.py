"""The demo's last screen: what was found, and what to try next.

Every command printed here works as it stands: it names the program and the root that were used.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from sparklog.demo.figures import Figures
from sparklog.demo.workspace import Workspace

MEGABYTE = 1_000_000


def show(figures: Figures, workspace: Workspace) -> None:
    """Print the table of figures and the next steps."""
    from rich.console import Console
    from rich.table import Table

    terminal = sys.stdout.isatty()
    console = Console(markup=False, highlight=False, width=None if terminal else 120)
    table = Table(title="A year of flights, exactly once", title_style="bold", title_justify="left")
    table.add_column("what")
    table.add_column("found", justify="right")
    table.add_column("how")
    for row in figure_rows(figures):
        table.add_row(*row)
    console.print()
    console.print(table)
    print(f"\nplot: {shown(workspace.plot)}")
    print("\nTry next:")
    for line in next_steps(workspace):
        print(f"  {line}".rstrip())


def figure_rows(figures: Figures) -> list[tuple[str, str, str]]:
    """The rows of the table: what, how much, and how it was found."""
    rows, sums = figures.rows, figures.sums
    assert rows is not None
    assert sums is not None
    rerun = figures.published_at_kill - figures.noted_at_kill
    again = (
        f"Spark ran {rerun} published micro-batch again; the log knew it"
        if rerun
        else "between two micro-batches"
    )
    return [
        ("flights in the CSV", f"{figures.flights:,}", f"{figures.csv_bytes / MEGABYTE:.1f} MB"),
        ("records in topic flights", f"{rows.found:,}", "whole rows compared, as a multiset"),
        ("  lost", f"{rows.lost:,}", ""),
        ("  duplicated", f"{rows.duplicated:,}", ""),
        ("killed with SIGKILL", f"{figures.killed_processes} processes", "driver, JVM and Python workers"),
        (
            "  after micro-batch",
            f"{figures.published_at_kill} of {figures.published_in_all}",
            again,
        ),
        ("records in topic delays", f"{figures.delay_records:,}", "partial sums of each micro-batch"),
        (
            "hourly delays, added up",
            f"{sums.found:,}",
            f"{sums.expected:,} from the CSV; {sums.lost + sums.duplicated} differ",
        ),
        (
            "backfill",
            f"{figures.flights / max(figures.backfill_s, 0.001):,.0f} rows/s",
            f"{figures.backfill_s:.1f} s, Spark's start included",
        ),
        ("consumer lag of the query", f"{figures.lag:,}", "from __consumer_offsets"),
        (
            "log on disk",
            f"{figures.log_bytes / MEGABYTE:.1f} MB",
            f"{figures.json_bytes / MEGABYTE:.1f} MB of JSON, lz4",
        ),
    ]


def next_steps(workspace: Workspace) -> list[str]:
    """Commands that work on what the demo left behind."""
    command = f"{program()} --root {shlex.quote(workspace.url or shown(workspace.root))}"
    return [
        f"{command} topics describe --topic flights",
        f"{command} consume --topic delays -o -3 -e -J",
        f"{command} consume --topic flights --partition 0 -c 5 -f '%o  %k  %s\\n'",
        f"{command} groups describe --all-groups",
        f"echo hello | {command} produce --topic greetings",
        "",
        "in PySpark, after sparklog.spark.register(spark):",
        f"  spark.read.format('sparklog').option('subscribe', 'flights').load({workspace.location!r})",
    ]


def program() -> str:
    """How this program can be started again from here."""
    started = Path(sys.argv[0])
    if started.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m sparklog"
    return shlex.quote(shown(started.absolute())) if "/" in sys.argv[0] else started.name


def shown(path: Path) -> str:
    """A path, relative to the working directory when it lies below it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
