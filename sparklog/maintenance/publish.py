"""Replacements become part of the log: one commit for those of a work.

Invariants: a replacement is published only if the extents that it removes are there as they were, field for
    field, in the image that the commit is planned against; if not, it is left out, and nothing is changed for
    it. Nor if it took so long that what it made may have been swept, or if those before it in the commit
    leave no room for the producers that it would merge. Appends beside it do not matter.
Not here: making them (merge.py).
Concurrency: any thread and process; the metadata log orders them.
After a crash: the commit is there or not. If not, the new segments are files that nothing refers to.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sparklog.failpoints import failpoint
from sparklog.metadata import Action, Image, MetadataLog, ReplaceExtents, plan_replacements


@dataclass(frozen=True, slots=True)
class Published:
    """What came of replacements: those that were published, and how many were left out."""

    actions: tuple[ReplaceExtents, ...]
    left_out: int


def publish_replacements(metadata: MetadataLog, replacements: Sequence[ReplaceExtents]) -> Published:
    """Publish what still applies.

    Raises:
        RetriableError: PUBLISH_CONTENDED. StorageError: nothing was published, or PUBLISH_UNRESOLVED.
        FatalStorageError: it is not known whether it was; to do the work again does no harm.
    """

    def plan(image: Image) -> list[Action]:
        return [*plan_replacements(image, replacements)]

    failpoint("merge.publishing")
    result = metadata.publish(plan)
    actions = tuple(action for action in result.actions if isinstance(action, ReplaceExtents))
    return Published(actions, len(replacements) - len(actions))


def replacement_applies(image: Image, action: ReplaceExtents) -> bool:
    """Is everything that it removes in the image as it was?"""
    return bool(plan_replacements(image, [action]))
