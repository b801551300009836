"""The rows of the source, without Spark: what its types cannot hold."""

import pyarrow as pa

import sparklog
from sparklog.spark.input_partitions import read_input_partition
from sparklog.spark.options import parse_source_options
from tests.spark.planning import batch_reader
from tests.support.told import Told


def test_a_timestamp_past_those_of_spark_is_its_last(root: str, told: Told) -> None:
    """And not another time, which 64 bits of microseconds would wrap around to."""
    most = 2**63 - 1
    log = sparklog.open(root, create=True)
    log.create_topic("t", configs={"message.timestamp.after.max.ms": str(most)})
    times_ms = [1, most // 1000, most // 1000 + 1, most]
    log.append("t", pa.table({"value": ["x"] * 4, "timestamp": pa.array(times_ms, pa.int64())}))
    options = parse_source_options({"path": root, "subscribe": "t"}, streaming=False)
    (task,) = batch_reader(root).partitions()
    rows = pa.Table.from_batches(list(read_input_partition(task, options)))
    last_us = most // 1000 * 1000
    assert rows["timestamp"].cast(pa.int64()).to_pylist() == [1000, last_us, last_us, last_us]
    (message,) = told("sparklog.spark")
    assert message.startswith(
        f"t-0: the record at offset 2 has the timestamp {most // 1000 + 1} ms, and Spark's"
    )
