"""Replacing extents as objects, as tests have them at hand."""

from collections.abc import Sequence

from sparklog.metadata import Extent, Image, ReplaceExtents, plan_replace_extents, replacement
from sparklog.metadata.model.extent_list import columns_of


def plan_replacing(image: Image, removed: Sequence[Extent], added: Sequence[Extent]) -> ReplaceExtents:
    """Put `added` in the place of `removed`, extents of one partition of the image."""
    topic_id, partition = (removed[0].topic_id, removed[0].partition) if removed else ("", 0)
    action = replacement(columns_of(removed), added, topic_id=topic_id, partition=partition)
    return plan_replace_extents(image, action)
