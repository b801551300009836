"""What nobody ends: aborted after its time-out, by one broker, and forgotten when nobody uses it."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sparklog.errors import FencedError, InvalidRequestError, RetriableError
from sparklog.metadata import TransactionPhase
from sparklog_server.runtime.timing import Timer
from sparklog_server.settings.config import ServerConfig
from sparklog_server.transactions.coordinator import Producer
from sparklog_server.transactions.sweep import TransactionSweep
from tests.server.api.transacting import TransactionClient
from tests.server.transactions.conftest import Root
from tests.support.broker_process import until
from tests.support.running_broker import RunningBroker
from tests.support.told import Told

DAY_MS = 86_400_000


class Swept:
    """A sweep, and who it takes this broker for."""

    def __init__(self, root: Root, timer: Timer | None = None, **configs: str) -> None:
        self.is_in_charge = self.is_controller = True
        self.root = root
        named = {key.replace("_", "."): value for key, value in configs.items()}
        self.sweep = TransactionSweep(
            root.live,
            self,  # type: ignore[arg-type]
            root.commits,
            ServerConfig.parse(named).transactions,
            is_controller=lambda: self.is_controller,
            timer=timer,  # type: ignore[arg-type]  # only by what looks by itself
            clock=root.clock,
            metrics=root.metrics,
        )

    def look(self) -> None:
        asyncio.run(self.sweep.look())


@pytest.fixture
def swept(root: Root) -> Swept:
    return Swept(root)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def left_open(root: Root, name: str = "app", timeout_ms: int = 60_000) -> Producer:
    producer: Producer = run(root.coordinator.initialise(name, timeout_ms, None))
    run(root.coordinator.add_partitions(name, producer, [(root.topic_id(), 0)]))
    root.stage(producer)
    return producer


def test_what_takes_too_long_is_aborted_and_its_producer_fenced(root: Root, swept: Swept) -> None:
    producer = left_open(root)
    root.clock.advance_ms(59_999)
    swept.look()
    assert root.transaction().is_ongoing
    root.clock.advance_ms(1)
    swept.look()
    found = root.transaction()
    assert found.phase is TransactionPhase.ABORTED
    assert found.producer_epoch == producer.producer_epoch + 1
    # Its commit comes too late, and must not be answered with success: the records are gone.
    with pytest.raises(FencedError, match="PRODUCER_FENCED"):
        run(root.coordinator.end("app", producer, commits=True, raises=False))
    with pytest.raises(InvalidRequestError, match="TRANSACTION_STATE"):
        run(root.coordinator.end("app", producer, commits=True, raises=True))
    with pytest.raises(FencedError, match="PRODUCER_FENCED"):
        run(root.coordinator.initialise("app", 60_000, producer))
    assert root.ends() == [0, 0]
    assert root.metrics.transactions.timed_out == 1


@pytest.mark.parametrize("suspended_ms", [0, DAY_MS])
def test_what_was_begun_again_meanwhile_is_left_alone(root: Root, swept: Swept, suspended_ms: int) -> None:
    root.clock.set_by_ms(suspended_ms)
    producer = left_open(root)
    swept.look()
    root.clock.advance_ms(60_000)

    def meanwhile() -> None:
        import threading

        def work() -> None:
            with asyncio.Runner() as runner:
                other = root.elsewhere()
                root.other.refresh(force=True)
                runner.run(other.end("app", producer, commits=True, raises=False))
                runner.run(other.add_partitions("app", producer, [(root.topic_id(), 0)]))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    root.commits.before.append(meanwhile)
    swept.look()
    assert root.transaction().is_ongoing
    assert root.transaction().number == 2
    assert root.metrics.transactions.timed_out == 0


def test_a_clock_that_is_set_forward_aborts_nothing(root: Root, swept: Swept) -> None:
    left_open(root)
    root.clock.set_by_ms(DAY_MS)
    swept.look()
    assert root.transaction().is_ongoing
    root.clock.advance_ms(60_000)
    swept.look()
    assert not root.transaction().is_ongoing


def test_who_opens_a_transaction_may_have_a_clock_that_is_behind(root: Root, swept: Swept) -> None:
    swept.look()
    root.clock.set_by_ms(-DAY_MS)
    left_open(root)
    root.clock.set_by_ms(DAY_MS)
    root.clock.advance_ms(1_000)
    swept.look()
    root.clock.advance_ms(59_999)
    swept.look()
    assert root.transaction().is_ongoing
    root.clock.advance_ms(1)
    swept.look()
    assert root.transaction().phase is TransactionPhase.ABORTED


def test_what_was_seen_open_for_its_time_is_aborted_whatever_the_time_of_day_is(
    root: Root, swept: Swept
) -> None:
    """The machine was suspended for a day, of which the monotonic clock knows nothing."""
    root.clock.set_by_ms(DAY_MS)
    left_open(root)
    root.clock.advance_ms(5_000)
    swept.look()
    root.clock.advance_ms(59_999)
    swept.look()
    assert root.transaction().is_ongoing
    root.clock.advance_ms(1)
    swept.look()
    assert root.transaction().phase is TransactionPhase.ABORTED
    assert root.metrics.transactions.timed_out == 1


def test_each_transaction_of_an_id_has_its_own_time(root: Root, swept: Swept) -> None:
    root.clock.set_by_ms(DAY_MS)
    producer = left_open(root)
    swept.look()
    root.clock.advance_ms(59_999)
    run(root.coordinator.end("app", producer, commits=True, raises=False))
    run(root.coordinator.add_partitions("app", producer, [(root.topic_id(), 0)]))
    root.clock.advance_ms(59_999)
    swept.look()
    assert root.transaction().is_ongoing
    root.clock.advance_ms(60_000)
    swept.look()
    assert not root.transaction().is_ongoing


def test_only_what_is_open_is_watched_and_by_the_controller(root: Root, swept: Swept) -> None:
    root.clock.set_by_ms(DAY_MS)
    producer = left_open(root)
    left_open(root, "other")
    swept.look()
    assert swept.sweep.watched == 2
    run(root.coordinator.end("app", producer, commits=True, raises=False))
    swept.look()
    assert swept.sweep.watched == 1
    swept.is_controller = False
    swept.look()
    assert swept.sweep.watched == 0


@pytest.mark.parametrize("role", ["is_in_charge", "is_controller"])
def test_another_broker_does_it(root: Root, swept: Swept, role: str) -> None:
    left_open(root)
    root.clock.advance_ms(60_000)
    setattr(swept, role, False)
    swept.look()
    assert root.transaction().is_ongoing


def test_several_at_once_are_one_commit(
    root: Root, swept: Swept, caplog: pytest.LogCaptureFixture, told: Told
) -> None:
    caplog.set_level(logging.INFO, "sparklog_server.coordinator")
    for name in ("a", "b", "c"):
        run(root.coordinator.initialise(name, 10, None))
        producer = root.transaction(name)
        run(root.coordinator.add_group(name, Producer(producer.producer_id, producer.producer_epoch), "g"))
    root.clock.advance_ms(10)
    before = root.commits.count
    swept.look()
    assert root.commits.count == before + 1
    assert root.metrics.transactions.timed_out == 3
    assert sum("took longer than 10 ms" in message for message in told("sparklog_server.coordinator")) == 3


def test_ids_that_nobody_uses_are_forgotten(root: Root) -> None:
    root.log.alter_root({"transactional.id.expiration.ms": str(DAY_MS)})
    swept = Swept(
        root,
        transaction_remove_expired_transaction_cleanup_interval_ms="1000",
    )
    run(root.coordinator.initialise("unused", 1000, None))
    left_open(root, "open", timeout_ms=900_000)
    root.clock.advance_ms(DAY_MS - 1)
    run(root.coordinator.initialise("used", 1000, None))
    swept.look()  # nothing is to be forgotten, but what was left open is aborted, and so changed now
    assert set(root.log.image.transactions) == {"unused", "open", "used"}
    root.clock.advance_ms(999)
    swept.look()  # it was looked a moment ago
    assert "unused" in root.log.image.transactions
    root.clock.advance_ms(1)
    swept.look()
    assert set(root.log.image.transactions) == {"open", "used"}
    assert root.metrics.transactions.forgotten == 1
    assert run(root.coordinator.initialise("unused", 1000, None)).producer_epoch == 0


def test_the_expiration_can_be_changed_while_brokers_run(root: Root) -> None:
    """With 65,536 ids new producers were refused for seven days."""
    swept = Swept(root)
    run(root.coordinator.initialise("unused", 1000, None))
    root.clock.advance_ms(DAY_MS)
    swept.look()
    assert set(root.log.image.transactions) == {"unused"}
    root.log.alter_root({"transactional.id.expiration.ms": str(DAY_MS)})
    swept.look()
    assert not root.log.image.transactions


def test_clocks_that_are_behind_or_ahead_of_the_storages_forget_nobody(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swept() -> Swept:
        return Swept(
            root,
            transactional_id_expiration_ms=str(DAY_MS),
            transaction_remove_expired_transaction_cleanup_interval_ms="1000",
        )

    root.clock.set_by_ms(-8 * DAY_MS)
    run(root.coordinator.initialise("by one that is behind", 1000, None))
    root.clock.set_by_ms(8 * DAY_MS)
    right = swept()
    root.clock.advance_ms(1000)
    right.look()
    assert set(root.log.image.transactions) == {"by one that is behind"}
    root.clock.set_by_ms(8 * DAY_MS)
    monkeypatch.setattr(root.log.store, "storage_now_ms", lambda here_ms: here_ms - 8 * DAY_MS)
    ahead = swept()
    root.clock.advance_ms(1000)
    ahead.look()
    assert set(root.log.image.transactions) == {"by one that is behind"}


def test_a_look_that_fails_is_not_the_last(root: Root) -> None:
    async def work() -> None:
        root.commits.asked.clear()
        timer = Timer(root.clock)
        sweep = Swept(root, timer).sweep
        await sweep.start()
        for failures in (1, 0):
            assert len(root.commits.failures) == failures
            root.clock.advance_ms(60_000)
            timer.run_due()
            await root.commits.asked.wait()
            root.commits.asked.clear()
            for _ in range(10):  # until it is scheduled again
                await asyncio.sleep(0)
        await sweep.stop()
        timer.stop()
        assert root.metrics.transactions.timed_out == 1

    left_open(root)
    root.commits.failures.append(RetriableError("PUBLISH_CONTENDED", "busy", fix="again"))
    run(work())


def test_a_broker_looks_by_itself(start_broker: Callable[..., RunningBroker]) -> None:
    key = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
    broker = start_broker({key: "10"})
    with TransactionClient(broker.host, broker.port) as client:
        _, producer_id, epoch = client.initialise(timeout_ms=1)
        assert client.add_offsets((producer_id, epoch)) == "none"
        until(lambda: client.listed() == {"app": (producer_id, "CompleteAbort")})
        assert client.end((producer_id, epoch), version=4)[0] == "producer_fenced"
