"""The base of all actions: their form in a document, and the error of one that breaks a rule.

Invariants: an action names topics by id, so that it never applies to a later topic of the same name.
Format: each action is a JSON object with its name under "type"; fields with default values are left out.
Not here: the kinds of actions (their subjects' modules, actions.py); whether a refusal means a corrupt log or
a wrong call (log.py decides).
Sources: FORMAT.md#metadata-log.
"""

import base64
import re
import uuid
from collections.abc import Sequence
from itertools import repeat
from typing import Annotated

import msgspec

from sparklog.errors import InvalidRequestError

# --- numbers -----------------------------------------------------------------------------------------
#
# Bounds of the numbers in documents: JSON has none, but most software that reads them does.


Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
MAX_OFFSET = (1 << 63) - 1


# --- ids ---------------------------------------------------------------------------------------------
#
# Identifiers: 22 url-safe characters of 16 random bytes, as Kafka writes its UUIDs.
#
# Invariants: never starts with '-', so that it can be an argument on a command line.
# Sources: Kafka Uuid.randomUuid.


_PATTERN = re.compile(r"[A-Za-z0-9_-]{22}")


def new_id() -> str:
    """A fresh identifier for a cluster, a topic or a commit."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[:22]
        if not text.startswith("-"):
            return text


def is_id(text: str) -> bool:
    """True if `text` has the form of an identifier."""
    return _PATTERN.fullmatch(text) is not None


# --- action ------------------------------------------------------------------------------------------


class ActionBase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An element of a commit."""

    @property
    def frees_space(self) -> bool:
        """True if it, or its setting, leads to removed files: on a full disk it has a reserve."""
        return False

    @property
    def isolates(self) -> bool:
        """True if it isolates a topic, or refers to a segment of one (isolation.py)."""
        return False

    @property
    def extent_count(self) -> int:
        """How many extents it appends or stages."""
        return 0

    @property
    def replayed_extents(self) -> int:
        """The cost of applying it, in appended extents."""
        return self.extent_count


class ActionRefusedError(Exception):
    """An action does not apply to the image; the text has the action and the reason."""


def refuse(reason: str | None, where: str) -> None:
    """Raise ActionRefusedError if there is a reason."""
    if reason is not None:
        raise ActionRefusedError(f"{where}: {reason}")


def invalid_plan(problem: str) -> InvalidRequestError:
    """The error for a call whose arguments no action allows."""
    return InvalidRequestError("INVALID_ACTIONS", problem, fix="Fix the call; nothing was changed")


# --- columns -----------------------------------------------------------------------------------------
#
# Columns of numbers in an action: one number for each of its partitions, or one for all.
#
# Invariants: an expanded column has one number per partition. A document of 64 MiB cannot expand to more than
#     eight bytes per two of its own: the lengths are compared before anything is created.
# Not here: columns of extents (documents/extent_columns.py), where one number stands for 400 bytes.
# Sources: FORMAT.md#metadata-log; adr/0018.


Column = Int64 | tuple[Int64, ...]
MAX_PARTITIONS_OF_ACTION = 1 << 18


def column_of(numbers: Sequence[int]) -> Column:
    """Return one number if all are equal."""
    numbers = tuple(numbers)
    return numbers[0] if numbers and numbers.count(numbers[0]) == len(numbers) else numbers


def expanded(column: Column, count: int, name: str) -> Sequence[int]:
    """Return a number for each of `count`."""
    if isinstance(column, int):
        return tuple(repeat(column, count))
    if len(column) != count:
        raise ActionRefusedError(f"column {name}: {len(column)} numbers, expected {count}")
    return column


def partitions_of(topics: Sequence[str], topic: Column, partition: Sequence[int]) -> list[tuple[str, int]]:
    """Return (topic id, partition) of each; ActionRefusedError if one is named twice."""
    if not 1 <= len(partition) <= MAX_PARTITIONS_OF_ACTION:
        raise ActionRefusedError(f"{len(partition)} partitions, expected 1 to {MAX_PARTITIONS_OF_ACTION:,}")
    places = expanded(topic, len(partition), "topic")
    if min(places) < 0 or max(places) >= len(topics):
        raise ActionRefusedError(f"column topic: found an index outside {len(topics)} topics")
    found = [(topics[place], number) for place, number in zip(places, partition, strict=True)]
    if len(set(found)) != len(found):
        raise ActionRefusedError("a partition is named twice")
    return found


def named(partitions: Sequence[tuple[str, int]]) -> tuple[tuple[str, ...], Column, tuple[int, ...]]:
    """Return the columns `topics`, `topic` and `partition` of these."""
    places: dict[str, int] = {}
    topic = [places.setdefault(topic_id, len(places)) for topic_id, _ in partitions]
    return tuple(places), column_of(topic), tuple(number for _, number in partitions)
