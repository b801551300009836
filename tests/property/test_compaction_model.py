"""Compaction against a model: a list of records and a dict. Random keys, tombstones, codecs, settings, times
of cleaning, merges, log starts and two compactors at once; what Kafka promises must hold after each step.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.format.batch_table import scan_batches
from sparklog.maintenance import CompactionLimits, MergeLimits, compact, optimize
from sparklog.maintenance.choose import choose_compactions
from sparklog.maintenance.compaction import CompactionResult, publish_compaction, run_compaction
from sparklog.metadata import MetadataLog, plan_advance_log_start
from sparklog.storage import MemoryStore

RETENTION_MS = 1_000
LAG_MS = 300
TINY_MAP = 400  # bytes: a few keys
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
keys = st.none() | st.sampled_from([b"", b"a", b"b", b"c", b"d" * 9, b"e" * 40, b"f" * 600])
values = st.none() | st.binary(max_size=12) | st.just(b"z" * 9_000)
rows = st.lists(st.tuples(keys, values, st.booleans()), min_size=1, max_size=12)


@dataclass(frozen=True)
class Record:
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes], ...]
    seen_ms: int | None = None  # when a round first kept the tombstone


class Compaction(RuleBasedStateMachine):
    @initialize(
        is_tiny=st.booleans(),
        lag_ms=st.sampled_from([0, LAG_MS]),
        mode=st.sampled_from(["CreateTime", "LogAppendTime"]),
        segment_bytes=st.sampled_from(["1000000", "20000"]),
        codec=st.sampled_from(["producer", "lz4", "uncompressed"]),
    )
    def open(self, is_tiny: bool, lag_ms: int, mode: str, segment_bytes: str, codec: str) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore("compaction", clock=self.clock)
        self.log = SparkLog(self.store, MetadataLog.open(self.store, self.clock, create=True), self.clock)
        self.log.create_topic(
            "t",
            1,
            {
                "cleanup.policy": "compact",
                "delete.retention.ms": str(RETENTION_MS),
                "min.compaction.lag.ms": str(lag_ms),
                "message.timestamp.type": mode,
                "segment.bytes": segment_bytes,
                "compression.type": codec,
            },
        )
        self.lag_ms = lag_ms
        self.limits = CompactionLimits(dedupe_buffer_bytes=TINY_MAP) if is_tiny else CompactionLimits()
        self.history: list[Record] = []  # everything that was ever written
        self.left: dict[int, Record] = {}  # by offset, what must be there; with a tiny map, what may be

    # --- what happens ---------------------------------------------------------------------------------

    @rule(given=rows, codec=st.sampled_from(CODECS), back_ms=st.integers(0, 200))
    def append(self, given: list[tuple[bytes | None, bytes | None, bool]], codec: str, back_ms: int) -> None:
        self.log.alter_topic("t", {"cleanup.policy": "delete"})  # or else null keys are refused
        now = self.clock.now_ms()
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        table = pa.table(
            {
                "key": pa.array([key for key, _, _ in given], pa.binary()),
                "value": pa.array([value for _, value, _ in given], pa.binary()),
                "timestamp": pa.array([now - back_ms - row for row in range(len(given))], pa.int64()),
                "headers": pa.array(
                    [[{"key": "h", "value": b"1"}] if has else None for _, _, has in given], kind
                ),
            }
        )
        self.log.append("t", table, partition=0, compression_type=codec)
        self.log.alter_topic("t", {"cleanup.policy": "compact"})
        for offset, record in self._read(len(self.history)):
            assert offset == len(self.history)
            self.history.append(record)
            self.left[offset] = record

    @rule(ms=st.sampled_from([1, LAG_MS, RETENTION_MS - 1, RETENTION_MS]))
    def wait(self, ms: int) -> None:
        self.clock.advance_ms(ms)

    @rule(shared=st.booleans())
    def merge(self, shared: bool) -> None:
        limits = MergeLimits(fan_in=None, shared_bytes=1 << 20 if shared else 0)
        optimize(self.log.metadata, self.clock, limits=limits)

    @rule(share=st.floats(0, 1))
    def advance_log_start(self, share: float) -> None:
        state = self.log.refresh().partition("t", 0)
        start = round(share * state.log_end_offset)
        action = plan_advance_log_start(self.log.image, state.topic_id, 0, start)
        if action is not None:
            self.log.metadata.publish(lambda _image: [action])
            self.left = {offset: record for offset, record in self.left.items() if offset >= start}

    @rule()
    def compact(self) -> None:
        before = self.log.refresh().partition("t", 0)
        report = compact(self.log.metadata, self.clock, ["t"], self.limits)
        assert report.topics["t"].left_out == 0
        self._clean(before.cleaned.first_dirty_offset, whole=report.topics["t"].rounds > 0)

    @rule(small=st.booleans())
    def two_compact_at_once(self, small: bool) -> None:
        before = self.log.refresh().partition("t", 0)
        first, second = self._round(small), self._round(small)
        merged = first is not None and publish_compaction(self.log.metadata, first)
        again = second is not None and publish_compaction(self.log.metadata, second)
        # If there was nothing to change but to note how far it came, both say the same.
        assert not (merged and again) or first is None or not first.replacements
        self._clean(before.cleaned.first_dirty_offset, whole=merged)

    @rule(small=st.booleans())
    def a_merge_comes_between(self, small: bool) -> None:
        before = self.log.refresh().partition("t", 0)
        result = self._round(small)
        optimize(self.log.metadata, self.clock, limits=MergeLimits(fan_in=None))
        if result is not None:
            applied = publish_compaction(self.log.metadata, result)
            self._clean(before.cleaned.first_dirty_offset, whole=applied)

    def _round(self, small: bool) -> CompactionResult | None:
        works = choose_compactions(self.log.refresh(), self.clock.now_ms(), self.limits, ["t"])
        if not works:
            return None
        return run_compaction(self.store, self.clock, works[0], step_bytes=100 if small else 1 << 20)

    # --- what must hold -------------------------------------------------------------------------------

    def _clean(self, first_dirty: int, *, whole: bool) -> None:
        """The model's round, up to where the log says that it came."""
        if not whole:
            return
        now = self.clock.now_ms()
        state = self.log.refresh().partition("t", 0)
        start = max(first_dirty, state.log_start_offset)
        end = state.cleaned.first_dirty_offset
        latest = {
            record.key: offset
            for offset, record in self.left.items()
            if start <= offset < end and record.key is not None
        }
        for offset, record in list(self.left.items()):
            if offset >= end:
                continue
            may_go = record.seen_ms is not None and now >= record.seen_ms + RETENTION_MS
            if (
                record.key is None
                or latest.get(record.key, offset) > offset
                or (record.value is None and may_go)
            ):
                del self.left[offset]
            elif record.value is None and record.seen_ms is None:
                self.left[offset] = replace(record, seen_ms=now)

    def _read(self, start: int) -> list[tuple[int, Record]]:
        self.log.refresh()
        found = self.log.read("t", 0, start, include_headers=True)
        times = found["timestamp"].cast(pa.int64()).to_pylist()
        return [
            (
                row["offset"],
                Record(
                    row["key"],
                    row["value"],
                    time_ms,
                    tuple((one["key"], one["value"]) for one in row["headers"] or ()),
                ),
            )
            for row, time_ms in zip(found.to_pylist(), times, strict=True)
        ]

    @invariant()
    def records_are_those_of_the_model(self) -> None:
        state = self.log.refresh().partition("t", 0)
        found = self._read(state.log_start_offset)
        offsets = [offset for offset, _ in found]
        assert offsets == sorted(set(offsets))
        for offset, record in found:
            assert record == self.history[offset]
        if self.limits.dedupe_buffer_bytes != TINY_MAP:
            assert offsets == list(self.left)
        self._last_values_are_there(dict(found), state.log_start_offset)

    def _last_values_are_there(self, found: dict[int, Record], start: int) -> None:
        now = self.clock.now_ms()
        last: dict[bytes, int] = {}
        for offset, record in enumerate(self.history):
            if offset >= start and record.key is not None:
                last[record.key] = offset
        read = {record.key: offset for offset, record in found.items() if record.key is not None}
        for key, offset in last.items():
            if self.history[offset].value is not None or key in read:
                assert read[key] == offset  # nothing older comes back
            else:
                seen = self.left.get(offset, Record(None, None, 0, ())).seen_ms
                assert offset not in self.left or (seen is not None and now >= seen + RETENTION_MS)

    @invariant()
    def readers_reach_the_end(self) -> None:
        state = self.log.image.partition("t", 0)
        everything = [offset for offset, _ in self._read(state.log_start_offset)]
        for start in range(state.log_start_offset, state.log_end_offset):
            if start % 7 == 0:
                found = [offset for offset, _ in self._read(start)]
                assert found == [offset for offset in everything if offset >= start]
        if state.log_start_offset < state.log_end_offset:
            extent = list(state.extents)[-1]
            data = self.store.read(extent.segment, extent.position, extent.size)
            table = scan_batches(data, where="test")
            assert int(table.last_offset[-1]) + extent.offset_delta == state.log_end_offset - 1

    @invariant()
    def times_are_found(self) -> None:
        state = self.log.image.partition("t", 0)
        found = self._read(state.log_start_offset)
        for at in np.unique([record.timestamp_ms for _, record in found])[:5].tolist():
            expected = next(((o, r.timestamp_ms) for o, r in found if r.timestamp_ms >= at), None)
            assert self.log.offset_for_time("t", 0, at) == (None if expected is None else expected[0])


Compaction.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestCompaction: Any = Compaction.TestCase
