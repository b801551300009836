"""Columns of numbers in an action: one for each of its partitions, or one number that all of them have.

Invariants: what is expanded has as many numbers as there are partitions. A document of 64 MiB cannot make
    more than eight bytes of each two: nothing is made of a number before their count is compared.
Not here: columns of extents (documents/extent_columns.py), of which one number stands for 400 bytes.
Sources: FORMAT.md#metadata-log; adr/0018.
"""

from collections.abc import Sequence
from itertools import repeat

from sparklog.metadata.model.action import ActionRefusedError
from sparklog.metadata.model.numbers import Int64

Column = Int64 | tuple[Int64, ...]
MAX_PARTITIONS_OF_ACTION = 1 << 18


def column_of(numbers: Sequence[int]) -> Column:
    """One number where all are the same."""
    numbers = tuple(numbers)
    return numbers[0] if numbers and numbers.count(numbers[0]) == len(numbers) else numbers


def expanded(column: Column, count: int, name: str) -> Sequence[int]:
    """A number for each of `count`."""
    if isinstance(column, int):
        return tuple(repeat(column, count))
    if len(column) != count:
        raise ActionRefusedError(f"column {name}: {len(column)} numbers, expected {count}")
    return column


def partitions_of(topics: Sequence[str], topic: Column, partition: Sequence[int]) -> list[tuple[str, int]]:
    """(topic id, partition) of each; ActionRefusedError unless each is named once."""
    if not 1 <= len(partition) <= MAX_PARTITIONS_OF_ACTION:
        raise ActionRefusedError(f"{len(partition)} partitions, expected 1 to {MAX_PARTITIONS_OF_ACTION:,}")
    places = expanded(topic, len(partition), "topic")
    if min(places) < 0 or max(places) >= len(topics):
        raise ActionRefusedError(f"column topic: found a place outside {len(topics)} topics")
    found = [(topics[place], number) for place, number in zip(places, partition, strict=True)]
    if len(set(found)) != len(found):
        raise ActionRefusedError("a partition is named twice")
    return found


def named(partitions: Sequence[tuple[str, int]]) -> tuple[tuple[str, ...], Column, tuple[int, ...]]:
    """The columns `topics`, `topic` and `partition` that name these."""
    places: dict[str, int] = {}
    topic = [places.setdefault(topic_id, len(places)) for topic_id, _ in partitions]
    return tuple(places), column_of(topic), tuple(number for _, number in partitions)
