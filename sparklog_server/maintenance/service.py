"""Maintenance by the broker: looks whether anything is due, and has a process of low priority do it.

A process, not a thread: merging takes the interpreter's lock for milliseconds at a time, which the event loop
would wait for; and the scheduler and the disk can put a process behind the broker. While the broker is busy,
what can wait does. What groups wait for cannot (sparklog/maintenance/choose.py): a round
for those topics alone, at the broker's own priority, breaks off one that has the machine's idle time only,
and has had it for one interval at least: what can wait gets its turn after each that cannot.
Invariants: one round at a time; only while this broker is in charge, and the controller:
    else it breaks off, since it keeps the next controller's from this machine. What is due is told from the
    image that the broker holds, in a storage thread. A failure is logged, once until another one comes, and
    never harms requests. With the broker's stop, or its death, the round breaks off: nothing is lost, it is
    due again.
Not here: what is due, and doing it (sparklog/maintenance).
Concurrency: one task on the event loop.
After a crash: the process hears the end of its pipe, and breaks off.
Sources: Kafka LogCleaner (backoff, one line a round in its log), LogManager (retention).
"""

import asyncio
import contextlib
import errno
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from sparklog.client.rounds import Pace, RoundAnswer, RoundProcess, RoundRequest
from sparklog.clock import Clock
from sparklog.errors import SparklogError, as_value
from sparklog.maintenance import (
    RoundReport,
    Terms,
    due_steps,
    keys_of,
    urgent_topics,
)
from sparklog.maintenance.choose import Dirtiness
from sparklog.maintenance.maintain import dirtiness_of
from sparklog.storage.filesystems import OPTION as ALLOW_UNSAFE
from sparklog_server.cluster.membership import Membership
from sparklog_server.metrics import Metrics
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.settings.config import ServerConfig
from sparklog_server.settings.groups import MaintenanceSettings

# --- running round -----------------------------------------------------------------------------------
#
# A thread begins it and waits for it, and not the loop: uvloop forks, and runs Python in the child before
# that is another program, without the threads that hold what it may need; and the loop waits for it, the
# longer the more memory the broker has. `subprocess` runs nothing in between.
# Invariants: nobody waits for the process without a bound, and a cancellation is never lost, not even one
#     that comes as the process ends (asyncio.wait_for before Python 3.12 loses it, and a stop would wait for
#     ever).
# Not here: the process (sparklog/client/rounds.py).
# Concurrency: event loop; one thread a round, which ends with the process and keeps nobody.
# After a crash: the process hears the end of its pipe, and breaks off.


END_SECONDS: Final = 2.0
T = TypeVar("T")
_Order = Callable[[RoundProcess], None]


class RunningRound:
    """The process of one maintenance round: started, read, cancelled, and ended with its owner."""

    def __init__(self, request: RoundRequest, *, is_urgent: bool) -> None:
        """Begin it. That there can be no process is told by `answer`; OSError: there can be no thread."""
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[RoundAnswer] = self._loop.create_future()
        self._lock = threading.Lock()
        self._process: RoundProcess | None = None
        self._orders: list[_Order] = []  # from before there was a process
        thread = threading.Thread(
            target=self._run, args=(request, is_urgent), name="maintenance-round", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # as many as the system allows, for now
            raise OSError(errno.EAGAIN, f"a round of maintenance cannot begin: {error}") from error

    async def has_ended_within(self, seconds: float) -> bool:
        """Wait for its end, for so long."""
        await asyncio.wait([self.ended], timeout=seconds)
        return self.ended.done()

    def answer(self) -> RoundAnswer:
        """What came of it. OSError: there was no process."""
        return self.ended.result() if self.ended.done() else RoundAnswer(error="the process does not end")

    def break_off(self) -> None:
        """Have it come to its end soon; may be called again."""
        self._have(RoundProcess.leave)

    async def end(self) -> None:
        """Have it break off, and make it end if it does not."""
        if self.ended.done():
            return
        self.break_off()
        if await self.has_ended_within(END_SECONDS):
            return
        self._have(RoundProcess.kill)
        if not await self.has_ended_within(END_SECONDS):
            _log.warning("a round's process was killed, and has not ended: its storage hangs, maybe")

    def _have(self, order: _Order) -> None:
        with self._lock:
            process = self._process
            if process is None:
                self._orders.append(order)
                return
        order(process)

    def _run(self, request: RoundRequest, is_urgent: bool) -> None:
        try:
            process = RoundProcess(request, is_urgent=is_urgent)
            with self._lock:
                self._process = process
            for order in self._orders:
                order(process)
            answer = process.wait()
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            self._tell(self._failed, as_value(error))
        else:
            self._tell(self._succeeded, answer)

    def _tell(self, callback: Callable[[T], None], what: T) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(callback, what)

    def _succeeded(self, answer: RoundAnswer) -> None:
        self.ended.set_result(answer)

    def _failed(self, error: Exception) -> None:
        self.ended.set_exception(error)
        self.ended.exception()  # seen: whoever waited may be gone


# --- idle moments ------------------------------------------------------------------------------------
#
# What can wait waits for a moment in which the broker has little to do, but not for ever.
#
# To merge is to read, write and sync once more what has just been produced: beside a producer at full speed
# that took up to half of its rate (benchmarks/README.md), on the same disk and the same processors. A minute
# later the load may be over; and if not, one round for a minute costs less than rounds for each moment.
#
# Invariants: nothing waits for longer than the setting says; the broker is busy or not by its own processor
#     time, its rounds' not included, over a second at least.
# Concurrency: one task of the event loop.


BUSY_SHARE = 0.1  # of one processor: an idle broker with a hundred groups takes a third of that
_LEAST_MS = 1_000


class IdleMoments:
    """See the module's docstring.

    Args:
        most_ms: how long what is due waits at most; 0: not at all.
        cpu_seconds: of this process, so far.
    """

    def __init__(
        self, most_ms: int, *, clock: Clock, cpu_seconds: Callable[[], float] = time.process_time
    ) -> None:
        self._most_ms = most_ms
        self._clock = clock
        self._cpu_seconds = cpu_seconds
        self._looked_ms, self._looked_cpu = clock.monotonic_ms(), cpu_seconds()
        self._is_busy = False
        self._since_ms: int | None = None  # what is due has waited since

    def change(self, most_ms: int) -> None:
        """Wait for so long at most, from now on."""
        self._most_ms = most_ms

    def may_begin(self) -> bool:
        """Something is due: is now the time? Asked again, until it is."""
        now_ms = self._look()
        if self._since_ms is None:
            self._since_ms = now_ms
        if self._is_busy and now_ms - self._since_ms < self._most_ms:
            return False
        self._since_ms = None
        return True

    def nothing_due(self) -> None:
        """Nothing waits any more."""
        self._look()
        self._since_ms = None

    def _look(self) -> int:
        now_ms = self._clock.monotonic_ms()
        elapsed_ms = now_ms - self._looked_ms
        if elapsed_ms >= _LEAST_MS:
            cpu = self._cpu_seconds()
            self._is_busy = (cpu - self._looked_cpu) * 1000 > BUSY_SHARE * elapsed_ms
            self._looked_ms, self._looked_cpu = now_ms, cpu
        return now_ms


# --- service -----------------------------------------------------------------------------------------


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
