"""Deleting groups and offsets because somebody asks for it.

Deleting is writing tombstones; they count when they are durable, like everything else.
Invariants: what is deleted is what there is when the tombstones come to the log: planned anew where others
    (Spark, a client without a broker) commit in between, so that no commit goes by halves; a group that
    somebody joined meanwhile stays; and so does what an open transaction may be about to commit.
Not here: what is forgotten by itself (expiry.py).
Concurrency: event loop.
Sources: KIP-229, KIP-496; Kafka OffsetMetadataManager.deleteOffsets.
"""

from collections.abc import Iterable, Sequence

from sparklog.format.consumer_offsets import GroupKey, OffsetKey
from sparklog_server.coordination.planned_writes import write_planned
from sparklog_server.groups.committed_offsets import TopicPartition
from sparklog_server.groups.offsets_log import GroupRecord, OffsetRecord, Record, Shard
from sparklog_server.groups.staged_commits import StagedCommits
from sparklog_server.groups.subscription import CONSUMER_PROTOCOL_TYPE
from sparklog_server.groups.table import GroupTable
from sparklog_server.groups.transitions import GroupState
from sparklog_server.protocol.errors import ErrorCode


class Deletion:
    """See the module's docstring."""

    def __init__(self, table: GroupTable, staged: StagedCommits) -> None:
        self._table = table
        self._staged = staged

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
        """Of a group that is held; 0 as of one in which nobody ever was."""
        handle = self._table.groups.get(group_id)
        return 0 if handle is None else handle.group.generation_id

    def _refuse(self, group_id: str) -> ErrorCode:
        handle = self._table.groups.get(group_id)
        is_empty = handle is None or handle.group.state is GroupState.EMPTY
        if not is_empty or self._staged.is_pending(group_id):
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
        if handle is not None and handle.group.state is not GroupState.EMPTY:
            if handle.group.protocol_type != CONSUMER_PROTOCOL_TYPE:
                return ErrorCode.non_empty_group
            subscribed = handle.group.subscribed_among({topic for topic, _ in partitions})
        unstable = self._staged.unstable(group_id)
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
        return records

    def drop(self, shard: Shard, group_id: str, generation_id: int) -> None:
        """Hold a group no longer that has its tombstones, unless somebody has come meanwhile: who has left
        again since has left a later generation in the log, behind them. Who was only given an id asks again.
        """
        handle = self._table.groups.get(group_id)
        if (
            handle is not None
            and handle.shard is shard
            and handle.group.state is GroupState.EMPTY
            and handle.group.generation_id == generation_id
            and not shard.state.has_offsets(group_id)
        ):
            self._table.drop(handle, ErrorCode.coordinator_not_available)
