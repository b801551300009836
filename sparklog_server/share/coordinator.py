"""The coordinator of share groups: their members, and what administrators ask of them.

A group is coordinated by the leader of its partition of __consumer_offsets, as all groups are. Its members
are in memory (members.py); what its members have done with records is in the image. So a group without
members is known by the image alone, to every process.

An assignment that is due is computed with a heartbeat, or by a timer; a large one in a thread
(groups/pacing.py).

Invariants: what clients make has bounds: groups, members, bytes. Offsets change and groups go only without
    members.
Not here: records (service.py), Kafka's entities (api/).
Concurrency: event loop; large assignments are computed in a storage thread.
After a crash: members join again.
Sources: KIP-932; Kafka GroupCoordinatorService, ShareGroup.
"""

import enum
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sparklog.clock import Clock
from sparklog.errors import SparklogError
from sparklog.metadata import (
    Action,
    Image,
    SharePlace,
    ShareState,
    Topic,
    plan_begin_share,
    plan_forget_share,
)
from sparklog_server.groups.pacing import measured
from sparklog_server.protocol.apis import ErrorCode, error_code
from sparklog_server.protocol.wire import Pace
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.runtime.lifecycle import Background
from sparklog_server.runtime.timing import Timer, TimerEntry
from sparklog_server.settings.groups import GroupSettings
from sparklog_server.settings.share import ShareGroupConfig, ShareSettings
from sparklog_server.share.members import (
    ShareAssignmentTask,
    ShareGroup,
    ShareGroupLimits,
    ShareHeartbeat,
    ShareHeartbeatResult,
    Topics,
    held_bytes,
)
from sparklog_server.share.sessions import MAX_GROUP_CHARACTERS, MAX_MEMBER_ID_CHARACTERS
from sparklog_server.share.writer import Publishing

ASSIGNOR: Final = "simple"
EXPIRE_MS: Final = 1_000
UNINITIALIZED: Final = -1
_log = logging.getLogger("sparklog_server.share")


class ShareGroupState(enum.Enum):
    """Kafka's names."""

    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareOffset:
    """A group in a partition; UNINITIALIZED: it has not begun there."""

    topic: Topic
    partition: int
    start_offset: int = UNINITIALIZED
    lag: int = UNINITIALIZED


class ShareCoordinator:
    """See the module's docstring."""

    def __init__(
        self,
        root: LiveRoot,
        publisher: Publishing,
        settings: ShareSettings,
        groups: GroupSettings,
        *,
        refusal_of: Callable[[str], ErrorCode],
        is_other_kind: Callable[[str], bool],
        count_others: Callable[[str], int],
        timer: Timer,
        clock: Clock,
    ) -> None:
        """The callbacks: why this broker does not answer for a group; whether a consumer group has the name,
        and how many members that has.
        """
        self._root = root
        self._publisher = publisher
        self._settings = settings
        self._bounds = groups
        self._refusal_of = refusal_of
        self._is_other_kind = is_other_kind
        self._count_others = count_others
        self._timer = timer
        self._clock = clock
        self._groups: dict[str, ShareGroup] = {}
        self._due: dict[str, TimerEntry] = {}  # when groups are assigned anew
        self._background = Background()
        self._held_bytes = 0
        self._alarm: TimerEntry | None = None

    async def start(self) -> None:
        """Begin to look for silent members."""
        self._look_later()

    def _look_later(self) -> None:
        self._alarm = self._timer.schedule(EXPIRE_MS, self._look)

    def _look(self) -> None:
        self._look_later()  # first: a look that fails must not be the last one
        self._background.spawn(self._expire())

    async def stop(self) -> None:
        """Forget all members."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._background.cancel()
        for group in list(self._groups.values()):
            self._drop(group)

    # --- members -------------------------------------------------------------------------------------

    async def heartbeat(self, group_id: str, request: ShareHeartbeat) -> ShareHeartbeatResult:
        """ShareGroupHeartbeat."""
        if not 1 <= len(group_id) <= MAX_GROUP_CHARACTERS:
            return ShareHeartbeatResult(error=ErrorCode.invalid_group_id, message="GroupId can't be empty.")
        if not 1 <= len(request.member_id) <= MAX_MEMBER_ID_CHARACTERS:
            return ShareHeartbeatResult(error=ErrorCode.invalid_request, message="MemberId can't be empty.")
        error = self._refusal_of(group_id)
        if error:
            return ShareHeartbeatResult(error=error)
        group = self._groups.get(group_id)
        if group is None and self._is_taken(group_id):
            return ShareHeartbeatResult(
                error=ErrorCode.group_id_not_found, message=f"Group {group_id} is not a share group."
            )
        if group is None and len(self._groups) >= self._bounds.group_max_groups:
            return ShareHeartbeatResult(error=ErrorCode.group_max_size_reached)
        growth = held_bytes(request.topics or ())
        if request.topics and self._held_bytes + growth > self._bounds.group_max_bytes:
            return ShareHeartbeatResult(error=ErrorCode.group_max_size_reached)
        if group is None:
            group = self._groups[group_id] = ShareGroup(group_id)
        before, config = group.held_bytes, self.config_of(group_id)
        result = group.heartbeat(
            request,
            Topics(self._root.image.cluster_changed, self._topic_of),
            ShareGroupLimits(
                max_size=self._settings.max_size,
                session_timeout_ms=config.session_timeout_ms,
                assignment_interval_ms=config.assignment_interval_ms,
            ),
            self._clock.monotonic_ms(),
        )
        self._held_bytes += group.held_bytes - before
        self._advance(group)
        return result

    def _advance(self, group: ShareGroup) -> None:
        """Do what follows from a change of the group."""
        if not len(group):
            self._drop(group)
            return
        group_id, now_ms = group.group_id, self._clock.monotonic_ms()
        group.assign_if_due(now_ms, self.config_of(group_id).assignment_interval_ms)
        if group.must_assign_apart(now_ms):
            group.is_assigning = True
            self._background.spawn(self._assign(group, group.task()))
        elif group.needs_assignment and group_id not in self._due:
            delay_ms = max(0, group.pace.next_ms - now_ms)
            self._due[group_id] = self._timer.schedule(delay_ms, lambda: self._assign_anew(group_id))

    def _assign_anew(self, group_id: str) -> None:
        del self._due[group_id]
        self._advance(self._groups[group_id])

    async def _assign(self, group: ShareGroup, task: ShareAssignmentTask) -> None:
        assignment, took_ms = await measured(self._root.run, task.run)
        if self._groups.get(group.group_id) is group:
            interval_ms = self.config_of(group.group_id).assignment_interval_ms
            now_ms = self._clock.monotonic_ms()
            group.assign(task, assignment, now_ms, interval_ms=interval_ms, took_ms=took_ms)
            self._advance(group)

    def _drop(self, group: ShareGroup) -> None:
        del self._groups[group.group_id]
        self._held_bytes -= group.held_bytes
        due = self._due.pop(group.group_id, None)
        if due is not None:
            due.cancel()

    def config_of(self, group_id: str) -> ShareGroupConfig:
        """Return the settings of a group."""
        return ShareGroupConfig.of(self._root.image.configs, group_id, self._settings)

    def _topic_of(self, name: str) -> tuple[str, int] | None:
        topic = self._root.image.topics.get(name)
        return None if topic is None else (topic.topic_id, len(topic.partitions))

    async def _expire(self) -> None:
        now_ms, pace = self._clock.monotonic_ms(), Pace()
        for group_id, group in list(self._groups.items()):
            await pace.made(1)
            if self._groups.get(group_id) is not group:
                continue
            if self._refusal_of(group_id) in _MOVED:
                self._drop(group)
                continue
            before = group.held_bytes
            gone = group.expire(now_ms)
            if gone:
                _log.info("share group %r: %d members are silent, and removed", group_id, len(gone))
                self._held_bytes += group.held_bytes - before
                self._advance(group)

    # --- asking --------------------------------------------------------------------------------------

    def refusal_of(self, group_id: str) -> ErrorCode:
        """Return why this broker does not answer for a group."""
        return self._refusal_of(group_id)

    def has(self, group_id: str) -> bool:
        """True if it is a share group: it has members, or a state."""
        return group_id in self._groups or group_id in self._root.image.shares

    # Groups of both kinds can have one name: a share group begins at the leader of a partition, which does
    # not know of consumer groups, and offsets are committed without a broker, too. Then nobody is kept out
    # by what has no members.

    def owns(self, group_id: str) -> bool:
        """True if no consumer group may begin, since this share group has the name."""
        return group_id in self._groups or (self.has(group_id) and not self._is_other_kind(group_id))

    def _is_taken(self, group_id: str) -> bool:
        """True if no share group may begin, since a consumer group has the name."""
        return self._is_other_kind(group_id) and (not self.has(group_id) or self._count_others(group_id) > 0)

    def find(self, group_id: str) -> ShareGroup | None:
        """Return the group with its members; None: it has none."""
        return self._groups.get(group_id)

    def state_of(self, group_id: str) -> ShareGroupState:
        """Return Kafka's state."""
        if group_id in self._groups:
            return ShareGroupState.STABLE
        return ShareGroupState.EMPTY if self.has(group_id) else ShareGroupState.DEAD

    def group_ids(self) -> Iterator[str]:
        """Yield the share groups that this broker coordinates."""
        for group_id in {**self._groups, **dict.fromkeys(self._root.image.shares)}:
            if not self._refusal_of(group_id):
                yield group_id

    def offsets_of(self, group_id: str) -> list[ShareOffset]:
        """Return the partitions in which a group has begun."""
        image = self._root.image
        return [
            self._offset(image.topic_by_id[topic_id], partition, state)
            for (topic_id, partition), state in sorted(image.shares.get(group_id, {}).items())
        ]

    def offset_of(self, group_id: str, topic: Topic, partition: int) -> ShareOffset:
        """Return a group in a partition that exists."""
        state = self._root.image.shares.get(group_id, {}).get((topic.topic_id, partition))
        if state is None:
            return ShareOffset(topic=topic, partition=partition)
        return self._offset(topic, partition, state)

    def _offset(self, topic: Topic, partition: int, state: ShareState) -> ShareOffset:
        log = topic.partitions[partition]
        start = max(state.start_offset, log.log_start_offset)
        return ShareOffset(
            topic=topic,
            partition=partition,
            start_offset=start,
            lag=max(0, log.log_end_offset - start - state.ended_count),
        )

    # --- changing ------------------------------------------------------------------------------------

    async def alter_offsets(self, group_id: str, starts: Mapping[SharePlace, int]) -> ErrorCode:
        """Let an empty group begin at these offsets."""
        error = self._why_not_changed(group_id)
        if error:
            return error
        return await self._publish(lambda image: plan_begin_share(image, group_id, starts, is_reset=True))

    async def forget(self, group_id: str, topics: Collection[str] = ()) -> ErrorCode:
        """Forget an empty group, in topics (ids) or altogether."""
        error = self._why_not_changed(group_id)
        if error:
            return error
        if not self.has(group_id):
            return ErrorCode.group_id_not_found

        def plan(image: Image) -> Sequence[Action]:
            action = plan_forget_share(image, group_id, topics)
            return [] if action is None else [action]

        return await self._publish(plan)

    def _why_not_changed(self, group_id: str) -> ErrorCode:
        if not 1 <= len(group_id) <= MAX_GROUP_CHARACTERS:
            return ErrorCode.invalid_group_id
        error = self._refusal_of(group_id)
        if error:
            return error
        return ErrorCode.non_empty_group if group_id in self._groups else ErrorCode.none

    async def _publish(self, plan: Callable[[Image], Sequence[Action]]) -> ErrorCode:
        try:
            await self._publisher.submit_plan(plan)
        except SparklogError as error:
            return error_code(error)
        return ErrorCode.none


_MOVED: Final = frozenset({ErrorCode.not_coordinator, ErrorCode.coordinator_not_available})
