"""The least that a Python source and sink can do: what Spark's bridge to Python allows at best.

The source yields Arrow batches that were prepared once; the sink throws its input away. Both have
the columns of sparklog's, so that the fractions in bench_spark compare like with like.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from sparklog.spark.rows import arrow_schema
from sparklog.spark.values import SCHEMA_SQL

BATCH_ROWS = 10_000
STREAM_PARTITIONS = 4
STREAM_TASKS = 2  # as many as sparklog plans for them: as run at a time
_prepared: dict[tuple[int, int], pa.RecordBatch] = {}


def prepared_batch(value_bytes: int, rows: int) -> pa.RecordBatch:
    """`rows` rows of the source's schema, made once per process."""
    if (value_bytes, rows) not in _prepared:
        rng = np.random.default_rng(0)
        values = [rng.bytes(value_bytes) for _ in range(rows)]
        _prepared[value_bytes, rows] = pa.RecordBatch.from_arrays(
            [
                pa.array([b"%012d" % i for i in range(rows)], pa.binary()),
                pa.array(values, pa.binary()),
                pa.repeat("t", rows).cast(pa.string()),
                pa.array(np.zeros(rows, np.int32)),
                pa.array(np.arange(rows, dtype=np.int64)),
                pa.array(np.full(rows, 1_700_000_000_000_000)).cast(pa.timestamp("us", tz="UTC")),
                pa.array(np.zeros(rows, np.int32)),
            ],
            schema=arrow_schema(include_headers=False),
        )
    return _prepared[value_bytes, rows]


class Part(InputPartition):
    def __init__(self, rows: int, value_bytes: int, batch_rows: int) -> None:
        super().__init__(None)
        self.rows, self.value_bytes, self.batch_rows = rows, value_bytes, batch_rows

    def batches(self) -> Iterator[pa.RecordBatch]:
        batch = prepared_batch(self.value_bytes, self.batch_rows)
        for _ in range(self.rows // self.batch_rows):
            yield batch


class CeilingReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)

    def partitions(self) -> list[InputPartition]:
        o = self.options
        count = int(o["partitions"])
        return [Part(int(o["rows"]) // count, int(o["bytes"]), BATCH_ROWS) for _ in range(count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        yield from partition.batches()


class TrivialStreamReader(DataSourceStreamReader):
    """As many rows as asked for at each trigger, forever or (rows=0) none at all."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.rows = int(options["rows"])

    def initialOffset(self) -> dict[str, Any]:
        return {"t": {"0": 0}}

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        assert start is not None
        return {"t": {"0": start["t"]["0"] + self.rows}}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        rows = self.rows // STREAM_TASKS
        return [Part(rows, 100, rows) for _ in range(STREAM_TASKS if end != start else 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        yield from partition.batches()


class Done(WriterCommitMessage):
    pass


def discard(iterator: Iterator[pa.RecordBatch]) -> Done:
    for _ in iterator:
        pass
    return Done()


class DiscardWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return discard(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        pass


class DiscardStreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return discard(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass


class CeilingDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> str:
        return SCHEMA_SQL

    def reader(self, schema: StructType) -> CeilingReader:
        return CeilingReader(self.options)

    def streamReader(self, schema: StructType) -> TrivialStreamReader:
        return TrivialStreamReader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DiscardWriter:
        return DiscardWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DiscardStreamWriter:
        return DiscardStreamWriter()
