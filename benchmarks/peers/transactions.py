"""f: transactions of librdkafka's producer against our broker and Kafka's, with its default settings.

    idempotent              as fast as it can
    idempotent, flushed     the same, waiting for the acknowledgement of each 1,000 records
    transactions            1,000 records each; a part of them waits before it ends, so that the end is
                            measured without the records: from EndTxn to its answer
    large                   one transaction of very many records; its end, and the broker's memory meanwhile

Several producers at once (`--producers`) say what a broker takes, one says how long each step waits.
"""

import contextlib
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from benchmarks.peers.fetching import Jars
from benchmarks.peers.kafka_process import kafka_broker
from benchmarks.peers.results import Results
from benchmarks.peers.sides import create_kafka_topic, sparklog_broker
from benchmarks.peers.usage import MB, Usage

RECORDS_EACH = 1_000
VALUE = b"v" * 100
WAIT_SECONDS = 120
Broker = tuple[str, str, int]  # name, bootstrap, pid


@dataclass
class Load:
    """One producer's work, in a thread of its own."""

    bootstrap: str
    topic: str
    records: int
    kind: str
    number: int
    ends_ms: list[float] = field(default_factory=list)

    def run(self) -> None:
        settings: dict[str, Any] = {"bootstrap.servers": self.bootstrap, "enable.idempotence": True}
        if self.kind == "transactions":
            settings["transactional.id"] = f"{self.topic}-{self.number}"
        producer = Producer({**settings, "queue.buffering.max.messages": 1_000_000})
        if self.kind == "transactions":
            producer.init_transactions(WAIT_SECONDS)
        for first in range(0, self.records, RECORDS_EACH):
            if self.kind == "transactions":
                producer.begin_transaction()
            _send(producer, self.topic, RECORDS_EACH)
            if self.kind == "flushed":
                assert producer.flush(WAIT_SECONDS) == 0
            elif self.kind == "transactions":
                self._end(producer, apart=first // RECORDS_EACH % 4 == 0)
        assert producer.flush(WAIT_SECONDS) == 0

    def _end(self, producer: Producer, *, apart: bool) -> None:
        if apart:
            assert producer.flush(WAIT_SECONDS) == 0
        begin = time.perf_counter()
        producer.commit_transaction(WAIT_SECONDS)
        if apart:
            self.ends_ms.append((time.perf_counter() - begin) * 1000)


def run(
    jars: Jars, parent: Path, results: Results, *, records: int, producers: tuple[int, ...], repetitions: int
) -> None:
    """Both brokers run all the time, idle while the other works."""
    with contextlib.ExitStack() as stack:
        ours, our_pid, _root = stack.enter_context(sparklog_broker(parent))
        kafka = stack.enter_context(kafka_broker(jars, parent))
        brokers = [("sparklog", ours, our_pid), ("kafka", kafka.bootstrap, kafka.pid)]
        for turn in range(-1, repetitions):  # the first one warms up
            kept = Results(quiet=True) if turn < 0 else results
            for broker in brokers if turn % 2 == 0 else brokers[::-1]:
                for count in producers:
                    for kind in ("idempotent", "flushed", "transactions"):
                        _small(broker, kind, f"txn-{turn}-{count}-{kind}", records, count, kept)
                _large(broker, f"large-{turn}", 1_000_000 if turn >= 0 else 100_000, kept)


def _small(broker: Broker, kind: str, topic: str, records: int, producers: int, results: Results) -> None:
    name, bootstrap, pid = broker
    create_kafka_topic(bootstrap, topic)
    share = records // producers // RECORDS_EACH * RECORDS_EACH
    loads = [Load(bootstrap, topic, share, kind, number) for number in range(producers)]
    with Usage({"broker": [pid]}) as usage, ThreadPoolExecutor(producers) as pool:
        begin = time.perf_counter()
        for working in [pool.submit(load.run) for load in loads]:
            working.result()
        seconds = time.perf_counter() - begin
    sent = share * producers
    figures: dict[str, float] = {"records_per_s": round(sent / seconds), "seconds": round(seconds, 2)}
    figures["mb_per_s"] = round(sent * len(VALUE) / MB / seconds, 2)
    ends = sorted(one for load in loads for one in load.ends_ms)
    if ends:
        figures["end_p50_ms"] = round(statistics.median(ends), 1)
        figures["end_p99_ms"] = round(ends[int(len(ends) * 0.99)], 1)
    work = f"{producers} producers, {sent} x {len(VALUE)} B, {kind}"
    results.add("transactions", work, name, **figures, **usage.row())


def _large(broker: Broker, topic: str, records: int, results: Results) -> None:
    name, bootstrap, pid = broker
    create_kafka_topic(bootstrap, topic)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "linger.ms": 5})
    producer.init_transactions(WAIT_SECONDS)
    with Usage({"broker": [pid]}) as usage:
        begin = time.perf_counter()
        producer.begin_transaction()
        _send(producer, topic, records)
        assert producer.flush(WAIT_SECONDS) == 0
        seconds = time.perf_counter() - begin
        begin = time.perf_counter()
        producer.commit_transaction(WAIT_SECONDS)
        end_ms = (time.perf_counter() - begin) * 1000
    figures = {"mb_per_s": round(records * len(VALUE) / MB / seconds, 2), "end_p50_ms": round(end_ms, 1)}
    results.add("transactions", f"one of {records} x {len(VALUE)} B", name, **figures, **usage.row())


def _send(producer: Producer, topic: str, records: int) -> None:
    for number in range(records):
        while True:
            try:
                producer.produce(topic, VALUE, key=b"%d" % number)
            except BufferError:
                producer.poll(0.1)
            else:
                break
        if number % 1_000 == 0:
            producer.poll(0)
