"""Records of __consumer_offsets, in Kafka's own key and value schema.

Invariants: writes key version 1 and value version 3; reads key versions 0 to 2 and value versions 0 to 3;
    refuses others.
Not here: the topic's compaction, the in-memory table, the members in group metadata (key version 2).
Concurrency: pure functions, immutable values.
Sources: FORMAT.md#consumer-offsets; Kafka OffsetCommitKey.json, OffsetCommitValue.json,
    GroupMetadataKey.json.
"""

import struct
from dataclasses import dataclass
from typing import Final

from sparklog.errors import CorruptLogError, InvalidRequestError, UnsupportedVersionError

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
_MAX_STRING_BYTES: Final = 2**15 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetKey:
    """Whose offset, and of what."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupKey:
    """The key of a group's own metadata; its value is Kafka's affair."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetValue:
    """A committed offset."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int


def encode_offset_key(key: OffsetKey) -> bytes:
    """Key version 1."""
    return b"".join(
        (
            struct.pack(">h", WRITTEN_KEY_VERSION),
            _string(key.group, "group"),
            _string(key.topic, "topic"),
            struct.pack(">i", key.partition),
        )
    )


def encode_offset_value(value: OffsetValue) -> bytes:
    """Value version 3."""
    return b"".join(
        (
            struct.pack(">hqi", WRITTEN_VALUE_VERSION, value.offset, value.leader_epoch),
            _string(value.metadata, "metadata"),
            struct.pack(">q", value.commit_timestamp_ms),
        )
    )


def decode_key(data: bytes, *, where: str = TOPIC) -> OffsetKey | GroupKey:
    """Key version 0 or 1 (an offset) or 2 (group metadata)."""
    fields = _Fields(data, where)
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
    """Value versions 0 to 3; the expiry of version 1 is dropped, as Kafka itself no longer uses it."""
    fields = _Fields(data, where)
    version = fields.number(">h")
    if version not in OFFSET_VALUE_VERSIONS:
        raise _unsupported(where, "value", version)
    offset = fields.number(">q")
    leader_epoch = fields.number(">i") if version >= 3 else NO_LEADER_EPOCH
    metadata = fields.string()
    commit_timestamp_ms = fields.number(">q")
    if version == 1:
        fields.number(">q")
    fields.finish()
    return OffsetValue(
        offset=offset, leader_epoch=leader_epoch, metadata=metadata, commit_timestamp_ms=commit_timestamp_ms
    )


class _Fields:
    """Reads one field after the other, and nothing beyond the end."""

    def __init__(self, data: bytes, where: str) -> None:
        self._data, self._where, self._at = data, where, 0

    def number(self, code: str) -> int:
        layout = struct.Struct(code)
        (number,) = layout.unpack(self._take(layout.size))
        return int(number)

    def string(self) -> str:
        size = self.number(">h")
        if size < 0:
            raise self._corrupt(f"a string of {size} bytes")
        try:
            return self._take(size).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._corrupt(f"a string that is not UTF-8 ({error.reason})") from error

    def finish(self) -> None:
        if self._at != len(self._data):
            raise self._corrupt(f"{len(self._data) - self._at} bytes behind the last field")

    def _take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise self._corrupt(f"{len(self._data) - self._at} bytes where {size} are needed")
        self._at += size
        return self._data[self._at - size : self._at]

    def _corrupt(self, found: str) -> CorruptLogError:
        return CorruptLogError(
            "CORRUPT_CONSUMER_OFFSET",
            f"{self._where}, byte {self._at}: found {found}, expected Kafka's schema of __consumer_offsets",
            fix="see FORMAT.md#consumer-offsets; commit the group's offsets again",
        )


def _string(text: str, name: str) -> bytes:
    data = text.encode("utf-8")
    if len(data) > _MAX_STRING_BYTES:
        raise InvalidRequestError(
            "CONSUMER_OFFSET_STRING_TOO_LONG",
            f"{name}: found {len(data)} bytes, expected at most {_MAX_STRING_BYTES}",
            fix=f"shorten {name}",
        )
    return struct.pack(">h", len(data)) + data


def _unsupported(where: str, what: str, version: int) -> UnsupportedVersionError:
    return UnsupportedVersionError(
        "UNSUPPORTED_CONSUMER_OFFSET",
        f"{where}: found {what} version {version}, expected one that this version knows",
        fix="upgrade sparklog",
    )
