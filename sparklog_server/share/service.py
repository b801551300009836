"""Share fetches and acknowledgements at the leaders of partitions.

A fetch acquires records of the partitions of its session, one after the other, until it has enough; without
any it waits for new records, or for others to give up theirs, and looks again at the partitions that have
changed. A session has one fetch: the next one ends that which waits. A partition is read for one member at a
time: what was read would be acquired by the first one.

Invariants: nothing is answered as acknowledged before it is durable; the locks of a partition are of one
    leader epoch and one state epoch, and gone with either; what is answered as acquired is locked.
Bounds: sessions and their partitions (sessions.py), records that are locked (partition.py), bytes that were
    read and are not counted as an answer yet (HELD_BYTES), dead letters that wait for their commit. A
    partition without a session and without locks is forgotten.
Not here: Kafka's entities (api/), groups and members (coordinator.py).
Concurrency: event loop.
After a crash: locks are gone, and their records are delivered again; an acknowledgement was written or not.
Sources: KIP-932; Kafka SharePartitionManager, DelayedShareFetch.
"""

import asyncio
import functools
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from sparklog.clock import Clock
from sparklog.errors import FencedError, InvalidRequestError, SparklogError
from sparklog.metadata import (
    Image,
    PartitionState,
    SharePlace,
    ShareRecords,
    ShareState,
    Topic,
    share_after,
)
from sparklog_server.cluster.leadership import Leadership
from sparklog_server.fetch.service import FetchService
from sparklog_server.fetch.sessions import PartitionFetch
from sparklog_server.protocol.apis import ErrorCode, error_code
from sparklog_server.protocol.wire import Pace
from sparklog_server.publish.parts import AppendPart
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.runtime.lifecycle import Background
from sparklog_server.runtime.timing import Timer, TimerEntry
from sparklog_server.settings.share import ShareGroupConfig, ShareSettings
from sparklog_server.share import dead_letters
from sparklog_server.share.batches import BatchSpan, joined, merged, needed, spans_of
from sparklog_server.share.partition import (
    AckBatch,
    Acquired,
    AcquireMode,
    ShareLimits,
    SharePartition,
    Transition,
)
from sparklog_server.share.sessions import SessionKey, ShareSession, ShareSessions
from sparklog_server.share.starting import start_offsets
from sparklog_server.share.writer import ShareWriter

READ_BYTES: Final = 1 << 20  # of a partition for a fetch, or one batch
HELD_BYTES: Final = 64 << 20
CROWDED_MS: Final = 100
LETTERS_AT_ONCE: Final = 4  # commits with dead letters, each of at most MAX_LETTER_BYTES
RETRY_MS: Final = 1_000  # what could not be written is tried again after this
SWEEP_MS: Final = 30_000
QUIET_MS: Final = 60_000  # between warnings about a partition
_log = logging.getLogger("sparklog_server.share")

Key = tuple[str, str, int]  # group, topic id, partition
_NO_STATES: Final[Mapping[SharePlace, ShareState]] = {}


class Role(Protocol):
    """cluster/membership.py."""

    @property
    def is_in_charge(self) -> bool:
        """True if this broker may answer for what it leads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareFetchRequest:
    """What a member wants of the partitions of its session."""

    max_wait_ms: int
    max_bytes: int
    max_records: int
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED


@dataclass(slots=True, kw_only=True)
class PartitionShare:
    """One partition of an answer."""

    place: SharePlace
    error: ErrorCode = ErrorCode.none
    data: bytes | memoryview = b""
    acquired: Sequence[Acquired] = ()


@dataclass(slots=True, eq=False)
class _Served:
    """A share group in a partition that this broker leads."""

    key: Key
    partition: SharePartition
    is_reading: bool = False
    alarm: TimerEntry | None = None
    alarm_ms: float = 0
    quiet_until_ms: float = 0
    waiting: set["_Fetch"] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class _Fetch:
    """A fetch that is not answered yet.

    Fields:
        watched: partitions whose changes it is told of.
        changed: those to look at, in order.
        gone: not served any more, since it last began to look.
        is_over: its session has ended, or was continued by another fetch.
    """

    session: ShareSession
    request: ShareFetchRequest
    watched: set[_Served] = field(default_factory=set)
    changed: OrderedDict[_Served, None] = field(default_factory=OrderedDict)
    gone: list[SharePlace] = field(default_factory=list)
    is_over: bool = False
    event: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, served: _Served) -> None:
        """Look at a partition that has changed."""
        self.changed[served] = None
        self.event.set()

    def next_changed(self) -> _Served:
        """Return a partition to look at, once."""
        return self.changed.popitem(last=False)[0]

    def forget(self, served: _Served) -> None:
        """Find out what has become of a partition that is not served any more."""
        self.watched.discard(served)
        self.gone.append(served.key[1:])
        self.event.set()


@dataclass(frozen=True, slots=True)
class _Read:
    """Batches that were read for one fetch."""

    data: bytes
    spans: Sequence[BatchSpan]


class ShareService:
    """See the module's docstring."""

    def __init__(
        self,
        root: LiveRoot,
        role: Role,
        leadership: Leadership,
        fetches: FetchService,
        writer: ShareWriter,
        settings: ShareSettings,
        *,
        timer: Timer,
        clock: Clock,
    ) -> None:
        self._root = root
        self._role = role
        self._leadership = leadership
        self._fetches = fetches
        self._writer = writer
        self._settings = settings
        self._timer = timer
        self._clock = clock
        self._background = Background()
        self._served: dict[Key, _Served] = {}
        self._by_topic: dict[str, dict[Key, _Served]] = {}
        self._sweep: TimerEntry | None = None
        self._fetches_of: dict[SessionKey, _Fetch] = {}  # one for each session
        self.held_bytes = 0
        self._lettering = asyncio.Semaphore(LETTERS_AT_ONCE)
        self.sessions = ShareSessions(max_sessions=settings.max_share_sessions)

    # --- life ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Follow the images."""
        self._root.on_image(self.follow_image)
        self._sweep = self._timer.schedule(SWEEP_MS, self._forget_idle)

    async def stop(self) -> None:
        """Write nothing more."""
        if self._sweep is not None:
            self._sweep.cancel()
        self.release()
        self._writer.stop()
        self._background.cancel()

    def release(self) -> None:
        """Forget all locks: others may lead."""
        for served in list(self._served.values()):
            self._drop(served)

    def follow_image(self, old: Image, new: Image) -> None:
        """Drop what is not led any more, or was reset; wake fetches of partitions that have changed."""
        for topic_id, of_topic in list(self._by_topic.items()):
            before, after = old.topic_by_id.get(topic_id), new.topic_by_id.get(topic_id)
            for served in list(of_topic.values()):
                group, _, number = served.key
                states, states_before = new.shares.get(group, _NO_STATES), old.shares.get(group, _NO_STATES)
                place = topic_id, number
                is_same_state = states is states_before or states.get(place) is states_before.get(place)
                if is_same_state and (
                    before is after or _partition_of(before, number) is _partition_of(after, number)
                ):
                    continue
                self._follow(served, new, is_same_state=is_same_state)

    def _follow(self, served: _Served, new: Image, *, is_same_state: bool) -> None:
        group, topic_id, number = served.key
        state = new.shares.get(group, {}).get((topic_id, number))
        partition = _partition_of(new.topic_by_id.get(topic_id), number)
        if partition is None or not self._still_leads(served, state, new):
            self._drop(served)
            return
        assert state is not None, "_still_leads"
        if not is_same_state or partition.log_start_offset > served.partition.state.start_offset:
            served.partition.follow(share_after(state, (), log_start_offset=partition.log_start_offset))
        self._wake(served)

    def _still_leads(self, served: _Served, state: ShareState | None, image: Image) -> bool:
        leader = self._leadership.leader_of(image.partition_of(*served.key[1:]))
        partition = served.partition
        return (
            leader.node_id == self._leadership.node_id
            and leader.epoch == partition.leader_epoch
            and state is not None
            and state.state_epoch == partition.state.state_epoch
        )

    def _drop(self, served: _Served) -> None:
        if self._served.get(served.key) is served:
            del self._served[served.key]
            of_topic = self._by_topic[served.key[1]]
            del of_topic[served.key]
            if not of_topic:
                del self._by_topic[served.key[1]]
        if served.alarm is not None:
            served.alarm.cancel()
        self._wake(served)

    def _forget_idle(self) -> None:
        self._sweep = self._timer.schedule(SWEEP_MS, self._forget_idle)
        used = {(session.key[0], *place) for session in self.sessions for place in session.partitions}
        for key, served in list(self._served.items()):
            if key not in used and not served.partition.locks and not served.is_reading:
                self._drop(served)

    # --- settings ------------------------------------------------------------------------------------

    def config_of(self, group: str) -> ShareGroupConfig:
        """Return the settings of a group, as of the newest image."""
        return ShareGroupConfig.of(self._root.image.configs, group, self._settings)

    def _limits(self, group: str) -> ShareLimits:
        config = self.config_of(group)
        return ShareLimits(
            max_deliveries=config.delivery_count_limit,
            max_locks=config.partition_max_record_locks,
            lock_ms=config.record_lock_duration_ms,
        )

    # --- fetching ------------------------------------------------------------------------------------

    async def fetch(self, session: ShareSession, request: ShareFetchRequest) -> list[PartitionShare]:
        """Acquire records for the member of a session; the partitions with records or errors.

        Their bytes count as held until `give_back`.
        """
        deadline_ms = self._clock.monotonic_ms() + request.max_wait_ms
        fetch = self._begin_fetch(session, request)
        places: Sequence[SharePlace] = session.rotated()
        try:
            while True:
                fetch.event.clear()
                answers = await self._watch(fetch, places)
                answers += await self._acquire_from(fetch)
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if answers or left_ms <= 0 or fetch.is_over or not self._role.is_in_charge:
                    return answers
                places, fetch.gone = fetch.gone, []
                if self.held_bytes >= HELD_BYTES:
                    await asyncio.sleep(min(left_ms, CROWDED_MS) / 1000)
                    continue
                try:
                    async with asyncio.timeout(left_ms / 1000):
                        await fetch.event.wait()
                except TimeoutError:
                    return []
        finally:
            self._end_fetch(fetch)

    def _begin_fetch(self, session: ShareSession, request: ShareFetchRequest) -> _Fetch:
        """Return the session's fetch. One that waits on another connection, where it was before, ends."""
        self._stop_fetch(session)
        fetch = self._fetches_of[session.key] = _Fetch(session, request)
        return fetch

    def _stop_fetch(self, session: ShareSession) -> None:
        fetch = self._fetches_of.get(session.key)
        if fetch is not None:
            fetch.is_over = True
            fetch.event.set()

    def _end_fetch(self, fetch: _Fetch) -> None:
        if self._fetches_of.get(fetch.session.key) is fetch:
            del self._fetches_of[fetch.session.key]
        for served in fetch.watched:
            served.waiting.discard(fetch)

    async def _watch(self, fetch: _Fetch, places: Sequence[SharePlace]) -> list[PartitionShare]:
        """Have the fetch look at partitions now, and whenever they change; the errors of others."""
        if not places:
            return []
        group = fetch.session.key[0]
        errors = await self._serve(group, places)
        pace = Pace()
        for place in places:
            await pace.made(1)
            served = self._served.get((group, *place))
            if served is not None:
                served.waiting.add(fetch)
                fetch.watched.add(served)
                fetch.note(served)
            elif place not in errors:  # dropped while others began
                errors[place] = ErrorCode.not_leader_or_follower
        return [PartitionShare(place=place, error=error) for place, error in errors.items()]

    def _is_current(self, served: _Served) -> bool:
        return self._served.get(served.key) is served

    async def _acquire_from(self, fetch: _Fetch) -> list[PartitionShare]:
        """Acquire records of the partitions that have changed since the fetch last looked at them."""
        request, found = fetch.request, list[PartitionShare]()
        limits = self._limits(fetch.session.key[0])
        left_records, left_bytes = request.max_records, request.max_bytes
        pace = Pace()
        while fetch.changed and not fetch.is_over:
            is_enough = left_records <= 0 or (left_bytes <= 0 and found)
            if is_enough or self.held_bytes >= HELD_BYTES:
                break
            served = fetch.next_changed()
            if not found:  # whose bytes count already
                await pace.made(1)
            if not self._is_current(served):
                fetch.forget(served)
                continue
            if served.is_reading or served.key[1:] not in fetch.session.partitions:
                continue  # who reads it wakes the others
            first = self._next_free(served, limits)
            if first is None:
                continue
            served.is_reading = True
            reserved = min(READ_BYTES, max(1, left_bytes))
            self.held_bytes += reserved
            try:
                got = await self._read(served, first, max(1, left_bytes))
            except BaseException:
                self.give_back(found)
                raise
            finally:
                self.held_bytes -= reserved
                served.is_reading = False
                self._wake(served, but=fetch)
            if isinstance(got, _Read):
                share = self._acquired(served, got, fetch, left_records, limits)
            else:
                share = PartitionShare(place=served.key[1:], error=got) if got else None
            if share is not None:
                self.held_bytes += len(share.data)
                found.append(share)
                left_records -= sum(one.last - one.first + 1 for one in share.acquired)
                left_bytes -= len(share.data)
        return found

    def give_back(self, shares: Sequence[PartitionShare]) -> None:
        """Count the bytes of an answer no more: it counts by itself, or is not sent."""
        self.held_bytes -= sum(len(one.data) for one in shares)

    def _next_free(self, served: _Served, limits: ShareLimits) -> int | None:
        state, _ = self._found(*served.key[1:])
        if state is None:
            self._drop(served)
            return None
        found = served.partition.next_free(state.log_end_offset, limits)
        if found is None and served.alarm is None and served.partition.state.ranges:
            self._expire(served)  # the limit of deliveries was lowered, and no lock is left that expires
        return found

    async def _read(self, served: _Served, first: int, max_bytes: int) -> _Read | ErrorCode:
        """Read from an offset on; NONE: there is nothing to be read now."""
        group, topic_id, number = served.key
        wanted = PartitionFetch(
            topic="",
            topic_id=topic_id,
            partition=number,
            offset=first,
            max_bytes=min(max_bytes, READ_BYTES),
        )
        fetched = await self._fetches.fetch([wanted], min_bytes=0, max_bytes=max_bytes, max_wait_ms=0)
        try:
            answer = fetched.answers[0]
            if answer.error_code:
                return ErrorCode(answer.error_code)
            data = await self._root.run(joined, answer.chunks) if answer.chunks else b""
        finally:
            fetched.release()
        spans = spans_of(data, first)
        if not spans:
            state, _ = self._led(topic_id, number)
            if state is not None and not state.extents_between(first, state.log_end_offset):
                # Compaction has left nothing up to the end: no member could acknowledge it.
                gap = served.partition.skip(first, state.log_end_offset, self._limits(group))
                self._background.spawn(self._write_in_background(served, gap))
            return ErrorCode.none
        return _Read(data, spans)

    def _acquired(
        self, served: _Served, read: _Read, fetch: _Fetch, max_records: int, limits: ShareLimits
    ) -> PartitionShare | None:
        session = fetch.session
        if fetch.is_over or not self._is_current(served) or served.key[1:] not in session.partitions:
            return None  # since it began to read
        acquired = served.partition.acquire(
            session.key[1],
            [(one.first, one.last) for one in read.spans],
            max_records=max_records,
            mode=fetch.request.mode,
            now_ms=self._clock.monotonic_ms(),
            limits=limits,
        )
        if not acquired:
            return None
        self._set_alarm(served)
        data = needed(read.data, read.spans, acquired)
        return PartitionShare(place=served.key[1:], data=data, acquired=merged(acquired))

    async def _serve(self, group: str, places: Sequence[SharePlace]) -> dict[SharePlace, ErrorCode]:
        """Have these partitions served, which may begin the group there; the errors of others."""
        errors: dict[SharePlace, ErrorCode] = {}
        missing: list[SharePlace] = []
        is_in_charge = self._role.is_in_charge
        pace = Pace()
        for place in places:
            await pace.made(1)
            state, error = self._found(*place)
            if state is None or not is_in_charge:
                errors[place] = error or ErrorCode.not_leader_or_follower
            elif (group, *place) not in self._served:
                missing.append(place)
        if missing:
            known = self._root.image.shares.get(group, {})
            new = [place for place in missing if place not in known]
            try:
                if new:
                    starts = await start_offsets(
                        self._root, self._clock, new, self.config_of(group).auto_offset_reset
                    )
                    await self._writer.begin(group, starts)
            except SparklogError as error:
                _log.warning("share group %r cannot begin in %d partitions: %s", group, len(new), error)
                errors.update(dict.fromkeys(new, _begin_error(error)))
            for place in missing:
                await pace.made(1)
                if place not in errors:
                    errors.update(self._adopt(group, place))
        return errors

    def _adopt(self, group: str, place: SharePlace) -> dict[SharePlace, ErrorCode]:
        state, error = self._led(*place)
        share = self._root.image.shares.get(group, {}).get(place)
        if state is None or share is None:
            return {place: error if state is None else ErrorCode.unknown_topic_or_partition}
        key = (group, *place)
        if key not in self._served:
            share = share_after(share, (), log_start_offset=state.log_start_offset)
            served = _Served(key, SharePartition(share, self._leadership.leader_of(state).epoch))
            self._served[key] = served
            self._by_topic.setdefault(place[0], {})[key] = served
            if share.ranges:
                self._expire(served)  # records of a crashed leader that were delivered often enough
        return {}

    def _led(self, topic_id: str, number: int) -> tuple[PartitionState | None, ErrorCode]:
        """Return the partition if this broker leads it, and may answer for it, or the error."""
        state, error = self._found(topic_id, number)
        if state is not None and not self._role.is_in_charge:
            return None, ErrorCode.not_leader_or_follower
        return state, error

    def _found(self, topic_id: str, number: int) -> tuple[PartitionState | None, ErrorCode]:
        """Return the partition if the image says that this broker leads it, or the error."""
        topic = self._root.image.topic_by_id.get(topic_id)
        if topic is None:
            return None, ErrorCode.unknown_topic_id
        if not 0 <= number < len(topic.partitions):
            return None, ErrorCode.unknown_topic_or_partition
        state = topic.partitions[number]
        if not self._leadership.leads(state):
            return None, ErrorCode.not_leader_or_follower
        return state, ErrorCode.none

    # --- acknowledging -------------------------------------------------------------------------------

    async def acknowledge(
        self, group: str, member: str, said: Mapping[SharePlace, Sequence[AckBatch]], *, may_renew: bool
    ) -> dict[SharePlace, ErrorCode]:
        """Acknowledge records; answers when that is durable."""
        may_renew = may_renew and self.config_of(group).renew_acknowledge_enable
        errors: dict[SharePlace, ErrorCode] = {}
        writing: dict[SharePlace, asyncio.Task[ErrorCode]] = {}
        limits = self._limits(group)
        for place, batches in said.items():
            state, error = self._led(*place)
            served = self._served.get((group, *place))
            if state is None or served is None:
                errors[place] = error or ErrorCode.invalid_record_state
                continue
            planned = served.partition.acknowledge(
                member, batches, now_ms=self._clock.monotonic_ms(), limits=limits, may_renew=may_renew
            )
            if isinstance(planned, ErrorCode):
                errors[place] = planned
            else:
                self._set_alarm(served)
                writing[place] = asyncio.ensure_future(self._write(served, planned))
        # A client that disconnects meanwhile does not undo it.
        await asyncio.shield(asyncio.gather(*writing.values()))
        return errors | {place: task.result() for place, task in writing.items()}

    def end_session(self, session: ShareSession | None, *, is_counted: bool) -> None:
        """Give up all that a member has acquired.

        Args:
            is_counted: the member is gone, and may have got the records: a message that kills its worker
                must not be delivered forever. A member that says goodbye has acknowledged what it got.
        """
        if session is None:
            return
        self._stop_fetch(session)
        group, member = session.key
        for place in session.partitions:
            served = self._served.get((group, *place))
            if served is not None and served.partition.locks:
                self.give_up(served, member, is_counted=is_counted)

    def end_of_connection(self, owner: int) -> None:
        """End the sessions of a closed connection."""
        for session in self.sessions.end_of(owner):
            self.end_session(session, is_counted=True)

    def give_up(self, served: _Served, member: str, *, is_counted: bool) -> None:
        """Release what a member has in a partition."""
        transition = served.partition.release(member, self._limits(served.key[0]), is_counted=is_counted)
        if transition.ended:
            self._background.spawn(self._write_in_background(served, transition))
        else:
            self._wake(served)

    # --- writing -------------------------------------------------------------------------------------

    async def _write(self, served: _Served, transition: Transition) -> ErrorCode:
        """Make a transition durable, with its dead letters; on an error all is as before."""
        if not transition.ended:
            return ErrorCode.none
        partition = served.partition
        try:
            state = await self._written(served, transition)
        except SparklogError as error:
            if error.code == "RECORD_TOO_LARGE" and transition.count > 1:
                errors = [await self._write(served, half) for half in partition.halves(transition)]
                return next((one for one in errors if one), ErrorCode.none)
            partition.settle(transition, None)
            self._log_failure(served, transition, error)
            self._retry(served)
            return _acknowledge_error(error)
        except BaseException:
            partition.settle(transition, None)
            raise
        _, topic_id, number = served.key
        found = self._root.image.topic_by_id.get(topic_id)
        start = 0 if found is None else found.partitions[number].log_start_offset
        partition.settle(transition, share_after(state, (), log_start_offset=start))
        self._wake(served)
        return ErrorCode.none

    async def _written(self, served: _Served, transition: Transition) -> ShareState:
        group, topic_id, number = served.key
        partition = served.partition
        action = ShareRecords(
            group=group,
            topic_id=topic_id,
            partition=number,
            leader_epoch=partition.leader_epoch,
            state_epoch=partition.state.state_epoch,
            ranges=tuple(sorted(transition.ranges, key=lambda one: one.first)),
        )
        if not transition.letters:
            return await self._writer.write(action)
        async with self._lettering:  # one request may reject records of a thousand partitions
            return await self._writer.write(action, await self._letters(served, transition))

    async def _letters(self, served: _Served, transition: Transition) -> Sequence[AppendPart]:
        group, topic_id, number = served.key
        config = self.config_of(group)
        if not transition.letters or not config.dead_letter_topic:
            return ()
        image = self._root.image
        target = dead_letters.DeadLetterTopic(
            name=config.dead_letter_topic, copies=config.dead_letter_copy_record
        )
        topic, settings = dead_letters.dead_letter_topic(image, target, self._root.topic_config)
        origin = dead_letters.Origin(
            group=group, topic=image.topic_by_id[topic_id].name, topic_id=topic_id, partition=number
        )
        now_ms = self._clock.now_ms()

        def build(*, copies: bool) -> AppendPart:
            return dead_letters.build(
                self._root.metadata,
                image,
                topic,
                settings,
                origin,
                transition.letters,
                copies=copies,
                now_ms=now_ms,
            )

        try:
            part = await self._root.run_apart(functools.partial(build, copies=target.copies))
        except InvalidRequestError as error:
            if error.code != "RECORD_TOO_LARGE" or transition.count > 1:
                raise
            # With its headers the record is larger than the topic takes: they say where it is.
            part = await self._root.run_apart(functools.partial(build, copies=False))
        return [part] if part.encoded.record_count else []  # compaction has removed all of them

    async def _write_in_background(self, served: _Served, transition: Transition) -> None:
        errors = [await self._write(served, part) for part in transition.apart()]
        if not any(errors):
            self._set_alarm(served)

    def _log_failure(self, served: _Served, transition: Transition, error: SparklogError) -> None:
        group, topic_id, number = served.key
        topic = self._root.image.topic_by_id.get(topic_id)
        where = f"share group {group!r}, {topic_id if topic is None else topic.name}-{number}"
        now_ms = self._clock.monotonic_ms()
        if isinstance(error, FencedError) or now_ms < served.quiet_until_ms:
            return
        served.quiet_until_ms = now_ms + QUIET_MS
        _log.warning("%s: %d records are kept as they were: %s", where, transition.count, error)

    # --- expiring ------------------------------------------------------------------------------------

    def _set_alarm(self, served: _Served) -> None:
        """Have the next lock expire."""
        deadline_ms = served.partition.next_deadline_ms()
        if deadline_ms is None or self._served.get(served.key) is not served:
            return
        if served.alarm is None or deadline_ms < served.alarm_ms:
            self._alarm_in(served, max(1, int(deadline_ms - self._clock.monotonic_ms()) + 1))

    def _retry(self, served: _Served) -> None:
        """Try again later: locks that are over stay until that is written."""
        if self._served.get(served.key) is served:
            self._alarm_in(served, RETRY_MS)
        self._background.spawn(self._look())

    async def _look(self) -> None:
        await self._root.look(force=True)

    def _alarm_in(self, served: _Served, delay_ms: int) -> None:
        def ring() -> None:
            served.alarm = None
            self._expire(served)
            self._wake(served)  # what a write that failed has left is looked at again

        if served.alarm is not None:
            served.alarm.cancel()
        served.alarm_ms = self._clock.monotonic_ms() + delay_ms
        served.alarm = self._timer.schedule(delay_ms, ring)

    def _expire(self, served: _Served) -> None:
        transition = served.partition.expire(self._clock.monotonic_ms(), self._limits(served.key[0]))
        if transition.ended:
            self._background.spawn(self._write_in_background(served, transition))
        else:
            self._set_alarm(served)

    def _wake(self, served: _Served, but: _Fetch | None = None) -> None:
        for fetch in served.waiting:
            if fetch is not but:
                fetch.note(served)


def _partition_of(topic: Topic | None, number: int) -> PartitionState | None:
    return topic.partitions[number] if topic is not None and number < len(topic.partitions) else None


def _begin_error(error: SparklogError) -> ErrorCode:
    if isinstance(error, InvalidRequestError) and error.code == "SHARE_GROUPS_FULL":
        return ErrorCode.group_max_size_reached
    return ErrorCode.not_leader_or_follower


def _acknowledge_error(error: SparklogError) -> ErrorCode:
    """Return the code for a client whose acknowledgement was not written."""
    if error.code in {"NOT_LEADER", "BROKER_FENCED"}:
        return ErrorCode.not_leader_or_follower
    if error.code in {"SHARE_STATE_CHANGED", "INVALID_ACTIONS"}:  # reset, or they have ended already
        return ErrorCode.invalid_record_state
    return error_code(error)
