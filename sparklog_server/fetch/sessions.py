"""Fetch sessions: the partitions that a consumer follows, so that its polls name only what changed.

A full request (epoch 0) makes a session and answers everything; an incremental one (epoch 1, 2, ...) changes
partitions, forgets some, and is answered with those that have records, an error, or other watermarks.

Invariants: at most `slots` sessions, MAX_PARTITIONS partitions and `max_bytes` are remembered; where there is
    no room the answer carries session id 0, and the client sends full requests. A request's epoch must be the
    one expected, so a request that was answered without our knowing is never applied twice. A session
    knows its topics by name, or by id (version 13), and never changes that. It ends
    with the connection that used it last: clients begin anew then, and a stranger's must not stay.
Eviction: a session unused for EVICTION_MS makes room for any other; one that is at least as old, for a
    larger one.
Not here: reading (service.py); throttled or follower fetches, which do not exist here.
Concurrency: pure; event loop only.
Sources: KIP-227, KIP-516; Kafka FetchSession.scala.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from sparklog_server.fetch.response import NO_OFFSET, NO_REPLICA, PartitionAnswer
from sparklog_server.protocol.errors import ErrorCode

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
MAX_EPOCH = 2**31 - 1
EVICTION_MS = 120_000
MAX_PARTITIONS = 1_000_000

PARTITION_BYTES = 500  # what one takes here, beside its topic's name

PartitionKey = tuple[str, int]  # a topic's name or id, partition


@dataclass(slots=True, kw_only=True)
class PartitionFetch:
    """What a consumer wants of one partition; leader epoch -1: not checked.

    Fields:
        topic: a name; "" where the consumer knows it by its id.
        topic_id: "" where it knows it by its name.
    """

    topic: str
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int = -1
    topic_id: str = ""

    @property
    def key(self) -> PartitionKey:
        return self.topic_id or self.topic, self.partition


@dataclass(slots=True, kw_only=True)
class _Followed:
    """A partition of a session, and what its consumer was told last."""

    fetch: PartitionFetch
    high_watermark: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET

    def note(self, answer: PartitionAnswer) -> bool:
        """Remember an answer; must the client see it?"""
        news = bool(
            answer.size
            or answer.error_code
            or answer.preferred_read_replica != NO_REPLICA
            or answer.high_watermark != self.high_watermark
            or answer.log_start_offset != self.log_start_offset
        )
        # After an error the watermark counts as unknown: the partition is told again once it is over.
        self.high_watermark = NO_OFFSET if answer.error_code else answer.high_watermark
        self.log_start_offset = answer.log_start_offset
        return news


@dataclass(slots=True, kw_only=True)
class FetchSession:
    """One consumer's partitions, in the order in which they are read next."""

    session_id: int
    created_ms: int
    used_ms: int
    uses_topic_ids: bool
    owner: int = 0  # the connection that used it last
    epoch: int = INITIAL_EPOCH + 1
    size_bytes: int = 0
    partitions: OrderedDict[PartitionKey, _Followed] = field(default_factory=OrderedDict)

    def change(self, wanted: Iterable[PartitionFetch], forgotten: Iterable[PartitionKey]) -> None:
        for fetch in wanted:
            followed = self.partitions.get(fetch.key)
            if followed is None:
                self.partitions[fetch.key] = _Followed(fetch=fetch)
                self.size_bytes += _size_of(fetch.key[0])
            else:
                followed.fetch = fetch
        for key in forgotten:
            if self.partitions.pop(key, None) is not None:
                self.size_bytes -= _size_of(key[0])


@dataclass(slots=True, kw_only=True)
class FetchContext:
    """How one request is to be answered. With an error there is nothing else to it."""

    error: ErrorCode = ErrorCode.none
    fetches: Sequence[PartitionFetch] = ()
    session: FetchSession | None = None  # incremental
    owner: int = 0
    _uses_topic_ids: bool = False
    _wants_session: bool = False


class FetchSessions:
    """The cache of sessions."""

    def __init__(self, *, slots: int, new_id: Callable[[], int], max_bytes: int = 1 << 62) -> None:
        """`new_id` gives random ids from 1 to 2**31 - 1."""
        self._slots = slots
        self._max_bytes = max_bytes
        self._of_owner: dict[int, set[int]] = {}
        self.size_bytes = 0
        self._new_id = new_id
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # least recently used first
        self.partition_count = 0
        self.evictions = 0

    @property
    def owner_count(self) -> int:
        """Connections of which anything is remembered."""
        return len(self._of_owner)

    def __contains__(self, session_id: int) -> bool:
        return session_id in self._sessions

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        session_id: int,
        epoch: int,
        wanted: Sequence[PartitionFetch],
        forgotten: Sequence[PartitionKey],
        *,
        now_ms: int,
        owner: int = 0,
        uses_topic_ids: bool = False,
    ) -> FetchContext:
        """Find out which partitions a request is about; `owner` is its connection."""
        if epoch in {INITIAL_EPOCH, FINAL_EPOCH}:
            # A full request ends the session that it names.
            if session_id != NO_SESSION:
                self._remove(session_id)
            wants_session = epoch == INITIAL_EPOCH
            return FetchContext(
                fetches=wanted, owner=owner, _uses_topic_ids=uses_topic_ids, _wants_session=wants_session
            )
        session = self._sessions.get(session_id)
        if session is None:
            return FetchContext(error=ErrorCode.fetch_session_id_not_found)
        if session.epoch != epoch:
            return FetchContext(error=ErrorCode.invalid_fetch_session_epoch)
        if session.uses_topic_ids is not uses_topic_ids:
            return FetchContext(error=ErrorCode.fetch_session_topic_id_error)
        before, size_before = len(session.partitions), session.size_bytes
        session.change(wanted, forgotten)
        self.partition_count += len(session.partitions) - before
        self.size_bytes += session.size_bytes - size_before
        self._own(session, owner)
        is_too_much = self.partition_count > MAX_PARTITIONS or self.size_bytes > self._max_bytes
        if not session.partitions or is_too_much:
            fetches = [followed.fetch for followed in session.partitions.values()]
            self._remove(session_id)
            return FetchContext(fetches=fetches)
        session.epoch = 1 if session.epoch == MAX_EPOCH else session.epoch + 1
        session.used_ms = now_ms
        self._sessions.move_to_end(session_id)
        return FetchContext(
            fetches=[followed.fetch for followed in session.partitions.values()], session=session
        )

    def finish(
        self, context: FetchContext, answers: Sequence[PartitionAnswer], *, now_ms: int
    ) -> tuple[int, Sequence[PartitionAnswer]]:
        """(session id for the response, the answers that it must carry)."""
        session = context.session
        if session is not None:
            return session.session_id, _news(session, answers)
        if not context._wants_session:
            return NO_SESSION, answers
        made = self._create(context, now_ms)
        if made is None:
            return NO_SESSION, answers
        for answer in answers:
            made.partitions[answer.key].note(answer)
        return made.session_id, answers

    def end_of(self, owner: int) -> None:
        """A connection is gone."""
        for session_id in self._of_owner.pop(owner, ()):
            self._remove(session_id)

    def _create(self, context: FetchContext, now_ms: int) -> FetchSession | None:
        keys = {fetch.key for fetch in context.fetches}
        size, size_bytes = len(keys), sum(_size_of(topic) for topic, _ in keys)
        if size == 0 or size + self.partition_count > MAX_PARTITIONS or not self._make_room(size, now_ms):
            return None
        if self.size_bytes + size_bytes > self._max_bytes:
            return None
        session_id = self._new_id()
        while session_id in self._sessions or session_id == NO_SESSION:
            session_id = self._new_id()
        session = FetchSession(
            session_id=session_id,
            created_ms=now_ms,
            used_ms=now_ms,
            uses_topic_ids=context._uses_topic_ids,
        )
        session.change(context.fetches, ())
        self._sessions[session_id] = session
        self.partition_count += size
        self.size_bytes += session.size_bytes
        self._own(session, context.owner)
        return session

    def _make_room(self, size: int, now_ms: int) -> bool:
        if len(self._sessions) < self._slots:
            return True
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.used_ms <= EVICTION_MS:
            evictable = [one for one in self._sessions.values() if now_ms - one.created_ms > EVICTION_MS]
            if not evictable:
                return False
            oldest = min(evictable, key=lambda one: len(one.partitions))
            if len(oldest.partitions) >= size:
                return False
        self._remove(oldest.session_id)
        self.evictions += 1
        return True

    def _remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partition_count -= len(session.partitions)
            self.size_bytes -= session.size_bytes
            owned = self._of_owner.get(session.owner)
            if owned is not None:
                owned.discard(session_id)
                if not owned:
                    del self._of_owner[session.owner]

    def _own(self, session: FetchSession, owner: int) -> None:
        self._of_owner.get(session.owner, set()).discard(session.session_id)
        session.owner = owner
        self._of_owner.setdefault(owner, set()).add(session.session_id)


def _size_of(topic: str) -> int:
    return PARTITION_BYTES + len(topic)


def _news(session: FetchSession, answers: Sequence[PartitionAnswer]) -> list[PartitionAnswer]:
    """The answers that differ from what the client knows; partitions with records are read last next time."""
    news: list[PartitionAnswer] = []
    for answer in answers:
        key = answer.key
        followed = session.partitions.get(key)
        if followed is None:
            continue
        if followed.note(answer):
            news.append(answer)
        if answer.size:
            session.partitions.move_to_end(key)
    return news
