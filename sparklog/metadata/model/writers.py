"""Writer transactions (writer_txn), which make repeated writes idempotent; publishers and their requests
(request_applied).

Invariants: in a topic the versions of an application only grow.
Not here: the choice of applications and versions (client/publish.py, spark/).
Sources: FORMAT.md#metadata-log.
"""

from collections.abc import Collection, Sequence

import msgspec

from sparklog.errors import InvalidRequestError, why_not_utf8
from sparklog.metadata.model.action import (
    MAX_OFFSET,
    ActionBase,
    ActionRefusedError,
    Int64,
    invalid_plan,
    is_id,
    refuse,
)
from sparklog.metadata.model.draft import ImageDraft
from sparklog.metadata.model.image import Image, PublisherState, WriterTxnState

# --- publishers --------------------------------------------------------------------------------------
#
# The requests that an image has settled, for as long as they could be applied.
#
# A request names the newest commit that its publisher had seen when it posted it, its `base`. It may be
# applied in the REQUEST_WINDOW commits after that, and in no later one: commit numbers bound its life,
# which cannot be stopped or set back, and not by clocks. So the memory of an image is bounded, too:
#
#     request r with base b is applied in commit c, b < c <= b + W; its publisher is remembered up to commit
#     c + W, which is at or above b + W, after which r cannot be applied again.
#
# Invariants: a request is applied in at most one commit, and in none above base + W; an image that has
#     forgotten it does not apply it.
# Not here: posting and applying requests (combining.py), and their payloads (client/publish.py).
# Concurrency: pure; works on the dictionary that it is given, the least recent publisher first.
# Sources: FORMAT.md#metadata-log, requests; adr/0007.


# Commits. Longer: a publisher that waits in a busy log need not post again; shorter: less to remember.
REQUEST_WINDOW = 4096
# The bound of an image; only commits that each apply dozens of new publishers' requests come near it. Then
# unknown publishers race until some are forgotten.
MAX_PUBLISHERS = 65_536


class RequestApplied(ActionBase, tag="request_applied", frozen=True, kw_only=True):
    """The `actions` actions that follow are those of request `sequence` of `publisher`.

    Sequences of a publisher only grow: a sequence that was applied, or skipped, cannot be applied again.
    Without actions it withdraws the request.
    `base` and `nonce` are the request's: the commit after which it was posted, and an id that tells the
    requests of clones of its process apart.
    """

    publisher: str
    sequence: Int64
    nonce: str
    actions: Int64 = 0
    base: Int64 = -1


def why_illegal_request(request: RequestApplied) -> str | None:
    """Return why a field is out of bounds, or None; `settle` checks whether the sequence is new."""
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
    """Apply: the request cannot be applied again."""
    refuse(why_illegal_request(action), "request")
    if action.actions > draft.actions_left:
        raise ActionRefusedError(f"{action.actions} actions of a request, found {draft.actions_left}")
    refusal = settle(draft.publishers, action, draft.commit)
    if refusal is not None:
        raise ActionRefusedError(refusal)


def last_commit_for(base: int) -> int:
    """Return the last commit that may apply a request with this base."""
    return base + REQUEST_WINDOW


def remembers_all_of(base: int, commit: int) -> bool:
    """True if an image after `commit` knows every applied request with this base, or a later one.

    The first commit that can have applied one is base + 1.
    """
    return commit <= base + 1 + REQUEST_WINDOW


def can_settle(publishers: Collection[str], publisher: str) -> bool:
    """True if there is room to remember a request of this publisher. Withdrawing one always finds room."""
    return len(publishers) < MAX_PUBLISHERS or publisher in publishers


def settle(publishers: dict[str, PublisherState], action: RequestApplied, commit: int) -> str | None:
    """Record that `commit` applies, or withdraws, a request; return why it may not, or None."""
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
    """Forget the publishers none of whose requests can be applied after `commit`."""
    while publishers:
        publisher, state = next(iter(publishers.items()))
        if commit <= last_commit_for(state.commit):
            return
        del publishers[publisher]


# --- writers -----------------------------------------------------------------------------------------


MAX_APPLICATION_LENGTH = 1024
MAX_CONTENT_LENGTH = 128
# Applications that a topic remembers. Users choose their names: one that uses a new name for each write must
# not fill the image.
MAX_WRITER_TXNS = 10_000


class WriterTxn(ActionBase, tag="writer_txn", frozen=True, kw_only=True):
    """The commit is `version` of `application` in `topics`; there, versions of an application only grow.

    `content` is a digest, by which a repeated version with other content is detected; "" if unknown.
    """

    application: str
    version: Int64
    topics: tuple[str, ...]
    content: str = ""


# --- rules -------------------------------------------------------------------------------------------


def why_illegal_writer_txn(txn: WriterTxn) -> str | None:
    """Return why a field is out of bounds, or None; the effect checks whether the topics exist."""
    if not 1 <= len(txn.application) <= MAX_APPLICATION_LENGTH:
        return (
            f"application name of {len(txn.application)} characters, expected 1 to {MAX_APPLICATION_LENGTH}"
        )
    for name, text in (("application name", txn.application), ("content", txn.content)):
        if (wrong := why_not_utf8(text)) is not None:
            return f"{name} {wrong}"
    if not 0 <= txn.version <= MAX_OFFSET:
        return f"version {txn.version}, expected 0 to {MAX_OFFSET}"
    if len(txn.content) > MAX_CONTENT_LENGTH:
        return f"content of {len(txn.content)} characters, expected at most {MAX_CONTENT_LENGTH}"
    if not txn.topics or len(set(txn.topics)) < len(txn.topics):
        return f"{len(txn.topics)} topics, expected at least one, and each once"
    return None


# --- effect ------------------------------------------------------------------------------------------


def note_writer_txn(draft: ImageDraft, action: WriterTxn) -> None:
    """Apply: each topic remembers the version; beyond the bound the least recent application is evicted."""
    refuse(why_illegal_writer_txn(action), "writer transaction")
    for topic_id in action.topics:
        topic = draft.topic(topic_id)
        found = topic.writer_txns.get(action.application)
        if found is not None and action.version <= found.version:
            raise ActionRefusedError(
                f"version {action.version} of {action.application!r} in topic {topic.name!r}, expected one "
                f"above {found.version}"
            )
        _note(
            topic.changing_writer_txns(),
            action.application,
            WriterTxnState(action.version, draft.commit, action.content),
        )


def _note(writer_txns: dict[str, WriterTxnState], application: str, state: WriterTxnState) -> None:
    writer_txns.pop(application, None)  # to come back as the most recent
    writer_txns[application] = state
    if len(writer_txns) > MAX_WRITER_TXNS:
        del writer_txns[next(iter(writer_txns))]


# --- plan --------------------------------------------------------------------------------------------


def plan_writer_txn(
    image: Image, application: str, version: int, topic_ids: Sequence[str], *, content: str = ""
) -> WriterTxn | None:
    """Return the action that marks `version` as applied to the topics that do not have it, or a later one.

    Args:
        topic_ids: may include topics that are created in the same commit.
        content: a digest of the version's content, if known.

    Returns:
        None when no topic is left.

    Raises:
        InvalidRequestError: TXN_CONTENT_DIFFERS, a topic has the same version with other content;
            VERSION_OUTDATED, one has a later version, and another does not have this one.
    """
    action = WriterTxn(
        application=application, version=version, topics=tuple(dict.fromkeys(topic_ids)), content=content
    )
    reason = why_illegal_writer_txn(action)
    if reason is not None:
        raise invalid_plan(reason)
    left = []
    later: tuple[str, WriterTxnState] | None = None
    for topic_id in action.topics:
        found = image.applied(application, version, topic_id)
        if found is None:
            left.append(topic_id)
        elif found.version > version:
            later = topic_id, found
        elif content and found.content and content != found.content:
            raise _other_content(image, action, topic_id, found)
    if left and later is not None:
        raise _outdated(image, action, *later, left[0])
    return msgspec.structs.replace(action, topics=tuple(left)) if left else None


def _other_content(
    image: Image, action: WriterTxn, topic_id: str, found: WriterTxnState
) -> InvalidRequestError:
    return InvalidRequestError(
        "TXN_CONTENT_DIFFERS",
        f"topic {image.topic_by_id[topic_id].name!r}: commit {found.commit} has version {action.version} of "
        f"{action.application!r} with other content ({found.content}, expected {action.content})",
        fix="Find out why the same version has other content, such as a restored or copied checkpoint; "
        "nothing was changed. If the content is new, write it as another application or version",
    )


def _outdated(
    image: Image, action: WriterTxn, later_id: str, later: WriterTxnState, left_id: str
) -> InvalidRequestError:
    """The error for a version that one topic is past and another lacks.

    A writer goes on only when all topics have a version. So another writer, with other boundaries between
    versions, wrote the later one, which may hold part of this version for the second topic.
    """
    left = image.topic_by_id.get(left_id)
    return InvalidRequestError(
        "VERSION_OUTDATED",
        f"topic {image.topic_by_id[later_id].name!r}: commit {later.commit} has version {later.version} of "
        f"{action.application!r}, and {'a new topic' if left is None else f'topic {left.name!r}'} does not "
        f"have version {action.version}, which is to be written to both: some of it may be there under a "
        "later version",
        fix="find out whether an older checkpoint was put back, or another writer uses this application; "
        "nothing was changed. What a topic really lacks can be written to that topic alone",
    )
