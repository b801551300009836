"""The requests of others, as actions of our commit.

Invariants: each is applied whole, as its publisher would plan it against the image after the actions before
it; what does not apply, or is over, is left out, and its publisher finds out by itself.
Not here: when to publish for others, and who is waited for (combining.py).
Concurrency: made for one call of publish, which runs under the metadata log's lock.
Bounds: MAX_COMBINED requests and MAX_COMBINED_BYTES of what they say in one commit, where an extent counts
for EXTENT_BYTES at least, however little of the request it took. So much is read at a time, and what cannot
be applied is not kept.
Sources: FORMAT.md#metadata-log, requests; adr/0007.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from sparklog.metadata.model.actions import Action
from sparklog.metadata.model.apply import apply_actions
from sparklog.metadata.model.extents import count_extents
from sparklog.metadata.model.image import Image
from sparklog.metadata.model.publishers import can_settle
from sparklog.metadata.posted import Posted
from sparklog.metadata.requests import RequestBox, Ticket

_log = logging.getLogger(__name__)
Plan = Callable[[Image], Sequence[Action]]
MAX_COMBINED = 256
MAX_COMBINED_BYTES = 16 << 20
EXTENT_BYTES = 256  # of an extent in a commit that has too many for columns


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPlan:
    """A plan that other processes can carry out as well.

    Fields:
        payload: makes the JSON document from which anybody can plan the same.
        interpret: the plan that such a payload stands for; SparklogError if it cannot be understood.
        races: it is posted after so many lost races of one call, or one that was dear; a request takes longer
            than a race that is won, or lost at no cost. Or if others are seen to wait.
    """

    payload: Callable[[], bytes]
    interpret: Callable[[bytes], Plan]
    races: int = 1


@dataclass(slots=True, kw_only=True)
class _Request:
    posted: Posted
    payload: bytes
    plan: Plan | None = None  # once its turn has come: it may take far more memory than the payload


class OtherRequests:
    """What others ask for, read once each, and what of it was tried and did not apply."""

    def __init__(self, box: RequestBox, interpret: Callable[[bytes], Plan]) -> None:
        self._box = box
        self._interpret = interpret
        self._requests: dict[str, _Request | None] = {}  # by the name of the file
        self.passed_over: set[str] = set()  # likewise

    def actions(
        self, draft: Image, tickets: Sequence[Ticket], *, remembered: Collection[str]
    ) -> list[Action]:
        """What the requests of these tickets amount to, one after the other, from `draft` on.

        Args:
            remembered: the publishers that the commit finds, and ours. The draft may have forgotten some of
                them already; the commit does so after its last action.
        """
        commit = draft.commit  # drafts count on, and the commit is this one
        tickets = tickets[:MAX_COMBINED]
        remembered = set(remembered)
        actions: list[Action] = []
        size = 0
        for number, ticket in enumerate(tickets):
            if ticket.name not in self._requests:
                self._read(tickets[number:])
            known = self._requests[ticket.name]
            if known is None:
                continue
            if not known.posted.may_be_in(commit) or known.posted.is_settled(draft):
                continue
            if size + len(known.payload) > MAX_COMBINED_BYTES:
                break
            try:
                if known.plan is None:
                    known.plan = self._interpret(known.payload)
                wanted = tuple(known.plan(draft))
                if not wanted:
                    continue
                size += max(len(known.payload), EXTENT_BYTES * count_extents(wanted))
                if size > MAX_COMBINED_BYTES:
                    break
                if not can_settle(remembered, ticket.publisher):
                    self._leave(ticket)
                    continue
                marked = known.posted.marked(wanted)
                draft = image_after(draft, marked)
            except Exception as problem:  # noqa: BLE001 - whatever it is: its publisher finds out by itself
                _log.debug("leaving %s to its publisher: %s", ticket.name, problem)
                self._leave(ticket)
                continue
            actions += marked
            remembered.add(ticket.publisher)
        return actions

    def _leave(self, ticket: Ticket) -> None:
        """To its publisher, and keep nothing of it."""
        self.passed_over.add(ticket.name)
        self._requests[ticket.name] = None

    def _read(self, tickets: Sequence[Ticket]) -> None:
        """The first of these, and of the others as many as one commit takes."""
        unread: list[Ticket] = []
        size = 0
        for ticket in tickets:
            size += ticket.size
            if unread and size > MAX_COMBINED_BYTES:
                break
            if ticket.name not in self._requests:
                unread.append(ticket)
        for ticket, request in zip(unread, self._box.read(unread), strict=True):
            known = None
            if request is not None:
                known = _Request(posted=request.posted, payload=request.payload)
            self._requests[ticket.name] = known


def image_after(image: Image, actions: Sequence[Action]) -> Image:
    """The image with these actions in it, to plan more against; its UUID means nothing."""
    return apply_actions(image, actions, commit=image.commit + 1, commit_uuid="planned")
