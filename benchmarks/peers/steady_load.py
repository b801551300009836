"""Produces records that are due on a schedule, and consumes their copies; the delays, as percentiles.

Open loop: a record counts from when it was due, so that a stall is charged for all that it kept waiting.
Records are handed over every 20 ms. sparklog's are appended without a broker, Kafka's by librdkafka.

    python -m benchmarks.peers.steady_load SIDE PLACE SOURCE SINK RATE SECONDS
"""

import json
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

import sparklog

STEP_SECONDS = 0.02
WARM_UP_SECONDS = 15  # of the query, whose code the JVM compiles meanwhile
POLL_SECONDS = 0.005
GRACE_SECONDS = 30
START_SECONDS = 90  # for the query to copy its first record
VALUE_BYTES = 100


def values(first: int, count: int, due_ns: int) -> list[bytes]:
    """Each starts with when it is due, and its number."""
    return [(b"%020d%012d" % (due_ns, n)).ljust(VALUE_BYTES, b".") for n in range(first, first + count)]


def append_sparklog(place: str, topic: str, batches: Iterator[list[bytes]]) -> None:
    with sparklog.open(place, create=False) as log:
        for batch in batches:
            log.append(topic, pa.table({"key": pa.array([one[20:32] for one in batch]), "value": batch}))


def append_kafka(place: str, topic: str, batches: Iterator[list[bytes]]) -> None:
    import confluent_kafka

    producer = confluent_kafka.Producer({"bootstrap.servers": place, "acks": "all", "log_level": 0})
    for batch in batches:
        producer.produce_batch(topic, [{"key": one[20:32], "value": one} for one in batch])
        producer.poll(0)
    producer.flush(GRACE_SECONDS)


def consume_sparklog(place: str, topic: str) -> Iterator[list[bytes]]:
    with sparklog.open(place, create=False) as log:
        positions = dict.fromkeys(range(log.partition_count(topic)), 0)
        while True:
            state = log.refresh().topic(topic).partitions
            found: list[bytes] = []
            for partition, position in positions.items():
                end = state[partition].log_end_offset
                if end > position:
                    for arrow_batch in log.read_batches(topic, partition, position, end):
                        found += arrow_batch.column("value").to_pylist()
                    positions[partition] = end
            if not found:
                time.sleep(POLL_SECONDS)
            yield found


def consume_kafka(place: str, topic: str) -> Iterator[list[bytes]]:
    import confluent_kafka

    settings = {"bootstrap.servers": place, "group.id": "steady", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer({**settings, "log_level": 0, "enable.auto.commit": False})
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    consumer.assign([confluent_kafka.TopicPartition(topic, n, 0) for n in partitions])
    while True:
        yield [
            message.value() for message in consumer.consume(100_000, POLL_SECONDS) if message.error() is None
        ]


class Schedule:
    """The batches, each handed over when due. The first goes ahead: time starts when its copy is seen."""

    def __init__(self, rate: int, seconds: int) -> None:
        self.step = int(rate * STEP_SECONDS)
        self.steps = int((seconds + WARM_UP_SECONDS) / STEP_SECONDS)
        self.start_ns = 1 << 62
        self.copied = threading.Event()

    def __iter__(self) -> Iterator[list[bytes]]:
        yield values(0, self.step, 0)
        self.copied.wait()
        self.start_ns = time.time_ns()
        step_ns = int(STEP_SECONDS * 1e9)
        step = 0
        while step < self.steps:
            time.sleep(max(0.0, (self.start_ns + step * step_ns - time.time_ns()) / 1e9))
            # Who is late catches up at once.
            due = min(self.steps, (time.time_ns() - self.start_ns) // step_ns + 1)
            batches = [
                values(n * self.step, self.step, self.start_ns + n * step_ns) for n in range(step, due)
            ]
            yield [one for batch in batches for one in batch]
            step = due


def main() -> None:
    side, place, source, sink = sys.argv[1:5]
    schedule = Schedule(int(sys.argv[5]), int(sys.argv[6]))
    append = append_sparklog if side == "sparklog" else append_kafka
    consume = consume_sparklog if side == "sparklog" else consume_kafka
    producer = threading.Thread(target=append, args=(place, source, iter(schedule)), daemon=True)
    producer.start()
    total, seen = schedule.step * (schedule.steps + 1), 0
    delays: list[np.ndarray] = []
    end = time.monotonic() + START_SECONDS
    for batch in consume(place, sink):
        now_ns = time.time_ns()
        seen += len(batch)
        if seen >= schedule.step and not schedule.copied.is_set():
            schedule.copied.set()
            end = time.monotonic() + schedule.steps * STEP_SECONDS + GRACE_SECONDS
        warm_ns = schedule.start_ns + WARM_UP_SECONDS * 1_000_000_000
        due = np.array([int(one[:20]) for one in batch], np.int64)
        delays.append((now_ns - due[due >= warm_ns]) / 1e6)
        if seen >= total or time.monotonic() > end:
            break
    producer.join(GRACE_SECONDS)
    found = np.concatenate(delays)
    p50, p99 = np.percentile(found, [50, 99]) if len(found) else (0.0, 0.0)
    row = {"p99_ms": round(float(p99), 1), "p50_ms": round(float(p50), 1), "missing": total - seen}
    print(json.dumps(row))


if __name__ == "__main__":
    main()
