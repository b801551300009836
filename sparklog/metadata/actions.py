"""Typed actions: what one metadata commit can say.

Invariants: an action names topics by id, so that it can never apply to a namesake created later. Unknown
action types and unknown fields are refused (decode in document.py), never skipped.
Not here: what an action does to the image (apply.py), and who makes it (plan.py).
Format: each action is a JSON object with its name under "type"; fields with default values are left out.
Sources: FORMAT.md#metadata-log.
"""

from typing import Annotated

import msgspec

NO_PRODUCER_ID = -1
# JSON knows no bounds, but whatever computes with these numbers does.
Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class DraftExtent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Durable batches of one partition that have no offsets yet: in the segment they count from 0."""

    topic_id: str
    partition: Int64
    segment: str  # store name of the .log file
    position: Int64
    size: Int64
    record_count: Int64
    max_timestamp_ms: Int64
    producer_id: Int64 = NO_PRODUCER_ID
    producer_epoch: Int64 = -1
    base_sequence: Int64 = -1


class Extent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A byte range of a segment that holds consecutive batches of one partition.

    record_count is the number of offsets spanned, also where compaction left gaps. A record's offset is
    the stored one plus offset_delta.
    """

    topic_id: str
    partition: Int64
    segment: str
    position: Int64
    size: Int64
    base_offset: Int64
    record_count: Int64
    max_timestamp_ms: Int64
    offset_delta: Int64
    producer_id: Int64 = NO_PRODUCER_ID
    producer_epoch: Int64 = -1
    base_sequence: Int64 = -1

    @property
    def end_offset(self) -> int:
        """Exclusive."""
        return self.base_offset + self.record_count


class _Action(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class CreateTopic(_Action, tag="create_topic", frozen=True, kw_only=True):
    """A new topic; its partitions start empty at offset 0."""

    topic_id: str
    name: str
    partitions: Int64
    configs: dict[str, str] = {}


class DeleteTopic(_Action, tag="delete_topic", frozen=True, kw_only=True):
    """The topic and everything in it; its files are swept later."""

    topic_id: str


class AddPartitions(_Action, tag="add_partitions", frozen=True, kw_only=True):
    """The topic has `partitions` partitions from now on: more than before."""

    topic_id: str
    partitions: Int64


class SetConfigs(_Action, tag="set_configs", frozen=True, kw_only=True):
    """Settings of a topic, or of the root when topic_id is null; null deletes a setting."""

    configs: dict[str, str | None]
    topic_id: str | None = None


class AppendExtents(_Action, tag="append_extents", frozen=True, kw_only=True):
    """Each extent starts at the log end offset of its partition, in the order given."""

    extents: tuple[Extent, ...]


class ReplaceExtents(_Action, tag="replace_extents", frozen=True, kw_only=True):
    """The `removed_count` extents that cover [start_offset, end_offset) make way for `added`.

    Offsets stay what they were: `added` lies within the range, ascends, and may leave gaps.
    """

    topic_id: str
    partition: Int64
    start_offset: Int64
    end_offset: Int64
    removed_count: Int64
    added: tuple[Extent, ...] = ()


class AdvanceLogStart(_Action, tag="advance_log_start", frozen=True, kw_only=True):
    """Records below log_start_offset are gone; extents wholly below it are dropped."""

    topic_id: str
    partition: Int64
    log_start_offset: Int64


class WriterTxn(_Action, tag="writer_txn", frozen=True, kw_only=True):
    """The commit is `version` of `application` in `topics`; there, versions of an application only grow.

    `content` says what was in it, so that a version that comes again with something else is noticed; ""
    when nobody knows. Without `topics` (written until version 3 of the documents) it is for the whole root.
    """

    application: str
    version: Int64
    topics: tuple[str, ...] | None = None
    content: str = ""


class BrokerListener(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where Kafka clients reach a broker."""

    host: str
    port: Int64


class RegisterBroker(_Action, tag="register_broker", frozen=True, kw_only=True):
    """A broker serves the root from now on; whoever was registered before it is fenced."""

    node_id: Int64
    broker_epoch: Int64
    incarnation_id: str
    listeners: tuple[BrokerListener, ...] = ()


class AllocateProducerIds(_Action, tag="allocate_producer_ids", frozen=True, kw_only=True):
    """Producer ids [first, first + count) are handed out, and never again."""

    first: Int64
    count: Int64


class RequestApplied(_Action, tag="request_applied", frozen=True, kw_only=True):
    """The `actions` actions that follow are what request `sequence` of `publisher` asked for.

    Sequences of a publisher only grow: what is applied, or passed over, can never be applied (again).
    Without actions it takes the sequence out of the world.
    `base` and `nonce` are the request's own: after which commit it was posted, and which of the requests of
    this number, should there be clones of its process. The first version had neither.
    """

    publisher: str
    sequence: Int64
    actions: Int64 = 0
    base: Int64 = -1
    nonce: str = ""


Action = (
    CreateTopic
    | DeleteTopic
    | AddPartitions
    | SetConfigs
    | AppendExtents
    | ReplaceExtents
    | AdvanceLogStart
    | WriterTxn
    | RegisterBroker
    | AllocateProducerIds
    | RequestApplied
)
ACTION_TYPES: tuple[type[msgspec.Struct], ...] = (
    CreateTopic,
    DeleteTopic,
    AddPartitions,
    SetConfigs,
    AppendExtents,
    ReplaceExtents,
    AdvanceLogStart,
    WriterTxn,
    RegisterBroker,
    AllocateProducerIds,
    RequestApplied,
)


def version_of(action: Action) -> int:
    """The lowest version of a document that may say this, so that older sparklogs read what they can."""
    match action:
        case RequestApplied():
            return 4 if action.nonce else 3
        case WriterTxn():
            return 1 if action.topics is None and not action.content else 4
        case RegisterBroker() | AllocateProducerIds():
            return 2
        case _:
            return 1
