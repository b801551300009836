"""Progress for people: a live bar on a terminal, a line per event elsewhere.

Invariants: only one step is open at a time; a step that fails is left as it was, so that the error
that follows stands beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from sparklog.clock import Clock

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

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
            share = f" {step.done:,} of {step.total:,}" if step.total else ""
            self.line(f"  {step.title}:{share} {detail}".rstrip())

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
