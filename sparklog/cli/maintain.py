"""`sparklog maintain`: do what is due of all maintenance, once, or again and again (`--watch`).

SIGTERM and SIGINT end it between two pieces of work, or within one: nothing is lost, and it exits with 0. A
second one ends it at once.
Not here: what is due, and doing it (sparklog/maintenance).
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from sparklog.cli.durations import METAVAR, parse_duration
from sparklog.cli.group import OnceCommand
from sparklog.cli.maintenance_words import chosen_topics, min_input_files_option, topics_argument
from sparklog.cli.notes import note
from sparklog.cli.output import Column, human_bytes, show_json, show_rows, tell
from sparklog.cli.plain_text import json_text
from sparklog.cli.progress import byte_bar
from sparklog.cli.settings import common_options, current
from sparklog.cli.stopping import Stop

if TYPE_CHECKING:
    from sparklog.client import SparkLog
    from sparklog.maintenance import Budget, RoundReport, Terms

COLUMNS = (
    Column("step", "STEP"),
    Column("outcome", "OUTCOME"),
    Column("figures", "FIGURES"),
)


@click.command("maintain", cls=OnceCommand)
@topics_argument
@click.option("--watch", is_flag=True, help="Go on: a round now, and one after each interval.")
@click.option(
    "--interval",
    "interval_ms",
    callback=parse_duration,
    metavar=METAVAR,
    default="5m",
    show_default=True,
    help="Between rounds, with --watch.",
)
@click.option("--dry-run", is_flag=True, help="Only show what is due.")
@click.option(
    "--max-bytes-per-second",
    "rate",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Rest so that no more is read and written, together; default: no limit.",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Begin nothing after so much was rewritten in a round.",
)
@click.option(
    "--max-time",
    "max_time_ms",
    callback=parse_duration,
    metavar=METAVAR,
    help="Begin nothing after so long in a round.",
)
@min_input_files_option(256, "Merge where there are so many extents of about one size.")
@common_options
def maintain(
    topics: tuple[str, ...],
    watch: bool,
    interval_ms: int,
    dry_run: bool,
    rate: int | None,
    max_bytes: int | None,
    max_time_ms: int | None,
    fan_in: int,
) -> None:
    """Do what is due for TOPICs, or for all: expire, compact, optimize; and once a day vacuum.

    Where nobody serves a root, and no stream writes to it that does this by itself, run it with --watch, or
    from cron. One process of a machine does it at a time.
    """
    from sparklog.maintenance import ROUND, Budget, MergeLimits, Terms, alone
    from sparklog.maintenance.budget import FILES_PER_SECOND

    if watch and not interval_ms:
        raise click.UsageError("--interval must be longer than nothing, or it would look all the time.")
    if watch and dry_run:
        raise click.UsageError("--watch and --dry-run exclude each other.")
    log = current().open_log()
    chosen = chosen_topics(log, topics)
    terms = Terms(topics=chosen, limits=MergeLimits(fan_in=fan_in))
    seconds = None if max_time_ms is None else max_time_ms / 1000
    budget = Budget(
        seconds=seconds, max_bytes=max_bytes, bytes_per_second=rate, files_per_second=FILES_PER_SECOND
    )
    with _until_signalled() as stop:
        if dry_run:
            _show(_round(log, terms, budget, stop, dry_run=True), dry_run=True)
            return
        with alone(log.metadata, ROUND):
            if watch:
                _watch(log, terms, budget, stop, interval_ms / 1000)
                return
            report = _round(log, terms, budget, stop)
    _note(log, report)
    _show(report, dry_run=False)
    if report.has_failed:
        click.get_current_context().exit(1)


def _round(log: SparkLog, terms: Terms, budget: Budget, stop: Stop, *, dry_run: bool = False) -> RoundReport:
    from sparklog.maintenance import maintain as run_round

    def rest(ms: float) -> None:
        stop.wait(ms / 1000)

    with byte_bar("rewriting") as show:
        return run_round(
            log.metadata,
            log.clock,
            terms,
            budget=budget,
            dry_run=dry_run,
            is_stopped=stop.is_asked,
            rest_ms=rest,
            progress=lambda progress: show(progress.done_bytes, progress.total_bytes),
        )


def _watch(log: SparkLog, terms: Terms, budget: Budget, stop: Stop, interval_seconds: float) -> None:
    """Round after round; what fails is told once, until something else does."""
    from sparklog.errors import CorruptLogError, FatalStorageError, SparklogError, UnknownTopicError

    told = ""
    while not stop.is_asked():
        try:
            report = _round(log, _without_uncleanable(log, terms), budget, stop)
        except (FatalStorageError, CorruptLogError, UnknownTopicError):
            raise
        except (SparklogError, OSError) as error:
            problem = str(error)
        else:
            _note(log, report)
            problem = "\n".join(one.message for one in report.steps if one.message)
            if current().json:
                tell(json_text(_document(report)))
            elif report.has_done_anything:
                tell(_line(report))
        if problem and problem != told:
            note(problem)
        told = problem
        stop.wait(interval_seconds)


def _note(log: SparkLog, report: RoundReport) -> None:
    """Remember on this machine which partitions cannot be read."""
    from sparklog.client.round_pace import found_uncleanable
    from sparklog.client.round_process import RoundAnswer
    from sparklog.client.round_state import RoundStates

    now_ms = log.clock.now_ms()
    RoundStates(log.url, log.cluster_id, patience=log.clock).change(
        lambda state: found_uncleanable(state, RoundAnswer(report=report), now_ms)
    )


def _without_uncleanable(log: SparkLog, terms: Terms) -> Terms:
    """But what was found so within the last hour: the others are not to wait for it."""
    import dataclasses

    from sparklog.client.round_state import RoundStates
    from sparklog.maintenance import keys_of, still_remembered

    states = RoundStates(log.url, log.cluster_id, patience=log.clock)
    known = still_remembered(states.read().uncleanable, log.clock.now_ms())
    return dataclasses.replace(terms, but=keys_of(known))


@contextlib.contextmanager
def _until_signalled() -> Iterator[Stop]:
    """What SIGTERM and SIGINT ask to stop; the next one finds what was there before."""
    with contextlib.closing(Stop()) as stop:
        if threading.current_thread() is not threading.main_thread():
            yield stop  # only the main thread may take signals
            return

        def ask(_number: int, _frame: object) -> None:
            stop.ask()
            restore()

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            for number in before:  # known by now: the first may come before the last is taken
                signal.signal(number, ask)
            yield stop
        finally:
            restore()


def _document(report: RoundReport, *, dry_run: bool = False) -> dict[str, object]:
    import dataclasses

    return {"dry_run": dry_run, **dataclasses.asdict(report)}


def _line(report: RoundReport) -> str:
    """A round in which something was done, in one line."""
    done = "; ".join(
        f"{one.step}: {_figures(one.figures)}" for one in report.steps if one.outcome in {"done", "cut"}
    )
    before, after = report.before, report.after
    return (
        f"{done}; {before.extents} -> {after.extents} extents, {human_bytes(before.bytes)} -> "
        f"{human_bytes(after.bytes)}, in {report.duration_ms / 1000:.1f} s"
    )


def _show(report: RoundReport, *, dry_run: bool) -> None:
    if current().json:
        show_json(_document(report, dry_run=dry_run))
        return
    rows = [
        {"step": one.step, "outcome": one.outcome, "figures": _figures(one.figures)}
        for one in report.steps
        if one.outcome != "nothing"
    ]
    if rows:
        show_rows(COLUMNS, rows)
    else:
        tell("Nothing is due.")
    if report.has_done_anything:
        tell(
            f"Extents: {report.before.extents} -> {report.after.extents}",
            f"Bytes: {human_bytes(report.before.bytes)} -> {human_bytes(report.after.bytes)}",
        )
    for one in report.steps:
        if one.message:
            note(one.message)
    if report.is_stopped:
        note("Stopped; the rest is due again with the next run.")


def _figures(figures: object) -> str:
    assert isinstance(figures, dict)
    told = {
        name: human_bytes(value) if name.endswith("bytes") else value
        for name, value in figures.items()
        if value
    }
    return ", ".join(f"{name}={value}" for name, value in told.items()) or "-"
