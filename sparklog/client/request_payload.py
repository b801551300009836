"""What a request to publish says, as JSON: drafts, the topics that they need, and the writer's version.

Invariants: whoever reads it plans what its publisher would (publish.py).
Not here: the document around it, and who reads it (metadata/requests.py, metadata/combining.py).
Sources: FORMAT.md, requests.
"""

from collections.abc import Sequence

import msgspec

from sparklog.client.appender import StagedAppend
from sparklog.client.topic_plan import PlannedTopic
from sparklog.client.writer_version import WriterVersion
from sparklog.errors import CorruptLogError
from sparklog.metadata import VERSION, DraftExtent
from sparklog.metadata.documents.document import REQUEST_VERSION
from sparklog.metadata.documents.extent_columns import (
    COLUMNS_VERSION,
    DraftColumns,
    draft_columns,
    drafts_of,
    goes_into_columns,
)
from sparklog.metadata.model.numbers import Int64


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


class _Request(_Part, frozen=True, kw_only=True):
    """What a publisher asks others to publish."""

    drafts: tuple[DraftExtent, ...] = ()
    columns: DraftColumns | None = None  # instead of `drafts`
    topics: tuple[_Topic, ...] = ()
    writer_txn: _Writer | None = None


def encode_payload(
    staged: Sequence[StagedAppend], writer: WriterVersion | None, *, most: int = VERSION
) -> bytes:
    """The JSON from which anybody can plan the same; `most`: the version that it may need."""
    drafts = tuple(draft for one in staged for draft in one.drafts)
    columns = draft_columns(drafts) if most >= COLUMNS_VERSION else None
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


def payload_version(staged: Sequence[StagedAppend], *, most: int = VERSION) -> int:
    """The lowest version of a request that may hold these, as `encode_payload` writes them."""
    drafts = sum(len(one.drafts) for one in staged)
    in_columns = goes_into_columns(drafts) and most >= COLUMNS_VERSION
    return COLUMNS_VERSION if in_columns else REQUEST_VERSION


def decode_payload(payload: bytes) -> tuple[StagedAppend, WriterVersion | None]:
    """What another publisher asks for; CorruptLogError if it cannot be understood."""
    try:
        request = msgspec.json.decode(payload, type=_Request)
        drafts = request.drafts
        if request.columns is not None:
            drafts += drafts_of(request.columns)
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
    one = request.writer_txn
    writer = None
    if one is not None:
        writer = WriterVersion(application=one.application, version=one.version, content=one.content)
    return StagedAppend(drafts=drafts, planned=planned), writer
