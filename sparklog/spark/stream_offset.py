"""The offset of a streaming query, as Spark keeps it in the checkpoint.

Shape: Kafka's, ``{"topic": {"0": 23, "1": 345}}``, and entries of our own under names that no topic
can have (``@`` is not legal in one), of the same shape, so that any reader of Kafka's offsets copes:

    "@root":            {"<cluster id>": 1}        which root this is; 1 is the version of this shape
    "@topics":          {"<topic>:<topic id>": 1}  a topic deleted and created again is another topic
    "@initial/<topic>": {"0": 20}                  only in the end of the query's first micro-batch
    "@kept/<topic>":    {"0": 20}                  of a topic that is no longer subscribed to (version 2)
    "@unresolved":      {}                         a start that could not be resolved; in no checkpoint

Why ``@initial``: Spark logs the end of a micro-batch before it runs it, but not the start of the
first one. When the query dies in its first micro-batch and comes back,
  1. Spark asks for the initial offset again; with startingOffsets=latest the log has grown since;
  2. it then plans the logged first batch from the new start to the old end;
  3. the records between the two starts would never be read.
Kafka's connector keeps a file in the checkpoint for this; a Python source is not told where that is.
So the end of the first micro-batch carries its start along.

Why ``@unresolved``: in step 1 the initial offset may be an error by now. Partitions were added that
startingOffsets does not name, or records expired. That must not matter, since step 2 has the start in
the planned end. It is not known in step 1 whether a micro-batch was planned. So the error waits for
the next call: an end is asked for only where none was planned.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparklog.errors import InvalidRequestError

VERSION = 2  # the newest that we know; written is the lowest that says it
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
        """Nothing has been read yet: the query stands where it started."""
        return self.initial is not None and self.initial == self.positions

    def to_json(self) -> dict[str, dict[str, int]]:
        """What Spark stores; keys in a fixed order, because Spark compares offsets as text."""
        document = _by_topic(self.positions)
        document["@root"] = {self.cluster_id: 2 if self.kept else 1}
        document["@topics"] = {f"{topic}:{topic_id}": 1 for topic, topic_id in sorted(self.topic_ids.items())}
        if self.initial is not None:
            initial = _by_topic(self.initial)
            document.update({f"@initial/{topic}": offsets for topic, offsets in initial.items()})
            if not initial:
                document["@initial/"] = {}  # nothing was there to read, which is not "not the first"
        document.update({f"@kept/{topic}": offsets for topic, offsets in _by_topic(self.kept).items()})
        if self.unresolved:
            document["@unresolved"] = {}
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Mapping[str, int]]) -> "StreamOffset":
        """Read what `to_json` wrote.

        Raises:
            InvalidRequestError: not such a document, or of a newer version.
        """
        try:
            ((cluster_id, version),) = document["@root"].items()
            if version not in range(1, VERSION + 1):
                raise InvalidRequestError(
                    "INVALID_STREAM_OFFSET",
                    f"the checkpoint's offset has version {version}, and this sparklog knows 1 to {VERSION}",
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
                f"the checkpoint holds {str(document)[:200]}, which is not an offset of sparklog",
                fix="use a checkpoint of its own for each query; one made by another source cannot serve",
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
