"""What a request to publish says, as JSON: drafts, and either the topics that they need and the writer's
version, or whose they are and what must hold for each of them.

Invariants: whoever reads it plans what its publisher would (publish.py, metadata/model/conditions.py).
Not here: the document around it, and who reads it (metadata/requests.py, metadata/combining.py).
Sources: FORMAT.md, requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from sparklog.client.appender import StagedAppend
from sparklog.client.topic_plan import PlannedTopic
from sparklog.client.writer_version import WriterVersion
from sparklog.errors import CorruptLogError
from sparklog.metadata import NEVER_OPENS, NO_NUMBER, AcceptedDraft, DraftExtent
from sparklog.metadata.documents.extent_columns import (
    DraftColumns,
    draft_columns,
    drafts_of,
)
from sparklog.metadata.model.action import ActionRefusedError
from sparklog.metadata.model.columns import Column, column_of, expanded
from sparklog.metadata.model.numbers import Int64

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
