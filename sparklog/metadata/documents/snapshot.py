"""Snapshots: the image after a commit, in files, so that opening need not replay everything.

A snapshot is a directory: two parts with unique names, and then the manifest, put last, whose presence
makes the snapshot. The extents, of which there may be a million, are Arrow columns; the rest is JSON.

Invariants: parts are durable before the manifest; the manifest holds their sizes and checksums, the
cluster id, and the UUID of the commit, which the following commit must name as its previous one.
Concurrency: several processes may write the same snapshot; one manifest wins, the others' parts stay until
the snapshot is cleaned.
After a crash: a directory without a manifest is no snapshot; cleaning removes it.
Sources: FORMAT.md#metadata-log.
"""

import contextlib
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from sparklog.errors import AlreadyExistsError, InvalidRequestError, NotFoundError, StorageError
from sparklog.failpoints import failpoint
from sparklog.metadata.documents.document import (
    VERSION,
    Header,
    ManifestBody,
    SnapshotPart,
    checksum,
    corrupt,
    decode_manifest,
    encode_document,
)
from sparklog.metadata.documents.properties import SNAPSHOT_HINT, manifest_name, snapshot_directory
from sparklog.metadata.documents.snapshot_shares import shares_of, stored_shares
from sparklog.metadata.model.access import checked_access
from sparklog.metadata.model.action import (
    ActionRefusedError,
    Column,
    Int64,
    column_of,
    expanded,
    is_id,
    new_id,
)
from sparklog.metadata.model.extent_list import ExtentColumns, ExtentList, lists_of, why_disordered
from sparklog.metadata.model.image import (
    FIRST_INCARNATION,
    NEVER_CLEANED,
    NEVER_MARKED_MS,
    NO_CONTROLLER,
    NO_HORIZON,
    NO_NODE,
    NO_USERS,
    NOTHING_FORGOTTEN,
    UNASSIGNED,
    Acl,
    Cleaned,
    Controller,
    Forgotten,
    Image,
    Incarnation,
    MergedBatch,
    PartitionLeadership,
    PartitionState,
    ProducerState,
    PublisherState,
    QuotaEntity,
    RegisteredBroker,
    Replayed,
    ScramUsers,
    Topic,
    WriterTxnState,
    why_illegal_topic_name,
)
from sparklog.metadata.model.registry import NO_LIST
from sparklog.metadata.model.retired import (
    NEVER_CHECKED_MS,
    NOTHING_RETIRED,
    Retired,
    RetiredRange,
)
from sparklog.metadata.model.settings import validate_readable
from sparklog.metadata.model.share_values import ShareState
from sparklog.metadata.model.transaction_values import (
    LAST_PRODUCER_EPOCH,
    NO_ID,
    NO_PARTITIONS,
    NO_PRODUCER_EPOCH,
    PartitionSet,
    TopicPartition,
    Transaction,
    TransactionPhase,
    Transactions,
    transactions_of,
    why_illegal_transactional_id,
)
from sparklog.storage import Store, validate_name

# --- snapshot leadership -----------------------------------------------------------------------------
#
# The leaderships of a topic's partitions in the state of a snapshot: columns, and each list of brokers once.
#
# Invariants: decoding returns what was encoded; columns that do not fit the topic are refused (ValueError).
# Not here: how leaderships change (model/registry.py).
# Concurrency: pure functions.
# Sources: FORMAT.md#metadata-log.


class StoredLeadership(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Of one topic: a number per partition, or one for all; list index -1 means an empty list."""

    lists: tuple[tuple[Int64, ...], ...]
    replicas: Column
    leader: Column
    leader_epoch: Column
    adding: Column = NO_LIST
    removing: Column = NO_LIST


def stored_leadership(partitions: Sequence[PartitionLeadership]) -> StoredLeadership | None:
    """Return the columns, or None if all are the default."""
    if all(leadership == UNASSIGNED for leadership in partitions):
        return None
    places: dict[tuple[int, ...], int] = {}

    def place(brokers: tuple[int, ...]) -> int:
        return places.setdefault(brokers, len(places)) if brokers else NO_LIST

    replicas = column_of([place(leadership.replicas) for leadership in partitions])
    adding = column_of([place(leadership.adding) for leadership in partitions])
    removing = column_of([place(leadership.removing) for leadership in partitions])
    leader = column_of([leadership.leader for leadership in partitions])
    leader_epoch = column_of([leadership.leader_epoch for leadership in partitions])
    return StoredLeadership(tuple(places), replicas, leader, leader_epoch, adding, removing)


def leaderships(stored: StoredLeadership | None, count: int) -> Sequence[PartitionLeadership]:
    """Return the leadership of each of a topic's partitions; ValueError if the columns are invalid."""
    if stored is None:
        return (UNASSIGNED,) * count
    lists = (*stored.lists, ())  # the last one is for NO_LIST
    try:
        places = [expanded(getattr(stored, name), count, name) for name in ("replicas", "adding", "removing")]
        leaders = expanded(stored.leader, count, "leader")
        epochs = expanded(stored.leader_epoch, count, "leader_epoch")
    except ActionRefusedError as error:
        raise ValueError(str(error)) from None
    for column in places:
        if min(column, default=0) < NO_LIST or max(column, default=0) >= len(stored.lists):
            raise ValueError(f"replica-list index out of range (0 to {len(stored.lists) - 1})")
    found = []
    for partition in range(count):
        replicas, adding, removing = (lists[column[partition]] for column in places)
        leader, epoch = leaders[partition], epochs[partition]
        if epoch < 0 or (leader != NO_NODE and leader not in replicas):
            raise ValueError(f"partition {partition}: found leader {leader} in {epoch}, of {replicas}")
        found.append(PartitionLeadership(replicas, leader, epoch, adding, removing))
    return found


# --- snapshot transactions ---------------------------------------------------------------------------
#
# Transactions in the state of a snapshot; their staged extents are the last rows of its extents.
#
# Invariants: decoding returns what was encoded; a violation of a rule of transaction_values.py is refused
#     (CorruptLogError).
# Not here: the extents' file (snapshot_extents.py).
# Concurrency: pure functions.
# Sources: FORMAT.md#metadata-log.


_CODE = "CORRUPT_METADATA_SNAPSHOT"
_NUMBER: Final = np.dtype("<i4")
_SIGN: Final = 0x80  # of a number, in its last byte


class StoredTransaction(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The fields of a Transaction.

    Fields:
        partitions: topic id, and its partitions, as ascending little-endian int32 in Base64.
        staged: topic id, partition, and the number of its rows.
    """

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int64
    timeout_ms: Int64
    changed_ms: Int64
    changed_commit: Int64 = -1
    previous_producer_id: Int64 = NO_ID
    previous_producer_epoch: Int64 = NO_PRODUCER_EPOCH
    number: Int64 = 0
    phase: TransactionPhase = TransactionPhase.EMPTY
    started_ms: Int64 = -1
    partitions: tuple[tuple[str, bytes], ...] = ()
    staged: tuple[tuple[str, Int64, Int64], ...] = ()
    groups: tuple[str, ...] = ()


def stored_transactions(transactions: Transactions) -> tuple[StoredTransaction, ...]:
    return tuple(
        StoredTransaction(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            timeout_ms=transaction.timeout_ms,
            changed_ms=transaction.changed_ms,
            changed_commit=transaction.changed_commit,
            previous_producer_id=transaction.previous_producer_id,
            previous_producer_epoch=transaction.previous_producer_epoch,
            number=transaction.number,
            phase=transaction.phase,
            started_ms=transaction.started_ms,
            groups=transaction.groups,
            partitions=tuple(
                (topic_id, np.frombuffer(numbers, np.int32).astype(_NUMBER).tobytes())
                for topic_id, numbers in transaction.partitions.by_topic.items()
            ),
            staged=tuple((*place, len(extents)) for place, extents in transaction.staged.items()),
        )
        for transaction in transactions.values()
    )


def staged_blocks(transactions: Transactions) -> list[ExtentColumns]:
    """Return the staged rows, in the order of `stored_transactions`."""
    return [extents.columns() for extents in transactions.staged_lists()]


def split_rows(
    rows: ExtentColumns, stored: Sequence[StoredTransaction], where: str
) -> tuple[ExtentColumns, ExtentColumns]:
    """Split the rows into those of partitions and the staged ones."""
    counts = [count for transaction in stored for _, _, count in transaction.staged]
    staged = sum(counts)
    if min(counts, default=1) < 1 or staged > len(rows):
        raise corrupt(_CODE, where, f"found {len(rows)} extents, expected {staged} staged ones among them")
    return rows.slice(0, len(rows) - staged), rows.slice(len(rows) - staged, len(rows))


def transactions_from(
    stored: Sequence[StoredTransaction], rows: ExtentColumns, topics: Mapping[str, int], where: str
) -> Transactions:
    """Decode transactions.

    Args:
        rows: the staged rows, as many as the transactions count.
        topics: topic id -> number of partitions.
    """
    found = []
    same = {topic_id: topic_id for topic_id in topics}  # each id is kept in memory once
    row = 0
    for transaction in stored:
        part = rows
        if transaction.staged:
            part = rows.slice(row, row + sum(count for _, _, count in transaction.staged))
            row += len(part)
        reason = _why_illegal(transaction)
        try:
            partitions = _partitions(transaction, same)
            staged = _staged(transaction, part, partitions, topics, same)
        except ValueError as error:
            reason = reason or str(error)
        if reason is not None:
            raise corrupt(_CODE, where, f"found transactional id {transaction.transactional_id!r}: {reason}")
        found.append(_transaction(transaction, partitions, staged, part.stored_bytes if staged else 0))
    transactions = transactions_of(found)
    if len(transactions) != len(stored) or len(transactions.by_producer) != len(stored):
        raise corrupt(_CODE, where, "found a transactional id, or its producer id, twice")
    return transactions


def _partitions(transaction: StoredTransaction, same: dict[str, str]) -> PartitionSet:
    by_topic: dict[str, bytes] = {}
    for topic_id, stored in transaction.partitions:
        if not stored or len(stored) % _NUMBER.itemsize or topic_id in by_topic:
            raise ValueError(f"{len(stored)} bytes of partitions of topic {topic_id!r}, or a topic twice")
        by_topic[same.setdefault(topic_id, topic_id)] = _validated(topic_id, stored)
    return PartitionSet.of(by_topic) if by_topic else NO_PARTITIONS


def _validated(topic_id: str, stored: bytes) -> bytes:
    if len(stored) == _NUMBER.itemsize and sys.byteorder == "little" and stored[-1] < _SIGN:
        return stored  # a fast path: there may be hundreds of thousands of topics
    numbers = np.frombuffer(stored, _NUMBER)
    if numbers[0] < 0 or bool(np.any(numbers[1:] <= numbers[:-1])):
        raise ValueError(f"partitions of topic {topic_id!r} that do not ascend from 0")
    return numbers.astype(np.int32).tobytes()


def _staged(
    transaction: StoredTransaction,
    rows: ExtentColumns,
    partitions: PartitionSet,
    topics: Mapping[str, int],
    same: Mapping[str, str],
) -> dict[TopicPartition, ExtentList]:
    if not transaction.staged:
        return {}
    for topic_id, partition, _ in transaction.staged:
        if (topic_id, partition) not in partitions or partition >= topics.get(topic_id, 0):
            raise ValueError(f"it cannot have staged anything in {topic_id}-{partition}")
    counts = [count for _, _, count in transaction.staged]
    if why_disordered(rows, counts) is not None or not _is_whole(transaction, rows, counts):
        raise ValueError("it cannot have staged these extents")
    parts = (((same[topic_id], partition), count) for topic_id, partition, count in transaction.staged)
    staged = dict(lists_of(rows, parts))
    if len(staged) != len(transaction.staged):
        raise ValueError("a partition occurs twice")
    return staged


def _why_illegal(transaction: StoredTransaction) -> str | None:
    reason = why_illegal_transactional_id(transaction.transactional_id)
    if reason is not None:
        return reason
    if (
        transaction.producer_id < 0
        or not 0 <= transaction.producer_epoch <= LAST_PRODUCER_EPOCH
        or transaction.number < 0
    ):
        return "a number is out of range"
    if transaction.phase is not TransactionPhase.ONGOING and (
        transaction.partitions or transaction.staged or transaction.groups
    ):
        return "it has partitions, groups or staged extents, and is not open"
    return None


def _is_whole(transaction: StoredTransaction, rows: ExtentColumns, counts: Sequence[int]) -> bool:
    """True if the rows of each partition begin at 0, have no gaps, and are of the producer."""
    begins = np.concatenate(([0], rows.end_offset[:-1]))
    begins[np.cumsum([0, *counts[:-1]])] = 0
    return (
        bool(np.all(rows.base_offset == begins))
        and bool(np.all(rows.column("offset_delta") == rows.base_offset))
        and bool(np.all(rows.column("producer_id") == transaction.producer_id))
        and bool(np.all(rows.column("producer_epoch") == transaction.producer_epoch))
    )


def _transaction(
    transaction: StoredTransaction,
    partitions: PartitionSet,
    staged: Mapping[TopicPartition, ExtentList],
    staged_bytes: int,
) -> Transaction:
    return Transaction(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        timeout_ms=transaction.timeout_ms,
        changed_ms=transaction.changed_ms,
        changed_commit=transaction.changed_commit,
        previous_producer_id=transaction.previous_producer_id,
        previous_producer_epoch=transaction.previous_producer_epoch,
        number=transaction.number,
        phase=transaction.phase,
        started_ms=transaction.started_ms,
        groups=transaction.groups,
        partitions=partitions,
        staged=staged,
        staged_extents=sum(count for _, _, count in transaction.staged),
        staged_bytes=staged_bytes,
    )


# --- snapshot hint -----------------------------------------------------------------------------------
#
# The number of the newest snapshot, in a small file.
#
# Commits stay for a while, on some object stores permanently, and there may be some 100,000 of them: listing
# them all takes a request per thousand, or a second in a directory. So each snapshot's writer also writes its
# number here, and opening a root lists from there on.
#
# Invariants: only a hint: missing, old, or wrong, it costs a longer listing.
# Sources: FORMAT.md#metadata-log.


_log = logging.getLogger(__name__)
_MAX_BYTES = 21


def read_hint(store: Store) -> int | None:
    """Return the commit of the newest snapshot by the hint, if there is one."""
    try:
        text = store.read(SNAPSHOT_HINT, 0, _MAX_BYTES).strip()
    except NotFoundError:
        return None
    return int(text) if text.isdigit() and len(text) < _MAX_BYTES else None


def write_hint(store: Store, snapshot: int) -> None:
    """Record that there is a snapshot of this commit; a failure is logged, and harmless."""
    try:
        store.put_hint(SNAPSHOT_HINT, f"{snapshot}\n".encode())
    except StorageError as error:
        _log.warning("cannot write %s: %s", SNAPSHOT_HINT, error)


# --- snapshot ----------------------------------------------------------------------------------------


_MAX_PART_BYTES = 16 << 30


class _Partition(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    log_start_offset: Int64
    log_end_offset: Int64
    extents: Int64  # the number of its rows in the extents part, which has the order of topics and partitions
    producers: dict[Int64, ProducerState] = {}


class _Topic(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    topic_id: str
    name: str
    configs: dict[str, str]
    partitions: tuple[_Partition, ...]
    # By partition, and merged batches also by producer id.
    writer_txns: dict[str, WriterTxnState] = {}
    merged_batches: dict[Int64, dict[Int64, tuple[MergedBatch, ...]]] = {}
    cleaned: dict[Int64, Cleaned] = {}
    forgotten: dict[Int64, Forgotten] = {}
    leadership: StoredLeadership | None = None
    # By partition.
    restored_end_offsets: dict[Int64, Int64] = {}


class StoredRetired(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """See metadata/model/retired.py."""

    removed_bytes: dict[str, Int64] = {}
    ranges: dict[str, tuple[RetiredRange, ...]] = {}
    pending: dict[str, Int64] = {}
    checked_ms: Int64 = NEVER_CHECKED_MS


class _Needed(msgspec.Struct, frozen=True):
    reader_features: tuple[str, ...] = ()


class SnapshotState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    configs: dict[str, str]
    topics: tuple[_Topic, ...]
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()
    next_producer_id: Int64 = 0
    publishers: dict[str, PublisherState] = {}
    sweep_horizon: Int64 = NO_HORIZON
    producers_marked_ms: Int64 = NEVER_MARKED_MS
    brokers: tuple[RegisteredBroker, ...] = ()
    controller: Controller = NO_CONTROLLER
    transactions: tuple[StoredTransaction, ...] = ()
    retired: StoredRetired | None = None
    incarnation: Incarnation = FIRST_INCARNATION
    scram: ScramUsers = NO_USERS
    acls: tuple[Acl, ...] = ()
    quotas: tuple[tuple[QuotaEntity, dict[str, float]], ...] = ()
    # By group, topic id and partition.
    shares: dict[str, dict[str, dict[Int64, ShareState]]] = {}


def write_snapshot(store: Store, image: Image, *, timestamp_ms: int) -> None:
    """Write the snapshot of an image, durably; no error if it exists."""
    if store.exists(manifest_name(image.commit)):
        return
    from sparklog.metadata.documents.snapshot_extents import encode_extents  # noqa: PLC0415 - Arrow: 30 ms

    state = _state(image)
    body = ManifestBody(
        state=_put_part(store, image.commit, "state", "json", msgspec.json.encode(state)),
        extents=_put_part(store, image.commit, "extents", "arrow", encode_extents(_blocks(image))),
    )
    failpoint("snapshot.parts")
    header = Header(
        version=VERSION,
        kind="snapshot",
        commit=image.commit,
        cluster_id=image.cluster_id,
        uuid=image.commit_uuid,
        previous="",
        timestamp_ms=timestamp_ms,
        length=0,
    )
    try:
        store.put_if_absent(manifest_name(image.commit), encode_document(header, body))
    except AlreadyExistsError:
        return
    failpoint("snapshot.written")


def read_snapshot(store: Store, commit: int, *, cluster_id: str) -> Image:
    """Load the image of a snapshot.

    Raises:
        NotFoundError: a file is missing (perhaps cleaned since).
        CorruptLogError: any byte of any file has changed.
        UnsupportedVersionError: written by a newer version.
    """
    header, body = read_manifest(store, commit, cluster_id=cluster_id)
    where = f"{store.url}/{snapshot_directory(commit)}"
    from sparklog.metadata.documents.snapshot_extents import decode_extents  # noqa: PLC0415 - Arrow: 30 ms

    state = _decode_state(_read_part(store, commit, body.state), f"{where}/{body.state.name}", cluster_id)
    if state.next_producer_id < 0 or state.sweep_horizon < NO_HORIZON:
        raise corrupt(_CODE, where, "found a negative producer id or sweep horizon")
    columns = decode_extents(_read_part(store, commit, body.extents), f"{where}/{body.extents.name}")
    published, staged = split_rows(columns, state.transactions, where)
    topics = _topics(state, published, where)
    try:
        acls, quotas = checked_access(state.acls, state.quotas)
    except ValueError as error:
        raise corrupt(_CODE, where, str(error)) from error
    return Image(
        commit=commit,
        commit_uuid=header.uuid,
        cluster_id=cluster_id,
        topics={topic.name: topic for topic in topics},
        topic_by_id={topic.topic_id: topic for topic in topics},
        configs=state.configs,
        reader_features=frozenset(state.reader_features),
        writer_features=frozenset(state.writer_features),
        brokers=_brokers(state, where),
        controller=state.controller,
        next_producer_id=state.next_producer_id,
        publishers=state.publishers,
        sweep_horizon=state.sweep_horizon,
        retired=_retired(state.retired),
        producers_marked_ms=state.producers_marked_ms,
        transactions=transactions_from(
            state.transactions, staged, {topic.topic_id: len(topic.partitions) for topic in topics}, where
        ),
        incarnation=state.incarnation,
        scram=state.scram,
        acls=acls,
        quotas=quotas,
        shares=shares_of(state.shares, topics, where),
        cluster_changed=commit,
        newest_ms=header.timestamp_ms,
        replayed=Replayed(commit),
    )


def read_manifest(store: Store, commit: int, *, cluster_id: str) -> tuple[Header, ManifestBody]:
    """Read only the manifest."""
    name = manifest_name(commit)
    return decode_manifest(
        store.read(name), where=f"{store.url}/{name}", commit=commit, cluster_id=cluster_id
    )


def verify_snapshot(store: Store, commit: int, *, cluster_id: str) -> Header:
    """Check every byte of a snapshot, without building the image."""
    header, body = read_manifest(store, commit, cluster_id=cluster_id)
    for part in (body.state, body.extents):
        _read_part(store, commit, part)
    return header


def _put_part(store: Store, commit: int, kind: str, suffix: str, data: bytes) -> SnapshotPart:
    part = SnapshotPart(name=f"{kind}-{new_id()}.{suffix}", size=len(data), crc32c=checksum(data))
    store.put_if_absent(f"{snapshot_directory(commit)}/{part.name}", data)
    failpoint("snapshot.part")
    return part


def _read_part(store: Store, commit: int, part: SnapshotPart) -> memoryview:
    directory = snapshot_directory(commit)
    where = f"{store.url}/{directory}/{part.name}"
    try:
        name = validate_name(f"{directory}/{part.name}")
    except InvalidRequestError as error:
        raise corrupt(_CODE, f"{store.url}/{manifest_name(commit)}", error.message) from error
    with store.open_read(name) as file:
        if file.size != part.size or part.size > _MAX_PART_BYTES:
            raise corrupt(_CODE, where, f"found {file.size} bytes, expected {part.size}")
        data = file.map()
    found = checksum(data)
    if found != part.crc32c:
        raise corrupt(_CODE, where, f"found CRC-32C {found}, expected {part.crc32c}")
    return data


def _blocks(image: Image) -> list[ExtentColumns]:
    published = [
        state.extents.columns()
        for topic in image.topics.values()
        for state in topic.partitions
        if len(state.extents)
    ]
    return [*published, *staged_blocks(image.transactions)]


# --- state -------------------------------------------------------------------------------------------


def _state(image: Image) -> SnapshotState:
    topics = tuple(
        _Topic(
            topic.topic_id,
            topic.name,
            dict(topic.configs),
            tuple(
                _Partition(
                    state.log_start_offset, state.log_end_offset, len(state.extents), dict(state.producers)
                )
                for state in topic.partitions
            ),
            dict(topic.writer_txns),
            {
                state.partition: dict(state.merged_batches)
                for state in topic.partitions
                if state.merged_batches
            },
            {state.partition: state.cleaned for state in topic.partitions if state.cleaned != NEVER_CLEANED},
            {
                state.partition: state.forgotten
                for state in topic.partitions
                if state.forgotten != NOTHING_FORGOTTEN
            },
            stored_leadership([state.leadership for state in topic.partitions]),
            {
                state.partition: state.restored_end_offset
                for state in topic.partitions
                if state.restored_end_offset
            },
        )
        for topic in image.topics.values()
    )
    return SnapshotState(
        dict(image.configs),
        topics,
        tuple(sorted(image.reader_features)),
        tuple(sorted(image.writer_features)),
        image.next_producer_id,
        dict(image.publishers),
        image.sweep_horizon,
        image.producers_marked_ms,
        tuple(image.brokers.values()),
        image.controller,
        stored_transactions(image.transactions),
        _stored_retired(image.retired),
        image.incarnation,
        image.scram,
        tuple(sorted(image.acls)),
        tuple((entity, dict(quotas)) for entity, quotas in image.quotas.items()),
        stored_shares(image.shares),
    )


def _stored_retired(retired: Retired) -> StoredRetired | None:
    if retired == NOTHING_RETIRED:
        return None
    return StoredRetired(
        dict(retired.removed_bytes), dict(retired.ranges), dict(retired.pending), retired.checked_ms
    )


def _retired(stored: StoredRetired | None) -> Retired:
    if stored is None:
        return NOTHING_RETIRED
    return Retired(
        removed_bytes=stored.removed_bytes,
        ranges=stored.ranges,
        pending=stored.pending,
        checked_ms=stored.checked_ms,
    )


def _decode_state(data: memoryview, where: str, cluster_id: str) -> SnapshotState:
    """Missing features (UnsupportedVersionError) are reported before errors that follow from them."""
    try:
        state = msgspec.json.decode(data, type=SnapshotState)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            validate_readable(msgspec.json.decode(data, type=_Needed).reader_features, cluster_id)
        raise corrupt(_CODE, where, f"cannot be decoded: {error}") from error
    validate_readable(state.reader_features, cluster_id)
    return state


def _brokers(state: SnapshotState, where: str) -> dict[int, RegisteredBroker]:
    brokers = {broker.node_id: broker for broker in state.brokers}
    led: set[int] = set()
    for topic in state.topics:
        leader = NO_NODE if topic.leadership is None else topic.leadership.leader
        led.update((leader,) if isinstance(leader, int) else leader)
    for node_id in led - {NO_NODE}:
        if node_id not in brokers or brokers[node_id].is_fenced:
            raise corrupt(_CODE, where, f"found broker {node_id} fenced, and a partition that it leads")
    if len(brokers) != len(state.brokers):
        raise corrupt(_CODE, where, "found a broker twice")
    return brokers


def _topics(state: SnapshotState, columns: ExtentColumns, where: str) -> list[Topic]:
    _check_extents(state, columns, where)
    places = (
        ((topic.topic_id, number), stored.extents)
        for topic in state.topics
        for number, stored in enumerate(topic.partitions)
    )
    lists = lists_of(columns, places)
    topics: list[Topic] = []
    for topic in state.topics:
        if not is_id(topic.topic_id) or why_illegal_topic_name(topic.name) is not None:
            raise corrupt(_CODE, where, f"found the topic name {topic.name!r} and id {topic.topic_id!r}")
        try:
            led = leaderships(topic.leadership, len(topic.partitions))
        except ValueError as error:
            raise corrupt(_CODE, where, f"topic {topic.name!r}: {error}") from error
        partitions = [
            _partition(topic, number, next(lists)[1], leadership, where)
            for number, leadership in enumerate(led)
        ]
        topics.append(
            Topic(
                topic_id=topic.topic_id,
                name=topic.name,
                partitions=tuple(partitions),
                configs=topic.configs,
                writer_txns=topic.writer_txns,
            )
        )
    return topics


def _partition(
    topic: _Topic, number: int, extents: ExtentList, leadership: PartitionLeadership, where: str
) -> PartitionState:
    stored, where = topic.partitions[number], f"{where}, topic {topic.name!r} partition {number}"
    if not 0 <= stored.log_start_offset <= stored.log_end_offset or stored.extents < 0:
        raise corrupt(_CODE, where, f"found {stored}")
    cleaned = topic.cleaned.get(number, NEVER_CLEANED)
    if not 0 <= cleaned.first_dirty_offset <= stored.log_end_offset:
        raise corrupt(_CODE, where, f"found {cleaned}")
    forgotten = topic.forgotten.get(number, NOTHING_FORGOTTEN)
    if not 0 <= forgotten.end_offset <= forgotten.mark_offset <= stored.log_end_offset:
        raise corrupt(_CODE, where, f"found {forgotten}")
    restored_end = topic.restored_end_offsets.get(number, 0)
    if not 0 <= restored_end <= stored.log_end_offset:
        raise corrupt(_CODE, where, f"restored at {restored_end}")
    if extents.end_offset > stored.log_end_offset:
        raise corrupt(_CODE, where, "extents end after the log end offset")
    return PartitionState(
        topic_id=topic.topic_id,
        partition=number,
        log_start_offset=stored.log_start_offset,
        log_end_offset=stored.log_end_offset,
        extents=extents,
        producers=stored.producers,
        merged_batches=topic.merged_batches.get(number, {}),
        cleaned=cleaned,
        forgotten=forgotten,
        leadership=leadership,
        restored_end_offset=restored_end,
    )


def _check_extents(state: SnapshotState, columns: ExtentColumns, where: str) -> None:
    counts = [stored.extents for topic in state.topics for stored in topic.partitions]
    if min(counts, default=0) < 0 or sum(counts) != len(columns):
        raise corrupt(_CODE, where, f"found {len(columns)} extents, expected {sum(counts)}")
    wrong = why_disordered(columns, counts)
    if wrong is not None:
        names = [(topic.name, number) for topic in state.topics for number in range(len(topic.partitions))]
        name, partition = names[wrong[0]]
        raise corrupt(_CODE, where, f"topic {name!r} partition {partition}: {wrong[1]}")
