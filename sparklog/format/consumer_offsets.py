"""Records of __consumer_offsets, in Kafka's own key and value schema.

Invariants: writes key versions 1 (an offset) and 2 (a group), and value version 3, or 1 if the offset has an
    expiry of its own; reads key versions 0 to 2 and value versions 0 to 3; refuses others.
Not here: the topic's compaction, the in-memory table, the value of group metadata (group_metadata.py).
Concurrency: pure functions, immutable values.
Sources: FORMAT.md#consumer-offsets; Kafka OffsetCommitKey.json, OffsetCommitValue.json,
    GroupMetadataKey.json.
"""

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from sparklog.errors import UnsupportedVersionError
from sparklog.format.kafka_fields import FieldReader, encode_string

TOPIC: Final = "__consumer_offsets"

OFFSET_KEY_FIELDS: Final = (  # name, type, meaning
    ("version", "i16", "1"),
    ("group", "string", "consumer group"),
    ("topic", "string", "topic name"),
    ("partition", "i32", "partition"),
)
OFFSET_VALUE_FIELDS: Final = (
    ("version", "i16", "3"),
    ("offset", "i64", "next offset the group will read"),
    ("leader_epoch", "i32", "leader epoch of the last record read, -1 if unknown"),
    ("metadata", "string", "the consumer's own note"),
    ("commit_timestamp_ms", "i64", "when it was committed"),
)
OFFSET_KEY_VERSIONS: Final = range(2)
GROUP_KEY_VERSION: Final = 2
OFFSET_VALUE_VERSIONS: Final = range(4)
WRITTEN_KEY_VERSION: Final = 1
WRITTEN_VALUE_VERSION: Final = 3
NO_LEADER_EPOCH: Final = -1
NO_EXPIRY: Final = -1
_EXPIRING_VALUE_VERSION: Final = 1


class OffsetKey(NamedTuple):
    """Whose offset, and of what; a tuple, since tens of thousands are hashed in one turn of a coordinator."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupKey:
    """The key of a group's own metadata; its value: group_metadata.py."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetValue:
    """A committed offset; `expire_timestamp_ms` if the client chose its own retention (before Kafka 2.1)."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_EXPIRY


def encode_offset_key(key: OffsetKey) -> bytes:
    """Key version 1."""
    return b"".join(
        (
            struct.pack(">h", WRITTEN_KEY_VERSION),
            encode_string(key.group, "group"),
            encode_string(key.topic, "topic"),
            struct.pack(">i", key.partition),
        )
    )


def encode_group_key(key: GroupKey) -> bytes:
    """Key version 2."""
    return struct.pack(">h", GROUP_KEY_VERSION) + encode_string(key.group, "group")


def encode_offset_value(value: OffsetValue) -> bytes:
    """Value version 3; version 1 (without leader epoch, as in Kafka) if it has an expiry."""
    if value.expire_timestamp_ms != NO_EXPIRY:
        return b"".join(
            (
                struct.pack(">hq", _EXPIRING_VALUE_VERSION, value.offset),
                encode_string(value.metadata, "metadata"),
                struct.pack(">qq", value.commit_timestamp_ms, value.expire_timestamp_ms),
            )
        )
    return b"".join(
        (
            struct.pack(">hqi", WRITTEN_VALUE_VERSION, value.offset, value.leader_epoch),
            encode_string(value.metadata, "metadata"),
            struct.pack(">q", value.commit_timestamp_ms),
        )
    )


def decode_key(data: bytes, *, where: str = TOPIC) -> OffsetKey | GroupKey:
    """Key version 0 or 1 (an offset) or 2 (group metadata)."""
    fields = FieldReader(data, where)
    version = fields.number(">h")
    if version in OFFSET_KEY_VERSIONS:
        key: OffsetKey | GroupKey = OffsetKey(
            group=fields.string(), topic=fields.string(), partition=fields.number(">i")
        )
    elif version == GROUP_KEY_VERSION:
        key = GroupKey(group=fields.string())
    else:
        raise _unsupported(where, "key", version)
    fields.finish()
    return key


def decode_offset_value(data: bytes, *, where: str = TOPIC) -> OffsetValue:
    """Value versions 0 to 3."""
    fields = FieldReader(data, where)
    version = fields.number(">h")
    if version not in OFFSET_VALUE_VERSIONS:
        raise _unsupported(where, "value", version)
    offset = fields.number(">q")
    leader_epoch = fields.number(">i") if version >= 3 else NO_LEADER_EPOCH
    metadata = fields.string()
    commit_timestamp_ms = fields.number(">q")
    expire_timestamp_ms = fields.number(">q") if version == _EXPIRING_VALUE_VERSION else NO_EXPIRY
    fields.finish()
    return OffsetValue(
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        commit_timestamp_ms=commit_timestamp_ms,
        expire_timestamp_ms=expire_timestamp_ms,
    )


def _unsupported(where: str, what: str, version: int) -> UnsupportedVersionError:
    return UnsupportedVersionError(
        "UNSUPPORTED_CONSUMER_OFFSET",
        f"{where}: found {what} version {version}, expected one that this version knows",
        fix="upgrade sparklog",
    )
