"""Kafka's own cleaner and ours: of one history, with cleanings at the same places, the same records stay.

Kafka never cleans the active segment, so each round ends with a record that is two hours later than the
others: it begins a segment (segment.ms is an hour), and everything before it is cleaned. Ours leaves the
newest extent. When Kafka has done its round it says so in its checkpoint.
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.peers.fetching import Jars
from benchmarks.peers.kafka_process import KafkaProcess, kafka_broker
from benchmarks.peers.kafka_tools import run_tool
from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.maintenance import CompactionLimits, MergeLimits, compact, optimize
from sparklog.maintenance.choose import choose_compactions
from sparklog.maintenance.compaction import publish_compaction, run_compaction
from sparklog.metadata import MetadataLog
from sparklog.storage import MemoryStore

HOUR_MS = 3_600_000
ROUNDS = 4
CLEANED_SECONDS = 60
CODECS = ["none", "gzip", "lz4"]
Row = tuple[int, bytes | None, bytes | None, int]


@pytest.fixture(scope="module")
def kafka(kafka_jars: Jars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaProcess]:
    settings = {"log.cleaner.backoff.ms": "100", "log.initial.task.delay.ms": "0"}
    with kafka_broker(kafka_jars, tmp_path_factory.mktemp("kafka"), settings) as broker:
        yield broker


def configs(retention_ms: int) -> dict[str, str]:
    return {
        "cleanup.policy": "compact",
        "delete.retention.ms": str(retention_ms),
        "min.cleanable.dirty.ratio": "0",
        "segment.ms": str(HOUR_MS),
        "message.timestamp.after.max.ms": str(1_000 * HOUR_MS),
    }


class Both:
    """One topic, in Kafka and here."""

    def __init__(self, kafka: KafkaProcess, name: str, retention_ms: int) -> None:
        self.name, self._kafka = name, kafka
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        for made in admin.create_topics([NewTopic(name, 1, 1, config=configs(retention_ms))]).values():
            made.result(10)
        clock = ManualClock()  # at the first record: the newest extent is never older than segment.ms
        store = MemoryStore("peers", clock=clock)
        self.log = SparkLog(store, MetadataLog.open(store, clock, create=True), clock)
        self.log.create_topic(name, 1, configs(retention_ms))
        self.end = 0

    def append(self, rows: list[tuple[bytes, bytes | None, int]], codec: str) -> None:
        producer = Producer(
            {"bootstrap.servers": self._kafka.bootstrap, "compression.type": codec, "linger.ms": 50}
        )
        offsets: list[int | None] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            assert error is None
            offsets.append(message.offset())

        for key, value, at in rows:
            producer.produce(
                self.name, key=key, value=value, partition=0, timestamp=at, on_delivery=delivered
            )
        assert producer.flush(30) == 0
        assert offsets == list(range(self.end, self.end + len(rows)))
        table = pa.table(
            {
                "key": pa.array([key for key, _, _ in rows], pa.binary()),
                "value": pa.array([value for _, value, _ in rows], pa.binary()),
                "timestamp": pa.array([at for _, _, at in rows], pa.int64()),
            }
        )
        self.log.append(self.name, table, partition=0, compression_type=codec)
        self.end += len(rows)

    def wait_until_kafka_has_cleaned(self) -> None:
        """Everything but the last record."""
        checkpoint = Path(self._kafka.log_dir) / "cleaner-offset-checkpoint"
        wanted = f"{self.name} 0 {self.end - 1}"
        limit = time.monotonic() + CLEANED_SECONDS
        while not (checkpoint.exists() and wanted in checkpoint.read_text().splitlines()):
            assert time.monotonic() < limit, checkpoint.read_text() + self._kafka.output()[-2000:]
            time.sleep(0.05)

    def clean(self) -> int:
        """One round, as Kafka's: `compact` would do another one for tombstones that may go at once. Returns
        how many tombstones went.
        """
        limits = CompactionLimits(only_due=True)
        (work,) = choose_compactions(self.log.refresh(), self.log.clock.now_ms(), limits)
        result = run_compaction(self.log.store, self.log.clock, work)
        assert publish_compaction(self.log.metadata, result)
        return result.counts.tombstones_removed

    def theirs(self) -> list[Row]:
        consumer = Consumer({"bootstrap.servers": self._kafka.bootstrap, "group.id": self.name})
        consumer.assign([TopicPartition(self.name, 0, 0)])
        found: list[Row] = []
        while not found or found[-1][0] < self.end - 1:
            message = consumer.poll(10)
            assert message is not None
            assert message.error() is None
            offset = message.offset()
            assert offset is not None
            found.append((offset, message.key(), message.value(), message.timestamp()[1]))
        consumer.close()
        return found

    def ours(self) -> list[Row]:
        self.log.refresh()
        table = self.log.read(self.name, 0, 0)
        times = table["timestamp"].cast(pa.int64()).to_pylist()
        columns = (table[name].to_pylist() for name in ("offset", "key", "value"))
        return list(zip(*columns, times, strict=True))


@pytest.mark.parametrize("retention_ms", [0, 24 * HOUR_MS])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_same_records_survive(kafka: KafkaProcess, seed: int, retention_ms: int) -> None:
    dice = random.Random(seed)
    both = Both(kafka, f"cleaned-{seed}-{retention_ms}", retention_ms)
    at_ms = 1_700_000_000_000
    removed = 0
    for _ in range(ROUNDS):
        for _ in range(dice.randint(1, 4)):
            rows: list[tuple[bytes, bytes | None, int]] = [
                (
                    b"k%d" % dice.randrange(40),
                    None if dice.random() < 0.3 else b"v" * dice.choice([0, 5, 300, 9_000]),
                    at_ms + dice.randrange(60_000),
                )
                for _ in range(dice.randint(1, 40))
            ]
            both.append(rows, dice.choice(CODECS))
        both.append([(b"last", b"1", at_ms + 2 * HOUR_MS)], "none")
        at_ms += 4 * HOUR_MS
        both.wait_until_kafka_has_cleaned()
        if dice.random() < 0.5:
            optimize(both.log.metadata, both.log.clock, limits=MergeLimits(fan_in=30))
        removed += both.clean()
        assert both.ours() == both.theirs()
    assert (removed > 0) == (retention_ms == 0)


def test_kafka_dump_log_reads_what_is_left(kafka_jars: Jars, tmp_path: Path) -> None:
    """Batches with gaps, a delete horizon, and no records at all; their records' timestamps."""
    clock = ManualClock()
    store = MemoryStore("peers", clock=clock)
    log = SparkLog(store, MetadataLog.open(store, clock, create=True), clock)
    log.create_topic("t", 1, {"cleanup.policy": "compact", "delete.retention.ms": "60000"})
    now = clock.now_ms()
    for rows in (
        [(b"a", b"1"), (b"b", b"x" * 9_000), (b"a", b"2"), (b"c", b"3")],
        [(b"c", None), (b"d", b"4")],
        [(b"e", None)],
    ):
        keys, values = zip(*rows, strict=True)
        table = {"key": keys, "value": pa.array(values, pa.binary()), "timestamp": [now + 7] * len(rows)}
        log.append("t", pa.table(table), compression_type="gzip")
    clock.advance_ms(50)
    compact(log.metadata, clock)
    horizon = clock.now_ms() + 60_000
    (extent,) = log.refresh().partition("t", 0).extents
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(store.read(extent.segment))
    words = ("--files", str(path), "--print-data-log")
    told = run_tool(kafka_jars, "kafka-dump-log", *words)
    assert f"deleteHorizonMs: OptionalLong[{horizon}]" in told
    records = [line for line in told.splitlines() if line.startswith("| offset:")]
    assert [line.split()[2] for line in records] == ["1", "2", "4", "5", "6"]
    assert all(f"CreateTime: {now + 7} " in line for line in records)
    assert "isvalid: true" in told
    assert "isvalid: false" not in told
