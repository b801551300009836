"""What a replace_extents action must keep to: the range that it names, and the order in it.

Not here: putting the extents in their place (apply.py).
"""

from sparklog.metadata.actions import ReplaceExtents
from sparklog.metadata.image import PartitionState
from sparklog.metadata.refusing import ActionRefusedError, refuse
from sparklog.metadata.validate import why_illegal_extent


def replaced_range(state: PartitionState, action: ReplaceExtents, where: str) -> tuple[int, int]:
    """Indexes [start, stop) of the extents that the action replaces, which must fill its range exactly."""
    start = state.extents.index_after(action.start_offset)
    stop = state.extents.index_from(action.end_offset)
    if stop - start != action.removed_count or action.removed_count < 1:
        raise ActionRefusedError(
            f"{where}: offsets {action.start_offset} to {action.end_offset} hold {stop - start} extents, "
            f"expected {action.removed_count}"
        )
    first, last = state.extents[start], state.extents[stop - 1]
    if first.base_offset < action.start_offset or last.end_offset > action.end_offset:
        raise ActionRefusedError(
            f"{where}: offsets {action.start_offset} to {action.end_offset} cut through extents that "
            f"cover {first.base_offset} to {last.end_offset}"
        )
    return start, stop


def refuse_unordered(action: ReplaceExtents, where: str) -> None:
    """Added extents are of the partition, legal, ascend, and lie within the range."""
    next_offset = action.start_offset
    for extent in action.added:
        if (extent.topic_id, extent.partition) != (action.topic_id, action.partition):
            raise ActionRefusedError(f"{where}: an added extent is of another partition")
        refuse(why_illegal_extent(extent), where)
        if not next_offset <= extent.base_offset < extent.end_offset <= action.end_offset:
            raise ActionRefusedError(
                f"{where}: added extent {extent.base_offset} to {extent.end_offset}, expected one within "
                f"{next_offset} to {action.end_offset}"
            )
        next_offset = extent.end_offset
