"""Requests: files in which a publisher asks others to publish for it.

    __cluster_metadata/requests/<publisher>.<sequence>.<posted_ms>.json      a document of kind "request"

A request is put by its publisher, read by the process that publishes for all (combining.py), and deleted by
its publisher once a commit has settled it. Its `payload` is the client's.

Invariants:
    - it is posted only after the bytes that it refers to are durable;
    - it names the commit after which it was posted, which bounds the commits that may apply it
      (model/writers.py). Its age bounds nothing: a put may land, and a process that has read it may wake up,
      long after that. But listings leave out requests older than MAX_AGE_MS by the storage's clock: no
      publisher waits for them.
Concurrency: no two processes write the same file.
After a crash: a request may still be applied until its window is over, like a put whose answer was lost; then
    it is garbage, and swept after a day.
Sources: FORMAT.md#metadata-log, requests; adr/0007.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from sparklog.clock import Clock
from sparklog.errors import CorruptLogError, SparklogError, StorageError, UnsupportedVersionError
from sparklog.metadata.documents.document import (
    VERSION,
    Header,
    RequestBody,
    decode_request,
    encode_document,
)
from sparklog.metadata.documents.properties import REQUESTS, request_name, request_of
from sparklog.metadata.loading import Commit, read_commits
from sparklog.metadata.model.action import is_id
from sparklog.metadata.model.actions import Action, apply_actions
from sparklog.metadata.model.image import Image
from sparklog.metadata.model.writers import RequestApplied, last_commit_for, remembers_all_of
from sparklog.storage import Store

# --- posted ------------------------------------------------------------------------------------------
#
# A posted request: which commits may apply it, how its outcome is found, and the image that it was planned
# against, which explains why parts of it were left out.
#
# Invariants:
#     - once posted, it is open until a commit has settled its sequence, or until no commit may any more;
#     - it was applied only where a commit has its nonce: clones of one process (a virtual machine or a
#       container that was resumed twice) use the same publisher and sequences.
# Not here: what an image remembers of it (model/writers.py), and waiting for it (combining.py).
# After a crash of the poster it may still be applied, once, until its window's end.
# Sources: FORMAT.md#metadata-log, requests.


MOST_TO_REPLAY = 256  # commits, to reconstruct the image that another process planned against


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """The identity of a request, and its base: the commit after which it was posted."""

    publisher: str
    sequence: int
    base: int
    nonce: str

    def marker(self, actions: int = 0) -> RequestApplied:
        """Return the action that precedes the request's actions; without any, it withdraws the request."""
        return RequestApplied(
            publisher=self.publisher,
            sequence=self.sequence,
            actions=actions,
            base=self.base,
            nonce=self.nonce,
        )

    def is_settled(self, image: Image) -> bool:
        """True if it cannot be applied any more because this sequence, or a later one, is settled."""
        return image.has_settled(self.publisher, self.sequence)

    def is_void(self, image: Image) -> bool:
        """True if it cannot be applied any more because the next commit is beyond its window."""
        return image.commit >= last_commit_for(self.base)

    def may_be_in(self, commit: int) -> bool:
        """True if this commit is in its window."""
        return self.base < commit <= last_commit_for(self.base)

    def is_over(self, image: Image) -> bool:
        """True if no process can apply it any more."""
        return self.is_settled(image) or self.is_void(image)

    def marked(self, actions: Sequence[Action]) -> list[Action]:
        """Return these actions as the request's, with its marker."""
        return [self.marker(len(actions)), *actions]

    def actions_in(self, actions: Sequence[Action]) -> tuple[Action, ...] | None:
        """Return the request's actions in a commit; None if the commit does not settle this request."""
        for number, action in enumerate(actions):
            if isinstance(action, RequestApplied) and action.nonce == self.nonce:
                return tuple(actions[number + 1 : number + 1 + action.actions])
        return None

    def actions_before(self, actions: Sequence[Action]) -> tuple[Action, ...]:
        """Return the actions before its marker in a commit that settles it."""
        markers = [isinstance(one, RequestApplied) and one.nonce == self.nonce for one in actions]
        return tuple(actions[: markers.index(True)])


def find_outcome(
    store: Store, image: Image, request: Posted, followed: Iterable[Commit]
) -> tuple[int, tuple[Action, ...]] | None:
    """Return the commit that settled the request, and the request's actions in it; None if no commit did.

    For a request that is settled or expired in `image`.

    Args:
        followed: commits that need not be read again.

    Raises:
        NotFoundError: a commit that would have to be read was cleaned.
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
    """Return the image that the request in `commit` was planned against: after all that precedes its marker.

    None if it cannot be reconstructed: commits were cleaned, are too many, or cannot be read now. That is no
    error, which a caller would take for a failure of the publish: the request is published.

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
        _log.info("cannot reconstruct the image that commit %d was planned against: %s", commit, error)
        return None
    image = seen
    for number in range(seen.commit + 1, commit):
        header, actions = known[number]
        image = apply_actions(image, actions, commit=number, commit_uuid=header.uuid)
    before = request.actions_before(known[commit][1])
    return apply_actions(image, before, commit=commit, commit_uuid="planned")


# --- requests ----------------------------------------------------------------------------------------


_log = logging.getLogger(__name__)
MAX_AGE_MS = 10 * 60_000
SWEEP_AGE_MS = 24 * 3_600_000
LIST_TIMEOUT_MS = 2_000  # a publish does not depend on the list: other publishers can publish by themselves
MAX_REQUEST_BYTES = 4 << 20  # a larger one is not posted: its publisher races


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A request as listed. The first in order is published by its own publisher."""

    created_ms: int  # by the store, which may know whole seconds only
    posted_ms: int  # by its publisher's clock, which may be wrong
    publisher: str
    sequence: int
    size: int

    @property
    def name(self) -> str:
        """The name of its file."""
        return request_name(self.publisher, self.sequence, self.posted_ms)

    @property
    def key(self) -> tuple[str, int]:
        """Its unique key."""
        return self.publisher, self.sequence

    @property
    def order(self) -> tuple[int, str, int]:
        """Sort key: the oldest first, the same for all processes. Within a second of the store, the
        publishers' clocks decide.
        """
        second_ms = self.created_ms // 1000 * 1000
        return min(max(self.posted_ms, second_ms), second_ms + 999), self.publisher, self.sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """A request as read from its file."""

    posted: Posted
    payload: bytes


class RequestBox:
    """The requests of one root, of one incarnation of it."""

    def __init__(self, store: Store, clock: Clock, cluster_id: str, incarnation_id: str = "") -> None:
        """`incarnation_id` is written into requests; those of other incarnations are ignored."""
        self._store = store
        self._clock = clock
        self._cluster_id = cluster_id
        self._incarnation_id = incarnation_id

    def encode(self, posted: Posted, payload: bytes) -> bytes:
        """Return the bytes of a request; `payload` is a JSON document."""
        header = Header(
            version=VERSION,
            kind="request",
            commit=posted.sequence,
            cluster_id=self._cluster_id,
            uuid=posted.publisher,
            previous="",
            timestamp_ms=self._clock.now_ms(),
            length=0,
        )
        body = RequestBody(
            base=posted.base,
            nonce=posted.nonce,
            incarnation=self._incarnation_id,
            publish=msgspec.Raw(payload),
        )
        return encode_document(header, body)

    def post(self, posted: Posted, data: bytes) -> str:
        """Put a request where others find it, and return its name."""
        name = request_name(posted.publisher, posted.sequence, self._clock.now_ms())
        self._store.put_hint(name, data)
        return name

    def waiting(self, image: Image) -> list[Ticket]:
        """Return the requests that may still be applied, in order. Costs a LIST, with a timeout."""
        oldest_ms = self._store.storage_now_ms(self._clock.now_ms()) - MAX_AGE_MS
        tickets = []
        for file in self._store.list(REQUESTS, within_ms=LIST_TIMEOUT_MS):
            found = request_of(file.name)
            if found is None or file.modified_ms < oldest_ms:
                continue
            publisher, sequence, posted_ms = found
            if not image.has_settled(publisher, sequence):
                tickets.append(
                    Ticket(
                        created_ms=file.modified_ms,
                        posted_ms=posted_ms,
                        publisher=publisher,
                        sequence=sequence,
                        size=file.size,
                    )
                )
        return sorted(tickets, key=lambda ticket: ticket.order)

    def read(self, tickets: Sequence[Ticket]) -> list[ReadRequest | None]:
        """Return the requests; None for one that is gone, damaged, or of another version."""
        names = [ticket.name for ticket in tickets]
        if not names:
            return []
        found = self._store.read_many(names, max_bytes=MAX_REQUEST_BYTES + 1)
        return [self._decoded(ticket, data) for ticket, data in zip(tickets, found, strict=True)]

    def delete(self, name: str) -> None:
        """Delete a settled request; a failure is harmless."""
        try:
            self._store.delete(name)
        except StorageError as error:
            _log.info("%s is left for the sweeper: %s", name, error)

    def sweep(self, *, dry_run: bool = False) -> int:
        """Delete requests that crashed publishers left behind; return how many (or would be, `dry_run`)."""
        limit_ms = self._store.storage_now_ms(self._clock.now_ms()) - SWEEP_AGE_MS
        old = [file.name for file in self._store.list(REQUESTS) if file.modified_ms < limit_ms]
        if not dry_run:
            self._store.delete_many(old)
        return len(old)

    def _decoded(self, ticket: Ticket, data: bytes | None) -> ReadRequest | None:
        if data is None or len(data) > MAX_REQUEST_BYTES:
            return None
        where = f"{self._store.url}/{ticket.name}"
        try:
            header, body = decode_request(
                data, where=where, sequence=ticket.sequence, cluster_id=self._cluster_id
            )
        except UnsupportedVersionError as error:
            _log.info("ignoring a request: %s", error)
            return None
        except CorruptLogError as error:
            _log.warning("ignoring a request: %s", error)
            return None
        if header.uuid != ticket.publisher or not is_id(body.nonce):
            return None
        if body.incarnation != self._incarnation_id:
            _log.warning("ignoring %s: it is of another incarnation of the root", where)
            return None
        posted = Posted(
            publisher=ticket.publisher, sequence=ticket.sequence, base=body.base, nonce=body.nonce
        )
        return ReadRequest(posted=posted, payload=bytes(body.publish))


def newest_of_each(tickets: Sequence[Ticket]) -> list[Ticket]:
    """Return the newest request of each publisher, in order: a later one replaces the earlier ones."""
    newest: dict[str, int] = {}
    for ticket in tickets:
        newest[ticket.publisher] = max(ticket.sequence, newest.get(ticket.publisher, 0))
    return [ticket for ticket in tickets if ticket.sequence == newest[ticket.publisher]]
