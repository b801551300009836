"""The members of a share group, and the partitions that they are to fetch.

Several members may have the same partition: the partition's leader decides who gets which record. So a change
needs no revocation, and a member's epoch only says which assignment it knows.

The group's epoch grows with each change of members, subscriptions or topics. The assignment is computed for
one of its epochs, at the pace of all groups (groups/pacing.py); members follow by their heartbeats.

Invariants: each partition of a topic that anybody subscribes to has a member; an epoch that a member is
    answered is that of the assignment, and not 0, by which it would join; members and their subscriptions
    have bounds.
Not here: which broker coordinates, threads and timers (coordinator.py), records (service.py).
Concurrency: pure; the coordinator owns it. Only a ShareAssignmentTask may run in another thread.
After a crash: members are not stored. They get UNKNOWN_MEMBER_ID, and join again; their locks stay.
Sources: KIP-932; Kafka ShareGroup, SimpleAssignor, GroupMetadataManager.shareGroupHeartbeat.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sparklog_server.groups.pacing import MAX_INLINE_WEIGHT, AssignmentPace
from sparklog_server.protocol.apis import ErrorCode

LEAVE_EPOCH: Final = -1
JOIN_EPOCH: Final = 0
MAX_TOPICS: Final = 1_000  # that a member subscribes to
MAX_RACK_CHARACTERS: Final = 255
_MEMBER_BYTES: Final = 600
_TOPIC_BYTES: Final = 150  # of a subscription, with what is assigned of it, without the name

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
    deadline_ms: int = 0
    assignment: Assignment = field(default_factory=dict)

    @property
    def held_bytes(self) -> int:
        """Return about what it takes in memory."""
        texts = len(self.member_id) + len(self.client_id)
        return _MEMBER_BYTES + texts + held_bytes(self.topics)


def held_bytes(topics: Collection[str]) -> int:
    """Return about what a subscription takes in memory, and its part of the assignment."""
    return _TOPIC_BYTES * len(topics) + sum(map(len, topics))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupLimits:
    """Settings of a group."""

    max_size: int
    session_timeout_ms: int
    assignment_interval_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareAssignmentTask:
    """What an assignment is computed from, apart from the group.

    Fields:
        members: topics that each one subscribes to.
        topics: those that there are: id and number of partitions.
    """

    epoch: int
    members: Mapping[str, Sequence[str]]
    topics: Mapping[str, tuple[str, int]]

    def run(self) -> Mapping[str, Assignment]:
        """Give each partition to a member, or each member a partition, of every topic.

        Members in the order of their ids; topics begin at different members, so that small ones do not all go
        to the first.
        """
        found: dict[str, dict[str, range]] = {member_id: {} for member_id in self.members}
        subscribed: dict[str, list[str]] = {}
        for member_id in sorted(self.members):
            for name in self.members[member_id]:
                subscribed.setdefault(name, []).append(member_id)
        single: dict[int, range] = {}
        for begin, (name, (topic_id, partitions)) in enumerate(sorted(self.topics.items())):
            members = subscribed.get(name, ())
            count = len(members)
            for turn in range(count):
                if count < partitions:
                    share = range(turn, partitions, count)
                else:
                    number = turn % partitions
                    share = single.get(number) or single.setdefault(number, range(number, number + 1))
                found[members[(begin + turn) % count]][topic_id] = share
        return found


class ShareGroup:
    """See the module's docstring. `is_assigning`: a task is running."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = self.assignment_epoch = 1
        self.is_assigning = False
        self.held_bytes = 0  # about what the members take in memory
        self.pace = AssignmentPace()
        self._members: dict[str, ShareMember] = {}
        self._names: Counter[str] = Counter()  # subscribed topics
        self._sought: set[str] = set()  # those that were not looked up yet
        self._found: dict[str, tuple[str, int]] = {}
        self._version: int | None = None  # of the topics at that time
        self._first_deadline_ms = 0  # no session is over before

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ShareMember]:
        return iter(self._members.values())

    def heartbeat(
        self, request: ShareHeartbeat, topics: Topics, limits: ShareGroupLimits, now_ms: int
    ) -> ShareHeartbeatResult:
        """Answer a member.

        Args:
            topics: all that there are.
        """
        known = self._members.get(request.member_id)
        if request.epoch == LEAVE_EPOCH:
            return self._leave(known)
        refusal = self._refusal(request, known, limits.max_size)
        if refusal is not None:
            return refusal
        member = known or self._add(request)
        subscribed = member.topics if request.topics is None else tuple(sorted(set(request.topics)))
        is_other = known is None or subscribed != member.topics
        if is_other:
            self._subscribe(member, subscribed)
        if self._follow(topics) or is_other:
            self.epoch += 1
        member.rack = member.rack if request.rack is None else request.rack[:MAX_RACK_CHARACTERS]
        member.deadline_ms = now_ms + limits.session_timeout_ms
        self._first_deadline_ms = min(self._first_deadline_ms, member.deadline_ms)
        self.assign_if_due(now_ms, limits.assignment_interval_ms)
        is_full = request.epoch == JOIN_EPOCH or request.topics is not None
        is_changed = member.epoch != self.assignment_epoch
        if is_changed:
            member.previous_epoch, member.epoch = member.epoch, self.assignment_epoch
        is_lost = request.epoch != member.epoch  # the answer with this epoch, or it is this one
        return ShareHeartbeatResult(
            epoch=member.epoch, assignment=member.assignment if is_full or is_changed or is_lost else None
        )

    def _add(self, request: ShareHeartbeat) -> ShareMember:
        member = self._members[request.member_id] = ShareMember(
            member_id=request.member_id, client_id=request.client_id, client_host=request.client_host
        )
        self.held_bytes += member.held_bytes
        return member

    def _subscribe(self, member: ShareMember, names: tuple[str, ...]) -> None:
        """Have a member subscribe to these topics, and to no others. It keeps what it has of them."""
        before, held = member.topics, member.held_bytes
        member.topics = names
        self.held_bytes += member.held_bytes - held
        self._sought.update(name for name in names if name not in self._names)
        self._names.update(names)
        self._drop_names(before)
        kept = {self._found[name][0] for name in names if name in self._found}
        member.assignment = {one: some for one, some in member.assignment.items() if one in kept}

    def _drop_names(self, names: Sequence[str]) -> None:
        self._names.subtract(names)
        for name in names:
            if not self._names[name]:
                del self._names[name]
                self._found.pop(name, None)
                self._sought.discard(name)

    def _follow(self, topics: Topics) -> bool:
        """Look up topics that are new to the group, or all that may differ; True if any does."""
        names = self._sought if self._version == topics.version else self._names
        changed = {name: one for name in names if (one := topics.find(name)) != self._found.get(name)}
        self._version = topics.version
        self._sought = set()
        for name, one in changed.items():
            if one is None:
                del self._found[name]
            else:
                self._found[name] = one
        return bool(changed)

    def expire(self, now_ms: int) -> list[str]:
        """Remove members whose session is over; return their ids."""
        if now_ms < self._first_deadline_ms:
            return []
        gone = [one.member_id for one in self if one.deadline_ms <= now_ms]
        for member_id in gone:
            self._remove(self._members[member_id])
        self._first_deadline_ms = min((one.deadline_ms for one in self), default=0)
        return gone

    # --- assigning -----------------------------------------------------------------------------------

    @property
    def needs_assignment(self) -> bool:
        """True if the assignment is of an older epoch."""
        return self.epoch > self.assignment_epoch and not self.is_assigning

    def must_assign_apart(self, now_ms: int) -> bool:
        """True if an assignment is due that takes too long for the event loop."""
        return self.needs_assignment and self.pace.is_due(now_ms) and not self._is_quick

    def assign_if_due(self, now_ms: int, interval_ms: int) -> None:
        """Compute the assignment if it is due, and takes a moment only."""
        if self.needs_assignment and self.pace.is_due(now_ms) and self._is_quick:
            task = self.task()
            self.assign(task, task.run(), now_ms, interval_ms=interval_ms, took_ms=0)

    def task(self) -> ShareAssignmentTask:
        """Return what the assignment of this epoch is to be computed from."""
        members = {one.member_id: one.topics for one in self}
        return ShareAssignmentTask(epoch=self.epoch, members=members, topics=dict(self._found))

    def assign(
        self,
        task: ShareAssignmentTask,
        assignment: Mapping[str, Assignment],
        now_ms: int,
        *,
        interval_ms: int,
        took_ms: int,
    ) -> None:
        """Make this the assignment; members that have come or changed meanwhile get theirs with the next."""
        self.is_assigning = False
        for member_id, partitions in assignment.items():
            member = self._members.get(member_id)
            if member is not None and member.topics == task.members[member_id]:
                member.assignment = partitions
        self.assignment_epoch = task.epoch
        self.pace.end(now_ms, interval_ms=interval_ms, took_ms=took_ms)

    @property
    def _is_quick(self) -> bool:
        return len(self) + self._names.total() <= MAX_INLINE_WEIGHT

    # --- leaving -------------------------------------------------------------------------------------

    def _leave(self, known: ShareMember | None) -> ShareHeartbeatResult:
        if known is None:
            return _refused(ErrorCode.unknown_member_id, "no such member")
        self._remove(known)
        return ShareHeartbeatResult(epoch=LEAVE_EPOCH)

    def _remove(self, member: ShareMember) -> None:
        del self._members[member.member_id]
        self.held_bytes -= member.held_bytes
        self._drop_names(member.topics)
        self.epoch += 1

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


def _refused(error: ErrorCode, message: str) -> ShareHeartbeatResult:
    return ShareHeartbeatResult(error=error, message=message)
