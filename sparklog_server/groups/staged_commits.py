"""Offsets that are committed by a transaction: checked as others, staged, and not stable until it is over.

The group's coordinator takes them in and stages them, as records of __consumer_offsets; the end of the
transaction, which may be another broker's work, appends them; and then this coordinator reads them. Which
generation a member is of is checked when they are staged, and not again at the end, as in Kafka: who is a
member from then on finds them unstable, and waits.

Invariants: from the check on, before anything is durable, they are pending. Who is told that a transaction is
    committed, and asks for its offsets at the same broker, is told those, if they can be read within
    SETTLE_MS. What transactions have clients hold counts as committed offsets do.
Not here: what a transaction may stage (publish/), when it is over (coordination/staging.py), Kafka's entities
    (api/).
Concurrency: event loop only.
Sources: Kafka OffsetMetadataManager.commitTransactionalOffset, ClassicGroup.validateOffsetCommit; KIP-447.
"""

import asyncio
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, Final

from sparklog_server.coordination.internal_topic import Host
from sparklog_server.coordination.staging import StagedBy
from sparklog_server.groups.messages import UNKNOWN_MEMBER
from sparklog_server.groups.offsets import GroupShards, OffsetToCommit, TopicPartition, records_of
from sparklog_server.groups.table import GroupTable
from sparklog_server.protocol.apis import ErrorCode
from sparklog_server.protocol.wire import in_slices


class _Everything(Container[Any]):
    """As long as it is not known what is pending."""

    def __contains__(self, _: object) -> bool:
        return True


_EVERYTHING: Final = _Everything()
_NOTHING: Final[Container[TopicPartition]] = frozenset()


class StagedCommits:
    """See the module's docstring."""

    def __init__(
        self,
        host: Host,
        shards: GroupShards,
        table: GroupTable,
        status_error: Callable[[str], ErrorCode],
    ) -> None:
        """`status_error`: is the coordinator there for a group?"""
        self._host = host
        self._shards = shards
        self._table = table
        self._status_error = status_error

    async def commit(
        self,
        group_id: str,
        offsets: Sequence[OffsetToCommit],
        by: StagedBy,
        *,
        member_id: str = UNKNOWN_MEMBER,
        instance_id: str | None = None,
        generation_id: int = -1,
    ) -> ErrorCode:
        """TxnOffsetCommit: one answer for all of its (valid) partitions, once they are staged.

        Raises:
            SparklogError: why its transaction cannot stage them, or (RetriableError, StorageError) perhaps
                has not.
        """
        shards, table = self._shards, self._table
        error = self._status_error(group_id)
        if not error and not shards.count:
            error = await shards.ensure_topic() or self._status_error(group_id)
        if error:
            return error
        handle, shard = table.groups.get(group_id), shards.of(group_id)
        if handle is not None:
            error = handle.group.check_staged_commit(member_id, instance_id, generation_id)
        elif generation_id >= 0:
            error = ErrorCode.illegal_generation
        elif not shard.state.has_offsets(group_id) and table.is_full():
            error = ErrorCode.group_max_size_reached
        if error:
            return error
        records = records_of(group_id, offsets, table.now().wall_ms)
        if not table.has_room_to_stage(records):
            return ErrorCode.invalid_commit_offset_size
        if records:
            await shard.stage(records, by)
        return ErrorCode.none

    async def settled(self, group_ids: Iterable[str], before_waiting: Callable[[], None]) -> None:
        """Wait, SETTLE_MS at most, until what transactions have committed is told to these groups.

        Whoever has committed one, and asks for the offsets then, means those.

        Args:
            before_waiting: is called if anything is to be waited for.
        """
        shards = set(await in_slices(map(self._shards.find, group_ids)))
        behind = [shard for shard in shards if shard is not None and not shard.is_settled]
        if behind:
            before_waiting()
            await asyncio.gather(*(shard.settled() for shard in behind))

    def unstable(self, group_id: str) -> Container[TopicPartition]:
        """The partitions whose offsets may be about to change, of a group that is coordinated here."""
        shard = self._shards.find(group_id)
        if shard is None:
            return _NOTHING
        return _EVERYTHING if shard.is_unsure else shard.state.pending.of(group_id)

    def is_pending(self, group_id: str) -> bool:
        """May any offset of the group be about to change?"""
        shard = self._shards.find(group_id)
        return shard is not None and (shard.is_unsure or group_id in shard.state.pending)

    def topics_that_are_over(self) -> Iterator[str]:
        """Of offsets that were pending and are not any more, once each."""
        for shard in self._shards:
            if shard.state.pending.over_topics:
                yield from shard.state.pending.take_over_topics()
