"""sparklog.open and the life of a SparkLog."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import InvalidRequestError, SparklogError

ROWS = pa.table({"value": ["a", "b"]})


def test_a_log_survives_closing(tmp_path: Path) -> None:
    with sparklog.open(tmp_path / "log") as log:
        log.append("t", ROWS)
        cluster_id = log.cluster_id
        log.close()
        log.append("t", ROWS)
    again = sparklog.open(log.url, create=False)
    assert (again.cluster_id, again.log_end_offset("t", 0)) == (cluster_id, 4)
    assert "commit 1" in repr(again)


def test_a_missing_root_is_not_made_unless_asked(tmp_path: Path) -> None:
    with pytest.raises(SparklogError, match="ROOT_NOT_FOUND"):
        sparklog.open(tmp_path / "nope", create=False)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SparklogError, match="ROOT_NOT_FOUND"):
        sparklog.open(tmp_path / "empty", create=False)


def test_a_root_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    log = sparklog.open(tmp_path / "log")
    assert log.is_same_root()
    os.rename(tmp_path / "log", tmp_path / "gone")
    assert not log.is_same_root()
    sparklog.open(tmp_path / "log")
    assert not log.is_same_root()


def test_rows_must_be_arrow(tmp_path: Path) -> None:
    log = sparklog.open("memory://rows-must-be-arrow")
    with pytest.raises(InvalidRequestError, match=r"type list, expected pyarrow\.Table"):
        log.append("t", [{"value": "a"}])


def test_a_given_partition_beats_the_column() -> None:
    log = sparklog.open("memory://given-partition")
    log.create_topic("t", 3)
    for rows in (ROWS, ROWS.append_column("partition", pa.array([0, 1])), ROWS.to_batches()[0]):
        assert list(log.append("t", rows, partition=2).partitions) == [2]
    with pytest.raises(InvalidRequestError, match="PARTITION_OUT_OF_RANGE"):
        log.append("t", ROWS, partition=3)


def test_rows_without_key_spread_over_appends() -> None:
    log = sparklog.open("memory://sticky")
    log.create_topic("t", 3)
    assert {next(iter(log.append("t", ROWS).partitions)) for _ in range(3)} == {0, 1, 2}


def test_everything_listed_is_there() -> None:
    assert all(hasattr(sparklog, name) for name in sparklog.__all__)
    assert sorted(sparklog.__all__) == sparklog.__all__


def test_importing_sparklog_does_not_import_spark() -> None:
    code = "import sys, sparklog; sys.exit('pyspark' in sys.modules or 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
