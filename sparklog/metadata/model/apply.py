"""Applying commits to an image: the one way by which it changes, live and in replay.

Invariants: either all actions of a commit apply, or the image stays as it was, and ActionRefusedError says
why. Everything is checked against the image, also what a plan has checked: a commit that does not apply
means that the log, or the code that wrote it, is wrong.
Not here: what an action does (the effects in its subject's module; actions.py has the table); whether a
refusal means a corrupt log or a wrong call (log.py decides).
Concurrency: a builder belongs to one thread; the images it takes and gives are immutable.
"""

from collections.abc import Mapping, Sequence

from sparklog.metadata.model import publishers
from sparklog.metadata.model.action import ActionRefusedError
from sparklog.metadata.model.actions import EFFECTS, OF_THE_CLUSTER, Action
from sparklog.metadata.model.draft import ImageDraft
from sparklog.metadata.model.image import NOT_REPLAYED, Image, Replayed


def apply_actions(image: Image, actions: Sequence[Action], *, commit: int, commit_uuid: str) -> Image:
    """The image after one more commit."""
    builder = ImageBuilder(image)
    builder.apply(actions, commit=commit, commit_uuid=commit_uuid)
    return builder.image()


class ImageBuilder:
    """Applies any number of commits; what they share is copied once, when it is first changed.

    After a refusal the builder is of no more use.
    """

    def __init__(self, image: Image) -> None:
        self._draft = ImageDraft(image)
        self._commit_uuid = image.commit_uuid

    def apply(
        self, actions: Sequence[Action], *, commit: int, commit_uuid: str, timestamp_ms: int = 0
    ) -> None:
        """Apply one commit, the next one; `timestamp_ms`: when it was made, as it says."""
        draft = self._draft
        if commit != draft.commit + 1:
            raise ActionRefusedError(f"commit {commit} does not follow commit {draft.commit}")
        draft.commit = commit
        for number, action in enumerate(actions):
            draft.actions_left = len(actions) - number - 1
            try:
                EFFECTS[type(action)](draft, action)
            except ActionRefusedError as error:
                kind = action.__struct_config__.tag
                raise ActionRefusedError(f"action {number} ({kind}): {error}") from None
            if type(action) in OF_THE_CLUSTER:
                draft.cluster_changed = commit
            if draft.acting is not None and draft.acting.until == draft.actions_left:
                draft.acting.end()
                draft.acting = None
        self._commit_uuid = commit_uuid
        draft.newest_ms = max(draft.newest_ms, timestamp_ms)
        publishers.forget(draft.publishers, commit)

    @property
    def configs(self) -> Mapping[str, str]:
        """The root's settings, as of what has been applied so far."""
        return self._draft.configs

    def image(self, replayed: Replayed = NOT_REPLAYED) -> Image:
        """The image after everything applied; it takes over the builder's state, so call this last."""
        draft = self._draft
        return draft.image(commit=draft.commit, commit_uuid=self._commit_uuid, replayed=replayed)
