"""Where a query starts and ends, as the user said it; resolved against a root by resolve.py.

Precedence, from Kafka's connector: startingTimestamp over startingOffsetsByTimestamp over
startingOffsets, and likewise for ending.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sparklog.errors import InvalidRequestError
from sparklog.spark.values import invalid, parse_int, parse_json_object, parse_partition_map

EARLIEST_OFFSET = -2
LATEST_OFFSET = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSpec:
    """One of: everything's start or end, a group's position, offsets or timestamps by partition.

    Offsets may be -2 (earliest) or -1 (latest); `by_topic` has these for all partitions of a topic.
    Timestamps are Unix milliseconds; `timestamp_ms` holds for all partitions that `by_partition` does not
    name.
    """

    kind: Literal["earliest", "latest", "group", "offsets", "timestamps"]
    by_partition: dict[tuple[str, int], int] = field(default_factory=dict)
    by_topic: dict[str, int] = field(default_factory=dict)
    timestamp_ms: int | None = None
    no_match_is_latest: bool = False


EARLIEST = OffsetSpec(kind="earliest")
LATEST = OffsetSpec(kind="latest")
GROUP = OffsetSpec(kind="group")


def parse_starting(given: Mapping[str, str], *, default: OffsetSpec, streaming: bool) -> OffsetSpec:
    """Read startingTimestamp, startingOffsetsByTimestamp, startingOffsets, in that order."""
    strategy = given.get("startingoffsetsbytimestampstrategy", "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise invalid("startingOffsetsByTimestampStrategy", strategy, "error or latest")
    spec = _parse(given, "starting", default, no_match_is_latest=strategy == "latest")
    if not streaming and (spec.kind == "latest" or LATEST_OFFSET in _offsets(spec)):
        raise InvalidRequestError(
            "INVALID_OPTION",
            "startingOffsets can't be latest in a batch query: there would be nothing to read",
            fix="use earliest, offsets, or a timestamp",
        )
    return spec


def parse_ending(given: Mapping[str, str], *, default: OffsetSpec) -> OffsetSpec:
    """Read endingTimestamp, endingOffsetsByTimestamp, endingOffsets, in that order."""
    spec = _parse(given, "ending", default, no_match_is_latest=True)
    if spec.kind == "earliest" or EARLIEST_OFFSET in _offsets(spec):
        raise InvalidRequestError(
            "INVALID_OPTION",
            "endingOffsets can't be earliest: there would be nothing to read",
            fix="use latest, offsets, or a timestamp",
        )
    return spec


def _offsets(spec: OffsetSpec) -> set[int]:
    return {*spec.by_partition.values(), *spec.by_topic.values()} if spec.kind == "offsets" else set()


def _parse(
    given: Mapping[str, str], side: str, default: OffsetSpec, *, no_match_is_latest: bool
) -> OffsetSpec:
    timestamp_ms = parse_int(given, f"{side}Timestamp", minimum=0, unit="milliseconds since 1970-01-01 UTC")
    if timestamp_ms is not None:
        return OffsetSpec(kind="timestamps", timestamp_ms=timestamp_ms, no_match_is_latest=no_match_is_latest)
    by_timestamp = given.get(f"{side}offsetsbytimestamp")
    if by_timestamp is not None:
        name = f"{side}OffsetsByTimestamp"
        timestamps = parse_partition_map(name, by_timestamp)
        if any(value < 0 for value in timestamps.values()):
            raise invalid(name, by_timestamp, "timestamps in milliseconds, not negative")
        return OffsetSpec(kind="timestamps", by_partition=timestamps, no_match_is_latest=no_match_is_latest)
    text = given.get(f"{side}offsets", "").strip()
    named = {"": default, "earliest": EARLIEST, "latest": LATEST, "group": GROUP}.get(text.lower())
    if named is not None:
        return named
    name = f"{side}Offsets"
    if not text.startswith("{"):
        raise invalid(name, text, "earliest, latest, group, or JSON of offsets")
    by_topic = _by_topic(name, text)
    # The rest; as it was written, where it is all of it.
    rest = {topic: value for topic, value in parse_json_object(name, text).items() if topic not in by_topic}
    offsets = parse_partition_map(name, json.dumps(rest) if by_topic else text)
    if any(value < EARLIEST_OFFSET for value in offsets.values()):
        raise invalid(name, text, "offsets from 0, -1 for latest, -2 for earliest")
    return OffsetSpec(kind="offsets", by_partition=offsets, by_topic=by_topic)


def _by_topic(name: str, text: str) -> dict[str, int]:
    """The topics that have one offset for all of their partitions: earliest or latest."""
    named = {"earliest": EARLIEST_OFFSET, "latest": LATEST_OFFSET}
    found = {topic: value for topic, value in parse_json_object(name, text).items() if isinstance(value, str)}
    if any(value.lower() not in named for value in found.values()):
        raise invalid(name, text, "earliest or latest for a whole topic, or offsets by partition")
    return {topic: named[value.lower()] for topic, value in found.items()}
