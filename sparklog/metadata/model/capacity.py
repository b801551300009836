"""How many partitions a root may have: each is kept in memory by every reader, and in every snapshot.

A bound on what is planned, not on what a log may hold: roots with more are read as they are.

Invariants: a plan that passes does not take the root beyond its setting, `sparklog.max.partitions`.
Not here: what a topic alone may have (topics.py), or one request (sparklog_server/admin/changes.py).
Concurrency: pure functions.
"""

from collections.abc import Mapping

from sparklog.errors import InvalidRequestError
from sparklog.metadata.model.image import Image

MAX_PARTITIONS_KEY = "sparklog.max.partitions"  # a setting of the root; declared in log/root_config.py
DEFAULT_MAX_PARTITIONS = 200_000


def validate_room(image: Image, added: int) -> None:
    """Raise InvalidRequestError TOO_MANY_PARTITIONS if so many more would be too many."""
    present = image.partition_count
    limit = _limit(image.configs)
    if present + added > limit:
        raise InvalidRequestError(
            "TOO_MANY_PARTITIONS",
            f"root: found {present} partitions and {added} more to be made, expected at most {limit} in all",
            fix=f"Ask for fewer, delete topics, or raise {MAX_PARTITIONS_KEY} of the root",
        )


def _limit(configs: Mapping[str, str]) -> int:
    text = configs.get(MAX_PARTITIONS_KEY, "")
    return int(text) if text.isascii() and text.isdigit() else DEFAULT_MAX_PARTITIONS
