"""`topics create --replication-factor`: among how many brokers leading the new topic moves.

A topic that is made here gets the root's default of replicas from the controller, as soon as it sees it.
Another number is asked of the controller, as a reassignment: nothing is copied by either.
Not here: the default (default.replication.factor), which the controller knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparklog.cli.controller_answers import raise_failures
from sparklog.cli.notes import note
from sparklog.cli.reassignment_plans import propose
from sparklog.cli.settings import current
from sparklog.errors import InvalidRequestError

if TYPE_CHECKING:
    from sparklog.client import SparkLog
    from sparklog.metadata import Image


def validate_factor(image: Image, factor: int | None) -> bool:
    """Is there somebody to be asked for that many? A note, where there are no brokers.

    Raises:
        InvalidRequestError: INVALID_OPTION, more replicas than brokers.
    """
    if factor is None:
        return False
    if not image.brokers:
        if factor > 1:
            note(f"Note: --replication-factor {factor} has no effect: no brokers share this root.")
        return False
    running = _running(image)
    if factor > len(running):
        raise InvalidRequestError(
            "INVALID_OPTION",
            f"--replication-factor: found {factor}, expected at most {len(running)}, the brokers that run",
            fix="start more brokers, or ask for fewer replicas; records are as safe with one",
        )
    return True


def replicate(log: SparkLog, topic: str, factor: int) -> None:
    """Give a topic so many replicas, over brokers and racks."""
    image = log.refresh(force=True)
    wanted = propose(image, [topic], _running(image), factor, racks=True, start=image.commit)
    raise_failures(current().controller(log).reassign(wanted))
    log.refresh(force=True)


def _running(image: Image) -> list[int]:
    return [node_id for node_id, one in sorted(image.brokers.items()) if not one.is_fenced]
