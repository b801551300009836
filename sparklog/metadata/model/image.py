"""The image: the state that replaying the metadata log yields, as of one commit.

Invariants: log start <= log end per partition; extents ascend without overlap, none ends after the log
end; both dictionaries of topics hold the same objects.
Not here: how a commit changes it (actions.py).
Concurrency: immutable, except an index that is made on first use.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from sparklog.errors import UnknownTopicError
from sparklog.metadata.model.action import Int64
from sparklog.metadata.model.extent_list import Extent, ExtentList
from sparklog.metadata.model.retired import NOTHING_RETIRED, Retired
from sparklog.metadata.model.share_values import Shares
from sparklog.metadata.model.transaction_values import NO_TRANSACTIONS, Transactions

# --- broker values -----------------------------------------------------------------------------------
#
# The brokers of a root, as values.
#
# Not here: the actions that change them (registry.py).
# Concurrency: immutable.
# Sources: FORMAT.md#metadata-log; adr/0026; Kafka's BrokerRegistration, PartitionRegistration.


NO_NODE = -1  # no leader, or no controller
NO_EPOCH = -1


class BrokerListener(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The address of a broker for Kafka clients."""

    host: str
    port: Int64


class RegisteredBroker(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A broker.

    Fields:
        broker_epoch: the number of the commit by which it joined: no two registrations have the same.
        is_fenced: it may publish nothing, and leads nothing.
        in_controlled_shutdown: it is to become leader of nothing more.
    """

    node_id: Int64
    broker_epoch: Int64
    incarnation_id: str
    listeners: tuple[BrokerListener, ...] = ()
    rack: str = ""
    is_fenced: bool = False
    in_controlled_shutdown: bool = False


class Controller(msgspec.Struct, frozen=True, array_like=True):
    """The controller, its registration, and its epoch: the number of elections so far."""

    node_id: Int64 = NO_NODE
    broker_epoch: Int64 = NO_EPOCH
    controller_epoch: Int64 = 0


NO_CONTROLLER = Controller()


class PartitionLeadership(msgspec.Struct, frozen=True, array_like=True):
    """The replicas and the leader of a partition.

    Fields:
        replicas: brokers by preference; empty: not assigned yet.
        leader: one of them, or NO_NODE.
        leader_epoch: one higher with each change of the leader.
        adding, removing: the replicas that an ongoing reassignment adds and removes.
    """

    replicas: tuple[Int64, ...] = ()
    leader: Int64 = NO_NODE
    leader_epoch: Int64 = 0
    adding: tuple[Int64, ...] = ()
    removing: tuple[Int64, ...] = ()


UNASSIGNED = PartitionLeadership()


# --- user values -------------------------------------------------------------------------------------
#
# Users who authenticate with SCRAM, as values.
#
# Not here: the action that changes them (users.py).


class ScramCredential(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Salt, stored key and server key, in Base64; and the iterations."""

    salt: str
    stored_key: str
    server_key: str
    iterations: Int64

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"


class ScramUsers(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """All credentials: by user, then by mechanism."""

    decoy_key: str = ""
    credentials: dict[str, dict[str, ScramCredential]] = {}

    def __repr__(self) -> str:
        return f"ScramUsers({list(self.credentials)})"

    def find(self, user: str, mechanism: str) -> ScramCredential | None:
        """Return the credential of a user, or None."""
        return self.credentials.get(user, {}).get(mechanism)


NO_USERS = ScramUsers()


# --- topic names -------------------------------------------------------------------------------------
#
# Kafka's rules for topic names; they keep names safe in paths, and metrics unambiguous.
#
# Sources: Kafka Topic.java (validate, hasCollision).


MAX_TOPIC_NAME_LENGTH = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")
# Kafka's own (Topic.INTERNAL_TOPICS). Other names that begin with __ are users' (Debezium's heartbeats).
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

METADATA_TOPIC = "__cluster_metadata"  # of Kafka's controllers; here a directory of the root
# Topics in which Kafka keeps state that is in the metadata log here; no records are accepted for them.
NEVER_TOPICS = (INTERNAL_TOPICS - {"__consumer_offsets"}) | {METADATA_TOPIC}


def is_internal(name: str) -> bool:
    """True if brokers keep their own state in the topic."""
    return name in INTERNAL_TOPICS


def why_illegal_topic_name(name: str) -> str | None:
    """Return the rule that `name` breaks, or None."""
    if not name:
        return "it is empty"
    if name in {".", ".."}:
        return "'.' and '..' are not allowed"
    if len(name) > MAX_TOPIC_NAME_LENGTH:
        return f"it has {len(name)} characters, at most {MAX_TOPIC_NAME_LENGTH} are allowed"
    if _LEGAL.fullmatch(name) is None:
        return "only ASCII letters, digits, '.', '_' and '-' are allowed"
    return None


def why_no_new_topic_name(name: str) -> str | None:
    """Return the rule that `name` breaks as the name of a new topic, or None; existing topics stay usable.

    Commands take a name that begins with '-' for an option; Spark and people do not see the directory of a
    name that begins with '.'.
    """
    reason = why_illegal_topic_name(name)
    if reason is None and name[0] in "-.":
        return f"it begins with {name[0]!r}, expected a letter, a digit or '_'"
    if reason is None and name in NEVER_TOPICS:
        return "it is internal to Kafka, and unused here"
    return reason


def collision_key(name: str) -> str:
    """Return the name as in metrics, where '.' becomes '_': topics of the same key would share metrics."""
    return name.replace(".", "_")


# --- image -------------------------------------------------------------------------------------------


NO_COMMIT = -1
NO_HORIZON = -1
NO_DELETE_HORIZON_MS = -1
NEVER_MARKED_MS = -1
_BLOCK_BYTES = 4096
_EXTENT_BYTES = 240  # as an object in a commit


class ProducerState(msgspec.Struct, frozen=True, array_like=True):
    """The last batches that an idempotent producer appended to a partition."""

    producer_epoch: Int64
    last_sequence: Int64
    last_offset: Int64


class MergedBatch(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive records of an idempotent producer whose extent was merged with others."""

    producer_epoch: Int64
    base_sequence: Int64
    record_count: Int64
    base_offset: Int64


class Cleaned(msgspec.Struct, frozen=True, array_like=True):
    """How far a partition is compacted.

    Fields:
        first_dirty_offset: the first offset that no compaction has read.
        delete_horizon_ms: the latest time until which a tombstone below it is kept; -1: there is none.
    """

    first_dirty_offset: Int64
    delete_horizon_ms: Int64


NEVER_CLEANED = Cleaned(0, NO_DELETE_HORIZON_MS)


class Forgotten(msgspec.Struct, frozen=True, array_like=True):
    """The bounds of the expired producers of a partition.

    Fields:
        mark_offset: the log end at the last expire_producers.
        end_offset: producers without records from here on are expired.
        producer_id, producer_epoch, max_timestamp_ms: the largest of all that are expired.
    """

    mark_offset: Int64
    end_offset: Int64
    producer_id: Int64
    producer_epoch: Int64
    max_timestamp_ms: Int64


NOTHING_FORGOTTEN = Forgotten(0, 0, -1, -1, -1)


class PublisherState(msgspec.Struct, frozen=True, array_like=True):
    """The last request of a publisher that a commit has settled, and that commit."""

    last_sequence: Int64
    commit: Int64


class WriterTxnState(msgspec.Struct, frozen=True, array_like=True):
    """The newest version of an application in a topic, its commit, and a digest of its content."""

    version: Int64
    commit: Int64  # NO_COMMIT: not known
    content: str = ""


class Replayed(NamedTuple):
    """What an image was loaded from: a snapshot, and the commits after it.

    Fields:
        snapshot: the commit of the snapshot; NO_COMMIT: none, the log from its beginning.
        weight: of the commits after it (`weigh`).
        last_weight: of the last commit.
    """

    snapshot: int = NO_COMMIT
    weight: int = 0
    last_weight: int = 0

    def after(self, size: int, extents: int) -> "Replayed":
        """Return the value after one more commit of this size in bytes, with this number of extents."""
        weight = weigh(size, extents)
        return Replayed(self.snapshot, self.weight + weight, weight)


NOT_REPLAYED = Replayed()


def weigh(size: int, extents: int = 0) -> int:
    """Return the weight of a commit: its size in bytes, but at least a disk block, which it occupies, and at
    least the size of its extents as JSON objects, since columns take as long to apply.
    """
    return max(size, _BLOCK_BYTES, _EXTENT_BYTES * extents)


class Incarnation(msgspec.Struct, frozen=True, array_like=True):
    """The incarnation of the root: each restore from a backup begins another (restoring.py).

    Fields:
        incarnation_id: "" of a root that was never restored.
        commit: the commit that began it.
        births_ahead: added to a commit's number to give the birth of a segment.
        leader_epoch: the least of any partition.
    """

    incarnation_id: str = ""
    commit: Int64 = NO_COMMIT
    births_ahead: Int64 = 0
    leader_epoch: Int64 = 0


FIRST_INCARNATION = Incarnation()


class Acl(NamedTuple):
    """A rule of who may do what (access.py has the legal values; they are Kafka's names).

    Fields:
        name: of a resource; with the pattern type PREFIXED, the beginning of names; literally `*`, all.
        principal: as `User:alice`; `User:*` is everybody.
        host: an address, or `*`.
    """

    resource_type: str
    name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str


# Kinds ("user", "client-id", "ip") in the order of the alphabet, with names; None: the default of the kind.
QuotaEntity = tuple[tuple[str, str | None], ...]


class PartitionState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One partition of a topic.

    It is part of no cycle, and not tracked by the garbage collector: with hundreds of thousands of partitions
    that took half of the time to open a root.

    Fields:
        restored_end_offset: the log end when this incarnation of the root began; 0: it is younger.
    """

    topic_id: str
    partition: int
    log_start_offset: int
    log_end_offset: int
    extents: ExtentList
    producers: Mapping[int, ProducerState] = {}
    # By producer id, batches whose extents were merged; the newest last (sequences.py).
    merged_batches: Mapping[int, tuple[MergedBatch, ...]] = {}
    cleaned: Cleaned = NEVER_CLEANED
    forgotten: Forgotten = NOTHING_FORGOTTEN
    leadership: PartitionLeadership = UNASSIGNED
    restored_end_offset: int = 0

    def extents_between(self, start_offset: int, end_offset: int) -> list[Extent]:
        """Extents that hold any offset of [start_offset, end_offset), in offset order."""
        return self.extents.between(start_offset, end_offset)

    def lag(self, offset: int) -> int:
        """Return how far an offset is behind the log end, as Kafka counts it: deleted records included."""
        return max(0, self.log_end_offset - offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic; partition p is partitions[p]."""

    topic_id: str
    name: str
    partitions: Sequence[PartitionState]
    configs: Mapping[str, str]
    # By application, the least recent first, which is evicted first (writers.py).
    writer_txns: Mapping[str, WriterTxnState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The state after commit `commit` (NO_COMMIT: of an empty log)."""

    commit: int
    commit_uuid: str
    cluster_id: str
    topics: Mapping[str, Topic]
    topic_by_id: Mapping[str, Topic]
    # Settings of the root.
    configs: Mapping[str, str]
    reader_features: frozenset[str] = frozenset()
    writer_features: frozenset[str] = frozenset()
    # By node id, fenced ones included.
    brokers: Mapping[int, RegisteredBroker] = field(default_factory=dict)
    controller: Controller = NO_CONTROLLER
    next_producer_id: int = 0
    # The least recent first, which is evicted first (writers.py).
    publishers: Mapping[str, PublisherState] = field(default_factory=dict)
    # Dead segments that were born before this stay dead (sweeping.py).
    sweep_horizon: int = NO_HORIZON
    # Dead segments that were born later, and those of them that stay dead (retired.py).
    retired: Retired = NOTHING_RETIRED
    # When the partitions were last marked, by the clock of that publisher (sequences.py).
    producers_marked_ms: int = NEVER_MARKED_MS
    # By transactional id (transactions.py).
    transactions: Transactions = NO_TRANSACTIONS
    incarnation: Incarnation = FIRST_INCARNATION
    # Users who authenticate with SCRAM (users.py).
    scram: ScramUsers = NO_USERS
    # Rules and limits of clients (access.py).
    acls: frozenset[Acl] = frozenset()
    quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)
    # Of share groups, by group; by topic id and partition (share_values.py).
    shares: Shares = field(default_factory=dict)
    # The rest is not part of the state, and not compared. The last commit that changed the cluster: brokers,
    # controller, topics, partitions, or leaders.
    cluster_changed: int = field(default=NO_COMMIT, compare=False)
    # The latest time of the snapshot that it was loaded from and of the commits since, by their publishers'
    # clocks.
    newest_ms: int = field(default=0, compare=False)
    replayed: Replayed = field(default=NOT_REPLAYED, compare=False)
    _by_collision_key: list[Mapping[str, str]] = field(
        default_factory=list, init=False, compare=False, repr=False
    )
    _partitions: list[int] = field(default_factory=list, init=False, compare=False, repr=False)

    @property
    def birth(self) -> int:
        """The birth of a segment that is begun with this image."""
        return self.commit if self.commit == NO_COMMIT else self.commit + self.incarnation.births_ahead

    def no_earlier_ms(self, now_ms: int) -> int:
        """Return `now_ms`, or the newest commit's time if that is later: for times that are stored.

        1. a broker whose clock is eight days behind stores when a transactional id was last used;
        2. for one whose clock is right, it is unused for eight days: it expires while its producer uses it.
        """
        return max(now_ms, self.newest_ms)

    @property
    def partition_count(self) -> int:
        """The partitions of all topics."""
        if not self._partitions:  # once per image, as below
            self._partitions.append(sum(len(topic.partitions) for topic in self.topics.values()))
        return self._partitions[0]

    def named_like(self, name: str) -> str | None:
        """Return the topic with the same name in metrics; see collision_key."""
        if not self._by_collision_key:  # once per image: a request may create thousands of topics
            self._by_collision_key.append({collision_key(topic): topic for topic in self.topics})
        return self._by_collision_key[0].get(collision_key(name))

    def topic(self, name: str) -> Topic:
        """Return the topic of this name, or raise UnknownTopicError."""
        topic = self.topics.get(name)
        if topic is None:
            raise UnknownTopicError(
                "TOPIC_MISSING", f"topic {name!r}: not found", fix="Create it, or fix the name"
            )
        return topic

    def partition(self, name: str, partition: int) -> PartitionState:
        """Return a partition by topic name, or raise UnknownTopicError."""
        topic = self.topic(name)
        if not 0 <= partition < len(topic.partitions):
            raise UnknownTopicError(
                "PARTITION_MISSING",
                f"topic {name!r}: no partition {partition}, it has {len(topic.partitions)}",
                fix=f"Use {_any_of(len(topic.partitions))}, or add partitions",
            )
        return topic.partitions[partition]

    def partition_of(self, topic_id: str, partition: int) -> PartitionState:
        """Return a partition by topic id, or raise UnknownTopicError."""
        topic = self.topic_by_id.get(topic_id)
        if topic is None:
            raise UnknownTopicError(
                "TOPIC_MISSING",
                f"topic id {topic_id}: no such topic; it was deleted, or deleted and created again",
                fix="Look the topic up by name again, and decide whether the new one is meant",
            )
        if not 0 <= partition < len(topic.partitions):
            raise UnknownTopicError(
                "PARTITION_MISSING",
                f"topic {topic.name!r}: no partition {partition}, it has {len(topic.partitions)}",
                fix="Use a partition that exists, or add partitions",
            )
        return topic.partitions[partition]

    def has_settled(self, publisher: str, sequence: int) -> bool:
        """True if request `sequence` of `publisher`, or a later one, is settled: it cannot be applied."""
        state = self.publishers.get(publisher)
        return state is not None and state.last_sequence >= sequence

    def refers_to(self, segment: str) -> bool:
        """True if a segment is live. Reads each extent: some 20 ms for a million."""
        return self.transactions.refers_to(segment) or any(
            state.extents.refers_to(segment) for topic in self.topics.values() for state in topic.partitions
        )

    def applied(self, application: str, version: int, topic_id: str) -> WriterTxnState | None:
        """Return the version of the writer `application` in the topic if it is at least `version`."""
        topic = self.topic_by_id.get(topic_id)
        found = None if topic is None else topic.writer_txns.get(application)
        return found if found is not None and found.version >= version else None


def _any_of(partitions: int) -> str:
    return "partition 0" if partitions == 1 else f"a partition from 0 to {partitions - 1}"


def empty_image(cluster_id: str) -> Image:
    """The state before commit 0."""
    return Image(
        commit=NO_COMMIT,
        commit_uuid="",
        cluster_id=cluster_id,
        topics={},
        topic_by_id={},
        configs={},
    )
