"""All groups that this broker holds: their alarms, what members hold, what is on its way to the log.

Invariants: a group without members that never had a generation is not kept; at most one timer per group;
    `held_bytes` is what all members' subscriptions and assignments take; records of a group are handed to the
    log in the order of its states.
Not here: what requests mean (coordinator.py), what is forgotten (expiry.py), where groups are in the log and
    whether this broker coordinates them (coordination/shards.py).
Concurrency: event loop only.
After a crash, or taken over from another broker: groups and offsets are those of the log; members keep their
    ids and their generation, and have fresh sessions.
Sources: Kafka GroupMetadataManager.
"""

import asyncio
import logging
from collections.abc import Collection, Container, Iterable, Iterator
from typing import Any, Final

from sparklog.format.consumer_offsets import GroupKey, GroupValue
from sparklog_server.coordination.internal_topic import Host
from sparklog_server.coordination.state_log import outcome_of
from sparklog_server.groups.consumer_members import HeartbeatAnswer
from sparklog_server.groups.consumer_table import ConsumerTable
from sparklog_server.groups.group import Group
from sparklog_server.groups.members import Members, protocols_bytes, record_bytes
from sparklog_server.groups.messages import (
    Answer,
    Effect,
    GroupState,
    Instant,
    JoinRequest,
    StoreGroup,
    SyncRequest,
    refusal_of,
)
from sparklog_server.groups.offsets import (
    GroupRecord,
    GroupShards,
    OffsetRecord,
    Shard,
    TopicPartition,
    staged_bytes,
)
from sparklog_server.groups.rebalancing import GroupLimits
from sparklog_server.protocol.apis import ErrorCode
from sparklog_server.runtime.lifecycle import Background
from sparklog_server.runtime.timing import TimerEntry
from sparklog_server.settings.groups import GroupSettings

_log = logging.getLogger("sparklog_server.coordinator")
RESTORED_AT_ONCE: Final = 50  # groups, which may have many members
WOKEN_AT_ONCE: Final = 500


class _All(Container[Any]):
    """All offsets of a group, while it is not known which are staged."""

    def __contains__(self, _: object) -> bool:
        return True


_ALL: Final = _All()


class Handle:
    """A group, its shard and its alarm.

    Fields:
        not_upgraded: why it could not become a consumer group when it was last tried, and what it was then.
    """

    def __init__(self, group: Group, shard: Shard) -> None:
        self.group = group
        self.shard = shard
        self.held_bytes = 0  # as it counts in the table's sum
        self.alarm: TimerEntry | None = None
        self.alarm_at_ms = 0
        self.not_upgraded: tuple[object, HeartbeatAnswer] | None = None

    def cancel_alarm(self) -> None:
        """Let it not ring."""
        if self.alarm is not None:
            self.alarm.cancel()
            self.alarm = None


class GroupTable:
    """The groups that this broker holds, by their ids."""

    def __init__(
        self, host: Host, settings: GroupSettings, shards: GroupShards, background: Background
    ) -> None:
        self.groups: dict[str, Handle] = {}
        self.consumers = ConsumerTable(
            host,
            settings,
            shards,
            background,
            on_classic=self._take_over,
            on_consumer=self._give_up,
        )
        self.held_bytes = 0
        self._host = host
        self._settings = settings
        self._shards = shards
        self._background = background

    # Shards come and go

    def take_up(self, shard: Shard) -> Iterator[None]:
        """Have the groups that were found in the log, part by part; they go on when they are woken."""
        now = self.now()
        groups = shard.state.take_groups()
        for number, (group_id, value) in enumerate(groups.items(), 1):
            # Else: written by one who counted other partitions. And if a record of a classic group has
            # arrived after those of the consumer group that it became, that one counts.
            if self._shards.find(group_id) is shard and group_id not in shard.state.consumer_groups:
                self._restore(group_id, shard, value, now)
            if number % RESTORED_AT_ONCE == 0:
                yield
        yield from self.consumers.take_up(shard)
        offsets = len(shard.state.groups())
        if groups or offsets:
            _log.info("%s: loaded %d groups, offsets of %d", shard.name, len(groups), offsets)

    async def wake(self, shard: Shard) -> None:
        """Go on with them: from now on their members are expected to call."""
        self.consumers.wake(shard)
        handles = [handle for handle in self.groups.values() if handle.shard is shard]
        for number, handle in enumerate(handles, 1):
            if self.groups.get(handle.group.group_id) is handle:
                handle.group.begin_sessions(self.now())
                self.run(handle, [])
            if number % WOKEN_AT_ONCE == 0:
                await asyncio.sleep(0)

    def send_away(self, shards: Collection[Shard]) -> None:
        """Drop the groups of these shards: clients that wait look for their next coordinator."""
        gone = set(shards)
        self.consumers.send_away(gone)
        for handle in list(self.groups.values()):
            if handle.shard in gone:
                self.drop(handle, ErrorCode.not_coordinator)

    # Groups

    def exists(self, group_id: str) -> bool:
        """True if it has members, a history, or offsets."""
        if group_id in self.groups or group_id in self.consumers.groups:
            return True
        shard = self._shards.find(group_id)
        return shard is not None and bool(shard.state.committed(group_id))

    def is_full(self) -> bool:
        """True if there may be no more groups."""
        room = self._settings.group_max_groups - len(self.groups) - len(self.consumers.groups)
        if sum(shard.state.most_groups for shard in self._shards) < room:
            return False
        return sum(shard.state.count_groups() for shard in self._shards) >= room

    @property
    def all_held_bytes(self) -> int:
        """About what members of both protocols take."""
        return self.held_bytes + self.consumers.held_bytes

    @property
    def offsets_bytes(self) -> int:
        """About what the offsets of all groups take: committed, being committed, and of open transactions."""
        return sum(shard.state.held_bytes for shard in self._shards)

    def has_room_for(self, shard: Shard, records: Iterable[OffsetRecord]) -> bool:
        """True if these may be committed. What needs no more room than before always may."""
        growth = shard.state.growth(records)
        return growth <= 0 or self.offsets_bytes + growth <= self._settings.group_max_offset_bytes

    def has_room_to_stage(self, records: Iterable[OffsetRecord]) -> bool:
        """True if a transaction may hold these."""
        growth = sum(map(staged_bytes, records))
        return self.offsets_bytes + growth <= self._settings.group_max_offset_bytes

    def unstable(self, group_id: str) -> Container[TopicPartition]:
        """Return the offsets of a group that open transactions may be about to change."""
        shard = self._shards.find(group_id)
        if shard is None:
            return frozenset()
        return _ALL if shard.is_unsure else shard.state.staged(group_id)

    def is_stable(self, group_id: str) -> bool:
        """True if no open transaction may be about to change any offset of the group."""
        shard = self._shards.find(group_id)
        return shard is None or not (shard.is_unsure or shard.state.staged(group_id))

    def create(self, group_id: str) -> Handle:
        """A new group, empty."""
        return self._hold(group_id, self._shards.of(group_id), self.now())

    def _restore(self, group_id: str, shard: Shard, value: GroupValue, now: Instant) -> Handle:
        handle = self._hold(group_id, shard, now)
        handle.group.restore(value, now)
        self._count(handle, handle.group.held_bytes)
        return handle

    def _take_over(self, group_id: str, shard: Shard) -> None:
        """Go on with a classic group that is in the log in the place of a consumer group."""
        value = shard.state.classic_groups.get(group_id)
        if value is not None and group_id not in self.groups:
            self.run(self._restore(group_id, shard, value, self.now()), [])

    def _give_up(self, group_id: str) -> None:
        """Drop a classic group that has become a consumer group."""
        handle = self.groups.get(group_id)
        if handle is not None:
            self.drop(handle, ErrorCode.rebalance_in_progress)

    def run(self, handle: Handle, effects: Iterable[Effect]) -> None:
        """Do what a group wants done, and set its alarm."""
        for effect in effects:
            if isinstance(effect, Answer):
                self._answer(handle, effect)
            else:
                # Begun here, not in the task: that is what keeps the order.
                record = GroupRecord(GroupKey(group=handle.group.group_id), effect.value)
                self._background.spawn(self._stored(handle, effect, handle.shard.append([record])))
        group = handle.group
        self._count(handle, group.held_bytes)
        if group.is_disposable and self.groups.get(group.group_id) is handle:
            self.drop(handle, ErrorCode.coordinator_not_available)
        else:
            self._arm(handle)

    def drop(self, handle: Handle, error: ErrorCode) -> None:
        """Drop a group; requests that wait are answered `error`."""
        del self.groups[handle.group.group_id]
        handle.cancel_alarm()
        for effect in handle.group.close(error, self.now()):
            if isinstance(effect, Answer):
                self._answer(handle, effect)
        self._count(handle, 0)

    def now(self) -> Instant:
        """Both clocks; the time of day, which is stored, is not before the newest commit's."""
        clock, image = self._host.clock, self._host.root.image
        return Instant(clock.monotonic_ms(), image.no_earlier_ms(clock.now_ms()))

    def _hold(self, group_id: str, shard: Shard, now: Instant) -> Handle:
        limits = GroupLimits(
            max_size=self._settings.group_max_size,
            initial_rebalance_delay_ms=self._settings.group_initial_rebalance_delay_ms,
        )
        handle = self.groups[group_id] = Handle(Group(group_id, limits, now), shard)
        return handle

    def _answer(self, handle: Handle, answer: Answer) -> None:
        """Answer a request, unless this broker lost its role or the partition while the request waited."""
        if answer.ticket.done():  # the client is gone
            return
        result = answer.result
        if not result.error and not self._shards.may_answer(handle.shard):
            result = refusal_of(result, ErrorCode.not_coordinator)
        answer.ticket.set_result(result)

    async def _stored(self, handle: Handle, effect: StoreGroup, appended: asyncio.Future[None]) -> None:
        error = await outcome_of(appended)
        self.run(handle, handle.group.stored(effect.write_id, error, self.now()))

    def _arm(self, handle: Handle) -> None:
        wake_at_ms = handle.group.wake_at_ms
        if wake_at_ms is None:
            handle.cancel_alarm()
        elif handle.alarm is None or wake_at_ms < handle.alarm_at_ms:
            handle.cancel_alarm()
            delay_ms = max(0, wake_at_ms - self._host.clock.monotonic_ms())
            handle.alarm_at_ms = wake_at_ms
            handle.alarm = self._host.timer.schedule(delay_ms, lambda: self._ring(handle))

    def _ring(self, handle: Handle) -> None:
        handle.alarm = None
        if handle.group.state is not GroupState.DEAD:
            self.run(handle, handle.group.tick(self.now()))

    def _count(self, handle: Handle, held_bytes: int) -> None:
        self.held_bytes += held_bytes - handle.held_bytes
        handle.held_bytes = held_bytes


# --- room --------------------------------------------------------------------------------------------
#
# Invariants: a member that is there may go on as before, but not grow.
# Concurrency: event loop only.
# Sources: Kafka GroupMetadataManager.storeGroup, which answers UNKNOWN_SERVER_ERROR where a group's record is
#     longer than message.max.bytes, once all its members have come.


class Room:
    """Checks the room for what a member brings: in memory, and in the record of its group."""

    def __init__(self, settings: GroupSettings, table: GroupTable) -> None:
        self._settings = settings
        self._table = table

    def is_there_for(self, request: JoinRequest, handle: Handle | None) -> bool:
        """For a member, new or not, of a group that there is or not."""
        names = (request.member_id or request.new_member_id, request.instance_id)
        growth = protocols_bytes(request.protocols)
        of_record = record_bytes((*names, request.client_id, request.client_host), request.protocols)
        members = Members() if handle is None else handle.group.members
        if handle is not None and _is_refused_anyway(members, request):
            return True
        member = members.get(members.place_of(request.member_id, request.instance_id))
        if member is not None:
            growth -= member.held_bytes
            of_record -= member.record_bytes
        if growth > 0 and self._table.all_held_bytes + growth > self._settings.group_max_bytes:
            return False
        if of_record > 0:
            of_record += members.record_bytes + members.assignment_bytes
        return of_record <= self._settings.group_max_record_bytes

    def is_there_to_assign(self, request: SyncRequest, handle: Handle) -> bool:
        """For what a leader assigns; of others it is not kept."""
        growth = sum(len(data) for _, data in request.assignments)
        if not growth or handle.group.members.leader != request.member_id:
            return True
        of_record = handle.group.members.record_bytes + growth
        return (
            self._table.all_held_bytes + growth <= self._settings.group_max_bytes
            and of_record <= self._settings.group_max_record_bytes
        )


def _is_refused_anyway(members: Members, request: JoinRequest) -> bool:
    """True if the member is unknown, or has another's identity: nothing of the request is kept."""
    member_id = request.member_id
    is_known = not member_id or member_id in members.pending
    return not is_known and bool(members.identity_error(member_id, request.instance_id))
