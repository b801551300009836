"""What a broker's CPU goes into while producers send: requests as Java's producer makes them, cheaply.

A request carries one batch of 16 KB for each of 8 partitions, idempotent, five of them on their way at once.
The batches are made beforehand; only their sequence numbers and CRCs change. So on a machine of few cores
nearly all that is measured is the broker. What is acknowledged is durable (fsync on), and times are from a
request's first byte sent to its answer. MB are uncompressed.

    python -m benchmarks.bench_produce [--root DIR] [--codecs none,lz4] [--record-bytes 1000]
                                       [--batch-bytes 16384] [--megabytes 300] [--clients 1] [--pyspy FILE]
"""

import argparse
import json
import os
import socket
import struct
import subprocess
import sys
import time

import confluent_kafka
import crc32c
import numpy as np
import pyarrow as pa
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.bench_broker import MB, PARTITIONS, Server, steal, values
from benchmarks.hostile_requests import produce as produce_request
from sparklog.format.codec import Codec
from sparklog.format.encode import EncodeOptions, encode_batches
from sparklog.format.record_batch import CRC_POSITION, CRC_START
from sparklog.format.schema import RecordColumns

IN_FLIGHT = 5
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_POSITION = 43


def batch(codec: str, record_bytes: int, batch_bytes: int, partition: int) -> tuple[bytes, int]:
    """One batch of about so many bytes uncompressed, and its records."""
    pool = values(record_bytes)
    count = max(1, batch_bytes // (record_bytes + 8))
    rows = [pool[(partition * count + row) % len(pool)] for row in range(count)]
    now_ms = int(time.time() * 1000)
    columns = RecordColumns(
        key=None, value=pa.array(rows, pa.binary()), timestamp_ms=np.full(count, now_ms, np.int64)
    )
    limit = 1 << 30
    options = EncodeOptions(
        codec=Codec.from_name(codec),
        max_batch_bytes=limit,
        max_message_bytes=limit,
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
    )
    return encode_batches(columns, options).to_bytes(), count


class Requests:
    """The same request again and again, with the sequence numbers that come next."""

    def __init__(self, codec: str, record_bytes: int, batch_bytes: int, producer_id: int) -> None:
        made = [batch(codec, record_bytes, batch_bytes, partition) for partition in range(PARTITIONS)]
        payload = produce_request(*(data for data, _ in made), topic="bench")
        self.frame = bytearray(struct.pack(">i", len(payload)) + payload)
        self._producer_id, self.number = producer_id, 0
        self.records = sum(count for _, count in made)
        self._batches = []
        at = 0
        for data, count in made:
            at = self.frame.index(data, at)
            self._batches.append((at, at + len(data), count))

    def next(self) -> memoryview:
        view = memoryview(self.frame)
        for begin, end, count in self._batches:
            sequence = self.number * count % (1 << 31)
            _PRODUCER.pack_into(view, begin + _PRODUCER_POSITION, self._producer_id, 0, sequence)
            struct.pack_into(">I", view, begin + CRC_POSITION, crc32c.crc32c(view[begin + CRC_START : end]))
        self.number += 1
        return view


def send(
    address: str, codec: str, record_bytes: int, batch_bytes: int, megabytes: float, number: int
) -> dict:
    """Requests until so many bytes (uncompressed) are acknowledged."""
    host, _, port = address.rpartition(":")
    requests = Requests(codec, record_bytes, batch_bytes, 1000 + number)
    wanted = max(1, round(megabytes * MB / (requests.records * record_bytes)))
    took: list[float] = []
    began: list[float] = []
    with socket.create_connection((host, int(port))) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = sock.makefile("rb")
        print("ready", flush=True)
        sys.stdin.readline()
        started, cpu = time.monotonic(), time.process_time()
        while len(took) < wanted:
            while len(began) < wanted and len(began) - len(took) < IN_FLIGHT:
                data = requests.next()
                began.append(time.monotonic())
                sock.sendall(data)
            (size,) = struct.unpack(">i", answers.read(4))
            answers.read(size)  # whether they are there is counted in the end
            took.append(time.monotonic() - began[len(took)])
        if len(took) == wanted:
            ended = time.monotonic()
        answers.close()
    return {
        "start": started,
        "end": ended,
        "cpu": time.process_time() - cpu,
        "took": took,
        "records": wanted * requests.records,
        "sent": wanted * len(requests.frame),
    }


def bench(options: argparse.Namespace, codec: str) -> dict:
    server = Server(options.root, None)
    try:
        admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
        for future in admin.create_topics([NewTopic("bench", PARTITIONS, 1)]).values():
            future.result(30)
        words = [codec, options.record_bytes, options.batch_bytes]
        start = [sys.executable, "-m", "benchmarks.bench_produce", "--send", server.bootstrap]
        _run(start, words, 20, 1, first=100)  # the broker's first use of everything
        profiler = None
        if options.pyspy:
            profiler = subprocess.Popen(
                ["py-spy", "record", "-d", "600", "-r", "200", "-f", "raw", "-t",
                 *options.pyspy_args.split(), "-o", f"{options.pyspy}.{codec}", "-p",
                 str(server.process.pid)],
                stdout=subprocess.PIPE,
            )  # fmt: skip
            assert profiler.stdout is not None
            profiler.stdout.readline()  # "Sampling process ...": it has attached
        cpu, stolen = server.cpu(), steal()
        found = _run(start, words, options.megabytes / options.clients, options.clients, first=0)
        cpu = server.cpu() - cpu
        if profiler is not None:
            profiler.send_signal(2)
            profiler.communicate(timeout=60)
        offsets = _count(server.bootstrap)
    finally:
        server.close()
    records = sum(one["records"] for one in found)
    assert offsets >= records, f"{offsets} records are there, {records} were acknowledged"
    seconds = max(one["end"] for one in found) - min(one["start"] for one in found)
    size = records * options.record_bytes / MB
    took = np.concatenate([one["took"] for one in found]) * 1000
    return {
        "codec": codec,
        "mb_per_s": round(size / seconds, 1),
        "cpu_ms_per_mb": round(cpu / size * 1000, 3),
        "p50_ms": round(float(np.percentile(took, 50)), 2),
        "p99_ms": round(float(np.percentile(took, 99)), 2),
        "sender_cpu_ms_per_mb": round(sum(one["cpu"] for one in found) / size * 1000, 3),
        "load": round(os.getloadavg()[0], 1),
        "steal_s": round(steal() - stolen, 1),
    }


def _run(start: list[str], words: list, megabytes: float, clients: int, *, first: int) -> list[dict]:
    processes = [
        subprocess.Popen(
            [*start, *map(str, words), str(megabytes), str(first + number)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number in range(clients)
    ]  # fmt: skip
    for one in processes:
        assert one.stdout is not None
        assert one.stdout.readline(), "the sender ended"
    for one in processes:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    results = []
    for one in processes:
        text, _ = one.communicate(timeout=600)
        assert one.returncode == 0
        results.append(json.loads(text.splitlines()[-1]))
    return results


def _count(bootstrap: str) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "count", "log_level": 0})
    try:
        parts = [confluent_kafka.TopicPartition("bench", number) for number in range(PARTITIONS)]
        return sum(consumer.get_watermark_offsets(one, timeout=10)[1] for one in parts)
    finally:
        consumer.close()


def main() -> None:
    if sys.argv[1:2] == ["--send"]:
        address, codec, record_bytes, batch_bytes, megabytes, number = sys.argv[2:]
        print(
            json.dumps(
                send(address, codec, int(record_bytes), int(batch_bytes), float(megabytes), int(number))
            )
        )
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", default=".", help="a directory on the file system to measure")
    parser.add_argument("--codecs", default="none,lz4")
    parser.add_argument("--record-bytes", type=int, default=1000)
    parser.add_argument("--batch-bytes", type=int, default=16384)
    parser.add_argument("--megabytes", type=float, default=300)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--pyspy", help="profile the broker with py-spy, if it is there, into this file")
    parser.add_argument("--pyspy-args", default="")
    options = parser.parse_args()
    for codec in options.codecs.split(","):
        print(json.dumps(bench(options, codec)), flush=True)


if __name__ == "__main__":
    main()
