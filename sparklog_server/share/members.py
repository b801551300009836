"""The members of a share group, and the partitions that they are to fetch.

Several members may have the same partition: the partition's leader decides who gets which record. So a change
needs no revocation, and a member's epoch only says which assignment it knows.

Invariants: an epoch is one higher with each change of members, subscriptions or topics; each partition of a
    topic that anybody subscribes to has a member; members and their subscriptions have bounds.
Not here: which broker coordinates (coordinator.py), records (service.py).
Concurrency: pure; the coordinator owns it.
After a crash: members are not stored. They get UNKNOWN_MEMBER_ID, and join again; their locks stay.
Sources: KIP-932; Kafka ShareGroup, SimpleAssignor, GroupMetadataManager.shareGroupHeartbeat.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sparklog_server.protocol.apis import ErrorCode

LEAVE_EPOCH: Final = -1
JOIN_EPOCH: Final = 0
MAX_TOPICS: Final = 1_000  # that a member subscribes to
MAX_RACK_CHARACTERS: Final = 255
_MEMBER_BYTES: Final = 600

Assignment = Mapping[str, Sequence[int]]  # topic id -> partitions


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics that there are.

    Fields:
        version: of another number they may differ.
        find: from a name to topic id and number of partitions; None: there is no such topic.
    """

    version: int
    find: Callable[[str], tuple[str, int] | None]


@dataclass(slots=True, kw_only=True, eq=False)
class ShareMember:
    """One member; `previous_epoch`: of an answer before the last one, which may have been lost."""

    member_id: str
    client_id: str
    client_host: str
    rack: str | None = None
    topics: tuple[str, ...] = ()
    epoch: int = JOIN_EPOCH
    previous_epoch: int = JOIN_EPOCH
    deadline_ms: float = 0
    assignment: Assignment = field(default_factory=dict)

    @property
    def held_bytes(self) -> int:
        """Return about what it takes in memory."""
        texts = len(self.member_id) + len(self.client_id)
        return _MEMBER_BYTES + texts + sum(map(len, self.topics))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareHeartbeat:
    """A request; `topics` None: as before."""

    member_id: str
    epoch: int
    client_id: str
    client_host: str
    rack: str | None = None
    topics: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareHeartbeatResult:
    """The answer; `assignment` None: as before."""

    error: ErrorCode = ErrorCode.none
    message: str | None = None
    epoch: int = 0
    assignment: Assignment | None = None


class ShareGroup:
    """See the module's docstring."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.assignment_epoch = 0
        self.held_bytes = 0  # about what the members take in memory
        self._members: dict[str, ShareMember] = {}
        self._wanted: frozenset[str] | None = None  # None: subscriptions have changed
        self._found: dict[str, tuple[str, int]] = {}
        self._version: int | None = None  # of the topics at that time

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ShareMember]:
        return iter(self._members.values())

    def heartbeat(
        self, request: ShareHeartbeat, topics: Topics, *, now_ms: float, session_ms: int, max_size: int
    ) -> ShareHeartbeatResult:
        """Answer a member.

        Args:
            topics: all that there are.
        """
        known = self._members.get(request.member_id)
        if request.epoch == LEAVE_EPOCH:
            return self._leave(known)
        refusal = self._refusal(request, known, max_size)
        if refusal is not None:
            return refusal
        member = known or ShareMember(
            member_id=request.member_id, client_id=request.client_id, client_host=request.client_host
        )
        subscribed = member.topics if request.topics is None else tuple(sorted(set(request.topics)))
        if known is None or subscribed != member.topics:
            self.held_bytes -= 0 if known is None else member.held_bytes
            self._members[member.member_id] = member
            member.topics = subscribed
            self.held_bytes += member.held_bytes
            self._change()
        member.rack = member.rack if request.rack is None else request.rack[:MAX_RACK_CHARACTERS]
        member.deadline_ms = now_ms + session_ms
        self.follow(topics)
        self._assign()
        is_full = request.epoch == JOIN_EPOCH or request.topics is not None
        is_changed = member.epoch != self.epoch
        if is_changed:
            member.previous_epoch, member.epoch = member.epoch, self.epoch
        is_lost = request.epoch != member.epoch  # the answer with this epoch, or it is this one
        return ShareHeartbeatResult(
            epoch=member.epoch, assignment=member.assignment if is_full or is_changed or is_lost else None
        )

    def follow(self, topics: Topics) -> None:
        """Take the topics that there are: another partition, or a topic that is new or gone, is a change."""
        if self._wanted is not None and self._version == topics.version:
            return
        self._version = topics.version
        if self._wanted is None:
            self._wanted = frozenset(name for one in self for name in one.topics)
        found = {name: one for name in self._wanted if (one := topics.find(name)) is not None}
        if found != self._found:
            self._found = found
            self.epoch += 1

    def expire(self, now_ms: float) -> list[str]:
        """Remove members whose session is over; return their ids."""
        gone = [one.member_id for one in self if one.deadline_ms <= now_ms]
        for member_id in gone:
            self._remove(self._members[member_id])
        return gone

    def assigned(self) -> list[ShareMember]:
        """Return the members, with their assignments as of the group's epoch."""
        self._assign()
        return list(self)

    def _leave(self, known: ShareMember | None) -> ShareHeartbeatResult:
        if known is None:
            return _refused(ErrorCode.unknown_member_id, "no such member")
        self._remove(known)
        return ShareHeartbeatResult(epoch=LEAVE_EPOCH)

    def _remove(self, member: ShareMember) -> None:
        del self._members[member.member_id]
        self.held_bytes -= member.held_bytes
        self._change()

    def _change(self) -> None:
        self.epoch += 1
        self._wanted = None

    def _refusal(
        self, request: ShareHeartbeat, known: ShareMember | None, max_size: int
    ) -> ShareHeartbeatResult | None:
        if request.epoch < LEAVE_EPOCH:
            return _refused(ErrorCode.invalid_request, f"MemberEpoch is {request.epoch}")
        if request.topics is not None and len(request.topics) > MAX_TOPICS:
            return _refused(ErrorCode.invalid_request, f"more than {MAX_TOPICS} topics")
        if request.epoch == JOIN_EPOCH:
            if not request.topics:
                return _refused(
                    ErrorCode.invalid_request, "SubscribedTopicNames must be set in first request."
                )
            if known is None and len(self) >= max_size:
                return _refused(ErrorCode.group_max_size_reached, f"the group has {max_size} members")
            return None
        if known is None:
            return _refused(ErrorCode.unknown_member_id, "no such member")
        if request.epoch > known.epoch or request.epoch not in (known.epoch, known.previous_epoch):
            return _refused(
                ErrorCode.fenced_member_epoch, f"MemberEpoch is {request.epoch}, expected {known.epoch}"
            )
        return None

    def _assign(self) -> None:
        """Give each partition to a member, or each member a partition, of every topic.

        Members in the order of their ids; topics begin at different members, so that small ones do not all go
        to the first.
        """
        if self.assignment_epoch == self.epoch:
            return
        self.assignment_epoch = self.epoch
        found: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in self._members}
        subscribed: dict[str, list[str]] = {}
        for member_id in sorted(self._members):
            for name in self._members[member_id].topics:
                subscribed.setdefault(name, []).append(member_id)
        for begin, (name, (topic_id, partitions)) in enumerate(sorted(self._found.items())):
            members = subscribed.get(name, ())
            count = len(members)
            for turn in range(max(count, partitions) if members else 0):
                member_id = members[(begin + turn) % count]
                found[member_id].setdefault(topic_id, []).append(turn % partitions)
        for member in self:
            member.assignment = found[member.member_id]


def _refused(error: ErrorCode, message: str) -> ShareHeartbeatResult:
    return ShareHeartbeatResult(error=error, message=message)
