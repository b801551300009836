"""Topics that a query was reading and that are no longer in its subscription: they keep their positions.

Kafka's connector reports such a drop as data loss, and forgets the positions; should the topic come back, it
is read from its beginning. Here they stay in the query's offsets while the topic exists, so that it goes on
where it was left.

Invariants: a drop is reported once, with the micro-batch that leaves the topic out.
Not here: topics that were deleted (data_loss.py).
"""

from collections.abc import Collection
from dataclasses import dataclass

from sparklog.client import is_internal
from sparklog.metadata import Image
from sparklog.spark.stream_offset import Positions, StreamOffset

_NAMED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """Where a query stands, by what it subscribes to now.

    Fields:
        positions: of what it reads; also of what came back.
        kept: of what it does not read any more.
        dropped: those of `kept` that it has been reading until now.
    """

    positions: Positions
    kept: Positions
    dropped: Positions


def continue_with(
    start: StreamOffset, positions: Positions, subscribed: Collection[tuple[str, int]], image: Image
) -> Continued:
    """Sort the positions of `start`; `positions` are those of them whose topics still exist."""
    subscribed = set(subscribed)
    known = {**still_kept(start, image), **positions}
    kept = {tp: offset for tp, offset in known.items() if tp not in subscribed}
    return Continued(
        positions={tp: offset for tp, offset in known.items() if tp in subscribed},
        kept=kept,
        dropped={tp: offset for tp, offset in kept.items() if tp in positions},
    )


def still_kept(offset: StreamOffset, image: Image) -> Positions:
    """Positions of topics that were dropped before, and exist, as the same ones."""
    return {
        (topic, partition): position
        for (topic, partition), position in offset.kept.items()
        if topic in image.topics
        and image.topics[topic].topic_id == offset.topic_ids.get(topic)
        and partition < len(image.topics[topic].partitions)
    }


def drop_text(dropped: Positions, *, by_pattern: bool, restart: bool = False) -> str | None:
    """The loss to report; None if there is none. A pattern never meant internal topics.

    Args:
        restart: the micro-batch was planned without them, by a Spark that did not say where it starts.
    """
    lost = [
        f"{topic}-{partition} at offset {offset}"
        for (topic, partition), offset in sorted(dropped.items())
        if not (by_pattern and is_internal(topic))
    ]
    if not lost:
        return None
    names = ", ".join(lost[:_NAMED]) + (f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else "")
    if restart:
        return (
            f"{names}: not among the topics and partitions to read when this micro-batch was planned. What "
            "follows is not read, and if they are subscribed to again they are read from the beginning: a "
            "Spark before 4.2 does not let positions be kept. To go on where they were left, subscribe to "
            "them again, and remove this micro-batch before it has run: the newest file in the directory "
            "offsets of the checkpoint"
        )
    return (
        f"{names}: no longer among the topics and partitions to read, so what follows is not read. The "
        "positions are kept while the topic exists, in case it is subscribed to again"
    )
