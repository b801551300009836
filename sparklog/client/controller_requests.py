"""The three requests that only a controller can do: their bytes, and what is answered.

    ElectLeaders v2, AlterPartitionReassignments v0, UnregisterBroker v0

Invariants: pure; what is answered is a stranger's bytes: either the fields, or NotKafkaError.
Not here: where the controller is, and asking again (controller.py).
Sources: Kafka's ElectLeadersRequest, AlterPartitionReassignmentsRequest, UnregisterBrokerRequest and their
    responses (KIP-460, KIP-455, KIP-631).
"""

import enum
import struct
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeVar

from sparklog.client.broker_answers import AnswerReader

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
# Those that these requests may be answered with; any other is told by its number.
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
        chunks.append(_varint(0))
    else:
        topics = _by_topic(dict.fromkeys(partitions))
        chunks.append(_varint(len(topics) + 1))
        for topic, numbers in topics.items():
            chunks += [_string(topic), _int32s(list(numbers)), _NO_TAGS]
    return b"".join([*chunks, struct.pack(">i", timeout_ms), _NO_TAGS])


def alter_reassignments(wanted: Mapping[TopicPartition, Sequence[int] | None], timeout_ms: int) -> bytes:
    """AlterPartitionReassignments v0; None in the place of replicas: call it off."""
    topics = _by_topic(wanted)
    chunks = [struct.pack(">i", timeout_ms), _varint(len(topics) + 1)]
    for topic, partitions in topics.items():
        chunks += [_string(topic), _varint(len(partitions) + 1)]
        for partition, replicas in partitions.items():
            listed = _varint(0) if replicas is None else _int32s(replicas)
            chunks += [struct.pack(">i", partition), listed, _NO_TAGS]
        chunks.append(_NO_TAGS)
    return b"".join([*chunks, _NO_TAGS])


def unregister_broker(node_id: int) -> bytes:
    """UnregisterBroker v0."""
    return struct.pack(">i", node_id) + _NO_TAGS


_NO_TAGS = b"\0"


def _by_topic(partitions: Mapping[TopicPartition, T]) -> dict[str, dict[int, T]]:
    found: dict[str, dict[int, T]] = {}
    for (topic, partition), value in partitions.items():
        found.setdefault(topic, {})[partition] = value
    return found


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _string(text: str) -> bytes:
    data = text.encode()
    return _varint(len(data) + 1) + data


def _int32s(numbers: Sequence[int]) -> bytes:
    return _varint(len(numbers) + 1) + struct.pack(f">{len(numbers)}i", *numbers)


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
