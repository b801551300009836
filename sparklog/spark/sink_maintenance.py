"""Maintenance by a streaming sink, for roots without a broker.

After a micro-batch is committed, at most every LOOK_MS, the image that the driver holds shows whether
anything is due; if so, a process of low priority does one round (client/round_process.py).
Invariants: no micro-batch waits for it, and none fails because of it: errors are logged, once per cause. One
    round at a time for a root on this machine. It ends with the daemon that forks Spark's Python workers,
    which ends with the driver: workers may be others with each micro-batch
    (spark.python.worker.reuse=false), and end after a minute without work. Each worker has a pace of its own.
Cost: a comparison of times per commit; each LOOK_MS the choice of due steps, and at most once in EXPIRY_MS a
    process that only removes expired records.
Not here: the option `maintenance`, the steps of a round.
Concurrency: Spark's workers are single-threaded; a forked child starts anew.
After a crash: the round is due again, by the next process.
"""

import logging
import os

from sparklog.client import SparkLog
from sparklog.client.round_process import Pace, RoundProcess, RoundRequest
from sparklog.maintenance import Budget, Terms, due_steps
from sparklog.maintenance.budget import FILES_PER_SECOND
from sparklog.spark.options import SinkOptions
from sparklog.spark.roots import StorageOptions

LOOK_MS = 15_000
EXPIRY_MS = 300_000
_BUDGET = Budget(seconds=600.0, files_per_second=FILES_PER_SECOND)
_MAX_LOGGED = 100
logger = logging.getLogger("sparklog.spark")


class Keeper:
    """The maintenance of one root by this process."""

    def __init__(self) -> None:
        self.running: RoundProcess | None = None
        self._pace = Pace()
        self._look_ms: int | None = None
        self._expiry_ms: int | None = None
        self._logged: set[str] = set()

    def after_commit(self, log: SparkLog, options: SinkOptions) -> None:
        """Check for due steps, if LOOK_MS have passed, and start a round."""
        if log.url.startswith("memory:"):
            return  # of this process alone
        now_ms = log.clock.monotonic_ms()
        if self._look_ms is not None and now_ms < self._look_ms:
            return
        self._look_ms = now_ms + LOOK_MS
        if self.running is not None:
            answer = self.running.answer()
            if answer is None:
                return
            self.running = None
            self.warn(answer.problem)
            self._pace.note(answer, log.clock.now_ms())
            self._look_ms = now_ms + self._pace.wait_ms(LOOK_MS)
            if answer.is_fruitless:
                return
        self._start_if_due(log, options, now_ms)

    def _start_if_due(self, log: SparkLog, options: SinkOptions, now_ms: int) -> None:
        wall_ms = log.clock.now_ms()
        terms = Terms(skip=self._pace.skipped.keys(wall_ms))
        may_expire = self._expiry_ms is None or now_ms >= self._expiry_ms
        if may_expire:
            self._expiry_ms = now_ms + EXPIRY_MS
        due = next(due_steps(log.image, wall_ms, terms, skip=() if may_expire else ("expire",)), None)
        if due is None:
            self._pace.reset()
            return
        self.running = RoundProcess(
            RoundRequest(
                root=options.root,
                cluster_id=log.cluster_id,
                storage_options=options.storage.to_dict(),
                terms=terms,
                budget=_BUDGET,
                owner_pid=os.getppid(),
            )
        )

    def warn(self, problem: str) -> None:
        """Log each message at most once (best effort)."""
        if problem and problem not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add(problem)
            logger.warning("maintenance of the sink's root: %s", problem)


_keepers: dict[tuple[int, str, StorageOptions], Keeper] = {}


def maintain_if_due(log: SparkLog, options: SinkOptions) -> None:
    """Start due maintenance after the commit of a micro-batch; never raises."""
    keeper = _keepers.setdefault((os.getpid(), options.root, options.storage), Keeper())
    try:
        keeper.after_commit(log, options)
    except Exception as error:  # noqa: BLE001 - the micro-batch is committed, whatever comes of this
        keeper.warn(f"{type(error).__name__}: {error}")
