"""Which requests an image has settled: at most once each, for as long as they can be applied at all.

A request names the commit that its publisher had seen when it posted it, its `base`. It may be applied in the
REQUEST_WINDOW commits after that, and in no later one: commit numbers, which nobody can stop or set back,
bound its life, and not clocks. So what an image has to remember is bounded as well:

    request r with base b is applied in commit c, b < c <= b + W; its publisher is remembered up to commit
    c + W, which is at or above b + W, after which nobody may apply r again.

Invariants:
    A request is applied in at most one commit, and in none above base + W; whoever has forgotten it could not
    apply it.
Not here: who posts and applies requests (combining.py), and what they ask for (client/publish.py).
Concurrency: pure; works on the dictionary that it is given, the least recent publisher first.
Sources: FORMAT.md#metadata-log, requests; adr/0007.
"""

from collections.abc import Collection

from sparklog.metadata.model.action import ActionBase, ActionRefusedError, refuse
from sparklog.metadata.model.draft import ImageDraft
from sparklog.metadata.model.ids import is_id
from sparklog.metadata.model.image import PublisherState
from sparklog.metadata.model.numbers import MAX_OFFSET, Int64

# Commits. Longer: a publisher that waits in a busy log need not post again; shorter: less to remember.
REQUEST_WINDOW = 4096
# No image remembers more; only commits that each apply dozens of new publishers' requests come near it. Then
# publishers that it does not know race until some are forgotten.
MAX_PUBLISHERS = 65_536


class RequestApplied(ActionBase, tag="request_applied", frozen=True, kw_only=True):
    """The `actions` actions that follow are what request `sequence` of `publisher` asked for.

    Sequences of a publisher only grow: what is applied, or passed over, can never be applied (again).
    Without actions it takes the sequence out of the world.
    `base` and `nonce` are the request's own: after which commit it was posted, and which of the requests of
    this number, should there be clones of its process.
    """

    publisher: str
    sequence: Int64
    nonce: str
    actions: Int64 = 0
    base: Int64 = -1


def why_illegal_request(request: RequestApplied) -> str | None:
    """Bounds of every field; whether the sequence is new is for `settle`."""
    if not is_id(request.publisher):
        return f"publisher {request.publisher!r} is malformed"
    if not 0 <= request.sequence <= MAX_OFFSET:
        return f"sequence {request.sequence}, expected 0 to {MAX_OFFSET}"
    if request.actions < 0:
        return f"{request.actions} actions, expected at least 0"
    if not is_id(request.nonce):
        return f"nonce {request.nonce!r} is malformed"
    if not -1 <= request.base < MAX_OFFSET:
        return f"base {request.base}, expected -1 to {MAX_OFFSET - 1}"
    return None


def settle_request(draft: ImageDraft, action: RequestApplied) -> None:
    """The effect: nobody can apply the request again."""
    refuse(why_illegal_request(action), "request")
    if action.actions > draft.actions_left:
        raise ActionRefusedError(f"{action.actions} actions of a request, found {draft.actions_left}")
    refusal = settle(draft.publishers, action, draft.commit)
    if refusal is not None:
        raise ActionRefusedError(refusal)


def last_commit_for(base: int) -> int:
    """The last commit that may apply a request with this base."""
    return base + REQUEST_WINDOW


def remembers_all_of(base: int, commit: int) -> bool:
    """Does an image after `commit` know of every request with this base, or a later one, that was applied?

    The first commit that can have applied one is base + 1.
    """
    return commit <= base + 1 + REQUEST_WINDOW


def can_settle(publishers: Collection[str], publisher: str) -> bool:
    """Is there room to remember a request of this publisher? Taking one back always finds room."""
    return len(publishers) < MAX_PUBLISHERS or publisher in publishers


def settle(publishers: dict[str, PublisherState], action: RequestApplied, commit: int) -> str | None:
    """Note that `commit` applies, or takes back, a request; returns why it may not, or None."""
    known = publishers.get(action.publisher)
    last = last_commit_for(action.base)
    if not action.base < commit <= last:
        return (
            f"request {action.sequence} of {action.publisher} in commit {commit}, expected one above "
            f"{action.base} and at most {last}"
        )
    if action.actions and not can_settle(publishers, action.publisher):
        return f"{len(publishers)} publishers are remembered already"
    if known is not None and action.sequence <= known.last_sequence:
        return f"request {action.sequence} of {action.publisher}, expected one above {known.last_sequence}"
    publishers.pop(action.publisher, None)  # to come back as the most recent
    publishers[action.publisher] = PublisherState(action.sequence, commit)
    return None


def forget(publishers: dict[str, PublisherState], commit: int) -> None:
    """After `commit`: forget those whose last request, and all before it, nobody may apply any more."""
    while publishers:
        publisher, state = next(iter(publishers.items()))
        if commit <= last_commit_for(state.commit):
            return
        del publishers[publisher]
