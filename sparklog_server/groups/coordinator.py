"""The group coordinator: requests about groups and offsets, answered by pure groups and by shards of the log.

Every request is planned by a pure group, made durable, and then shown. Until the partition of a group is
loaded, its requests are answered COORDINATOR_LOAD_IN_PROGRESS.
Invariants: nothing that clients send makes more than sparklog.group.max.groups groups, or makes members hold
    more than sparklog.group.max.bytes, or committed offsets more than sparklog.group.max.offset.bytes; a
    group fits its record (sparklog.group.max.record.bytes).
Not here: rules of membership (group.py), the groups that are held (table.py), where they are in the log
    (coordination/), expiry (expiry.py), Kafka's entities (api/).
Concurrency: event loop only. A request's state changes happen before its first await, or after its write.
Sources: Kafka GroupCoordinator, GroupCoordinatorService.
"""

import asyncio
import itertools
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sparklog.client.groups import MAX_GROUP_BYTES
from sparklog.errors import InvalidRequestError
from sparklog.format.consumer_group_records import ResolvedRegex
from sparklog.format.consumer_offsets import MAX_STRING_BYTES, GroupKey, OffsetValue
from sparklog.metadata import Image
from sparklog_server.coordination.internal_topic import Host, LogStatus
from sparklog_server.coordination.shards import Shards
from sparklog_server.coordination.staging import StagedBy
from sparklog_server.groups.consumer_group import ConsumerGroup
from sparklog_server.groups.consumer_members import (
    JOIN,
    HeartbeatAnswer,
    HeartbeatRequest,
    refusal,
    refuse_request,
)
from sparklog_server.groups.consumer_table import ConsumerHandle
from sparklog_server.groups.expiry import Deletion, Expiry
from sparklog_server.groups.group import Group
from sparklog_server.groups.messages import (
    CONSUMER_PROTOCOL_TYPE,
    UNKNOWN_MEMBER,
    GroupState,
    JoinRequest,
    JoinResult,
    Leaving,
    SyncRequest,
    SyncResult,
)
from sparklog_server.groups.migration import Upgrade
from sparklog_server.groups.offsets import (
    OFFSETS_LOG,
    GroupRecord,
    GroupsState,
    OffsetToCommit,
    Record,
    Shard,
    TopicPartition,
    records_of,
)
from sparklog_server.groups.regexes import MOST_PATTERNS, Regexes
from sparklog_server.groups.table import GroupTable, Room
from sparklog_server.protocol.apis import ErrorCode
from sparklog_server.protocol.wire import in_slices
from sparklog_server.runtime.lifecycle import Background, in_turns
from sparklog_server.settings.groups import GroupSettings

_log = logging.getLogger("sparklog_server.coordinator")
Visible = Callable[[Sequence[str]], Awaitable[Sequence[str]]]
MAX_CLIENT_ID_CHARACTERS: Final = 255  # of a member id; it must fit into a record
MAX_MEMBER_ID_CHARACTERS: Final = MAX_CLIENT_ID_CHARACTERS + len(f"-{uuid.UUID(int=0)}")  # that is given here
MAX_INSTANCE_ID_CHARACTERS: Final = 249  # Kafka's own limit, as for topics
DELETED_AT_ONCE: Final = 1_000  # groups and offsets, some 20 ms
MAX_PROTOCOLS: Final = (
    100  # of a member; clients have up to five. 64 KB of names alone were 900 KB of objects
)


Committed = tuple[ErrorCode, Mapping[TopicPartition, OffsetValue]]


CLASSIC, CONSUMER = "classic", "consumer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    """A group in ListGroups. `group_type`: classic, consumer, ..."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str = CLASSIC


async def _all(names: Sequence[str]) -> Sequence[str]:
    return names


class GroupCoordinator:
    """Answers requests about groups and offsets."""

    def __init__(self, host: Host, settings: GroupSettings) -> None:
        self._host = host
        self._settings = settings
        self._background = Background()
        self.shards = Shards(
            host,
            OFFSETS_LOG,
            GroupsState,
            on_loading=self._loading,
            on_loaded=self._loaded,
            on_resigned=self._resigned,
        )
        self.table = GroupTable(host, settings, self.shards, self._background)
        self.consumers = self.table.consumers
        self._regexes = Regexes(host)
        self._room = Room(settings, self.table)
        self._deletion = Deletion(self.table)
        self._expiry = Expiry(host, settings, self.shards, self.table, self._deletion, self._background)

    # Life

    async def start(self) -> None:
        """Begin to load; requests are answered from now on."""
        self._host.root.on_image(self._follow_image)
        self.shards.open()
        self._expiry.start()

    async def stop(self) -> None:
        """Answer requests that wait, and stop. After a restart members find the group as it is in the log."""
        self._expiry.stop()
        self.shards.close()
        self._background.cancel()

    def release(self) -> None:
        """Refuse everything from now on, requests that wait included. Nothing is written."""
        self._expiry.stop()
        self.shards.release()

    def resume(self) -> None:
        """After `release`: load everything again; other brokers may have had the groups meanwhile."""
        self.shards.resume()
        self._expiry.start()

    async def ensure_topic(self) -> ErrorCode:
        """Make __consumer_offsets if there is none: FindCoordinator does, as in Kafka."""
        if not self._host.role.is_in_charge:
            return ErrorCode.coordinator_not_available
        return await self.shards.ensure_topic()

    async def expire(self) -> None:
        """Forget offsets whose retention is over, and groups that are empty and have none left."""
        await self._expiry.expire()

    def _follow_image(self, old: Image, new: Image) -> None:
        if self.shards.is_active:
            self.shards.follow(old, new)
            self._expiry.follow(old, new)

    def _loading(self, shard: Shard) -> Iterator[None]:
        return self.table.take_up(shard)

    def _loaded(self, shard: Shard) -> None:
        self._background.spawn(self.table.wake(shard))
        self._expiry.loaded(shard)

    def _resigned(self, shards: Collection[Shard]) -> None:
        self.table.send_away(shards)

    # Membership

    def new_member_id(self, client_id: str, instance_id: str | None) -> str:
        """Return an id that no member has."""
        prefix = client_id if instance_id is None else instance_id
        return f"{prefix[:MAX_CLIENT_ID_CHARACTERS]}-{uuid.uuid4()}"

    async def join(self, group_id: str, request: JoinRequest) -> JoinResult:
        """JoinGroup: answered when the rebalance is over."""
        table = self.table
        error = self._status_error(group_id) or self._refuse_join(request) or await self._ready(group_id)
        if not error and (result := await self._join_consumers(group_id, request)) is not None:
            return result
        error = error or self._status_error(group_id)  # it may have moved meanwhile
        handle = None if error else table.groups.get(group_id)
        if not error and handle is None:
            if request.member_id != UNKNOWN_MEMBER:
                error = ErrorCode.unknown_member_id
            elif table.is_full():
                error = ErrorCode.group_max_size_reached
        if not error and not self._room.is_there_for(request, handle):
            error = ErrorCode.group_max_size_reached
        if error:
            return JoinResult(error=error, member_id=request.member_id)
        handle = handle or table.create(group_id)
        future: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        table.run(handle, handle.group.join(request, future, table.now()))
        is_untold = request.member_id == UNKNOWN_MEMBER and request.instance_id is None
        member_id = request.new_member_id if is_untold else None
        del request  # the group has what it needs of it
        try:
            return await future
        except asyncio.CancelledError:  # the connection is gone
            if member_id is not None and table.groups.get(group_id) is handle:
                # No client knows the id, so no request or heartbeat can ever come from this member. The group
                # would wait for it, and keep its subscription, until its session ends.
                _, effects = handle.group.leave([Leaving(member_id=member_id)], table.now())
                table.run(handle, effects)
            raise

    async def sync(self, group_id: str, request: SyncRequest) -> SyncResult:
        """SyncGroup: answered when the leader's assignment is durable."""
        table = self.table
        error = self._status_error(group_id)
        if error == ErrorCode.coordinator_load_in_progress:
            # Older clients do not expect that here; what they know is to join again.
            error = ErrorCode.rebalance_in_progress
        if not error and (consumers := self.consumers.find(group_id)) is not None:
            return await self.consumers.sync(consumers, request)
        handle = table.groups.get(group_id)
        if not error and handle is None:
            error = ErrorCode.unknown_member_id
        if not error and handle is not None and not self._room.is_there_to_assign(request, handle):
            refusal = ErrorCode.unknown_server_error
            error, effects = handle.group.refuse_assignment(request, refusal, table.now())
            table.run(handle, effects)
        if error or handle is None:
            return SyncResult(error=error)
        future: asyncio.Future[SyncResult] = asyncio.get_running_loop().create_future()
        table.run(handle, handle.group.sync(request, future, table.now()))
        del request  # of a follower's nothing is needed
        return await future

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation_id: int
    ) -> ErrorCode:
        """Heartbeat."""
        error = self._status_error(group_id)
        if error:
            # Sessions begin again when the group is loaded.
            return ErrorCode.none if error == ErrorCode.coordinator_load_in_progress else error
        if (consumers := self.consumers.find(group_id)) is not None:
            return self.consumers.beat(consumers, member_id, instance_id, generation_id)
        handle = self.table.groups.get(group_id)
        if handle is None:
            return ErrorCode.unknown_member_id
        return handle.group.heartbeat(member_id, instance_id, generation_id, self.table.now())

    async def leave(self, group_id: str, leaving: Sequence[Leaving]) -> tuple[ErrorCode, list[ErrorCode]]:
        """LeaveGroup: an error for all, and one for each."""
        error = self._status_error(group_id)
        if error:
            return error, []
        if (consumers := self.consumers.find(group_id)) is not None:
            return await self.consumers.leave(consumers, leaving)
        handle = self.table.groups.get(group_id)
        if handle is None:
            return ErrorCode.none, [ErrorCode.unknown_member_id] * len(leaving)
        errors, effects = handle.group.leave(leaving, self.table.now())
        self.table.run(handle, effects)
        return ErrorCode.none, errors

    # Consumer groups (KIP-848)

    async def consumer_heartbeat(
        self, group_id: str, request: HeartbeatRequest, *, makes_ids: bool, visible: Visible = _all
    ) -> HeartbeatAnswer:
        """ConsumerGroupHeartbeat: a member joins, goes on or leaves.

        Args:
            makes_ids: the member may have no id yet (version 0).
            visible: returns those of some topics that the client may know of.
        """
        error = self._status_error(group_id) or await self._ready(group_id)
        if error:
            return refusal(error, "the group is not coordinated here now")
        if not request.member_id and makes_ids:
            request = replace(request, member_id=str(uuid.uuid4()))
        refused = refuse_request(request, self._settings.consumer_assignor_names, makes_ids=makes_ids)
        refused = refused or self._refuse_names(request)
        resolved: dict[str, ResolvedRegex] = {}
        if refused is None:
            refused, resolved = await self._resolve(group_id, request, visible)
            error = self._status_error(group_id)  # it may have moved meanwhile
        if refused is not None or error:
            return refused or refusal(error, "the group is not coordinated here now")
        handle, first = self.consumers.find(group_id), list[Record]()
        follows: ConsumerGroup | None = None
        if handle is None:
            refused, first, follows = self._new_consumer_group(group_id, request)
        others = self.table.held_bytes
        if refused is None and not self.consumers.has_room_for(handle, request, others, resolved):
            refused = refusal(ErrorCode.group_max_size_reached, "members take too much memory")
        if refused is not None:
            return refused
        if handle is None:
            classic = self.table.groups.get(group_id)
            if classic is not None:
                self.table.drop(classic, ErrorCode.rebalance_in_progress)
            handle = self.consumers.create(group_id) if follows is None else self.consumers.adopt(follows)
        return await self.consumers.heartbeat(handle, request, resolved, first)

    def _new_consumer_group(
        self, group_id: str, request: HeartbeatRequest
    ) -> tuple[HeartbeatAnswer | None, list[Record], ConsumerGroup | None]:
        """Return why there can be no such group, or its first records, and the group if it has members.

        The classic group ends, if there is one; if it has members, they go on in this one.
        """
        classic = self.table.groups.get(group_id)
        if request.member_epoch != JOIN:
            return refusal(ErrorCode.group_id_not_found, "there is no such consumer group"), [], None
        if classic is None:
            if self.table.is_full():
                return refusal(ErrorCode.group_max_size_reached, "there are too many groups"), [], None
            return None, [], None
        group = classic.group
        first: list[Record] = [GroupRecord(GroupKey(group=group_id), None)] if group.generation_id else []
        if group.state is GroupState.EMPTY and not (group.members.pending or group.writes.held_bytes):
            return None, first, None
        refused = self._refuse_upgrade(group)
        if refused is not None:
            return refused, [], None
        # Members may have said megabytes, which take long to read: not again for each request.
        version = group.generation_id, group.state, group.held_bytes
        if classic.not_upgraded is not None and classic.not_upgraded[0] == version:
            return classic.not_upgraded[1], [], None
        upgrade = Upgrade(group, self.consumers.catalogs.current())
        if upgrade.refused is not None:
            classic.not_upgraded = version, upgrade.refused
            _log.debug("group %r stays a classic group: %s", group_id, upgrade.refused.message)
            return upgrade.refused, [], None
        follows = upgrade.group(self.consumers.limits(group_id), self.table.now())
        refused = follows.refuse(request)
        if refused is None:
            _log.info("group %r becomes a consumer group: %s joins", group_id, request.member_id)
        return refused, [*first, *upgrade.records], follows

    def _refuse_upgrade(self, group: Group) -> HeartbeatAnswer | None:
        """Return why a classic group with members may not become a consumer group."""
        why = None
        if not self._settings.may_upgrade:
            why = "the group has members of the classic protocol; stop them first"
        elif group.members and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            why = "its members are no consumers"
        elif len(group.members) > self._settings.consumer_max_size:
            why = "the group has too many members for a consumer group"
        return None if why is None else refusal(ErrorCode.group_id_not_found, why)

    async def _resolve(
        self, group_id: str, request: HeartbeatRequest, visible: Visible
    ) -> tuple[HeartbeatAnswer | None, dict[str, ResolvedRegex]]:
        """Look up the topics of regular expressions that are new, or whose topics may have changed.

        Only those that the client may know of are added, as in Kafka. Those that the group has already stay:
        a member with fewer permissions takes nothing from the others.
        """
        handle = self.consumers.find(group_id)
        if handle is None:
            known, wanted = set[str](), [request.regex] if request.regex else []
        else:
            known = set(handle.group.patterns)
            wanted = handle.group.patterns_to_resolve(request, self.consumers.catalogs.current().version)
        resolved: dict[str, ResolvedRegex] = {}
        if len(known.union(wanted)) > MOST_PATTERNS:
            message = f"the group has {len(known)} regular expressions already"
            return refusal(ErrorCode.invalid_regular_expression, message), resolved
        for pattern in wanted if request.member_epoch >= JOIN else ():
            try:
                found = await self._regexes.topics_of(pattern)
                if found is not None:
                    before = handle.group.regexes.get(pattern) if handle is not None else None
                    known_of = {*await visible(found.topics), *(() if before is None else before.topics)}
                    topics = tuple(name for name in found.topics if name in known_of)
                    resolved[pattern] = replace(found, topics=topics)
                elif pattern == request.regex:
                    message = "many regular expressions are being evaluated; retry"
                    return refusal(ErrorCode.coordinator_not_available, message), resolved
            except InvalidRequestError as error:
                if pattern == request.regex:
                    return refusal(ErrorCode.invalid_regular_expression, error.message), resolved
                _log.warning("group %r: topics of %r stay as they were: %s", group_id, pattern, error)
        return None, resolved

    async def _join_consumers(self, group_id: str, request: JoinRequest) -> JoinResult | None:
        """JoinGroup to a consumer group. None: there is none, or it was empty, and is deleted."""
        handle = self.consumers.find(group_id)
        if handle is None:
            return None
        error = ErrorCode.none
        if not handle.group.members:
            if request.member_id != UNKNOWN_MEMBER:
                error = ErrorCode.unknown_member_id
            elif not (error := await self._end_consumer_group(group_id, handle)) and not handle.group.members:
                return None
        is_known = request.member_id in handle.group.members
        if not error and not self._settings.may_mix:
            error = ErrorCode.inconsistent_group_protocol
        elif not error and not is_known and len(request.member_id) > MAX_MEMBER_ID_CHARACTERS:
            error = ErrorCode.unknown_member_id  # one that was given is kept nowhere, so it could be any
        if error:
            return JoinResult(error=error, member_id=request.member_id)
        return await self.consumers.join(handle, request, self.table.held_bytes)

    async def _end_consumer_group(self, group_id: str, handle: ConsumerHandle) -> ErrorCode:
        """Delete an empty group, unless a member comes meanwhile; its offsets stay."""
        error = await self.consumers.settled(handle)
        if error or handle.is_busy:
            return error or ErrorCode.coordinator_not_available
        if handle.group.members:
            return ErrorCode.none
        epoch = handle.group.epoch
        error = await handle.shard.write(handle.group.tombstones())
        if not error and handle.group.epoch == epoch:
            self.consumers.forget(group_id, handle.shard)
        return error

    def member_count(self, group_id: str) -> int:
        """How many members a group has, of either protocol."""
        consumers, group = self.consumers.groups.get(group_id), self.find(group_id)
        if consumers is not None:
            return len(consumers.group.members)
        return 0 if group is None else len(group.members)

    def find_consumers(self, group_id: str) -> ConsumerGroup | None:
        """The group, if it is one of the new protocol."""
        handle = self.consumers.find(group_id)
        return None if handle is None else handle.group

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
        knows_epochs: bool = False,
    ) -> ErrorCode:
        """OffsetCommit: one answer for all of its (valid) partitions, once they are durable.

        Args:
            knows_epochs: the request's version has member epochs (9 and up).
        """
        table = self.table
        error = await self._ready(group_id, named=False)
        if error:
            return error
        handle, shard = table.groups.get(group_id), self.shards.of(group_id)
        consumers = self.consumers.find(group_id)
        if consumers is not None:
            error = self._check_consumer(consumers, offsets, member_id, generation_id)
            member = consumers.group.members.get(member_id)
            if not error and not knows_epochs and member is not None and not member.is_classic:
                error = ErrorCode.unsupported_version
        elif generation_id >= 0 and knows_epochs and not table.exists(group_id):
            error = ErrorCode.group_id_not_found
        elif handle is not None:
            error = handle.group.check_commit(member_id, instance_id, generation_id, table.now())
        else:
            error = self._refuse_without_members(group_id, shard, generation_id)
        if error:
            return error
        records = records_of(group_id, offsets, table.now().wall_ms, retention_ms)
        if not table.has_room_for(shard, records):
            return ErrorCode.invalid_commit_offset_size
        return await shard.write(records)

    async def stage(
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

        They are records of __consumer_offsets that the end of the transaction appends, which may be another
        broker's work; then this coordinator reads them. As in Kafka, the generation of a member is checked
        now and not again at the end: a later member finds the offsets unstable, and waits.

        Raises:
            SparklogError: why its transaction cannot stage them, or (RetriableError, StorageError) perhaps
                has not.
        """
        table = self.table
        error = await self._ready(group_id)
        if error:
            return error
        handle, shard = table.groups.get(group_id), self.shards.of(group_id)
        consumers = self.consumers.find(group_id)
        if consumers is not None:
            error = self._check_consumer(consumers, offsets, member_id, generation_id, is_staged=True)
            if error is ErrorCode.stale_member_epoch:  # producers do not know it
                error = ErrorCode.illegal_generation
        elif handle is not None:
            error = handle.group.check_staged_commit(member_id, instance_id, generation_id)
        else:
            error = self._refuse_without_members(group_id, shard, generation_id)
        if error:
            return error
        records = records_of(group_id, offsets, table.now().wall_ms)
        if not table.has_room_to_stage(records):
            return ErrorCode.invalid_commit_offset_size
        if records:
            await shard.stage(records, by)
        return ErrorCode.none

    async def settled(self, group_ids: Iterable[str], before_waiting: Callable[[], None]) -> None:
        """Wait, SETTLE_MS at most, until what transactions have committed for these groups is applied.

        A client that has committed a transaction, and asks for the offsets then, means those.

        Args:
            before_waiting: is called if anything is to be waited for.
        """
        shards = set(await in_slices(map(self.shards.find, group_ids)))
        behind = [shard for shard in shards if shard is not None and not shard.is_settled]
        if behind:
            before_waiting()
            await asyncio.gather(*(shard.settled() for shard in behind))

    def fetch(self, group_id: str) -> Committed:
        """OffsetFetch: everything that the group has committed."""
        return next(self.fetch_all([group_id]))

    def fetch_all(self, group_ids: Sequence[str]) -> Iterator[Committed]:
        """Yield the same of many groups. To be consumed in one turn of the loop, as of one moment."""
        for name, (error, shard) in zip(group_ids, self.shards.look_up(group_ids), strict=True):
            if not _fits(name, MAX_GROUP_BYTES):
                yield ErrorCode.invalid_group_id, {}
            else:
                yield error, {} if error or shard is None else shard.state.committed(name)

    def refuse_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Return why a member of the new protocol may not fetch offsets in this epoch."""
        if member_id is None and member_epoch < 0:
            return ErrorCode.none
        consumers = self.consumers.find(group_id)
        if consumers is None:
            known = self.table.exists(group_id) or member_epoch < 0
            return ErrorCode.none if known else ErrorCode.group_id_not_found
        member = consumers.group.members.get(member_id or "")
        if member is None:
            return ErrorCode.unknown_member_id
        if member.epoch == member_epoch:
            return ErrorCode.none
        return ErrorCode.illegal_generation if member.is_classic else ErrorCode.stale_member_epoch

    def committed_count(self, group_id: str) -> int:
        """How many offsets a group has, as far as this broker knows."""
        shard = self.shards.find(group_id)
        return 0 if shard is None else len(shard.state.committed(group_id))

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
        """OffsetDelete: an error for all, or one for each."""
        error = self._status_error(group_id)
        shard = self.shards.find(group_id)
        if error or shard is None:  # nobody has committed anything yet
            return error or ErrorCode.group_id_not_found, {}
        return await self._deletion.delete_offsets(shard, group_id, partitions)

    # Administration

    def find(self, group_id: str) -> Group | None:
        """The group, for DescribeGroups; None also for one that has nothing but offsets."""
        handle = self.table.groups.get(group_id)
        return None if handle is None else handle.group

    def describe_error(self, group_id: str) -> ErrorCode:
        """Return why the group cannot be described now."""
        return self._status_error(group_id, named=False)

    def exists(self, group_id: str) -> bool:
        """True if it has members, a history, or offsets."""
        return self.table.exists(group_id)

    def group_ids(self) -> tuple[ErrorCode, list[str]]:
        """Of all groups that are loaded, also those that have only offsets (Spark)."""
        table = self.table
        if not (self.shards.is_active and self._host.role.is_in_charge):
            return ErrorCode.coordinator_not_available, []
        found = [*table.groups, *self.consumers.groups]
        named = set(found)
        for shard in self.shards:
            found += [group_id for group_id in shard.state.groups() if group_id not in named]
        return ErrorCode.none if self.are_loaded else ErrorCode.coordinator_load_in_progress, found

    @property
    def are_loaded(self) -> bool:
        """All that are coordinated here, as far as they can be."""
        return not any(shard.status is LogStatus.LOADING for shard in self.shards)

    def listed(self, group_id: str) -> ListedGroup:
        """Return a group as it is now; one that has only offsets, or nothing any more, is empty."""
        consumers = self.consumers.groups.get(group_id)
        if consumers is not None:
            return ListedGroup(
                group_id=group_id,
                protocol_type=CONSUMER_PROTOCOL_TYPE,
                state=consumers.group.state,
                group_type=CONSUMER,
            )
        group = self.find(group_id)
        if group is None:
            return ListedGroup(group_id=group_id, protocol_type="", state=GroupState.EMPTY)
        return ListedGroup(group_id=group_id, protocol_type=group.protocol_type or "", state=group.state)

    def list_groups(self) -> tuple[ErrorCode, list[ListedGroup]]:
        """Return all of them."""
        error, found = self.group_ids()
        return error, [self.listed(group_id) for group_id in found]

    async def delete_groups(self, group_ids: Sequence[str]) -> dict[str, ErrorCode]:
        """DeleteGroups: empty groups and their offsets; an error for each."""
        errors: dict[str, ErrorCode] = {}
        # The tombstones of one turn share a commit; those of one partition an append, too.
        in_order: dict[Shard | None, list[str]] = {}
        for group_id in group_ids:
            in_order.setdefault(self.shards.find(group_id), []).append(group_id)
        every = itertools.chain.from_iterable(in_order.values())
        for some in in_turns(every, lambda group_id: 1 + self.committed_count(group_id), DELETED_AT_ONCE):
            by_shard: dict[Shard, list[str]] = {}
            for group_id in some:
                if (handle := self.consumers.groups.get(group_id)) is not None:
                    await self.consumers.settled(handle)  # its last member has just left
                error, shard = self._status_error(group_id, named=False), self.shards.find(group_id)
                if error or shard is None:  # nobody has committed anything yet
                    errors[group_id] = error or ErrorCode.group_id_not_found
                else:
                    by_shard.setdefault(shard, []).append(group_id)
            deleting = [self._deletion.delete_groups(shard, names) for shard, names in by_shard.items()]
            for of_shard in await asyncio.gather(asyncio.sleep(0, {}), *deleting):
                errors |= of_shard
        return errors

    # Checks

    async def _ready(self, group_id: str, *, named: bool = True) -> ErrorCode:
        """Return why the group cannot be served; create __consumer_offsets if there is none."""
        error = self._status_error(group_id, named=named)
        if not error and not self.shards.count:
            error = await self.shards.ensure_topic() or self._status_error(group_id, named=named)
        return error

    def _refuse_without_members(self, group_id: str, shard: Shard, generation_id: int) -> ErrorCode:
        """Return why no offset is committed for a group that is not coordinated."""
        if generation_id >= 0:
            return ErrorCode.illegal_generation
        if not shard.state.has_offsets(group_id) and self.table.is_full():
            return ErrorCode.group_max_size_reached
        return ErrorCode.none

    def _check_consumer(
        self,
        handle: ConsumerHandle,
        offsets: Sequence[OffsetToCommit],
        member_id: str,
        epoch: int,
        *,
        is_staged: bool = False,
    ) -> ErrorCode:
        """Return why a member of a consumer group may not commit these."""
        if handle.is_busy:
            return ErrorCode.coordinator_load_in_progress
        topics = self._host.root.image.topics
        places = [
            ("" if (topic := topics.get(one.topic)) is None else topic.topic_id, one.partition)
            for one in offsets
        ]
        return handle.group.check_commit(member_id, epoch, places, is_staged=is_staged)

    def _refuse_names(self, request: HeartbeatRequest) -> HeartbeatAnswer | None:
        """Return the answer to a request whose names fit into no record."""
        names = (request.member_id, request.instance_id, request.rack_id)
        if any(len(name) > MAX_INSTANCE_ID_CHARACTERS for name in names if name is not None):
            message = f"found a name of more than {MAX_INSTANCE_ID_CHARACTERS} characters"
            return refusal(ErrorCode.invalid_request, message)
        return None

    def _status_error(self, group_id: str, *, named: bool = True) -> ErrorCode:
        """Is the coordinator there for this group? `named`: the empty name is no group."""
        if (named and not group_id) or not _fits(group_id, MAX_GROUP_BYTES):
            return ErrorCode.invalid_group_id
        return self.shards.error_of(group_id)

    def _refuse_join(self, request: JoinRequest) -> ErrorCode:
        settings = self._settings
        shortest_ms, longest_ms = (
            settings.group_min_session_timeout_ms,
            settings.group_max_session_timeout_ms,
        )
        if not shortest_ms <= request.session_timeout_ms <= longest_ms:
            return ErrorCode.invalid_session_timeout
        if request.instance_id is not None and not 0 < len(request.instance_id) <= MAX_INSTANCE_ID_CHARACTERS:
            return ErrorCode.invalid_request
        if len(request.protocols) > MAX_PROTOCOLS:
            return ErrorCode.inconsistent_group_protocol
        names = [request.protocol_type, *(name for name, _ in request.protocols)]
        if not all(_fits(name, MAX_STRING_BYTES) for name in names):
            return ErrorCode.invalid_request
        return ErrorCode.none


def _fits(text: str, most_bytes: int) -> bool:
    """True if it is short enough for a record of __consumer_offsets."""
    return 4 * len(text) <= most_bytes or len(text.encode()) <= most_bytes
