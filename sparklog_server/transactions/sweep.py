"""Aborts transactions past their time-out, and forgets transactional ids that are not used.

An abort by time-out raises the epoch in the same commit, so that the slow producer finds out that it is
fenced. Otherwise its commit would succeed for records that are gone, or end the next transaction.

The start time of a transaction is by the clock of the broker that opened it; the controller's clock may be
ahead of it by more than the time-out. So the time of a transaction that is opened while this broker checks
counts from its first check, by the monotonic clock alone: at most an interval later. Only for transactions
that were open at the first check the time of day counts as well, as in Kafka when a coordinator has moved.
Since the start no more of it counts than the monotonic clock shows, so that a clock that is set forward
aborts nothing early.
Invariants: the first-seen times are those of transactions that were open at the last check, each with its
    number: the next one under its id starts again. The controller checks; two at the same time are harmless,
    since each decides by the image that its commit is planned against. A failure is logged, and the next
    check tries again.
Not here: the abort itself (sparklog/metadata/model).
Concurrency: event loop; the check of all ids runs in a storage thread.
After a crash: another controller continues from the image.
Sources: Kafka TransactionCoordinator.abortTimedOutTransactions,
    TransactionStateManager.removeExpiredTransactionalIds.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from sparklog.clock import Clock
from sparklog.errors import SparklogError
from sparklog.log.config import TRANSACTIONAL_ID_EXPIRATION_KEY
from sparklog.metadata import (
    MAX_TIMED_OUT_TRANSACTIONS,
    Action,
    Image,
    Transaction,
    plan_abort_transactions,
    plan_forget_transactions,
)
from sparklog_server.cluster.membership import Membership
from sparklog_server.metrics import Metrics
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.runtime.lifecycle import Background
from sparklog_server.runtime.timing import Timer, TimerEntry
from sparklog_server.settings.groups import TransactionSettings
from sparklog_server.transactions.coordinator import Publishing

_ROUNDING_MS: Final = 1_000  # of both clocks, and of what NTP does slowly
_log = logging.getLogger("sparklog_server.coordinator")


class _Seen(NamedTuple):
    """An open transaction, the monotonic time of the first check that saw it, and whether that was the first
    check of this broker.
    """

    producer_id: int
    number: int
    monotonic_ms: int
    was_there: bool


class TransactionSweep:
    """Checks all transactions periodically, while this broker is the controller."""

    def __init__(
        self,
        root: LiveRoot,
        membership: Membership,
        publisher: Publishing,
        settings: TransactionSettings,
        *,
        is_controller: Callable[[], bool],
        timer: Timer,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._root = root
        self._membership = membership
        self._publisher = publisher
        self._settings = settings
        self._is_controller = is_controller
        self._timer = timer
        self._clock = clock
        self._counters = metrics.transactions
        self._background = Background()
        self._alarm: TimerEntry | None = None
        self._began_ms, self._began_monotonic_ms = clock.now_ms(), clock.monotonic_ms()
        self._forgot_monotonic_ms = self._began_monotonic_ms
        self._expiration_ms = self._expiration_in_force()
        self._seen: Mapping[str, _Seen] | None = None  # None before the first check

    @property
    def watched(self) -> int:
        """Return the number of transactions that were open at the last check."""
        return len(self._seen or ())

    async def start(self) -> None:
        """Start the periodic checks."""
        self._alarm = self._timer.schedule(
            self._settings.abort_timed_out_interval_ms, lambda: self._background.spawn(self._look_and_go_on())
        )

    async def stop(self) -> None:
        """Stop the checks."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._background.cancel()

    async def look(self) -> None:
        """Abort transactions past their time-out; less often, forget unused ids."""
        if not (self._membership.is_in_charge and self._is_controller()):
            self._seen = None
            return
        now_ms, monotonic_ms = self._now_ms(), self._clock.monotonic_ms()
        image = self._root.image
        seen = self._seen = await self._root.run(_open, image, self._seen, monotonic_ms)
        if await self._root.run(_late, image, seen, now_ms, monotonic_ms):
            await self._abort(seen, await self._sober_ms(now_ms), monotonic_ms)
        elapsed_ms = self._clock.monotonic_ms() - self._forgot_monotonic_ms
        before_ms, self._expiration_ms = self._expiration_ms, self._expiration_in_force()
        if elapsed_ms >= self._settings.remove_expired_interval_ms or self._expiration_ms != before_ms:
            self._forgot_monotonic_ms = self._clock.monotonic_ms()
            await self._forget(await self._sober_ms(now_ms), self._expiration_ms)

    def _expiration_in_force(self) -> int:
        config = self._root.root_config_of([TRANSACTIONAL_ID_EXPIRATION_KEY], self._root.image)
        return config.transactional_id_expiration_ms

    async def _abort(self, seen: Mapping[str, _Seen], now_ms: int, monotonic_ms: int) -> None:
        aborted: list[Transaction] = []

        def plan(image: Image) -> Sequence[Action]:
            late = _late(image, seen, now_ms, monotonic_ms)
            aborted[:] = [image.transactions[one] for one in late]
            return plan_abort_transactions(image, late, now_ms=now_ms)

        await self._publisher.submit_plan(plan)
        self._counters.timed_out += len(aborted)
        for one in aborted:
            _log.info(
                "transactional id %r: transaction %d took longer than %d ms, and was aborted; its producer "
                "%d in epoch %d is fenced",
                one.transactional_id,
                one.number,
                one.timeout_ms,
                one.producer_id,
                one.producer_epoch,
            )

    async def _forget(self, now_ms: int, expiration_ms: int) -> None:
        forgotten = 0

        def plan(image: Image) -> Sequence[Action]:
            nonlocal forgotten
            action = plan_forget_transactions(image, now_ms, expiration_ms)
            forgotten = 0 if action is None else len(action.transactional_ids)
            return [] if action is None else [action]

        await self._publisher.submit_plan(plan)
        self._counters.forgotten += forgotten
        if forgotten:
            _log.info("forgot %d transactional ids that were not used for %d ms", forgotten, expiration_ms)

    async def _look_and_go_on(self) -> None:
        try:
            await self.look()
        except (SparklogError, OSError) as error:
            _log.warning("cannot abort transactions past their time-out: %s", error)
        finally:
            if self._alarm is not None:
                await self.start()

    async def _sober_ms(self, now_ms: int) -> int:
        """Return the earlier of the wall clock and the storage's clock: both must be past a time-out."""
        return min(now_ms, await self._root.run(self._root.store.storage_now_ms, now_ms))

    def _now_ms(self) -> int:
        """Return the wall clock, limited to the progress of the monotonic one since the start."""
        elapsed_ms = self._clock.monotonic_ms() - self._began_monotonic_ms
        return min(self._clock.now_ms(), self._began_ms + elapsed_ms + _ROUNDING_MS)


def _open(image: Image, before: Mapping[str, _Seen] | None, monotonic_ms: int) -> dict[str, _Seen]:
    """Return the open transactions with the time of their first check; `before` None: this is the first."""
    found: dict[str, _Seen] = {}
    for name in image.transactions.deadlines:
        known = None if before is None else before.get(name)
        if known is None or not _is_same(image.transactions[name], known):
            one = image.transactions[name]
            known = _Seen(one.producer_id, one.number, monotonic_ms, before is None)
        found[name] = known
    return found


def _late(image: Image, seen: Mapping[str, _Seen], now_ms: int, monotonic_ms: int) -> list[str]:
    """Return a limited number of ids past their time-out, since the first check or by the time of day."""
    late = (
        name
        for name, known in seen.items()
        if (one := image.transactions.get(name)) is not None
        and _is_same(one, known)
        and (
            monotonic_ms - known.monotonic_ms >= one.timeout_ms
            or (known.was_there and one.is_timed_out(now_ms))
        )
    )
    return list(islice(late, MAX_TIMED_OUT_TRANSACTIONS))


def _is_same(one: Transaction, seen: _Seen) -> bool:
    """True if it is the open transaction of that check. A forgotten id may be reused by another producer."""
    return one.is_ongoing and (one.producer_id, one.number) == (seen.producer_id, seen.number)
