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


@pytest.mark.slow
def test_importing_sparklog_does_not_import_spark() -> None:
    code = "import sys, sparklog; sys.exit('pyspark' in sys.modules or 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_root_that_is_meant(tmp_path: Path) -> None:
    log = sparklog.open(tmp_path / "log")
    other = sparklog.open(tmp_path / "other")
    assert sparklog.open(log.url, cluster_id=log.cluster_id).cluster_id == log.cluster_id
    with pytest.raises(InvalidRequestError, match="WRONG_ROOT") as refused:
        sparklog.open(other.url, cluster_id=log.cluster_id)
    assert f"root {other.url}: found cluster id '{other.cluster_id}', expected '{log.cluster_id}'" in str(
        refused.value
    )


def test_another_root_than_the_one_that_is_meant_is_not_even_loaded(tmp_path: Path) -> None:
    log = sparklog.open(tmp_path / "log")
    log.create_topic("t")
    (commit,) = (tmp_path / "log" / "__cluster_metadata").glob("*.json")
    commit.write_text("damaged")
    with pytest.raises(InvalidRequestError, match="WRONG_ROOT"):
        sparklog.open(log.url, cluster_id="x" * 22)


def test_a_root_that_is_meant_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(SparklogError, match="ROOT_NOT_FOUND"):
        sparklog.open(tmp_path / "log", cluster_id="x" * 22)
    assert not (tmp_path / "log").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(SparklogError, match="ROOT_NOT_FOUND"):
        sparklog.open(tmp_path / "empty", cluster_id="x" * 22)
    assert not list((tmp_path / "empty").iterdir())
    with pytest.raises(InvalidRequestError, match="INVALID_OPTION"):
        sparklog.open(tmp_path / "log", cluster_id=" ")


def test_where_roots_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, outside = tmp_path / "a,b" / "log", tmp_path / "log"
    assert sparklog.open(inside, allowed_roots=[str(tmp_path / "a,b"), "s3://b"]).topics() == []
    for allowed in ([str(tmp_path / "a,b")], f"s3://b,{tmp_path}/a%2Cb"):
        with pytest.raises(InvalidRequestError, match="ROOT_NOT_ALLOWED"):
            sparklog.open(outside, allowed_roots=allowed)
    monkeypatch.setenv("SPARKLOG_ALLOWED_ROOTS", f"file://{tmp_path}/a%2Cb")
    assert sparklog.open(inside, allowed_roots=[str(tmp_path)]).topics() == []
    with pytest.raises(InvalidRequestError, match=r"ROOT_NOT_ALLOWED.*\(SPARKLOG_ALLOWED_ROOTS\)"):
        sparklog.open(outside, allowed_roots=[str(tmp_path)])
    assert not outside.exists()
