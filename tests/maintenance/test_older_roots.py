"""A root that an older sparklog made, and others still use: what nobody asked for is written in documents
that they know, until the root's owner agrees to more.
"""

from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.client.founding import FOUNDING
from sparklog.clock import ManualClock
from sparklog.errors import InvalidRequestError
from sparklog.log.root_config import AUTOMATIC_REMOVAL_KEY, RootConfig
from sparklog.maintenance import (
    MergeLimits,
    Terms,
    compact,
    due_steps,
    maintain,
    optimize,
    withheld_by_version,
)
from sparklog.metadata import METADATA_VERSION_KEY, VERSION, WRITERS_VERSION
from tests.support.roots import newest_version, old_store, opened

FEW = Terms(limits=MergeLimits(fan_in=3))
NEEDED = {"producers": 8, "compact": 7, "optimize": 5, "vacuum": 6}


@pytest.fixture(params=["v4", "v5"])
def older(request: pytest.FixtureRequest) -> SparkLog:
    """With all kinds of work to be done in it, to which it agrees as far as records go."""
    clock = ManualClock()
    log = opened(old_store(request.param, clock), clock)
    log.alter_root({AUTOMATIC_REMOVAL_KEY: "true"})
    for number in range(260):
        log.append("orders", pa.table({"value": [str(number)]}), partition=0)
    for offset in range(5):
        log.commit_offsets("g", {("orders", 0): offset})
    return log


def append_to_all(log: SparkLog) -> None:
    log.append("wide", pa.table({"value": ["x"] * 20, "partition": pa.array(range(20), pa.int32())}))


def outcomes(log: SparkLog) -> dict[str, str]:
    return {one.step: one.outcome for one in maintain(log.metadata, log.clock, FEW).steps}


def test_rounds_write_nothing_that_older_sparklogs_refuse(older: SparkLog) -> None:
    before = newest_version(older.store)
    assert list(due_steps(older.refresh(), older.clock.now_ms(), FEW)) == []
    commit = older.refresh().commit
    assert outcomes(older) == {
        "transactions": "nothing",
        "expire": "nothing",
        "producers": "withheld",
        "compact": "withheld",
        "optimize": "withheld",
        "retire": "nothing",
        "vacuum": "withheld",
    }
    assert older.refresh().commit == commit
    assert newest_version(older.store) == before


def test_one_command_agrees(older: SparkLog) -> None:
    for one in maintain(older.metadata, older.clock, FEW).steps:
        if one.outcome == "withheld":
            assert f"sparklog root alter --config {METADATA_VERSION_KEY}={VERSION}" in one.message
            assert (f"sparklog {one.step}" in one.message) == (one.step != "producers")  # no command
    told = withheld_by_version(older.image, older.clock.now_ms(), FEW)
    assert told.startswith("producers, compact, optimize, vacuum: due, and not done.")
    older.alter_root({METADATA_VERSION_KEY: str(VERSION)})
    assert withheld_by_version(older.image, older.clock.now_ms(), FEW) == ""
    assert set(due_steps(older.image, older.clock.now_ms(), FEW)) == {
        "producers",
        "compact",
        "optimize",
        "vacuum",
    }
    done = outcomes(older)
    assert {done[name] for name in NEEDED} == {"done"}
    assert newest_version(older.store) == 9  # what was merged is freed


@pytest.mark.parametrize("agreed", [5, 6])
def test_as_far_as_the_root_agrees(older: SparkLog, agreed: int) -> None:
    older.alter_root({METADATA_VERSION_KEY: str(agreed)})
    found = outcomes(older)
    assert {name for name in NEEDED if found[name] == "done"} == {
        name for name, version in NEEDED.items() if version <= agreed
    }
    assert newest_version(older.store) <= agreed


def test_an_order_needs_no_agreement(older: SparkLog) -> None:
    assert optimize(older.metadata, older.clock, ["orders"]).topics["orders"].merged_extents > 200
    assert compact(older.metadata, older.clock).topics["__consumer_offsets"].rounds
    assert newest_version(older.store) == 7


@pytest.mark.parametrize("agreed", [False, True])
def test_appends_to_many_partitions(agreed: bool) -> None:
    clock = ManualClock()
    log = opened(old_store("v4", clock), clock)
    if agreed:
        log.alter_root({METADATA_VERSION_KEY: "5"})
    log.create_topic("wide", 20)
    append_to_all(log)
    assert all(log.log_end_offset("wide", partition) == 1 for partition in range(20))
    assert newest_version(log.store) == (5 if agreed else 4)


def test_a_new_root_agrees_to_all_that_its_maker_knows(tmp_path: Path) -> None:
    with sparklog.open(tmp_path / "root") as log:
        log.create_topic("wide", 20)
        assert log.image.configs[METADATA_VERSION_KEY] == str(VERSION)
        assert FOUNDING[0].configs == log.image.configs
        append_to_all(log)
        assert newest_version(log.store) == 5


def test_what_this_sparklog_does_not_know_cannot_be_agreed_to(older: SparkLog) -> None:
    for value in (WRITERS_VERSION - 1, VERSION + 1):
        with pytest.raises(InvalidRequestError, match="CONFIG_OUT_OF_BOUNDS"):
            older.alter_root({METADATA_VERSION_KEY: str(value)})
    # But a newer one may have said it.
    assert RootConfig.parse({METADATA_VERSION_KEY: str(VERSION + 1)}).metadata_version == VERSION + 1
