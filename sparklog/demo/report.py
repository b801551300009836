"""The demo's last screen: what was found, and what to try next.

Every command printed here works as it stands: it names the program and the root that were used.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

from sparklog.demo import dataset
from sparklog.errors import InvalidRequestError
from sparklog.storage import open_store

# --- figures -----------------------------------------------------------------------------------------
#
# What the demo finds out, filled in from step to step (run.py).


@dataclass(slots=True)
class Figures:
    """What the demo found out."""

    flights: int = 0
    csv_bytes: int = 0
    json_bytes: int = 0
    log_bytes: int = 0
    backfill_s: float = 0.0
    stream_s: float = 0.0
    killed_processes: int = 0
    published_at_kill: int = 0
    noted_at_kill: int = 0
    published_in_all: int = 0
    delay_records: int = 0
    lag: int = 0
    rows: dataset.Difference | None = None
    sums: dataset.Difference | None = None
    problems: list[str] = field(default_factory=list)


# --- workspace ---------------------------------------------------------------------------------------
#
# The demo's directory: what is in it, and when it may be replaced.
#
# <output>/.sparklog-demo      marks the directory as ours; without it nothing is ever removed
# <output>/root/               the log (elsewhere with --root, a directory or s3://bucket/prefix)
# <output>/delays.png          the plot
# <output>/logs/               what the Spark jobs printed
# <output>/work/               the unpacked CSV and the query's checkpoint (removed at the end)


MARKER = ".sparklog-demo"
_URL = re.compile(r"[A-Za-z0-9]+://")
MARKER_TEXT = "Made by `sparklog demo`, which replaces this directory when it runs again.\n"


@dataclass(frozen=True, slots=True)
class Workspace:
    """The places of one run."""

    output: Path
    root: Path
    url: str | None = None  # of a root in an object store, in place of `root`

    @property
    def location(self) -> str:
        """The root as users write it."""
        return self.url or str(self.root)

    @property
    def plot(self) -> Path:
        return self.output / "delays.png"

    @property
    def logs(self) -> Path:
        return self.output / "logs"

    @property
    def work(self) -> Path:
        return self.output / "work"

    @property
    def checkpoint(self) -> Path:
        return self.work / "checkpoint"

    def remove_work(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)


def prepare(output: Path, root: Path | str | None) -> Workspace:
    """Make an empty workspace; replace an earlier demo's, refuse anybody else's directory."""
    output = output.absolute()
    url = str(root) if root is not None and _URL.match(str(root)) else None
    workspace = Workspace(
        output=output, root=Path(root).absolute() if root and not url else output / "root", url=url
    )
    if _occupied(output) and not (output / MARKER).is_file():
        raise InvalidRequestError(
            "DEMO_DIRECTORY_TAKEN",
            f"{output} is not empty and was not made by the demo",
            fix="name another directory with --output-dir DIR, or empty this one yourself",
        )
    if root is not None and (_holds_objects(url) if url else _occupied(workspace.root)):
        raise InvalidRequestError(
            "DEMO_DIRECTORY_TAKEN",
            f"the root {workspace.location} is not empty, and the demo writes only to a log of its own",
            fix="name an empty directory or prefix with --root, or leave --root out",
        )
    if output.is_dir():
        for entry in (workspace.output / "root", workspace.logs, workspace.work):
            shutil.rmtree(entry, ignore_errors=True)
        workspace.plot.unlink(missing_ok=True)
    for directory in (output, workspace.logs, workspace.work):
        directory.mkdir(parents=True, exist_ok=True)
    (output / MARKER).write_text(MARKER_TEXT)
    return workspace


def _occupied(path: Path) -> bool:
    if path.is_dir():
        return any(path.iterdir())
    return path.exists() or path.is_symlink()


def _holds_objects(url: str) -> bool:
    return bool(open_store(url).list("", recursive=True))


def bytes_below(root: Path | str) -> int:
    """How much the files or objects under a root hold."""
    if isinstance(root, str) and _URL.match(root):
        return sum(file.size for file in open_store(root).list("", recursive=True))
    return sum(path.stat().st_size for path in Path(root).rglob("*") if path.is_file())


# --- report ------------------------------------------------------------------------------------------


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
