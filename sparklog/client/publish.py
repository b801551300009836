"""Making staged appends visible: one metadata commit for any number of tasks, topics and partitions.

Invariants:
    1. All or nothing: topics to create, extents, and the writer transaction are one commit.
    2. `(application, version)` is applied at most once: if the image has it, nothing is published.
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
Sources: design.md section 3.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import msgspec

from sparklog.client.appender import StagedAppend
from sparklog.client.topic_plan import PlannedTopic
from sparklog.errors import CorruptLogError, RetriableError
from sparklog.failpoints import failpoint
from sparklog.metadata import (
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
    plan_append,
    plan_create_topic,
    plan_writer_txn,
)
from sparklog.metadata.actions import Int64
from sparklog.metadata.apply import apply_actions

TopicPartition = tuple[str, int]


class _RequestTopic(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A topic that a request needs, and creates if it is not there."""

    name: str
    topic_id: str
    partitions: Int64
    configs: dict[str, str] = {}
    keyed: bool = False


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
class AppendResult:
    """What was published.

    Args:
        commit: number of the metadata commit; None if nothing had to be published.
        duplicate: (application, version) had been applied before; nothing was published now.
        ranges: per topic and partition, the offsets of these records.
    """

    commit: int | None
    duplicate: bool
    ranges: dict[TopicPartition, AppendedRange]

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
    metadata: MetadataLog, staged: Iterable[StagedAppend], *, txn: tuple[str, int] | None = None
) -> AppendResult:
    """Publish what tasks have staged, in their order, once.

    Args:
        staged: from PartitionedAppender.finish, of any number of tasks.
        txn: (application, version); a rerun with the same pair publishes nothing.

    Raises:
        RetriableError: a planned topic turned out to have another number of partitions. Append again.
        UnknownTopicError: a topic was deleted meanwhile.
        StorageError: nothing was published.
        FatalStorageError: it is not known whether it was; a rerun with the same txn is safe.
    """
    staged = list(staged)
    if txn is None and not any(one.drafts for one in staged):
        return AppendResult(commit=None, duplicate=False, ranges={})
    failpoint("publish.before")
    shared = SharedPlan(payload=lambda: encode_request(staged, txn), interpret=interpret_request)
    result = metadata.publish(lambda image: plan_publish(image, staged, txn), shared=shared)
    failpoint("publish.after")
    extents = [
        extent for action in result.actions if isinstance(action, AppendExtents) for extent in action.extents
    ]
    return AppendResult(
        commit=result.commit if result.actions else None,
        duplicate=not result.actions,
        ranges=_ranges(metadata.image, extents),
    )


def plan_publish(image: Image, staged: Sequence[StagedAppend], txn: tuple[str, int] | None) -> list[Action]:
    """The actions of the commit, computed for one image; pure. Empty: already applied."""
    marker = None if txn is None else plan_writer_txn(image, *txn)
    if txn is not None and marker is None:
        return []
    image, creates, real_ids = _plan_topics(image, staged)
    actions: list[Action] = list(creates)
    drafts = [
        msgspec.structs.replace(draft, topic_id=real_ids.get(draft.topic_id, draft.topic_id))
        for one in staged
        for draft in one.drafts
    ]
    if drafts:
        actions.append(plan_append(image, drafts))
    return actions if marker is None else [*actions, marker]


class _Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a publisher asks others to publish: FORMAT.md, requests."""

    drafts: tuple[DraftExtent, ...] = ()
    topics: tuple[_RequestTopic, ...] = ()
    writer_txn: WriterTxn | None = None


def encode_request(staged: Sequence[StagedAppend], txn: tuple[str, int] | None) -> bytes:
    """The JSON from which anybody can plan what `plan_publish` would."""
    request = _Request(
        drafts=tuple(draft for one in staged for draft in one.drafts),
        topics=tuple(
            _RequestTopic(
                name=plan.name,
                topic_id=plan.topic_id,
                partitions=plan.partitions,
                configs=dict(plan.configs),
                keyed=plan.keyed,
            )
            for one in staged
            for plan in one.planned
        ),
        writer_txn=None if txn is None else WriterTxn(application=txn[0], version=txn[1]),
    )
    return msgspec.json.encode(request)


def interpret_request(payload: bytes) -> Plan:
    """The plan of another publisher's request; CorruptLogError if it cannot be understood."""
    try:
        request = msgspec.json.decode(payload, type=_Request)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
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
    staged = [StagedAppend(drafts=request.drafts, planned=planned)]
    wanted = request.writer_txn
    txn = None if wanted is None else (wanted.application, wanted.version)
    return lambda image: plan_publish(image, staged, txn)


def _plan_topics(
    image: Image, staged: Sequence[StagedAppend]
) -> tuple[Image, list[CreateTopic], dict[str, str]]:
    """The image with the planned topics in it, what creates them, and planned id -> id to use."""
    by_name: dict[str, list[PlannedTopic]] = {}
    for one in staged:
        for plan in one.planned:
            by_name.setdefault(plan.name, []).append(plan)
    creates: list[CreateTopic] = []
    real_ids: dict[str, str] = {}
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
        topic = image.topics[name]
        _validate_partitions(plans, len(topic.partitions), staged)
        real_ids.update({plan.topic_id: topic.topic_id for plan in plans})
    return image, creates, real_ids


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
