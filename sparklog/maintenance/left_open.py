"""Transactions that nobody ends, where no broker does it: aborted, and their producers fenced.

What a process that died has staged takes space until its transactional id is used again, and may not be used
again at all. Brokers see to it within seconds (transaction.abort.timed.out.transaction.cleanup.interval.ms);
roots that only Spark and Python use have rounds of maintenance.

Invariants: nothing is aborted before its time-out, from its start, by the clock of whoever opened it, and now
    by sober_time.py. Where the root says that a broker serves
    it, that is left BROKERS_MS to do so: one that was killed says the same as one that is at work. Which ones
    are meant is decided from the image that the commit is planned against.
Not here: what an abort does (sparklog/metadata/model/ending.py), a broker's own look (sparklog_server).
Concurrency: any process and machine; who aborts second finds nothing open.
After a crash: due again.
Sources: Kafka TransactionCoordinator.abortTimedOutTransactions.
"""

from collections.abc import Callable
from typing import Final

from sparklog.clock import Clock
from sparklog.maintenance.sober_time import sober_now_ms
from sparklog.metadata import Action, Image, MetadataLog, Transaction, plan_abort_transactions, timed_out

BROKERS_MS: Final = 600_000  # far above how often they look, and how long it takes to replace one


def choose_left_open(image: Image, now_ms: int) -> list[str]:
    """The transactional ids to abort, as many as go into a commit. Pure."""
    is_served = any(not one.is_fenced for one in image.brokers.values())
    return timed_out(image, now_ms - BROKERS_MS if is_served else now_ms)


def abort_left_open(metadata: MetadataLog, clock: Clock, check: Callable[[], None]) -> list[Transaction]:
    """Abort them; returns them as they were.

    Args:
        check: called before each commit; what it raises ends the work.

    Raises:
        RetriableError, StorageError, FatalStorageError: see MetadataLog.publish; earlier commits stay.
    """
    aborted: list[Transaction] = []
    while True:
        check()
        some = _abort_some(metadata, sober_now_ms(metadata.store, clock))
        if not some:
            return aborted
        aborted += some


def _abort_some(metadata: MetadataLog, now_ms: int) -> list[Transaction]:
    chosen: list[Transaction] = []

    def plan(image: Image) -> list[Action]:
        late = choose_left_open(image, now_ms)
        chosen[:] = [image.transactions[one] for one in late]
        return [*plan_abort_transactions(image, late, now_ms=now_ms)]

    metadata.publish(plan)
    return chosen
