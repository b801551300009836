"""Values of group metadata in __consumer_offsets (key version 2): a group's generation and its members.

Invariants: writes version 3, as Kafka does; reads versions 0 to 3; refuses others.
Not here: the key (consumer_offsets.py); what the states of a group mean (the broker's coordinator).
Concurrency: pure functions, immutable values.
Sources: FORMAT.md#group-metadata; Kafka GroupMetadataValue.json.
"""

import struct
from dataclasses import dataclass
from typing import Final

from sparklog.errors import UnsupportedVersionError
from sparklog.format.kafka_fields import FieldReader, encode_bytes, encode_nullable_string, encode_string

GROUP_VALUE_FIELDS: Final = (  # name, type, meaning
    ("version", "i16", "3"),
    ("protocol_type", "string", "what the members are, such as consumer; empty if nobody ever joined"),
    ("generation_id", "i32", "number of the last rebalance"),
    ("protocol", "nullable string", "the chosen assignor; null while the group is empty"),
    ("leader", "nullable string", "member id of the leader; null while the group is empty"),
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
    """A member as it is stored."""

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
    """A group as it is stored."""

    protocol_type: str
    generation_id: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int = -1
    members: tuple[StoredMember, ...] = ()


def encode_group_value(value: GroupValue) -> bytes:
    """Value version 3."""
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
    """Value versions 0 to 3."""
    fields = FieldReader(data, where)
    version = fields.number(">h")
    if version not in GROUP_VALUE_VERSIONS:
        raise UnsupportedVersionError(
            "UNSUPPORTED_CONSUMER_OFFSET",
            f"{where}: found group metadata version {version}, expected one that this version knows",
            fix="upgrade sparklog",
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
