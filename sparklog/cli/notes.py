"""What a command tells the user beside its result, on stderr.

Not here: results (output.py), errors that end a command (failures.py).
"""

import click


def note(message: str) -> None:
    """Tell the user something that is not a result."""
    click.echo(message, err=True)


def show_warnings() -> None:
    """From now on, what sparklog's modules warn of goes to stderr."""
    import logging

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            note(f"Warning: {record.getMessage()}.")

    logger = logging.getLogger("sparklog")
    if not any(type(one).__name__ == Notes.__name__ for one in logger.handlers):
        logger.addHandler(Notes(logging.WARNING))
