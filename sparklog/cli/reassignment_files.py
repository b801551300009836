"""Kafka's JSON of partitions: who is to have which replicas, which topics are to move, who is to be elected.

    {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2]}]}
    {"version": 1, "topics": [{"topic": "orders"}]}

Invariants: whatever a file says, either its fields, or InvalidRequestError INVALID_PARTITION_FILE; what is
    read is bounded.
Not here: what is done with it (reassign.py, elect.py); whether it can be done, which the controller decides.
Sources: Kafka's ReassignPartitionsCommand, LeaderElectionCommand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import IO

from sparklog.errors import InvalidRequestError

MAX_FILE_BYTES = 64 << 20
_VERSION = 1
_ANY = "any"
TopicPartition = tuple[str, int]
_MARK = "\ufeff"  # with which editors on Windows begin


def reassignment_document(replicas: Mapping[TopicPartition, Sequence[int]]) -> dict[str, object]:
    """Kafka's document, from which `read_reassignments` makes the same again."""
    return {
        "version": _VERSION,
        "partitions": [
            {"topic": topic, "partition": partition, "replicas": list(listed)}
            for (topic, partition), listed in replicas.items()
        ],
    }


def read_reassignments(file: IO[str]) -> dict[TopicPartition, tuple[int, ...]]:
    """The replicas of each partition that is named."""
    found: dict[TopicPartition, tuple[int, ...]] = {}
    for where, entry in _entries(file, "partitions"):
        key = _partition(where, entry)
        replicas = entry.get("replicas")
        if not isinstance(replicas, list) or not replicas or not all(_is_node_id(one) for one in replicas):
            raise _invalid(f"{where}: found replicas {replicas!r}, expected a list of node ids")
        if len(set(replicas)) != len(replicas):
            raise _invalid(f"{where}: found a broker twice in {replicas}, expected each once")
        directories = entry.get("log_dirs") or []
        if not isinstance(directories, list) or any(one != _ANY for one in directories):
            raise _invalid(f'{where}: found log_dirs, expected none or "any": brokers share one root')
        if key in found:
            raise _invalid(f"{where}: found {key[0]}-{key[1]} again, expected each partition once")
        found[key] = tuple(replicas)
    return found


def read_partitions(file: IO[str]) -> list[TopicPartition]:
    """The partitions that are named, each once."""
    return list(dict.fromkeys(_partition(where, entry) for where, entry in _entries(file, "partitions")))


def read_topics(file: IO[str]) -> list[str]:
    """The topics that are named, each once."""
    return list(dict.fromkeys(_topic(where, entry) for where, entry in _entries(file, "topics")))


def _entries(file: IO[str], field: str) -> Iterable[tuple[str, dict[str, object]]]:
    try:
        text = file.read(MAX_FILE_BYTES + 1)
    except UnicodeDecodeError as error:
        raise _invalid(f"{file.name}: is no UTF-8: {error.reason} at byte {error.start}") from None
    if len(text) > MAX_FILE_BYTES:
        raise _invalid(f"{file.name}: more than {MAX_FILE_BYTES:,} characters")
    try:
        document = json.loads(text.removeprefix(_MARK))
    except (ValueError, RecursionError) as error:
        raise _invalid(f"{file.name}: is no JSON: {error}") from None
    listed = document.get(field) if isinstance(document, dict) else None
    if not isinstance(listed, list) or not listed:
        raise _invalid(f"{file.name}: found no list of {field}")
    if document.get("version", _VERSION) != _VERSION:
        raise _invalid(f"{file.name}: found version {document['version']!r}, expected {_VERSION}")
    found = []
    for number, entry in enumerate(listed):
        where = f"{file.name}, {field}[{number}]"
        if not isinstance(entry, dict):
            raise _invalid(f"{where}: expected an object")
        found.append((where, entry))
    return found


def _partition(where: str, entry: dict[str, object]) -> TopicPartition:
    number = entry.get("partition")
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 31:
        raise _invalid(f"{where}: found partition {number!r}, expected a number from 0 on")
    return _topic(where, entry), number


def _topic(where: str, entry: dict[str, object]) -> str:
    topic = entry.get("topic")
    if not isinstance(topic, str) or not topic:
        raise _invalid(f"{where}: found topic {topic!r}, expected a name")
    return topic


def _is_node_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


def _invalid(problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        "INVALID_PARTITION_FILE",
        problem,
        fix='write {"version": 1, "partitions": [{"topic": T, "partition": 0, "replicas": [1, 2]}]}, as '
        "`sparklog partitions reassign --generate` does",
    )
