"""Records of consumer groups (KIP-848) in __consumer_offsets, in Kafka's own key and value schema.

    key 3   the group's epoch              5  a member's subscription
        6   the target assignment's epoch  7  a member's part of it
        8   a member's current assignment 16  the topics that match a regular expression

Invariants: writes value version 0, with the tagged fields of Kafka 4.3 (hash of the topics, epochs of
    assigned partitions, what members of the classic protocol say); unknown tagged fields are skipped, unknown
    versions refused. A reader allocates nothing larger than the data.
Not here: offsets, and groups of the classic protocol (consumer_offsets.py); what the records mean (the
    broker's coordinator).
Concurrency: pure functions, immutable values.
Sources: FORMAT.md#consumer-groups; Kafka's ConsumerGroup*Key.json and *Value.json; KIP-848, KIP-1251.
"""

import base64
import enum
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sparklog.errors import CorruptLogError, UnsupportedVersionError
from sparklog.format.consumer_offsets import TOPIC, FieldReader, encode_string

_INT16, _INT32, _INT64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_TOPIC_ID_BYTES: Final = 16
_VALUE_VERSION: Final = 0
_PRESENT: Final = b"\1"  # before a structure that may be null
NO_TIME: Final = -1


class RecordKind(enum.IntEnum):
    """The version of a record's key, by which Kafka tells the kinds apart."""

    GROUP = 3
    MEMBER = 5
    TARGET = 6
    MEMBER_TARGET = 7
    MEMBER_ASSIGNMENT = 8
    REGEX = 16


_NAMED: Final = {
    RecordKind.MEMBER,
    RecordKind.MEMBER_TARGET,
    RecordKind.MEMBER_ASSIGNMENT,
    RecordKind.REGEX,
}
KEY_VERSIONS: Final = frozenset(RecordKind)


class MemberState(enum.IntEnum):
    """How far a member is on its way to the target assignment."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1  # it must give up partitions first
    UNRELEASED_PARTITIONS = 2  # it waits for partitions that others have not given up yet


class ConsumerGroupKey(NamedTuple):
    """The key of a record. `name`: of the member, or the regular expression; empty for the group's own."""

    kind: RecordKind
    group: str
    name: str = ""


Partitions = Mapping[str, frozenset[int]]  # by topic id
AssignedPartitions = Mapping[str, Mapping[int, int]]  # by topic id and partition: since which epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEpoch:
    """The group's epoch, and the hash of the topics that it was made for."""

    epoch: int
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMember:
    """What a member of the classic protocol says besides. `protocols`: names, and what it sent for each."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What a member says of itself. `classic`: None for a member of the new protocol."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    regex: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMember | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetEpoch:
    """The group epoch for which the target assignment was computed."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberTarget:
    """The partitions that a member is to have."""

    partitions: Partitions = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentAssignment:
    """The partitions that a member has, and those that it still has to give up."""

    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: AssignedPartitions = field(default_factory=dict)
    pending_revocation: AssignedPartitions = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRegex:
    """The topics that match a regular expression as of a commit of the metadata log."""

    topics: tuple[str, ...]
    version: int
    timestamp_ms: int = NO_TIME


ConsumerGroupValue = (
    GroupEpoch | Subscription | TargetEpoch | MemberTarget | CurrentAssignment | ResolvedRegex
)

# --- writing -----------------------------------------------------------------------------------------


def encode_consumer_group_key(key: ConsumerGroupKey) -> bytes:
    """Encode a key."""
    parts = [_INT16.pack(key.kind), encode_string(key.group, "group")]
    if key.kind in _NAMED:
        parts.append(encode_string(key.name, "member id or regular expression"))
    return b"".join(parts)


def encode_consumer_group_value(value: ConsumerGroupValue) -> bytes:
    """Encode a value, version 0."""
    parts = [_INT16.pack(_VALUE_VERSION)]
    match value:
        case GroupEpoch():
            parts += (_INT32.pack(value.epoch), _tagged({0: _INT64.pack(value.metadata_hash)}))
        case Subscription():
            parts += (
                *map(_text, (value.instance_id, value.rack_id, value.client_id, value.client_host)),
                _uvarint(len(value.topics) + 1),
                *map(_text, value.topics),
                _text(value.regex),
                _INT32.pack(value.rebalance_timeout_ms),
                _text(value.assignor),
                _tagged({} if value.classic is None else {0: _classic(value.classic)}),
            )
        case TargetEpoch():
            parts += (_INT32.pack(value.epoch), b"\0")
        case MemberTarget():
            parts += (_array([_topic(topic, some) for topic, some in value.partitions.items()]), b"\0")
        case CurrentAssignment():
            parts += (
                struct.pack(">iib", value.epoch, value.previous_epoch, value.state),
                _array([_assigned(topic, some) for topic, some in value.assigned.items()]),
                _array([_assigned(topic, some) for topic, some in value.pending_revocation.items()]),
                b"\0",
            )
        case ResolvedRegex():
            parts += (
                _uvarint(len(value.topics) + 1),
                *map(_text, value.topics),
                struct.pack(">qq", value.version, value.timestamp_ms),
                b"\0",
            )
    return b"".join(parts)


def _classic(classic: ClassicMember) -> bytes:
    protocols = [_text(name) + _blob(data) + b"\0" for name, data in classic.protocols]
    return _PRESENT + _INT32.pack(classic.session_timeout_ms) + _array(protocols) + b"\0"


def _topic(topic_id: str, partitions: frozenset[int]) -> bytes:
    return _topic_id_bytes(topic_id) + _int32s(sorted(partitions)) + b"\0"


def _assigned(topic_id: str, partitions: Mapping[int, int]) -> bytes:
    numbers = sorted(partitions)
    epochs = _int32s([partitions[number] for number in numbers])
    return _topic_id_bytes(topic_id) + _int32s(numbers) + _tagged({0: epochs})


def _int32s(numbers: Sequence[int]) -> bytes:
    return _uvarint(len(numbers) + 1) + struct.pack(f">{len(numbers)}i", *numbers)


def _array(elements: Sequence[bytes]) -> bytes:
    return _uvarint(len(elements) + 1) + b"".join(elements)


def _tagged(fields: Mapping[int, bytes]) -> bytes:
    return _uvarint(len(fields)) + b"".join(
        _uvarint(tag) + _uvarint(len(data)) + data for tag, data in fields.items()
    )


def _text(text: str | None) -> bytes:
    return b"\0" if text is None else _blob(text.encode())


def _blob(data: bytes) -> bytes:
    return _uvarint(len(data) + 1) + data


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 1 << 7:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _topic_id_bytes(topic_id: str) -> bytes:
    return base64.urlsafe_b64decode(topic_id + "==")


# --- reading -----------------------------------------------------------------------------------------


class _FlexibleReader:
    """Reads Kafka's compact (flexible) field encodings, in order, and nothing beyond the end."""

    def __init__(self, data: bytes, where: str) -> None:
        self._data, self._where, self._at = data, where, 0

    def number(self, layout: struct.Struct) -> int:
        (number,) = layout.unpack(self.take(layout.size))
        return int(number)

    def uvarint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 1 << 7:
                return value
        raise self.corrupt("a varint of more than 35 bits")

    def text(self) -> str | None:
        size = self.uvarint() - 1
        if size < 0:
            return None
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise self.corrupt(f"a string that is not UTF-8 ({error.reason})") from error

    def blob(self) -> bytes:
        size = self.uvarint() - 1
        if size < 0:
            raise self.corrupt("no bytes")
        return self.take(size)

    def count(self, least_bytes: int) -> int:
        """Read the size of an array whose elements take at least this many bytes each."""
        count = self.uvarint() - 1
        left = len(self._data) - self._at
        if not 0 <= count * least_bytes <= left:
            raise self.corrupt(f"an array of {count} elements in {left} bytes")
        return count

    def int32s(self) -> tuple[int, ...]:
        count = self.count(_INT32.size)
        return struct.unpack(f">{count}i", self.take(count * _INT32.size))

    def texts(self) -> tuple[str, ...]:
        return tuple(self.text() or "" for _ in range(self.count(1)))

    def topic_id(self) -> str:
        return base64.urlsafe_b64encode(self.take(_TOPIC_ID_BYTES)).decode()[:22]

    def tagged(self) -> dict[int, bytes]:
        found = {}
        for _ in range(self.count_of_tags()):
            tag = self.uvarint()
            found[tag] = self.take(self.uvarint())
        return found

    def count_of_tags(self) -> int:
        count = self.uvarint()
        if 2 * count > len(self._data) - self._at:
            raise self.corrupt(f"{count} tagged fields")
        return count

    def finish(self) -> None:
        if self._at != len(self._data):
            raise self.corrupt(f"{len(self._data) - self._at} bytes after the last field")

    def corrupt(self, found: str) -> CorruptLogError:
        return CorruptLogError(
            "CORRUPT_CONSUMER_OFFSET",
            f"{self._where}, byte {self._at}: found {found}, expected Kafka's schema of __consumer_offsets",
            fix="See FORMAT.md#consumer-groups; the members of the group join again",
        )

    def take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise self.corrupt(f"{len(self._data) - self._at} bytes where {size} are needed")
        self._at += size
        return self._data[self._at - size : self._at]


def is_consumer_group_key(data: bytes) -> bool:
    """True if this is the key of a consumer group's record, by its version."""
    return len(data) >= _INT16.size and _INT16.unpack_from(data)[0] in KEY_VERSIONS


def decode_consumer_group_key(data: bytes, *, where: str = TOPIC) -> ConsumerGroupKey:
    """Decode a key for which `is_consumer_group_key` is true."""
    fields = FieldReader(data, where)
    kind = RecordKind(fields.number(">h"))
    key = ConsumerGroupKey(kind, fields.string(), fields.string() if kind in _NAMED else "")
    fields.finish()
    return key


def decode_consumer_group_value(kind: RecordKind, data: bytes, *, where: str = TOPIC) -> ConsumerGroupValue:
    """Decode the value of a record of this kind."""
    fields = _FlexibleReader(data, where)
    version = fields.number(_INT16)
    if version != _VALUE_VERSION:
        raise UnsupportedVersionError(
            "UNSUPPORTED_CONSUMER_OFFSET",
            f"{where}: found version {version} of a consumer group's record {int(kind)}, expected "
            f"{_VALUE_VERSION}",
            fix="Upgrade sparklog",
        )
    value = _READERS[kind](fields)
    fields.finish()
    return value


def _read_group(fields: _FlexibleReader) -> GroupEpoch:
    epoch, tags = fields.number(_INT32), fields.tagged()
    stored = tags.get(0, b"")
    return GroupEpoch(
        epoch=epoch, metadata_hash=_INT64.unpack(stored)[0] if len(stored) == _INT64.size else 0
    )


def _read_member(fields: _FlexibleReader) -> Subscription:
    instance_id, rack_id = fields.text(), fields.text()
    client_id, client_host = fields.text() or "", fields.text() or ""
    topics, regex = fields.texts(), fields.text()
    rebalance_timeout_ms, assignor = fields.number(_INT32), fields.text()
    classic = fields.tagged().get(0)
    return Subscription(
        instance_id=instance_id,
        rack_id=rack_id,
        client_id=client_id,
        client_host=client_host,
        topics=topics,
        regex=regex,
        rebalance_timeout_ms=rebalance_timeout_ms,
        assignor=assignor,
        classic=None if classic is None else _read_classic(classic),
    )


def _read_classic(data: bytes) -> ClassicMember | None:
    fields = _FlexibleReader(data, "a member of the classic protocol")
    if fields.take(1) != _PRESENT:
        return None
    session_timeout_ms, protocols = fields.number(_INT32), []
    for _ in range(fields.count(3)):
        protocols.append((fields.text() or "", fields.blob()))
        fields.tagged()
    fields.tagged()
    return ClassicMember(session_timeout_ms=session_timeout_ms, protocols=tuple(protocols))


def _read_target(fields: _FlexibleReader) -> TargetEpoch:
    value = TargetEpoch(epoch=fields.number(_INT32))
    fields.tagged()
    return value


def _read_member_target(fields: _FlexibleReader) -> MemberTarget:
    partitions = {}
    for _ in range(fields.count(_TOPIC_ID_BYTES + 2)):
        topic_id = fields.topic_id()
        partitions[topic_id] = frozenset(fields.int32s())
        fields.tagged()
    fields.tagged()
    return MemberTarget(partitions=partitions)


def _read_current(fields: _FlexibleReader) -> CurrentAssignment:
    epoch, previous_epoch = fields.number(_INT32), fields.number(_INT32)
    state = fields.take(1)[0]
    if state not in set(MemberState):
        raise fields.corrupt(f"the state {state} of a member")
    assigned = _read_assigned(fields, epoch)
    pending = _read_assigned(fields, epoch)
    fields.tagged()
    return CurrentAssignment(
        epoch=epoch,
        previous_epoch=previous_epoch,
        state=MemberState(state),
        assigned=assigned,
        pending_revocation=pending,
    )


def _read_assigned(fields: _FlexibleReader, epoch: int) -> dict[str, dict[int, int]]:
    assigned = {}
    for _ in range(fields.count(_TOPIC_ID_BYTES + 2)):
        topic_id, numbers, tags = fields.topic_id(), fields.int32s(), fields.tagged()
        epochs: Sequence[int] = [epoch] * len(numbers)
        if 0 in tags:
            epochs = _FlexibleReader(tags[0], "the epochs of assigned partitions").int32s()
        if len(epochs) != len(numbers):
            raise fields.corrupt(f"{len(epochs)} epochs of {len(numbers)} partitions")
        assigned[topic_id] = dict(zip(numbers, epochs, strict=True))
    return assigned


def _read_regex(fields: _FlexibleReader) -> ResolvedRegex:
    topics = fields.texts()
    value = ResolvedRegex(topics=topics, version=fields.number(_INT64), timestamp_ms=fields.number(_INT64))
    fields.tagged()
    return value


_READERS: Final[Mapping[RecordKind, Callable[[_FlexibleReader], ConsumerGroupValue]]] = {
    RecordKind.GROUP: _read_group,
    RecordKind.MEMBER: _read_member,
    RecordKind.TARGET: _read_target,
    RecordKind.MEMBER_TARGET: _read_member_target,
    RecordKind.MEMBER_ASSIGNMENT: _read_current,
    RecordKind.REGEX: _read_regex,
}
