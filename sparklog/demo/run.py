"""The demo: a year of flights through the log, exactly once, while it is being killed.

1. A spark-submit batch job writes all flights of 2013 to the topic `flights`.
2. A streaming query adds the flights up by origin and hour, into the topic `delays`. It is killed
   the moment the log has published its fifth micro-batch, before Spark can note that down.
3. The same query starts again from its checkpoint. Spark runs the unnoted micro-batch again; the
   log knows it, by (query id, batch id), and does not publish it a second time.
4. Both topics are compared with the CSV, record by record.

Not here: what is compared (dataset.py), and how it looks (report.py, plot.py).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import pyarrow as pa

from sparklog.client import open_log
from sparklog.clock import Clock
from sparklog.demo import dataset, plot, report
from sparklog.demo import dataset as verify
from sparklog.demo.report import Figures, Workspace, bytes_below, prepare
from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.spark.interpreter import worker_python

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

# --- processes ---------------------------------------------------------------------------------------
#
# Spark jobs as processes: start with spark-submit, wait, or kill with SIGKILL.
#
# A job runs in a session of its own, so that "all of it" is well defined: the launcher, the JVM, and
# PySpark's worker daemon, which leaves the process group but not the session.


JOBS = Path(__file__).parent / "jobs"
SPARK_CONF = {
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
}
TAIL_LINES = 12
LINE_CHARACTERS = 300
NOISE = re.compile(r"\s+at |\s*\.\.\. \d+ more|\S+ \S+ (INFO|WARN) |\s*[+:]- ")
KILL_ATTEMPTS = 100


class SparkJob:
    """One running spark-submit."""

    def __init__(self, script: str, arguments: Sequence[str], *, log: Path, cwd: Path, clock: Clock) -> None:
        self.name = script.removesuffix(".py")
        self.log = log
        self._clock = clock
        command = [str(spark_submit()), "--master", "local[2]"]
        for key, value in SPARK_CONF.items():
            command += ["--conf", f"{key}={value}"]
        command += [str(JOBS / script), *arguments]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=spark_environment(),
                start_new_session=True,
            )

    def running(self) -> bool:
        """Whether it still runs; a job that failed raises instead."""
        code = self._process.poll()
        if code is None:
            return True
        if code != 0:
            raise SparklogError(
                "DEMO_JOB_FAILED",
                f"the Spark job {self.name} ended with exit code {code}; its last lines:\n{self.tail()}\n",
                fix=f"read {self.log}, and run `sparklog doctor`",
            )
        return False

    def kill(self) -> int:
        """SIGKILL every process of the job's session; returns how many there were."""
        killed: set[int] = set()
        for _ in range(KILL_ATTEMPTS):
            members = session_members(self._process.pid)
            if not members - {self._process.pid} and self._process.poll() is not None:
                break
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed |= members
            self._process.poll()
            self._clock.sleep_ms(20)
        self._process.wait()
        return len(killed)

    def tail(self) -> str:
        """The end of the job's output, without log lines and Java's stack."""
        lines = self.log.read_text(errors="replace").splitlines()
        telling = [line for line in lines if line.strip() and not NOISE.match(line)]
        return "\n".join(f"    {line[:LINE_CHARACTERS]}" for line in telling[-TAIL_LINES:])


def session_members(session: int) -> set[int]:
    """The processes of a session; where there is no /proc, the session's leader alone."""
    members = set()
    entries = list(Path("/proc").glob("[0-9]*")) or [Path(str(session))]
    for entry in entries:
        pid = int(entry.name)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == session and not _is_zombie(entry):
                members.add(pid)
    return members


def _is_zombie(entry: Path) -> bool:
    try:
        return (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


def spark_submit() -> Path:
    """The spark-submit of the installed pyspark, whatever the PATH says."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise InvalidRequestError(
            "DEMO_SPARK_MISSING",
            "pyspark is not installed beside sparklog",
            fix="pip install 'sparklog[demo]', or run `make demo` in a clone",
        )
    return Path(spec.submodule_search_locations[0]) / "bin" / "spark-submit"


def spark_environment() -> dict[str, str]:
    """The environment of this process, with this interpreter for Spark and no other Spark."""
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    environment["PYSPARK_PYTHON"] = environment["PYSPARK_DRIVER_PYTHON"] = worker_python()
    environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return environment


# --- progress ----------------------------------------------------------------------------------------
#
# Progress for people: a live bar on a terminal, a line per event elsewhere.
#
# Invariants: only one step is open at a time; a step that fails is left as it was, so that the error
# that follows stands beside it.


LINE_INTERVAL_MS = 5_000


class Step:
    """One step of the demo; `update` says how far it is."""

    def __init__(self, title: str, total: int | None, reporter: Reporter) -> None:
        self.title = title
        self.total = total
        self.done = 0
        self.result = ""
        self._reporter = reporter

    def update(self, done: int, detail: str = "") -> None:
        self.done = done
        self._reporter.show(self, detail)


class Reporter:
    """Where the steps go."""

    def __init__(self, clock: Clock, stream: TextIO | None = None, *, live: bool | None = None) -> None:
        self._stream = stream or sys.stdout
        self._live = self._stream.isatty() if live is None else live
        self._clock = clock
        self._started_ms = clock.monotonic_ms()
        self._last_line_ms = 0
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    @contextmanager
    def step(self, title: str, total: int | None = None) -> Iterator[Step]:
        """Run a step; its `result` is shown when it is done."""
        step = Step(title, total, self)
        started_ms = self._clock.monotonic_ms()
        if self._live:
            self._open_bar(step)
        else:
            self.line(f"{title} ...")
        try:
            yield step
        finally:
            self._close_bar()
        seconds = (self._clock.monotonic_ms() - started_ms) / 1000
        mark = "\N{CHECK MARK}" if self._live else "done:"
        self.line(f"{mark} {title}: {step.result} ({seconds:.1f} s)" if step.result else f"{mark} {title}")

    def show(self, step: Step, detail: str) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=step.done, detail=detail)
            return
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._last_line_ms >= LINE_INTERVAL_MS:
            share = f"{step.done:,} of {step.total:,}" if step.total else ""
            self.line(f"  {step.title}: {', '.join(filter(None, (share, detail)))}")

    def line(self, text: str) -> None:
        self._last_line_ms = self._clock.monotonic_ms()
        if self._live:
            print(text, file=self._stream, flush=True)
        else:
            seconds = (self._last_line_ms - self._started_ms) / 1000
            print(f"[{seconds:5.1f} s] {text}", file=self._stream, flush=True)

    def _open_bar(self, step: Step) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            console=Console(file=self._stream),
            transient=True,
        )
        self._task = self._bar.add_task(step.title, total=step.total, detail="")
        self._bar.start()

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._task = None


# --- observer ----------------------------------------------------------------------------------------
#
# What the demo sees of the log and of Spark's checkpoint, from outside of both.
#
# It reads with the embedded client: no Spark, no server, while Spark writes to the same root.


READ_RECORDS = 50_000


class Observer:
    """A reader of one root and one checkpoint."""

    def __init__(self, root: Path | str, checkpoint: Path) -> None:
        self._log = open_log(root, create=True)
        self._checkpoint = checkpoint

    def create_topic(self, topic: str, partitions: int) -> None:
        # The flights are of 2013: with the default retention they would be old on arrival.
        self._log.create_topic(topic, partitions=partitions, configs={"retention.ms": "-1"})

    def records(self, topic: str) -> int:
        """How many records are visible."""
        return sum(
            self._log.log_end_offset(topic, partition) - self._log.log_start_offset(topic, partition)
            for partition in self._partitions(topic)
        )

    def published(self, topic: str) -> int:
        """How many micro-batches the log has, of a query that writes rows to the topic with each of them.

        The log notes the last one's number, so that none is missed however rarely somebody looks.
        """
        image = self._log.refresh()
        found = image.topics[topic].writer_txns.values() if topic in image.topics else ()
        return max((state.version for state in found), default=-1) + 1

    def noted_by_spark(self) -> int:
        """How many micro-batches the query's checkpoint says are committed."""
        return sum(1 for path in (self._checkpoint / "commits").glob("*") if path.name.isdigit())

    def values(self, topic: str) -> pa.ChunkedArray:
        """All values of a topic."""
        chunks: list[pa.Array] = []
        for partition in self._partitions(topic):
            offset = self._log.log_start_offset(topic, partition)
            end_offset = self._log.log_end_offset(topic, partition)
            while offset < end_offset:
                table = self._log.read(topic, partition, offset, max_records=READ_RECORDS)
                chunks += table["value"].chunks
                offset = table["offset"][-1].as_py() + 1
        return pa.chunked_array(chunks, pa.binary())

    def lag(self, group: str, topic: str) -> int:
        """How many records of the topic a group has still to commit; all of a partition that it never has."""
        committed = self._log.committed_offsets(group)
        return sum(
            self._log.log_end_offset(topic, partition)
            - committed.get((topic, partition), self._log.log_start_offset(topic, partition))
            for partition in self._partitions(topic)
        )

    def _partitions(self, topic: str) -> range:
        return range(len(self._log.describe_topic(topic).partitions))


# --- run ---------------------------------------------------------------------------------------------


FLIGHTS, DELAYS, GROUP = "flights", "delays", "demo-delays"
PARTITIONS = 4
RECORDS_PER_BATCH = 30_000
KILL_AFTER_BATCHES = 5
POLL_MS = 2
SLOW_POLL_MS = 100


def run(output: Path, root: Path | str | None, *, keep: bool, clock: Clock, reporter: Reporter) -> Figures:
    """Run the whole demo; raises SparklogError when anything is lost or duplicated."""
    workspace = prepare(output, root)
    figures = Figures()
    with reporter.step("Unpack the flights of 2013") as step:
        csv = dataset.unpack_flights(workspace.work)
        expected = dataset.read_flights(csv)
        figures.flights, figures.csv_bytes = expected.num_rows, csv.stat().st_size
        step.result = f"{figures.flights:,} rows"
    demo = Demo(workspace, figures, clock, reporter)
    demo.backfill(csv)
    demo.stream_until_killed()
    demo.stream_to_the_end()
    delays = demo.check(expected)
    with reporter.step("Draw the year") as step:
        plot.draw(delays, workspace.plot, flights=figures.flights)
        step.result = report.shown(workspace.plot)
    if not keep:
        workspace.remove_work()
    report.show(figures, workspace)
    if figures.problems:
        raise SparklogError(
            "DEMO_CHECK_FAILED",
            "; ".join(figures.problems),
            fix=f"keep {workspace.output} and report it: this must never happen",
        )
    return figures


class Demo:
    """The steps that involve Spark and the log."""

    def __init__(self, workspace: Workspace, figures: Figures, clock: Clock, reporter: Reporter) -> None:
        self._workspace = workspace
        self._figures = figures
        self._clock = clock
        self._reporter = reporter
        self._observer = Observer(workspace.location, workspace.checkpoint)

    def backfill(self, csv: Path) -> None:
        """All flights into the topic `flights`, in one commit."""
        self._observer.create_topic(FLIGHTS, PARTITIONS)
        self._observer.create_topic(DELAYS, 1)
        with self._reporter.step("Backfill topic flights with spark-submit") as step:
            started_ms = self._clock.monotonic_ms()
            job = self._start("backfill.py", str(csv), self._workspace.location)
            try:
                while job.running():
                    step.update(
                        self._observer.records(FLIGHTS),
                        "all will appear in one commit",
                    )
                    self._clock.sleep_ms(SLOW_POLL_MS)
            finally:
                job.kill()
            self._figures.backfill_s = (self._clock.monotonic_ms() - started_ms) / 1000
            records = self._observer.records(FLIGHTS)
            step.result = f"{records:,} records in {PARTITIONS} partitions"

    def stream_until_killed(self) -> None:
        """Start the query, and kill it between the log's commit and Spark's."""
        figures = self._figures
        with self._reporter.step("Stream to topic delays, to be killed", self._batches()) as step:
            job = self._start_stream()
            published = 0
            try:
                while job.running() and published < KILL_AFTER_BATCHES:
                    published = self._observer.published(DELAYS)
                    step.update(published, _stage(published))
                    self._clock.sleep_ms(POLL_MS)
            finally:
                figures.killed_processes = job.kill()
            figures.published_at_kill = self._observer.published(DELAYS)
            figures.noted_at_kill = self._observer.noted_by_spark()
            step.result = (
                f"SIGKILL to {figures.killed_processes} processes; the log has {figures.published_at_kill} "
                f"micro-batches, Spark noted {figures.noted_at_kill}"
            )

    def stream_to_the_end(self) -> None:
        """Start the same query again, from its checkpoint."""
        figures = self._figures
        with self._reporter.step("Stream again, from the checkpoint", self._batches()) as step:
            started_ms = self._clock.monotonic_ms()
            job = self._start_stream()
            try:
                while job.running():
                    published = self._observer.published(DELAYS)
                    step.update(published, _stage(published - figures.published_at_kill))
                    self._clock.sleep_ms(SLOW_POLL_MS // 5)
            finally:
                job.kill()
            figures.stream_s = (self._clock.monotonic_ms() - started_ms) / 1000
            figures.published_in_all = self._observer.published(DELAYS)
            step.result = f"{figures.published_in_all} micro-batches published in all"

    def check(self, expected: pa.Table) -> pa.Table:
        """Compare both topics with the CSV; returns the hourly delays that were streamed."""
        figures = self._figures
        with self._reporter.step("Compare both topics with the CSV") as step:
            flight_values, delay_values = self._observer.values(FLIGHTS), self._observer.values(DELAYS)
            figures.json_bytes = flight_values.nbytes + delay_values.nbytes
            flights = verify.parse_values(flight_values, dataset.ARROW_SCHEMA)
            figures.rows = verify.compare_rows(expected, flights)
            records = verify.parse_values(delay_values, verify.DELAYS_SCHEMA)
            delays = verify.add_up(records)
            figures.sums = verify.compare_rows(verify.hourly_delays(expected), delays)
            figures.delay_records = records.num_rows
            figures.log_bytes = bytes_below(self._workspace.location)
            figures.lag = self._observer.lag(GROUP, FLIGHTS)
            figures.problems = problems(figures)
            step.result = "; ".join(figures.problems) or "every flight once, every sum equal"
        return delays

    def _batches(self) -> int:
        return -(-self._figures.flights // RECORDS_PER_BATCH)

    def _start_stream(self) -> SparkJob:
        workspace = self._workspace
        return self._start(
            "hourly_delays.py", workspace.location, str(workspace.checkpoint), str(RECORDS_PER_BATCH)
        )

    def _start(self, script: str, *arguments: str) -> SparkJob:
        workspace = self._workspace
        log = workspace.logs / script.replace(".py", ".log")
        return SparkJob(script, arguments, log=log, cwd=workspace.work, clock=self._clock)


def _stage(published: int) -> str:
    return f"running, {published} published" if published else "Spark is starting"


def problems(figures: Figures) -> list[str]:
    """What is wrong; empty when everything is there exactly once."""
    found = []
    for name, difference in (("flights", figures.rows), ("delays", figures.sums)):
        if difference is None or not difference.equal:
            found.append(f"{name} differs from the CSV: {difference}")
    if figures.published_at_kill >= figures.published_in_all:
        found.append("the query was not killed in its middle")
    return found
