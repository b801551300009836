"""Making staged appends visible: one metadata commit for any number of tasks, topics and partitions.

Invariants:
    1. All or nothing: topics to create, extents, and the writer transaction are one commit.
    2. `(application, version)` is applied to each topic at most once: topics that have it are left out, and
       the result says so. If all have it, nothing is published.
    3. Topics planned by several tasks, or created by somebody else meanwhile, become one. If the number
       of partitions differs from the plan, rows placed by key would be in the wrong one: nothing is
       published then, and the caller starts over.
    4. What others publish for us, on a slow store (metadata/combining.py), is planned by the same function
       from the same drafts, so it is the same.
Not here: writing the data (appender.py), what a commit is (metadata).
Concurrency: any thread; racing publishers are ordered by the metadata log, which calls `plan_publish` again
    for each image it finds.
After a crash: either the commit is there, or staged bytes lie unreferenced until they are swept. On a slow
    store the commit may still come within the next 4,096, if it had been left to others.
Sources: docs/design.md.
"""

import dataclasses
import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from sparklog.client.appender import StagedAppend
from sparklog.client.topic_plan import PlannedTopic
from sparklog.errors import CorruptLogError, InvalidRequestError, RetriableError
from sparklog.failpoints import failpoint
from sparklog.log.past_retention import past_retention
from sparklog.metadata import (
    MAX_WRITER_TXNS,
    NEVER_OPENS,
    NO_NUMBER,
    AcceptedDraft,
    Action,
    AppendExtents,
    CreateTopic,
    DraftExtent,
    Extent,
    Image,
    MetadataLog,
    Plan,
    SharedPlan,
    WriterTxn,
    WriterTxnState,
    apply_actions,
    plan_accepted,
    plan_append,
    plan_create_topic,
    plan_writer_txn,
    why_illegal_writer_txn,
)
from sparklog.metadata.documents.extent_columns import (
    DraftColumns,
    draft_columns,
    drafts_of,
)
from sparklog.metadata.model.action import ActionRefusedError, Column, Int64, column_of, expanded

# --- writer version ----------------------------------------------------------------------------------
#
# A version of an application: what makes a write that is repeated a single one.
#
# Invariants: immutable.
# Not here: what the image remembers of them (metadata).


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WriterVersion:
    """`version` of `application`; `content` says what is in it, or is empty."""

    application: str
    version: int
    content: str = ""

    def validate(self) -> None:
        """InvalidRequestError if it can be in no log."""
        reason = why_illegal_writer_txn(
            WriterTxn(
                application=self.application, version=self.version, topics=("any",), content=self.content
            )
        )
        if reason is not None:
            raise InvalidRequestError(
                "INVALID_ACTIONS", reason, fix="Give a name, and a version that counts from 0"
            )

    def makes_forget(self, image: Image, actions: Sequence[Action]) -> dict[str, str]:
        """Topics that forget another application through these actions, and which."""
        forgotten = {}
        for action in actions:
            for topic_id in action.topics if isinstance(action, WriterTxn) else ():
                topic = image.topic_by_id.get(topic_id)
                if topic is None or self.application in topic.writer_txns:
                    continue
                if len(topic.writer_txns) >= MAX_WRITER_TXNS:
                    forgotten[topic.name] = next(iter(topic.writer_txns))
        return forgotten


# --- request payload ---------------------------------------------------------------------------------
#
# What a request to publish says, as JSON: drafts, and either the topics that they need and the writer's
# version, or whose they are and what must hold for each of them.
#
# Invariants: every reader plans the same commit from it (metadata/model/conditions.py).
# Not here: the document around it, and who reads it (metadata/requests.py, metadata/combining.py).
# Sources: FORMAT.md, requests.


_NO_TIMESTAMP_MS = -1


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class _Topic(_Part, frozen=True, kw_only=True):
    """A topic that a request needs, and creates if it is not there."""

    name: str
    topic_id: str
    partitions: Int64
    configs: dict[str, str] = {}
    keyed: bool = False


class _Writer(_Part, frozen=True, kw_only=True):
    """It is for the topics of the drafts that do not have it."""

    application: str
    version: Int64
    content: str = ""


class _Acting(_Part, frozen=True, kw_only=True):
    """Whose drafts they are, and what must hold for each; see AcceptedDraft.

    `sent_timestamp_ms` is left out where it is the max_timestamp_ms of each draft; -1: only the time of the
    append is known.
    """

    node_id: Int64
    broker_epoch: Int64
    leader_epoch: Column
    sent_timestamp_ms: Column | None = None


class _Staging(_Part, frozen=True, kw_only=True):
    """Which drafts are a transaction's (1, else 0), when each may open it (see StageExtents), and which one
    it must be (see AcceptedDraft).
    """

    transactional: Column
    opens_ms: Column = NEVER_OPENS
    number: Column = NO_NUMBER


class _Request(_Part, frozen=True, kw_only=True):
    """What a publisher asks others to publish."""

    drafts: tuple[DraftExtent, ...] = ()
    columns: DraftColumns | None = None  # instead of `drafts`
    topics: tuple[_Topic, ...] = ()
    writer_txn: _Writer | None = None
    act_as_broker: _Acting | None = None
    staging: _Staging | None = None  # of a broker's


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterAsks:
    """What a writer that is no broker asks for: all of it, but for topics that have its version."""

    staged: StagedAppend
    writer: WriterVersion | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAsks:
    """What a broker asks for: those of its drafts that hold."""

    accepted: tuple[AcceptedDraft, ...]
    node_id: int
    broker_epoch: int


def encode_payload(staged: Sequence[StagedAppend], writer: WriterVersion | None) -> bytes:
    """The JSON from which anybody can plan the same."""
    drafts = tuple(draft for one in staged for draft in one.drafts)
    columns = draft_columns(drafts)
    request = _Request(
        drafts=drafts if columns is None else (),
        columns=columns,
        topics=tuple(
            _Topic(
                name=plan.name,
                topic_id=plan.topic_id,
                partitions=plan.partitions,
                configs=dict(plan.configs),
                keyed=plan.keyed,
            )
            for one in staged
            for plan in one.planned
        ),
        writer_txn=None
        if writer is None
        else _Writer(application=writer.application, version=writer.version, content=writer.content),
    )
    return msgspec.json.encode(request)


def encode_broker_payload(asks: BrokerAsks) -> bytes:
    """The JSON from which anybody can plan what this broker would."""
    drafts = tuple(one.draft for one in asks.accepted)
    columns = draft_columns(drafts)
    newest = [draft.max_timestamp_ms for draft in drafts]
    sent = [
        _NO_TIMESTAMP_MS if one.sent_timestamp_ms is None else one.sent_timestamp_ms for one in asks.accepted
    ]
    acting = _Acting(
        node_id=asks.node_id,
        broker_epoch=asks.broker_epoch,
        leader_epoch=column_of([one.leader_epoch for one in asks.accepted]),
        sent_timestamp_ms=None if sent == newest else column_of(sent),
    )
    staging = None
    if any(one.transactional for one in asks.accepted):
        staging = _Staging(
            transactional=column_of([int(one.transactional) for one in asks.accepted]),
            opens_ms=column_of([one.opens_ms for one in asks.accepted]),
            number=column_of([one.number for one in asks.accepted]),
        )
    request = _Request(
        drafts=drafts if columns is None else (), columns=columns, act_as_broker=acting, staging=staging
    )
    return msgspec.json.encode(request)


def decode_payload(payload: bytes) -> WriterAsks | BrokerAsks:
    """What another publisher asks for; CorruptLogError if it cannot be understood."""
    try:
        request = msgspec.json.decode(payload, type=_Request)
        drafts = request.drafts
        if request.columns is not None:
            drafts += drafts_of(request.columns)
        if request.act_as_broker is not None:
            return _broker_asks(request, request.act_as_broker, drafts)
        if request.staging is not None:
            raise msgspec.ValidationError("staged drafts of no broker")
    except (msgspec.DecodeError, UnicodeDecodeError, ActionRefusedError) as error:
        raise CorruptLogError(
            "CORRUPT_METADATA_REQUEST",
            f"a request to publish cannot be decoded: {error}",
            fix="Nothing: its publisher goes on by itself",
        ) from error
    planned = tuple(
        PlannedTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=topic.partitions,
            configs=tuple(sorted(topic.configs.items())),
            keyed=topic.keyed,
        )
        for topic in request.topics
    )
    one = request.writer_txn
    writer = None
    if one is not None:
        writer = WriterVersion(application=one.application, version=one.version, content=one.content)
    return WriterAsks(staged=StagedAppend(drafts=drafts, planned=planned), writer=writer)


def _broker_asks(request: _Request, acting: _Acting, drafts: Sequence[DraftExtent]) -> BrokerAsks:
    if request.topics or request.writer_txn is not None:
        raise msgspec.ValidationError("a broker's request with topics or a writer's version")
    epochs = expanded(acting.leader_epoch, len(drafts), "leader_epoch")
    sent: Sequence[int] = [draft.max_timestamp_ms for draft in drafts]
    if acting.sent_timestamp_ms is not None:
        sent = expanded(acting.sent_timestamp_ms, len(drafts), "sent_timestamp_ms")
    staging = request.staging or _Staging(transactional=0)
    transactional = expanded(staging.transactional, len(drafts), "transactional")
    opens = expanded(staging.opens_ms, len(drafts), "opens_ms")
    numbers = expanded(staging.number, len(drafts), "number")
    return BrokerAsks(
        accepted=tuple(
            AcceptedDraft(
                draft=draft,
                leader_epoch=epoch,
                sent_timestamp_ms=None if timestamp_ms == _NO_TIMESTAMP_MS else timestamp_ms,
                transactional=bool(is_staged),
                opens_ms=opens_ms,
                number=number,
            )
            for draft, epoch, timestamp_ms, is_staged, opens_ms, number in zip(
                drafts, epochs, sent, transactional, opens, numbers, strict=True
            )
        ),
        node_id=acting.node_id,
        broker_epoch=acting.broker_epoch,
    )


# --- publish -----------------------------------------------------------------------------------------


_log = logging.getLogger(__name__)
_RACES_OF_BROKERS = 8  # at no cost: two brokers had better race, and three soon lose so many
_warned_topics: set[str] = set()  # once per process
TopicPartition = tuple[str, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AppendedRange:
    """The offsets that an append got in one partition."""

    base_offset: int
    record_count: int

    @property
    def end_offset(self) -> int:
        """Exclusive."""
        return self.base_offset + self.record_count


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AppliedBefore:
    """What shows that a topic has a writer's version already.

    Args:
        version: the application's newest version in the topic: the one that was to be written, or a later.
        commit: the commit that has it.
        content: what is known of what it holds; "" if nothing.
    """

    version: int
    commit: int
    content: str = ""

    def __str__(self) -> str:
        return f"version {self.version}, in commit {self.commit}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AppendResult:
    """What was published.

    Args:
        commit: number of the metadata commit; None if nothing had to be published.
        duplicate: (application, version) had been applied to all topics before; nothing was published now.
        ranges: per topic and partition, the offsets of these records.
        skipped: topics that had (application, version) before, and got nothing now.
        past_retention: of the records published, at least how many are past their topic's retention.ms
            already, by topic: the next expiry removes them.
    """

    commit: int | None
    duplicate: bool
    ranges: dict[TopicPartition, AppendedRange]
    skipped: dict[str, AppliedBefore] = dataclasses.field(default_factory=dict)
    past_retention: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def partitions(self) -> dict[int, AppendedRange]:
        """The ranges by partition alone, where there is one topic."""
        assert len({topic for topic, _ in self.ranges}) <= 1, "several topics: use ranges"
        return {partition: appended for (_, partition), appended in self.ranges.items()}

    @property
    def record_count(self) -> int:
        """Records published."""
        return sum(appended.record_count for appended in self.ranges.values())


def publish(
    metadata: MetadataLog,
    staged: Iterable[StagedAppend],
    *,
    txn: tuple[str, int] | None = None,
    content: str = "",
    now_ms: int | None = None,
) -> AppendResult:
    """Publish what tasks have staged, in their order, once.

    Args:
        staged: from PartitionedAppender.finish, of any number of tasks.
        txn: (application, version); a rerun with the same pair publishes nothing in the topics that have it.
        content: what the version holds, as text, a checksum for example. The same version with other content
            is an error then; "" is compared with nothing.
        now_ms: the time, to see what is past its retention; None: retention is not checked.

    Raises:
        RetriableError: a planned topic turned out to have another number of partitions. Append again.
        UnknownTopicError: a topic was deleted meanwhile.
        InvalidRequestError: TXN_CONTENT_DIFFERS; VERSION_OUTDATED, one topic has a later version, and another
            does not have this one.
        StorageError: nothing was published.
        FatalStorageError: it is not known whether it was; a rerun with the same txn is safe.
    """
    staged = list(staged)
    writer = None if txn is None else WriterVersion(application=txn[0], version=txn[1], content=content)
    if writer is not None:
        writer.validate()
    if not any(one.drafts for one in staged):
        return AppendResult(commit=None, duplicate=False, ranges={})
    failpoint("publish.before")
    forgetting: dict[str, str] = {}

    def plan(image: Image) -> list[Action]:
        actions = plan_publish(image, staged, writer)
        forgetting.clear()
        if writer is not None:
            forgetting.update(writer.makes_forget(image, actions))
        return actions

    result = metadata.publish(plan, shared=_shared(staged, writer))
    failpoint("publish.after")
    for topic, application in forgetting.items():
        _warn_of_forgetting(topic, application)
    extents = [
        extent for action in result.actions if isinstance(action, AppendExtents) for extent in action.extents
    ]
    image = metadata.image
    return AppendResult(
        commit=result.commit if result.actions else None,
        duplicate=not result.actions,
        ranges=_ranges(image, extents),
        skipped={} if writer is None else _skipped(image, staged, writer, extents),
        past_retention={} if now_ms is None else past_retention(image, extents, now_ms),
    )


def _shared(staged: Sequence[StagedAppend], writer: WriterVersion | None) -> SharedPlan:
    """The same, as a request to others."""
    return SharedPlan(
        payload=lambda: encode_payload(staged, writer),
        interpret=interpret_request,
    )


def plan_publish(image: Image, staged: Sequence[StagedAppend], writer: WriterVersion | None) -> list[Action]:
    """The actions of the commit, computed for one image; pure. Empty: all of it is there already."""
    real_ids = _real_ids(image, staged)
    marker = None
    if writer is not None and (wanted := _topics_of(staged, real_ids)):
        marker = plan_writer_txn(image, writer.application, writer.version, wanted, content=writer.content)
        if marker is None:
            return []
        left = set(marker.topics)
        staged = [_only(one, real_ids, left) for one in staged]
    image, creates = _plan_topics(image, staged)
    actions: list[Action] = list(creates)
    drafts = [
        msgspec.structs.replace(draft, topic_id=real_ids[draft.topic_id])
        if draft.topic_id in real_ids
        else draft
        for one in staged
        for draft in one.drafts
    ]
    if drafts:
        actions.append(plan_append(image, drafts))
    return actions if marker is None else [*actions, marker]


def applied_before(image: Image, application: str, version: int, topic: str) -> AppliedBefore | None:
    """Does the topic of this name have the version already? None too if there is no such topic."""
    known = image.topics.get(topic)
    found = None if known is None else image.applied(application, version, known.topic_id)
    return None if found is None else _before(found)


def later_versions(
    image: Image, staged: Sequence[StagedAppend], application: str, version: int
) -> dict[str, AppliedBefore]:
    """The topics of a write that have a later version of the application than this one, by name."""
    writer = WriterVersion(application=application, version=version)
    found = _skipped(image, staged, writer, ())
    return {topic: before for topic, before in found.items() if before.version > version}


def interpret_request(payload: bytes) -> Plan:
    """The plan of another publisher's request; CorruptLogError if it cannot be understood."""
    asks = decode_payload(payload)
    if isinstance(asks, BrokerAsks):
        return lambda image: plan_accepted(
            image, asks.accepted, node_id=asks.node_id, broker_epoch=asks.broker_epoch
        )
    return lambda image: plan_publish(image, [asks.staged], asks.writer)


def share_accepted(
    accepted: Callable[[], Sequence[AcceptedDraft]], *, node_id: int, broker_epoch: int
) -> SharedPlan:
    """What a broker has accepted, as a request to others; `accepted` is called only if it is posted."""
    return SharedPlan(
        payload=lambda: encode_broker_payload(
            BrokerAsks(accepted=tuple(accepted()), node_id=node_id, broker_epoch=broker_epoch)
        ),
        interpret=interpret_request,
        races=_RACES_OF_BROKERS,
    )


def _real_ids(image: Image, staged: Sequence[StagedAppend]) -> dict[str, str]:
    """Planned id -> the id of the topic that has the name, or is going to have it."""
    by_name: dict[str, str] = {}
    real_ids: dict[str, str] = {}
    for one in staged:
        for plan in one.planned:
            topic = image.topics.get(plan.name)
            real_id = plan.topic_id if topic is None else topic.topic_id
            real_ids[plan.topic_id] = by_name.setdefault(plan.name, real_id)
    return real_ids


def _topics_of(staged: Sequence[StagedAppend], real_ids: Mapping[str, str]) -> list[str]:
    """Ids of the topics that get records, in the order of their first ones."""
    return list(
        dict.fromkeys(real_ids.get(draft.topic_id, draft.topic_id) for one in staged for draft in one.drafts)
    )


def _only(one: StagedAppend, real_ids: Mapping[str, str], topic_ids: Container[str]) -> StagedAppend:
    """What goes to these topics alone."""
    return StagedAppend(
        drafts=tuple(
            draft for draft in one.drafts if real_ids.get(draft.topic_id, draft.topic_id) in topic_ids
        ),
        planned=tuple(plan for plan in one.planned if real_ids[plan.topic_id] in topic_ids),
    )


def _plan_topics(image: Image, staged: Sequence[StagedAppend]) -> tuple[Image, list[CreateTopic]]:
    """The image with the planned topics in it, and what creates them."""
    by_name: dict[str, list[PlannedTopic]] = {}
    for one in staged:
        for plan in one.planned:
            by_name.setdefault(plan.name, []).append(plan)
    creates: list[CreateTopic] = []
    for name, plans in by_name.items():
        if name not in image.topics:
            create = plan_create_topic(
                image,
                name,
                max(plan.partitions for plan in plans),
                topic_id=plans[0].topic_id,
                configs=dict(plans[0].configs),
            )
            image = apply_actions(image, [create], commit=image.commit + 1, commit_uuid="planned")
            creates.append(create)
        _validate_partitions(plans, len(image.topics[name].partitions), staged)
    return image, creates


def _validate_partitions(plans: list[PlannedTopic], partitions: int, staged: Sequence[StagedAppend]) -> None:
    for plan in plans:
        largest = max(
            (draft.partition for one in staged for draft in one.drafts if draft.topic_id == plan.topic_id),
            default=-1,
        )
        if plan.partitions != partitions and (plan.keyed or largest >= partitions):
            raise RetriableError(
                "TOPIC_CHANGED",
                f"topic {plan.name!r}: found {partitions} partitions, expected {plan.partitions} as planned: "
                "somebody else has created it meanwhile",
                fix="append the rows again; nothing was published",
            )


def _ranges(image: Image, extents: Sequence[Extent]) -> dict[TopicPartition, AppendedRange]:
    ranges: dict[TopicPartition, AppendedRange] = {}
    for extent in extents:
        topic = image.topic_by_id.get(extent.topic_id)
        key = (topic.name if topic else extent.topic_id, extent.partition)
        start = ranges[key].base_offset if key in ranges else extent.base_offset
        ranges[key] = AppendedRange(base_offset=start, record_count=extent.end_offset - start)
    return ranges


def _skipped(
    image: Image, staged: Sequence[StagedAppend], writer: WriterVersion, extents: Sequence[Extent]
) -> dict[str, AppliedBefore]:
    """The topics that got nothing, and why."""
    appended = {extent.topic_id for extent in extents}
    real_ids = _real_ids(image, staged)
    skipped = {}
    for topic_id in _topics_of(staged, real_ids):
        found = image.applied(writer.application, writer.version, topic_id)
        if topic_id not in appended and found is not None:
            skipped[image.topic_by_id[topic_id].name] = _before(found)
    return skipped


def _before(found: WriterTxnState) -> AppliedBefore:
    return AppliedBefore(version=found.version, commit=found.commit, content=found.content)


def _warn_of_forgetting(topic: str, application: str) -> None:
    if topic in _warned_topics:
        return
    _warned_topics.add(topic)
    _log.warning(
        "topic %r remembers the last %d applications that wrote to it with a version (txn, txnAppId), and "
        "has just forgotten %r: a write of that one which is repeated now would be appended again. Give a "
        "job one name, and let its version grow",
        topic,
        MAX_WRITER_TXNS,
        application,
    )
