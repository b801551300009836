"""The keepers of a simulated root: they merge, compact, expire, vacuum, snapshot and clean, at any time.

What they do is the code that does it everywhere (sparklog/maintenance), and nobody keeps two of them from
doing it at once: no store here holds names.
"""

from dataclasses import dataclass, field

from sparklog.client import SparkLog
from sparklog.errors import DataLossError, OffsetOutOfRangeError, UnknownTopicError
from sparklog.maintenance import CompactionLimits, MergeLimits, compact, optimize, vacuum
from sparklog.maintenance.compacted_batches import SLOT_BYTES
from sparklog.metadata import Action, ExpireProducers, Image, plan_advance_log_start
from tests.history.recorder import History
from tests.simulation.compacted import Reading, Witness
from tests.simulation.keyed import KEYED
from tests.simulation.processes import Role, key_of, look_at
from tests.simulation.setting import HOUR_MS, Setting
from tests.simulation.world import START_MS, SimProcess


@dataclass
class NotedClock:
    """A process's clock; what it tells rounds of compaction is noted."""

    process: SimProcess
    witness: Witness

    def now_ms(self) -> int:
        now_ms = self.process.now_ms()
        self.witness.readings.append(Reading(self.process.world.now_us, now_ms))
        return now_ms

    def monotonic_ms(self) -> int:
        return self.process.monotonic_ms()

    def sleep_ms(self, duration_ms: float) -> None:
        self.process.sleep_ms(duration_ms)


@dataclass
class Keeper(Role):
    """Snapshots, cleans, sweeps, merges, compacts, moves log starts; all that is due, after idle hours."""

    due: list[str] = field(default_factory=list)
    dawn_us: int = 0

    def act(self, log: SparkLog, history: History, process: SimProcess) -> bool:
        if self.dawn_us < self.setting.idle_until_us <= process.world.now_us:
            self.dawn_us = self.setting.idle_until_us
            self.due = ["clean", "snapshot", "refresh", "snapshot"]
        action = self.due.pop() if self.due else self.setting.dice.choice(self._actions())
        if action == "snapshot":
            log.metadata.write_snapshot()
        elif action == "clean":
            log.metadata.clean(grace_ms=self.setting.dice.choice((-HOUR_MS, 0, 100, HOUR_MS)))
        elif action == "sweep":
            self._sweep(log, process)
        elif action == "merge":
            self._merge(log, process)
        elif action == "compact":
            self._compact(log, history, process)
        elif action == "policy":
            log.alter_topic(KEYED, {"cleanup.policy": self.setting.dice.choice(("compact", "delete"))})
        elif action in {"mark", "forget"}:
            forgetting = ExpireProducers(time_ms=0, marks_only=action == "mark")
            log.metadata.publish(lambda _: [forgetting])
        elif action == "expire" and self.setting.expires:
            self._expire(log, history)
        else:
            log.refresh()
        return True

    def _actions(self) -> tuple[str, ...]:
        actions: tuple[str, ...] = ("snapshot", "clean", "clean", "sweep", "expire", "refresh")
        if self.setting.merges:
            actions += ("merge", "merge", "merge")
        if self.setting.compaction is not None:
            actions += ("compact",) * 5
            if self.setting.compaction.keyless:
                actions += ("policy",)
        if self.setting.forgets and self.setting.producers:
            actions += ("mark", "forget", "forget")
        return actions

    def _sweep(self, log: SparkLog, process: SimProcess) -> None:
        log.store.sweep_temporary(older_than_ms=0)
        if self.setting.vacuums:
            self._vacuum(log, process)
        else:
            sweep_segments(log, self.setting)

    def _merge(self, log: SparkLog, process: SimProcess) -> None:
        dice = self.setting.dice
        limits = MergeLimits(fan_in=dice.choice((None, 2, 4)), shared_bytes=dice.choice((0, 1 << 20)))
        for topic in optimize(log.metadata, process, limits=limits).topics.values():
            self.setting.world.met["merged extents"] += topic.merged_extents
            self.setting.world.met["merged in vain"] += topic.left_out

    def _compact(self, log: SparkLog, history: History, process: SimProcess) -> None:
        """All that can be compacted, or what is due; then look at what is left."""
        dice, met = self.setting.dice, self.setting.world.met
        assert self.setting.compaction is not None
        limits = CompactionLimits(
            only_due=dice.random() < 0.2,
            dedupe_buffer_bytes=4 * SLOT_BYTES if self.setting.compaction.small_maps else 1 << 20,
        )
        report = compact(log.metadata, NotedClock(process, self.setting.witness), limits=limits)
        for topic in report.topics.values():
            met["rounds of compaction"] += topic.rounds
            met["compacted in vain"] += topic.left_out
            met["records superseded"] += topic.superseded
            met["records without a key removed"] += topic.keyless
            met["tombstones removed"] += topic.tombstones_removed
        if dice.random() < 0.5:
            self._look(log, history, (KEYED, dice.randrange(self.setting.partitions)))

    def _look(self, log: SparkLog, history: History, place: tuple[str, int]) -> None:
        history.seek(key_of(place))
        try:
            look_at(log, history, place, self.setting, log.log_start_offset(*place), most=1000)
        except (OffsetOutOfRangeError, DataLossError):
            if not self.setting.expires:  # nothing was removed while it was read
                raise

    def _vacuum(self, log: SparkLog, process: SimProcess) -> None:
        retain_ms = self.setting.dice.choice((0, 0, 1000, HOUR_MS))
        report = vacuum(log.metadata, process, retain_ms=retain_ms, force=True)
        self.setting.world.met["files vacuumed"] += report.dead.files

    def _expire(self, log: SparkLog, history: History) -> None:
        place = (
            self.setting.dice.choice(self.setting.topics),
            self.setting.dice.randrange(self.setting.partitions),
        )
        try:
            state = log.refresh().partition(*place)
        except UnknownTopicError:
            return
        start, end = state.log_start_offset, state.log_end_offset
        target = min(end, start + self.setting.dice.randrange(4))
        moving = history.begin("truncate", key=key_of(place), offset=target)
        moving.invoked({key_of(place): []})

        def plan(image: Image) -> list[Action]:
            action = plan_advance_log_start(image, state.topic_id, place[1], target)
            return [] if action is None else [action]

        log.metadata.publish(plan)
        moving.ok(key=key_of(place), offset=target)


def sweep_segments(log: SparkLog, setting: Setting) -> None:
    """By age, which is not how sparklog does it, in histories without `vacuum`: old, by the storage's clock,
    and unused for as long; who still reads, or writes to, what was merged has given up by then.

    First the listing, then the image: whatever the listing shows, and a later commit refers to, is in it.
    """
    listed = log.store.list("segments", recursive=True)
    image = log.metadata.refresh(force=True) if setting.lags else log.refresh()
    published = [state.extents for topic in image.topics.values() for state in topic.partitions]
    used = {
        extent.segment for extents in (*published, *image.transactions.staged_lists()) for extent in extents
    }
    now_ms = log.store.storage_now_ms(log.clock.now_ms())
    if setting.is_directory:
        now_ms = START_MS + setting.world.now_us // 1000  # the storage's own clock
    for stored in listed:
        segment = stored.name.removesuffix(".index").removesuffix(".log") + ".log"
        if segment in used:
            setting.unused_since_ms.pop(segment, None)
            continue
        since_ms = max(stored.modified_ms, setting.unused_since_ms.setdefault(segment, now_ms))
        if since_ms < now_ms - setting.sweep_after_ms:
            setting.world.faults["segments swept"] += 1
            log.store.delete(stored.name)
