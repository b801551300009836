"""`--watch`: a list or description again and again, until a signal ends it.

On a terminal each pass replaces the one before. Elsewhere passes follow one another, so that a file or a pipe
gets all of them.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable

import click

from sparklog.cli.framework import is_terminal
from sparklog.cli.inputs import until_signalled

CLEAR = "\x1b[H\x1b[2J"


class _Screen(io.StringIO):
    """Collects what a pass prints for a terminal, so that the screen is never empty."""

    def isatty(self) -> bool:
        return True


def watch(ctx: click.Context, show: Callable[[], object], seconds: float) -> None:
    """Call `show` now, and after each pause of so many seconds, until SIGINT or SIGTERM."""
    title = f"{ctx.command_path}, every {seconds:g} s. Ctrl-C ends it."
    with until_signalled() as stop:
        while not stop.is_asked():
            if is_terminal(sys.stdout):
                with contextlib.redirect_stdout(_Screen()) as screen:
                    show()
                sys.stdout.write(f"{CLEAR}{title}\n\n{screen.getvalue()}")
            else:
                show()
            sys.stdout.flush()
            stop.wait(seconds)
