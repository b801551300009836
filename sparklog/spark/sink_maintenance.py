"""A streaming sink keeps its root in order by itself: where nobody else serves it, streams are what it has.

After a micro-batch is committed, and once in a while only, the image that the driver holds is asked whether
anything is due; if so, a process of low priority does one round (client/rounds.py), beside the driver.
Invariants: no micro-batch waits for it, and none fails by it: what goes wrong is logged, once for each cause.
    One round at a time for a root on this machine. It ends with the process that started it, a Python worker
    of Spark's driver, or where Linux tells (its guardian) with the daemon that forks those workers, which
    ends with the driver: workers may be others with each micro-batch (spark.python.worker.reuse=false), and
    end after a minute without work. So the pace is kept on the machine, not in a worker
    (client/rounds.py).
    After rounds that came to nothing it looks less often (client/rounds.py).
Cost: a comparison of times for a commit, and for a worker's first a small file; each LOOK_MS the choice of
    what is due, and at most once in EXPIRY_MS a process that only removes what is past its retention.
Not here: whether it is wanted (option `maintenance`), what a round does.
Concurrency: Spark's workers are single-threaded; a forked child starts anew.
After a crash: the round is due again, by the next process.
"""

import logging
import os
from collections.abc import Sequence

import msgspec

from sparklog.client import SparkLog
from sparklog.client.rounds import (
    RoundProcess,
    RoundRequest,
    RoundState,
    RoundStates,
    begun,
    ended,
    found_nothing,
    guardian,
    may_look,
)
from sparklog.maintenance import (
    Remembered,
    Terms,
    due_steps,
    keys_of,
    still_remembered,
)
from sparklog.spark.options import SinkOptions
from sparklog.spark.roots import StorageOptions

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
        self._told: set[str] = set()
        self._states: RoundStates | None = None

    def after_commit(self, log: SparkLog, options: SinkOptions) -> None:
        """Look, if it is time to, and start what is due."""
        if log.url.startswith("memory:"):
            return  # of this process alone
        now_ms = log.clock.monotonic_ms()
        if self._look_ms is not None and now_ms < self._look_ms:
            return
        self._look_ms = now_ms + LOOK_MS
        if self._states is None:
            self._states = RoundStates(log.url, log.cluster_id)
        if self.running is not None:
            answer = self.running.answer()
            if answer is None:
                return
            self.running = None
            if not answer.is_told:
                self.tell(answer.problem)
            if not self._states.outlives_us:
                wall_ms = log.clock.now_ms()
                self._states.change(lambda state: ended(state, answer, wall_ms, LOOK_MS))
        self._look(log, options, self._states)

    def _look(self, log: SparkLog, options: SinkOptions, states: RoundStates) -> None:
        now_ms = log.clock.now_ms()
        state = states.read()
        if not may_look(state, now_ms) or self._is_running(states):
            return
        known = still_remembered(state.uncleanable, now_ms)
        terms = Terms(but=keys_of(known))
        may_expire = not now_ms < state.expiry_ms <= now_ms + EXPIRY_MS
        but = () if may_expire else ("expire",)
        due = next(due_steps(log.image, now_ms, terms, but=but), None)

        def looked(state: RoundState) -> RoundState:
            state = begun(state, now_ms, LOOK_MS) if due else found_nothing(state, now_ms, LOOK_MS)
            expiry_ms = now_ms + EXPIRY_MS if may_expire else state.expiry_ms
            return msgspec.structs.replace(state, expiry_ms=expiry_ms)

        states.change(looked)
        if due is not None:
            self.running = self._started(log, options, known)

    def _is_running(self, states: RoundStates) -> bool:
        """Somebody's round, on this machine?"""
        held = states.hold_round()
        held.release()
        return held.holder is not None

    def _started(self, log: SparkLog, options: SinkOptions, known: Sequence[Remembered]) -> RoundProcess:
        with guardian() as descriptor:
            return RoundProcess(
                RoundRequest(
                    root=options.root,
                    cluster_id=log.cluster_id,
                    storage_options=options.storage.to_dict(),
                    seconds=_ROUND_SECONDS,
                    but=tuple(keys_of(known)),
                    usual_ms=LOOK_MS,
                    guardian=descriptor,
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
    """Called after each commit of a micro-batch, if it is wanted; never raises."""
    keeper = _keepers.setdefault((os.getpid(), options.root, options.storage), Keeper())
    try:
        keeper.after_commit(log, options)
    except Exception as error:  # noqa: BLE001 - the micro-batch is committed, whatever comes of this
        keeper.tell(f"{type(error).__name__}: {error}")
