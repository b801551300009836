"""All groups and shards of the coordinator: what is loaded, what is held, what is on its way to the log.

A group lives in the shard of its partition of __consumer_offsets; another number of partitions, or another
topic of that name, puts groups elsewhere, and everything starts over.
Invariants: a group that nobody is in, that never had a generation, is not kept; at most one timer per group;
    `held_bytes` is what all members' subscriptions and assignments take; records of a group are handed to the
    log in the order of its states.
Not here: what requests mean (coordinator.py), what is forgotten (retention.py).
Concurrency: event loop only.
After a crash: groups and offsets are those of the log; members have fresh sessions.
Sources: Kafka GroupMetadataManager.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from sparklog.client.groups import OFFSETS_TOPIC, OFFSETS_TOPIC_CONFIGS, partition_for_group
from sparklog.errors import FencedError, InvalidRequestError, SparklogError
from sparklog.format.consumer_offsets import GroupKey
from sparklog.format.encode import EncodedBatches
from sparklog.format.group_metadata import GroupValue
from sparklog.metadata import Action, Image, new_id, plan_create_topic
from sparklog_server.coordinator.group import Group, GroupLimits
from sparklog_server.coordinator.host import Host
from sparklog_server.coordinator.messages import Answer, Effect, Instant, StoreGroup, refusal_of
from sparklog_server.coordinator.shard import Record, Shard
from sparklog_server.coordinator.transitions import GroupState
from sparklog_server.protocol.errors import ErrorCode
from sparklog_server.publish.parts import AppendPart, PartOutcome
from sparklog_server.runtime.timing_wheel import TimerEntry

_log = logging.getLogger("sparklog_server.coordinator")


class Handle:
    """A group, its shard and its alarm."""

    def __init__(self, group: Group, shard: Shard) -> None:
        self.group = group
        self.shard = shard
        self.held_bytes = 0  # as it counts in the directory's sum
        self.alarm: TimerEntry | None = None
        self.alarm_at_ms = 0

    def cancel_alarm(self) -> None:
        """Let it not ring."""
        if self.alarm is not None:
            self.alarm.cancel()
            self.alarm = None


class Directory:
    """See the module's docstring."""

    def __init__(self, host: Host, loaded: Callable[[Shard], None]) -> None:
        """`loaded`: called when a shard is ready."""
        self.host = host
        self.groups: dict[str, Handle] = {}
        self.shards: list[Shard] = []
        self.held_bytes = 0
        self.is_active = False
        self._on_loaded = loaded
        self._topic_id: str | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._creating: asyncio.Task[None] | None = None

    # Life

    def open(self) -> None:
        """Begin to load."""
        self.is_active = True
        self.adopt(self.host.root.image)

    def release(self) -> None:
        """Refuse everything from now on; answer whoever waits. Nothing is written."""
        self.is_active = False
        self._close_groups(ErrorCode.not_coordinator)

    def resume(self) -> None:
        """After `release`: begin anew, with what the log says by now."""
        for shard in self.shards:
            shard.close()
        self._topic_id, self.shards = None, []
        self.open()

    def close(self) -> None:
        """Stop whatever goes on."""
        self.release()
        for shard in self.shards:
            shard.close()
        for task in list(self._tasks):
            task.cancel()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run in the background, until `close`."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Shards

    def shard_of(self, group_id: str) -> Shard:
        """The shard of a group; there must be a topic."""
        return self.shards[partition_for_group(group_id, len(self.shards))]

    def adopt(self, image: Image) -> None:
        """Shards for the offsets topic, if it is another one than before."""
        topic = image.topics.get(OFFSETS_TOPIC)
        topic_id = None if topic is None else topic.topic_id
        count = 0 if topic is None else len(topic.partitions)
        if topic_id == self._topic_id and count == len(self.shards):
            return
        self._close_groups(ErrorCode.not_coordinator)
        for shard in self.shards:
            shard.close()
        self._topic_id = topic_id
        self.shards = []
        if topic_id is not None:
            self.shards = [Shard(self.host, self._append, topic_id, number) for number in range(count)]
        for shard in self.shards:
            shard.start(self._loaded)

    def follow(self, old: Image, new: Image) -> None:
        """The image has advanced: others may have appended offsets."""
        self.adopt(new)
        before, after = old.topics.get(OFFSETS_TOPIC), new.topics.get(OFFSETS_TOPIC)
        if before is after or before is None or after is None:
            return
        known = len(before.partitions)
        for number, shard in enumerate(self.shards):
            if number >= known or before.partitions[number] is not after.partitions[number]:
                shard.follow()

    def _loaded(self, shard: Shard, groups: Mapping[str, GroupValue]) -> None:
        now = self.now()
        for group_id, value in groups.items():
            if self.shard_of(group_id) is shard:  # else: written by one who counted other partitions
                handle = self._hold(group_id, shard, now)
                handle.group.restore(value, now)
                self.run(handle, [])
        if groups or len(shard.offsets):
            counts = len(groups), len(shard.offsets)
            _log.info("%s-%d: loaded %d groups, offsets of %d", OFFSETS_TOPIC, shard.partition, *counts)
        self._on_loaded(shard)

    # Groups

    def exists(self, group_id: str) -> bool:
        """Has it members, a history, or offsets?"""
        if group_id in self.groups:
            return True
        return bool(self.shards) and group_id in self.shard_of(group_id).offsets

    def is_full(self) -> bool:
        """May there be no more groups?"""
        with_offsets = sum(len(shard.offsets) for shard in self.shards)
        return len(self.groups) + with_offsets >= self.host.settings.group_max_groups

    def create(self, group_id: str) -> Handle:
        """A new group, empty."""
        return self._hold(group_id, self.shard_of(group_id), self.now())

    def run(self, handle: Handle, effects: Iterable[Effect]) -> None:
        """Do what a group wants done, and set its alarm."""
        for effect in effects:
            if isinstance(effect, Answer):
                self._answer(effect)
            else:
                # Begun here, not in the task: that is what keeps the order.
                key = GroupKey(group=handle.group.group_id)
                self.spawn(self._stored(handle, effect, handle.shard.append([(key, effect.value)])))
        group = handle.group
        self._count(handle, group.held_bytes)
        if group.is_disposable and self.groups.get(group.group_id) is handle:
            self.drop(handle, ErrorCode.coordinator_not_available)
        else:
            self._arm(handle)

    def drop(self, handle: Handle, error: ErrorCode) -> None:
        """Hold a group no longer; whoever waits is told `error`."""
        del self.groups[handle.group.group_id]
        handle.cancel_alarm()
        for effect in handle.group.close(error, self.now()):
            if isinstance(effect, Answer):
                self._answer(effect)
        self._count(handle, 0)

    def now(self) -> Instant:
        """Both clocks."""
        return Instant(self.host.clock.monotonic_ms(), self.host.clock.now_ms())

    def _hold(self, group_id: str, shard: Shard, now: Instant) -> Handle:
        limits = GroupLimits(
            max_size=self.host.settings.group_max_size,
            initial_rebalance_delay_ms=self.host.settings.group_initial_rebalance_delay_ms,
        )
        handle = self.groups[group_id] = Handle(Group(group_id, limits, now), shard)
        return handle

    def _answer(self, answer: Answer) -> None:
        """Whoever waited may have waited for longer than this broker was in charge."""
        if answer.ticket.done():  # the client is gone
            return
        result = answer.result
        if not result.error and not self.host.role.is_in_charge:
            result = refusal_of(result, ErrorCode.not_coordinator)
        answer.ticket.set_result(result)

    async def _stored(self, handle: Handle, effect: StoreGroup, appended: asyncio.Future[None]) -> None:
        error = await self._outcome(appended)
        self.run(handle, handle.group.stored(effect.write_id, error, self.now()))

    def _arm(self, handle: Handle) -> None:
        wake_at_ms = handle.group.wake_at_ms
        if wake_at_ms is None:
            handle.cancel_alarm()
        elif handle.alarm is None or wake_at_ms < handle.alarm_at_ms:
            handle.cancel_alarm()
            delay_ms = max(0, wake_at_ms - self.host.clock.monotonic_ms())
            handle.alarm_at_ms = wake_at_ms
            handle.alarm = self.host.timer.schedule(delay_ms, lambda: self._ring(handle))

    def _ring(self, handle: Handle) -> None:
        handle.alarm = None
        if handle.group.state is not GroupState.DEAD:
            self.run(handle, handle.group.tick(self.now()))

    def _count(self, handle: Handle, held_bytes: int) -> None:
        self.held_bytes += held_bytes - handle.held_bytes
        handle.held_bytes = held_bytes

    def _close_groups(self, error: ErrorCode) -> None:
        for handle in list(self.groups.values()):
            self.drop(handle, error)

    # Writing

    async def append(self, shard: Shard, records: Sequence[Record]) -> ErrorCode:
        """Make records durable, then show them; what went wrong."""
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
        return self.host.publisher.submit([part])

    async def ensure_topic(self) -> ErrorCode:
        """Make __consumer_offsets if there is none."""
        if self.shards:
            return ErrorCode.none
        if self._creating is None:
            self._creating = asyncio.get_running_loop().create_task(self._create_topic())
        creating = self._creating
        try:
            await asyncio.shield(creating)
        except SparklogError as error:
            _log.warning("creating %s failed: %s", OFFSETS_TOPIC, error)
            return ErrorCode.coordinator_not_available
        finally:
            if creating.done() and self._creating is creating:
                self._creating = None
        self.adopt(self.host.root.image)
        return ErrorCode.none if self.shards else ErrorCode.coordinator_not_available

    async def _create_topic(self) -> None:
        partitions = self.host.root.root_config().offsets_topic_num_partitions
        topic_id = new_id()

        def plan(image: Image) -> Sequence[Action]:
            if OFFSETS_TOPIC in image.topics:
                return []
            configs = OFFSETS_TOPIC_CONFIGS
            return [plan_create_topic(image, OFFSETS_TOPIC, partitions, topic_id=topic_id, configs=configs)]

        await self.host.publisher.submit_plan(plan)
