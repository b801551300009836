"""Rounds abort the transactions that nobody ends, where no broker does."""

from collections.abc import Sequence
from functools import partial

import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import FencedError
from sparklog.maintenance import StepReport, Terms, due_steps, maintain
from sparklog.maintenance.retain import BROKERS_MS
from sparklog.metadata import (
    Action,
    Image,
    TransactionPhase,
    new_id,
    plan_add_to_transaction,
    plan_end_transaction,
    plan_fence_broker,
    plan_join_broker,
)
from tests.maintenance.rounds_told import step
from tests.support.staged import begin

TIMEOUT_MS = 60_000


def leave_open(log: SparkLog, *names: str) -> None:
    """A transaction each, of a minute."""
    for name in names:
        begin(log, name, timeout_ms=TIMEOUT_MS)
        one, now_ms = log.image.transactions[name], log.clock.now_ms()
        added = plan_add_to_transaction(
            log.image, name, one.producer_id, one.producer_epoch, groups=["g"], now_ms=now_ms
        )
        log.metadata.publish(partial(as_planned, added))


def as_planned(actions: Sequence[Action], _image: Image) -> Sequence[Action]:
    return actions


def phase(log: SparkLog, name: str = "app") -> TransactionPhase:
    return log.refresh().transactions[name].phase


def round_of(log: SparkLog, terms: Terms | None = None, *, dry_run: bool = False) -> StepReport:
    return step(maintain(log.metadata, log.clock, terms, dry_run=dry_run), "transactions")


def is_due(log: SparkLog) -> bool:
    return "transactions" in due_steps(log.refresh(), log.clock.now_ms())


def test_what_takes_too_long_is_aborted_and_its_producer_fenced(log: SparkLog, clock: ManualClock) -> None:
    leave_open(log, "app", "other")
    clock.advance_ms(TIMEOUT_MS - 1)
    leave_open(log, "new")
    assert not is_due(log)
    assert round_of(log).outcome == "nothing"
    clock.advance_ms(1)
    assert is_due(log)
    before = log.image.transactions["app"]
    report = round_of(log)
    assert (report.outcome, report.figures) == ("done", {"aborted": 2, "staged_bytes": 0})
    assert [phase(log, name) for name in ("app", "other", "new")] == [
        TransactionPhase.ABORTED,
        TransactionPhase.ABORTED,
        TransactionPhase.ONGOING,
    ]
    assert not is_due(log)
    with pytest.raises(FencedError, match="PRODUCER_FENCED"):
        plan_end_transaction(
            log.image,
            "app",
            before.producer_id,
            before.producer_epoch,
            committed=True,
            second=False,
            now_ms=clock.now_ms(),
        )


def test_a_dry_run_aborts_nothing(log: SparkLog, clock: ManualClock) -> None:
    leave_open(log, "app")
    clock.advance_ms(TIMEOUT_MS)
    assert round_of(log, dry_run=True).outcome == "due"
    assert phase(log) is TransactionPhase.ONGOING


def test_a_round_for_some_topics_leaves_them_alone(log: SparkLog, clock: ManualClock) -> None:
    leave_open(log, "app")
    clock.advance_ms(TIMEOUT_MS)
    assert round_of(log, Terms(topics=["t"])).outcome == "nothing"
    assert phase(log) is TransactionPhase.ONGOING


def test_more_than_fit_into_a_commit(
    log: SparkLog, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparklog.metadata.model.transactions.MAX_TIMED_OUT_TRANSACTIONS", 2)
    leave_open(log, *"abcde")
    clock.advance_ms(TIMEOUT_MS)
    assert round_of(log).figures["aborted"] == 5


def test_by_the_clock_of_the_store_where_it_is_behind(
    log: SparkLog, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine whose clock is ahead aborts nothing early."""
    leave_open(log, "app")
    monkeypatch.setattr(type(log.store), "storage_now_ms", lambda _self, here_ms: here_ms - 10_000)
    clock.advance_ms(TIMEOUT_MS)
    assert round_of(log).outcome == "nothing"
    assert phase(log) is TransactionPhase.ONGOING
    clock.advance_ms(10_000)
    assert round_of(log).outcome == "done"


def test_brokers_are_left_to_do_it(log: SparkLog, clock: ManualClock) -> None:
    """They do it within seconds: who is still open long after has none, whatever the root says."""
    log.metadata.publish(lambda image: [plan_join_broker(image, 1, incarnation_id=new_id())])
    leave_open(log, "app")
    clock.advance_ms(TIMEOUT_MS + BROKERS_MS - 1)
    assert not is_due(log)
    assert round_of(log).outcome == "nothing"
    clock.advance_ms(1)
    assert is_due(log)
    assert round_of(log).outcome == "done"
    assert phase(log) is TransactionPhase.ABORTED


def test_not_those_that_are_fenced(log: SparkLog, clock: ManualClock) -> None:
    log.metadata.publish(lambda image: [plan_join_broker(image, 1, incarnation_id=new_id())])
    leave_open(log, "app")
    clock.advance_ms(TIMEOUT_MS)
    assert not is_due(log)
    epoch = log.image.brokers[1].broker_epoch
    log.metadata.publish(lambda image: [plan_fence_broker(image, 1, epoch)])  # type: ignore[list-item]
    assert is_due(log)
    assert round_of(log).outcome == "done"


def test_what_was_ended_or_begun_again_meanwhile_is_left_alone(
    log: SparkLog, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_open(log, "app")
    clock.advance_ms(TIMEOUT_MS)
    publish = type(log.metadata).publish

    def beside(metadata: object, plan: object, **words: object) -> object:
        monkeypatch.undo()
        leave_open(log, "app")  # which aborts, and opens the next one
        return publish(metadata, plan, **words)  # type: ignore[arg-type]

    monkeypatch.setattr(type(log.metadata), "publish", beside)
    report = maintain(log.metadata, log.clock, steps=["transactions"])
    assert step(report, "transactions").outcome == "nothing"
    assert phase(log) is TransactionPhase.ONGOING
    assert log.image.transactions["app"].started_ms == clock.now_ms()
