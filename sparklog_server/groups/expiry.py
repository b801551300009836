"""What is forgotten: expired offsets, offsets of deleted topics, groups that are empty and have none left.

Forgetting is writing tombstones; they count when they are durable, like everything else.
Invariants: a group in which somebody is, or into which somebody came while its tombstones were on their way,
    stays; so does what an open transaction may be about to commit. Nothing expires by a wall clock that was
    set forward since the start: no more time has passed than the monotonic clock says. Offsets are kept for
    too long rather than for too short: after a suspend, too.
Not here: when an offset expires (committed_offsets.py).
Concurrency: event loop; long lists are gone through in parts, so that requests get their turn.
Sources: KIP-211, KIP-496; Kafka GroupCoordinator.handleDeletedPartitions, cleanupGroupMetadata.
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final

from sparklog.format.consumer_offsets import GroupKey, OffsetKey
from sparklog.metadata import Image
from sparklog_server.coordination.host import Host
from sparklog_server.coordination.state_log import LogStatus
from sparklog_server.groups.committed_offsets import TopicPartition, expired_offsets
from sparklog_server.groups.offsets_log import GroupRecord, GroupShards, OffsetRecord, Record, Shard
from sparklog_server.groups.staged_commits import StagedCommits
from sparklog_server.groups.table import GroupTable
from sparklog_server.groups.transitions import GroupState
from sparklog_server.protocol.errors import ErrorCode
from sparklog_server.runtime.background import Background
from sparklog_server.runtime.timing_wheel import TimerEntry
from sparklog_server.settings.groups import GroupSettings

GROUPS_AT_ONCE: Final = 500
_ROUNDING_MS: Final = 1_000  # of both clocks, and of what NTP does slowly


class Expiry:
    """See the module's docstring."""

    def __init__(
        self,
        host: Host,
        settings: GroupSettings,
        shards: GroupShards,
        table: GroupTable,
        staged: StagedCommits,
        background: Background,
    ) -> None:
        self._host = host
        self._settings = settings
        self._shards = shards
        self._table = table
        self._staged = staged
        self._background = background
        self._alarm: TimerEntry | None = None
        self._began = table.now()

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
                self._background.spawn(self._delete_of_topics(names, self._ready_shards()))
        self._follow_transactions(new)

    def _follow_transactions(self, image: Image) -> None:
        """What they have committed may be of topics that were deleted meanwhile."""
        gone = [name for name in self._staged.topics_that_are_over() if name not in image.topics]
        if gone:
            self._background.spawn(self._delete_of_topics(gone, self._ready_shards()))

    def loaded(self, shard: Shard) -> None:
        """Topics may have been deleted while nobody looked."""
        topics = self._host.root.image.topics
        gone = [name for name in shard.state.offsets.topics() if name not in topics]
        if gone:
            self._background.spawn(self._delete_of_topics(gone, [shard]))

    async def forget(self, shard: Shard, group_id: str, offsets: Iterable[TopicPartition]) -> ErrorCode:
        """Tombstones for these offsets of an empty group, and for itself."""
        table = self._table
        handle = table.groups.get(group_id)
        records = list(_tombstones(group_id, offsets))
        if handle is not None and handle.group.generation_id:
            records.append(GroupRecord(GroupKey(group=group_id), None))
        error = await shard.write(records)
        if (
            not error
            and handle is not None
            and table.groups.get(group_id) is handle
            and handle.group.state is GroupState.EMPTY
            and not handle.group.roster.pending
            and group_id not in shard.state.offsets
        ):
            table.drop(handle, ErrorCode.coordinator_not_available)
        return error

    async def expire(self) -> None:
        """Forget what has expired."""
        self._follow_transactions(self._host.root.image)
        for shard in self._ready_shards():
            offsets, handles = shard.state.offsets, self._table.groups
            ids = [*offsets.groups()]
            ids += [name for name, one in handles.items() if one.shard is shard and name not in offsets]
            for at in range(0, len(ids), GROUPS_AT_ONCE):
                if shard.status is not LogStatus.READY:
                    break  # no longer ours
                await asyncio.gather(
                    asyncio.sleep(0),
                    *(self._expire_group(shard, group_id) for group_id in ids[at : at + GROUPS_AT_ONCE]),
                )

    async def _expire_group(self, shard: Shard, group_id: str) -> None:
        handle = self._table.groups.get(group_id)
        group = None if handle is None else handle.group
        offsets = shard.state.offsets.of(group_id)
        expired = expired_offsets(
            offsets,
            group,
            now_ms=self._now_ms(),
            retention_ms=self._settings.offsets_retention_minutes * 60_000,
        )
        unstable = self._staged.unstable(group_id)
        expired = [one for one in expired if one not in unstable]
        is_empty = group is None or (group.state is GroupState.EMPTY and not group.roster.pending)
        is_empty = is_empty and not self._staged.is_pending(group_id)
        if is_empty and len(expired) == len(offsets):
            await self.forget(shard, group_id, expired)
        elif expired:
            await shard.write(list(_tombstones(group_id, expired)))

    def _now_ms(self) -> int:
        """The wall clock, but no further ahead than the monotonic one agrees with."""
        now, began = self._table.now(), self._began
        return min(now.wall_ms, began.wall_ms + now.monotonic_ms - began.monotonic_ms + _ROUNDING_MS)

    async def _expire_and_go_on(self) -> None:
        try:
            await self.expire()
        finally:
            if self._shards.is_active:
                self.start()

    async def _delete_of_topics(self, names: list[str], shards: list[Shard]) -> None:
        for shard in shards:
            await shard.write([OffsetRecord(key, None) for key in shard.state.offsets.of_topics(names)])

    def _ready_shards(self) -> list[Shard]:
        return [shard for shard in self._shards if shard.status is LogStatus.READY]


def _tombstones(group_id: str, offsets: Iterable[TopicPartition]) -> Iterator[Record]:
    for topic, partition in offsets:
        yield OffsetRecord(OffsetKey(group=group_id, topic=topic, partition=partition), None)
