"""Isolated topics: their segments are in a directory that no other topic uses.

    isolated/<topic>/segments/<writer id>/...    segments of writers, of this topic only
    isolated/<topic>/<topic>-<p>/...             merged and compacted segments

So a policy of the storage can name a topic: `isolated/orders/` is the prefix of all of its data and of no
other topic's. The slash ends the name: `isolated/orders` would include `isolated/orders-eu`. The directory
has the topic's name, as ACLs have, not its id: a topic of the same name that is created later has it too.

Invariants: an extent in `isolated/<topic>/` is of the topic with this name. Otherwise a principal that may
    read that topic's directory reads the records of another topic.
    A root with such an extent, or with the setting, needs the feature: older software would not know when
    these segments were created, and would merge them into shared ones.
Not here: the setting's declaration (log/config.py), names below the directory (retired.py,
    log/segment_file.py), choosing it (log/writer.py, maintenance/).
Concurrency: pure functions.
Sources: FORMAT.md#segments-and-extents; adr/0044.
"""

from collections.abc import Collection, Iterable

from sparklog.metadata.model.action import ActionBase, ActionRefusedError
from sparklog.metadata.model.draft import ImageDraft
from sparklog.metadata.model.extent_list import DraftExtent, Extent
from sparklog.metadata.model.image import Image
from sparklog.metadata.model.retired import ISOLATED
from sparklog.metadata.model.settings import RequireFeatures

FEATURE = "isolated-topics"
_ISOLATED = f"{ISOLATED}/"


def isolated_prefix(topic: str) -> str:
    """Return the prefix of the names of an isolated topic's segments."""
    return f"{_ISOLATED}{topic}/"


def is_isolated(name: str) -> bool:
    """True if the name of a segment, or its beginning, is below the directory of an isolated topic."""
    return name.startswith(_ISOLATED)


def has_isolated(segments: Iterable[str]) -> bool:
    """True if one of these segments is below the directory of an isolated topic."""
    return any(segment.startswith(_ISOLATED) for segment in segments)


def refuse_foreign(
    draft: ImageDraft, extents: Iterable[Extent | DraftExtent], segments: Collection[str]
) -> None:
    """Raise ActionRefusedError if an extent is in the directory of another topic.

    Whoever the storage lets read that topic would read these records, and whoever it lets write that topic
    could change them.

    Args:
        segments: those of the extents, which are few.
    """
    if not has_isolated(segments):
        return
    for extent in extents:
        if not is_isolated(extent.segment):
            continue
        name = draft.topic(extent.topic_id).name
        if not extent.segment.startswith(isolated_prefix(name)):
            raise ActionRefusedError(
                f"{extent.segment}: found records of topic {name!r}, expected those of the isolated topic "
                "only: its readers would read them"
            )


def plan_isolation(image: Image, actions: Iterable[ActionBase]) -> list[RequireFeatures]:
    """Require the feature before these actions, if they are the first that need it."""
    if FEATURE in image.reader_features and FEATURE in image.writer_features:
        return []
    if not any(action.isolates for action in actions):
        return []
    return [RequireFeatures(readers=(FEATURE,), writers=(FEATURE,))]
