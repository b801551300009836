"""What small requests can cost a broker: CPU, memory while they are worked on, memory that stays, and how
long another client waits meanwhile. Nobody is authenticated yet, so anybody can send these.

Each attack is sent once, and then by 100 clients at once, to a broker process of its own; a bystander asks
for ApiVersions all the time. The bounds that are meant: no request below 64 KB costs more than 100 ms of CPU
or 64 MiB, or keeps anything after its connection is gone; 100 at once take no more memory than that.

    python -m benchmarks.bench_hostile [--only WORD] [--at-once 1,100]
"""

import argparse
import contextlib
import io
import json
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cramjam
import psutil
from kio.index import load_payload_module, load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from sparklog.format.codec import Codec
from sparklog.format.record_batch import HEADER, BatchHeader, encode_header
from sparklog_server.protocol.entities import make

MIB = 1 << 20
SMALL = 64_000  # bytes of a request
QUIET_SECONDS = 1.5
PATIENCE_SECONDS = 60.0


# --- requests --------------------------------------------------------------------------------------------


def entity(types: Any, value: Any) -> Any:
    """kio's entity for nested dicts that name theirs: {"_": "MetadataRequestTopic", ...}."""
    if isinstance(value, dict):
        fields = {name: entity(types, one) for name, one in value.items() if name != "_"}
        return make(getattr(types, value["_"]), **fields)
    if isinstance(value, list | tuple):
        return tuple(entity(types, one) for one in value)
    return value


def request(key: int, version: int, *, client_id: bytes = b"hostile", **fields: Any) -> bytes:
    """A request's frame, without its length."""
    schema = load_request_schema(key, version)
    types = load_payload_module(key, version, EntityType.request)
    body = io.BytesIO()
    entity_writer(schema)(body, make(schema, **{name: entity(types, one) for name, one in fields.items()}))
    head = struct.pack(">hhih", key, version, 7, len(client_id)) + client_id
    return head + (b"\0" if schema.__header_schema__.__version__ == 2 else b"") + body.getvalue()


def answer(key: int, version: int, frame: bytes) -> Any:
    """The response in a frame."""
    schema = load_response_schema(key, version)
    position = 5 if schema.__header_schema__.__version__ == 1 else 4
    return entity_reader(schema)(memoryview(frame), position)[0]


def produce(*batches: bytes, topic: str = "victim", acks: int = -1) -> bytes:
    """A Produce request, one batch to a partition."""
    partitions = [
        {"_": "PartitionProduceData", "index": number, "records": data} for number, data in enumerate(batches)
    ]
    topics = [{"_": "TopicProduceData", "name": topic, "partition_data": partitions}]
    return request(0, 9, acks=acks, timeout=30_000, topic_data=topics)


def zstd_batch(body: bytes, count: int) -> bytes:
    """A batch of these records, compressed as well as zstd can."""
    packed = bytes(cramjam.zstd.compress(body, level=19))
    header = BatchHeader(
        record_count=count,
        last_offset_delta=count - 1,
        attributes=int(Codec.ZSTD),
        first_timestamp_ms=1_700_000_000_000,
        max_timestamp_ms=1_700_000_000_000,
        batch_length=HEADER.size - 12 + len(packed),
    )
    return encode_header(header, packed) + packed


def plain_batch() -> bytes:
    """One record."""
    body = tiny_records(1)
    header = BatchHeader(
        record_count=1,
        first_timestamp_ms=int(time.time() * 1000),
        max_timestamp_ms=int(time.time() * 1000),
        batch_length=HEADER.size - 12 + len(body),
    )
    return encode_header(header, body) + body


def tiny_records(count: int, *, last: bytes = b"") -> bytes:
    """Records without key and value, with offset deltas as they must be, and something behind them."""
    out = []
    for row in range(count):
        coded, delta = row << 1, bytearray()
        while coded >= 0x80:
            delta.append(coded & 0x7F | 0x80)
            coded >>= 7
        delta.append(coded)
        record = b"\0\0" + bytes(delta) + b"\x01\x01\0"
        out.append(bytes([len(record) << 1]) + record)
    return b"".join(out) + last


def header_tags(size: int) -> bytes:
    """ApiVersions with as many tagged fields in its header as fit."""
    head = struct.pack(">hhih", 18, 3, 7, -1)
    count = (size - len(head) - 8) // 6
    tags = b"".join(uvarint(1_000_000 + n) + b"\0" for n in range(count))
    return (head + uvarint(count) + tags)[: size - 8] + b"\x01\x01\0"


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# --- a broker, and what it costs ---------------------------------------------------------------------------


class Broker:
    """sparklog-server in a process of its own, on a root of its own."""

    def __init__(self, root: str, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sparklog_server", "--root", root, "--listeners",
             "PLAINTEXT://127.0.0.1:0", *words],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        self.port = int(line.rpartition(":")[2])
        self._ps = psutil.Process(self.process.pid)
        self._proc = Path(f"/proc/{self.process.pid}")

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_SECONDS)

    def cpu_ms(self) -> float:
        used = self._ps.cpu_times()
        return (used.user + used.system) * 1000

    def rss(self) -> int:
        return self._ps.memory_info().rss

    def peak(self) -> int:
        """The most since `forget_peak`."""
        lines = (self._proc / "status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024

    def forget_peak(self) -> None:
        (self._proc / "clear_refs").write_text("5")

    def ask(self, key: int, version: int, **fields: Any) -> Any:
        with self.connect() as sock:
            send(sock, request(key, version, **fields))
            return answer(key, version, receive(sock))

    def produce_one(self) -> None:
        """A record, so that there is something to look for."""
        with self.connect() as sock:
            send(sock, produce(plain_batch()))
            receive(sock)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(60)


def send(sock: socket.socket, frame: bytes) -> None:
    sock.sendall(struct.pack(">i", len(frame)) + frame)


def receive(sock: socket.socket) -> bytes:
    """The next frame; empty at the end."""
    data = bytearray()
    size = 4
    while len(data) < size:
        part = sock.recv(min(MIB, size - len(data)))
        if not part:
            return b""
        data += part
        if len(data) == 4 and size == 4:
            size += struct.unpack(">i", data)[0]
    return bytes(data[4:])


class Bystander:
    """Asks for ApiVersions without a pause; knows the longest wait."""

    def __init__(self, broker: Broker) -> None:
        self._sock = broker.connect()
        self._frame = struct.pack(">hhih", 18, 0, 1, -1)
        self._ended = threading.Event()
        self.longest_ms = 0.0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while not self._ended.wait(0.02):
                began = time.perf_counter()
                send(self._sock, self._frame)
                receive(self._sock)
                self.longest_ms = max(self.longest_ms, (time.perf_counter() - began) * 1000)

    def end(self) -> float:
        self._ended.set()
        self._thread.join()
        self._sock.close()
        return self.longest_ms


def wait_until_quiet(broker: Broker) -> None:
    """Until the broker uses next to no CPU."""
    ends = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < ends:
        before = broker.cpu_ms()
        time.sleep(0.5)
        if broker.cpu_ms() - before <= 100:
            return


def measure(broker: Broker, name: str, frames: list[bytes], at_once: int, *, parks: bool) -> dict:
    """Send the frames by so many clients; what it cost. `parks`: no answers are to be expected."""
    for _ in range(2):  # what is loaded once is not the request's cost
        with broker.connect() as sock:
            for frame in frames:
                send(sock, frame)
                if parks or not receive(sock):
                    break
            time.sleep(0.2)
    time.sleep(1.5)
    wait_until_quiet(broker)
    bystander = Bystander(broker)
    idle_cpu, idle_s = broker.cpu_ms(), time.perf_counter()
    time.sleep(1)  # what the bystander, and looking for commits, cost
    idle = (broker.cpu_ms() - idle_cpu) / (time.perf_counter() - idle_s)
    base, cpu, since = broker.rss(), broker.cpu_ms(), time.perf_counter()
    broker.forget_peak()
    socks = [broker.connect() for _ in range(at_once)]
    began = time.perf_counter()
    for frame in frames:
        for sock in socks:
            send(sock, frame)
        if not parks:
            drain(socks)
    elapsed = time.perf_counter() - began
    wait_until_quiet(broker)
    used = max(0.0, broker.cpu_ms() - cpu - idle * (time.perf_counter() - since))
    peak = broker.peak() - base
    for sock in socks:
        sock.close()
    longest = bystander.end()
    time.sleep(QUIET_SECONDS)
    wait_until_quiet(broker)
    count = len(frames) * at_once
    return {
        "attack": name,
        "bytes": max(map(len, frames)),
        "requests": count,
        "cpu ms each": round(used / count, 1),
        "peak MiB": round(peak / MIB, 1),
        "kept MiB": round((broker.rss() - base) / MIB, 1),
        "others waited ms": round(longest),
        "s": round(elapsed, 1),
    }


def drain(socks: list[socket.socket]) -> None:
    """One answer from each, or its end."""
    left = {sock: [b"", 0] for sock in socks}
    ends = time.monotonic() + PATIENCE_SECONDS
    while left and time.monotonic() < ends:
        for sock in select.select(list(left), [], [], 1.0)[0]:
            state = left[sock]
            try:
                part = sock.recv(MIB)
            except OSError:
                part = b""
            if not part:
                del left[sock]
                continue
            if len(state[0]) < 4:
                state[0] = (state[0] + part)[: 4 if len(state[0] + part) >= 4 else 3]
            state[1] += len(part)
            if len(state[0]) == 4 and state[1] >= 4 + struct.unpack(">i", state[0])[0]:
                del left[sock]


# --- the attacks -----------------------------------------------------------------------------------------

Frames = tuple[list[bytes], bool]
Attack = Callable[[Broker], Frames]
ATTACKS: dict[str, Attack] = {}


def attack(name: str) -> Callable[[Attack], Attack]:
    def keep(function: Attack) -> Attack:
        ATTACKS[name] = function
        return function

    return keep


def with_topic(broker: Broker, partitions: int = 1, name: str = "victim") -> None:
    topic = {"_": "CreatableTopic", "name": name, "num_partitions": partitions, "replication_factor": 1,
             "assignments": [], "configs": []}  # fmt: skip
    broker.ask(19, 5, topics=[topic], timeout=30_000, validate_only=False)


@attack("refused: one record too few, 120 MiB of zeros in 4 KB")
def refused(broker: Broker) -> Frames:
    with_topic(broker)
    return [produce(zstd_batch(bytes(120 * MIB), 2))] * 20, False


@attack("refused: 70,000 records, the last one bad")
def twin(broker: Broker) -> Frames:
    with_topic(broker)
    # One record repeated compresses a thousandfold; offset deltas must be right for the parser to get far.
    return [produce(zstd_batch(tiny_records(70_000, last=b"\xff"), 70_001))], False


@attack("refused: 17 million records of one byte pattern")
def pattern(broker: Broker) -> Frames:
    with_topic(broker)
    return [produce(zstd_batch(b"\x0c\0\0\0\x01\x01\0" * 17_000_000, 17_000_000))], False


@attack("tags of a header")
def tags(broker: Broker) -> Frames:
    return [header_tags(SMALL)], False


@attack("tags of a header, 16 MiB")
def many_tags(broker: Broker) -> Frames:
    return [header_tags(16 * MIB)], False


def names(size: int, count: int, prefix: str = "") -> list[str]:
    """So many different names, of at least so many characters."""
    return [f"{prefix}{number:x}".rjust(size, "x") for number in range(count)]


@attack("Metadata of all of 5,000 topics")
def metadata_all(broker: Broker) -> Frames:
    with_topics(broker, 5_000)
    return [request(3, 12, topics=None, allow_auto_topic_creation=False)] * 5, False


@attack("Metadata of 10,000 unknown names")
def metadata_unknown(broker: Broker) -> Frames:
    topics = [{"_": "MetadataRequestTopic", "name": name} for name in names(3, 2_700)]
    return [request(3, 12, topics=topics, allow_auto_topic_creation=False)], False


@attack("DescribeGroups, one group 6,000 times")
def describe_groups(broker: Broker) -> Frames:
    with_group(broker, "g", members=20)
    return [request(15, 5, groups=["g"] * 20_000)], False


@attack("DescribeGroups of 15,000 unknown groups")
def describe_unknown_groups(broker: Broker) -> Frames:
    return [request(15, 5, groups=names(3, 15_000))], False


@attack("OffsetFetch, one group 10,000 times")
def offset_fetch(broker: Broker) -> Frames:
    with_topic(broker, 1000)
    commit(broker, "g", 1000)
    return [
        request(9, 8, groups=[{"_": "OffsetFetchRequestGroup", "group_id": "g", "topics": None}] * 12_000)
    ], False


@attack("OffsetFetch of 15,000 partitions")
def offset_fetch_partitions(broker: Broker) -> Frames:
    topics = [{"_": "OffsetFetchRequestTopics", "name": "t", "partition_indexes": list(range(15_000))}]
    groups = [{"_": "OffsetFetchRequestGroup", "group_id": "g", "topics": topics}]
    return [request(9, 8, groups=groups)], False


@attack("FindCoordinator of 15,000 groups")
def find_coordinator(broker: Broker) -> Frames:
    return [request(10, 4, key_type=0, coordinator_keys=names(3, 15_000))], False


@attack("FindCoordinator of one group 30,000 times")
def find_one_coordinator(broker: Broker) -> Frames:
    return [request(10, 4, key_type=0, coordinator_keys=["g"] * 30_000)], False


@attack("DescribeConfigs, one topic 6,000 times")
def describe_configs(broker: Broker) -> Frames:
    with_topic(broker)
    one = {"_": "DescribeConfigsResource", "resource_type": 2, "resource_name": "victim",
           "configuration_keys": None}  # fmt: skip
    return [request(32, 4, resources=[one] * 6_000, include_synonyms=True, include_documentation=True)], False


@attack("CreateTopics, 3,500 to be validated")
def create_topics(broker: Broker) -> Frames:
    topics = [
        {"_": "CreatableTopic", "name": name, "num_partitions": 1, "replication_factor": 1,
         "assignments": [], "configs": []}
        for name in names(4, 3_500, "v.")
    ]  # fmt: skip
    return [request(19, 5, topics=topics, timeout=30_000, validate_only=True)], False


@attack("CreateTopics of 1,800 with a misspelt setting each")
def create_misspelt(broker: Broker) -> Frames:
    topics = [
        {"_": "CreatableTopic", "name": name, "num_partitions": -1, "replication_factor": -1,
         "assignments": [], "configs": [{"_": "CreatableTopicConfig", "name": "retention.m", "value": "1"}]}
        for name in names(4, 1_800, "v.")
    ]  # fmt: skip
    return [request(19, 5, topics=topics, timeout=30_000, validate_only=True)], False


@attack("ListOffsets by time of 3,500 partitions")
def list_offsets_by_time(broker: Broker) -> Frames:
    with_topic(broker, 3_500)
    partitions = [
        {"_": "ListOffsetsPartition", "partition_index": n, "current_leader_epoch": -1, "timestamp": 5}
        for n in range(3_500)
    ]
    topics = [{"_": "ListOffsetsTopic", "name": "victim", "partitions": partitions}]
    return [request(2, 6, replica_id=-1, isolation_level=0, topics=topics)], False


@attack("ListOffsets, one partition 4,000 times")
def list_offsets(broker: Broker) -> Frames:
    with_topic(broker)
    broker.produce_one()
    partitions = [
        {"_": "ListOffsetsPartition", "partition_index": 0, "current_leader_epoch": -1, "timestamp": 5}
    ] * 3_500
    topics = [{"_": "ListOffsetsTopic", "name": "victim", "partitions": partitions}]
    return [request(2, 6, replica_id=-1, isolation_level=0, topics=topics)], False


@attack("OffsetForLeaderEpoch, 4,000 partitions")
def offset_for_leader_epoch(broker: Broker) -> Frames:
    partitions = [
        {"_": "OffsetForLeaderPartition", "partition": n, "current_leader_epoch": -1, "leader_epoch": 0}
        for n in range(4_000)
    ]
    topics = [{"_": "OffsetForLeaderTopic", "topic": "victim", "partitions": partitions}]
    return [request(23, 4, replica_id=-1, topics=topics)], False


@attack("DescribeLogDirs, one topic's partition 10,000 times")
def describe_log_dirs(broker: Broker) -> Frames:
    with_topic(broker)
    topics = [{"_": "DescribableLogDirTopic", "topic": "victim", "partitions": [0] * 15_000}]
    return [request(35, 4, topics=topics)], False


@attack("OffsetCommit of 3,000 partitions")
def offset_commit(broker: Broker) -> Frames:
    with_topic(broker, 3000)
    return [commit_request("g", 3000)], False


@attack("LeaveGroup of 8,000 members")
def leave_group(broker: Broker) -> Frames:
    with_group(broker, "g", members=2)
    members = [
        {"_": "MemberIdentity", "member_id": name, "group_instance_id": None} for name in names(3, 9_000)
    ]
    return [request(13, 4, group_id="g", members=members)], False


@attack("DeleteGroups of 15,000 names")
def delete_groups(broker: Broker) -> Frames:
    return [request(42, 2, groups_names=names(3, 15_000))], False


@attack("DeleteTopics of 12,000 names")
def delete_topics(broker: Broker) -> Frames:
    return [request(20, 5, topic_names=names(3, 15_000), timeout=30_000)], False


@attack("DeleteRecords of 4,000 partitions")
def delete_records(broker: Broker) -> Frames:
    with_topic(broker)
    partitions = [{"_": "DeleteRecordsPartition", "partition_index": n, "offset": 0} for n in range(4_000)]
    topics = [{"_": "DeleteRecordsTopic", "name": "victim", "partitions": partitions}]
    return [request(21, 2, topics=topics, timeout=30_000)], False


@attack("IncrementalAlterConfigs of 4,000 topics")
def incremental_alter_configs(broker: Broker) -> Frames:
    resources = [
        {"_": "AlterConfigsResource", "resource_type": 2, "resource_name": name,
         "configs": [{"_": "AlterableConfig", "name": "a", "config_operation": 0, "value": "1"}]}
        for name in names(3, 4_000)
    ]  # fmt: skip
    return [request(44, 1, resources=resources, validate_only=True)], False


@attack("CreatePartitions of 5,000 topics")
def create_partitions(broker: Broker) -> Frames:
    topics = [
        {"_": "CreatePartitionsTopic", "name": name, "count": 2, "assignments": None}
        for name in names(3, 5_000)
    ]
    return [request(37, 3, topics=topics, timeout=30_000, validate_only=True)], False


@attack("Produce of 5,000 empty partitions")
def produce_empty(broker: Broker) -> Frames:
    with_topic(broker, 9_000)
    return [produce(*[b"x"] * 8_000)], False


@attack("ApiVersions with long names")
def api_versions(broker: Broker) -> Frames:
    return [request(18, 3, client_software_name="x" * 30_000, client_software_version="y" * 30_000)], False


@attack("a name of 32 KB for a group")
def long_group(broker: Broker) -> Frames:
    return [
        request(12, 3, group_id="x" * 32_000, generation_id=1, member_id="m", group_instance_id=None)
    ], False


# --- requests that wait ------------------------------------------------------------------------------------

FOREVER_MS = (1 << 31) - 1


def fetch_request(
    topics: list[tuple[str, list[int]]], *, wait_ms: int = FOREVER_MS, version: int = 7
) -> bytes:
    fetched = [
        {"_": "FetchTopic", "topic": name, "partitions": [
            {"_": "FetchPartition", "partition": one, "fetch_offset": 0, "partition_max_bytes": 1}
            for one in partitions
        ]}
        for name, partitions in topics
    ]  # fmt: skip
    return request(1, version, replica_id=-1, max_wait=wait_ms, min_bytes=1, max_bytes=1, isolation_level=0,
                   session_id=0, session_epoch=0, topics=fetched, forgotten_topics_data=[])  # fmt: skip


@attack("Fetch that waits for 2,400 partitions")
def fetch_parked(broker: Broker) -> Frames:
    with_topic(broker, 2_400)
    return [fetch_request([("victim", list(range(2_400)))])], True


@attack("Fetch sessions of illegal names")
def fetch_illegal(broker: Broker) -> Frames:
    return [fetch_request([("!" * 32_000 + name, [0]) for name in names(1, 2)])], False


@attack("Fetch sessions of 2,400 unknown partitions")
def fetch_unknown(broker: Broker) -> Frames:
    return [fetch_request([("unknown", list(range(2_400)))])], False


@attack("JoinGroup that waits, of 60 KB")
def join_parked(broker: Broker) -> Frames:
    return [join_request("g", b"x" * 60_000)], True


@attack("JoinGroup of 8,000 protocols")
def join_protocols(broker: Broker) -> Frames:
    broker.ask(10, 4, key_type=0, coordinator_keys=["g"])
    time.sleep(1)
    protocols = [{"_": "JoinGroupRequestProtocol", "name": name, "metadata": b""} for name in names(3, 7_000)]
    return [request(11, 3, group_id="g", session_timeout=60_000, rebalance_timeout=FOREVER_MS, member_id="",
                    protocol_type="consumer", protocols=protocols)], True  # fmt: skip


@attack("JoinGroup of a client id of 32 KB")
def join_client_id(broker: Broker) -> Frames:
    return [join_request("g", b"x", client_id=b"c" * 32_000)], True


@attack("SyncGroup that waits, of 60 KB, by a follower")
def sync_parked(broker: Broker) -> Frames:
    joined = with_group(broker, "g", members=2, session_ms=1_800_000, sync=False)
    follower = next(one for one in joined if one.member_id != one.leader)
    given = [{"_": "SyncGroupRequestAssignment", "member_id": "m", "assignment": b"x" * 60_000}]
    return [request(14, 3, group_id="g", generation_id=follower.generation_id, member_id=follower.member_id,
                    group_instance_id=None, assignments=given)], True  # fmt: skip


# --- what there is already ---------------------------------------------------------------------------------


def with_topics(broker: Broker, count: int) -> None:
    for first in range(0, count, 500):
        topics = [
            {"_": "CreatableTopic", "name": f"topic-{first + n:05}", "num_partitions": 1,
             "replication_factor": 1, "assignments": [], "configs": []}
            for n in range(500)
        ]  # fmt: skip
        broker.ask(19, 5, topics=topics, timeout=60_000, validate_only=False)


def commit_request(group: str, partitions: int) -> bytes:
    offsets = [
        {"_": "OffsetCommitRequestPartition", "partition_index": n, "committed_offset": 1,
         "committed_leader_epoch": -1, "committed_metadata": ""}
        for n in range(partitions)
    ]  # fmt: skip
    topics = [{"_": "OffsetCommitRequestTopic", "name": "victim", "partitions": offsets}]
    return request(8, 8, group_id=group, generation_id_or_member_epoch=-1, member_id="",
                   group_instance_id=None, topics=topics)  # fmt: skip


def commit(broker: Broker, group: str, partitions: int) -> None:
    broker.ask(10, 4, key_type=0, coordinator_keys=[group])
    with broker.connect() as sock:
        send(sock, commit_request(group, partitions))
        receive(sock)


def join_request(group: str, subscription: bytes, *, member_id: str = "", session_ms: int = 60_000,
                 client_id: bytes = b"hostile") -> bytes:  # fmt: skip
    protocols = [{"_": "JoinGroupRequestProtocol", "name": "range", "metadata": subscription}]
    return request(11, 3, client_id=client_id, group_id=group, session_timeout=session_ms,
                   rebalance_timeout=FOREVER_MS, member_id=member_id, protocol_type="consumer",
                   protocols=protocols)  # fmt: skip


def with_group(
    broker: Broker, group: str, *, members: int, session_ms: int = 60_000, sync: bool = True
) -> list[Any]:
    """A group whose members have subscriptions of 50 KB; their JoinGroup answers."""
    broker.ask(10, 4, key_type=0, coordinator_keys=[group])
    time.sleep(1)
    socks = [broker.connect() for _ in range(members)]
    for sock in socks:
        send(sock, join_request(group, b"x" * 50_000, session_ms=session_ms))
    joined = [answer(11, 3, receive(sock)) for sock in socks]
    for sock, one in zip(socks, joined, strict=True):
        if sync:
            send(sock, request(14, 3, group_id=group, generation_id=one.generation_id,
                               member_id=one.member_id, group_instance_id=None, assignments=[]))  # fmt: skip
    for sock in socks:
        if sync:
            receive(sock)
        KEPT_OPEN.append(sock)
    return joined


KEPT_OPEN: list[socket.socket] = []


# --- the report ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def serving() -> Iterator[Broker]:
    with tempfile.TemporaryDirectory(prefix="sparklog-hostile-") as root:
        broker = Broker(str(Path(root) / "log"))
        try:
            yield broker
        finally:
            broker.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="attacks whose name contains this")
    parser.add_argument("--at-once", default="1,100", help="clients")
    options = parser.parse_args()
    for name, make_attack in ATTACKS.items():
        if options.only not in name:
            continue
        for at_once in map(int, options.at_once.split(",")):
            with serving() as broker:
                frames, parks = make_attack(broker)
                print(json.dumps(measure(broker, name, frames, at_once, parks=parks)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
