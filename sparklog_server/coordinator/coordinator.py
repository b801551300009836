"""The group coordinator: group.py and shard.py on the event loop, with answers, timers and records.

Every request is planned by a pure group, made durable, and then shown. A group lives in the shard of its
partition of __consumer_offsets; until that is loaded, its requests are told COORDINATOR_LOAD_IN_PROGRESS.
Invariants: a group that nobody is in, that never had a generation and has no offsets is not kept; a timer per
    group at most; nothing that clients send makes more than sparklog.group.max.groups groups.
Not here: rules of membership (group.py), what expires (offsets.py), Kafka's entities (api/).
Concurrency: event loop only. A request's state changes happen before its first await, or after its write.
After a crash: groups and offsets are those of the log; members have fresh sessions.
Sources: Kafka GroupCoordinator, GroupCoordinatorService; KIP-211.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from kio.schema.errors import ErrorCode

from sparklog.client.groups import OFFSETS_TOPIC, OFFSETS_TOPIC_CONFIGS, partition_for_group
from sparklog.errors import FencedError, InvalidRequestError, SparklogError
from sparklog.format.consumer_offsets import GroupKey, OffsetKey, OffsetValue
from sparklog.format.encode import EncodedBatches
from sparklog.format.group_metadata import GroupValue
from sparklog.log.config import RootConfig
from sparklog.metadata import Action, Image, new_id, plan_create_topic
from sparklog_server.config import ServerConfig
from sparklog_server.coordinator.group import Group, GroupLimits
from sparklog_server.coordinator.messages import (
    UNKNOWN_MEMBER,
    Answer,
    Effect,
    Instant,
    JoinRequest,
    JoinResult,
    Leaving,
    StoreGroup,
    SyncRequest,
    SyncResult,
)
from sparklog_server.coordinator.offsets import TopicPartition, expired_offsets
from sparklog_server.coordinator.shard import Host, Record, Shard, ShardStatus
from sparklog_server.coordinator.transitions import GroupState
from sparklog_server.publish.parts import AppendPart, PartOutcome

_log = logging.getLogger("sparklog_server.coordinator")
MAX_CLIENT_ID_CHARACTERS: Final = 255  # of a member id; it must fit into a record
MAX_INSTANCE_ID_CHARACTERS: Final = 249  # Kafka's own limit, as for topics
MAX_MEMBER_METADATA_BYTES: Final = 4 << 20


class TimerHandle(Protocol):
    """What a timer hands back."""

    def cancel(self) -> object:
        """Never call."""


class CoordinatorHost(Host, Protocol):
    """What the coordinator needs of the broker."""

    @property
    def config(self) -> ServerConfig:
        """The broker's settings."""

    @property
    def timer(self) -> Any:
        """`schedule(delay_ms, callback) -> TimerHandle`."""

    @property
    def publisher(self) -> Any:
        """`submit(parts)` and `submit_plan(plan)`."""

    def root_config(self) -> RootConfig:
        """The root's settings in force."""

    def on_image(self, callback: Callable[[Image, Image], None]) -> None:
        """Call back on the loop when the image has advanced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetToCommit:
    """One partition of an OffsetCommit; `retention_ms` -1: as the broker keeps offsets."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    """A group in ListGroups."""

    group_id: str
    protocol_type: str
    state: GroupState


class _Handle:
    """A group and its alarm."""

    def __init__(self, group: Group, shard: Shard) -> None:
        self.group = group
        self.shard = shard
        self.alarm: TimerHandle | None = None
        self.alarm_at_ms = 0

    def cancel_alarm(self) -> None:
        if self.alarm is not None:
            self.alarm.cancel()
            self.alarm = None


class GroupCoordinator:
    """broker.groups."""

    def __init__(self, host: CoordinatorHost) -> None:
        self._host = host
        self._topic_id: str | None = None
        self._shards: list[Shard] = []
        self._groups: dict[str, _Handle] = {}
        self._active = False
        self._expiry: TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._creating: asyncio.Task[None] | None = None

    # Life

    async def start(self) -> None:
        """Begin to load; requests are answered from now on."""
        self._active = True
        self._host.on_image(self._follow_image)
        self._adopt(self._host.image)
        self._schedule_expiry()

    async def stop(self) -> None:
        """Answer whoever waits, and stop."""
        self.release()
        for shard in self._shards:
            shard.close()
        for task in list(self._tasks):
            task.cancel()

    def release(self) -> None:
        """Refuse everything from now on, and send away whoever waits. Nothing is written: members find the
        group as it is in the log after the restart.
        """
        self._active = False
        if self._expiry is not None:
            self._expiry.cancel()
        self._close_groups(ErrorCode.not_coordinator)

    # Membership

    async def join(self, group_id: str, request: JoinRequest) -> JoinResult:
        """JoinGroup. `request.new_member_id` is made here."""
        error = self._status_error(group_id) or self._refuse_join(request)
        if not error and not self._shards:
            error = await self._create_topic()
        handle = None if error else self._groups.get(group_id)
        if not error and handle is None:
            if request.member_id != UNKNOWN_MEMBER:
                error = ErrorCode.unknown_member_id
            elif self._is_full():
                error = ErrorCode.group_max_size_reached
            else:
                error = self._status_error(group_id)
        if error:
            return JoinResult(error=error, member_id=request.member_id)
        handle = handle or self._new_handle(group_id)
        future: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        self._run(handle, handle.group.join(request, future, self._now()))
        return await future

    def new_member_id(self, client_id: str, instance_id: str | None) -> str:
        """An id that nobody has."""
        prefix = client_id if instance_id is None else instance_id
        return f"{prefix[:MAX_CLIENT_ID_CHARACTERS]}-{uuid.uuid4()}"

    async def sync(self, group_id: str, request: SyncRequest) -> SyncResult:
        """SyncGroup."""
        error = self._status_error(group_id)
        if error == ErrorCode.coordinator_load_in_progress:
            # Older clients do not expect that here; what they know is to join again.
            error = ErrorCode.rebalance_in_progress
        handle = self._groups.get(group_id)
        if not error and handle is None:
            error = ErrorCode.unknown_member_id
        if error or handle is None:
            return SyncResult(error=error)
        future: asyncio.Future[SyncResult] = asyncio.get_running_loop().create_future()
        self._run(handle, handle.group.sync(request, future, self._now()))
        return await future

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation_id: int
    ) -> ErrorCode:
        """Heartbeat."""
        error = self._status_error(group_id)
        if error:
            # Sessions begin anew when the group is loaded.
            return ErrorCode.none if error == ErrorCode.coordinator_load_in_progress else error
        handle = self._groups.get(group_id)
        if handle is None:
            return ErrorCode.unknown_member_id
        return handle.group.heartbeat(member_id, instance_id, generation_id, self._now())

    def leave(self, group_id: str, leaving: Sequence[Leaving]) -> tuple[ErrorCode, list[ErrorCode]]:
        """LeaveGroup: an error for all, and one for each."""
        error = self._status_error(group_id)
        if error:
            return error, []
        handle = self._groups.get(group_id)
        if handle is None:
            return ErrorCode.none, [ErrorCode.unknown_member_id] * len(leaving)
        errors, effects = handle.group.leave(leaving, self._now())
        self._run(handle, effects)
        return ErrorCode.none, errors

    # Offsets

    async def commit(
        self,
        group_id: str,
        offsets: Sequence[OffsetToCommit],
        *,
        member_id: str = "",
        instance_id: str | None = None,
        generation_id: int = -1,
        retention_ms: int = -1,
    ) -> ErrorCode:
        """OffsetCommit: one answer for all of its (valid) partitions, once they are durable."""
        error = self._status_error(group_id, named=False)
        if not error and not self._shards:
            error = await self._create_topic() or self._status_error(group_id, named=False)
        if error:
            return error
        handle = self._groups.get(group_id)
        shard = self._shard(group_id)
        if handle is not None:
            error = handle.group.check_commit(member_id, instance_id, generation_id, self._now())
            self._arm(handle)
        elif generation_id >= 0:
            error = ErrorCode.illegal_generation
        elif group_id not in shard.offsets and self._is_full():
            error = ErrorCode.group_max_size_reached
        if error or not offsets:
            return error
        now_ms = self._host.clock.now_ms()
        records: list[Record] = [
            (
                OffsetKey(group=group_id, topic=one.topic, partition=one.partition),
                OffsetValue(
                    offset=one.offset,
                    leader_epoch=one.leader_epoch,
                    metadata=one.metadata,
                    commit_timestamp_ms=now_ms,
                    expire_timestamp_ms=now_ms + retention_ms if retention_ms >= 0 else -1,
                ),
            )
            for one in offsets
        ]
        return await self._append_to(shard, records)

    def fetch(self, group_id: str) -> tuple[ErrorCode, Mapping[TopicPartition, OffsetValue]]:
        """OffsetFetch: everything that the group has committed."""
        error = self._status_error(group_id, named=False)
        if error or not self._shards:
            return error, {}
        return ErrorCode.none, self._shard(group_id).offsets.of(group_id)

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
        """OffsetDelete: an error for all, or one for each."""
        error = self._status_error(group_id)
        if error:
            return error, {}
        if not self.exists(group_id):
            return ErrorCode.group_id_not_found, {}
        handle = self._groups.get(group_id)
        subscribed: frozenset[str] | None = frozenset()
        if handle is not None and handle.group.state is not GroupState.EMPTY:
            if handle.group.protocol_type != "consumer":
                return ErrorCode.non_empty_group, {}
            subscribed = handle.group.subscribed_topics()
        results: dict[TopicPartition, ErrorCode] = {}
        shard = self._shard(group_id)
        records: list[Record] = []
        for topic, partition in partitions:
            if subscribed is None or topic in subscribed:
                results[topic, partition] = ErrorCode.group_subscribed_to_topic
                continue
            results[topic, partition] = ErrorCode.none
            if (topic, partition) in shard.offsets.of(group_id):
                records.append((OffsetKey(group=group_id, topic=topic, partition=partition), None))
        error = await self._append_to(shard, records)
        return (error, {}) if error else (ErrorCode.none, results)

    # Administration

    def find(self, group_id: str) -> Group | None:
        """The group, for DescribeGroups."""
        handle = self._groups.get(group_id)
        return None if handle is None else handle.group

    def describe_error(self, group_id: str) -> ErrorCode:
        """May the group be described now?"""
        return self._status_error(group_id, named=False)

    def exists(self, group_id: str) -> bool:
        """Has it members, a history, or offsets?"""
        if group_id in self._groups:
            return True
        return bool(self._shards) and group_id in self._shard(group_id).offsets

    def list_groups(self) -> tuple[ErrorCode, list[ListedGroup]]:
        """All groups that are loaded; those that have only offsets (Spark) are empty ones."""
        if not self._active:
            return ErrorCode.coordinator_not_available, []
        loading = any(shard.status is ShardStatus.LOADING for shard in self._shards)
        listed = [
            ListedGroup(
                group_id=group_id,
                protocol_type=handle.group.protocol_type or "",
                state=handle.group.state,
            )
            for group_id, handle in self._groups.items()
        ]
        listed += [
            ListedGroup(group_id=group_id, protocol_type="", state=GroupState.EMPTY)
            for shard in self._shards
            for group_id in shard.offsets.groups()
            if group_id not in self._groups
        ]
        return ErrorCode.coordinator_load_in_progress if loading else ErrorCode.none, listed

    async def delete_group(self, group_id: str) -> ErrorCode:
        """DeleteGroups: an empty group and its offsets."""
        error = self._status_error(group_id, named=False)
        if error:
            return error
        handle = self._groups.get(group_id)
        if handle is not None and handle.group.state is not GroupState.EMPTY:
            return ErrorCode.non_empty_group
        if not self.exists(group_id):
            return ErrorCode.group_id_not_found
        return await self._forget(group_id, self._shard(group_id).offsets.of(group_id))

    # What happens by itself

    def _follow_image(self, old: Image, new: Image) -> None:
        if not self._active:
            return
        self._adopt(new)
        before, after = old.topics.get(OFFSETS_TOPIC), new.topics.get(OFFSETS_TOPIC)
        if before is not after and before is not None and after is not None:
            for shard in self._shards:
                number = shard.partition
                if (
                    number >= len(before.partitions)
                    or before.partitions[number] is not after.partitions[number]
                ):
                    shard.follow()
        deleted = old.topic_by_id.keys() - new.topic_by_id.keys()
        if deleted:
            self._spawn(self._delete_of_topics([old.topic_by_id[topic_id].name for topic_id in deleted]))

    def _adopt(self, image: Image) -> None:
        """Shards for the offsets topic, if it is another one than before."""
        topic = image.topics.get(OFFSETS_TOPIC)
        topic_id = None if topic is None else topic.topic_id
        count = 0 if topic is None else len(topic.partitions)
        if topic_id == self._topic_id and count == len(self._shards):
            return
        # Another number of partitions puts groups elsewhere: everything starts over.
        self._close_groups(ErrorCode.not_coordinator)
        for shard in self._shards:
            shard.close()
        self._topic_id = topic_id
        self._shards = (
            []
            if topic_id is None
            else [Shard(self._host, self._append, topic_id, number) for number in range(count)]
        )
        for shard in self._shards:
            shard.start(self._loaded)

    def _loaded(self, shard: Shard, groups: Mapping[str, GroupValue]) -> None:
        now = self._now()
        for group_id, value in groups.items():
            if group_id in self._groups or self._shard(group_id) is not shard:
                continue
            group = Group(group_id, self._limits(), now)
            group.restore(value, now)
            handle = self._groups[group_id] = _Handle(group, shard)
            self._arm(handle)
        gone = [name for name in shard.offsets.topics() if name not in self._host.image.topics]
        if gone:
            # Deleted while nobody looked.
            self._spawn(self._delete_of_topics(gone))
        if groups or len(shard.offsets):
            _log.info(
                "%s-%d: loaded %d groups, and offsets of %d",
                OFFSETS_TOPIC,
                shard.partition,
                len(groups),
                len(shard.offsets),
            )

    async def _delete_of_topics(self, names: Iterable[str]) -> None:
        for shard in list(self._shards):
            if shard.status is ShardStatus.READY:
                records: list[Record] = [(key, None) for key in shard.offsets.of_topics(names)]
                await self._append_to(shard, records)

    def _schedule_expiry(self) -> None:
        delay_ms = self._host.config.offsets_retention_check_interval_ms
        self._expiry = self._host.timer.schedule(delay_ms, lambda: self._spawn(self._expire_and_go_on()))

    async def _expire_and_go_on(self) -> None:
        try:
            await self.expire()
        finally:
            if self._active:
                self._schedule_expiry()

    async def expire(self) -> None:
        """Forget offsets whose retention is over, and groups that are empty and have none left."""
        now_ms = self._host.clock.now_ms()
        retention_ms = self._host.config.offsets_retention_minutes * 60_000
        for shard in list(self._shards):
            if shard.status is not ShardStatus.READY:
                continue
            ids = {*shard.offsets.groups()}
            ids.update(group_id for group_id, handle in self._groups.items() if handle.shard is shard)
            for group_id in ids:
                handle = self._groups.get(group_id)
                group = None if handle is None else handle.group
                offsets = shard.offsets.of(group_id)
                expired = expired_offsets(offsets, group, now_ms=now_ms, retention_ms=retention_ms)
                is_empty = group is None or (group.state is GroupState.EMPTY and not group.roster.pending)
                if is_empty and len(expired) == len(offsets):
                    await self._forget(group_id, expired)
                elif expired:
                    records: list[Record] = [
                        (OffsetKey(group=group_id, topic=topic, partition=partition), None)
                        for topic, partition in expired
                    ]
                    await self._append_to(shard, records)

    async def _forget(self, group_id: str, offsets: Iterable[TopicPartition]) -> ErrorCode:
        """Tombstones for a group's offsets and for itself; then it is gone, unless it came back meanwhile."""
        shard = self._shard(group_id)
        records: list[Record] = [
            (OffsetKey(group=group_id, topic=topic, partition=partition), None)
            for topic, partition in offsets
        ]
        handle = self._groups.get(group_id)
        if handle is not None and handle.group.generation_id:
            records.append((GroupKey(group=group_id), None))
        error = await self._append_to(shard, records)
        if (
            not error
            and handle is not None
            and self._groups.get(group_id) is handle
            and handle.group.state is GroupState.EMPTY
            and group_id not in shard.offsets
        ):
            self._drop(handle, ErrorCode.coordinator_not_available)
        return error

    # Groups

    def _run(self, handle: _Handle, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                if not effect.ticket.done():  # the client may be gone
                    effect.ticket.set_result(effect.result)
            else:
                # Begun here, so that records of a group are in the log in the order of its states.
                key = GroupKey(group=handle.group.group_id)
                self._spawn(self._stored(handle, effect, handle.shard.append([(key, effect.value)])))
        group = handle.group
        if group.is_disposable and self._groups.get(group.group_id) is handle:
            self._drop(handle, ErrorCode.coordinator_not_available)
        else:
            self._arm(handle)

    async def _stored(self, handle: _Handle, effect: StoreGroup, appended: asyncio.Future[None]) -> None:
        error = await self._outcome(appended)
        self._run(handle, handle.group.stored(effect.write_id, error, self._now()))

    def _arm(self, handle: _Handle) -> None:
        wake_at_ms = handle.group.wake_at_ms
        if wake_at_ms is None:
            handle.cancel_alarm()
        elif handle.alarm is None or wake_at_ms < handle.alarm_at_ms:
            handle.cancel_alarm()
            delay_ms = max(0, wake_at_ms - self._host.clock.monotonic_ms())
            handle.alarm_at_ms = wake_at_ms
            handle.alarm = self._host.timer.schedule(delay_ms, lambda: self._ring(handle))

    def _ring(self, handle: _Handle) -> None:
        handle.alarm = None
        if handle.group.state is not GroupState.DEAD:
            self._run(handle, handle.group.tick(self._now()))

    def _new_handle(self, group_id: str) -> _Handle:
        group = Group(group_id, self._limits(), self._now())
        handle = self._groups[group_id] = _Handle(group, self._shard(group_id))
        return handle

    def _drop(self, handle: _Handle, error: ErrorCode) -> None:
        del self._groups[handle.group.group_id]
        handle.cancel_alarm()
        for effect in handle.group.close(error, self._now()):
            if isinstance(effect, Answer) and not effect.ticket.done():
                effect.ticket.set_result(effect.result)

    def _close_groups(self, error: ErrorCode) -> None:
        for handle in list(self._groups.values()):
            self._drop(handle, error)

    # Checks

    def _status_error(self, group_id: str, *, named: bool = True) -> ErrorCode:
        """Is the coordinator there for this group? `named`: the empty name is no group."""
        if named and not group_id:
            return ErrorCode.invalid_group_id
        if not self._active:
            return ErrorCode.coordinator_not_available
        if not self._shards:
            return ErrorCode.none  # no offsets topic: nothing to load
        match self._shard(group_id).status:
            case ShardStatus.LOADING:
                return ErrorCode.coordinator_load_in_progress
            case ShardStatus.READY:
                return ErrorCode.none
            case _:
                return ErrorCode.coordinator_not_available

    def _refuse_join(self, request: JoinRequest) -> ErrorCode:
        config = self._host.config
        shortest_ms, longest_ms = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
        if not shortest_ms <= request.session_timeout_ms <= longest_ms:
            return ErrorCode.invalid_session_timeout
        if request.instance_id is not None and not 0 < len(request.instance_id) <= MAX_INSTANCE_ID_CHARACTERS:
            return ErrorCode.invalid_request
        if sum(len(name) + len(data) for name, data in request.protocols) > MAX_MEMBER_METADATA_BYTES:
            return ErrorCode.invalid_request
        return ErrorCode.none

    def _is_full(self) -> bool:
        with_offsets = sum(len(shard.offsets) for shard in self._shards)
        return len(self._groups) + with_offsets >= self._host.config.group_max_groups

    def _shard(self, group_id: str) -> Shard:
        return self._shards[partition_for_group(group_id, len(self._shards))]

    # Writing

    async def _append_to(self, shard: Shard, records: Sequence[Record]) -> ErrorCode:
        return await self._outcome(shard.append(records)) if records else ErrorCode.none

    async def _outcome(self, appended: asyncio.Future[None]) -> ErrorCode:
        try:
            await appended
        except FencedError:
            return ErrorCode.not_coordinator
        except InvalidRequestError as error:
            _log.warning("not written: %s", error)
            return ErrorCode.unknown_server_error
        except SparklogError as error:
            _log.warning("not written: %s", error)
            return ErrorCode.coordinator_not_available
        return ErrorCode.none

    def _append(
        self, topic_id: str, partition: int, encoded: EncodedBatches
    ) -> Awaitable[Sequence[PartOutcome]]:
        part = AppendPart(topic_id=topic_id, topic=OFFSETS_TOPIC, partition=partition, encoded=encoded)
        submitted: Awaitable[Sequence[PartOutcome]] = self._host.publisher.submit([part])
        return submitted

    async def ensure_topic(self) -> ErrorCode:
        """Make __consumer_offsets if there is none: FindCoordinator does, as in Kafka."""
        return ErrorCode.none if self._shards else await self._create_topic()

    async def _create_topic(self) -> ErrorCode:
        if self._creating is None:
            self._creating = asyncio.get_running_loop().create_task(self._publish_topic())
        try:
            await asyncio.shield(self._creating)
        except SparklogError as error:
            _log.warning("creating %s failed: %s", OFFSETS_TOPIC, error)
            return ErrorCode.coordinator_not_available
        finally:
            if self._creating is not None and self._creating.done():
                self._creating = None
        self._adopt(self._host.image)
        return ErrorCode.none if self._shards else ErrorCode.coordinator_not_available

    async def _publish_topic(self) -> None:
        partitions = self._host.root_config().offsets_topic_num_partitions
        topic_id = new_id()

        def plan(image: Image) -> Sequence[Action]:
            if OFFSETS_TOPIC in image.topics:
                return []
            configs = OFFSETS_TOPIC_CONFIGS
            return [plan_create_topic(image, OFFSETS_TOPIC, partitions, topic_id=topic_id, configs=configs)]

        await self._host.publisher.submit_plan(plan)

    # Small things

    def _limits(self) -> GroupLimits:
        config = self._host.config
        return GroupLimits(
            max_size=config.group_max_size,
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        )

    def _now(self) -> Instant:
        clock = self._host.clock
        return Instant(clock.monotonic_ms(), clock.now_ms())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
