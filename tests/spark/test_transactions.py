"""Transactions beside Spark: reads and micro-batches see them whole, and a foreachBatch may end in one."""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

import sparklog
from sparklog.client import SparkLog
from sparklog.client.publish import AppendResult
from sparklog.errors import SparklogError
from sparklog.spark.features import ADMISSION_CONTROL
from tests.spark.conftest import Read, Until, needs
from tests.spark.test_stream_reader_queries import rows, values

pytestmark = pytest.mark.spark
PARTITIONS = {"a": 3, "b": 2}
PLACES = {(topic, partition) for topic, count in PARTITIONS.items() for partition in range(count)}
Place = tuple[str, int]


@pytest.fixture
def log(root: str) -> SparkLog:
    opened = sparklog.open(root, create=True)
    for topic, partitions in PARTITIONS.items():
        opened.create_topic(topic, partitions)
    return opened


class WorkError(Exception):
    pass


class Writer(threading.Thread):
    """Writes its number to each partition, in one transaction after the other; every fourth is aborted."""

    def __init__(self, root: str) -> None:
        super().__init__(daemon=True)
        self.log = sparklog.open(root, create=False)
        self.committed: list[int] = []
        self.is_over = threading.Event()

    def run(self) -> None:
        txn = self.log.transaction("numbers")
        for number in range(2_000):
            if self.is_over.is_set():
                return
            with contextlib.suppress(WorkError), txn:
                for topic, partitions in PARTITIONS.items():
                    places = pa.array(range(partitions), pa.int32())
                    table = pa.table({"value": [str(number)] * partitions, "partition": places})
                    txn.append(topic, table)
                    if number % 3 == 0:
                        txn.flush()
                if number % 4 == 3:
                    raise WorkError
            if number % 4 != 3:
                self.committed.append(number)


@pytest.fixture
def writer(log: SparkLog, root: str) -> Iterator[Writer]:
    thread = Writer(root)
    yield thread
    thread.is_over.set()
    if thread.ident is not None:
        thread.join(60)


def by_number(df: DataFrame) -> dict[int, set[Place]]:
    """Where each number is; no place has one twice."""
    found = Counter((int(row.value), row.topic, row.partition) for row in df.collect())
    assert set(found.values()) <= {1}
    places: dict[int, set[Place]] = {}
    for number, topic, partition in found:
        places.setdefault(number, set()).add((topic, partition))
    return places


def test_readers_see_whole_transactions(
    spark: SparkSession, log: SparkLog, root: str, tmp_path: Path, read: Read, until: Until, writer: Writer
) -> None:
    seen: list[dict[int, set[Place]]] = []
    options = {"subscribe": "a,b", "startingOffsets": "earliest"}
    reader = spark.readStream.format("sparklog").options(**options).load(root)
    sink = reader.writeStream.foreachBatch(lambda df, _: seen.append(by_number(df)))
    query = sink.option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        writer.start()
        until(lambda: len([one for one in seen if one]) >= 2, query)
        batches = [by_number(read(subscribe="a,b")) for _ in range(3)]
        until(lambda: len([one for one in seen if one]) >= 5, query)
        writer.is_over.set()
        writer.join(60)
        query.processAllAvailable()
    finally:
        query.stop()
    assert [number for one in seen for number in sorted(one)] == writer.committed
    for one in (*seen, *batches):
        assert all(places == PLACES for places in one.values())
    assert len(batches[0]) > 0


@needs(ADMISSION_CONTROL)
def test_limits_of_a_micro_batch_split_a_transaction(
    spark: SparkSession, log: SparkLog, root: str, tmp_path: Path
) -> None:
    """As with Kafka's connector."""
    with log.transaction("large") as txn:
        txn.append("a", rows(0, 60))
    seen: list[int] = []
    options = {"subscribe": "a", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
    reader = spark.readStream.format("sparklog").options(**options).load(root)
    sink = reader.writeStream.foreachBatch(lambda df, _: seen.append(df.count()))
    sink.option("checkpointLocation", str(tmp_path / "c")).trigger(
        availableNow=True
    ).start().awaitTermination(120)
    assert sum(seen) == 60
    assert max(seen) <= 20


class Sorting:
    """A foreachBatch that ends in a transaction: even and odd numbers, and what was read."""

    def __init__(self, root: str) -> None:
        self.log = sparklog.open(root, create=False)
        self.results: list[tuple[int, AppendResult | None]] = []
        self.dies = ""

    def save(self, df: DataFrame, batch: int) -> None:
        query_id = df.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        table = df.select("key", "value", "topic", "partition", "offset").toArrow()
        number = table["value"].cast("string").cast("int64")
        is_even = pc.equal(pc.bit_wise_and(number, 1), 0)
        ends = table.group_by(["topic", "partition"]).aggregate([("offset", "max")]).to_pylist()
        with self.log.transaction(f"sorting-{query_id}", version=batch) as txn:
            txn.append("even", table.select(["key", "value"]).filter(is_even))
            txn.append("odd", table.select(["key", "value"]).filter(pc.invert(is_even)))
            txn.commit_offsets(
                "sorting", {(end["topic"], end["partition"]): end["offset_max"] + 1 for end in ends}
            )
            if self.dies == f"before {batch}":
                self.dies = ""
                raise WorkError
        self.results.append((batch, txn.result))
        if self.dies == f"after {batch}":
            self.dies = ""
            raise WorkError


@needs(ADMISSION_CONTROL)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_foreach_batch_that_ends_in_a_transaction_is_exactly_once(
    spark: SparkSession, log: SparkLog, root: str, tmp_path: Path, when: str
) -> None:
    log.create_topic("in", 2)
    log.append("in", rows(0, 90))
    sorting = Sorting(root)

    def run() -> None:
        options = {"subscribe": "in", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "30"}
        reader = spark.readStream.format("sparklog").options(**options).load(root)
        sink = reader.writeStream.foreachBatch(sorting.save).option("checkpointLocation", str(tmp_path / "c"))
        sink.trigger(availableNow=True).start().awaitTermination(120)

    sorting.dies = f"{when} 1"
    with pytest.raises(Exception, match="WorkError"):
        run()
    done = sum(result.record_count for _, result in sorting.results if result is not None)
    assert len(values(log, "even")) + len(values(log, "odd")) <= done
    run()
    assert values(log, "even") == list(range(0, 90, 2))
    assert values(log, "odd") == list(range(1, 90, 2))
    ends = {("in", partition): log.log_end_offset("in", partition) for partition in range(2)}
    assert log.committed_offsets("sorting") == ends
    repeated = [batch for batch, result in sorting.results if result is not None and result.duplicate]
    assert repeated == ([1] if when == "after" else [])


def test_a_new_checkpoint_is_another_query(
    spark: SparkSession, log: SparkLog, root: str, tmp_path: Path
) -> None:
    """Its batches count from 0 again; with the same id they would be taken for what is there."""
    log.append("in", rows(0, 10))
    sorting = Sorting(root)
    for name in ("c1", "c2"):
        options = {"subscribe": "in", "startingOffsets": "earliest"}
        reader = spark.readStream.format("sparklog").options(**options).load(root)
        sink = reader.writeStream.foreachBatch(sorting.save).option(
            "checkpointLocation", str(tmp_path / name)
        )
        sink.trigger(availableNow=True).start().awaitTermination(120)
    assert len(values(log, "even")) + len(values(log, "odd")) == 20
    with sparklog.open(root).transaction("q", version=3) as txn:
        txn.append("a", rows(0, 1))
    with pytest.raises(SparklogError, match="VERSION_OUTDATED"), log.transaction("q", version=0) as txn:
        txn.append("a", rows(0, 1))
