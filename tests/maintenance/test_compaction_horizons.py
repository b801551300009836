"""Delete horizons where it is easy to lose them: rounds that see a part only, and merges."""

import numpy as np

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.format.record_batch import DELETE_HORIZON_MASK
from sparklog.maintenance import CompactionLimits, compact, optimize
from sparklog.maintenance.choose import choose_compactions
from sparklog.maintenance.compaction import publish_compaction, run_compaction
from sparklog.metadata import NO_DELETE_HORIZON_MS, Cleaned
from tests.maintenance.compacted import cleaned, left, stored
from tests.maintenance.conftest import Put, extents


def test_a_round_that_cannot_see_all_of_the_clean_part_waits(
    table: SparkLog, put: Put, clock: ManualClock
) -> None:
    """It would note the horizons of what it has seen as those of the partition."""
    table.alter_topic("table", {"delete.retention.ms": "60000"})
    put((b"a", b"1"), (b"b", None))
    compact(table.metadata, clock)
    horizon_ms = clock.now_ms() + 60_000
    clock.advance_ms(50_000)
    put((b"c", b"1"))
    compact(table.metadata, clock)
    assert len(extents(table, "table")) == 2
    assert cleaned(table) == Cleaned(3, horizon_ms)
    table.alter_topic("table", {"min.compaction.lag.ms": "30000"})
    clock.advance_ms(20_000)
    assert choose_compactions(table.refresh(), clock.now_ms(), CompactionLimits()) == []
    clock.advance_ms(20_000)
    compact(table.metadata, clock)
    assert [key for _, key, _ in left(table)] == [b"a", b"c"]


def test_a_batch_that_reaches_beyond_the_round_gets_no_horizon(table: SparkLog, put: Put) -> None:
    """The tombstones behind the round's end would have it, too, before they could have gone."""
    put(*[(b"%d" % number, None) for number in range(20)])
    (work,) = choose_compactions(
        table.refresh(), table.clock.now_ms(), CompactionLimits(dedupe_buffer_bytes=16 * 24)
    )
    assert publish_compaction(table.metadata, run_compaction(table.store, table.clock, work))
    assert cleaned(table) == Cleaned(14, NO_DELETE_HORIZON_MS)
    assert not np.any(stored(table).attributes & DELETE_HORIZON_MASK)


def test_merges_keep_horizons(table: SparkLog, put: Put, clock: ManualClock) -> None:
    horizons_ms = []
    for key in (b"a", b"b"):
        put((key, None))
        compact(table.metadata, clock)
        horizons_ms.append(clock.now_ms() + 86_400_000)
        clock.advance_ms(1000)
    put((b"c", b"1"))
    optimize(table.metadata, clock, ["table"])
    merged = stored(table)
    has_horizon = (merged.attributes & DELETE_HORIZON_MASK) != 0
    assert merged.first_timestamp_ms[has_horizon].tolist() == horizons_ms
    clock.advance_ms(86_400_000)
    compact(table.metadata, clock)
    assert [key for _, key, _ in left(table)] == [b"c"]
