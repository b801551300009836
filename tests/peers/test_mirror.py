"""`sparklog mirror` from a real Apache Kafka: a million records, killed twice; transactions; groups."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import sparklog
from benchmarks.peers.fetching import Jars
from benchmarks.peers.kafka_process import kafka_broker
from sparklog.mirror.kafka_source import KafkaSource
from sparklog.spark.interpreter import worker_python
from tests.peers.killed import Killed

RECORDS, PARTITIONS = 1_000_000, 4
COLUMNS = ("key", "value", "timestamp", "headers")


@pytest.fixture(scope="module")
def bootstrap(kafka_jars: Jars) -> Iterator[str]:
    with kafka_broker(kafka_jars) as kafka:
        yield kafka.bootstrap


def create(bootstrap: str, topic: str, partitions: int, configs: dict[str, str] | None = None) -> None:
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    new = NewTopic(topic, partitions, 1, config=configs or {})
    client = AdminClient({"bootstrap.servers": bootstrap})  # kept until it has answered
    for future in client.create_topics([new]).values():
        future.result()


def mirror_command(bootstrap: str, root: Path, topic: str) -> list[str]:
    code = "from sparklog.cli.main import main; main()"
    words = ["mirror", "--root", str(root), "--from", bootstrap, "--topic", topic, "--output", "json"]
    return [sys.executable, "-c", code, *words]


def run_mirror(bootstrap: str, root: Path, topic: str) -> Any:
    done = subprocess.run(
        mirror_command(bootstrap, root, topic), capture_output=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def read_source(
    bootstrap: str, topic: str, partition: int
) -> tuple[list[pa.RecordBatch], npt.NDArray[np.int64]]:
    """All committed records of a partition, and their offsets."""
    source = KafkaSource(bootstrap, {})
    at = (topic, partition)
    start, _ = source.ranges([at])[at]
    source.assign({at: start})
    batches: list[pa.RecordBatch] = []
    offsets: list[npt.NDArray[np.int64]] = []
    reached: Any = {}
    while at not in reached:
        fetched = source.fetch(0.2)
        reached = fetched.reached
        if fetched.rows is not None:
            batches.append(fetched.rows)
            offsets.append(fetched.offsets[at])
    source.close()
    return batches, np.concatenate(offsets)


def columns_of(batches: list[pa.RecordBatch]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for rows in batches:
        for name in COLUMNS:
            absent = name not in rows.schema.names
            values = [None] * rows.num_rows if absent else rows.column(name).to_pylist()
            found[name] += [value or [] for value in values] if name == "headers" else values
    return found


def columns_here(log: sparklog.SparkLog, topic: str, partition: int) -> dict[str, list[Any]]:
    batches = list(log.read_batches(topic, partition, include_headers=True))
    found = columns_of(
        [rows.set_column(5, "timestamp", rows.column("timestamp").cast(pa.int64())) for rows in batches]
    )
    found["offset"] = [offset for rows in batches for offset in rows.column("offset").to_pylist()]
    return found


def test_a_million_records_killed_twice(bootstrap: str, tmp_path: Path) -> None:
    topic = "million"
    create(bootstrap, topic, PARTITIONS, {"segment.bytes": str(16 << 20)})
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "compression.type": "lz4",
            "queue.buffering.max.messages": RECORDS + 1,
            "queue.buffering.max.kbytes": 1 << 20,
        }
    )
    for number in range(RECORDS):
        headers: list[tuple[str, str | bytes | None]] = [("n", b"%d" % number)] if number % 10 == 0 else []
        producer.produce(topic, b"%0200d" % number, b"k%d" % number, headers=headers)
    assert producer.flush(120) == 0
    root = tmp_path / "log"
    done = 0
    for _ in range(2):

        def copied() -> int:
            if not (root / "meta.properties").exists():
                return 0
            with sparklog.open(root, create=False) as log:
                if topic not in log.topics():
                    return 0
                return sum(log.log_end_offset(topic, number) for number in range(PARTITIONS))

        with Killed(mirror_command(bootstrap, root, topic), tmp_path / "output") as process:
            process.until(lambda before=done: copied() > before, 60)  # type: ignore[misc]
        done = copied()
        assert 0 < done < RECORDS
    assert run_mirror(bootstrap, root, topic)["records"] == RECORDS - done
    with sparklog.open(root, create=False) as log:
        total = 0
        for partition in range(PARTITIONS):
            batches, offsets = read_source(bootstrap, topic, partition)
            found = columns_here(log, topic, partition)
            assert found.pop("offset") == offsets.tolist()
            assert found == columns_of(batches)
            total += len(offsets)
        assert total == RECORDS
    assert run_mirror(bootstrap, root, topic)["records"] == 0


def test_transactions_and_groups(bootstrap: str, tmp_path: Path) -> None:
    """Markers and aborted records have offsets only at the source: groups go on at the same record."""
    topic = "transacted"
    create(bootstrap, topic, 1)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "mirrored"})
    producer.init_transactions()
    for number in range(300):
        producer.begin_transaction()
        for part in range(7):
            producer.produce(topic, b"%d-%d" % (number, part))
        producer.flush()
        (producer.abort_transaction if number % 5 == 2 else producer.commit_transaction)()
    _, offsets = read_source(bootstrap, topic, 0)
    assert len(offsets) == 240 * 7
    end = 300 * 8
    positions = [0, 1, 6, 7, 8, 9, 17, 500, 1111, 2000, end - 1, end]
    for position in positions:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"group-{position}"})
        consumer.commit(offsets=[TopicPartition(topic, 0, position)], asynchronous=False)
        consumer.close()
    root = tmp_path / "log"
    result = run_mirror(bootstrap, root, topic)
    assert result["records"] == len(offsets)
    with sparklog.open(root, create=False) as log:
        for position in positions:
            expected = int((offsets < position).sum())
            assert log.committed_offsets(f"group-{position}") == {(topic, 0): expected}, position
        batches, _ = read_source(bootstrap, topic, 0)
        assert columns_here(log, topic, 0)["value"] == columns_of(batches)["value"]


def test_settings_and_compacted_topics(bootstrap: str, tmp_path: Path) -> None:
    create(bootstrap, "compacted", 2, {"cleanup.policy": "compact", "remote.storage.enable": "false"})
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(100):
        producer.produce("compacted", None if number % 7 == 0 else b"%d" % number, b"k%d" % (number % 5))
    assert producer.flush(60) == 0
    root = tmp_path / "log"
    (plan,) = run_mirror(bootstrap, root, "compacted")["topics"]
    assert plan["configs"] == {"cleanup.policy": "compact"}
    assert [*plan["left_out"]] == ["remote.storage.enable"]
    with sparklog.open(root, create=False) as log:
        for partition in (0, 1):
            batches, offsets = read_source(bootstrap, "compacted", partition)
            found = columns_here(log, "compacted", partition)
            assert found.pop("offset") == offsets.tolist()
            assert found == columns_of(batches)


def test_the_recipe_for_spark_copies_the_same(bootstrap: str, connector_jars: Jars, tmp_path: Path) -> None:
    """Each partition in its order; a repeated run changes nothing."""
    create(bootstrap, "orders", 3)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for number in range(20_000):
        producer.produce("orders", b"%d" % number, b"k%d" % number, headers=[("n", b"%d" % number)])
    assert producer.flush(60) == 0
    page = (Path(__file__).parents[2] / "docs" / "migrate-from-kafka.md").read_text()
    recipe = page.split("## Copying topics")[1].split("```\n")[1]
    root = tmp_path / "log"
    with sparklog.open(root) as log:
        log.create_topic("orders", 3)
    session = (
        "from pyspark.sql import SparkSession\n"
        "builder = SparkSession.builder.master('local[2]').config('spark.ui.enabled', 'false')\n"
        f"spark = builder.config('spark.jars', {','.join(map(str, connector_jars.files))!r}).getOrCreate()\n"
        "import sparklog\nsparklog.register(spark)\n"
    )
    code = recipe.replace("kafka:9092", bootstrap).replace("/data/log", str(root))
    job = tmp_path / "job.py"
    job.write_text(f"{session}{code}{code}spark.stop()\n")
    environment = {**os.environ, "PYSPARK_PYTHON": worker_python(), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, str(job)], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    with sparklog.open(root, create=False) as log:
        for partition in range(3):
            batches, offsets = read_source(bootstrap, "orders", partition)
            found = columns_here(log, "orders", partition)
            assert found.pop("offset") == offsets.tolist()
            assert found == columns_of(batches)
