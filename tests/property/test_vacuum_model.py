"""Random lives of a root with vacuums in between: every offset reads as before, whatever clocks say.

Two processes over one store. They append, stage now and publish much later, merge, remove records and topics,
write snapshots and clean, and vacuum with any retention. The store's dates jump as they like.
"""

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sparklog.client import SparkLog
from sparklog.client.appender import StagedAppend
from sparklog.clock import ManualClock
from sparklog.errors import RetriableError, UnknownTopicError
from sparklog.log.segment_file import segment_of
from sparklog.maintenance import RETAIN_MS, MergeLimits, optimize, vacuum
from sparklog.metadata import (
    Action,
    Image,
    MetadataLog,
    MetadataSettings,
    born_of,
    plan_advance_log_start,
    plan_delete_topic,
)
from sparklog.storage import MemoryStore, StoreTraits

HOUR_MS = 3_600_000
REMOTE = StoreTraits(is_remote=True, appends_after_sync=False)
topics = st.sampled_from(["a", "b"])
processes = st.integers(0, 1)


class VacuumAgainstModel(RuleBasedStateMachine):
    """`model[topic]`: its values by offset; `starts[topic]`: the first that is kept."""

    @initialize(remote=st.booleans(), clean=st.booleans())
    def start(self, remote: bool, clean: bool) -> None:
        self.clock, self.dates = ManualClock(), ManualClock()
        self.store = MemoryStore("swept", clock=self.dates, traits=REMOTE if remote else None)
        self.settings = MetadataSettings(
            snapshot_bytes=4096 * 3, clean_grace_ms=-1 << 50 if clean else 1 << 50, clean_interval_ms=0
        )
        self.logs = [self.opened(), self.opened()]
        self.model: dict[str, list[bytes]] = {}
        self.starts: dict[str, int] = {}
        self.staged: list[tuple[int, str, bytes, StagedAppend]] = []
        self.count = 0
        for topic in ("a", "b"):
            self.make(topic)

    def opened(self) -> SparkLog:
        metadata = MetadataLog.open(self.store, self.clock, create=True, settings=self.settings)
        return SparkLog(self.store, metadata, self.clock)

    def make(self, topic: str) -> None:
        self.logs[0].refresh(force=True)
        self.logs[0].create_topic(topic, 1, {"segment.bytes": "500"})
        self.model[topic], self.starts[topic] = [], 0

    def rows(self) -> tuple[pa.Table, bytes]:
        self.count += 1
        value = b"%d" % self.count
        return pa.table({"value": pa.array([value], pa.binary())}), value

    @rule(process=processes, topic=topics, times=st.integers(1, 4))
    def append(self, process: int, topic: str, times: int) -> None:
        for _ in range(times):
            rows, value = self.rows()
            self.logs[process].append(topic, rows)
            self.model[topic].append(value)

    @rule(process=processes, topic=topics, looks=st.booleans())
    def stage(self, process: int, topic: str, looks: bool) -> None:
        log = self.logs[process]
        if looks:
            log.refresh(force=True)
        rows, value = self.rows()
        try:
            with log.appender() as appender:
                appender.add(rows, topic)
                self.staged.append((process, topic, value, appender.finish()))
        except UnknownTopicError:
            assert not looks

    @rule(which=st.integers(0, 1000))
    def publish(self, which: int) -> None:
        if not self.staged:
            return
        process, topic, value, staged = self.staged.pop(which % len(self.staged))
        try:
            self.logs[process].publish([staged])
        except UnknownTopicError:
            return  # another of the same name is there
        except RetriableError as error:
            assert error.code in {"STAGING_EXPIRED", "TOPIC_CHANGED"}  # noqa: PT017 - one of two
        else:
            self.model[topic].append(value)

    @rule(process=processes, shared=st.booleans())
    def merge(self, process: int, shared: bool) -> None:
        limits = MergeLimits(fan_in=None, shared_bytes=1 << 20 if shared else 0)
        optimize(self.logs[process].metadata, self.clock, limits=limits)

    @rule(topic=topics, count=st.integers(1, 9))
    def expire(self, topic: str, count: int) -> None:
        target = min(self.starts[topic] + count, len(self.model[topic]))
        topic_id = self.logs[0].refresh(force=True).topic(topic).topic_id

        def plan(image: Image) -> list[Action]:
            action = plan_advance_log_start(image, topic_id, 0, target)
            return [] if action is None else [action]

        self.logs[0].metadata.publish(plan)
        self.starts[topic] = target

    @rule(topic=topics)
    def delete(self, topic: str) -> None:
        self.logs[0].metadata.publish(lambda image: [plan_delete_topic(image, topic)])
        self.make(topic)

    @rule(process=processes)
    def write_snapshot(self, process: int) -> None:
        self.logs[process].metadata.write_snapshot()
        self.logs[process].metadata.clean()

    @rule(process=processes)
    def restart(self, process: int) -> None:
        self.logs[process] = self.opened()
        self.staged = [one for one in self.staged if one[0] != process]

    @rule(hours=st.sampled_from([0.001, 1, 24, 24 * 8]))
    def wait(self, hours: float) -> None:
        self.clock.advance_ms(hours * HOUR_MS)
        self.dates.advance_ms(hours * HOUR_MS)

    @rule(days=st.sampled_from([-1000, -8, -1, 1, 8, 1000]))
    def set_the_stores_clock(self, days: int) -> None:
        self.dates.advance_ms(days * 24 * HOUR_MS)

    @rule(process=processes, retain_ms=st.sampled_from([0, HOUR_MS, RETAIN_MS]))
    def vacuum(self, process: int, retain_ms: int) -> None:
        told = self.run(process, retain_ms, dry_run=True)
        before = self.files()
        assert told == self.run(process, retain_ms, dry_run=False)
        gone = before - self.files()
        assert len(gone) == told
        horizon = self.logs[process].image.sweep_horizon
        assert all(born_of(segment_of(name) or "") < horizon for name in gone)

    def run(self, process: int, retain_ms: int, *, dry_run: bool) -> int:
        log = self.logs[process]
        report = vacuum(log.metadata, self.clock, retain_ms=retain_ms, force=True, dry_run=dry_run)
        assert report.horizon <= log.image.commit
        return report.dead.files

    def files(self) -> set[str]:
        names = {file.name for file in self.store.list("", recursive=True)}
        return {name for name in names if not name.startswith("__cluster_metadata/")}

    @invariant()
    def everything_reads_as_before(self) -> None:
        if not hasattr(self, "logs"):
            return
        for log in self.logs:
            log.refresh(force=True)
            for topic, values in self.model.items():
                start = self.starts[topic]
                assert log.log_start_offset(topic, 0) == start
                assert log.log_end_offset(topic, 0) == len(values)
                found = log.read(topic, 0, start) if start < len(values) else None
                assert (found["value"].to_pylist() if found is not None else []) == values[start:]


TestVacuumAgainstModel = VacuumAgainstModel.TestCase
TestVacuumAgainstModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
