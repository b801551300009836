"""A broker under attack: what a request costs it, and what a bystander feels."""

import contextlib
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.hostile_requests import answer, plain_batch, produce, request

MIB = 1 << 20
SMALL = 64_000  # bytes of a request
QUIET_SECONDS = 1.5
PATIENCE_SECONDS = 60.0
FOREVER_MS = (1 << 31) - 1


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
