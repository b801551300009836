"""The offset of a streaming query, as Spark stores it in the checkpoint.

Shape: Kafka's, ``{"topic": {"0": 23, "1": 345}}``, and our own entries of the same shape, under names that
are not legal for topics (with ``@``), so that readers of Kafka's offsets can parse it:

    "@root":            {"<cluster id>": 1}        the root; 1 is the version of this shape
    "@topics":          {"<topic>:<topic id>": 1}  a topic deleted and created again is another topic
    "@initial/<topic>": {"0": 20}                  only in the end of the query's first micro-batch
    "@kept/<topic>":    {"0": 20}                  of a topic that is no longer subscribed to (version 2)
    "@unresolved":      {}                         a start that could not be resolved; in no checkpoint

Why ``@initial``: Spark logs the end of a micro-batch before it runs it, but not the start of the
first one. When the query dies in its first micro-batch and is restarted,
  1. Spark asks for the initial offset again; with startingOffsets=latest the log has grown since;
  2. it then plans the logged first batch from the new start to the old end;
  3. the records between the two starts would never be read.
Kafka's connector keeps a file in the checkpoint for this; a Python source does not know the checkpoint's
location. So the end of the first micro-batch includes its start.

Why ``@unresolved``: in step 1 resolving the initial offset may fail by now, if partitions were added that
startingOffsets does not name, or records expired. The error must not fail the query, since step 2 has the
start in the planned end. Step 1 does not know whether a micro-batch was planned. So the next call raises the
error: Spark asks for an end only if none was planned.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sparklog.errors import InvalidRequestError
from sparklog.spark.values import invalid, parse_int, parse_json_object, parse_partition_map

# --- offset spec -------------------------------------------------------------------------------------
#
# The user's start and end of a query; ranges.py resolves them against a root.
#
# Precedence, from Kafka's connector: startingTimestamp over startingOffsetsByTimestamp over
# startingOffsets, and likewise for ending.


EARLIEST_OFFSET = -2
LATEST_OFFSET = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSpec:
    """The start or end of all partitions, a group's positions, or offsets or timestamps by partition.

    Offsets may be -2 (earliest) or -1 (latest); `by_topic` has these for all partitions of a topic.
    Timestamps are Unix milliseconds; `timestamp_ms` applies to all partitions that `by_partition` does not
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
    by_topic = _offset_spec_by_topic(name, text)
    # The other topics; the unchanged text if there are no whole topics.
    rest = {topic: value for topic, value in parse_json_object(name, text).items() if topic not in by_topic}
    offsets = parse_partition_map(name, json.dumps(rest) if by_topic else text)
    if any(value < EARLIEST_OFFSET for value in offsets.values()):
        raise invalid(name, text, "offsets from 0, -1 for latest, -2 for earliest")
    return OffsetSpec(kind="offsets", by_partition=offsets, by_topic=by_topic)


def _offset_spec_by_topic(name: str, text: str) -> dict[str, int]:
    """Return the topics with one offset for all of their partitions: earliest or latest."""
    named = {"earliest": EARLIEST_OFFSET, "latest": LATEST_OFFSET}
    found = {topic: value for topic, value in parse_json_object(name, text).items() if isinstance(value, str)}
    if any(value.lower() not in named for value in found.values()):
        raise invalid(name, text, "earliest or latest for a whole topic, or offsets by partition")
    return {topic: named[value.lower()] for topic, value in found.items()}


# --- stream offset -----------------------------------------------------------------------------------


VERSION = 2  # the newest supported version; `to_json` writes the lowest possible one
Positions = dict[tuple[str, int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """Positions by (topic, partition): the next offset to read of each."""

    cluster_id: str
    topic_ids: dict[str, str]
    positions: Positions
    initial: Positions | None = field(default=None)
    kept: Positions = field(default_factory=dict)
    unresolved: bool = field(default=False)

    @property
    def is_initial(self) -> bool:
        """True if nothing has been read yet: the query is at its start."""
        return self.initial is not None and self.initial == self.positions

    def to_json(self) -> dict[str, dict[str, int]]:
        """Return the document for Spark; keys in a fixed order, because Spark compares offsets as text."""
        document = _by_topic(self.positions)
        document["@root"] = {self.cluster_id: 2 if self.kept else 1}
        document["@topics"] = {f"{topic}:{topic_id}": 1 for topic, topic_id in sorted(self.topic_ids.items())}
        if self.initial is not None:
            initial = _by_topic(self.initial)
            document.update({f"@initial/{topic}": offsets for topic, offsets in initial.items()})
            if not initial:
                document["@initial/"] = {}  # no partitions at the start; not the same as no "@initial"
        document.update({f"@kept/{topic}": offsets for topic, offsets in _by_topic(self.kept).items()})
        if self.unresolved:
            document["@unresolved"] = {}
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Mapping[str, int]]) -> "StreamOffset":
        """Parse a document of `to_json`.

        Raises:
            InvalidRequestError: not such a document, or of a newer version.
        """
        try:
            ((cluster_id, version),) = document["@root"].items()
            if version not in range(1, VERSION + 1):
                raise InvalidRequestError(
                    "INVALID_STREAM_OFFSET",
                    f"the checkpoint's offset has version {version}, this sparklog supports 1 to {VERSION}",
                    fix="upgrade sparklog to the version that wrote the checkpoint",
                )
            positions: Positions = {}
            initial: Positions | None = None
            kept: Positions = {}
            for name, offsets in document.items():
                if name.startswith("@initial/"):
                    initial = {} if initial is None else initial
                    topic = name.removeprefix("@initial/")
                    initial.update({(topic, int(p)): int(offset) for p, offset in offsets.items()})
                elif name.startswith("@kept/"):
                    topic = name.removeprefix("@kept/")
                    kept.update({(topic, int(p)): int(offset) for p, offset in offsets.items()})
                elif not name.startswith("@"):
                    positions.update({(name, int(p)): int(offset) for p, offset in offsets.items()})
            topic_ids = dict(key.split(":", 1) for key in document.get("@topics", {}))
        except (KeyError, ValueError, TypeError, AttributeError):
            raise InvalidRequestError(
                "INVALID_STREAM_OFFSET",
                f"the checkpoint has {str(document)[:200]}, which is not an offset of sparklog",
                fix="use a separate checkpoint for each query; checkpoints of other sources cannot be reused",
            ) from None
        return cls(
            cluster_id=cluster_id,
            topic_ids=topic_ids,
            positions=positions,
            initial=initial,
            kept=kept,
            unresolved="@unresolved" in document,
        )


def _by_topic(positions: Positions) -> dict[str, dict[str, int]]:
    document: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(positions.items()):
        document.setdefault(topic, {})[str(partition)] = offset
    return document
