"""Damaged and foreign files, seen from Spark: the message names the place, and nothing is skipped.

The layers below test every way in which bytes can be wrong; here it is that Spark's user learns of it.
"""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import sparklog
from sparklog.client import SparkLog
from sparklog.metadata.documents.document import checksum
from tests.spark.conftest import Write

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("directory")]


@pytest.fixture
def log(root: str) -> SparkLog:
    opened = sparklog.open(root, create=True)
    opened.create_topic("t", partitions=1)
    for start in range(0, 3000, 1000):
        ids = range(start, start + 1000)
        opened.append("t", pa.table({"value": [b"%060d" % i for i in ids]}))
    opened.close()
    return opened


def only(root: str, pattern: str) -> Path:
    (found,) = Path(root).glob(pattern)
    return found


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def count(spark: SparkSession, root: str, **options: str) -> int:
    return spark.read.format("sparklog").options(subscribe="t", **options).load(root).count()


def refused(spark: SparkSession, root: str, pattern: str, **options: str) -> None:
    with pytest.raises(PySparkException, match=f"(?s){pattern}.*Fix: .*SQLSTATE"):
        count(spark, root, **options)


def test_a_flipped_bit_in_a_segment_is_named(spark: SparkSession, root: str, log: SparkLog) -> None:
    segment = only(root, "segments/*/*.log")
    flip(segment, segment.stat().st_size // 2)
    refused(spark, root, r"SPARKLOG_CORRUPT_BATCH.*segments/\w+/0*0\.\d+\.log@\d+")


def test_a_truncated_segment_is_named(spark: SparkSession, root: str, log: SparkLog) -> None:
    segment = only(root, "segments/*/*.log")
    segment.write_bytes(segment.read_bytes()[:-10])
    refused(spark, root, r"SPARKLOG_SEGMENT_TRUNCATED.*segments/\w+/0*0\.\d+\.log")


def test_a_missing_segment_is_data_loss(spark: SparkSession, root: str, log: SparkLog) -> None:
    only(root, "segments/*/*.log").unlink()
    refused(spark, root, r"SPARKLOG_SEGMENT_MISSING.*segments/\w+/0*0\.\d+\.log")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "remove", "noise"])
def test_a_damaged_index_changes_nothing(spark: SparkSession, root: str, damage: str) -> None:
    opened = sparklog.open(root, create=True)
    opened.create_topic("t", partitions=1, configs={"index.interval.bytes": "1024"})
    opened.append("t", pa.table({"value": [b"%060d" % i for i in range(50_000)]}))
    opened.close()
    index = only(root, "segments/*/*.index")
    assert index.stat().st_size > 40
    damages: dict[str, Callable[[], object]] = {
        "flip": lambda: flip(index, 11),
        "truncate": lambda: index.write_bytes(index.read_bytes()[:-3]),
        "empty": lambda: index.write_bytes(b""),
        "remove": index.unlink,
        "noise": lambda: index.write_bytes(b"\xa5" * 800),
    }
    damages[damage]()
    assert count(spark, root, startingOffsets='{"t":{"0":31234}}', endingOffsets='{"t":{"0":31244}}') == 10
    assert count(spark, root) == 50_000


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty"])
def test_a_damaged_commit_stops_the_log(
    spark: SparkSession, root: str, log: SparkLog, write: Write, damage: str
) -> None:
    commit = sorted(Path(root, "__cluster_metadata").glob("*.json"))[2]
    data = commit.read_bytes()
    if damage == "flip":
        flip(commit, len(data) - 20)
    else:
        commit.write_bytes(data[: len(data) // 2] if damage == "truncate" else b"")
    refused(spark, root, rf"SPARKLOG_\w+.*{commit.name}")
    with pytest.raises(PySparkException, match=commit.name):
        write(spark.range(1).selectExpr("'x' value"), topic="t")


def test_a_root_of_a_newer_version_is_refused(spark: SparkSession, root: str, log: SparkLog) -> None:
    properties = Path(root, "meta.properties")
    body = properties.read_bytes().rpartition(b"crc32c=")[0].replace(b"version=1", b"version=9")
    assert b"version=9" in body
    properties.write_bytes(body + f"crc32c={checksum(body)}\n".encode())
    refused(spark, root, r"SPARKLOG_\w*VERSION.*meta\.properties.*9")


def test_a_directory_with_something_else_in_it_is_no_root(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1,2")
    refused(spark, str(tmp_path), r"SPARKLOG_ROOT_NOT_FOUND")


def test_an_object_store_of_another_kind_is_refused_by_name(spark: SparkSession) -> None:
    refused(spark, "wasbs://container@account/prefix", r"SPARKLOG_UNSUPPORTED_STORE.*wasbs")
