"""Maintenance by the broker: finds out whether anything is due, and starts a process of low priority for it.

A process, not a thread: merging takes the interpreter's lock for milliseconds at a time, which the event loop
would wait for; and a process can have a lower priority than the broker. While the broker is busy, what can
wait does. What groups wait for cannot (urgent_topics): a round for those topics alone, at the broker's own
priority, cancels one of low priority, which has had one interval at least: so each urgent round is followed
by one of what can wait.
Invariants: one round at a time; only while this broker is in charge, and the controller: else the round is
    cancelled, since it keeps the next controller's from this machine. What is due is computed from the image
    that the broker holds, in a storage thread. A failure is logged, once until another one comes, and never
    harms requests. The broker's stop, or its death, cancels the round: nothing is lost, it is due again.
Not here: what is due, and doing it (sparklog/maintenance).
Concurrency: one task on the event loop. It polls the process: nothing waits for it without a bound.
After a crash: the process reads the end of its pipe, and cancels the round.
Sources: Kafka LogCleaner (backoff, one line a round in its log), LogManager (retention).
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from sparklog.client.round_process import Pace, RoundAnswer, RoundProcess, RoundRequest
from sparklog.clock import Clock
from sparklog.errors import SparklogError
from sparklog.maintenance import Budget, RoundReport, Terms, due_steps, urgent_topics
from sparklog.maintenance.choose import Dirtiness
from sparklog.maintenance.rounds import dirtiness_of
from sparklog.storage.filesystems import OPTION as ALLOW_UNSAFE
from sparklog_server.cluster.membership import Membership
from sparklog_server.metrics import Metrics
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.settings.config import ServerConfig
from sparklog_server.settings.groups import MaintenanceSettings

# --- idle moments ------------------------------------------------------------------------------------
#
# What can wait is put off until the broker is idle, for a bounded time.
#
# To merge is to read, write and sync once more what has just been produced: with a producer at full speed
# that took up to half of its rate (benchmarks/README.md), on the same disk and the same processors. A minute
# later the load may be over; and if not, one round for a minute costs less than rounds for each moment.
#
# Invariants: nothing waits for longer than the setting says; the broker is busy or idle by its own processor
#     time, without that of its rounds, over a second at least.


BUSY_SHARE = 0.1  # of one processor: an idle broker with a hundred groups takes a third of that
_LEAST_MS = 1_000


class IdleMoments:
    """Decide when what is due may begin.

    Args:
        most_ms: how long it waits at most; 0: not at all.
        cpu_seconds: returns the processor time of this process, so far.
    """

    def __init__(
        self, most_ms: int, *, clock: Clock, cpu_seconds: Callable[[], float] = time.process_time
    ) -> None:
        self._most_ms = most_ms
        self._clock = clock
        self._cpu_seconds = cpu_seconds
        self._measured_ms, self._measured_cpu = clock.monotonic_ms(), cpu_seconds()
        self._is_busy = False
        self._since_ms: int | None = None  # what is due has waited since

    def change(self, most_ms: int) -> None:
        """Set how long it waits at most, from now on."""
        self._most_ms = most_ms

    def may_begin(self) -> bool:
        """Something is due: return True if it may begin now. Call it again until it does."""
        now_ms = self._measure()
        if self._since_ms is None:
            self._since_ms = now_ms
        if self._is_busy and now_ms - self._since_ms < self._most_ms:
            return False
        self._since_ms = None
        return True

    def nothing_due(self) -> None:
        """Record that nothing waits any more."""
        self._measure()
        self._since_ms = None

    def _measure(self) -> int:
        now_ms = self._clock.monotonic_ms()
        elapsed_ms = now_ms - self._measured_ms
        if elapsed_ms >= _LEAST_MS:
            cpu = self._cpu_seconds()
            self._is_busy = (cpu - self._measured_cpu) * 1000 > BUSY_SHARE * elapsed_ms
            self._measured_ms, self._measured_cpu = now_ms, cpu
        return now_ms


# --- service -----------------------------------------------------------------------------------------


POLL_SECONDS = 0.1
END_SECONDS: Final = 2.0
CANCEL_SECONDS = 10.0  # it takes five at most, unless its storage hangs
_EXPIRE = "expire"
# Also without log.cleaner.enable, as in Kafka; and whether the broker is busy or not: it is one commit.
_IN_ANY_CASE = frozenset({_EXPIRE, "producers"})
# What an urgent round does; if it could do nothing, there is no other for a while.
_REWRITES = frozenset({"compact", "optimize"})
_FRUITLESS_MS = 600_000
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
        self._problem = ""
        self._pace = Pace()
        self._moments = IdleMoments(config.maintenance.sparklog_maintenance_delay_max_ms, clock=clock)
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._process: RoundProcess | None = None
        self._is_cancelled = False

    async def start(self) -> None:
        """Begin. A root in this process's memory is out of reach for another process."""
        if not self._root.store.url.startswith("memory:"):
            self._task = asyncio.create_task(self._watch())
            self._task.add_done_callback(self._has_ended)

    def change(self, settings: MaintenanceSettings) -> None:
        """Use these settings from now on, also if the next look was to be in a day. Cancel a round that was
        begun with others: at a byte a second, by mistake, it would never end.
        """
        if settings == self._settings:
            return
        before, self._settings = self._settings, settings
        if _of_rounds(settings) != _of_rounds(before):
            self._cancel()
        self._moments.change(settings.sparklog_maintenance_delay_max_ms)
        self._changed.set()

    async def stop(self) -> None:
        """Cancel what is being done, and wait for its end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        """Report an end other than by stop(): a bug."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._metrics.maintenance.is_dead = True
            _log.error("maintenance has ended", exc_info=error)

    async def _watch(self) -> None:
        while True:
            if await self._has_changed_within(self._pace.wait_ms(self._usual_ms) / 1000):
                continue
            if not self._is_ours:
                continue  # one broker does it; the next one finds what is due
            try:
                await self._maintain_if_due()
            except (SparklogError, OSError) as error:
                self._warn(str(error))
                self._pace.slow_down()

    @property
    def _is_ours(self) -> bool:
        return self._membership.is_in_charge and self._is_controller()

    @property
    def _usual_ms(self) -> int:
        settings = self._settings
        expiry_ms = settings.log_retention_check_interval_ms
        return min(settings.log_cleaner_backoff_ms, expiry_ms) if settings.log_cleaner_enable else expiry_ms

    async def _has_changed_within(self, seconds: float) -> bool:
        """Wait for so long, or until settings change. Not by wait_for, which loses a stop() that comes just
        as they do.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    async def _maintain_if_due(self) -> None:
        if await self._did_urgent_work() and not self._is_ours:
            return  # it may have taken minutes
        now_ms = self._clock.monotonic_ms()
        due, dirt = await self._root.run(self._due, now_ms >= self._expiry_ms)
        self._metrics.maintenance.dirty_ratio = dirt.ratio
        self._metrics.maintenance.compaction_overdue_ms = dirt.overdue_ms
        self._count_skipped()
        if now_ms >= self._expiry_ms:
            self._expiry_ms = now_ms + self._settings.log_retention_check_interval_ms
        if not due:
            self._pace.reset()
        due = self._that_begin_now(due)
        if not due:
            return
        self._note(await self._run_round(due))

    async def _did_urgent_work(self) -> bool:
        """True if there was anything. All else comes after it: of groups that commit all the time something
        is urgent at each look.
        """
        urgent = await self._urgent()
        if urgent is None:
            return False
        answer = await self._run_round(*urgent, is_urgent=True)
        self._note(answer)
        is_fruitless = answer.report is None or not answer.report.has_done_anything
        if is_fruitless and not self._is_cancelled:
            self._next_urgent_ms = self._clock.monotonic_ms() + _FRUITLESS_MS
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
        """Return the steps of the next round, and how much there is to be compacted. In a storage thread."""
        terms = self._terms()
        skip = _NEVER if may_expire else _NEVER | {_EXPIRE}
        image, now_ms = self._root.image, self._clock.now_ms()
        due = due_steps(image, now_ms, terms, skip=skip)
        if not self._settings.log_cleaner_enable:
            return tuple(step for step in due if step in _IN_ANY_CASE), Dirtiness()
        return tuple(due), dirtiness_of(image, now_ms, terms)

    def _that_begin_now(self, due: tuple[str, ...]) -> tuple[str, ...]:
        """The others wait until the broker is idle."""
        if all(step in _IN_ANY_CASE for step in due):
            self._moments.nothing_due()
            return due
        if self._moments.may_begin():
            return due
        return tuple(step for step in due if step in _IN_ANY_CASE)

    def _terms(self) -> Terms:
        return Terms(
            defaults=self._defaults,
            dedupe_buffer_bytes=self._settings.log_cleaner_dedupe_buffer_size,
            skip=self._pace.skipped.keys(self._clock.now_ms()),
        )

    def _count_skipped(self) -> None:
        ids = self._root.image.topic_by_id
        skipped = [part for part in self._pace.skipped.now(self._clock.now_ms()) if part.topic_id in ids]
        self._metrics.maintenance.uncleanable_partitions = len(skipped)
        self._metrics.maintenance.uncleanable_bytes = sum(part.size_bytes for part in skipped)

    async def _run_round(
        self, steps: tuple[str, ...], topics: tuple[str, ...] | None = None, *, is_urgent: bool = False
    ) -> RoundAnswer:
        """OSError: there can be no process."""
        settings = self._settings
        request = RoundRequest(
            root=self._root.store.url,
            cluster_id=self._root.cluster_id,
            storage_options={ALLOW_UNSAFE: True} if self._allow_unsafe else None,
            steps=steps,
            terms=replace(self._terms(), topics=topics),
            budget=Budget(
                bytes_per_second=settings.bytes_per_second,
                files_per_second=settings.sparklog_vacuum_max_files_per_second,
            ),
        )
        self._is_cancelled = False
        process = self._process = RoundProcess(request, is_urgent=is_urgent)
        try:
            await self._wait_for(process, is_urgent=is_urgent)
        finally:
            self._process = None
            await end_round(process)
        return process.answer() or RoundAnswer(error="the process does not end")

    async def _wait_for(self, process: RoundProcess, *, is_urgent: bool) -> None:
        """Return when the round has ended, or is cancelled since another is to be done."""
        looks = 0  # in a row at which it was not ours: a storage that is slow for a moment ends nothing
        while not await has_ended_within(process, self._usual_ms / 1000):
            looks = 0 if self._is_ours else looks + 1
            if looks > 1 or (not is_urgent and await self._urgent() is not None):
                self._cancel()
                await has_ended_within(process, CANCEL_SECONDS)
                return

    def _cancel(self) -> None:
        """Cancel the round that runs, if any: what it has not done is due again."""
        if self._process is not None:
            self._is_cancelled = True
            self._process.cancel()

    def _note(self, answer: RoundAnswer) -> None:
        report = answer.report
        counters = self._metrics.maintenance
        if self._is_cancelled:  # by us: it has not failed
            _log.info("the round was cancelled; remaining work is rescheduled")
        else:
            self._warn(answer.problem)
            self._pace.note(answer, self._clock.now_ms())
            counters.failed_rounds += report.has_failed if report is not None else not answer.is_busy
        self._count_skipped()
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

    def _warn(self, problem: str) -> None:
        """Log a problem unless it is the last one."""
        if problem and problem != self._problem:
            _log.warning("maintenance: %s", problem)
        self._problem = problem


async def has_ended_within(process: RoundProcess, seconds: float) -> bool:
    """Wait for the end of a process, for so long."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while process.answer() is None:
        left = end - loop.time()
        if left <= 0:
            return False
        await asyncio.sleep(min(left, POLL_SECONDS))
    return True


async def end_round(process: RoundProcess) -> None:
    """Cancel a round, and kill its process if it does not end."""
    process.cancel()
    if not await has_ended_within(process, END_SECONDS):
        process.kill()
        if not await has_ended_within(process, END_SECONDS):
            _log.warning("a round's process was killed, and has not ended: its storage may hang")


def _of_rounds(settings: MaintenanceSettings) -> tuple[object, ...]:
    """The settings that a round is begun with."""
    return (
        settings.bytes_per_second,
        settings.sparklog_vacuum_max_files_per_second,
        settings.log_cleaner_dedupe_buffer_size,
    )


def line_of(report: RoundReport) -> str:
    """Return a round as one line of the log."""
    done = "; ".join(
        f"{step.step} {step.outcome}: "
        + ", ".join(f"{name}={value}" for name, value in step.figures.items() if value)
        for step in report.steps
        if step.outcome in {"done", "cut"}
    )
    return (
        f"{done}; extents {report.before.extents} -> {report.after.extents}, "
        f"bytes {report.before.bytes} -> {report.after.bytes}, {report.duration_ms} ms"
    )
