"""Asks the brokers that coordinate consumer groups: who is a member, and changes that only they may make.

    FindCoordinator v4, ListGroups v5, DescribeGroups v4, OffsetCommit v6, OffsetDelete v0, DeleteGroups v1,
    ConsumerGroupDescribe v0 (KIP-848); ShareGroupDescribe v1, AlterShareGroupOffsets v0,
    DeleteShareGroupOffsets v0; DescribeConfigs v1, IncrementalAlterConfigs v0 (any broker)

A coordinator that moves, starts or loads its groups says so, or does not answer. Then it is looked for again,
until it has answered or the time is up. Where no broker answers, there is no wait.

Invariants: nothing is asked of a broker of another cluster. A group with members is changed by nobody: its
    coordinator refuses. What was asked and not answered may be done: every request may be repeated.
Not here: committed offsets and the ends of logs, which the root says.
Concurrency: one thread a call.
Sources: Kafka's AdminClient (CoordinatorStrategy); its protocol's requests and responses of these names.
"""

import struct
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from sparklog.client.admin import ConfigSource, ConfigValue, EffectiveConfig
from sparklog.client.brokers import (
    METADATA,
    METADATA_VERSION,
    NO_TAGS,
    NO_TOPICS,
    Address,
    AnswerReader,
    BrokerConnection,
    Cluster,
    NotKafkaError,
    compact_string_bytes,
    parse_servers,
    read_cluster,
    varint_bytes,
)
from sparklog.client.security import PLAINTEXT, ClientSecurity
from sparklog.clock import Clock
from sparklog.errors import InvalidRequestError, RetriableError

TIMEOUT_MS = 30_000
_PAUSE_MS = 200  # before a coordinator is looked for again
_MAX_RESPONSE_BYTES = 64 << 20
_OFFSET_COMMIT, _FIND_COORDINATOR, _DESCRIBE_GROUPS, _LIST_GROUPS = 8, 10, 15, 16
_DELETE_GROUPS, _OFFSET_DELETE, _CONSUMER_GROUP_DESCRIBE = 42, 47, 69
_DESCRIBE_CONFIGS, _ALTER_CONFIGS = 32, 44
_SHARE_GROUP_DESCRIBE, _ALTER_SHARE_OFFSETS, _DELETE_SHARE_OFFSETS = 77, 91, 92
_NO_ERROR, _INVALID_GROUP_ID, _GROUP_ID_NOT_FOUND = 0, 24, 69
_OF_GROUP = struct.pack(">b", 32)  # the type of a resource
_SET, _DELETE = 0, 1
# Kafka's numbers; its dynamic and static settings of one broker are one here.
_SOURCES = {
    2: ConfigSource.BROKER,
    3: ConfigSource.ALL_BROKERS,
    4: ConfigSource.BROKER,
    5: ConfigSource.DEFAULT,
    8: ConfigSource.GROUP,
}
_AGAIN = {14, 15, 16}  # loading, not available, not coordinator
# Those that these requests may be answered with; any other is named by its number.
_ERRORS = {
    -1: "UNKNOWN_SERVER_ERROR",
    3: "UNKNOWN_TOPIC_OR_PARTITION",
    _INVALID_GROUP_ID: "INVALID_GROUP_ID",
    25: "UNKNOWN_MEMBER_ID",
    30: "GROUP_AUTHORIZATION_FAILED",
    42: "INVALID_REQUEST",
    68: "NON_EMPTY_GROUP",
    _GROUP_ID_NOT_FOUND: "GROUP_ID_NOT_FOUND",
    79: "UNSTABLE_OFFSET_COMMIT",
    86: "GROUP_SUBSCRIBED_TO_TOPIC",
}
_CONSUMER = "consumer"  # protocol type, whose assignments are Kafka's; and the type of a group (KIP-848)
_CLASSIC, _SHARE, _DEAD = "classic", "share", "Dead"
TopicPartition = tuple[str, int]
T = TypeVar("T")
_Answers = Mapping[str, tuple[int, T]]  # by group: error code, and what else there is


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Of a group.

    Fields:
        partitions: those that it has; empty during a rebalance, and for protocols other than consumers'.
        epoch, target: its epoch, and the partitions that it is to have; None in a classic group.
    """

    consumer_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]
    epoch: int | None = None
    target: tuple[TopicPartition, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """As its coordinator knows it.

    Fields:
        type: classic, consumer (KIP-848) or share (KIP-932).
        state: Kafka's name: Empty, Stable, Dead; PreparingRebalance, CompletingRebalance of classic groups;
            Assigning, Reconciling of consumer groups.
        epoch, target_epoch: of a consumer group, and of its target assignment; else None.
        coordinator: host:port (node id).
        assignment_strategy: empty while there is none.
    """

    group: str
    state: str
    coordinator: str
    assignment_strategy: str
    members: tuple[Member, ...]
    type: str = _CLASSIC
    epoch: int | None = None
    target_epoch: int | None = None

    @property
    def has_members(self) -> bool:
        """True if its offsets may not be changed, by Kafka's rule."""
        return self.state not in {"Empty", _DEAD}


def assignment_text(partitions: Collection[TopicPartition]) -> str:
    """As Kafka's tool prints it: `t:0,1;u:2`."""
    topics: dict[str, list[str]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(str(partition))
    return ";".join(f"{topic}:{','.join(numbers)}" for topic, numbers in topics.items())


class _Coordinator(NamedTuple):
    node_id: int
    address: Address


def error_name(code: int) -> str | None:
    """Kafka's name of an error code; None: no error."""
    return None if code == _NO_ERROR else _ERRORS.get(code, f"error {code}")


class GroupCoordinators:
    """Finds each group's coordinator through bootstrap servers, and asks it."""

    def __init__(
        self,
        cluster_id: str,
        clock: Clock,
        bootstrap_servers: str,
        *,
        timeout_ms: int = TIMEOUT_MS,
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        """`cluster_id`: of the root that is meant.

        Raises:
            InvalidRequestError: INVALID_OPTION.
        """
        self._cluster_id = cluster_id
        self._clock = clock
        self._servers = [address for _, address in parse_servers(bootstrap_servers)]
        self._timeout_ms = timeout_ms
        self._security = security

    def list_groups(self) -> dict[str, str]:
        """Return the type of each group that a broker coordinates, those with members only too.

        Raises:
            RetriableError: COORDINATOR_UNREACHABLE, of one broker at least.
        """
        deadline = time.monotonic() + self._timeout_ms / 1000
        problems: dict[str, None] = {}
        _, cluster = self._cluster(deadline, problems)
        found: dict[str, str] = {}
        for address in cluster.addresses.values():
            try:
                with _connect(address, deadline, self._security) as connection:
                    code, types = _read_listed(
                        connection.ask(_LIST_GROUPS, 5, _EVERY_GROUP, is_flexible=True)
                    )
            except (NotKafkaError, OSError) as error:
                raise _unreachable({_text(address, error): None}) from None
            if code:
                raise _unreachable({_text(address, error_name(code) or ""): None})
            found |= types
        return dict(sorted(found.items()))

    def describe(self, groups: Collection[str]) -> dict[str, GroupDescription]:
        """Return state and members of each group; one that is not known is Dead, as in Kafka.

        Raises:
            InvalidRequestError: INVALID_GROUP.
            RetriableError: COORDINATOR_UNREACHABLE, also where a coordinator refuses to describe a group.
        """

        def read(reader: AnswerReader, at: _Coordinator) -> _Answers[GroupDescription]:
            return _read_described(reader, at)

        found = self._ask(groups, (_DESCRIBE_GROUPS, 4), lambda names: _strings(names) + b"\0", read)
        for name, (code, _) in found.items():
            if code == _INVALID_GROUP_ID:
                raise InvalidRequestError("INVALID_GROUP", f"found group {name!r}", fix="correct the name")
            if code != _NO_ERROR:
                raise _unreachable([f"group {name!r}: {error_name(code)}"])
        classic = {name: described for name, (_, described) in found.items()}
        return classic | self._consumer_groups([name for name, one in classic.items() if one.state == _DEAD])

    def _consumer_groups(self, groups: Sequence[str]) -> dict[str, GroupDescription]:
        """Describe those of these that are groups of the consumer protocol."""
        types = self.list_groups() if groups else {}
        wanted = [name for name in groups if types.get(name) == _CONSUMER]

        def body(names: Sequence[str]) -> bytes:
            return _compact_strings(names) + b"\0" + NO_TAGS  # 0: without authorized operations

        def read(reader: AnswerReader, at: _Coordinator) -> _Answers[GroupDescription]:
            return _read_consumer_groups(reader, at)

        found = self._ask(wanted, (_CONSUMER_GROUP_DESCRIBE, 0), body, read, is_flexible=True)
        return {name: one for name, (code, one) in found.items() if code == _NO_ERROR}

    def commit_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, str | None]:
        """Commit for a group without members: Kafka's name of an error for each partition, or None."""

        def body(_names: Sequence[str]) -> bytes:
            head = _string(group) + struct.pack(">i", -1) + _string("")  # generation and member: none
            return head + _by_topic(
                {at: struct.pack(">iqi", at[1], offset, -1) + _string("") for at, offset in offsets.items()}
            )

        def read(reader: AnswerReader, _at: _Coordinator) -> _Answers[dict[TopicPartition, str | None]]:
            reader.skip(4)  # throttle time
            return {group: _read_partitions(reader)}

        return self._ask([group], (_OFFSET_COMMIT, 6), body, read)[group][1]

    def delete_offsets(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> tuple[str | None, dict[TopicPartition, str | None]]:
        """Delete committed offsets: an error of the whole request, and one for each partition, or None."""

        def body(_names: Sequence[str]) -> bytes:
            return _string(group) + _by_topic({at: struct.pack(">i", at[1]) for at in partitions})

        def read(reader: AnswerReader, _at: _Coordinator) -> _Answers[dict[TopicPartition, str | None]]:
            code = reader.int16()
            reader.skip(4)  # throttle time
            first, found = _read_partitions(reader)
            return {group: (code or first, found)}

        code, found = self._ask([group], (_OFFSET_DELETE, 0), body, read)[group]
        return (None if any(found.values()) else error_name(code)), found

    def delete_groups(self, groups: Collection[str]) -> dict[str, str | None]:
        """Delete groups and their offsets: Kafka's name of an error for each, or None."""

        def read(reader: AnswerReader, _at: _Coordinator) -> _Answers[None]:
            reader.skip(4)  # throttle time
            return {reader.string() or "": (reader.int16(), None) for _ in range(reader.count())}

        found = self._ask(groups, (_DELETE_GROUPS, 1), _strings, read)
        return {name: error_name(code) for name, (code, _) in found.items()}

    # --- share groups ---------------------------------------------------------------------------------

    def describe_shares(self, groups: Collection[str]) -> dict[str, GroupDescription]:
        """Return the same of share groups; one that is not known is Dead."""

        def body(names: Sequence[str]) -> bytes:
            return varint_bytes(len(names) + 1) + b"".join(map(compact_string_bytes, names)) + b"\0" + NO_TAGS

        def read(reader: AnswerReader, at: _Coordinator) -> _Answers[GroupDescription]:
            return _read_shares(reader, at)

        found = self._ask(groups, (_SHARE_GROUP_DESCRIBE, 1), body, read, is_flexible=True)
        for name, (code, _) in found.items():
            if code not in (_NO_ERROR, _GROUP_ID_NOT_FOUND):
                raise _unreachable([f"group {name!r}: {error_name(code)}"])
        return {name: described for name, (_, described) in found.items()}

    def alter_share_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, str | None]:
        """Let a share group without members begin anew: as `commit_offsets`."""

        def body(_names: Sequence[str]) -> bytes:
            topics: dict[str, list[bytes]] = {}
            for (topic, number), offset in offsets.items():
                topics.setdefault(topic, []).append(struct.pack(">iq", number, offset) + NO_TAGS)
            entries = [
                compact_string_bytes(topic) + varint_bytes(len(found) + 1) + b"".join(found) + NO_TAGS
                for topic, found in topics.items()
            ]
            head = compact_string_bytes(group) + varint_bytes(len(entries) + 1)
            return head + b"".join(entries) + NO_TAGS

        def read(reader: AnswerReader, _at: _Coordinator) -> _Answers[dict[TopicPartition, int]]:
            code, found = _read_share_offsets(reader, with_partitions=True)
            return {group: (code, found)}

        code, found = self._ask([group], (_ALTER_SHARE_OFFSETS, 0), body, read, is_flexible=True)[group]
        return {at: error_name(code or found.get(at, _NO_ERROR)) for at in offsets}

    def delete_share_offsets(self, group: str, topics: Collection[str]) -> dict[str, str | None]:
        """Forget a share group without members in topics: Kafka's name of an error for each, or None."""

        def body(_names: Sequence[str]) -> bytes:
            entries = [compact_string_bytes(topic) + NO_TAGS for topic in topics]
            head = compact_string_bytes(group) + varint_bytes(len(entries) + 1)
            return head + b"".join(entries) + NO_TAGS

        def read(reader: AnswerReader, _at: _Coordinator) -> _Answers[dict[TopicPartition, int]]:
            code, found = _read_share_offsets(reader, with_partitions=False)
            return {group: (code, found)}

        code, found = self._ask([group], (_DELETE_SHARE_OFFSETS, 0), body, read, is_flexible=True)[group]
        return {topic: error_name(code or found.get((topic, 0), _NO_ERROR)) for topic in topics}

    # --- settings -------------------------------------------------------------------------------------

    def settings(self, groups: Collection[str]) -> dict[str, tuple[str | None, list[EffectiveConfig]]]:
        """Return why each group is not described, or its settings in force, by name.

        Raises:
            RetriableError: COORDINATOR_UNREACHABLE.
        """
        resources = [_OF_GROUP + _string(name) + struct.pack(">i", -1) for name in groups]
        body = _array(resources) + b"\1"  # with synonyms
        return _read_settings(self._ask_any(_DESCRIBE_CONFIGS, 1, body))

    def alter_settings(self, group: str, configs: Mapping[str, str], deleted: Collection[str]) -> str | None:
        """Set and delete settings of a group; return why it is refused, or None.

        Raises:
            RetriableError: COORDINATOR_UNREACHABLE.
        """
        changes = [
            _string(name) + struct.pack(">b", _SET) + _string(value) for name, value in configs.items()
        ]
        changes += [_string(name) + struct.pack(">bh", _DELETE, -1) for name in deleted]
        body = _array([_OF_GROUP + _string(group) + _array(changes)]) + b"\0"  # not only to be validated
        reader = self._ask_any(_ALTER_CONFIGS, 0, body)
        reader.skip(4)  # throttle time
        refused = None
        for _ in range(reader.count()):
            code, message = reader.int16(), reader.string()
            reader.skip(1)
            reader.string()
            refused = (message or error_name(code)) if code else refused
        return refused

    def _ask_any(self, key: int, version: int, body: bytes) -> AnswerReader:
        """Ask a broker, whichever answers."""
        deadline = time.monotonic() + self._timeout_ms / 1000
        server, _ = self._cluster(deadline, {})
        try:
            with _connect(server, deadline, self._security) as connection:
                return connection.ask(key, version, body)
        except (NotKafkaError, OSError) as error:
            raise _unreachable([_text(server, error)]) from None

    # --- asking ---------------------------------------------------------------------------------------

    def _ask(
        self,
        groups: Collection[str],
        api: tuple[int, int],
        body: Callable[[Sequence[str]], bytes],
        read: Callable[[AnswerReader, _Coordinator], _Answers[T]],
        *,
        is_flexible: bool = False,
    ) -> dict[str, tuple[int, T]]:
        """Ask the coordinators of all groups, those that cannot answer now again.

        Args:
            api: key and version.
        """
        deadline = time.monotonic() + self._timeout_ms / 1000
        found: dict[str, tuple[int, T]] = {}
        while len(found) < len(set(groups)):
            problems: dict[str, None] = {}
            left = sorted(set(groups) - set(found))
            for at, names in self._find(left, deadline, problems).items():
                try:
                    with _connect(at.address, deadline, self._security) as connection:
                        answers = read(connection.ask(*api, body(names), is_flexible=is_flexible), at)
                except (NotKafkaError, OSError) as error:
                    problems[_text(at.address, error)] = None
                    continue
                found |= {name: answers[name] for name in names if _is_final(answers, name)}
                if not set(names) <= set(found):
                    problems[_text(at.address, "it does not coordinate the group, or loads it")] = None
            if len(found) == len(set(groups)):
                break
            if time.monotonic() + _PAUSE_MS / 1000 >= deadline:
                raise _unreachable(problems)
            self._clock.sleep_ms(_PAUSE_MS)
        return found

    def _find(
        self, groups: Sequence[str], deadline: float, problems: dict[str, None]
    ) -> dict[_Coordinator, list[str]]:
        """By coordinator the groups that it has, as far as they have one now."""
        server, _ = self._cluster(deadline, problems)
        keys = _compact_strings(groups)
        wanted = set(groups)
        found: dict[_Coordinator, list[str]] = {}
        try:
            with _connect(server, deadline, self._security) as connection:
                body = b"\0" + keys + NO_TAGS  # 0: of groups
                answers = _read_coordinators(connection.ask(_FIND_COORDINATOR, 4, body, is_flexible=True))
        except (NotKafkaError, OSError) as error:
            problems[_text(server, error)] = None
            return found
        for name, coordinator, problem in answers:
            if problem is None and name in wanted:
                found.setdefault(coordinator, []).append(name)
            else:
                problems[_text(server, problem or "")] = None
        return found

    def _cluster(self, deadline: float, problems: dict[str, None]) -> tuple[Address, Cluster]:
        """The first server that answers, and what it says of the brokers."""
        for server in self._servers:
            try:
                with _connect(server, deadline, self._security) as connection:
                    cluster = read_cluster(connection.ask(METADATA, METADATA_VERSION, NO_TOPICS))
            except (NotKafkaError, OSError) as error:
                problems[_text(server, error)] = None
                continue
            if cluster.cluster_id != self._cluster_id:
                raise InvalidRequestError(
                    "WRONG_ROOT",
                    f"broker {server[0]}:{server[1]}: found cluster {cluster.cluster_id!r}, expected "
                    f"{self._cluster_id!r}",
                    fix="name a broker of the root that is meant",
                )
            return server, cluster
        raise _unreachable(problems)


def _connect(address: Address, deadline: float, security: ClientSecurity) -> BrokerConnection:
    return BrokerConnection(address, deadline, max_response_bytes=_MAX_RESPONSE_BYTES, security=security)


def _is_final(answers: _Answers[T], name: str) -> bool:
    return name in answers and answers[name][0] not in _AGAIN


def _unreachable(problems: Collection[str]) -> RetriableError:
    return RetriableError(
        "COORDINATOR_UNREACHABLE",
        f"no coordinator answered ({'; '.join(problems)})",
        fix="check that the brokers run and can be reached from here, and ask again: what was not answered "
        "may be done already, and may be repeated",
    )


def _text(address: Address, problem: Exception | str) -> str:
    reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else problem
    return f"{address[0]}:{address[1]}: {reason}"


# --- bytes -------------------------------------------------------------------------------------------


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _array(elements: Sequence[bytes]) -> bytes:
    return struct.pack(">i", len(elements)) + b"".join(elements)


def _strings(texts: Sequence[str]) -> bytes:
    return _array([*map(_string, texts)])


def _compact_strings(texts: Sequence[str]) -> bytes:
    return varint_bytes(len(texts) + 1) + b"".join(map(compact_string_bytes, texts))


_EVERY_GROUP = _compact_strings(()) * 2 + NO_TAGS  # in any state, of any type


def _by_topic(partitions: Mapping[TopicPartition, bytes]) -> bytes:
    """An array of topics, each with an array of its partitions, which are given."""
    topics: dict[str, list[bytes]] = {}
    for (topic, _), data in partitions.items():
        topics.setdefault(topic, []).append(data)
    return struct.pack(">i", len(topics)) + b"".join(
        _string(topic) + struct.pack(">i", len(found)) + b"".join(found) for topic, found in topics.items()
    )


def _read_partitions(reader: AnswerReader) -> tuple[int, dict[TopicPartition, str | None]]:
    """An error code with which the request is to be repeated, if any; and the error of each partition."""
    codes: dict[TopicPartition, int] = {}
    for _ in range(reader.count()):
        topic = reader.string() or ""
        for _ in range(reader.count()):
            partition = reader.int32()
            codes[topic, partition] = reader.int16()
    again = next((code for code in codes.values() if code in _AGAIN), _NO_ERROR)
    return again, {at: error_name(code) for at, code in codes.items()}


def _read_settings(reader: AnswerReader) -> dict[str, tuple[str | None, list[EffectiveConfig]]]:
    """Of DescribeConfigsResponse v1."""
    reader.skip(4)  # throttle time
    found = {}
    for _ in range(reader.count()):
        code, message = reader.int16(), reader.string()
        reader.skip(1)
        name = reader.string() or ""
        settings = sorted((_read_setting(reader) for _ in range(reader.count())), key=lambda one: one.name)
        found[name] = ((message or error_name(code)) if code else None, settings)
    return found


def _read_setting(reader: AnswerReader) -> EffectiveConfig:
    name, value = reader.string() or "", reader.string() or ""
    reader.skip(1)  # read only
    source = _source(reader)
    reader.skip(1)  # sensitive
    values = []
    for _ in range(reader.count()):
        reader.string()
        values.append(ConfigValue(reader.string() or "", _source(reader)))
    return EffectiveConfig(name, value, source, tuple(values[1:]))  # the first is the one in force


def _source(reader: AnswerReader) -> ConfigSource:
    number = reader.int8()
    if number not in _SOURCES:
        raise NotKafkaError(f"found source {number} of a group's setting")
    return _SOURCES[number]


def _read_coordinators(reader: AnswerReader) -> list[tuple[str, _Coordinator, str | None]]:
    """Of FindCoordinatorResponse v4: each group's name, its coordinator, and a problem, if there is one."""
    reader.skip(4)  # throttle time
    found = []
    for _ in range(reader.compact_count()):
        name, node_id = reader.compact_string() or "", reader.int32()
        address = reader.compact_string() or "", reader.int32()
        code, message = reader.int16(), reader.compact_string()
        reader.skip_tags()
        problem = None if code == _NO_ERROR else message or error_name(code)
        found.append((name, _Coordinator(node_id, address), problem))
    return found


def _read_listed(reader: AnswerReader) -> tuple[int, dict[str, str]]:
    """Of ListGroupsResponse v5: an error code, and the type of each group."""
    reader.skip(4)  # throttle time
    code = reader.int16()
    found = {}
    for _ in range(reader.compact_count()):
        name = reader.compact_string() or ""
        reader.compact_string()  # protocol type
        reader.compact_string()  # state
        found[name] = reader.compact_string() or _CLASSIC
        reader.skip_tags()
    return code, found


def _read_consumer_groups(reader: AnswerReader, at: _Coordinator) -> dict[str, tuple[int, GroupDescription]]:
    """Of ConsumerGroupDescribeResponse v0."""
    reader.skip(4)  # throttle time
    found = {}
    for _ in range(reader.compact_count()):
        code = reader.int16()
        reader.compact_string()  # error message
        group, state = reader.compact_string() or "", reader.compact_string() or ""
        epoch, target_epoch, assignor = reader.int32(), reader.int32(), reader.compact_string() or ""
        members = [_read_consumer(reader) for _ in range(reader.compact_count())]
        reader.skip(4)  # authorized operations
        reader.skip_tags()
        found[group] = (
            code,
            GroupDescription(
                group=group,
                state=state,
                coordinator=_coordinator_text(at),
                assignment_strategy=assignor,
                members=tuple(members),
                type=_CONSUMER,
                epoch=epoch,
                target_epoch=target_epoch,
            ),
        )
    return found


def _read_consumer(reader: AnswerReader) -> Member:
    consumer_id, instance_id = reader.compact_string() or "", reader.compact_string()
    reader.compact_string()  # rack
    epoch = reader.int32()
    client_id, host = reader.compact_string() or "", reader.compact_string() or ""
    for _ in range(reader.compact_count()):
        reader.compact_string()  # a subscribed topic
    reader.compact_string()  # regular expression
    partitions, target = _read_partitions_by_id(reader), _read_partitions_by_id(reader)
    reader.skip_tags()
    return Member(
        consumer_id=consumer_id,
        instance_id=instance_id,
        client_id=client_id,
        host=host,
        partitions=partitions,
        epoch=epoch,
        target=target,
    )


def _read_partitions_by_id(reader: AnswerReader) -> tuple[TopicPartition, ...]:
    found: list[TopicPartition] = []
    for _ in range(reader.compact_count()):
        reader.skip(16)  # topic id
        topic = reader.compact_string() or ""
        found += [(topic, reader.int32()) for _ in range(reader.compact_count())]
        reader.skip_tags()
    reader.skip_tags()
    return tuple(sorted(found))


def _coordinator_text(at: _Coordinator) -> str:
    return f"{at.address[0]}:{at.address[1]} ({at.node_id})"


def _read_described(reader: AnswerReader, at: _Coordinator) -> dict[str, tuple[int, GroupDescription]]:
    """Of DescribeGroupsResponse v4."""
    reader.skip(4)  # throttle time
    found = {}
    for _ in range(reader.count()):
        code, group, state = reader.int16(), reader.string() or "", reader.string() or ""
        protocol_type, strategy = reader.string(), reader.string() or ""
        members = [_read_member(reader, protocol_type or "") for _ in range(reader.count())]
        reader.skip(4)  # authorized operations
        found[group] = (
            code,
            GroupDescription(
                group=group,
                state=state,
                coordinator=_coordinator_text(at),
                assignment_strategy=strategy,
                members=tuple(members),
            ),
        )
    return found


def _read_member(reader: AnswerReader, protocol_type: str) -> Member:
    consumer_id, instance_id = reader.string() or "", reader.string()
    client_id, host = reader.string() or "", reader.string() or ""
    reader.data()  # subscription
    assignment = reader.data()
    return Member(
        consumer_id=consumer_id,
        instance_id=instance_id,
        client_id=client_id,
        host=host,
        partitions=_read_assignment(assignment) if protocol_type == _CONSUMER else (),
    )


def _read_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Of ConsumerProtocolAssignment, which a consumer wrote: empty where it is none."""
    reader = AnswerReader(data)
    found: list[TopicPartition] = []
    try:
        reader.int16()  # version
        for _ in range(reader.count()):
            topic = reader.string() or ""
            found += [(topic, reader.int32()) for _ in range(reader.count())]
    except NotKafkaError:
        return ()
    return tuple(sorted(found))


_UUID_BYTES = 16


def _read_shares(reader: AnswerReader, at: _Coordinator) -> dict[str, tuple[int, GroupDescription]]:
    """Of ShareGroupDescribeResponse v1."""
    reader.skip(4)  # throttle time
    found = {}
    for _ in range(reader.compact_count()):
        code = reader.int16()
        reader.compact_string()  # message
        group, state = reader.compact_string() or "", reader.compact_string() or "Dead"
        reader.skip(8)  # epochs
        assignor = reader.compact_string() or ""
        members = [_read_share_member(reader) for _ in range(reader.compact_count())]
        reader.skip(4)  # authorized operations
        reader.skip_tags()
        found[group] = (
            code,
            GroupDescription(
                group=group,
                state=state,
                coordinator=f"{at.address[0]}:{at.address[1]} ({at.node_id})",
                assignment_strategy=assignor,
                members=tuple(members),
                type=_SHARE,
            ),
        )
    return found


def _read_share_member(reader: AnswerReader) -> Member:
    member_id = reader.compact_string() or ""
    reader.compact_string()  # rack
    reader.skip(4)  # epoch
    client_id, host = reader.compact_string() or "", reader.compact_string() or ""
    for _ in range(reader.compact_count()):
        reader.compact_string()  # a topic that it subscribes to
    partitions: list[TopicPartition] = []
    for _ in range(reader.compact_count()):
        reader.skip(_UUID_BYTES)
        topic = reader.compact_string() or ""
        partitions += [(topic, reader.int32()) for _ in range(reader.compact_count())]
        reader.skip_tags()
    reader.skip_tags()  # of the assignment
    reader.skip_tags()
    return Member(
        consumer_id=member_id,
        instance_id=None,
        client_id=client_id,
        host=host,
        partitions=tuple(sorted(partitions)),
    )


def _read_share_offsets(
    reader: AnswerReader, *, with_partitions: bool
) -> tuple[int, dict[TopicPartition, int]]:
    """Of Alter- and DeleteShareGroupOffsetsResponse v0; of a whole topic as of its partition 0."""
    reader.skip(4)  # throttle time
    code = reader.int16()
    reader.compact_string()  # message
    found: dict[TopicPartition, int] = {}
    for _ in range(reader.compact_count()):
        topic = reader.compact_string() or ""
        reader.skip(_UUID_BYTES)
        for _ in range(reader.compact_count() if with_partitions else 1):
            partition = reader.int32() if with_partitions else 0
            found[topic, partition] = reader.int16()
            reader.compact_string()  # message
            reader.skip_tags()
        if with_partitions:
            reader.skip_tags()
    return code, found
