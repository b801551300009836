"""What a controller answered about partitions: as rows, and as how a command ends that could not do all.

Not here: the answers' bytes (sparklog/client/controller_requests.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sparklog.client.controller_requests import Answers

MAX_NAMED = 10
Document = dict[str, object]


def answer_rows(answers: Answers) -> list[Document]:
    """A row for each partition; `error` is null where it was done."""
    return [
        {
            "topic": topic,
            "partition": partition,
            "error": None if one.error_code == 0 else one.error,
            "message": one.message,
        }
        for (topic, partition), one in sorted(answers.partitions.items())
    ]


def raise_failures(answers: Answers, *, fine: Sequence[int] = (0,)) -> None:
    """End with what could not be done, if there is any."""
    if answers.whole.error_code not in fine:
        message = f": {answers.whole.message}" if answers.whole.message else ""
        raise click.ClickException(f"{answers.whole.error}{message}")
    failed = {key: one for key, one in sorted(answers.partitions.items()) if one.error_code not in fine}
    if failed:
        told = [
            f"{topic}-{partition}: {one.error}{f': {one.message}' if one.message else ''}"
            for (topic, partition), one in list(failed.items())[:MAX_NAMED]
        ]
        more = [f"and {len(failed) - MAX_NAMED:,} more"] if len(failed) > MAX_NAMED else []
        raise click.ClickException(
            f"{len(failed):,} of {len(answers.partitions):,} partitions: {'; '.join([*told, *more])}"
        )
