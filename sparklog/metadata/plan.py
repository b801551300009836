"""Planning: from what a caller wants to actions that apply to an image. Pure; called again on every conflict.

Invariants: a plan reads nothing but the image and its arguments, so running it again against a newer
image is always right. What cannot be done is an error here, with a message for the caller; apply.py
checks the same things again.
Not here: what settings mean (log/config.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sparklog.errors import (
    FencedError,
    InvalidRequestError,
    RetriableError,
    UnknownTopicError,
)
from sparklog.metadata.actions import (
    NO_PRODUCER_ID,
    AddPartitions,
    AdvanceLogStart,
    AllocateProducerIds,
    AppendExtents,
    BrokerListener,
    CreateTopic,
    DeleteTopic,
    DraftExtent,
    Extent,
    RegisterBroker,
    ReplaceExtents,
    SetConfigs,
    WriterTxn,
)
from sparklog.metadata.capacity import validate_room
from sparklog.metadata.image import Image, PartitionState, ProducerState
from sparklog.metadata.sequences import SequenceCheck, check_sequence, last_batch, last_sequence
from sparklog.metadata.topic_names import why_illegal_topic_name
from sparklog.metadata.validate import (
    why_illegal_configs,
    why_illegal_extent,
    why_illegal_partition_count,
    why_illegal_producer_ids,
    why_illegal_registration,
    why_illegal_writer_txn,
)


def plan_append(image: Image, drafts: Sequence[DraftExtent]) -> AppendExtents:
    """Give the drafts their offsets, per partition in the order given.

    Raises:
        UnknownTopicError: no topic has this id (any more), or no such partition.
        FencedError: a newer epoch of the producer has written.
        InvalidRequestError: DUPLICATE_SEQUENCE, OUT_OF_ORDER_SEQUENCE, or a malformed draft.
    """
    ends: dict[tuple[str, int], int] = {}
    producers: dict[tuple[str, int, int], ProducerState] = {}
    extents = []
    for draft in drafts:
        state = _partition(image, draft.topic_id, draft.partition)
        key = (draft.topic_id, draft.partition)
        base_offset = ends.get(key, state.log_end_offset)
        extent = _with_offset(draft, base_offset)
        reason = why_illegal_extent(extent)
        if reason is not None:
            raise _invalid(f"extent of partition {draft.partition} of topic {draft.topic_id}: {reason}")
        if draft.producer_id != NO_PRODUCER_ID:
            producer = (*key, draft.producer_id)
            _check_producer(draft, producers.get(producer) or last_batch(state, draft.producer_id))
            producers[producer] = ProducerState(
                draft.producer_epoch,
                last_sequence(draft.base_sequence, draft.record_count),
                extent.end_offset - 1,
            )
        ends[key] = extent.end_offset
        extents.append(extent)
    return AppendExtents(extents=tuple(extents))


def plan_writer_txn(
    image: Image, application: str, version: int, topic_ids: Sequence[str], *, content: str = ""
) -> WriterTxn | None:
    """The action that marks `version` as applied to the topics that do not have it, or a later one.

    Args:
        topic_ids: also of topics that are created in the same commit.
        content: what the version holds, as far as the caller can say.

    Returns:
        None when no topic is left.

    Raises:
        InvalidRequestError: TXN_CONTENT_DIFFERS, a topic has the same version with other content.
    """
    action = WriterTxn(
        application=application, version=version, topics=tuple(dict.fromkeys(topic_ids)), content=content
    )
    reason = why_illegal_writer_txn(action)
    if reason is not None:
        raise _invalid(reason)
    left = []
    for topic_id in action.topics or ():
        found = image.applied(application, version, topic_id)
        if found is None:
            left.append(topic_id)
        elif found.version == version and content and found.content and content != found.content:
            raise InvalidRequestError(
                "TXN_CONTENT_DIFFERS",
                f"topic {image.topic_by_id[topic_id].name!r}: commit {found.commit} has version {version} of "
                f"{application!r} with other content ({found.content}, expected {content})",
                fix="Find out why the same version comes with something else, such as a restored or copied "
                "checkpoint; nothing was changed. Write it as another application or version if it is new",
            )
    return msgspec.structs.replace(action, topics=tuple(left)) if left else None


def plan_create_topic(
    image: Image, name: str, partitions: int, *, topic_id: str, configs: Mapping[str, str] | None = None
) -> CreateTopic:
    """A new topic; `topic_id` from new_id(). InvalidRequestError TOPIC_EXISTS when there is one."""
    reason = why_illegal_topic_name(name)
    if reason is not None:
        raise InvalidRequestError(
            "INVALID_TOPIC_NAME",
            f"topic name {name!r}: {reason}",
            fix="Choose another name, such as 'orders.eu'",
        )
    if name in image.topics:
        raise InvalidRequestError(
            "TOPIC_EXISTS", f"topic {name!r}: exists already", fix="Use it, or choose another name"
        )
    twin = image.named_like(name)
    if twin is not None:
        raise InvalidRequestError(
            "INVALID_TOPIC_NAME",
            f"topic name {name!r}: collides with {twin!r}, since '.' and '_' are the same in metrics",
            fix="Choose a name that differs in more than '.' and '_'",
        )
    reason = why_illegal_partition_count(partitions)
    if reason is not None:
        raise InvalidRequestError(
            "INVALID_PARTITION_COUNT", f"topic {name!r}: {reason}", fix="Ask for a legal number"
        )
    validate_room(image, partitions)
    return CreateTopic(
        topic_id=topic_id, name=name, partitions=partitions, configs=_topic_configs(configs or {})
    )


def plan_delete_topic(image: Image, name: str) -> DeleteTopic:
    """Delete a topic that exists."""
    return DeleteTopic(topic_id=image.topic(name).topic_id)


def plan_add_partitions(image: Image, name: str, total: int) -> AddPartitions | None:
    """Grow a topic to `total` partitions; None when it has as many already."""
    topic = image.topic(name)
    count = len(topic.partitions)
    reason = why_illegal_partition_count(total)
    if reason is None and total < count:
        reason = f"{total} partitions, it has {count} and cannot shrink"
    if reason is not None:
        raise InvalidRequestError(
            "INVALID_PARTITION_COUNT", f"topic {name!r}: {reason}", fix="Ask for more partitions"
        )
    if total == count:
        return None
    validate_room(image, total - count)
    return AddPartitions(topic_id=topic.topic_id, partitions=total)


def plan_set_configs(image: Image, name: str | None, configs: Mapping[str, str | None]) -> SetConfigs | None:
    """Set (text) or delete (None) settings of a topic, or of the root (name None); None: nothing to do."""
    topic = None if name is None else image.topic(name)
    current = image.configs if topic is None else topic.configs
    _check_configs(configs)
    changed = {key: value for key, value in configs.items() if current.get(key) != value}
    if not changed:
        return None
    return SetConfigs(topic_id=None if topic is None else topic.topic_id, configs=changed)


def plan_replace_extents(image: Image, removed: Sequence[Extent], added: Sequence[Extent]) -> ReplaceExtents:
    """Put `added` in the place of `removed`: consecutive extents of one partition, as found in an image.

    Raises:
        RetriableError: EXTENTS_CHANGED, they are not what the partition holds there any more.
    """
    if not removed:
        raise _invalid("nothing to replace")
    first, last = removed[0], removed[-1]
    state = _partition(image, first.topic_id, first.partition)
    if state.extents_between(first.base_offset, last.end_offset) != list(removed):
        raise RetriableError(
            "EXTENTS_CHANGED",
            f"partition {first.partition} of topic {first.topic_id}: offsets {first.base_offset} to "
            f"{last.end_offset} are in other extents now",
            fix="Read the extents again and redo the work; nothing was changed",
        )
    return ReplaceExtents(
        topic_id=first.topic_id,
        partition=first.partition,
        start_offset=first.base_offset,
        end_offset=last.end_offset,
        removed_count=len(removed),
        added=tuple(added),
    )


def plan_advance_log_start(
    image: Image, topic_id: str, partition: int, log_start_offset: int
) -> AdvanceLogStart | None:
    """Drop records below an offset; None when they are gone already. At most the log end offset."""
    state = _partition(image, topic_id, partition)
    if not 0 <= log_start_offset <= state.log_end_offset:
        raise _invalid(
            f"partition {partition} of topic {topic_id}: log start offset {log_start_offset}, "
            f"expected 0 to {state.log_end_offset}"
        )
    if log_start_offset <= state.log_start_offset:
        return None
    return AdvanceLogStart(topic_id=topic_id, partition=partition, log_start_offset=log_start_offset)


def plan_register_broker(
    image: Image, node_id: int, *, incarnation_id: str, listeners: Sequence[BrokerListener] = ()
) -> RegisterBroker:
    """Take the root over: the newest registration wins. `incarnation_id` from new_id()."""
    action = RegisterBroker(
        node_id=node_id,
        broker_epoch=0 if image.broker is None else image.broker.broker_epoch + 1,
        incarnation_id=incarnation_id,
        listeners=tuple(listeners),
    )
    reason = why_illegal_registration(action)
    if reason is not None:
        raise _invalid(reason)
    return action


def plan_allocate_producer_ids(image: Image, count: int) -> AllocateProducerIds:
    """The next `count` producer ids that nobody ever had."""
    action = AllocateProducerIds(first=image.next_producer_id, count=count)
    reason = why_illegal_producer_ids(action)
    if reason is not None:
        raise _invalid(reason)
    return action


def _with_offset(draft: DraftExtent, base_offset: int) -> Extent:
    fields = {field: getattr(draft, field) for field in draft.__struct_fields__}
    return Extent(base_offset=base_offset, offset_delta=base_offset, **fields)


def _partition(image: Image, topic_id: str, partition: int) -> PartitionState:
    topic = image.topic_by_id.get(topic_id)
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


def _check_producer(draft: DraftExtent, known: ProducerState | None) -> None:
    check = check_sequence(known, draft.producer_epoch, draft.base_sequence)
    found = (
        f"partition {draft.partition} of topic {draft.topic_id}: producer {draft.producer_id} epoch "
        f"{draft.producer_epoch} sequence {draft.base_sequence} {check.value}; last is {known}"
    )
    match check:
        case SequenceCheck.FENCED:
            raise FencedError("PRODUCER_FENCED", found, fix="Close this producer; a newer one has taken over")
        case SequenceCheck.DUPLICATE:
            raise InvalidRequestError(
                "DUPLICATE_SEQUENCE", found, fix="Treat the batch as appended; do not repeat it"
            )
        case SequenceCheck.OUT_OF_ORDER:
            raise InvalidRequestError("OUT_OF_ORDER_SEQUENCE", found, fix="Send the missing batches first")
        case SequenceCheck.NEXT:
            return


def _topic_configs(configs: Mapping[str, str]) -> dict[str, str]:
    _check_configs(configs)
    return dict(configs)


def _check_configs(configs: Mapping[Any, Any]) -> None:
    reason = why_illegal_configs(configs)
    if reason is None:
        for key, value in configs.items():
            if not isinstance(key, str) or not isinstance(value, str | None):
                reason = f"setting {key!r} is {type(value).__name__}, expected text"
    if reason is not None:
        raise InvalidRequestError(
            "INVALID_TOPIC_CONFIG", reason, fix="Give settings as text, for instance '604800000'"
        )


def _invalid(problem: str) -> InvalidRequestError:
    return InvalidRequestError("INVALID_ACTIONS", problem, fix="Fix the call; nothing was changed")
