"""The consumer groups (KIP-848) that this broker holds: their alarms, and what is on its way to the log.

A heartbeat changes its group immediately; its answer is sent when everything that the group has written is
durable. One append of a group is on its way at a time, and what comes meanwhile shares the next one. If it
fails, all that was planned after it is void:
1. a member gives a partition up, and the append with that fails; 2. another member got the partition, and its
record arrives; 3. the log says that both have it.
So no answer is sent, and the group is made again from the records that are applied. So it is, too, if records
change that this broker did not append: an append that failed has arrived after all.
Invariants: at most one append of a group is on its way, at most one alarm is set. A group that is made again
    answers nothing until then. `held_bytes` is what members of all groups take.
Not here: rules of membership (consumer_group.py), evaluating regular expressions (regexes.py), requests
    (coordinator.py).
Concurrency: event loop only; large assignments are computed in a storage thread.
After a crash, or taken over from another broker: groups are those of the log, with fresh sessions.
Sources: Kafka CoordinatorRuntime, GroupMetadataManager.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from sparklog.format.consumer_group_records import ResolvedRegex, Subscription
from sparklog.format.consumer_offsets import GroupKey
from sparklog.log.config import group_configs
from sparklog.metadata import Image, Topic
from sparklog_server.coordination.internal_topic import Host, LogStatus
from sparklog_server.groups import classic_members
from sparklog_server.groups.assignors import TopicShape
from sparklog_server.groups.consumer_group import ConsumerGroup
from sparklog_server.groups.consumer_members import (
    FOUND_BYTES,
    JOIN,
    AssignmentTask,
    Catalog,
    ConsumerGroupLimits,
    HeartbeatAnswer,
    HeartbeatRequest,
    assigned_bytes,
    changed_subscription,
    changes_topics,
    held_bytes,
    refusal,
)
from sparklog_server.groups.members import protocols_bytes
from sparklog_server.groups.messages import (
    Instant,
    JoinRequest,
    JoinResult,
    Leaving,
    SyncRequest,
    SyncResult,
)
from sparklog_server.groups.migration import downgraded
from sparklog_server.groups.offsets import GroupRecord, GroupShards, Record, Shard
from sparklog_server.groups.pacing import measured
from sparklog_server.protocol.apis import ErrorCode
from sparklog_server.runtime.lifecycle import Background
from sparklog_server.runtime.timing import TimerEntry
from sparklog_server.settings.groups import ConsumerGroupSettings, GroupSettings, of_group

_log = logging.getLogger("sparklog_server.coordinator")
RESTORED_AT_ONCE: Final = 50  # groups, which may have many members
RETRY_S: Final = 1.0


class ConsumerHandle:
    """A group, its shard, its alarm, and its records that are not durable yet."""

    def __init__(self, group: ConsumerGroup, shard: Shard) -> None:
        self.group = group
        self.shard = shard
        self.held_bytes = 0  # as it counts in the table's sum
        self.is_remade = False  # from the log: it answers nothing meanwhile
        self.is_ending = False  # so that a classic group follows: nor does it meanwhile
        self.is_writing = False
        self.pending: list[Record] = []
        self.waiting: list[asyncio.Future[ErrorCode]] = []
        self.alarm: TimerEntry | None = None
        self.alarm_at_ms = 0

    @property
    def is_busy(self) -> bool:
        """True if the group answers nothing now."""
        return self.is_remade or self.is_ending

    def cancel_alarm(self) -> None:
        """Let it not ring."""
        if self.alarm is not None:
            self.alarm.cancel()
            self.alarm = None


class Catalogs:
    """The topics of the newest image, as groups see them."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._image: Image | None = None
        self._shapes: dict[str, TopicShape] = {}  # of topics that there are: clients may name any others
        self._version = 0

    def current(self) -> Catalog:
        """Return the topics that there are now."""
        image = self._host.root.image
        if self._image is None or image.cluster_changed != self._image.cluster_changed:
            self._image, self._shapes, self._version = image, {}, image.cluster_changed
        return Catalog(version=self._version, find=self._find, name_of=self._name_of)

    def _find(self, name: str) -> TopicShape | None:
        found = self._shapes.get(name)
        if found is None and self._image is not None and (topic := self._image.topics.get(name)) is not None:
            found = self._shapes[topic.name] = self._shape(topic, self._image)
        return found

    def _name_of(self, topic_id: str) -> str | None:
        topic = None if self._image is None else self._image.topic_by_id.get(topic_id)
        return None if topic is None else topic.name

    @staticmethod
    def _shape(topic: Topic, image: Image) -> TopicShape:
        racks: Sequence[frozenset[str]] = ()
        by_node = {node_id: broker.rack for node_id, broker in image.brokers.items() if broker.rack}
        if by_node:
            racks = [
                frozenset(by_node[node] for node in one.leadership.replicas if node in by_node)
                for one in topic.partitions
            ]
        return TopicShape(topic_id=topic.topic_id, partitions=len(topic.partitions), racks=racks)


class ConsumerTable:
    """The groups that this broker holds, by their ids."""

    def __init__(
        self,
        host: Host,
        settings: GroupSettings,
        shards: GroupShards,
        background: Background,
        *,
        on_classic: Callable[[str, Shard], None],
        on_consumer: Callable[[str], None],
    ) -> None:
        """Hold no groups yet.

        Args:
            on_classic: the log has no such consumer group any more; perhaps a classic one.
            on_consumer: the log has such a consumer group after all, and no classic one.
        """
        self.groups: dict[str, ConsumerHandle] = {}
        self.held_bytes = 0
        self.catalogs = Catalogs(host)
        self._host = host
        self._settings = settings
        self._shards = shards
        self._background = background
        self._on_classic = on_classic
        self._on_consumer = on_consumer
        self._default = of_group(settings, {})
        self._configs: Mapping[str, str] | None = None  # by which those in force were found
        self._in_force: dict[str, ConsumerGroupSettings] = {}

    # Shards come and go

    def take_up(self, shard: Shard) -> Iterator[None]:
        """Have the groups that were found in the log, part by part; they go on when they are woken."""
        for number, group_id in enumerate(list(shard.state.consumer_groups), 1):
            if self._shards.find(group_id) is shard:
                handle = self.groups[group_id] = ConsumerHandle(self._restored(group_id, shard), shard)
                self._count(handle, handle.group.held_bytes)
            if number % RESTORED_AT_ONCE == 0:
                yield

    def wake(self, shard: Shard) -> None:
        """Go on with them: from now on their members are expected to call."""
        for handle in list(self.groups.values()):
            if handle.shard is shard:
                handle.group.begin_sessions(self.now())
                self._arm(handle)

    def send_away(self, shards: Collection[Shard]) -> None:
        """Drop the groups of these shards: clients that wait look for their next coordinator."""
        for group_id, handle in list(self.groups.items()):
            if handle.shard in shards:
                self._drop(group_id, handle, ErrorCode.not_coordinator)

    # Groups

    def find(self, group_id: str) -> ConsumerHandle | None:
        """The group, which may be busy; it is made again if others have changed its records."""
        handle = self.groups.get(group_id)
        if handle is None:
            return self._found_late(group_id)
        if group_id in handle.shard.state.disturbed and not handle.is_remade:
            self._remake(handle)
        return handle

    def _found_late(self, group_id: str) -> ConsumerHandle | None:
        """The append that made it of a classic group had failed, and has arrived after all."""
        shard = self._shards.find(group_id)
        if shard is None or group_id not in shard.state.disturbed:
            return None
        if group_id not in shard.state.consumer_groups:
            return None
        self._on_consumer(group_id)
        handle = self.create(group_id)
        self._advance(handle)
        return handle

    def is_empty(self, group_id: str) -> bool:
        """True if it has no members, and all that it has written is durable."""
        handle = self.groups.get(group_id)
        return handle is None or not (
            handle.group.members or handle.is_writing or handle.pending or handle.is_busy
        )

    def create(self, group_id: str) -> ConsumerHandle:
        """A new group, empty."""
        shard = self._shards.of(group_id)
        shard.state.disturbed.discard(group_id)
        handle = self.groups[group_id] = ConsumerHandle(self._restored(group_id, shard), shard)
        return handle

    def adopt(self, group: ConsumerGroup) -> ConsumerHandle:
        """A group that was a classic one; its records are to be written first."""
        shard = self._shards.of(group.group_id)
        shard.state.disturbed.discard(group.group_id)
        handle = self.groups[group.group_id] = ConsumerHandle(group, shard)
        return handle

    def forget(self, group_id: str, shard: Shard) -> None:
        """Drop a group whose tombstones are durable."""
        handle = self.groups.get(group_id)
        if handle is not None and handle.shard is shard:
            self._drop(group_id, handle, ErrorCode.coordinator_not_available)

    def limits(self, group_id: str) -> ConsumerGroupLimits:
        """Return the settings of a group."""
        settings = self._settings
        return ConsumerGroupLimits(
            max_size=settings.consumer_max_size,
            session_timeout_ms=self._own(group_id).consumer_session_timeout_ms,
            assignment_interval_ms=settings.consumer_assignment_interval_ms,
            assignors=settings.consumer_assignor_names,
            max_classic_size=settings.group_max_size if settings.may_downgrade else 0,
        )

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """Return how often members of a group are to send heartbeats."""
        return self._own(group_id).consumer_heartbeat_interval_ms

    def _own(self, group_id: str) -> ConsumerGroupSettings:
        configs = self._host.root.image.configs
        if configs is not self._configs:  # each commit has a copy
            is_same, self._configs = configs == self._configs, configs
            if not is_same:
                self._take_up(configs)
        return self._in_force.get(group_id, self._default)

    def _take_up(self, configs: Mapping[str, str]) -> None:
        """Settings of the root have changed: some may be of groups."""
        self._in_force = {
            group: of_group(self._settings, own) for group, own in group_configs(configs).items()
        }
        for handle in self.groups.values():
            handle.group.limits = self.limits(handle.group.group_id)

    def has_room_for(
        self,
        handle: ConsumerHandle | None,
        request: HeartbeatRequest,
        others: int,
        resolved: Mapping[str, ResolvedRegex] = MappingProxyType({}),
    ) -> bool:
        """True if there is room for what a member says, and for what it may be assigned.

        Args:
            others: bytes that members of other kinds hold.
            resolved: topics of patterns that were looked up for it.
        """
        if request.member_epoch != JOIN and request.topics is None and not resolved:
            return True
        said = sum(map(len, request.topics or ())) * 4
        said += 0 if request.classic is None else protocols_bytes(request.classic.protocols)
        if said > self._settings.group_max_record_bytes:
            return False
        member = None if handle is None else handle.group.members.get(request.member_id)
        before = 0 if member is None else member.held_bytes
        growth = held_bytes(changed_subscription(Subscription(), request)) - before
        if member is not None and not changes_topics(member.subscription, request):
            return self._fits(growth, others)
        regex = resolved.get(request.regex or "")
        found = () if regex is None else regex.topics
        if handle is None or request.regex not in handle.group.regexes:
            growth += FOUND_BYTES * len(found)
        names, catalog = {*(request.topics or ()), *found}, self.catalogs.current()
        if self._fits(growth + assigned_bytes(names, catalog), others):
            return True
        if handle is not None:
            names -= handle.group.subscribed_among(names)  # looks at the topics of all its patterns
        return self._fits(growth + assigned_bytes(names, catalog), others)

    def _fits(self, growth: int, others: int) -> bool:
        return growth <= 0 or self.held_bytes + others + growth <= self._settings.group_max_bytes

    async def heartbeat(
        self,
        handle: ConsumerHandle,
        request: HeartbeatRequest,
        resolved: Mapping[str, ResolvedRegex],
        first: Sequence[Record] = (),
    ) -> HeartbeatAnswer:
        """Answer when all that the answer says is durable.

        Args:
            resolved: topics of the patterns that were to be looked up.
            first: records to be written before the group's own.
        """
        if handle.is_busy:
            return refusal(ErrorCode.coordinator_not_available, "the group is loaded again; retry")
        group = handle.group
        answer = group.heartbeat(request, self.catalogs.current(), self.now(), resolved)
        handle.pending += first
        self._advance(handle)
        if not group.epoch and not handle.pending and self.groups.get(group.group_id) is handle:
            self._drop(group.group_id, handle, ErrorCode.coordinator_not_available)  # nobody has joined
        error = await self._written(handle)
        return refusal(error, "not written; retry") if error else answer

    # Members of the classic protocol

    async def join(self, handle: ConsumerHandle, request: JoinRequest, others: int) -> JoinResult:
        """JoinGroup, to a group with members. `others`: as in `has_room_for`."""
        if handle.is_busy:
            return JoinResult(error=ErrorCode.coordinator_load_in_progress, member_id=request.member_id)
        catalog = self.catalogs.current()
        said, result = classic_members.read_join(handle.group, request, catalog)
        if said is None:
            return result
        if not self.has_room_for(handle, said, others):
            return JoinResult(error=ErrorCode.group_max_size_reached, member_id=request.member_id)
        result = classic_members.join(handle.group, said, catalog, self.now())
        self._advance(handle)
        error = await self._written(handle)
        return JoinResult(error=error, member_id=request.member_id) if error else result

    async def sync(self, handle: ConsumerHandle, request: SyncRequest) -> SyncResult:
        """SyncGroup."""
        if handle.is_busy:  # older clients do not expect that here; what they know is to join again
            return SyncResult(error=ErrorCode.rebalance_in_progress)
        result = classic_members.sync(handle.group, request, self.catalogs.current(), self.now())
        self._advance(handle)
        error = await self._written(handle)
        return SyncResult(error=error) if error else result

    def beat(
        self, handle: ConsumerHandle, member_id: str, instance_id: str | None, generation_id: int
    ) -> ErrorCode:
        """Heartbeat; nothing is written."""
        if handle.is_busy:  # sessions begin again when it is back
            return ErrorCode.none
        error = classic_members.heartbeat(handle.group, member_id, instance_id, generation_id, self.now())
        self._arm(handle)
        return error

    async def leave(
        self, handle: ConsumerHandle, leaving: Sequence[Leaving]
    ) -> tuple[ErrorCode, list[ErrorCode]]:
        """LeaveGroup: an error for all, and one for each."""
        if handle.is_busy:
            return ErrorCode.coordinator_load_in_progress, []
        errors = classic_members.leave(handle.group, leaving, self.now())
        self._advance(handle)
        error = await self._written(handle)
        return error, [] if error else errors

    # Writing

    async def _written(self, handle: ConsumerHandle) -> ErrorCode:
        """Wait until an answer may be sent; return why it may not."""
        error = await self.settled(handle)
        if not error and not self._shards.may_answer(handle.shard):
            error = ErrorCode.not_coordinator
        return error

    async def settled(self, handle: ConsumerHandle) -> ErrorCode:
        """Wait until everything that the group has written is durable."""
        if not handle.is_writing and not handle.pending:
            return ErrorCode.none
        future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        handle.waiting.append(future)
        return await future

    def now(self) -> Instant:
        """Both clocks; the time of day, which is stored, is not before the newest commit's."""
        clock, image = self._host.clock, self._host.root.image
        return Instant(clock.monotonic_ms(), image.no_earlier_ms(clock.now_ms()))

    def _advance(self, handle: ConsumerHandle) -> None:
        """Do what follows from a change of the group."""
        group = handle.group
        if group.ends_as_classic and not handle.is_ending:
            self._end_as_classic(handle)
        handle.pending += group.take_records()
        self._count(handle, group.held_bytes)
        if group.must_assign_apart(self.now()) and not handle.is_ending:
            group.is_assigning = True
            self._background.spawn(self._assign(handle, group, group.task(self.catalogs.current())))
        if handle.pending and not handle.is_writing:
            handle.is_writing = True
            self._background.spawn(self._write(handle))
        self._arm(handle)

    async def _write(self, handle: ConsumerHandle) -> None:
        """Write until nothing is left; what comes in one turn, or meanwhile, shares an append."""
        while handle.pending or handle.waiting:
            records, handle.pending = handle.pending, []
            waiting, handle.waiting = handle.waiting, []
            error = await handle.shard.write(records)
            if error:
                _answer(waiting, error)
                handle.is_writing = False
                if self._is_held(handle) and not handle.is_remade:
                    self._remake(handle)
                return
            _answer(waiting, ErrorCode.none)
        handle.is_writing = False
        if handle.is_ending and self._is_held(handle) and not handle.is_remade:
            self._drop(handle.group.group_id, handle, ErrorCode.none)
            self._on_classic(handle.group.group_id, handle.shard)

    def _end_as_classic(self, handle: ConsumerHandle) -> None:
        """Have the records of the classic group that follows written, and those of this one deleted."""
        group, now = handle.group, self.now()
        value = downgraded(
            group, self.catalogs.current(), now, max_bytes=self._settings.group_max_record_bytes
        )
        if value is None:
            _log.warning("group %r stays a consumer group: it does not fit a classic one", group.group_id)
            group.stay(now)
            return
        _log.info("group %r becomes a classic group: no member is of the new protocol", group.group_id)
        handle.is_ending = True
        handle.pending += group.take_records()
        handle.pending += group.tombstones()
        handle.pending.append(GroupRecord(GroupKey(group=group.group_id), value))

    def _remake(self, handle: ConsumerHandle) -> None:
        handle.is_remade, handle.is_ending = True, False
        handle.pending.clear()
        handle.cancel_alarm()
        _log.warning(
            "group %r is loaded again: its records were not written, or changed by others",
            handle.group.group_id,
        )
        self._background.spawn(self._made_again(handle))

    async def _made_again(self, handle: ConsumerHandle) -> None:
        group_id, shard = handle.group.group_id, handle.shard
        while handle.is_writing or not await shard.catch_up():
            if shard.status is not LogStatus.READY or not self._is_held(handle):
                return
            await asyncio.sleep(RETRY_S)
        if not self._is_held(handle):
            return
        waiting, handle.waiting = handle.waiting, []
        _answer(waiting, ErrorCode.coordinator_not_available)
        shard.state.disturbed.discard(group_id)
        if group_id not in shard.state.consumer_groups:
            self._drop(group_id, handle, ErrorCode.coordinator_not_available)
            self._on_classic(group_id, shard)
            return
        handle.group = self._restored(group_id, shard)
        handle.is_remade = False
        self._advance(handle)

    async def _assign(self, handle: ConsumerHandle, group: ConsumerGroup, task: AssignmentTask) -> None:
        assignment, took_ms = await measured(self._host.root.run, task.run)
        if self._is_held(handle) and handle.group is group and not handle.is_busy:
            group.assign(task, assignment, self.now(), took_ms)
            self._advance(handle)

    def _restored(self, group_id: str, shard: Shard) -> ConsumerGroup:
        group = ConsumerGroup(group_id, self.limits(group_id))
        group.restore(shard.state.consumer_groups.get(group_id, {}), self.now())
        return group

    def _is_held(self, handle: ConsumerHandle) -> bool:
        return self.groups.get(handle.group.group_id) is handle

    def _drop(self, group_id: str, handle: ConsumerHandle, error: ErrorCode) -> None:
        del self.groups[group_id]
        handle.cancel_alarm()
        handle.pending.clear()
        waiting, handle.waiting = handle.waiting, []
        _answer(waiting, error)
        self._count(handle, 0)

    # Time

    def _arm(self, handle: ConsumerHandle) -> None:
        wake_at_ms = handle.group.wake_at_ms
        if wake_at_ms is None or handle.is_ending or not self._is_held(handle):
            handle.cancel_alarm()
        elif handle.alarm is None or wake_at_ms < handle.alarm_at_ms:
            handle.cancel_alarm()
            delay_ms = max(0, wake_at_ms - self._host.clock.monotonic_ms())
            handle.alarm_at_ms = wake_at_ms
            handle.alarm = self._host.timer.schedule(delay_ms, lambda: self._ring(handle))

    def _ring(self, handle: ConsumerHandle) -> None:
        handle.alarm = None
        if self._is_held(handle) and not handle.is_busy:
            handle.group.tick(self.catalogs.current(), self.now())
            self._advance(handle)

    def _count(self, handle: ConsumerHandle, held: int) -> None:
        self.held_bytes += held - handle.held_bytes
        handle.held_bytes = held


def _answer(waiting: Sequence["asyncio.Future[ErrorCode]"], error: ErrorCode) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(error)
