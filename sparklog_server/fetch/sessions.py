"""Fetch sessions: the partitions that a consumer follows, so that its polls name only changed ones.

A full request (epoch 0) creates a session and gets all partitions; an incremental one (epoch 1, 2, ...) adds,
changes and forgets partitions, and gets those with records, an error, or new watermarks.

Invariants: at most `slots` sessions, MAX_PARTITIONS partitions and `max_bytes` are remembered; without
    room the answer has session id 0, and the client sends full requests. A request's epoch must be the
    expected one, so that no request is applied twice. A session knows its topics by name, or by id (version
    13), and never changes that. It ends with the connection that used it last: clients begin a new session
    then.
Eviction: a session unused for EVICTION_MS makes room for any other; one that is at least as old, for a
    larger one.
Not here: reading (service.py); throttled or follower fetches, which do not exist here.
Concurrency: pure; event loop only.
Sources: KIP-227, KIP-516; Kafka FetchSession.scala.
"""

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from sparklog.metadata import PartitionState
from sparklog_server.protocol.apis import ErrorCode
from sparklog_server.protocol.metadata_response import LeaderHint, Node, endpoints_tags, leader_tag
from sparklog_server.protocol.responses import topic_id_bytes
from sparklog_server.protocol.wire import NOT_THROTTLED, Chunk, compact_length

# --- response ----------------------------------------------------------------------------------------
#
# Fetch responses as chunks: record bytes are spliced in, never copied.
#
# Written by hand because kio's writer needs the records as one bytes object; tested byte for byte against it.
#
# Versions: 4 aborted transactions (KIP-98); 5 log_start_offset; 7 error code and session (KIP-227);
#     11 preferred_read_replica (KIP-392); 12 flexible (KIP-482); 13 topic ids (KIP-516); 16 current leaders
#     and their endpoints (KIP-951).
# Not here: the response header and the frame (network/).
# Sources: Kafka FetchResponse.json.


NO_OFFSET = -1
SESSION_VERSION = 7
LOG_START_VERSION = 5
PREFERRED_REPLICA_VERSION = 11
FLEXIBLE_VERSION = 12
TOPIC_ID_VERSION = 13
LEADER_HINT_VERSION = 16
NO_REPLICA = -1
_CURRENT_LEADER_TAG = 1


@dataclass(slots=True, kw_only=True)
class PartitionAnswer:
    """One partition of a response.

    Args:
        topic: its name; "" if the requested id is unknown.
        topic_id: as requested; "": requested by name.
        is_read_committed: the list of aborted transactions is empty, else null, as in Kafka.
        preferred_read_replica: the broker that the consumer should use from now on.
        current_leader: sent with an error for another leader or leader epoch.
    """

    topic: str
    partition: int
    topic_id: str = ""
    error_code: int = 0
    high_watermark: int = NO_OFFSET
    last_stable_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    is_read_committed: bool = False
    chunks: Sequence[Chunk] = ()
    size: int = 0
    preferred_read_replica: int = NO_REPLICA
    current_leader: LeaderHint | None = None

    @property
    def key(self) -> tuple[str, int]:
        """Return the key, as of a PartitionFetch."""
        return self.topic_id or self.topic, self.partition

    def tell(self, state: PartitionState) -> None:
        """Set the watermarks and the log's start."""
        self.high_watermark = self.last_stable_offset = state.log_end_offset
        self.log_start_offset = state.log_start_offset


def encode_fetch_response(
    version: int,
    answers: Sequence[PartitionAnswer],
    *,
    error_code: int = 0,
    session_id: int = 0,
    nodes: Sequence[Node] = (),
) -> list[Chunk]:
    """Return the body. Consecutive answers of a topic share one topic entry.

    Args:
        nodes: the endpoints of the leaders that answers name.
    """
    if version >= FLEXIBLE_VERSION:
        return _encode_flexible(version, answers, error_code, session_id, nodes)
    chunks: list[Chunk] = []
    out = bytearray(NOT_THROTTLED)
    if version >= SESSION_VERSION:
        out += _SESSION.pack(error_code, session_id)
    topics = _by_topic(answers)
    out += _I32.pack(len(topics))
    for partitions in topics:
        name = partitions[0].topic.encode()
        out += _I16.pack(len(name)) + name + _I32.pack(len(partitions))
        for one in partitions:
            out += _partition_fields(version, one)
            out += _I32.pack(0 if one.is_read_committed else -1)
            if version >= PREFERRED_REPLICA_VERSION:
                out += _I32.pack(one.preferred_read_replica)
            out += _I32.pack(one.size)
            if one.size:
                chunks.append(out)
                chunks += one.chunks
                out = bytearray()
    if out:
        chunks.append(out)
    return chunks


def _encode_flexible(
    version: int, answers: Sequence[PartitionAnswer], error_code: int, session_id: int, nodes: Sequence[Node]
) -> list[Chunk]:
    chunks: list[Chunk] = []
    out = bytearray(NOT_THROTTLED)
    out += _SESSION.pack(error_code, session_id)
    topics = _by_topic(answers)
    out += compact_length(len(topics))
    for partitions in topics:
        out += _topic(version, partitions[0]) + compact_length(len(partitions))
        for one in partitions:
            out += _partition_fields(version, one)
            out += _ONE if one.is_read_committed else _ZERO
            out += _I32.pack(one.preferred_read_replica)
            out += compact_length(one.size)
            if one.size:
                chunks.append(out)
                chunks += one.chunks
                out = bytearray()
            if one.current_leader is None or version < LEADER_HINT_VERSION:
                out += _ZERO  # no tagged fields
            else:
                out += leader_tag(_CURRENT_LEADER_TAG, one.current_leader)
        out += _ZERO
    out += endpoints_tags(nodes) if version >= LEADER_HINT_VERSION else _ZERO
    chunks.append(out)
    return chunks


def _topic(version: int, answer: PartitionAnswer) -> bytes:
    if version >= TOPIC_ID_VERSION:
        return topic_id_bytes(answer.topic_id)
    name = answer.topic.encode()
    return compact_length(len(name)) + name


def _partition_fields(version: int, one: PartitionAnswer) -> bytes:
    if version >= LOG_START_VERSION:
        return _PARTITION_5.pack(
            one.partition, one.error_code, one.high_watermark, one.last_stable_offset, one.log_start_offset
        )
    return _PARTITION_4.pack(one.partition, one.error_code, one.high_watermark, one.last_stable_offset)


def _by_topic(answers: Sequence[PartitionAnswer]) -> list[list[PartitionAnswer]]:
    topics: list[list[PartitionAnswer]] = []
    last = None
    for answer in answers:
        topic = answer.topic_id or answer.topic
        if topic == last:
            topics[-1].append(answer)
        else:
            topics.append([answer])
            last = topic
    return topics


_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_SESSION = struct.Struct(">hi")
_PARTITION_4 = struct.Struct(">ihqq")
_PARTITION_5 = struct.Struct(">ihqqq")
_ZERO, _ONE = b"\x00", b"\x01"


# --- sessions ----------------------------------------------------------------------------------------


NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
MAX_EPOCH = 2**31 - 1
EVICTION_MS = 120_000
MAX_PARTITIONS = 1_000_000

PARTITION_BYTES = 500  # memory of a partition, without its topic's name

PartitionKey = tuple[str, int]  # a topic's name or id, partition


@dataclass(slots=True, kw_only=True)
class PartitionFetch:
    """A consumer's request for one partition; leader epoch -1: not checked.

    Fields:
        topic: a name; "" if the request names the id.
        topic_id: "" if the request names the topic.
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
    """A partition of a session, and the last answer to its consumer."""

    fetch: PartitionFetch
    high_watermark: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET

    def note(self, answer: PartitionAnswer) -> bool:
        """Remember an answer; return True if it must be sent to the client."""
        news = bool(
            answer.size
            or answer.error_code
            or answer.preferred_read_replica != NO_REPLICA
            or answer.high_watermark != self.high_watermark
            or answer.log_start_offset != self.log_start_offset
        )
        # After an error the watermark counts as unknown: the next answer without an error is sent.
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
    """The session and partitions of one request, or its error alone."""

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
        """Return the number of connections with sessions."""
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
        """Return the partitions of a request; `owner` is its connection."""
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
        """Return (session id for the response, answers to send)."""
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
        """End the sessions of a closed connection."""
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
    """Return the answers that are new to the client; partitions with records are read last next time."""
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
