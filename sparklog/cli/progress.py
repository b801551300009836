"""A bar on a terminal's stderr for work that takes long; elsewhere nothing."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from sparklog.cli.notes import is_terminal


@contextlib.contextmanager
def byte_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Takes (bytes done, bytes in all)."""
    if not is_terminal(sys.stderr):
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(title), BarColumn(bar_width=30), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
