"""g: a share group (KIP-932) takes a topic from its beginning: Kafka's perf test, against both brokers."""

import contextlib
import subprocess
from pathlib import Path
from typing import Any

import confluent_kafka.admin as kafka_admin
from confluent_kafka import Producer

from benchmarks.peers.fetching import Jars
from benchmarks.peers.kafka_process import kafka_broker
from benchmarks.peers.kafka_tools import command
from benchmarks.peers.results import Results
from benchmarks.peers.sides import create_kafka_topic, sparklog_broker
from benchmarks.peers.usage import MB, Usage

VALUE = b"v" * 100
TOOL_SECONDS = 600
admin: Any = kafka_admin  # exports without type hints
Broker = tuple[str, str, int]  # name, bootstrap, pid


def run(
    jars: Jars, parent: Path, results: Results, *, records: int, members: tuple[int, ...], repetitions: int
) -> None:
    """Both brokers run all the time, idle while the other works; the first turn warms up."""
    with contextlib.ExitStack() as stack:
        ours, our_pid, _root = stack.enter_context(sparklog_broker(parent))
        kafka = stack.enter_context(kafka_broker(jars, parent))
        brokers = [("sparklog", ours, our_pid), ("kafka", kafka.bootstrap, kafka.pid)]
        for turn in range(-1, repetitions):
            kept = Results(quiet=True) if turn < 0 else results
            for broker in brokers if turn % 2 == 0 else brokers[::-1]:
                for count in members:
                    _take(jars, broker, f"queue-{turn}-{count}", records, count, kept)


def _take(jars: Jars, broker: Broker, topic: str, records: int, members: int, results: Results) -> None:
    name, bootstrap, pid = broker
    _fill(bootstrap, topic, records)
    words = ("--bootstrap-server", bootstrap, "--topic", topic, "--group", topic, "--timeout", "60000")
    load = ("--num-records", str(records), "--threads", str(members))
    with (
        subprocess.Popen(
            command(jars, "kafka-share-consumer-perf-test", *words, *load),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
        Usage({"broker": [pid], "client": [process.pid]}) as usage,
    ):
        text, _ = process.communicate(timeout=TOOL_SECONDS)
    try:
        line = [one for one in text.splitlines() if one[:1].isdigit()][-1]  # warnings may follow
        _megabytes, mebibytes_per_s, per_s, taken = map(float, line.split(", ")[2:6])
    except (IndexError, ValueError):
        results.note(f"{name}: kafka-share-consumer-perf-test: {text.strip()[-300:]}")
        return
    work = f"{records} x {len(VALUE)} B, {members} members"
    values: dict[str, Any] = {"taken": round(taken), **usage.row()}
    results.add(
        "queue", work, name, mb_per_s=round(mebibytes_per_s * (1 << 20) / MB, 1), records_per_s=round(per_s),
        **values,
    )  # fmt: skip


def _fill(bootstrap: str, topic: str, records: int) -> None:
    """Before the group begins: it reads from the beginning."""
    create_kafka_topic(bootstrap, topic)
    set_it = admin.AlterConfigOpType.SET
    entry = admin.ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=set_it)
    group = admin.ConfigResource(admin.ConfigResource.Type.GROUP, topic, incremental_configs=[entry])
    client = admin.AdminClient({"bootstrap.servers": bootstrap})
    for done in client.incremental_alter_configs([group]).values():
        done.result()
    producer = Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.messages": 2_000_000})
    for _ in range(records):
        producer.produce(topic, VALUE)
        producer.poll(0)
    assert producer.flush(TOOL_SECONDS) == 0
