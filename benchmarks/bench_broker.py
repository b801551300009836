"""The broker, by librdkafka: produce and fetch with 1 and 8 clients, and how long an acknowledgement takes.

Clients are processes, and share the machine with the broker. Everything acknowledged is durable (acks=all,
fsync on). Values are lines of JSON of the given size, 1,000 different ones. Latency is measured open-loop:
records are due on a schedule, each is a request of its own, and its time counts from when it was due, so
that a stalled broker is charged for all it kept waiting. Beside it: the same disk's fsync, as a baseline.

    python -m benchmarks.bench_broker [--root DIR] [--seconds 5] [--clients 1,8] [--sizes 100,1000]
                                      [--rates 20,1000] [--profile FILE]
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import confluent_kafka
import numpy as np
import psutil

TOPIC = "bench"
PARTITIONS = 8
BATCH = 1000
MB = 1_000_000
QUIET = {"log_level": 0}


# --- clients, each in a process of its own ------------------------------------------------------------


def values(size: int) -> list[bytes]:
    """Lines that look like somebody's records: lz4 halves them or better."""
    rng = np.random.default_rng(0)
    made = []
    for number in range(1000):
        words = " ".join(f"field{n % 7}={rng.integers(0, 1000)}" for n in range(size // 8))
        made.append(json.dumps({"id": number, "text": words}).encode()[:size].ljust(size, b"."))
    return made


def wait_for_go(out: dict) -> None:
    """Ready; then started together with the others."""
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    out["start"] = time.monotonic()
    out["cpu"] = -time.process_time()


def end(out: dict) -> None:
    out["end"] = time.monotonic()
    out["cpu"] += time.process_time()
    print(json.dumps(out), flush=True)


def produce(bootstrap: str, number: int, clients: int, size: int, codec: str, seconds: float) -> None:
    """Produce as fast as it goes for so long; each client to its own share of the partitions."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "compression.type": codec,
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "batch.num.messages": 1_000_000,
            "queue.buffering.max.messages": 400_000,
            "queue.buffering.max.kbytes": 65_536 if clients > 1 else 262_144,
            **QUIET,
        }
    )
    mine = list(range(number % PARTITIONS, PARTITIONS, clients))
    pool = values(size)
    failed: list[str] = []

    def delivered(error, _message) -> None:
        if error is not None:
            failed.append(str(error))

    batches = [[{"value": pool[(n * BATCH + i) % 1000]} for i in range(BATCH)] for n in range(4)]
    producer.produce(TOPIC, b"first", partition=mine[0])
    assert producer.flush(30) == 0
    out = {"records": 0, "bytes": 0}
    wait_for_go(out)
    turn = 0
    while time.monotonic() - out["start"] < seconds:
        batch, rest = batches[turn % 4], BATCH
        while rest:  # what does not fit waits for room
            taken = producer.produce_batch(TOPIC, batch[BATCH - rest :], partition=mine[turn % len(mine)])
            rest -= taken
            producer.poll(0.002 if rest else 0)
        out["records"] += BATCH
        turn += 1
    left = producer.flush(60)
    assert left == 0, left
    assert not failed, failed[0]
    out["bytes"] = out["records"] * size
    end(out)


def fetch(bootstrap: str, number: int, clients: int) -> None:
    """Read one's own share of the partitions from the start to the end."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"bench-{number}",
            "enable.auto.commit": False,
            "check.crcs": False,
            "fetch.wait.max.ms": 100,
            "fetch.max.bytes": 52_428_800,
            "max.partition.fetch.bytes": 8 * 1_048_576,
            "queued.max.messages.kbytes": 131_072 if clients == 1 else 32_768,
            "queued.min.messages": 1_000_000,
            **QUIET,
        }
    )
    mine = [confluent_kafka.TopicPartition(TOPIC, p, 0) for p in range(number, PARTITIONS, clients)]
    count = sum(consumer.get_watermark_offsets(one)[1] for one in mine)
    out = {"records": 0, "bytes": 0}
    wait_for_go(out)
    consumer.assign(mine)
    while out["records"] < count:
        messages = consumer.consume(10_000, 1.0)
        assert not messages or messages[0].error() is None, messages[0].error()
        out["records"] += len(messages)
        out["bytes"] += sum(map(len, messages))
    end(out)
    consumer.close()


def acknowledge(bootstrap: str, number: int, clients: int, rate: float, seconds: float) -> None:
    """One's own share of `rate` requests/s, on schedule, whatever becomes of those before."""
    due: dict[int, float] = {}
    took: list[float] = []
    requests = 0

    def count_requests(text: str) -> None:
        nonlocal requests
        brokers = json.loads(text)["brokers"].values()
        requests = max(requests, sum(one.get("req", {}).get("Produce", 0) for one in brokers))

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 0,
            "batch.num.messages": 1,
            "max.in.flight.requests.per.connection": 1000,
            "socket.nagle.disable": True,
            "statistics.interval.ms": 500,
            "stats_cb": count_requests,
            **QUIET,
        }
    )

    def delivered(error, message) -> None:
        assert error is None, error
        took.append(time.monotonic() - due.pop(int(message.value()[:12])))

    for _ in range(20):
        producer.produce(TOPIC, b"first", partition=number % PARTITIONS)
        producer.flush(30)
    out: dict = {}
    wait_for_go(out)
    step = clients / rate
    next_due = out["start"] + step * number / clients
    sent = 0
    while next_due < out["start"] + seconds:
        wait = next_due - time.monotonic()
        if wait > 0:
            producer.poll(min(wait, 0.01))
            continue
        due[sent] = next_due
        producer.produce(
            TOPIC, b"%012d" % sent + bytes(88), partition=number % PARTITIONS, on_delivery=delivered
        )
        sent += 1
        next_due += step
    producer.flush(60)
    producer.poll(0.6)  # the last statistics
    assert len(took) == sent
    out.update(records=sent, bytes=sent * 100, took=took, requests=requests - 20)
    end(out)


CLIENTS = {"produce": produce, "fetch": fetch, "acknowledge": acknowledge}


# --- the broker, and runs --------------------------------------------------------------------------------


class Server:
    """A broker on a fresh root, and what it uses."""

    def __init__(self, parent: str, profile: str | None) -> None:
        self.root = tempfile.mkdtemp(dir=parent, prefix="bench-broker-")
        words = (
            ["-m", "sparklog_server"]
            if profile is None
            else ["-m", "cProfile", "-o", profile, "-m", "sparklog_server"]
        )
        self.process = subprocess.Popen(
            [sys.executable, *words, "--root", self.root, "--listeners", "PLAINTEXT://127.0.0.1:0",
             "--override", f"num.partitions={PARTITIONS}"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.bootstrap = self.process.stdout.readline().strip().rpartition("//")[2]
        assert self.bootstrap, f"the broker ended with exit code {self.process.wait(10)}"
        self._usage = psutil.Process(self.process.pid)

    def cpu(self) -> float:
        times = self._usage.cpu_times()
        return times.user + times.system

    def rss_mb(self) -> float:
        return self._usage.memory_info().rss / MB

    def close(self) -> None:
        self.process.terminate()
        with self.process:
            self.process.wait(60)
        shutil.rmtree(self.root)


def steal() -> float:
    return getattr(psutil.cpu_times(), "steal", 0.0)


def run(server: Server, clients: int, role: str, *words: object) -> dict:
    """Clients of one kind, started together."""
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--client", role, server.bootstrap, str(number), str(clients)]
            + [str(word) for word in words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number in range(clients)
    ]  # fmt: skip
    for one in processes:
        assert one.stdout is not None
        assert one.stdout.readline(), f"{role}: the client ended"
    cpu, stolen = server.cpu(), steal()
    for one in processes:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    results = []
    for one in processes:
        text, _ = one.communicate(timeout=300)
        assert one.returncode == 0, role
        results.append(json.loads(text.splitlines()[-1]))
    cpu = server.cpu() - cpu
    seconds = max(one["end"] for one in results) - min(one["start"] for one in results)
    size = sum(one["bytes"] for one in results)
    return {
        "seconds": seconds,
        "records": sum(one["records"] for one in results),
        "bytes": size,
        "broker_cpu": cpu,
        "clients_cpu": sum(one["cpu"] for one in results),
        "steal": steal() - stolen,
        "took": [took for one in results for took in one.get("took", ())],
        "requests": sum(one.get("requests", 0) for one in results),
    }


def throughput_row(what: str, clients: int, size: int, codec: str, found: dict, server: Server) -> dict:
    megabytes = found["bytes"] / MB
    return {
        "what": what,
        "clients": clients,
        "record_bytes": size,
        "codec": codec,
        "mb_per_s": round(megabytes / found["seconds"]),
        "records_per_s": round(found["records"] / found["seconds"]),
        "broker_cpu_ms_per_mb": round(found["broker_cpu"] / megabytes * 1000, 2),
        "clients_cpu_ms_per_mb": round(found["clients_cpu"] / megabytes * 1000, 2),
        "broker_rss_mb": round(server.rss_mb()),
        "load": round(os.getloadavg()[0], 1),
        "steal_s": round(found["steal"], 1),
    }


def bench_throughput(options, size: int, codec: str, clients: int) -> None:
    server = Server(options.root, options.profile)
    try:
        found = run(server, clients, "produce", size, codec, options.seconds)
        print(json.dumps(throughput_row("produce", clients, size, codec, found, server)), flush=True)
        found = run(server, clients, "fetch")
        print(json.dumps(throughput_row("fetch", clients, size, codec, found, server)), flush=True)
    finally:
        server.close()


def bench_latency(options, rate: float) -> None:
    server = Server(options.root, options.profile)
    clients = 1 if rate < 100 else 4
    try:
        run(server, clients, "acknowledge", rate, 1)  # the machine's first use of everything
        found = run(server, clients, "acknowledge", rate, options.seconds)
        took = np.array(found["took"]) * 1000
        row = {
            "acknowledge_at_requests_per_s": round(rate),
            "records_per_request": round(found["records"] / max(1, found["requests"]), 2),
            "p50_ms": round(float(np.percentile(took, 50)), 1),
            "p99_ms": round(float(np.percentile(took, 99)), 1),
            "max_ms": round(float(took.max()), 1),
            "broker_cpu_ms_per_request": round(found["broker_cpu"] / found["records"] * 1000, 2),
            "clients": clients,
            "load": round(os.getloadavg()[0], 1),
            **fsync_ms(server.root),
        }
        print(json.dumps(row), flush=True)
    finally:
        server.close()


def fsync_ms(directory: str) -> dict[str, float]:
    """What the disk takes for 4 KiB, now."""
    took = []
    path = Path(directory) / "fsync-probe"
    with path.open("wb") as file:
        for _ in range(300):
            begin = time.perf_counter()
            file.write(bytes(4096))
            file.flush()
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - begin) * 1000)
    path.unlink()
    p50, p99 = np.percentile(took, [50, 99])
    return {"fsync_p50_ms": round(float(p50), 2), "fsync_p99_ms": round(float(p99), 2)}


def bench_disk(directory: str) -> None:
    """Like dd conv=fsync: 1 MiB at a time, an fsync after every 8."""
    path = Path(directory) / "disk-probe"
    block, count = os.urandom(1 << 20), 512
    begin = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for number in range(count):
            file.write(block)
            if number % 8 == 7:
                os.fsync(file.fileno())
    seconds = time.perf_counter() - begin
    path.unlink()
    row = {"disk_write_and_fsync_mb_per_s": round(count * (1 << 20) / MB / seconds), **fsync_ms(directory)}
    print(json.dumps(row), flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--client"]:
        role, bootstrap, *words = sys.argv[2:]
        CLIENTS[role](bootstrap, *(word if word in {"none", "lz4"} else _number(word) for word in words))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", default=".", help="a directory on the file system to measure")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--quick", action="store_true", help="two seconds of everything")
    parser.add_argument("--clients", default="1,8")
    parser.add_argument("--sizes", default="100,1000")
    parser.add_argument("--codecs", default="none,lz4")
    parser.add_argument("--rates", default="20,1000")
    parser.add_argument("--profile", help="profile the broker with cProfile into this file")
    options = parser.parse_args()
    if options.quick:
        options.seconds = 2.0
    bench_disk(options.root)
    for rate in filter(None, options.rates.split(",")):
        bench_latency(options, float(rate))
    for size in filter(None, options.sizes.split(",")):
        for codec in options.codecs.split(","):
            for clients in options.clients.split(","):
                bench_throughput(options, int(size), codec, int(clients))


def _number(word: str) -> float:
    return float(word) if "." in word else int(word)


if __name__ == "__main__":
    main()
