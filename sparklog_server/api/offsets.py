"""Committed offsets of consumer groups.

Not here: the decisions (groups/), offsets of the log (log_offsets.py).
"""

import logging
import uuid
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from sparklog.errors import SparklogError
from sparklog.format.consumer_offsets import OffsetValue
from sparklog.metadata import MOST_STAGED_WEIGHT, Image, Topic
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.coordination.staging import StagedBy
from sparklog_server.groups.offsets import OffsetToCommit, TopicPartition
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import field, make, maker, topic_id_text, topic_uuid
from sparklog_server.protocol.wire import SLICE, Pace, in_slices
from sparklog_server.publish.parts import InTransaction
from sparklog_server.runtime.lifecycle import in_turns
from sparklog_server.transactions.coordinator import masked, refusal_once_begun

_log = logging.getLogger("sparklog_server.coordinator")
_Errors = dict[TopicPartition, ErrorCode]
_UNKNOWN_ID = ErrorCode.unknown_topic_id

# --- shared by OffsetCommit, TxnOffsetCommit and OffsetDelete ----------------------------------------


async def _requested_offsets(request: Any, services: Services) -> tuple[list[OffsetToCommit], _Errors, Image]:
    """Return the offsets to commit, the errors of refused partitions, and the image that names the topics."""
    image = services.root.image
    if any(_is_unknown(_named(topic, image)[1], topic.partitions) for topic in request.topics):
        await services.root.look()  # another process may just have created it
        image = services.root.image
    max_bytes = services.config.groups.offset_metadata_max_bytes
    refused: _Errors = {}
    offsets: list[OffsetToCommit] = []
    for topic in request.topics:
        name, known = _named(topic, image)
        for asked in topic.partitions:
            place = name, asked.partition_index
            metadata = asked.committed_metadata or ""
            if _is_unknown(known, [asked]):
                is_by_id = known is None and not hasattr(topic, "name")
                refused[place] = _UNKNOWN_ID if is_by_id else ErrorCode.unknown_topic_or_partition
            elif len(metadata.encode()) > max_bytes:
                refused[place] = ErrorCode.offset_metadata_too_large
            else:
                offsets.append(
                    OffsetToCommit(
                        topic=name,
                        partition=asked.partition_index,
                        offset=asked.committed_offset,
                        leader_epoch=field(asked, "committed_leader_epoch", -1),
                        metadata=metadata,
                    )
                )
    return offsets, refused, image


def _named(topic: Any, image: Image) -> tuple[str, Topic | None]:
    """Return the topic that a request names, or (version 10) gives the id of; and its name in errors."""
    if hasattr(topic, "name"):
        return topic.name, image.topics.get(topic.name)
    if topic.topic_id is None:
        return "", None
    found = image.topic_by_id.get(topic_id_text(topic.topic_id))
    return f"id {topic.topic_id}" if found is None else found.name, found


def _is_unknown(topic: Topic | None, partitions: Iterable[Any]) -> bool:
    """True if any of these partitions of a request does not exist."""
    return topic is None or any(not 0 <= one.partition_index < len(topic.partitions) for one in partitions)


def _errors_by_topic(
    types: Any, api_name: str, request: Any, errors: _Errors, other: ErrorCode, image: Image
) -> list[Any]:
    """Return the topics of a response: each partition's error, or `other`."""
    topic_type = getattr(types, f"{api_name}ResponseTopic")
    partition_type = getattr(types, f"{api_name}ResponsePartition")
    named = [_named(topic, image)[0] for topic in request.topics]
    return [
        make(
            topic_type,
            **({"name": topic.name} if hasattr(topic, "name") else {"topic_id": topic.topic_id}),
            partitions=[
                make(
                    partition_type,
                    partition_index=asked.partition_index,
                    error_code=errors.get((name, asked.partition_index), other),
                )
                for asked in topic.partitions
            ],
        )
        for name, topic in zip(named, request.topics, strict=True)
    ]


# --- OffsetCommit ------------------------------------------------------------------------------------


_EPOCHS_SINCE = 9


@api(ApiKey.OFFSET_COMMIT, versions=range(2, 11))
async def handle_offset_commit(request: Any, context: RequestContext, services: Services) -> Any:
    """OffsetCommit (key 8), versions 2-10.

    Does: offsets of members, and of consumers without a group (generation -1); answers when they are durable.
        Negative offsets are stored, as in Kafka: administrators reset groups with -1 and -2; readers treat
        them as no offset. Members of consumer groups (KIP-848) commit in their epoch, or in an earlier one
        what was theirs by then and still is (KIP-1251); else STALE_MEMBER_EPOCH. Share groups have no such
        offsets: GROUP_ID_NOT_FOUND.
    Versions: 2-4 retention chosen by the client; 6 leader epochs; 7 static members (KIP-345); 8 flexible; 9
        member epochs; 10 topic ids.
    """
    offsets, refused, image = await _requested_offsets(request, services)
    if services.share_groups.owns(request.group_id):
        error = ErrorCode.group_id_not_found
    else:
        error = await services.groups.commit(
            request.group_id,
            offsets,
            member_id=request.member_id,
            instance_id=field(request, "group_instance_id"),
            generation_id=request.generation_id_or_member_epoch,
            retention_ms=field(request, "retention_time", -1),
            knows_epochs=context.api_version >= _EPOCHS_SINCE,
        )
    if error or refused:
        _log_refusal(request.group_id, context.client_id, error, refused)
    types = context.types
    topics = _errors_by_topic(types, "OffsetCommit", request, refused, error, image)
    return make(types.OffsetCommitResponse, topics=topics)


def _log_refusal(
    group_id: str, client_id: str, error: ErrorCode, refused: Mapping[TopicPartition, ErrorCode]
) -> None:
    """Log one line per request, of any size: clients often do not log the reason of a retry."""
    reasons = [error.name] if error else []
    if refused:
        (topic, partition), first = next(iter(refused.items()))
        reasons.append(f"{len(refused)} partitions, {topic[:100]}-{partition} first: {first.name}")
    _log.info(
        "client %r: offsets of group %r not committed: %s", client_id, group_id[:100], "; ".join(reasons)
    )


# --- TxnOffsetCommit ---------------------------------------------------------------------------------

KNOWS_LOADING_FROM, ABORTABLE_FROM, SECOND_PROTOCOL_FROM = 2, 4, 5


@api(ApiKey.TXN_OFFSET_COMMIT, versions=range(6))
async def handle_txn_offset_commit(request: Any, context: RequestContext, services: Services) -> Any:
    """TxnOffsetCommit (key 28), versions 0-5.

    Does: stages offsets durably, to be committed with the producer's transaction. Members are checked now
        (generation, instance), and not again at the end.
        Until the transaction ends OffsetFetch with `require_stable` is answered UNSTABLE_OFFSET_COMMIT.
        The group must have been added to the transaction: INVALID_TXN_STATE, TRANSACTION_ABORTABLE in version
        4. Before version 5: COORDINATOR_NOT_AVAILABLE, which all clients retry, if the open transaction is
        not the one that this broker knew when it read the request.
        A member of a consumer group (KIP-848) in another epoch than its own: ILLEGAL_GENERATION.
    Versions: 2 leader epochs; 3 flexible, members (KIP-447); 4 TRANSACTION_ABORTABLE; 5 the second protocol
        of transactions (KIP-890): the group adds itself.
    """
    if context.api_version < SECOND_PROTOCOL_FROM:
        await services.transactions.look_before_reading()
    by = _staged_by(request, context.api_version, services)
    offsets, refused, image = await _requested_offsets(request, services)
    if services.share_groups.owns(request.group_id):
        error = ErrorCode.group_id_not_found
    else:
        error = _why_full(context, services) or await _stage_offsets(
            request, context.api_version, offsets, by, services
        )
    types = context.types
    topics = _errors_by_topic(types, "TxnOffsetCommit", request, refused, error, image)
    return make(types.TxnOffsetCommitResponse, topics=topics)


def _staged_by(request: Any, version: int, services: Services) -> StagedBy:
    """Return the producer and transaction of the offsets. Call it before the handler's first await."""
    producer = request.producer_id, request.producer_epoch
    name = request.transactional_id
    if version >= SECOND_PROTOCOL_FROM:
        transaction = InTransaction(transactional_id=name, opens_ms=services.clock.now_ms())
    else:
        transaction = InTransaction.of_first_protocol(
            services.root.image, name, *producer, group=request.group_id
        )
    return StagedBy(producer_id=producer[0], producer_epoch=producer[1], transaction=transaction)


def _why_full(context: RequestContext, services: Services) -> ErrorCode:
    """Return the error if the client has used up its share of open transactions; else none."""
    refusal = services.transactions.shares.refusal(context.peer_host, services.root.image, MOST_STAGED_WEIGHT)
    return (
        ErrorCode.none if refusal is None else _known_error(refusal_once_begun(refusal), context.api_version)
    )


async def _stage_offsets(
    request: Any, version: int, offsets: list[OffsetToCommit], by: StagedBy, services: Services
) -> ErrorCode:
    """Stage the offsets; return the error of all partitions that were not refused before."""
    try:
        error = await services.groups.stage(
            request.group_id,
            offsets,
            by,
            member_id=field(request, "member_id", ""),
            instance_id=field(request, "group_instance_id"),
            generation_id=field(request, "generation_id", -1),
        )
    except SparklogError as why:
        _log.info("offsets of group %r not staged: %s", request.group_id[:100], why)
        error = _known_error(refusal_once_begun(why), version)
    if error is ErrorCode.coordinator_load_in_progress and version < KNOWS_LOADING_FROM:
        return ErrorCode.coordinator_not_available  # older clients fail on the other one
    return error


def _known_error(error: ErrorCode, version: int) -> ErrorCode:
    if error is ErrorCode.not_leader_or_follower:
        return ErrorCode.not_coordinator  # else it would retry forever at this broker
    if error is ErrorCode.concurrent_transactions:  # Java before 4.0 fails on it here
        return ErrorCode.coordinator_not_available
    error = masked(error, knows_fenced=False)  # no version knows PRODUCER_FENCED
    if error is ErrorCode.transaction_abortable and version < ABORTABLE_FROM:
        return ErrorCode.invalid_txn_state
    if error is ErrorCode.invalid_txn_state and version == ABORTABLE_FROM:
        return ErrorCode.transaction_abortable
    return error


# --- OffsetFetch -------------------------------------------------------------------------------------

_GROUPS_SINCE = 8
_PARTITION_BYTES = 500  # while the answer is made
_SORTED_AT_ONCE = 16  # take as long as it takes to make one
_NOTHING = OffsetValue(offset=-1, commit_timestamp_ms=-1)
_OF_UNKNOWN_ID = OffsetValue(offset=-1, commit_timestamp_ms=-2)
_IDS_SINCE = 10


@api(ApiKey.OFFSET_FETCH, versions=range(1, 11))
async def handle_offset_fetch(request: Any, context: RequestContext, services: Services) -> Any:
    """OffsetFetch (key 9), versions 1-10.

    Does: committed offsets by partition, or (null topics) all of a group; -1 where nothing is committed. With
        `require_stable` UNSTABLE_OFFSET_COMMIT for offsets that an open transaction may commit: the client
        retries. Offsets of a committed transaction, as far as this broker knows it, are waited for at most
        1.5 s, with and without `require_stable`. A member of a consumer group (KIP-848) in another epoch than
        its own: STALE_MEMBER_EPOCH.
    An error is answered for the group and for each requested partition, also in versions where Kafka answers
    it for the group only: aiokafka only reads the partitions, and would start a group from auto.offset.reset
    while its offsets are still being loaded.
    Beyond some 60,000 offsets, further groups are answered UNKNOWN_SERVER_ERROR: request fewer.
    Versions: 2 all topics, error code; 5 leader epochs; 6 flexible; 7 require_stable (KIP-447); 8 several
        groups (KIP-709); 9 member epochs (KIP-848); 10 topic ids, without topics that are gone.
    """
    types, version = context.types, context.api_version
    asked: _Asked = (
        {request.group_id: request.topics}
        if version < _GROUPS_SINCE
        else {one.group_id: one.topics for one in request.groups}
    )
    names: _TopicNames | None = None
    if version >= _IDS_SINCE:
        await services.root.look()
        names = _TopicNames(services.root.image)
        asked = {group_id: names.named(topics) for group_id, topics in asked.items()}
    refused = {} if version < _GROUPS_SINCE else _refused(services, request.groups)
    await services.groups.settled(asked, context.answer.give_way)  # while no room is held
    counts = await in_slices(_count_of(services, name, topics) for name, topics in asked.items())
    counted = dict(zip(asked, counts, strict=True))
    fitting = {name for name, count in counted.items() if context.answer.fits(_PARTITION_BYTES * count)}
    await context.answer.reserve()  # before anything is made: there may be a hundred requests
    must_be_stable = field(request, "require_stable", False)
    maker_of = _Makers(types, "Topic" if version < _GROUPS_SINCE else "Topics", names)
    pace = Pace()
    answers: list[Any] = []
    for group_ids in in_turns(counted, lambda name: 1 + counted[name], SLICE):
        some = [name for name in group_ids if name in fitting]
        committed = _committed(services, some, asked, refused, must_be_stable=must_be_stable)
        found = dict(zip(some, committed, strict=True))
        for name in group_ids:
            error, wanted = found.get(name, _TOO_LARGE)
            if not isinstance(wanted, dict):
                wanted = await _by_topic(wanted, pace)
                wanted = wanted if names is None else names.only_existing(wanted)
            topics = await _fetched_topics(wanted, error, maker_of.topic, pace)
            if version < _GROUPS_SINCE:
                return make(types.OffsetFetchResponse, topics=topics, error_code=error)
            answers.append(maker_of.group(error)(name, topics))
    return make(types.OffsetFetchResponse, groups=answers)


_Asked = dict[str, Any]  # group -> topics, None: all
_Wanted = dict[str, dict[int, OffsetValue | None]]  # topic -> partition -> what is committed; None: unstable
_Refused = dict[str, ErrorCode]
_All = list[tuple[TopicPartition, OffsetValue | None]]  # the same of a whole group, as it is found


_TOO_LARGE: tuple[ErrorCode, _Wanted | _All] = (ErrorCode.unknown_server_error, {})


def _count_of(services: Services, group_id: str, asked: Any) -> int:
    """Return the number of offsets in a group's answer."""
    if asked is None:
        return services.groups.committed_count(group_id)
    return sum(len(topic.partition_indexes) for topic in asked)


def _refused(services: Services, groups: Iterable[Any]) -> _Refused:
    """Return which groups a member may not fetch the offsets of, and why."""
    refused = {}
    for one in groups:
        member_id, epoch = field(one, "member_id"), field(one, "member_epoch", -1)
        if error := services.groups.refuse_fetch(one.group_id, member_id, epoch):
            refused[one.group_id] = error
    return refused


class _AskedTopic(NamedTuple):
    """A topic of a request by ids; `name` is made up for an id that is not known."""

    name: str
    partition_indexes: Sequence[int]


class _TopicNames:
    """Names of the topics of a request by ids, and ids for the names in its answer."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._unknown: dict[str, uuid.UUID | None] = {}

    def named(self, topics: Sequence[Any] | None) -> list[_AskedTopic] | None:
        if topics is None:
            return None
        asked = []
        for one in topics:
            name, found = _named(one, self._image)
            if found is None:
                name = f"\0{name}"  # no topic has such a name
                self._unknown[name] = one.topic_id
            asked.append(_AskedTopic(name, one.partition_indexes))
        return asked

    def only_existing(self, wanted: _Wanted) -> _Wanted:
        return {name: found for name, found in wanted.items() if name in self._image.topics}

    def id_of(self, name: str) -> uuid.UUID | None:
        if name in self._unknown:
            return self._unknown[name]
        return topic_uuid(self._image.topics[name].topic_id)


def _committed(
    services: Services, names: Sequence[str], asked: _Asked, refused: _Refused, *, must_be_stable: bool
) -> Iterator[tuple[ErrorCode, _Wanted | _All]]:
    """Return the present offsets of groups: 4 ms for 36,000 offsets; the rest is built in later turns."""
    for name, (error, committed) in zip(names, services.groups.fetch_all(names), strict=True):
        error = error or refused.get(name, ErrorCode.none)  # noqa: PLW2901
        unstable: Container[TopicPartition] = ()
        if must_be_stable and not error:
            unstable = services.groups.table.unstable(name)
        if asked[name] is None:
            yield error, [(at, None if at in unstable else value) for at, value in committed.items()]
            continue
        wanted: _Wanted = {}
        for one in asked[name]:
            of_topic = wanted.setdefault(one.name, {})
            nothing = _OF_UNKNOWN_ID if one.name.startswith("\0") else _NOTHING
            for partition in one.partition_indexes:
                place = one.name, partition
                of_topic[partition] = None if place in unstable else committed.get(place, nothing)
        yield error, wanted


async def _by_topic(found: _All, pace: Pace) -> _Wanted:
    """Return the sorted offsets of a whole group; yields to the event loop."""
    topics: _Wanted = {}
    for first in range(0, len(found), SLICE):
        some = found[first : first + SLICE]
        for (topic, partition), value in some:
            topics.setdefault(topic, {})[partition] = value
        await pace.made(len(some))
    wanted: _Wanted = {}
    for topic in sorted(topics):
        wanted[topic] = dict(sorted(topics[topic].items()))
        await pace.made(len(topics[topic]) // _SORTED_AT_ONCE)
    return wanted


class _Partition(NamedTuple):
    """A partition in the answer, for every version; kio's entity would take ten times as long to create."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    metadata: str | None
    error_code: ErrorCode


class _Makers:
    """Constructors of topics, and of groups by error: thousands may have the same."""

    def __init__(self, types: ModuleType, suffix: str, names: _TopicNames | None) -> None:
        self._types = types
        self._groups: dict[ErrorCode, Callable[..., Any]] = {}
        kind = getattr(types, f"OffsetFetchResponse{suffix}")
        if names is None:
            self.topic = maker(kind, "name", "partitions")
        else:
            by_id = maker(kind, "topic_id", "partitions")
            self.topic = lambda name, partitions: by_id(names.id_of(name), partitions)

    def group(self, error: ErrorCode) -> Callable[..., Any]:
        """Return the constructor of a group, from its id and topics."""
        if error not in self._groups:
            kind = self._types.OffsetFetchResponseGroup
            self._groups[error] = maker(kind, "group_id", "topics", error_code=error)
        return self._groups[error]


async def _fetched_topics(
    wanted: _Wanted, error: ErrorCode, topic: Callable[..., Any], pace: Pace
) -> tuple[Any, ...]:
    topics = []
    for name, found in wanted.items():
        partitions = await in_slices(
            _fetched_partition(number, value, error) for number, value in found.items()
        )
        topics.append(topic(name, tuple(partitions)))
        await pace.made(1 + len(partitions) % SLICE)
    await pace.made(1)
    return tuple(topics)


def _fetched_partition(number: int, value: OffsetValue | None, error: ErrorCode) -> _Partition:
    if value is None:
        value, error = _NOTHING, ErrorCode.unstable_offset_commit
    elif value is _OF_UNKNOWN_ID:
        error = error or _UNKNOWN_ID
    return _Partition(number, value.offset, value.leader_epoch, value.metadata, error)


# --- OffsetDelete ------------------------------------------------------------------------------------


@api(ApiKey.OFFSET_DELETE, versions=range(1))
async def handle_offset_delete(request: Any, context: RequestContext, services: Services) -> Any:
    """OffsetDelete (key 47), version 0.

    Does: deletes committed offsets of topics to which no member of the group subscribes (KIP-496).

    Answers when the tombstones are durable.
    """
    await services.root.look()  # for what Spark has just committed
    types, topics = context.types, services.root.image.topics
    refused: _Errors = {}
    partitions: list[TopicPartition] = []
    for topic in request.topics:
        known = topics.get(topic.name)
        for asked in topic.partitions:
            place = topic.name, asked.partition_index
            if _is_unknown(known, [asked]):
                refused[place] = ErrorCode.unknown_topic_or_partition
            else:
                partitions.append(place)
    error, results = await services.groups.delete_offsets(request.group_id, partitions)
    if error:
        return make(types.OffsetDeleteResponse, error_code=error)
    answered = _errors_by_topic(
        types, "OffsetDelete", request, results | refused, ErrorCode.none, services.root.image
    )
    return make(types.OffsetDeleteResponse, topics=answered)
