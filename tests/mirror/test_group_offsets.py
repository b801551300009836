"""Offsets of groups, translated."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.mirror import copying, positions
from sparklog.mirror.copying import Mirror
from sparklog.mirror.group_offsets import translate
from tests.mirror.clusters import Cluster, Never

AT = ("orders", 0)
GAPPY = [7, 8, 20, 21, 40, 44, 46, 100, 101, 102, 300]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SparkLog]:
    with sparklog.open(tmp_path / "log") as log:
        yield log


def translated(log: SparkLog, cluster: Cluster, *offsets: int) -> list[int]:
    made = Mirror(log, cluster)
    made.prepare(made.plan(lambda _: True))
    made.copy(Never())
    groups = {f"group-{offset}": {AT: offset, ("elsewhere", 0): 1} for offset in offsets}
    return [found[AT] for found in translate(made, cluster, groups).values()]


def test_dense_offsets_stay(log: SparkLog) -> None:
    cluster = Cluster()
    cluster.add("orders", offsets=range(10))
    read = cluster.fetched
    assert translated(log, cluster, 0, 4, 10, 12) == [0, 4, 10, 10]
    assert cluster.fetched - read == 10  # nothing is read twice


@pytest.mark.parametrize("near", [1, 10, 1_000])
@pytest.mark.parametrize("records", [1, 3, 1_000])
def test_every_offset_means_the_next_record(
    log: SparkLog, monkeypatch: pytest.MonkeyPatch, near: int, records: int
) -> None:
    monkeypatch.setattr(positions, "ANCHOR_OFFSETS", near)
    monkeypatch.setattr(copying, "COMMIT_RECORDS", records)
    cluster = Cluster(step=2)
    cluster.add("orders", offsets=GAPPY, end=310)
    wanted = range(311)
    assert translated(log, cluster, *wanted) == [sum(one < offset for one in GAPPY) for offset in wanted]


def test_what_the_source_has_removed_since_makes_it_earlier_not_later(
    log: SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction at the source must not make a group skip a record."""
    monkeypatch.setattr(positions, "ANCHOR_OFFSETS", 1)
    monkeypatch.setattr(copying, "COMMIT_RECORDS", 4)
    cluster = Cluster(step=2)
    cluster.add("orders", offsets=GAPPY, end=310)
    translated(log, cluster)
    for gone in (8, 21, 100):
        cluster.partitions[AT].offsets.remove(gone)
    exact = [sum(one < offset for one in GAPPY) for offset in range(311)]
    found = translated(log, cluster, *range(311))
    assert all(one <= at_most for one, at_most in zip(found, exact, strict=True))
    assert found[7] == exact[7]
    assert found[310] == exact[310]
    cluster.remove_before(AT, 50)
    found = translated(log, cluster, *range(311))
    assert all(one <= at_most for one, at_most in zip(found, exact, strict=True))
