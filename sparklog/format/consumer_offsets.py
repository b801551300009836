"""Records of __consumer_offsets, in Kafka's own key and value schema.

Invariants: writes key versions 1 (an offset) and 2 (a group), and value version 3, or 1 if the offset has its
    own expiry; reads key versions 0 to 2 and value versions 0 to 3; refuses others.
Concurrency: pure functions, immutable values.
Sources: FORMAT.md#consumer-offsets; Kafka OffsetCommitKey.json, OffsetCommitValue.json,
    GroupMetadataKey.json.
"""

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from sparklog.errors import CorruptLogError, InvalidRequestError, UnsupportedVersionError

# --- kafka fields ------------------------------------------------------------------------------------
#
# Kafka's plain (non-flexible) field encodings: numbers, strings, bytes, one after the other.
#
# Invariants: a reader reads nothing beyond the end, and allocates nothing larger than the data; any violation
#     is a CorruptLogError with the position.
# Concurrency: a reader belongs to one thread.
# Sources: Kafka's protocol guide, "Protocol Primitive Types".


MAX_STRING_BYTES: Final = 2**15 - 1


class FieldReader:
    """Reads fields in order, and nothing beyond the end."""

    def __init__(self, data: bytes, where: str) -> None:
        self._data, self._where, self._at = data, where, 0

    def number(self, code: str) -> int:
        """Read a number by its struct code, such as ">i"."""
        layout = struct.Struct(code)
        (number,) = layout.unpack(self._take(layout.size))
        return int(number)

    def string(self) -> str:
        """Read a string that is not null."""
        text = self.nullable_string()
        if text is None:
            raise self.corrupt("a string of -1 bytes")
        return text

    def nullable_string(self) -> str | None:
        """Read a string, or null as None."""
        size = self.number(">h")
        if size == -1:
            return None
        if size < 0:
            raise self.corrupt(f"a string of {size} bytes")
        try:
            return self._take(size).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.corrupt(f"a string that is not UTF-8 ({error.reason})") from error

    def blob(self) -> bytes:
        """Read bytes that are not null."""
        size = self.number(">i")
        if size < 0:
            raise self.corrupt(f"bytes of size {size}")
        return self._take(size)

    def count(self, minimum_bytes: int) -> int:
        """Read the size of an array whose elements take at least `minimum_bytes` each."""
        count = self.number(">i")
        left = len(self._data) - self._at
        if not 0 <= count * minimum_bytes <= left:
            raise self.corrupt(f"an array of {count} elements in {left} bytes")
        return count

    def finish(self) -> None:
        """Raise if there are bytes left."""
        if self._at != len(self._data):
            raise self.corrupt(f"{len(self._data) - self._at} bytes after the last field")

    def corrupt(self, found: str) -> CorruptLogError:
        """Return the error, with the position."""
        return CorruptLogError(
            "CORRUPT_CONSUMER_OFFSET",
            f"{self._where}, byte {self._at}: found {found}, expected Kafka's schema of __consumer_offsets",
            fix="See FORMAT.md#consumer-offsets; commit the group's offsets again",
        )

    def _take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise self.corrupt(f"{len(self._data) - self._at} bytes where {size} are needed")
        self._at += size
        return self._data[self._at - size : self._at]


def encode_string(text: str, name: str) -> bytes:
    """Encode a string; InvalidRequestError if it is too long for its i16 size."""
    data = text.encode("utf-8")
    if len(data) > MAX_STRING_BYTES:
        raise InvalidRequestError(
            "CONSUMER_OFFSET_STRING_TOO_LONG",
            f"{name}: found {len(data)} bytes, expected at most {MAX_STRING_BYTES}",
            fix=f"Shorten {name}",
        )
    return struct.pack(">h", len(data)) + data


def encode_nullable_string(text: str | None, name: str) -> bytes:
    """Encode a string, or null."""
    return b"\xff\xff" if text is None else encode_string(text, name)


def encode_bytes(data: bytes) -> bytes:
    """Encode bytes after their i32 size."""
    return struct.pack(">i", len(data)) + data


# --- group metadata ----------------------------------------------------------------------------------
#
# Values of group metadata in __consumer_offsets (key version 2): a group's generation and its members.
#
# Invariants: writes version 3, as Kafka does; reads versions 0 to 3; refuses others.
# Not here: the meaning of a group's states (the broker's coordinator).
# Concurrency: pure functions, immutable values.
# Sources: FORMAT.md#group-metadata; Kafka GroupMetadataValue.json.


GROUP_VALUE_FIELDS: Final = (  # name, type, meaning
    ("version", "i16", "3"),
    ("protocol_type", "string", "what the members are, such as consumer; empty if nobody ever joined"),
    ("generation_id", "i32", "number of the last rebalance"),
    ("protocol", "nullable string", "the chosen assignor; null while the group is empty"),
    ("leader", "nullable string", "member id of the leader; null: none yet, or the group is empty"),
    ("state_timestamp_ms", "i64", "since when the group is in this state, -1 if unknown"),
    ("members", "i32, then so many members", "none: the group is empty"),
)
MEMBER_FIELDS: Final = (
    ("member_id", "string", "given by the coordinator"),
    ("instance_id", "nullable string", "group.instance.id of a static member, else null"),
    ("client_id", "string", "the client's own name"),
    ("client_host", "string", "where it connected from"),
    ("rebalance_timeout_ms", "i32", "how long a rebalance waits for it"),
    ("session_timeout_ms", "i32", "how long it may be silent"),
    ("subscription", "bytes", "what it joined with, for the chosen protocol"),
    ("assignment", "bytes", "what the leader assigned to it"),
)
GROUP_VALUE_VERSIONS: Final = range(4)
WRITTEN_GROUP_VALUE_VERSION: Final = 3
_MIN_MEMBER_BYTES: Final = 2 + 2 + 2 + 4 + 4 + 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMember:
    """A member as stored."""

    member_id: str
    instance_id: str | None = None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupValue:
    """A group as stored."""

    protocol_type: str
    generation_id: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int = -1
    members: tuple[StoredMember, ...] = ()


def encode_group_value(value: GroupValue) -> bytes:
    """Encode value version 3."""
    parts = [
        struct.pack(">h", WRITTEN_GROUP_VALUE_VERSION),
        encode_string(value.protocol_type, "protocol type"),
        struct.pack(">i", value.generation_id),
        encode_nullable_string(value.protocol, "protocol"),
        encode_nullable_string(value.leader, "leader"),
        struct.pack(">qi", value.state_timestamp_ms, len(value.members)),
    ]
    for member in value.members:
        parts += (
            encode_string(member.member_id, "member id"),
            encode_nullable_string(member.instance_id, "instance id"),
            encode_string(member.client_id, "client id"),
            encode_string(member.client_host, "client host"),
            struct.pack(">ii", member.rebalance_timeout_ms, member.session_timeout_ms),
            encode_bytes(member.subscription),
            encode_bytes(member.assignment),
        )
    return b"".join(parts)


def decode_group_value(data: bytes, *, where: str) -> GroupValue:
    """Decode value versions 0 to 3."""
    fields = FieldReader(data, where)
    version = fields.number(">h")
    if version not in GROUP_VALUE_VERSIONS:
        raise UnsupportedVersionError(
            "UNSUPPORTED_CONSUMER_OFFSET",
            f"{where}: found group metadata version {version}, expected a version known here",
            fix="Upgrade sparklog",
        )
    protocol_type = fields.string()
    generation_id = fields.number(">i")
    protocol = fields.nullable_string()
    leader = fields.nullable_string()
    state_timestamp_ms = fields.number(">q") if version >= 2 else -1
    members = tuple(_member(fields, version) for _ in range(fields.count(_MIN_MEMBER_BYTES)))
    fields.finish()
    return GroupValue(
        protocol_type=protocol_type,
        generation_id=generation_id,
        protocol=protocol,
        leader=leader,
        state_timestamp_ms=state_timestamp_ms,
        members=members,
    )


def _member(fields: FieldReader, version: int) -> StoredMember:
    member_id = fields.string()
    instance_id = fields.nullable_string() if version >= 3 else None
    client_id = fields.string()
    client_host = fields.string()
    rebalance_timeout_ms = fields.number(">i") if version >= 1 else -1
    session_timeout_ms = fields.number(">i")
    return StoredMember(
        member_id=member_id,
        instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        # Version 0: one timeout for both, as Kafka reads it.
        rebalance_timeout_ms=rebalance_timeout_ms if version >= 1 else session_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        subscription=fields.blob(),
        assignment=fields.blob(),
    )


# --- consumer offsets --------------------------------------------------------------------------------


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
    """The group, topic and partition of an offset; a tuple, since coordinators hash many in a batch."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupKey:
    """The key of a group's metadata; its value is a GroupValue."""

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
    """Encode key version 1."""
    return b"".join(
        (
            struct.pack(">h", WRITTEN_KEY_VERSION),
            encode_string(key.group, "group"),
            encode_string(key.topic, "topic"),
            struct.pack(">i", key.partition),
        )
    )


def encode_group_key(key: GroupKey) -> bytes:
    """Encode key version 2."""
    return struct.pack(">h", GROUP_KEY_VERSION) + encode_string(key.group, "group")


def encode_offset_value(value: OffsetValue) -> bytes:
    """Encode value version 3; version 1 (without leader epoch, as in Kafka) if it has an expiry."""
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
    """Decode key version 0 or 1 (an offset) or 2 (group metadata)."""
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
    """Decode value versions 0 to 3."""
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
        f"{where}: found {what} version {version}, expected a version known here",
        fix="Upgrade sparklog",
    )
