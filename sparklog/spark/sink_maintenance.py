"""A streaming sink keeps its root in order by itself: where nobody else serves it, streams are what it has.

After a micro-batch is committed, and once in a while only, the image that the driver holds is asked whether
anything is due; if so, a process of low priority does one round (client/round_process.py), beside the driver.
Invariants: no micro-batch waits for it, and none fails by it: what goes wrong is logged, once for each cause.
    One round at a time for a root in this process, and on this machine. It ends with the process that started
    it, a Python worker of Spark's driver, which Spark ends with the driver, or after a minute without work.
    Records are removed only where the root lets them go by themselves, and metadata documents are written
    only of versions that it agrees to (maintenance/steps.py).
    After rounds that came to nothing it looks less often (client/round_pace.py).
Cost: a comparison of times for a commit; each LOOK_MS the choice of what is due, and at most once in
    EXPIRY_MS a process that only removes what is past its retention.
Not here: whether it is wanted (option `maintenance`), what a round does.
Concurrency: Spark's workers are single-threaded; a forked child starts anew.
After a crash: the round is due again, by the next process.
"""

import logging
import os

from sparklog.client import SparkLog
from sparklog.client.round_pace import Pace
from sparklog.client.round_process import RoundProcess, RoundRequest
from sparklog.maintenance import due_steps, withheld_by_version
from sparklog.spark.options import SinkOptions
from sparklog.spark.storage_options import StorageOptions

LOOK_MS = 15_000
EXPIRY_MS = 300_000
_ROUND_SECONDS = 600.0
_MAX_TOLD = 100
logger = logging.getLogger("sparklog.spark")


class Keeper:
    """What this process does for one root."""

    def __init__(self) -> None:
        self.running: RoundProcess | None = None
        self._look_ms: int | None = None
        self._expiry_ms: int | None = None
        self._told: set[str] = set()
        self._has_told_withheld = False
        self._pace = Pace()

    def after_commit(self, log: SparkLog, options: SinkOptions) -> None:
        """Look, if it is time to, and start what is due."""
        now_ms = log.clock.monotonic_ms()
        if self._look_ms is not None and now_ms < self._look_ms:
            return
        self._look_ms = now_ms + LOOK_MS
        if self.running is not None:
            answer = self.running.answer()
            if answer is None:
                return
            self.running = None
            self.tell(answer.problem)
            self._pace.note(answer)
            wait_ms = self._pace.wait_ms(LOOK_MS)
            if wait_ms > LOOK_MS:
                self._look_ms = now_ms + wait_ms
                return
        if log.url.startswith("memory:"):
            return  # of this process alone
        may_expire = self._expiry_ms is None or now_ms >= self._expiry_ms
        but = () if may_expire else ("expire",)
        if may_expire:
            self._expiry_ms = now_ms + EXPIRY_MS
        if not self._has_told_withheld and (withheld := withheld_by_version(log.image, log.clock.now_ms())):
            self._has_told_withheld = True
            self.tell(withheld)
        due = next(due_steps(log.image, log.clock.now_ms(), but=but), None)
        if due is None:
            self._pace.went_well()
            return
        self.running = RoundProcess(
            RoundRequest(
                root=options.root,
                cluster_id=log.cluster_id,
                storage_options=options.storage.to_dict(),
                seconds=_ROUND_SECONDS,
            )
        )

    def tell(self, problem: str) -> None:
        """Once, as far as can be remembered."""
        if not problem or problem in self._told or len(self._told) >= _MAX_TOLD:
            return
        self._told.add(problem)
        logger.warning("maintenance beside the query: %s", problem)


_keepers: dict[tuple[int, str, StorageOptions], Keeper] = {}


def maintain_if_due(log: SparkLog, options: SinkOptions) -> None:
    """Called after each commit of a micro-batch; never raises."""
    if not options.maintenance:
        return
    keeper = _keepers.setdefault((os.getpid(), options.root, options.storage), Keeper())
    try:
        keeper.after_commit(log, options)
    except Exception as error:  # noqa: BLE001 - the micro-batch is committed, whatever comes of this
        keeper.tell(f"{type(error).__name__}: {error}")
