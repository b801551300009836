"""A machine whose clock is ahead of the store's removes nothing early."""

from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.client import SparkLog, open_log
from sparklog.clock import Clock, ManualClock, SystemClock
from sparklog.maintenance import compact, maintain
from sparklog.maintenance.retain import earlier_now_ms
from tests.maintenance.conftest import Append, Put, records
from tests.maintenance.rounds_told import step

DAY_MS = 86_400_000
AHEAD_MS = 365 * DAY_MS


def set_ahead(log: SparkLog, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's clock, by a year, and not the store's."""
    monkeypatch.setattr(type(log.store), "storage_now_ms", lambda _self, here_ms: here_ms - AHEAD_MS)
    clock.advance_ms(AHEAD_MS)


class AheadClock(SystemClock):
    """By a year."""

    def now_ms(self) -> int:
        return super().now_ms() + AHEAD_MS


def expired(log: SparkLog, clock: Clock) -> int:
    return step(maintain(log.metadata, clock, steps=["expire"]), "expire").figures["offsets"]


def test_records_that_are_past_their_retention_by_its_clock_alone_stay(
    log: SparkLog, append: Append, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.alter_topic("t", {"retention.ms": str(30 * DAY_MS)})
    append([b"a", b"b"], times_ms=[clock.now_ms()] * 2)
    set_ahead(log, clock, monkeypatch)
    assert expired(log, clock) == 0
    clock.advance_ms(30 * DAY_MS)
    assert expired(log, clock) == 0
    clock.advance_ms(1)
    assert expired(log, clock) == 2


def test_so_do_tombstones(
    table: SparkLog, put: Put, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put((b"a", b"1"), (b"a", None))
    compact(table.metadata, clock)
    set_ahead(table, clock, monkeypatch)
    put((b"b", b"1"))
    compact(table.metadata, clock)
    assert [value for _, value, _ in records(table, "table")] == [None, b"1"]
    clock.advance_ms(DAY_MS)
    compact(table.metadata, clock)
    assert [value for _, value, _ in records(table, "table")] == [b"1"]


def test_tombstones_are_kept_from_the_later_of_both_clocks_on(
    table: SparkLog, put: Put, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that dates by whole seconds is behind, and then it is not."""
    behind = [DAY_MS - 1]
    monkeypatch.setattr(type(table.store), "storage_now_ms", lambda _self, here_ms: here_ms - behind[0])
    put((b"a", b"1"), (b"a", None))
    compact(table.metadata, clock)
    behind[0] = 0
    clock.advance_ms(DAY_MS - 1)
    put((b"b", b"1"))
    compact(table.metadata, clock)
    assert [value for _, value, _ in records(table, "table")] == [None, b"1"]


def test_the_clock_of_a_directory_is_its_kernels(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        log.create_topic("t", 1, {"retention.ms": str(30 * DAY_MS)})
        log.append("t", pa.table({"value": [b"a"]}))
        assert expired(log, AheadClock()) == 0
        assert earlier_now_ms(log.store, AheadClock()) < AheadClock().now_ms() - DAY_MS
        assert earlier_now_ms(log.store, ManualClock()) == ManualClock().now_ms()
