"""Deleting offsets that have expired or whose topics are deleted, and empty groups that have none left.

Deleting is writing tombstones; they count when they are durable, like everything else.
Invariants: a group that has members, or that a member joined while its tombstones were being appended,
    stays; so does what an open transaction may be about to commit. Tombstones are planned by what is applied
    and what is waiting to be, and appended in the same turn of the loop, if no other record comes first
    (state_log.py): a commit that they were not planned by is behind them in the log, and counts. Nothing
    expires by a wall clock that was set forward since the start: no more time has passed than the monotonic
    clock says; nor before the storage's clock says so, too. Offsets are kept for too long rather than for too
    short: after a suspend, too.
Not covered: where a topic was deleted and created again while no broker was running, the offsets stay: the
    image does not distinguish them. Nor is it known for which topic a transaction has staged an offset, if
    its topic is deleted and created again before it ends.
Not here: when an offset expires (offsets.py).
Concurrency: event loop; long lists are gone through in parts, so that requests get their turn.
Sources: KIP-211, KIP-496; Kafka GroupCoordinator.handleDeletedPartitions, cleanupGroupMetadata.
"""

import asyncio
import functools
import logging
import weakref
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from sparklog.format.consumer_offsets import GroupKey, OffsetKey, OffsetValue
from sparklog.metadata import Image
from sparklog_server.coordination.internal_topic import Host, LogStatus
from sparklog_server.coordination.state_log import write_planned
from sparklog_server.groups.messages import CONSUMER_PROTOCOL_TYPE, GroupState, Instant
from sparklog_server.groups.offsets import (
    GroupRecord,
    GroupShards,
    OffsetRecord,
    Record,
    Shard,
    TopicPartition,
    expired_offsets,
)
from sparklog_server.groups.table import GroupTable
from sparklog_server.protocol.apis import ErrorCode
from sparklog_server.runtime.lifecycle import Background, in_turns
from sparklog_server.runtime.timing import TimerEntry
from sparklog_server.settings.groups import GroupSettings

# --- deletion ----------------------------------------------------------------------------------------
#
# Deleting is writing tombstones; they count when they are durable, like everything else.
# Invariants: what is deleted is what there is when the tombstones come to the log: planned again where others
#     (Spark, a client without a broker) commit in between, so that no commit goes by halves; a group that
#     a member joined meanwhile stays; and so does what an open transaction may be about to commit.
# Concurrency: event loop.
# Sources: KIP-229, KIP-496; Kafka OffsetMetadataManager.deleteOffsets.


class Deletion:
    """Deletes groups and offsets for clients."""

    def __init__(self, table: GroupTable) -> None:
        self._table = table

    async def delete_groups(self, shard: Shard, group_ids: Sequence[str]) -> dict[str, ErrorCode]:
        """Empty groups and their offsets, by one append; an error for each."""
        results: dict[str, ErrorCode] = {}
        generations: dict[str, int] = {}

        def plan() -> Sequence[Record]:
            records: list[Record] = []
            for group_id in group_ids:
                results[group_id] = self._refuse(group_id)
                generations[group_id] = self.generation_of(group_id)
                if not results[group_id]:
                    records += self.tombstones(group_id, shard.state.planned(group_id), of_group=True)
            return records

        error = await write_planned(shard, plan)
        for group_id in [one for one, refused in results.items() if not refused]:
            if error:
                results[group_id] = error
            else:
                self.drop(shard, group_id, generations[group_id])
        return results

    def generation_of(self, group_id: str) -> int:
        """Return the generation of a group, or its epoch; 0 if it has never had a member."""
        consumers = self._table.consumers.groups.get(group_id)
        if consumers is not None:
            return consumers.group.epoch
        handle = self._table.groups.get(group_id)
        return 0 if handle is None else handle.group.generation_id

    def _refuse(self, group_id: str) -> ErrorCode:
        handle = self._table.groups.get(group_id)
        is_empty = handle is None or handle.group.state is GroupState.EMPTY
        is_empty = is_empty and self._table.consumers.is_empty(group_id)
        if not is_empty or not self._table.is_stable(group_id):
            return ErrorCode.non_empty_group
        return ErrorCode.none if self._table.exists(group_id) else ErrorCode.group_id_not_found

    async def delete_offsets(
        self, shard: Shard, group_id: str, partitions: Sequence[TopicPartition]
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
        """An error for all, or one for each."""
        results: dict[TopicPartition, ErrorCode] = {}

        def plan() -> Sequence[Record] | ErrorCode:
            error = self._judge(group_id, partitions, results)
            planned = shard.state.planned(group_id)
            wanted = [one for one, found in results.items() if not found and one in planned]
            return error or self.tombstones(group_id, wanted)

        error = await write_planned(shard, plan)
        return (error, {}) if error else (ErrorCode.none, results)

    def _judge(
        self,
        group_id: str,
        partitions: Sequence[TopicPartition],
        results: dict[TopicPartition, ErrorCode],
    ) -> ErrorCode:
        """Why none may go; or, in `results`, which may not, and why."""
        if not self._table.exists(group_id):
            return ErrorCode.group_id_not_found
        handle = self._table.groups.get(group_id)
        subscribed: frozenset[str] | None = frozenset()
        consumers = self._table.consumers.groups.get(group_id)
        if consumers is not None:
            subscribed = consumers.group.subscribed_among({topic for topic, _ in partitions})
        elif handle is not None and handle.group.state is not GroupState.EMPTY:
            if handle.group.protocol_type != CONSUMER_PROTOCOL_TYPE:
                return ErrorCode.non_empty_group
            subscribed = handle.group.subscribed_among({topic for topic, _ in partitions})
        unstable = self._table.unstable(group_id)
        for topic, partition in partitions:
            if subscribed is None or topic in subscribed:
                results[topic, partition] = ErrorCode.group_subscribed_to_topic
            elif (topic, partition) in unstable:  # the end of a transaction would bring it back
                results[topic, partition] = ErrorCode.unstable_offset_commit
            else:
                results[topic, partition] = ErrorCode.none
        return ErrorCode.none

    def tombstones(
        self, group_id: str, offsets: Iterable[TopicPartition], *, of_group: bool = False
    ) -> list[Record]:
        """For these offsets. `of_group`: and for the group, if it was ever written."""
        records: list[Record] = [
            OffsetRecord(OffsetKey(group=group_id, topic=topic, partition=partition), None)
            for topic, partition in offsets
        ]
        handle = self._table.groups.get(group_id)
        if of_group and handle is not None and handle.group.generation_id:
            records.append(GroupRecord(GroupKey(group=group_id), None))
        consumers = self._table.consumers.groups.get(group_id)
        if of_group and consumers is not None:
            records += consumers.group.tombstones()
        return records

    def drop(self, shard: Shard, group_id: str, generation_id: int) -> None:
        """Drop a group whose tombstones are durable, unless a member has joined meanwhile: if it has left
        again, a later generation is in the log, after them. A client that was only given an id asks again.
        """
        consumers = self._table.consumers
        if (
            consumers.is_empty(group_id)
            and self.generation_of(group_id) == generation_id
            and not shard.state.has_offsets(group_id)
        ):
            consumers.forget(group_id, shard)
        handle = self._table.groups.get(group_id)
        if (
            handle is not None
            and handle.shard is shard
            and handle.group.state is GroupState.EMPTY
            and handle.group.generation_id == generation_id
            and not shard.state.has_offsets(group_id)
        ):
            self._table.drop(handle, ErrorCode.coordinator_not_available)


# --- expiry ------------------------------------------------------------------------------------------


_log = logging.getLogger("sparklog_server.coordinator")

LOOKED_AT_ONCE: Final = 20_000  # offsets, and topics in subscriptions: some milliseconds
DELETED_AT_ONCE: Final = 5_000  # offsets of topics: some 30 ms in one turn
_GROUP_WEIGHT: Final = 40  # a group without any takes as long as so many of them
_TOPIC_BYTES: Final = 8  # in a subscription
RETRY_MS: Final = 1_000
_MAX_NAMED: Final = 3
_ROUNDING_MS: Final = 1_000  # of both clocks, and of what NTP does slowly
_Offsets = dict[OffsetKey, list[OffsetValue]]  # all that are, or will be, in the log for a topic


class Expiry:
    """Deletes what has expired, and offsets of deleted topics."""

    def __init__(
        self,
        host: Host,
        settings: GroupSettings,
        shards: GroupShards,
        table: GroupTable,
        deletion: Deletion,
        background: Background,
    ) -> None:
        self._host = host
        self._settings = settings
        self._shards = shards
        self._table = table
        self._deletion = deletion
        self._background = background
        self._alarm: TimerEntry | None = None
        self._began = Instant(host.clock.monotonic_ms(), host.clock.now_ms())
        self._deleted_while_loading: weakref.WeakKeyDictionary[Shard, _Offsets] = weakref.WeakKeyDictionary()

    def start(self) -> None:
        """Look for expired offsets from time to time; also when that goes on already."""
        self.stop()
        delay_ms = self._settings.offsets_retention_check_interval_ms
        self._alarm = self._host.timer.schedule(
            delay_ms, lambda: self._background.spawn(self._expire_and_go_on())
        )

    def stop(self) -> None:
        """No more."""
        if self._alarm is not None:
            self._alarm.cancel()

    def follow(self, old: Image, new: Image) -> None:
        """Topics may have been deleted."""
        if old.cluster_changed != new.cluster_changed:  # 0.13 ms for 10,000 topics, with each commit
            deleted = old.topic_by_id.keys() - new.topic_by_id.keys()
            names = [old.topic_by_id[topic_id].name for topic_id in deleted]
            if names:
                self._topics_deleted(names, new)
        self._follow_transactions(new)

    def _follow_transactions(self, image: Image) -> None:
        """What they have committed may be of topics that were deleted meanwhile."""
        names: set[str] = set()
        for shard in self._shards:
            if shard.state.unstaged_topics:
                names |= shard.state.unstaged_topics
                shard.state.unstaged_topics.clear()
        gone = [name for name in names if name not in image.topics]
        if gone:
            self._topics_deleted(gone, image)

    def _topics_deleted(self, names: Collection[str], image: Image) -> None:
        """What is on its way to the log now goes, and what is in it as of that image, read or not: whatever
        is committed later is for other topics, of the same names. What is not read yet, of a topic that was
        created again in the same refresh, may be for either: that stays.
        """
        made_anew = [name for name in names if name in image.topics]
        gone = [name for name in names if name not in image.topics]
        for shard in self._shards:
            found = shard.led.state_in(image)
            if shard.status is LogStatus.FAILED:
                _warn_of_damage(shard, names)
            elif shard.status is LogStatus.READY and found is not None:
                self._delete_up_to(shard.next_offset, shard, made_anew)
                self._delete_up_to(found.log_end_offset, shard, gone)
            elif shard.status is LogStatus.LOADING and found is not None:
                self._delete_up_to(found.log_end_offset, shard, names)

    def _delete_up_to(self, end_offset: int, shard: Shard, names: Collection[str]) -> None:
        coming = shard.state.appended_for(names)

        def reached() -> None:
            _add_to(coming, {key: [value] for key, value in shard.state.committed_for(names)})
            if shard.status is LogStatus.READY:
                self._delete(shard, coming)
            elif shard.status is LogStatus.LOADING:
                _add_to(self._deleted_while_loading.setdefault(shard, {}), coming)

        if names:
            shard.when_applied(end_offset, reached)

    def loaded(self, shard: Shard) -> None:
        """Delete the offsets of topics that were deleted before it was loaded."""
        topics = self._host.root.image.topics
        offsets = self._deleted_while_loading.pop(shard, {})
        gone = {name for name in shard.state.topics() if name not in topics}
        _add_to(offsets, {key: [value] for key, value in shard.state.committed_for(gone)})
        self._delete(shard, offsets)

    async def expire(self) -> None:
        """Forget what has expired."""
        # Others may have committed since the last look: what is planned without it would take that, too.
        if await self._host.root.look(force=True) is not None:
            return
        root, now_ms = self._host.root, self._now_ms()
        self._follow_transactions(root.image)
        now_ms = min(now_ms, await root.run(root.store.storage_now_ms, now_ms))
        for shard in self._ready_shards():
            if not await shard.catch_up():
                continue
            handles, ids = self._table.groups, [*shard.state.groups()]
            known = set(ids)
            ids += [name for name, handle in handles.items() if handle.shard is shard and name not in known]
            of_consumers = self._table.consumers.groups.items()
            ids += [name for name, handle in of_consumers if handle.shard is shard and name not in known]
            for some in in_turns(ids, functools.partial(self._weight, shard), LOOKED_AT_ONCE):
                if not await shard.catch_up():
                    break  # no longer ours, or not to be read
                await asyncio.gather(
                    asyncio.sleep(0), *(self._expire_group(shard, group_id, now_ms) for group_id in some)
                )

    def _weight(self, shard: Shard, group_id: str) -> int:
        """How much there is to look at: a few groups have many offsets, or long subscriptions."""
        handle = self._table.groups.get(group_id)
        topics = 0 if handle is None else handle.group.members.record_bytes // _TOPIC_BYTES
        return _GROUP_WEIGHT + topics + len(shard.state.committed(group_id))

    async def _expire_group(self, shard: Shard, group_id: str, now_ms: int) -> None:
        goes, generation_id = False, 0

        def plan() -> Sequence[Record]:
            nonlocal goes, generation_id
            handle = self._table.groups.get(group_id)
            group = None if handle is None else handle.group
            consumers = self._table.consumers.groups.get(group_id)
            offsets = shard.state.planned(group_id)
            expired = expired_offsets(
                offsets,
                group if consumers is None else consumers.group,
                now_ms=now_ms,
                retention_ms=self._settings.offsets_retention_minutes * 60_000,
            )
            unstable = self._table.unstable(group_id)
            expired = [place for place in expired if place not in unstable]
            is_empty = group is None or (group.state is GroupState.EMPTY and not group.members.pending)
            is_empty = is_empty and self._table.consumers.is_empty(group_id)
            is_empty = is_empty and self._table.is_stable(group_id)
            goes = is_empty and len(expired) == len(offsets)
            generation_id = self._deletion.generation_of(group_id)
            return self._deletion.tombstones(group_id, expired, of_group=goes)

        if not await write_planned(shard, plan) and goes:
            self._deletion.drop(shard, group_id, generation_id)

    def _now_ms(self) -> int:
        """The wall clock, but no further ahead than the monotonic one agrees with."""
        clock, began = self._host.clock, self._began
        elapsed_ms = clock.monotonic_ms() - began.monotonic_ms
        return min(clock.now_ms(), began.wall_ms + elapsed_ms + _ROUNDING_MS)

    async def _expire_and_go_on(self) -> None:
        try:
            await self.expire()
        finally:
            if self._shards.is_active:
                self.start()

    def _delete(self, shard: Shard, offsets: _Offsets) -> None:
        """Those that are as they were, or whose topic is not there: else what has come is for another topic
        of that name. They are known to be gone when their tombstones are durable, by whichever writer.
        """

        def plan(keys: Sequence[OffsetKey]) -> Sequence[Record]:
            planned, topics = shard.state.planned_offset, self._host.root.image.topics
            return [
                OffsetRecord(key, None)
                for key in keys
                if (found := planned(key)) is not None and (found in offsets[key] or key.topic not in topics)
            ]

        async def delete() -> None:
            for keys in in_turns(offsets, lambda _: 1, DELETED_AT_ONCE):
                error = await write_planned(shard, functools.partial(plan, keys))
                if error and error != ErrorCode.unknown_server_error:  # which is for good
                    self._host.timer.schedule(RETRY_MS, again)
                    break

        def again() -> None:
            if shard.status is LogStatus.READY:
                self._background.spawn(delete())

        if offsets:
            self._background.spawn(delete())

    def _ready_shards(self) -> list[Shard]:
        return [shard for shard in self._shards if shard.status is LogStatus.READY]


def _add_to(offsets: _Offsets, more: _Offsets) -> None:
    for key, values in more.items():
        offsets.setdefault(key, []).extend(values)


def _warn_of_damage(shard: Shard, names: Collection[str]) -> None:
    """Offsets of these topics are deleted when the log is loaded again, unless they are created again."""
    named = ", ".join(sorted(names)[:_MAX_NAMED]) + (", ..." if len(names) > _MAX_NAMED else "")
    _log.warning(
        "what groups have committed for %s, which %s deleted, stays where %s cannot be read. Restore its "
        "file, and start the broker again, before such a topic is made again; else take the offsets away "
        "(kafka-consumer-groups --delete-offsets): a group would leave out the first records of the new one",
        named,
        "is" if len(names) == 1 else "are",
        shard.name,
    )
