"""Maintenance by the broker: looks whether anything is due, and has a process of low priority do it.

A process, not a thread: merging takes the interpreter's lock for milliseconds at a time, which the event loop
would wait for; and the scheduler and the disk can put a process behind the broker. While the broker is busy,
what can wait does (idle_moments.py). What groups wait for cannot (sparklog/maintenance/urgent.py): a round
for those topics alone, at the broker's own priority, breaks off one that has the machine's idle time only,
and has had it for one interval at least: what can wait gets its turn after each that cannot.
Invariants: one round at a time; only while this broker is in charge, and the controller:
    else it breaks off, since it keeps the next controller's from this machine. What is due is told from the
    image that the broker holds, in a storage thread. A failure is logged, once until another one comes, and
    never harms requests. With the broker's stop, or its death, the round breaks off: nothing is lost, it is
    due again.
Not here: what is due, and doing it (sparklog/maintenance); the process (running_round.py).
Concurrency: one task on the event loop.
After a crash: the process hears the end of its pipe, and breaks off.
Sources: Kafka LogCleaner (backoff, one line a round in its log), LogManager (retention).
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from sparklog.client.round_pace import Pace
from sparklog.client.round_process import RoundAnswer, RoundRequest
from sparklog.clock import Clock
from sparklog.errors import SparklogError
from sparklog.maintenance import (
    RoundReport,
    Terms,
    due_steps,
    keys_of,
    urgent_topics,
)
from sparklog.maintenance.choose_compactions import Dirtiness
from sparklog.maintenance.steps import dirtiness_of
from sparklog.storage.filesystems import OPTION as ALLOW_UNSAFE
from sparklog_server.cluster.membership import Membership
from sparklog_server.maintenance.idle_moments import IdleMoments
from sparklog_server.maintenance.running_round import RunningRound
from sparklog_server.metrics import Metrics
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.settings.config import ServerConfig
from sparklog_server.settings.maintenance import MaintenanceSettings

BREAK_OFF_SECONDS = 10.0  # it takes five at most, if it can do anything at all
_EXPIRE = "expire"
# Also without log.cleaner.enable, as in Kafka; and whether the broker is busy or not: it is one commit.
_IN_ANY_CASE = frozenset({_EXPIRE, "producers"})
# What an urgent round does; if there was nothing that it could do, there is none for a while.
_REWRITES = frozenset({"compact", "optimize"})
_IN_VAIN_MS = 600_000
_NEVER = frozenset({"transactions"})  # of which the controller takes care itself (transactions/sweep.py)
_log = logging.getLogger("sparklog_server.log_cleaner")


class MaintenanceService:
    """See the module's docstring."""

    def __init__(
        self,
        root: LiveRoot,
        membership: Membership,
        config: ServerConfig,
        *,
        is_controller: Callable[[], bool],
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._root = root
        self._membership = membership
        self._is_controller = is_controller
        self._settings = config.maintenance
        self._defaults = config.maintenance_defaults()
        self._allow_unsafe = config.broker.allow_unsafe_filesystem
        self._clock = clock
        self._metrics = metrics
        self._expiry_ms = self._next_urgent_ms = clock.monotonic_ms()
        self._told = ""
        self._pace = Pace()
        self._moments = IdleMoments(config.maintenance.sparklog_maintenance_delay_max_ms, clock=clock)
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._round: RunningRound | None = None
        self._is_broken_off = False

    async def start(self) -> None:
        """Look from now on. A root in this process's memory is nothing for another one."""
        if not self._root.store.url.startswith("memory:"):
            self._task = asyncio.create_task(self._watch())
            self._task.add_done_callback(self._has_ended)

    def change(self, settings: MaintenanceSettings) -> None:
        """Go by these from now on, also if the next look was to be in a day, or a round runs that was begun
        with others: at a byte a second, by mistake, it would be the last one.
        """
        if settings == self._settings:
            return
        before, self._settings = self._settings, settings
        if _of_rounds(settings) != _of_rounds(before):
            self._break_off()
        self._moments.change(settings.sparklog_maintenance_delay_max_ms)
        self._changed.set()

    async def stop(self) -> None:
        """Break off what is being done, and wait for its end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        """Not as stop() ends it: by a fault of ours, which must not stay unnoticed."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._metrics.maintenance.is_dead = True
            _log.error("maintenance has ended", exc_info=error)

    async def _watch(self) -> None:
        while True:
            if await self._is_told_within(self._pace.wait_ms(self._usual_ms) / 1000):
                continue  # of another interval
            if not self._is_ours:
                continue  # one broker does it; who takes over finds what is due
            try:
                await self._look()
            except (SparklogError, OSError) as error:
                self._tell(str(error))
                self._pace.came_to_nothing()

    @property
    def _is_ours(self) -> bool:
        return self._membership.is_in_charge and self._is_controller()

    @property
    def _usual_ms(self) -> int:
        settings = self._settings
        expiry_ms = settings.log_retention_check_interval_ms
        return min(settings.log_cleaner_backoff_ms, expiry_ms) if settings.log_cleaner_enable else expiry_ms

    async def _is_told_within(self, seconds: float) -> bool:
        """Wait for so long, or until settings change. Not by wait_for, which loses a stop() that comes in the
        moment in which they do.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    async def _look(self) -> None:
        if await self._has_done_what_is_urgent() and not self._is_ours:
            return  # it may have taken minutes
        now_ms = self._clock.monotonic_ms()
        due, dirt = await self._root.run(self._due, now_ms >= self._expiry_ms)
        self._metrics.maintenance.dirty_ratio = dirt.ratio
        self._metrics.maintenance.compaction_overdue_ms = dirt.overdue_ms
        self._count_uncleanable()
        if now_ms >= self._expiry_ms:
            self._expiry_ms = now_ms + self._settings.log_retention_check_interval_ms
        if not due:
            self._pace.went_well()
        due = self._that_begin_now(due)
        if not due:
            return
        self._note(await self._run_round(due))

    async def _has_done_what_is_urgent(self) -> bool:
        """Was there anything? All else comes after it: of groups that commit all the time something is urgent
        at each look.
        """
        urgent = await self._urgent()
        if urgent is None:
            return False
        answer = await self._run_round(*urgent, is_urgent=True)
        self._note(answer)
        is_in_vain = answer.report is None or not answer.report.has_done_anything
        if is_in_vain and not self._is_broken_off:
            self._next_urgent_ms = self._clock.monotonic_ms() + _IN_VAIN_MS
        return True

    async def _urgent(self) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """The steps of an urgent round, and its topics."""
        topics = urgent_topics(self._root.image)
        if not (topics and self._settings.log_cleaner_enable):
            return None
        if self._clock.monotonic_ms() < self._next_urgent_ms:
            return None
        steps = await self._root.run(self._rewrites_due, topics)
        return (steps, topics) if steps else None

    def _rewrites_due(self, topics: tuple[str, ...]) -> tuple[str, ...]:
        """In a storage thread."""
        terms = replace(self._terms(), topics=topics)
        due = due_steps(self._root.image, self._clock.now_ms(), terms)
        return tuple(step for step in due if step in _REWRITES)

    def _due(self, may_expire: bool) -> tuple[tuple[str, ...], Dirtiness]:
        """The names of the steps that a round is to do now, and how much there is to be compacted. In a
        storage thread.
        """
        terms = self._terms()
        but = _NEVER if may_expire else _NEVER | {_EXPIRE}
        image, now_ms = self._root.image, self._clock.now_ms()
        due = due_steps(image, now_ms, terms, but=but)
        if not self._settings.log_cleaner_enable:
            return tuple(step for step in due if step in _IN_ANY_CASE), Dirtiness()
        return tuple(due), dirtiness_of(image, now_ms, terms)

    def _that_begin_now(self, due: tuple[str, ...]) -> tuple[str, ...]:
        """The others wait for a moment in which the broker has less to do."""
        if all(step in _IN_ANY_CASE for step in due):
            self._moments.nothing_due()
            return due
        if self._moments.may_begin():
            return due
        return tuple(step for step in due if step in _IN_ANY_CASE)

    def _terms(self) -> Terms:
        but = keys_of(self._pace.uncleanable(self._clock.now_ms()))
        return Terms(
            defaults=self._defaults,
            dedupe_buffer_bytes=self._settings.log_cleaner_dedupe_buffer_size,
            but=but,
        )

    def _count_uncleanable(self) -> None:
        ids = self._root.image.topic_by_id
        known = self._pace.uncleanable(self._clock.now_ms())
        found = [one.found for one in known if one.found.topic_id in ids]
        self._metrics.maintenance.uncleanable_partitions = len(found)
        self._metrics.maintenance.uncleanable_bytes = sum(one.size_bytes for one in found)

    async def _run_round(
        self, steps: tuple[str, ...], topics: tuple[str, ...] | None = None, *, is_urgent: bool = False
    ) -> RoundAnswer:
        terms, settings = self._terms(), self._settings
        self._is_broken_off = False
        request = RoundRequest(
            root=self._root.store.url,
            cluster_id=self._root.cluster_id,
            storage_options={ALLOW_UNSAFE: True} if self._allow_unsafe else None,
            steps=steps,
            topics=topics,
            defaults=self._defaults,
            bytes_per_second=settings.bytes_per_second,
            files_per_second=settings.sparklog_vacuum_max_files_per_second,
            dedupe_buffer_bytes=terms.dedupe_buffer_bytes,
            but=tuple(terms.but),
        )
        running = self._round = RunningRound(request, is_urgent=is_urgent)
        try:
            await self._hear(running, is_urgent=is_urgent)
            return running.answer()
        finally:
            self._round = None
            await running.end()

    async def _hear(self, running: RunningRound, *, is_urgent: bool) -> None:
        """Until the round ends, which we bring about if another is to be done."""
        looks = 0  # in a row at which it was not ours: a storage that is slow for a moment ends nothing
        while not await running.has_ended_within(self._usual_ms / 1000):
            looks = 0 if self._is_ours else looks + 1
            if looks > 1 or (not is_urgent and await self._urgent() is not None):
                self._break_off()
                await running.has_ended_within(BREAK_OFF_SECONDS)
                return

    def _break_off(self) -> None:
        """Have the round that runs come to its end: what it has not done is due again."""
        if self._round is not None:
            self._is_broken_off = True
            self._round.break_off()

    def _note(self, answer: RoundAnswer) -> None:
        report = answer.report
        counters = self._metrics.maintenance
        if self._is_broken_off:  # by us: what it has not done is due again, and it has not failed
            _log.info("the round was broken off: what it has not done is due again")
        else:
            self._tell(answer.problem)
            self._pace.note(answer, self._clock.now_ms())
            counters.failed_rounds += report.has_failed if report is not None else not answer.is_busy
        self._count_uncleanable()
        counters.rounds += 1
        counters.last_round_ms = self._clock.now_ms()
        for step in report.steps if report is not None else ():
            if step.outcome not in {"done", "cut"}:
                continue
            figures = step.figures
            if step.step == "compact" and figures.get("read_bytes"):
                counters.recopied_ratio = figures["written_bytes"] / figures["read_bytes"]
                counters.clean_ms = step.duration_ms
            counters.expired_records += figures.get("offsets", 0)
            counters.merged_extents += figures.get("merged_extents", 0)
            counters.merged_bytes += figures.get("read_bytes", 0)
        if report is not None and report.has_done_anything:
            _log.info("%s", line_of(report))

    def _tell(self, problem: str) -> None:
        """What is as it was before is not told again."""
        if problem and problem != self._told:
            _log.warning("maintenance: %s", problem)
        self._told = problem


def _of_rounds(settings: MaintenanceSettings) -> tuple[object, ...]:
    """What a round is begun with."""
    return (
        settings.bytes_per_second,
        settings.sparklog_vacuum_max_files_per_second,
        settings.log_cleaner_dedupe_buffer_size,
    )


def line_of(report: RoundReport) -> str:
    """A round in one line of the log."""
    done = "; ".join(
        f"{one.step} {one.outcome}: "
        + ", ".join(f"{name}={value}" for name, value in one.figures.items() if value)
        for one in report.steps
        if one.outcome in {"done", "cut"}
    )
    return (
        f"{done}; extents {report.before.extents} -> {report.after.extents}, "
        f"bytes {report.before.bytes} -> {report.after.bytes}, {report.duration_ms} ms"
    )
