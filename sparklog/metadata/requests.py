"""Requests: what a publisher asks others to publish for it, under a name of its own.

    __cluster_metadata/requests/<publisher>.<sequence>.<posted_ms>.json      a document of kind "request"

A request is put by its publisher, read by whoever publishes for all (combining.py), and deleted by its
publisher once a commit has settled it. What it asks for is for the client to say (`payload`).

Invariants:
    - it is posted only after the bytes that it refers to are durable;
    - it says after which commit it was posted, which bounds the commits that may apply it (model/writers.py).
      Its age bounds nothing: a put may land, and a process that has read it may wake up, long after that.
      But who looks leaves out what is older than MAX_AGE_MS by the storage's clock: nobody waits for it.
Concurrency: none of these files is ever written by two processes.
After a crash: a request may still be applied until its window is over, as a put whose answer was lost; then
    it is rubbish, and swept after a day.
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
# A request of our own that is out: until when it may be applied, by which words, how we find out, and what
# it was planned against, by which what was left out of it can be judged as it was there.
#
# Invariants:
#     - once posted, it counts as out until a commit has settled its sequence, or until none may any more;
#     - it was applied only where a commit says so with its own nonce: clones of one process image (a virtual
#       machine or a container that was resumed twice) use the same publisher and sequences.
# Not here: what an image remembers of it (model/writers.py), and what we do about it (combining.py).
# After a crash of the poster it may still be applied, once, up to its window's end.
# Sources: FORMAT.md#metadata-log, requests.


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


# --- requests ----------------------------------------------------------------------------------------


_log = logging.getLogger(__name__)
MAX_AGE_MS = 10 * 60_000
SWEEP_AGE_MS = 24 * 3_600_000
LOOK_MS = 2_000  # who waits may publish by itself: nobody's publish has to know of it
MAX_REQUEST_BYTES = 4 << 20  # a larger one is not posted: its publisher does it alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A request as a listing shows it. The first in order is published by its own publisher."""

    created_ms: int  # by the store, which may know whole seconds only
    posted_ms: int  # by its publisher's clock, which may be wrong
    publisher: str
    sequence: int
    size: int

    @property
    def name(self) -> str:
        """Its file."""
        return request_name(self.publisher, self.sequence, self.posted_ms)

    @property
    def key(self) -> tuple[str, int]:
        """What makes it unique."""
        return self.publisher, self.sequence

    @property
    def order(self) -> tuple[int, str, int]:
        """The oldest first; the same for everybody. Within the store's second, publishers' clocks decide."""
        second_ms = self.created_ms // 1000 * 1000
        return min(max(self.posted_ms, second_ms), second_ms + 999), self.publisher, self.sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """A request as its file says."""

    posted: Posted
    payload: bytes


class RequestBox:
    """The requests of one root, of one incarnation of it."""

    def __init__(self, store: Store, clock: Clock, cluster_id: str, incarnation_id: str = "") -> None:
        """`incarnation_id`: requests of others are passed over, and what is posted says which it is of."""
        self._store = store
        self._clock = clock
        self._cluster_id = cluster_id
        self._incarnation_id = incarnation_id

    def encode(self, posted: Posted, payload: bytes) -> bytes:
        """The bytes of a request; `payload` is a JSON document."""
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
        """Put a request where others find it; returns its name."""
        name = request_name(posted.publisher, posted.sequence, self._clock.now_ms())
        self._store.put_hint(name, data)
        return name

    def waiting(self, image: Image) -> list[Ticket]:
        """Requests that may still be applied, in order. Costs a LIST, and LOOK_MS if that is not answered."""
        oldest_ms = self._store.storage_now_ms(self._clock.now_ms()) - MAX_AGE_MS
        tickets = []
        for file in self._store.list(REQUESTS, within_ms=LOOK_MS):
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
        """The requests; None for one that is gone, damaged, or of another version than ours."""
        names = [ticket.name for ticket in tickets]
        if not names:
            return []
        found = self._store.read_many(names, max_bytes=MAX_REQUEST_BYTES + 1)
        return [self._decoded(ticket, data) for ticket, data in zip(tickets, found, strict=True)]

    def delete(self, name: str) -> None:
        """Take a settled request away; a failure is harmless."""
        try:
            self._store.delete(name)
        except StorageError as error:
            _log.info("%s is left for the sweeper: %s", name, error)

    def sweep(self, *, dry_run: bool = False) -> int:
        """Delete what crashed publishers have left; returns how many, or how many it would."""
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
            _log.info("passing over a request: %s", error)
            return None
        except CorruptLogError as error:
            _log.warning("passing over a request: %s", error)
            return None
        if header.uuid != ticket.publisher or not is_id(body.nonce):
            return None
        if body.incarnation != self._incarnation_id:
            _log.warning("passing over %s: it is of another incarnation of the root", where)
            return None
        posted = Posted(
            publisher=ticket.publisher, sequence=ticket.sequence, base=body.base, nonce=body.nonce
        )
        return ReadRequest(posted=posted, payload=bytes(body.publish))


def newest_of_each(tickets: Sequence[Ticket]) -> list[Ticket]:
    """Without the requests whose publishers have posted later ones, and so have given them up; in order."""
    newest: dict[str, int] = {}
    for ticket in tickets:
        newest[ticket.publisher] = max(ticket.sequence, newest.get(ticket.publisher, 0))
    return [ticket for ticket in tickets if ticket.sequence == newest[ticket.publisher]]
