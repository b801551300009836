"""What a command tells the user beside its result, on stderr.

Invariants: telling never raises. A command's work is not given up, midway and maybe half counted, because
nobody reads stderr any more.
Not here: results (output.py), errors that end a command (failures.py).
"""

import os
from typing import IO, Any

import click

from sparklog.cli.plain_text import plain

_MEANT = "\n\r\t"  # in messages of ours; others' words in them are made plain where they are put in


def note(message: str, *, end: str = "\n") -> None:
    """Tell the user something that is not a result, if there is somebody to be told."""
    try:
        click.echo(f"{plain(message, keep=_MEANT)}{end}", err=True, nl=False)
    except BrokenPipeError:
        # Python flushes stderr once more on its way out, and its exit code would be that of a failure.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    except (OSError, ValueError):  # such as a terminal that is gone; a stream that is closed
        pass


def is_terminal(stream: IO[Any] | None) -> bool:
    """Does a person sit there? Python has no stream where the descriptor is closed."""
    return stream is not None and stream.isatty()


def show_warnings() -> None:
    """From now on, what sparklog's modules warn of goes to stderr."""
    import logging

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            note(f"Warning: {plain(record.getMessage())}.")

    logger = logging.getLogger("sparklog")
    if not any(type(one).__name__ == Notes.__name__ for one in logger.handlers):
        logger.addHandler(Notes(logging.WARNING))
