"""What maintenance cannot put off: internal topics of so many extents that groups stand still.

Whoever becomes the coordinator of a group reads all of its partition of `__consumer_offsets` first. On an
object store each extent is a request, of some 2 ms of a processor: 5,459 of them took 11 s on a quiet machine
and 107 s on one that had no time to spare, where maintenance at the lowest priority had none either.
Invariants: pure.
Not here: who does it at once (sparklog_server/maintenance/service.py).
"""

from sparklog.metadata import Image, is_internal

# Four times what makes a partition due: maintenance that is given any time at all never gets there, unless
# groups commit so often that an interval of it (log.cleaner.backoff.ms) is enough for as many.
MOST_EXTENTS = 1_024


def urgent_topics(image: Image) -> tuple[str, ...]:
    """The internal topics that have a partition of more than MOST_EXTENTS extents."""
    return tuple(
        name
        for name, topic in image.topics.items()
        if is_internal(name) and any(len(state.extents) > MOST_EXTENTS for state in topic.partitions)
    )
