"""The demo: a year of flights through the log, exactly once, while it is being killed.

1. A spark-submit batch job writes all flights of 2013 to the topic `flights`.
2. A streaming query adds the flights up by origin and hour, into the topic `delays`. It is killed
   the moment the log has published its fifth micro-batch, before Spark can note that down.
3. The same query starts again from its checkpoint. Spark runs the unnoted micro-batch again; the
   log knows it, by (query id, batch id), and does not publish it a second time.
4. Both topics are compared with the CSV, record by record.

Not here: what is compared (verify.py), and how it looks (report.py, plot.py).
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from sparklog.clock import Clock
from sparklog.demo import dataset, plot, report, verify
from sparklog.demo.figures import Figures
from sparklog.demo.observer import Observer
from sparklog.demo.processes import SparkJob
from sparklog.demo.progress import Reporter
from sparklog.demo.workspace import Workspace, bytes_below, prepare
from sparklog.errors import SparklogError

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
