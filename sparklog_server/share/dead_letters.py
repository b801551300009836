"""Dead letters: records that a share group rejected, or that were delivered too often.

A dead letter has Kafka's headers, which say where the record is, and on request its key, value and headers.
It goes to the partition of the same number (modulo) of the group's dead-letter topic, and is committed with
the archival of its record (writer.py). If the topic cannot take it, the record is not archived: it stays
locked, and is tried again. Kafka archives it, and nothing says where the record went.

Not here: which records (partition.py).
Concurrency: `build` runs in a storage thread.
Sources: KIP-1191; Kafka ShareGroupDLQStateManager.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from sparklog.client.consumer import read_batches
from sparklog.errors import InvalidRequestError
from sparklog.format.encode import EncodeOptions, encode_batches
from sparklog.format.schema import RecordColumns
from sparklog.log.config import TopicConfig
from sparklog.metadata import Image, MetadataLog, Topic
from sparklog_server.publish.parts import AppendPart
from sparklog_server.share.partition import Letter

ENABLE_KEY: Final = "errors.deadletterqueue.group.enable"
PREFIX: Final = "__dlq.errors."
MAX_LETTER_BYTES: Final = 16 << 20  # of copied records in one commit
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_Header = dict[str, str | bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterTopic:
    """Where a group's dead letters go; `copies`: with the records' keys, values and headers."""

    name: str
    copies: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The group and the partition of the records."""

    group: str
    topic: str
    topic_id: str
    partition: int


def dead_letter_topic(
    image: Image, target: DeadLetterTopic, config_of: Callable[[Topic], TopicConfig]
) -> tuple[Topic, TopicConfig]:
    """Return the topic, which must be made for this, and its settings.

    Raises:
        InvalidRequestError: INVALID_DEAD_LETTER_TOPIC.
    """
    topic = image.topics.get(target.name)
    config = None if topic is None else config_of(topic)
    if topic is None or config is None or not config.errors_deadletterqueue_group_enable:
        found = "no such topic" if topic is None else f"a topic without {ENABLE_KEY}=true"
        raise InvalidRequestError(
            "INVALID_DEAD_LETTER_TOPIC",
            f"dead-letter topic {target.name!r}: found {found}",
            fix=f"create it with {ENABLE_KEY}=true (or set that), or delete the group's setting "
            "errors.deadletterqueue.topic.name; until then the records stay locked",
        )
    return topic, config


def build(
    metadata: MetadataLog,
    image: Image,
    topic: Topic,
    config: TopicConfig,
    origin: Origin,
    letters: Sequence[Letter],
    *,
    copies: bool,
    now_ms: int,
) -> AppendPart:
    """Return the dead letters as batches for their partition.

    Raises:
        InvalidRequestError: RECORD_TOO_LARGE.
        SparklogError: the records cannot be read.
    """
    rows = list(_rows(metadata, image, origin, letters, copies=copies))
    columns = RecordColumns(
        key=pa.array([row.key for row in rows], pa.binary()),
        value=pa.array([row.value for row in rows], pa.binary()),
        timestamp_ms=np.full(len(rows), now_ms, np.int64),
        headers=pa.array([row.headers for row in rows], _HEADERS),
    )
    options = EncodeOptions(max_message_bytes=config.max_message_bytes)
    return AppendPart(
        topic_id=topic.topic_id,
        topic=topic.name,
        partition=origin.partition % len(topic.partitions),
        encoded=encode_batches(columns, options),
    )


@dataclass(frozen=True, slots=True)
class _Row:
    key: bytes | None
    value: bytes | None
    headers: list[_Header]


def _rows(
    metadata: MetadataLog, image: Image, origin: Origin, letters: Sequence[Letter], *, copies: bool
) -> Iterator[_Row]:
    """Yield a row for each record that is still there; without copies also for those that are not."""
    left = MAX_LETTER_BYTES
    for letter in letters:
        if not copies:
            for offset in range(letter.first, letter.last + 1):
                yield _Row(None, None, _headers(origin, letter, offset))
            continue
        for batch in read_batches(
            metadata,
            image,
            origin.topic,
            origin.partition,
            start_offset=max(letter.first, image.partition(origin.topic, origin.partition).log_start_offset),
            end_offset=letter.last + 1,
            include_headers=True,
            skip_expired=True,
        ):
            for row in batch.to_pylist():
                own = [dict(one) for one in row["headers"] or ()]
                left -= len(row["key"] or b"") + len(row["value"] or b"")
                left -= sum(len(one["key"]) + len(one["value"] or b"") for one in own)
                if left < 0:
                    raise InvalidRequestError(
                        "RECORD_TOO_LARGE",
                        f"{origin.topic}-{origin.partition}: found more than {MAX_LETTER_BYTES} bytes of "
                        "records that one request rejects",
                        fix="reject fewer records in one request",
                    )
                yield _Row(row["key"], row["value"], [*own, *_headers(origin, letter, row["offset"])])


def _headers(origin: Origin, letter: Letter, offset: int) -> list[_Header]:
    values = {
        "topic": origin.topic,
        "partition": origin.partition,
        "offset": offset,
        "group": origin.group,
        "delivery.count": letter.deliveries,
        "message": letter.cause.value,
    }
    return [{"key": f"{PREFIX}{name}", "value": str(value).encode()} for name, value in values.items()]
