"""Asking the controller for what only it can decide: elections, reassignments, the end of a registration.

Who it is, any broker says (Metadata). Which brokers there are, the root says, or the user. A controller that
has just been deposed answers NOT_CONTROLLER, and one that was killed does not answer; then it is looked for
again, until there is another one or the time is up. Where no broker answers, there is no wait.

Invariants: nothing is asked of a broker of another cluster. What was asked and not answered may be done: all
    three requests may be repeated.
Not here: what the root says of it afterwards.
Concurrency: one thread a call.
Sources: Kafka's AdminClient: ControllerNodeProvider, handling of NOT_CONTROLLER.
"""

import dataclasses
import enum
import os
import socket
import struct
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Self, TypeVar

from sparklog.client.cluster_view import describe_brokers
from sparklog.client.security import PLAINTEXT, ClientSecurity, not_authenticated
from sparklog.clock import Clock
from sparklog.errors import (
    CorruptLogError,
    InvalidRequestError,
    NotFoundError,
    RetriableError,
    SparklogError,
    UnsupportedVersionError,
    shown,
    without_user_info,
)
from sparklog.metadata import Image
from sparklog.metadata.documents.properties import META_PROPERTIES, decode_properties
from sparklog.storage import open_store
from sparklog.storage.filesystems import OPTION as ALLOW_UNSAFE
from sparklog.storage.root_rules import RootRules, root_rules

# --- broker answers ----------------------------------------------------------------------------------
#
# What a broker answers: fields of Kafka's protocol, and of the two requests that ask for its root.
#
# They are a stranger's bytes.
#
# Invariants: whatever the bytes are, either the fields or NotKafkaError; no length is believed before it is
#     compared with what there is.
# Not here: the requests, and what is made of the fields.
# Concurrency: no state; any thread.
# Sources: Kafka's MetadataResponse v2, DescribeLogDirsResponse v1, after their headers.


METADATA, METADATA_VERSION = 3, 2
NO_TOPICS = struct.pack(">i", 0)  # null would mean all of them


class NotKafkaError(Exception):
    """The answer is not what the protocol says."""


class AnswerReader:
    """The fields of a response, one after the other; hostile lengths end in NotKafkaError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def int8(self) -> int:
        return int.from_bytes(self._take(1), "big", signed=True)

    def int16(self) -> int:
        return int.from_bytes(self._take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def count(self) -> int:
        """Of an array; null is 0. Every element takes a byte at least, so it is bounded by the data."""
        found = self.int32()
        if found > len(self._data) - self._position:
            raise NotKafkaError(f"found an array of {found} in {len(self._data)} bytes")
        return max(found, 0)

    def string(self) -> str | None:
        length = self.int16()
        return None if length < 0 else self._text(length)

    def data(self) -> bytes:
        """Bytes after their length; null is empty."""
        return self._take(max(self.int32(), 0))

    # --- of flexible versions -------------------------------------------------------------------------

    def varint(self) -> int:
        """An unsigned one, of at most five bytes."""
        found = 0
        for place in range(5):
            byte = self._take(1)[0]
            found |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return found
        raise NotKafkaError("found a number of more than five bytes")

    def compact_count(self) -> int:
        """Of an array; null is 0. Bounded as `count`."""
        found = self.varint() - 1
        if found > len(self._data) - self._position:
            raise NotKafkaError(f"found an array of {found} in {len(self._data)} bytes")
        return max(found, 0)

    def compact_string(self) -> str | None:
        length = self.varint() - 1
        return None if length < 0 else self._text(length)

    def skip_tags(self) -> None:
        """Tagged fields, which are not known here."""
        for _ in range(self.varint()):
            self.varint()
            self._take(self.varint())

    def _text(self, length: int) -> str:
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise NotKafkaError(f"found a string that is no UTF-8: {error}") from None

    def skip(self, size: int) -> None:
        self._take(size)

    def _take(self, size: int) -> bytes:
        taken = self._data[self._position : self._position + size]
        if len(taken) < size:
            raise NotKafkaError("found a response that ends too early")
        self._position += size
        return taken


class Cluster(NamedTuple):
    """What Metadata says of the brokers."""

    addresses: dict[int, tuple[str, int]]
    cluster_id: str | None
    controller_id: int


def read_cluster(metadata: AnswerReader) -> Cluster:
    """Of MetadataResponse v2."""
    addresses = {}
    for _ in range(metadata.count()):
        node_id = metadata.int32()
        host = metadata.string() or ""
        addresses[node_id] = (host, metadata.int32())
        metadata.string()  # rack
    return Cluster(addresses, metadata.string(), metadata.int32())


def read_log_dirs(response: AnswerReader) -> list[str]:
    """Of DescribeLogDirsResponse v1."""
    response.skip(4)  # throttle time
    found = []
    for _ in range(response.count()):
        response.int16()  # error code: a directory that is offline is still the broker's
        found.append(response.string() or "")
        for _ in range(response.count()):  # topics; none were asked for
            response.string()
            response.skip(response.count() * (4 + 8 + 8 + 1))
    return found


# --- controller requests -----------------------------------------------------------------------------
#
# The three requests that only a controller can do: their bytes, and what is answered.
#
#     ElectLeaders v2, AlterPartitionReassignments v0, UnregisterBroker v0
#
# Invariants: pure; what is answered is a stranger's bytes: either the fields, or NotKafkaError.
# Sources: Kafka's ElectLeadersRequest, AlterPartitionReassignmentsRequest, UnregisterBrokerRequest and their
#     responses (KIP-460, KIP-455, KIP-631).


API_VERSIONS, ELECT_LEADERS, ALTER_REASSIGNMENTS, UNREGISTER_BROKER = 18, 43, 45, 64
VERSIONS = {ELECT_LEADERS: 2, ALTER_REASSIGNMENTS: 0, UNREGISTER_BROKER: 0}
NAMES = {
    ELECT_LEADERS: "ElectLeaders",
    ALTER_REASSIGNMENTS: "AlterPartitionReassignments",
    UNREGISTER_BROKER: "UnregisterBroker",
}
NO_ERROR = 0
NOT_CONTROLLER = 41
ELECTION_NOT_NEEDED = 84
# Those that these requests may be answered with; any other is named by its number.
ERRORS = {
    -1: "UNKNOWN_SERVER_ERROR",
    3: "UNKNOWN_TOPIC_OR_PARTITION",
    7: "REQUEST_TIMED_OUT",
    8: "BROKER_NOT_AVAILABLE",
    29: "TOPIC_AUTHORIZATION_FAILED",
    31: "CLUSTER_AUTHORIZATION_FAILED",
    35: "UNSUPPORTED_VERSION",
    37: "INVALID_PARTITIONS",
    38: "INVALID_REPLICATION_FACTOR",
    39: "INVALID_REPLICA_ASSIGNMENT",
    NOT_CONTROLLER: "NOT_CONTROLLER",
    42: "INVALID_REQUEST",
    44: "POLICY_VIOLATION",
    60: "REASSIGNMENT_IN_PROGRESS",
    80: "PREFERRED_LEADER_NOT_AVAILABLE",
    83: "ELIGIBLE_LEADERS_NOT_AVAILABLE",
    ELECTION_NOT_NEEDED: "ELECTION_NOT_NEEDED",
    85: "NO_REASSIGNMENT_IN_PROGRESS",
    102: "BROKER_ID_NOT_REGISTERED",
}
TopicPartition = tuple[str, int]  # topic's name, partition
T = TypeVar("T")


class Election(enum.IntEnum):
    """Which leaders are wanted."""

    PREFERRED = 0  # the first of the replicas
    OFFLINE = 1  # any, where there is none; Kafka's "unclean": all replicas have everything here


class Answer(NamedTuple):
    """To one part of a request, or to all of it."""

    error_code: int = NO_ERROR
    message: str | None = None

    @property
    def error(self) -> str:
        """Its name in Kafka."""
        return ERRORS.get(self.error_code, f"error {self.error_code}")


class Answers(NamedTuple):
    """To a request about partitions: to all of it, and to each."""

    whole: Answer
    partitions: dict[TopicPartition, Answer]


# --- requests ----------------------------------------------------------------------------------------


def elect_leaders(
    election: Election, partitions: Collection[TopicPartition] | None, timeout_ms: int
) -> bytes:
    """ElectLeaders v2; None: of all partitions."""
    chunks = [struct.pack(">b", election)]
    if partitions is None:
        chunks.append(varint_bytes(0))
    else:
        topics = _by_topic(dict.fromkeys(partitions))
        chunks.append(varint_bytes(len(topics) + 1))
        for topic, numbers in topics.items():
            chunks += [compact_string_bytes(topic), _int32s(list(numbers)), NO_TAGS]
    return b"".join([*chunks, struct.pack(">i", timeout_ms), NO_TAGS])


def alter_reassignments(wanted: Mapping[TopicPartition, Sequence[int] | None], timeout_ms: int) -> bytes:
    """AlterPartitionReassignments v0; None in the place of replicas: call it off."""
    topics = _by_topic(wanted)
    chunks = [struct.pack(">i", timeout_ms), varint_bytes(len(topics) + 1)]
    for topic, partitions in topics.items():
        chunks += [compact_string_bytes(topic), varint_bytes(len(partitions) + 1)]
        for partition, replicas in partitions.items():
            listed = varint_bytes(0) if replicas is None else _int32s(replicas)
            chunks += [struct.pack(">i", partition), listed, NO_TAGS]
        chunks.append(NO_TAGS)
    return b"".join([*chunks, NO_TAGS])


def unregister_broker(node_id: int) -> bytes:
    """UnregisterBroker v0."""
    return struct.pack(">i", node_id) + NO_TAGS


NO_TAGS = b"\0"


def _by_topic(partitions: Mapping[TopicPartition, T]) -> dict[str, dict[int, T]]:
    found: dict[str, dict[int, T]] = {}
    for (topic, partition), value in partitions.items():
        found.setdefault(topic, {})[partition] = value
    return found


def varint_bytes(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def compact_string_bytes(text: str) -> bytes:
    data = text.encode()
    return varint_bytes(len(data) + 1) + data


def _int32s(numbers: Sequence[int]) -> bytes:
    return varint_bytes(len(numbers) + 1) + struct.pack(f">{len(numbers)}i", *numbers)


# --- answers -----------------------------------------------------------------------------------------


def read_served(response: AnswerReader) -> dict[int, range]:
    """Of ApiVersionsResponse v0: which versions of which requests are served."""
    response.int16()  # error code; without it, too, what is listed is served
    found = {}
    for _ in range(response.count()):
        key = response.int16()
        least = response.int16()
        found[key] = range(least, response.int16() + 1)
    return found


def read_answers(response: AnswerReader, key: int) -> Answers:
    """Of ElectLeadersResponse v2, or AlterPartitionReassignmentsResponse v0."""
    response.skip(4)  # throttle time
    message = None
    code = response.int16()
    if key == ALTER_REASSIGNMENTS:
        message = response.compact_string()
    partitions = {}
    for _ in range(response.compact_count()):
        topic = response.compact_string() or ""
        for _ in range(response.compact_count()):
            partition = response.int32()
            partitions[topic, partition] = Answer(response.int16(), response.compact_string())
            response.skip_tags()
        response.skip_tags()
    return Answers(Answer(code, message), partitions)


def read_answer(response: AnswerReader) -> Answer:
    """Of UnregisterBrokerResponse v0."""
    response.skip(4)  # throttle time
    return Answer(response.int16(), response.compact_string())


# --- broker connection -------------------------------------------------------------------------------
#
# One connection to a broker: requests of Kafka's protocol, one at a time, each with its answer.
#
# Invariants: every wait is bounded by the connection's deadline, and every answer's size before it is read.
# Not here: TLS and SASL (security.py).
# Concurrency: one thread.
# Sources: Kafka's request headers v1 and v2, response headers v0 and v1.


MAX_RESPONSE_BYTES = 1 << 20
_CLIENT_ID = b"sparklog"
_SASL_HANDSHAKE, _SASL_AUTHENTICATE = 17, 36
Address = tuple[str, int]


def parse_servers(text: str) -> list[tuple[str, Address]]:
    """Each server of `host:port,host:port`, as it was written and as an address.

    Raises:
        InvalidRequestError: INVALID_OPTION.
    """
    servers = []
    for part in text.split(","):
        server = part.strip()
        if "://" in server:  # Kafka takes PLAINTEXT://host:port
            server = server.partition("://")[2]
        host, colon, port = server.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not server and not part.strip():
            continue
        if not (colon and host and port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 65_536):
            raise InvalidRequestError(
                "INVALID_OPTION",
                f"bootstrap servers {shown('servers', text)}: found {shown('server', part.strip())}, "
                "expected host:port",
                fix="write host:port, several separated by commas",
            )
        servers.append((server, (host, int(port))))
    if not servers:
        raise InvalidRequestError(
            "INVALID_OPTION",
            f"bootstrap servers {shown('servers', text)}: none is named",
            fix="write host:port",
        )
    return servers


class BrokerConnection:
    """Raises OSError where the network does, TimeoutError among them, and NotKafkaError for wrong answers."""

    def __init__(
        self,
        address: Address,
        deadline: float,
        *,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        """`deadline`: by time.monotonic(), of connecting and of all that is asked.

        Raises:
            InvalidRequestError: NOT_AUTHENTICATED.
        """
        self._deadline = deadline
        self._max_response_bytes = max_response_bytes
        self._correlation_id = 0
        self._socket = socket.create_connection(address, timeout=_remaining(deadline))
        try:
            self._socket = security.secured(self._socket, address[0])
            if security.has_sasl:
                security.authenticate(self._begin_sasl, self._send_sasl)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, key: int, version: int, body: bytes, *, is_flexible: bool = False) -> AnswerReader:
        """Send a request, and give its answer after the header.

        Args:
            is_flexible: whether this version has tagged fields, and so the newer headers.
        """
        self._correlation_id += 1
        head = struct.pack(">hhih", key, version, self._correlation_id, len(_CLIENT_ID)) + _CLIENT_ID
        request = head + (b"\0" if is_flexible else b"") + body
        self._socket.settimeout(_remaining(self._deadline))
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", self._receive(4))
        if not 4 <= size <= self._max_response_bytes:
            raise NotKafkaError(
                f"found a response of {size} bytes; it does not speak Kafka's protocol in the clear"
            )
        reader = AnswerReader(self._receive(size))
        if (found := reader.int32()) != self._correlation_id:
            raise NotKafkaError(f"found correlation id {found}, expected {self._correlation_id}")
        if is_flexible:
            reader.skip_tags()
        return reader

    def _begin_sasl(self, mechanism: str) -> None:
        name = mechanism.encode()
        answer = self.ask(_SASL_HANDSHAKE, 1, struct.pack(">h", len(name)) + name)
        if code := answer.int16():
            offered = [answer.string() or "" for _ in range(answer.count())]
            raise not_authenticated(
                f"the broker does not take {mechanism} (error {code}), but {', '.join(offered) or 'nothing'}"
            )

    def _send_sasl(self, message: bytes) -> bytes:
        answer = self.ask(_SASL_AUTHENTICATE, 0, struct.pack(">i", len(message)) + message)
        if answer.int16():
            raise not_authenticated(answer.string() or "the broker says no")
        answer.string()
        return answer.data()

    def _receive(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            self._socket.settimeout(_remaining(self._deadline))
            data = self._socket.recv(min(size - len(received), 1 << 20))
            if not data:
                raise NotKafkaError(
                    "it closed the connection instead of answering (does it expect TLS or SASL?)"
                )
            received += data
        return bytes(received)


def _remaining(deadline: float) -> float:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("timed out")
    return seconds


# --- broker root -------------------------------------------------------------------------------------
#
# The root behind a broker: asks a bootstrap server where its log is, so that we can go there ourselves.
#
# Two requests over one connection: Metadata v2 for the cluster id, DescribeLogDirs v1 for the directory. A
# sparklog broker answers with one URL (file:///data/log); Apache Kafka with plain paths, of use to
# itself only. The server at the address chooses what this process opens next, with this process's
# credentials. So the rules (storage/root_rules.py) are checked before anything there is opened.
# Invariants: what is returned is a root that this machine sees, and it is the broker's: the cluster id in
#     its meta.properties is the one that the broker names. Every wait and every answer's size is bounded.
# Not here: reading and writing of records, which go to the storage.
# Concurrency: no state; any thread or process.
# Sources: Kafka's MetadataRequest v2, DescribeLogDirsRequest v1 (requests with header v1, responses v0).


ROOT_TIMEOUT_MS = 10_000
_DESCRIBE_LOG_DIRS, _DESCRIBE_LOG_DIRS_VERSION = 35, 1
_MAX_QUOTED = 500


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRoot:
    """Where a broker's log is."""

    root: str  # a URL that sparklog.open takes
    cluster_id: str
    server: str  # the host:port that answered


def find_broker_root(
    bootstrap_servers: str,
    *,
    timeout_ms: int = ROOT_TIMEOUT_MS,
    rules: RootRules | None = None,
    security: ClientSecurity = PLAINTEXT,
) -> BrokerRoot:
    """Ask the bootstrap servers, one after the other, until one answers.

    Args:
        bootstrap_servers: host:port, several separated by commas, as Kafka clients take it.
        timeout_ms: for each server: connecting and both answers.
        rules: where the root may be, and which it is; None: those of the environment.

    Raises:
        InvalidRequestError: INVALID_OPTION, not host:port; NOT_A_SPARKLOG_BROKER; ROOT_NOT_VISIBLE, this
            machine does not see the broker's root (or another root in its place); WRONG_ROOT and
            ROOT_NOT_ALLOWED by the rules, whereupon no other server is asked; NOT_AUTHENTICATED.
        RetriableError: BROKER_UNREACHABLE, no broker answered.
    """
    rules = root_rules(None, None, os.environ) if rules is None else rules
    failures = []
    for server, address in parse_servers(bootstrap_servers):
        try:
            cluster_id, log_dirs = _ask(address, time.monotonic() + timeout_ms / 1000, security)
        except NotKafkaError as error:
            failures.append(f"{without_user_info(server)}: {error}")
        except OSError as error:
            failures.append(f"{without_user_info(server)}: {error.strerror or error or type(error).__name__}")
        else:
            found = BrokerRoot(
                root=_root_of(server, log_dirs), cluster_id=_known(server, cluster_id), server=server
            )
            rules.validate_cluster_id(found.cluster_id, f"broker {server}")
            rules.validate_place(found.root)
            _validate_visible(found)
            return found
    raise RetriableError(
        "BROKER_UNREACHABLE",
        f"no bootstrap server answered ({'; '.join(failures)})",
        fix="check the addresses and that sparklog-server runs, or name the root itself: option path, --root",
    )


def _ask(address: tuple[str, int], deadline: float, security: ClientSecurity) -> tuple[str | None, list[str]]:
    """Return the cluster id and the log directories that one server names."""
    with BrokerConnection(address, deadline, security=security) as connection:
        metadata = connection.ask(METADATA, METADATA_VERSION, NO_TOPICS)
        cluster_id = read_cluster(metadata).cluster_id
        log_dirs = connection.ask(_DESCRIBE_LOG_DIRS, _DESCRIBE_LOG_DIRS_VERSION, NO_TOPICS)
        return cluster_id, read_log_dirs(log_dirs)


def _root_of(server: str, log_dirs: list[str]) -> str:
    if len(log_dirs) == 1 and "://" in log_dirs[0]:
        return log_dirs[0]
    if not log_dirs:
        raise InvalidRequestError(
            "NOT_A_SPARKLOG_BROKER",
            f"{server} names no log directory: it is a Kafka broker that does not allow the request",
            fix='give the root as option path or --root; for Apache Kafka use format("kafka")',
        )
    raise InvalidRequestError(
        "NOT_A_SPARKLOG_BROKER",
        f"{server} keeps its log in {_few(log_dirs)}, which is no root of sparklog: "
        "it is Apache Kafka or something else that speaks its protocol",
        fix='name a sparklog broker; for Apache Kafka use format("kafka")',
    )


def _few(log_dirs: list[str]) -> str:
    """Quoted, and no more of them than a message can hold: a stranger wrote them."""
    more = f" and {len(log_dirs) - 3} more" if len(log_dirs) > 3 else ""
    return ", ".join(shown("log.dirs", one) for one in log_dirs[:3]) + more


def _known(server: str, cluster_id: str | None) -> str:
    if cluster_id is None:
        raise InvalidRequestError(
            "NOT_A_SPARKLOG_BROKER", f"{server} names no cluster id", fix="name a sparklog broker"
        )
    return cluster_id


def _validate_visible(found: BrokerRoot) -> None:
    where = f"{found.root}/{META_PROPERTIES}"
    try:
        # Only read here: opening the log checks what its file system promises.
        options = {ALLOW_UNSAFE: True} if found.root.startswith("file:") else None
        store = open_store(found.root, storage_options=options)
        here = decode_properties(store.read(META_PROPERTIES, 0, 4096), where)
    except (NotFoundError, CorruptLogError) as error:
        raise _not_visible(found, f"this machine does not see it ({_first_line(error)})") from error
    except OSError as error:  # a path that is none to the system: too long, or through what we may not enter
        reason = error.strerror or type(error).__name__
        raise _not_visible(found, f"this machine does not see it ({reason})") from None
    if here != found.cluster_id:
        raise _not_visible(
            found, f"what this machine sees there is another log: cluster {here}, not {found.cluster_id}"
        )


def _not_visible(found: BrokerRoot, problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        "ROOT_NOT_VISIBLE",
        f"the broker {found.server} has its log at {shown('root', found.root)}, and {problem}",
        fix="mount the broker's storage here, and on every executor, under the same path; where the path "
        "differs, name it: option path, --root",
    )


def _first_line(error: SparklogError) -> str:
    return str(error).splitlines()[0][:_MAX_QUOTED]


# --- controller --------------------------------------------------------------------------------------


DEFAULT_TIMEOUT_MS = 30_000
_MAX_RESPONSE_BYTES = 64 << 20
_LOOK_SECONDS = 5
_PAUSE_MS = 200  # before it is looked for again
A = TypeVar("A", Answer, Answers)


class _Place(NamedTuple):
    node_id: int
    address: Address


class ControllerClient:
    """Asks the controller, wherever it is."""

    def __init__(
        self,
        image: Image,
        clock: Clock,
        *,
        bootstrap_servers: str | None = None,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        """`image`: of the root that is meant; without `bootstrap_servers`, its brokers are asked.

        Raises:
            InvalidRequestError: INVALID_OPTION; NO_BROKER_RUNS.
        """
        self._cluster_id = image.cluster_id
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._security = security
        self._answered = False  # any broker, at any time
        if bootstrap_servers is not None:
            self._servers = [address for _, address in parse_servers(bootstrap_servers)]
        else:
            self._servers = _addresses(image)

    def elect(self, election: Election, partitions: Collection[TopicPartition] | None) -> Answers:
        """Elect leaders of these partitions, or of all."""
        body = elect_leaders(election, partitions, self._timeout_ms)
        return self._ask(ELECT_LEADERS, body, lambda reader: read_answers(reader, ELECT_LEADERS))

    def reassign(self, wanted: Mapping[TopicPartition, Sequence[int] | None]) -> Answers:
        """Begin reassignments to these replicas, or call them off (None)."""
        body = alter_reassignments(wanted, self._timeout_ms)
        return self._ask(ALTER_REASSIGNMENTS, body, lambda reader: read_answers(reader, ALTER_REASSIGNMENTS))

    def unregister(self, node_id: int) -> Answer:
        """Forget a broker."""
        return self._ask(UNREGISTER_BROKER, unregister_broker(node_id), read_answer)

    def _ask(self, key: int, body: bytes, read: Callable[..., A]) -> A:
        deadline = time.monotonic() + self._timeout_ms / 1000
        while True:
            problems: dict[str, None] = {}
            found = [one for server in self._servers if (one := self._look(server, deadline, problems))]
            for place in dict.fromkeys(found):
                try:
                    answer = _ask_controller(place, key, body, read, deadline, self._security)
                except (NotKafkaError, OSError) as error:
                    problems[_told(place.address, error)] = None
                else:
                    if not _is_elsewhere(answer):
                        return answer
                    problems[_told(place.address, "it is no controller any more")] = None
            is_late = time.monotonic() + _PAUSE_MS / 1000 >= deadline
            if is_late or not self._answered:
                raise RetriableError(
                    "CONTROLLER_UNREACHABLE",
                    f"{NAMES[key]}: no controller answered ({'; '.join(problems)})",
                    fix="check that a broker runs and can be reached from here, and ask again: what was not "
                    "answered may be done already, and may be repeated",
                )
            self._clock.sleep_ms(_PAUSE_MS)

    def _look(self, server: Address, deadline: float, problems: dict[str, None]) -> _Place | None:
        """Where the controller is, as far as this server knows."""
        try:
            until = min(deadline, time.monotonic() + _LOOK_SECONDS)
            with BrokerConnection(server, until, security=self._security) as connection:
                cluster = read_cluster(connection.ask(METADATA, METADATA_VERSION, NO_TOPICS))
        except (NotKafkaError, OSError) as error:
            problems[_told(server, error)] = None
            return None
        if cluster.cluster_id != self._cluster_id:
            raise InvalidRequestError(
                "WRONG_ROOT",
                f"broker {server[0]}:{server[1]}: found cluster {cluster.cluster_id!r}, expected "
                f"{self._cluster_id!r}",
                fix="name a broker of the root that is meant",
            )
        self._answered = True
        address = cluster.addresses.get(cluster.controller_id)
        if address is None:
            problems[_told(server, "it knows of no controller now")] = None
            return None
        return _Place(cluster.controller_id, address)


def _ask_controller(
    place: _Place,
    key: int,
    body: bytes,
    read: Callable[..., A],
    deadline: float,
    security: ClientSecurity,
) -> A:
    host, port = place.address
    with BrokerConnection(
        place.address, deadline, max_response_bytes=_MAX_RESPONSE_BYTES, security=security
    ) as connection:
        served = read_served(connection.ask(API_VERSIONS, 0, b""))
        if VERSIONS[key] not in served.get(key, range(0)):
            raise UnsupportedVersionError(
                "API_NOT_SERVED",
                f"broker {place.node_id} at {host}:{port}, the controller, does not serve {NAMES[key]}",
                fix="upgrade the brokers",
            )
        return read(connection.ask(key, VERSIONS[key], body, is_flexible=True))


def _told(address: Address, problem: Exception | str) -> str:
    reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else problem
    return f"{address[0]}:{address[1]}: {reason}"


def _is_elsewhere(answer: Answer | Answers) -> bool:
    """True if another one is controller by now."""
    if isinstance(answer, Answer):
        return answer.error_code == NOT_CONTROLLER
    codes = {one.error_code for one in answer.partitions.values()}
    return NOT_CONTROLLER in {answer.whole.error_code, *codes} and not {NO_ERROR} & codes


def _addresses(image: Image) -> list[Address]:
    """Of the brokers that are not fenced, the controller first."""
    running = [one for one in describe_brokers(image) if not one.is_fenced and one.listeners]
    if not running:
        raise InvalidRequestError(
            "NO_BROKER_RUNS",
            f"cluster {image.cluster_id}: no broker is registered that is not fenced and has an address, "
            "and only a controller can do this",
            fix="start a broker: sparklog-server --root ROOT",
        )
    running.sort(key=lambda one: not one.is_controller)
    return [(one.listeners[0].host, one.listeners[0].port) for one in running]
