"""Merging fetches small extents by object, not each by itself."""

import pyarrow as pa

import sparklog
from sparklog.client import SparkLog
from sparklog.maintenance import optimize
from sparklog.storage.s3 import S3Store

PARTITIONS, PUBLISHES = 16, 5


def read_all(log: SparkLog) -> list[list[bytes]]:
    return [log.read("t", p, 0)["value"].to_pylist() for p in range(PARTITIONS)]


def test_merging_asks_for_each_object_once(s3_root: str) -> None:
    with sparklog.open(s3_root) as log:
        log.create_topic("t", PARTITIONS)
        for number in range(PUBLISHES):
            values = [b"%d/%d" % (number, p) for p in range(PARTITIONS)]
            log.append("t", pa.table({"value": values, "partition": list(range(PARTITIONS))}))
        before = read_all(log)
    with sparklog.open(s3_root, create=False) as log:
        assert isinstance(log.store, S3Store)
        asked = log.store.requests["get_object"]
        assert optimize(log.metadata, log.clock).topics["t"].merged_extents == PUBLISHES * PARTITIONS
        # The objects, and following the log.
        assert log.store.requests["get_object"] - asked <= 2 * PUBLISHES
        assert read_all(log) == before
