"""A consumer group of KIP-848 as a pure state machine: heartbeats in, answers and records out.

    answer = group.heartbeat(request, catalog, now)      # also tick, assign
    records = group.take_records()                       # to be durable before the answer is sent
    # the caller calls group.tick(catalog, now) at group.wake_at_ms

Three epochs: the group's grows with each change of members, subscriptions or topics; the target assignment
is computed for one group epoch; members follow, each by its own heartbeats (consumer_members.py).
Members may be of the classic protocol, too: their requests are those of classic_members.py.
Invariants: a partition is in the assignment, or among those to be given up, of at most one member
    (`owners`). An instance id belongs to one member. Everything that an answer says follows from records that
    were taken before it.
Beyond Kafka: an assignment that is due is computed without waiting for a heartbeat, and at most a tenth of
    the time is spent on a group's assignments.
Not here: computing assignments (assignors.py), becoming a classic group (migration.py), evaluating regular
    expressions, futures, writing, timers (consumer_table.py); offsets (offsets.py).
Concurrency: none; the coordinator calls from one thread. Only an AssignmentTask may run in another.
After a crash: `restore` from the records.
Sources: Kafka GroupMetadataManager, ConsumerGroup; KIP-848, KIP-1251, KIP-1263.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from sparklog.format.consumer_group_records import (
    ConsumerGroupKey,
    ConsumerGroupValue,
    CurrentAssignment,
    GroupEpoch,
    MemberState,
    MemberTarget,
    Partitions,
    RecordKind,
    ResolvedRegex,
    Subscription,
    TargetEpoch,
)
from sparklog_server.groups.assignors import AssignedMember, Assignment, TopicShape
from sparklog_server.groups.consumer_members import (
    FOUND_BYTES,
    JOIN,
    LEAVE_FOR_NOW,
    PARTITION_BYTES,
    AssignmentTask,
    Catalog,
    ConsumerGroupLimits,
    ConsumerGroupState,
    ConsumerMember,
    ConsumerRecord,
    HeartbeatAnswer,
    HeartbeatRequest,
    changed_subscription,
    first_epoch,
    places,
    reconciled,
    refusal,
    unowned,
)
from sparklog_server.groups.messages import Instant
from sparklog_server.groups.pacing import MAX_INLINE_WEIGHT, AssignmentPace
from sparklog_server.protocol.apis import ErrorCode

_UNSEEN: Final = -2  # no version of a catalog
_OF_MEMBERS: Final = (RecordKind.MEMBER_ASSIGNMENT, RecordKind.MEMBER_TARGET, RecordKind.MEMBER)


class ConsumerGroup:
    """One group: heartbeats, and what becomes of them. All times are milliseconds."""

    __slots__ = (
        "_catalog_version",
        "_names",
        "_pace",
        "_partition_count",
        "_patterns",
        "_records",
        "_unreconciled",
        "_votes",
        "classic_count",
        "classic_votes",
        "empty_since_ms",
        "ends_as_classic",
        "epoch",
        "group_id",
        "is_assigning",
        "limits",
        "members",
        "metadata_hash",
        "owners",
        "regexes",
        "static",
        "subscription_bytes",
        "target_epoch",
        "targets",
        "wake_at_ms",
    )

    def __init__(self, group_id: str, limits: ConsumerGroupLimits) -> None:
        self.group_id = group_id
        self.limits = limits
        self.epoch = self.target_epoch = self.metadata_hash = 0
        self.members: dict[str, ConsumerMember] = {}
        self.static: dict[str, str] = {}  # instance id -> member id
        self.targets: dict[str, Partitions] = {}
        self.owners: dict[tuple[str, int], str] = {}  # (topic id, partition) -> member id
        self.regexes: dict[str, ResolvedRegex] = {}
        self.wake_at_ms: int | None = None
        self.empty_since_ms = 0  # of the wall clock; 0: since before it was loaded
        self.is_assigning = False  # a task is running
        self.subscription_bytes = 0  # what members and their subscriptions take
        self.classic_count = 0  # members of the classic protocol
        self.classic_votes: Counter[str] = Counter()  # its protocols -> how many of these know it
        self.ends_as_classic = False  # its last member of the new protocol is gone: see migration.py
        self._names: Counter[str] = Counter()  # subscribed topics
        self._patterns: Counter[str] = Counter()
        self._votes: Counter[str] = Counter()  # for assignors
        self._records: list[ConsumerRecord] = []
        self._unreconciled: set[str] = set()
        self._catalog_version = _UNSEEN
        self._pace = AssignmentPace()
        self._partition_count = 0  # of subscribed topics

    # Requests

    def heartbeat(
        self,
        request: HeartbeatRequest,
        catalog: Catalog,
        now: Instant,
        resolved: Mapping[str, ResolvedRegex] = MappingProxyType({}),
    ) -> HeartbeatAnswer:
        """Answer a member. `resolved`: topics of `patterns_to_resolve`, as far as they could be looked up."""
        if request.member_epoch < JOIN:
            return self._leave(request, now)
        refused = self.refuse(request)
        if refused is not None:
            return refused
        for pattern, regex in resolved.items():
            self._resolve(pattern, regex)
        before = self.members.get(request.member_id)
        assigned_before = None if before is None else before.current.assigned
        member = self.follow(request, catalog, now)
        is_told = request.is_full or member.current.assigned is not assigned_before
        return HeartbeatAnswer(
            member_id=member.member_id,
            member_epoch=member.epoch,
            assigned=member.current.assigned if is_told else None,
        )

    def follow(self, request: HeartbeatRequest, catalog: Catalog, now: Instant) -> ConsumerMember:
        """Take in what a member says, which may be new, and let it go on to the target assignment."""
        was_mixed = not self._is_classic
        member = self.members.get(request.member_id) or self._join(request)
        changes_topics = self._update(member, request)
        if was_mixed and self._may_end_as_classic:
            self.ends_as_classic = True  # a static member has come back with the other protocol
        self._refresh(catalog, must_bump=changes_topics)
        self._assign_if_due(catalog, now)
        self._reconcile(member, request.owned, catalog, now, must_check=changes_topics)
        self.touch(member, now)
        return member

    def check_commit(
        self, member_id: str, epoch: int, places: Collection[tuple[str, int]] = (), *, is_staged: bool = False
    ) -> ErrorCode:
        """Return why a member may not commit offsets in this epoch, or (no `places`) fetch them.

        What was assigned to it in that epoch or before, and is still its own, it may commit: the answer that
        raised its epoch may be on its way (KIP-1251).

        Args:
            places: topic ids and partitions.
            is_staged: with a transaction; a producer may say nothing of the member.
        """
        if epoch < 0 and (not self.members or (is_staged and not member_id)):
            return ErrorCode.none
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.unknown_member_id
        if epoch == member.epoch:
            return ErrorCode.none
        stale = ErrorCode.illegal_generation if member.is_classic else ErrorCode.stale_member_epoch
        if epoch > member.epoch or not places:
            return stale
        current = member.current
        for topic_id, partition in places:
            since = current.assigned.get(topic_id, {}).get(partition)
            if since is None:
                since = current.pending_revocation.get(topic_id, {}).get(partition)
            if since is None or epoch < since:
                return stale
        return ErrorCode.none

    def patterns_to_resolve(self, request: HeartbeatRequest, version: int) -> list[str]:
        """Return the regular expressions whose topics must be looked up before this request is answered."""
        if not self.regexes and not request.regex:
            return []
        wanted = {name for name, regex in self.regexes.items() if regex.version != version}
        if request.regex and request.regex not in self.regexes:
            wanted.add(request.regex)
        return sorted(wanted)

    @property
    def patterns(self) -> Collection[str]:
        """Regular expressions of its members."""
        return self._patterns.keys()

    # What happens by itself

    def tick(self, catalog: Catalog, now: Instant) -> None:
        """Time has passed: sessions end, partitions were not given up in time, an assignment is due."""
        if self.wake_at_ms is None or now.monotonic_ms < self.wake_at_ms:
            return
        self.remove([member for member in self.members.values() if member.is_late(now.monotonic_ms)], now)
        self._assign_if_due(catalog, now)
        self.wake_at_ms = min(self._deadlines(now), default=None)

    def begin_sessions(self, now: Instant) -> None:
        """Start the sessions of all members: none could send a heartbeat until now."""
        for member in self.members.values():
            self.touch(member, now)
            if member.current.state is MemberState.UNREVOKED_PARTITIONS:
                self.expect(member, now)

    # Assigning

    def task(self, catalog: Catalog) -> AssignmentTask:
        """Return what the target assignment of this epoch is to be computed from."""
        known: dict[tuple[tuple[str, ...], str | None], frozenset[str]] = {}
        topics: dict[str, TopicShape] = {}
        members = {}
        for member_id, member in self.members.items():
            said = member.subscription
            key = said.topics, said.regex
            if key not in known:
                shapes = self._shapes(said, catalog)
                topics |= shapes
                known[key] = frozenset(shapes)
            members[member_id] = AssignedMember(
                topics=known[key],
                target=self.targets.get(member_id, {}),
                rack_id=said.rack_id,
                instance_id=said.instance_id,
            )
        return AssignmentTask(epoch=self.epoch, assignor=self.assignor, members=members, topics=topics)

    def assign(self, task: AssignmentTask, assignment: Assignment, now: Instant, took_ms: int) -> None:
        """Make this the target assignment; members that came meanwhile get theirs with the next one."""
        self.is_assigning = False
        for member_id, partitions in assignment.items():
            if member_id in self.members and self.targets.get(member_id, {}) != partitions:
                self.targets[member_id] = partitions
                self._write(RecordKind.MEMBER_TARGET, member_id, MemberTarget(partitions=partitions))
        self.target_epoch = task.epoch
        self._unreconciled = set(self.members)
        self._write(RecordKind.TARGET, "", TargetEpoch(epoch=task.epoch))
        # A member that joins alone, without topics, names them a moment later (Java's patterns). After an
        # interval it would hear of its partitions with the heartbeat after that one, in 5 s.
        is_idle = len(self.members) == 1 and not self._partition_count
        interval_ms = 0 if is_idle else self.limits.assignment_interval_ms
        self._pace.end(now.monotonic_ms, interval_ms=interval_ms, took_ms=took_ms)
        if self.needs_assignment:
            self._wake_by(self._pace.next_ms)

    @property
    def needs_assignment(self) -> bool:
        """True if the target assignment is of an older epoch."""
        return self.epoch > self.target_epoch and not self.is_assigning

    def must_assign_apart(self, now: Instant) -> bool:
        """True if an assignment is due that takes too long for the event loop."""
        return self.needs_assignment and self._pace.is_due(now.monotonic_ms) and not self._is_quick

    @property
    def assignor(self) -> str:
        """The assignor that most members ask for."""
        known = [name for name in self._votes if name in self.limits.assignors]
        return min(known, key=lambda name: (-self._votes[name], name), default=self.limits.assignors[0])

    @property
    def _is_quick(self) -> bool:
        return len(self.members) + self._partition_count + self._names.total() <= MAX_INLINE_WEIGHT

    def _assign_if_due(self, catalog: Catalog, now: Instant) -> None:
        if not self.needs_assignment:
            return
        if not self._pace.is_due(now.monotonic_ms):
            self._wake_by(self._pace.next_ms)
        elif self._is_quick:
            task = self.task(catalog)
            self.assign(task, task.run(), now, took_ms=0)

    # What others ask

    @property
    def state(self) -> ConsumerGroupState:
        """Kafka's state."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        for member_id in list(self._unreconciled):
            if self._is_reconciled(self.members[member_id]):
                self._unreconciled.discard(member_id)
            else:
                return ConsumerGroupState.RECONCILING
        return ConsumerGroupState.STABLE

    @property
    def held_bytes(self) -> int:
        """About what clients have it hold: a short name may stand for thousands of partitions."""
        found = sum(len(regex.topics) for regex in self.regexes.values())
        return self.subscription_bytes + PARTITION_BYTES * len(self.owners) + FOUND_BYTES * found

    def subscribed_among(self, topics: Collection[str]) -> frozenset[str]:
        """Return which of these any member reads."""
        of_patterns: set[str] = set().union(*(self.regexes[name].topics for name in self._resolved()))
        return frozenset(name for name in topics if name in self._names or name in of_patterns)

    def tombstones(self) -> list[ConsumerRecord]:
        """Return the records that delete the group, with its members."""
        keys = [ConsumerGroupKey(kind, self.group_id, name) for name in self.members for kind in _OF_MEMBERS]
        keys += [ConsumerGroupKey(RecordKind.REGEX, self.group_id, name) for name in self.regexes]
        keys += [ConsumerGroupKey(kind, self.group_id) for kind in (RecordKind.TARGET, RecordKind.GROUP)]
        return [ConsumerRecord(key, None) for key in keys]

    def take_records(self) -> list[ConsumerRecord]:
        """Return what is to be written since this was last called."""
        records, self._records = self._records, []
        return records

    def restore(self, records: Mapping[ConsumerGroupKey, ConsumerGroupValue], now: Instant) -> None:
        """Go on from the log, with fresh sessions.

        If two members have a partition, it stays with the one to which it was assigned first: that one may
        have received it. The other one's assignment was never acknowledged.
        """
        members = {key.name: value for key, value in records.items() if isinstance(value, Subscription)}
        for key, value in records.items():
            match value:
                case GroupEpoch():
                    self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
                case TargetEpoch():
                    self.target_epoch = value.epoch
                case MemberTarget() if key.name in members:
                    self.targets[key.name] = value.partitions
                case ResolvedRegex():
                    self.regexes[key.name] = value
        for member_id, subscription in members.items():
            member = self._add(member_id)
            self._subscribe(member, subscription)
            if subscription.instance_id is not None:
                self.static[subscription.instance_id] = member_id
        for member_id, current in sorted(self._stored_assignments(records), key=first_epoch):
            member = self.members[member_id]
            member.current = unowned(current, self.owners)
            self._own(member)
        self._unreconciled = set(self.members)
        self.begin_sessions(now)
        if self.members:
            self._wake_by(now.monotonic_ms)

    # Joining and leaving

    def refuse(self, request: HeartbeatRequest) -> HeartbeatAnswer | None:
        """Return the answer to a member that may not join, or go on."""
        member = self.members.get(request.member_id)
        held_by = None if request.instance_id is None else self.static.get(request.instance_id)
        joins = request.member_epoch == JOIN
        if request.instance_id is not None:
            if joins and held_by is not None and held_by != request.member_id:
                holder = self.members[held_by]
                if holder.epoch != LEAVE_FOR_NOW and not holder.is_classic:
                    return refusal(
                        ErrorCode.unreleased_instance_id, f"the instance id is held by member {held_by}"
                    )
            elif not joins and held_by is None:
                return refusal(ErrorCode.unknown_member_id, "no member has this instance id")
            elif held_by is not None and held_by != request.member_id:
                return refusal(
                    ErrorCode.fenced_instance_id, f"the instance id is now held by member {held_by}"
                )
            if held_by != request.member_id and member is not None:
                return refusal(ErrorCode.invalid_request, "the member has another instance id")
        elif member is not None and member.subscription.instance_id is not None:
            # Its heartbeats may leave the id out, since it has not changed.
            held_by = request.member_id
        if member is None:
            if not joins:
                return refusal(ErrorCode.unknown_member_id, "the group has no such member; join again")
            if held_by is None and len(self.members) >= self.limits.max_size:
                return refusal(
                    ErrorCode.group_max_size_reached, f"the group has {len(self.members)} members already"
                )
            return None
        return None if joins else self._refuse_epoch(member, request)

    def _refuse_epoch(self, member: ConsumerMember, request: HeartbeatRequest) -> HeartbeatAnswer | None:
        epoch, current = request.member_epoch, member.current
        if epoch == current.epoch:
            return None
        # The answer that raised its epoch may be lost. It may not own what it was never given since.
        if epoch == current.previous_epoch and epoch < current.epoch and request.owned is not None:
            owned = request.owned.items()
            if all(some <= current.assigned.get(topic, {}).keys() for topic, some in owned):
                return None
        return refusal(
            ErrorCode.fenced_member_epoch,
            f"found member epoch {epoch}, expected {current.epoch}: give up all partitions and join again",
        )

    def _join(self, request: HeartbeatRequest) -> ConsumerMember:
        """Return a new member, in the place of the one with its instance id, if there is one."""
        old_id = None if request.instance_id is None else self.static.get(request.instance_id)
        member = self._add(request.member_id)
        if request.instance_id is not None:
            self.static[request.instance_id] = request.member_id
        if old_id is None:
            return member
        old = self.members[old_id]
        subscription = old.subscription
        self._forget(old)
        self._subscribe(member, subscription)
        self._write(RecordKind.MEMBER, member.member_id, subscription)
        target = self.targets.pop(old_id, None)
        if target is not None:
            self.targets[member.member_id] = target
            self._write(RecordKind.MEMBER_TARGET, member.member_id, MemberTarget(partitions=target))
        member.current = replace(old.current, epoch=0, previous_epoch=0, pending_revocation={})
        self._own(member)
        if self.is_assigning:  # for the member whose place it takes
            self._begin_epoch()
        return member

    def _add(self, member_id: str) -> ConsumerMember:
        member = self.members[member_id] = ConsumerMember(member_id=member_id)
        self.subscription_bytes += member.held_bytes
        return member

    def _update(self, member: ConsumerMember, request: HeartbeatRequest) -> bool:
        """Take in what a member says of itself; return whether partitions are to be assigned anew."""
        before = member.subscription
        after = changed_subscription(before, request)
        if after is before:
            return False
        assignor_before = self.assignor
        self._subscribe(member, after)
        self._write(RecordKind.MEMBER, member.member_id, after)
        self._drop_unused_patterns()
        is_same = (before.topics, before.regex) == (after.topics, after.regex)
        return not is_same or self.assignor != assignor_before

    def _leave(self, request: HeartbeatRequest, now: Instant) -> HeartbeatAnswer:
        member = self.members.get(request.member_id)
        if request.instance_id is not None:
            held_by = self.static.get(request.instance_id)
            if held_by is None:
                return refusal(ErrorCode.unknown_member_id, "no member has this instance id")
            if held_by != request.member_id:
                return refusal(
                    ErrorCode.fenced_instance_id, f"the instance id is now held by member {held_by}"
                )
        if member is None:
            return refusal(ErrorCode.unknown_member_id, "the group has no such member")
        if request.member_epoch == LEAVE_FOR_NOW:
            # Its session goes on: a member with its instance id may take its place until it ends.
            left = replace(
                member.current,
                epoch=LEAVE_FOR_NOW,
                previous_epoch=member.epoch,
                pending_revocation={},
            )
            self._move(member, left)
            member.rebalance_deadline_ms = None
        else:
            self.remove([member], now)
        return HeartbeatAnswer(member_id=request.member_id, member_epoch=request.member_epoch)

    def remove(self, members: Collection[ConsumerMember], now: Instant) -> None:
        """Go on without these members."""
        for member in members:
            self._forget(member)
            self.targets.pop(member.member_id, None)
            instance_id = member.subscription.instance_id
            if instance_id is not None:
                self.static.pop(instance_id, None)
        if not members:
            return
        self._drop_unused_patterns()
        if self._may_end_as_classic:
            self.ends_as_classic = True  # in the epoch that its members know as their generation
        else:
            self._begin_epoch()
        if self.members:
            self._wake_by(now.monotonic_ms)  # it is assigned anew without waiting for a heartbeat
        else:
            self.empty_since_ms = now.wall_ms

    def stay(self, now: Instant) -> None:
        """Go on as a consumer group: it cannot become a classic one."""
        self.ends_as_classic = False
        self._begin_epoch()
        self._wake_by(now.monotonic_ms)

    @property
    def _is_classic(self) -> bool:
        """True if no member is of the new protocol."""
        return self.classic_count == len(self.members)

    @property
    def _may_end_as_classic(self) -> bool:
        return self._is_classic and 0 < len(self.members) <= self.limits.max_classic_size

    def _forget(self, member: ConsumerMember) -> None:
        self._disown(member)
        self._subscribe(member, Subscription(instance_id=member.subscription.instance_id))
        del self.members[member.member_id]
        self.subscription_bytes -= member.held_bytes
        self._unreconciled.discard(member.member_id)
        for kind in _OF_MEMBERS:
            self._write(kind, member.member_id, None)

    # Subscriptions

    def _subscribe(self, member: ConsumerMember, subscription: Subscription) -> None:
        before, size = member.subscription, member.held_bytes
        member.subscription = subscription
        self._count_classic(before, -1)
        self._count_classic(subscription, 1)
        self.subscription_bytes += member.held_bytes - size
        if before.topics != subscription.topics:
            self._names.subtract(before.topics)
            self._names.update(subscription.topics)
            for name in before.topics:
                if not self._names[name]:
                    del self._names[name]
        self._votes.subtract([before.assignor] if before.assignor else [])
        self._votes.update([subscription.assignor] if subscription.assignor else [])
        self._votes = +self._votes
        if before.regex != subscription.regex:
            if before.regex is not None:
                self._patterns[before.regex] -= 1
                if not self._patterns[before.regex]:
                    del self._patterns[before.regex]
            if subscription.regex is not None:
                self._patterns[subscription.regex] += 1

    def _count_classic(self, subscription: Subscription, by: int) -> None:
        if subscription.classic is not None:
            self.classic_count += by
            for name, _ in subscription.classic.protocols:
                self.classic_votes[name] += by
                if not self.classic_votes[name]:
                    del self.classic_votes[name]

    def _resolve(self, pattern: str, regex: ResolvedRegex) -> None:
        """Take in the topics of a regular expression."""
        before = self.regexes.get(pattern)
        self.regexes[pattern] = regex
        if before is None or before.topics != regex.topics:
            self._write(RecordKind.REGEX, pattern, regex)
            self._catalog_version = _UNSEEN

    def _drop_unused_patterns(self) -> None:
        for name in [name for name in self.regexes if name not in self._patterns]:
            del self.regexes[name]
            self._write(RecordKind.REGEX, name, None)

    def _resolved(self) -> list[str]:
        return [name for name in self._patterns if name in self.regexes]

    def _refresh(self, catalog: Catalog, *, must_bump: bool) -> None:
        """Count the next epoch if members, their topics, or the topics themselves have changed."""
        if not must_bump and catalog.version == self._catalog_version:
            return
        self._catalog_version = catalog.version
        names = set(self._names).union(*(self.regexes[name].topics for name in self._resolved()))
        found, self._partition_count = _hash_of(names, catalog)
        if must_bump or found != self.metadata_hash:
            self.metadata_hash = found
            self._begin_epoch()

    def _begin_epoch(self) -> None:
        self.epoch += 1
        self._write(RecordKind.GROUP, "", GroupEpoch(epoch=self.epoch, metadata_hash=self.metadata_hash))

    def _shapes(self, subscription: Subscription, catalog: Catalog) -> dict[str, TopicShape]:
        """Return the topics of a subscription, by id."""
        names = set(subscription.topics)
        if subscription.regex is not None and subscription.regex in self.regexes:
            names.update(self.regexes[subscription.regex].topics)
        shapes = (catalog.find(name) for name in names)
        return {shape.topic_id: shape for shape in shapes if shape is not None}

    # Assignments of members

    def _is_reconciled(self, member: ConsumerMember) -> bool:
        return member.current.state is MemberState.STABLE and member.epoch == self.target_epoch

    def _reconcile(
        self,
        member: ConsumerMember,
        owned: Partitions | None,
        catalog: Catalog,
        now: Instant,
        *,
        must_check: bool,
    ) -> None:
        if self._is_reconciled(member) and not must_check:
            return
        subscribed = self._shapes(member.subscription, catalog)
        target = self.targets.get(member.member_id, {})

        def is_free(topic_id: str, partition: int) -> bool:
            return self.owners.get((topic_id, partition), member.member_id) == member.member_id

        following = reconciled(
            member.current,
            {topic: some for topic, some in target.items() if topic in subscribed},
            self.target_epoch,
            owned=owned,
            is_free=is_free,
            must_check=must_check,
        )
        if following == member.current:
            return
        self._move(member, following)
        if following.state is MemberState.UNREVOKED_PARTITIONS:
            self.expect(member, now)
        else:
            member.rebalance_deadline_ms = None

    def _move(self, member: ConsumerMember, current: CurrentAssignment) -> None:
        if current.assigned == member.current.assigned:
            current = replace(current, assigned=member.current.assigned)  # unchanged: not sent again
        self._disown(member)
        member.current = current
        self._own(member)
        self._unreconciled.add(member.member_id)
        self._write(RecordKind.MEMBER_ASSIGNMENT, member.member_id, current)

    def _own(self, member: ConsumerMember) -> None:
        for place in places(member.current):
            assert place not in self.owners, f"{place} has two owners"
            self.owners[place] = member.member_id

    def _disown(self, member: ConsumerMember) -> None:
        for place in places(member.current):
            del self.owners[place]

    @staticmethod
    def _stored_assignments(
        records: Mapping[ConsumerGroupKey, ConsumerGroupValue],
    ) -> Iterator[tuple[str, CurrentAssignment]]:
        members = {key.name for key in records if key.kind is RecordKind.MEMBER}
        for key, value in records.items():
            if isinstance(value, CurrentAssignment) and key.name in members:
                yield key.name, value

    # Time and records

    def touch(self, member: ConsumerMember, now: Instant) -> None:
        """A member is alive."""
        classic = member.subscription.classic
        session_timeout_ms = self.limits.session_timeout_ms if classic is None else classic.session_timeout_ms
        member.session_deadline_ms = now.monotonic_ms + session_timeout_ms
        self._wake_by(member.session_deadline_ms)

    def expect(self, member: ConsumerMember, now: Instant) -> None:
        """Have a member do what it is told within its rebalance timeout; else it is removed."""
        timeout_ms = max(0, member.subscription.rebalance_timeout_ms)
        member.rebalance_deadline_ms = now.monotonic_ms + timeout_ms
        self._wake_by(member.rebalance_deadline_ms)

    def _wake_by(self, deadline_ms: int) -> None:
        # Heartbeats move deadlines back, never the alarm: `tick` looks again when it rings.
        if self.wake_at_ms is None or deadline_ms < self.wake_at_ms:
            self.wake_at_ms = deadline_ms

    def _deadlines(self, now: Instant) -> Iterator[int]:
        for member in self.members.values():
            yield member.session_deadline_ms
            if member.rebalance_deadline_ms is not None:
                yield member.rebalance_deadline_ms
        if self.members and self.needs_assignment:
            yield max(self._pace.next_ms, now.monotonic_ms)

    def _write(self, kind: RecordKind, name: str, value: ConsumerGroupValue | None) -> None:
        self._records.append(ConsumerRecord(ConsumerGroupKey(kind, self.group_id, name), value))


def _hash_of(names: Collection[str], catalog: Catalog) -> tuple[int, int]:
    """Return a number that differs where topics or their partitions do, and how many of these there are."""
    digest, count = hashlib.blake2b(digest_size=8), 0
    for name in sorted(names):
        shape = catalog.find(name)
        if shape is not None:
            digest.update(f"{name}\0{shape.topic_id}\0{shape.partitions}\n".encode())
            count += shape.partitions
    return int.from_bytes(digest.digest(), signed=True), count
