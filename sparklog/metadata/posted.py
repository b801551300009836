"""A request of our own that is out: until when it may be applied, by which words, how we find out, and what
it was planned against, by which what was left out of it can be judged as it was there.

Invariants:
    - once posted, it counts as out until a commit has settled its sequence, or until none may any more;
    - it was applied only where a commit says so with its own nonce: clones of one process image (a virtual
      machine or a container that was resumed twice) use the same publisher and sequences.
Not here: what an image remembers of it (publishers.py), and what we do about it (combining.py).
After a crash of the poster it may still be applied, once, up to its window's end.
Sources: FORMAT.md#metadata-log, requests.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparklog.errors import SparklogError
from sparklog.metadata.loading import Commit, read_commits
from sparklog.metadata.model.actions import Action
from sparklog.metadata.model.apply import apply_actions
from sparklog.metadata.model.image import Image
from sparklog.metadata.model.publishers import RequestApplied, last_commit_for, remembers_all_of
from sparklog.storage import Store

_log = logging.getLogger(__name__)
MOST_TO_REPLAY = 256  # commits, to see what the image was that somebody else planned against


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """One request, by what it says of itself."""

    publisher: str
    sequence: int
    base: int
    nonce: str

    def marker(self, actions: int = 0) -> RequestApplied:
        """What goes before the actions that it asked for; without any, it takes the request back."""
        return RequestApplied(
            publisher=self.publisher,
            sequence=self.sequence,
            actions=actions,
            base=self.base,
            nonce=self.nonce,
        )

    def is_settled(self, image: Image) -> bool:
        """Can it be applied no more, since this sequence, or a later one, was?"""
        return image.has_settled(self.publisher, self.sequence)

    def is_void(self, image: Image) -> bool:
        """Can it be applied no more, since every commit to come is beyond its window?"""
        return image.commit >= last_commit_for(self.base)

    def may_be_in(self, commit: int) -> bool:
        """Is this commit in its window?"""
        return self.base < commit <= last_commit_for(self.base)

    def is_over(self, image: Image) -> bool:
        """Can nobody apply it any more?"""
        return self.is_settled(image) or self.is_void(image)

    def marked(self, actions: Sequence[Action]) -> list[Action]:
        """These actions, as what it asked for."""
        return [self.marker(len(actions)), *actions]

    def actions_in(self, actions: Sequence[Action]) -> tuple[Action, ...] | None:
        """What a commit with these actions did for it; None if it is not about this request."""
        for number, action in enumerate(actions):
            if isinstance(action, RequestApplied) and action.nonce == self.nonce:
                return tuple(actions[number + 1 : number + 1 + action.actions])
        return None

    def actions_before(self, actions: Sequence[Action]) -> tuple[Action, ...]:
        """What comes before it in a commit that is about it."""
        markers = [isinstance(one, RequestApplied) and one.nonce == self.nonce for one in actions]
        return tuple(actions[: markers.index(True)])


def find_outcome(
    store: Store, image: Image, request: Posted, followed: Iterable[Commit]
) -> tuple[int, tuple[Action, ...]] | None:
    """The commit that has settled the request, and what it did for it; None if no commit has, or ever will.

    For one that is settled or void in `image`.

    Args:
        followed: commits that need not be read again.

    Raises:
        NotFoundError: a commit that would tell was cleaned.
    """
    for header, actions in followed:
        found = request.actions_in(actions)
        if found is not None:
            return header.commit, found
    if not request.is_settled(image) and remembers_all_of(request.base, image.commit):
        return None
    state = image.publishers.get(request.publisher)
    last = min(image.commit, last_commit_for(request.base))
    likely = [state.commit] if state is not None and request.base < state.commit <= last else []
    for commits in (likely, range(request.base + 1, last + 1)):
        for header, actions in read_commits(store, commits, image.cluster_id):
            found = request.actions_in(actions)
            if found is not None:
                return header.commit, found
    return None


def image_before(
    store: Store, seen: Image, commit: int, request: Posted, followed: Sequence[Commit]
) -> Image | None:
    """The image that whoever applied the request in `commit` planned it against: after all that comes before
    its marker. None if it cannot be told: commits were cleaned, are too many, or cannot be read now.
    That must be no error, which a caller would take for the publish's own: what was asked for is published.

    Args:
        seen: an image in which the request was not settled yet.
        followed: commits that need not be read again.
    """
    if not 0 <= commit - seen.commit - 1 <= MOST_TO_REPLAY:
        return None
    known = {header.commit: (header, actions) for header, actions in followed}
    missing = [number for number in range(seen.commit + 1, commit + 1) if number not in known]
    try:
        for header, actions in read_commits(store, missing, seen.cluster_id):
            known[header.commit] = header, actions
    except SparklogError as error:
        _log.info("what commit %d was planned against cannot be told: %s", commit, error)
        return None
    image = seen
    for number in range(seen.commit + 1, commit):
        header, actions = known[number]
        image = apply_actions(image, actions, commit=number, commit_uuid=header.uuid)
    before = request.actions_before(known[commit][1])
    return apply_actions(image, before, commit=commit, commit_uuid="planned")
