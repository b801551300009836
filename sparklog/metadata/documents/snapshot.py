"""Snapshots: the image after a commit, in files, so that opening need not replay everything.

A snapshot is a directory: two parts with unique names, and then the manifest, put last, whose presence
makes the snapshot. The extents, of which there may be a million, are Arrow columns; the rest is JSON.

Invariants: parts are durable before the manifest; the manifest holds their sizes and checksums, the
cluster id, and the UUID of the commit, which the following commit must name as its previous one.
Concurrency: several processes may write the same snapshot; one manifest wins, the others' parts are
left behind until the snapshot is cleaned.
After a crash: a directory without a manifest is no snapshot; cleaning removes it.
Sources: FORMAT.md#metadata-log.
"""

import contextlib

import msgspec

from sparklog.errors import AlreadyExistsError, InvalidRequestError
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
from sparklog.metadata.documents.paths import manifest_name, snapshot_directory
from sparklog.metadata.documents.snapshot_extents import decode_extents, encode_extents
from sparklog.metadata.documents.snapshot_leadership import (
    StoredLeadership,
    leaderships,
    stored_leadership,
)
from sparklog.metadata.documents.snapshot_transactions import (
    StoredTransaction,
    split_rows,
    staged_blocks,
    stored_transactions,
    transactions_from,
)
from sparklog.metadata.model.broker_values import (
    NO_CONTROLLER,
    NO_NODE,
    Controller,
    PartitionLeadership,
    RegisteredBroker,
)
from sparklog.metadata.model.extent_list import ExtentColumns, ExtentList, lists_of, why_disordered
from sparklog.metadata.model.features import validate_readable
from sparklog.metadata.model.ids import is_id, new_id
from sparklog.metadata.model.image import (
    FIRST_INCARNATION,
    NEVER_CLEANED,
    NEVER_MARKED_MS,
    NO_HORIZON,
    NOTHING_FORGOTTEN,
    Cleaned,
    Forgotten,
    Image,
    Incarnation,
    MergedBatch,
    PartitionState,
    ProducerState,
    PublisherState,
    Replayed,
    Topic,
    WriterTxnState,
)
from sparklog.metadata.model.numbers import Int64
from sparklog.metadata.model.retired import (
    NEVER_CHECKED_MS,
    NOTHING_RETIRED,
    Retired,
    RetiredRange,
)
from sparklog.metadata.model.topic_names import why_illegal_topic_name
from sparklog.storage import Store, validate_name

_CODE = "CORRUPT_METADATA_SNAPSHOT"
_MAX_PART_BYTES = 16 << 30


class _Partition(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    log_start_offset: Int64
    log_end_offset: Int64
    extents: Int64  # how many of the extents part's rows, which are in the order of topics and partitions
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
    # Version 9, likewise: by partition.
    restored_end_offsets: dict[Int64, Int64] = {}


class StoredRetired(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """As metadata/model/retired.py has it."""

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


def write_snapshot(store: Store, image: Image, *, timestamp_ms: int) -> None:
    """Write the snapshot of an image, durably; no error when it is there already."""
    if store.exists(manifest_name(image.commit)):
        return
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
        NotFoundError: a file is missing (perhaps cleaned meanwhile).
        CorruptLogError: any byte of any file is not what was written.
        UnsupportedVersionError: written by a newer version.
    """
    header, body = read_manifest(store, commit, cluster_id=cluster_id)
    where = f"{store.url}/{snapshot_directory(commit)}"
    state = _decode_state(_read_part(store, commit, body.state), f"{where}/{body.state.name}", cluster_id)
    if state.next_producer_id < 0 or state.sweep_horizon < NO_HORIZON:
        raise corrupt(_CODE, where, "found a negative producer id or sweep horizon")
    columns = decode_extents(_read_part(store, commit, body.extents), f"{where}/{body.extents.name}")
    published, staged = split_rows(columns, state.transactions, where)
    topics = _topics(state, published, where)
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
        cluster_changed=commit,
        newest_ms=header.timestamp_ms,
        replayed=Replayed(commit),
    )


def read_manifest(store: Store, commit: int, *, cluster_id: str) -> tuple[Header, ManifestBody]:
    """The manifest alone."""
    name = manifest_name(commit)
    return decode_manifest(
        store.read(name), where=f"{store.url}/{name}", commit=commit, cluster_id=cluster_id
    )


def verify_snapshot(store: Store, commit: int, *, cluster_id: str) -> Header:
    """Check that every byte of a snapshot is what was written, without building the image."""
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
    """UnsupportedVersionError, which names features, comes before what cannot be decoded for want of them."""
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
