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
            while not self._ended.wait(0.005):
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
        if broker.cpu_ms() - before <= 60:
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
    base, cpu = broker.rss(), broker.cpu_ms()
    broker.forget_peak()
    bystander = Bystander(broker)
    socks = [broker.connect() for _ in range(at_once)]
    began = time.perf_counter()
    for frame in frames:
        for sock in socks:
            send(sock, frame)
        if not parks:
            drain(socks)
    elapsed = time.perf_counter() - began
    wait_until_quiet(broker)
    peak, used = broker.peak() - base, broker.cpu_ms() - cpu
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
