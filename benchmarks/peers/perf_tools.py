"""e: Kafka's own perf tests against our broker and against Kafka's, with the tools' default settings."""

import contextlib
import re
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.peers.fetching import Jars
from benchmarks.peers.kafka_process import kafka_broker
from benchmarks.peers.kafka_tools import command
from benchmarks.peers.results import Results
from benchmarks.peers.sides import allocated_bytes, create_kafka_topic, sparklog_broker
from benchmarks.peers.usage import MB, Usage
from benchmarks.peers.warming import MOST_TURNS, warm_up

TOOL_SECONDS = 600
WARM_UP_BYTES = 200 * MB
FAILED = "exit code "
PRODUCED = re.compile(r"([\d.]+) ms avg latency.* ([\d.]+) ms 50th.* ([\d.]+) ms 99th")


def run(
    jars: Jars,
    parent: Path,
    results: Results,
    *,
    sizes: dict[int, int],
    codecs: list[str],
    repetitions: int,
    warm_turns: int = MOST_TURNS,
) -> None:
    """Both brokers run all the time, idle while the other works; both are warmed up until they are level.

    What a run leaves to be merged is merged before the next one, and has rows of its own ("upkeep"): the
    broker would do it as soon as it is idle, and that is when Kafka's turn comes.
    """
    with contextlib.ExitStack() as stack:
        ours, our_pid, root = stack.enter_context(sparklog_broker(parent))
        kafka = stack.enter_context(kafka_broker(jars, parent))
        brokers = [
            ("sparklog", ours, our_pid, root, {}),
            ("kafka", kafka.bootstrap, kafka.pid, kafka.log_dir, {}),
            ("kafka flush.messages=1", kafka.bootstrap, kafka.pid, kafka.log_dir, {"flush.messages": "1"}),
        ]
        shapes = [(size, records, codec) for size, records in sizes.items() for codec in codecs]

        def warm(turn: int, position: int) -> float | None:
            """Each shape once: what is compiled for one codec is no use for another."""
            found = [
                _both(
                    jars,
                    brokers[position],
                    f"warm-up-{turn}-{position}-{number}",
                    (size, min(records, WARM_UP_BYTES // size), codec),
                    None,
                )
                for number, (size, records, codec) in enumerate(shapes)
            ]
            return None if None in found else sum(cost for cost in found if cost is not None)

        warm_up("brokers", [broker[0] for broker in brokers], warm, results, most=warm_turns)
        for number, shape in enumerate(shapes):
            for turn in range(repetitions):
                for position, broker in enumerate(brokers if turn % 2 == 0 else brokers[::-1]):
                    _both(jars, broker, f"perf-{number}-{turn}-{position}", shape, results)
                    if broker[0] == "sparklog":
                        _keep_up(root, shape, results)


def _keep_up(root: Path, shape: tuple[int, int, str], results: Results) -> None:
    """Do what is due, as the broker would."""
    size, records, codec = shape
    words = [str(Path(sys.executable).parent / "sparklog"), "maintain", "--root", str(root)]
    start = time.monotonic()
    text, usage = _measured(words)
    if text.splitlines()[-1:] and text.splitlines()[-1].startswith(FAILED):
        results.note(f"sparklog maintain: {text.strip()[-300:]}")
    figures = {"seconds": round(time.monotonic() - start, 2), **usage.row()}
    results.add("upkeep", f"{records} x {size} B, {codec}", "sparklog", **figures)


def _both(
    jars: Jars, broker: tuple[str, str, int, Path, dict[str, str]], topic: str,
    shape: tuple[int, int, str], kept: Results | None,
) -> float | None:  # fmt: skip
    """Produce and consume; the broker's CPU seconds for both, None if that failed. Not kept: a warm-up."""
    name, bootstrap, pid, storage, configs = broker
    size, records, codec = shape
    create_kafka_topic(bootstrap, topic, configs=configs)
    before = allocated_bytes(storage)
    words = ("--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(records))
    load = ("--record-size", str(size), "--throughput", "-1")
    settings = ("--command-property", f"compression.type={codec}")
    megabytes = records * size / MB
    work = f"{records} x {size} B, {codec}"
    results = kept or Results(quiet=True)
    text, usage = _measured(command(jars, "kafka-producer-perf-test", *words, *load, *settings), pid)
    cpu = usage.cpu_seconds("broker")
    last = text.splitlines()[-1] if text else ""
    rate, latency = re.search(r"([\d.]+) records/sec", last), PRODUCED.search(last)
    if rate is None or latency is None:
        results.note(f"{name}: kafka-producer-perf-test: {text.strip()[-300:]}")
        return None
    values = {
        "mb_per_s": round(float(rate[1]) * size / MB, 1),
        "records_per_s": round(float(rate[1])),
        "latency_p50_ms": float(latency[2]),
        "latency_p99_ms": float(latency[3]),
        **usage.row(),
        "disk_per_input_byte": round((allocated_bytes(storage) - before) / MB / megabytes, 3),
    }
    results.add("produce", work, name, **values)
    if configs:
        return cpu
    text, usage = _measured(command(jars, "kafka-consumer-perf-test", *words, "--timeout", "60000"), pid)
    try:
        figures = text.splitlines()[-1].split(", ")
        mb_per_s = float(figures[8]) * (1 << 20) / MB  # fetch.MB.sec: without joining the group
        per_s = float(figures[9])
    except (IndexError, ValueError):
        results.note(f"{name}: kafka-consumer-perf-test: {text.strip()[-300:]}")
        return None
    results.add("consume", work, name, mb_per_s=round(mb_per_s, 1), records_per_s=round(per_s), **usage.row())
    return cpu + usage.cpu_seconds("broker")


def _measured(words: list[str], *broker_pids: int) -> tuple[str, Usage]:
    with (
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process,
        Usage({"broker": broker_pids, "client": [process.pid]}) as usage,
    ):
        text, _ = process.communicate(timeout=TOOL_SECONDS)
    if process.returncode:
        text = f"{text.rstrip()}\n{FAILED}{process.returncode}"
    return text, usage
