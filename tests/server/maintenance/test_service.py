"""When a broker looks whether maintenance is due, and what it asks a round to do."""

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import round_process
from sparklog.client.round_process import RoundRequest, encode_request
from sparklog.clock import ManualClock
from sparklog.maintenance import Budget, due_steps
from sparklog.maintenance.choose import Dirtiness
from sparklog.metadata import Transaction, TransactionPhase, empty_image
from sparklog.metadata.model.transaction_values import transactions_of
from sparklog_server.maintenance.service import IdleMoments, MaintenanceService
from sparklog_server.metrics import Metrics
from sparklog_server.settings.config import ServerConfig
from tests.server.http.test_endpoint import scrape, value
from tests.support.broker_process import until
from tests.support.running_broker import RunningBroker

SOON = {
    "log.cleaner.backoff.ms": "1",
    "log.retention.check.interval.ms": "1",
    "sparklog.maintenance.delay.max.ms": "0",
}


class Membership:
    """In charge from the fourth time on that somebody asks."""

    def __init__(self) -> None:
        self.asked = 0

    @property
    def is_in_charge(self) -> bool:
        self.asked += 1
        return self.asked > 3


class Root:
    """Says what the test wants of each look."""

    def __init__(self, look: Callable[[], Any]) -> None:
        self.store = SimpleNamespace(url="s3://bucket/log")
        self.cluster_id = "C" * 22
        self.image = SimpleNamespace(topic_by_id={}, topics={})
        self._look = look

    async def run(self, _function: Callable[..., Any], *_arguments: object) -> Any:
        return self._look()


def maintained(
    look: Callable[[], Any],
    membership: Membership,
    metrics: Metrics | None = None,
    root: Any = None,
    settings: dict[str, str] = SOON,
    is_controller: Callable[[], bool] = lambda: True,
) -> Any:
    root = root or Root(look)
    return MaintenanceService(
        root,
        membership,  # type: ignore[arg-type]
        ServerConfig.parse(settings),
        is_controller=is_controller,
        clock=ManualClock(),
        metrics=metrics or Metrics(),
    )


def test_a_broker_that_is_not_in_charge_does_not_look() -> None:
    """A newer one has taken over, or it cannot see the newest commit: what it knows is nothing to go by."""
    membership = Membership()
    looks: list[int] = []

    async def run() -> None:
        seen = asyncio.Event()

        def look() -> tuple[tuple[str, ...], Dirtiness]:
            looks.append(membership.asked)
            seen.set()
            return (), Dirtiness()

        maintenance = maintained(look, membership)
        await maintenance.start()
        await asyncio.wait_for(seen.wait(), 30)
        await maintenance.stop()

    asyncio.run(run())
    assert looks[0] == 4


def test_a_fault_of_ours_is_a_dead_thread(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    looked = asyncio.Event()

    def look() -> None:
        looked.set()
        raise ZeroDivisionError("a fault")

    async def run() -> None:
        maintenance = maintained(look, Membership(), metrics)
        await maintenance.start()
        await asyncio.wait_for(looked.wait(), 30)
        await maintenance.stop()

    asyncio.run(run())
    assert metrics.maintenance.is_dead
    assert "maintenance has ended" in caplog.text


def test_stopping_is_no_fault() -> None:
    metrics = Metrics()

    async def run() -> None:
        maintenance = maintained(lambda: ((), Dirtiness()), Membership(), metrics)
        await maintenance.start()
        await maintenance.stop()
        await asyncio.sleep(0)

    asyncio.run(run())
    assert not metrics.maintenance.is_dead


def test_what_can_wait_waits_while_the_broker_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes one commit does not; and the rest does not wait forever."""
    asked: list[tuple[str, ...]] = []
    over = threading.Event()

    def noted(request: RoundRequest) -> bytes:
        asked.append(request.steps)
        if "merge" in request.steps:
            over.set()
        return encode_request(request)

    answers = iter([False, False, True])
    monkeypatch.setattr(IdleMoments, "may_begin", lambda _: next(answers))
    monkeypatch.setattr(round_process, "encode_request", noted)
    monkeypatch.setattr(round_process, "command", lambda *, is_urgent: ["true"])
    looks = iter([("expire", "merge"), ("merge",), ("merge", "vacuum")])

    async def run() -> None:
        maintenance = maintained(lambda: (next(looks, ()), Dirtiness()), Membership())
        await maintenance.start()
        assert await asyncio.to_thread(over.wait, 30)
        await maintenance.stop()

    asyncio.run(run())
    assert asked == [("expire",), ("merge", "vacuum")]


def test_transactions_are_no_rounds_matter_where_a_broker_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its controller does it, by a clock that it watches, and counts them (transactions/sweep.py)."""
    asked: list[tuple[str, ...]] = []
    hanging = Transaction(
        transactional_id="app",
        producer_id=0,
        producer_epoch=0,
        timeout_ms=1,
        changed_ms=0,
        phase=TransactionPhase.ONGOING,
        started_ms=0,
    )
    image = replace(
        empty_image("C" * 22),
        transactions=transactions_of([hanging]),
    )
    assert list(due_steps(image, ManualClock().now_ms())) == ["transactions"]

    def noted(request: RoundRequest) -> bytes:
        asked.append(request.steps)
        return encode_request(request)

    monkeypatch.setattr(round_process, "encode_request", noted)
    monkeypatch.setattr(round_process, "command", lambda *, is_urgent: ["true"])
    looks: list[object] = []

    async def run() -> None:
        seen = asyncio.Event()

        class Looked(Root):
            async def run(self, function: Callable[..., Any], *arguments: object) -> Any:
                looks.append(function)
                if len(looks) == 3:
                    seen.set()
                return function(*arguments)

        root = Looked(lambda: None)
        root.image = image  # type: ignore[assignment]
        maintenance = maintained(lambda: None, Membership(), root=root)
        await maintenance.start()
        await asyncio.wait_for(seen.wait(), 30)
        await maintenance.stop()

    asyncio.run(run())
    assert asked == []


def test_it_stops_also_while_settings_change() -> None:
    async def run(turns: int) -> None:
        maintenance = maintained(lambda: ((), Dirtiness()), Membership(), settings={})
        await maintenance.start()
        for _ in range(3):
            await asyncio.sleep(0)
        maintenance.change(ServerConfig.parse(SOON | {"log.cleaner.backoff.ms": "3600000"}).maintenance)
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await maintenance.stop()

    for turns in range(5):
        asyncio.run(run(turns))


def test_other_settings_count_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the next look was to be in a day, and for what is asked of the round."""
    asked: list[RoundRequest] = []
    over = threading.Event()

    def noted(request: RoundRequest) -> bytes:
        asked.append(request)
        over.set()
        return encode_request(request)

    monkeypatch.setattr(round_process, "encode_request", noted)
    monkeypatch.setattr(round_process, "command", lambda *, is_urgent: ["true"])
    waits = {**SOON, "log.cleaner.backoff.ms": "86400000", "log.retention.check.interval.ms": "86400000"}
    changed = {
        **SOON,
        "log.cleaner.io.max.bytes.per.second": "77",
        "log.cleaner.dedupe.buffer.size": "1048577",
    }

    async def run() -> None:
        maintenance = maintained(lambda: (("merge",), Dirtiness()), Membership(), settings=waits)
        await maintenance.start()
        await asyncio.sleep(0)
        maintenance.change(ServerConfig.parse(changed).maintenance)
        assert await asyncio.to_thread(over.wait, 30)
        await maintenance.stop()

    asyncio.run(run())
    assert asked[0].budget.bytes_per_second == 77
    assert asked[0].terms.dedupe_buffer_bytes == 1_048_577


SETTINGS = {
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.cleaner.delete.retention.ms": "11",
    "log.cleaner.min.compaction.lag.ms": "12",
    "log.cleaner.max.compaction.lag.ms": "13",
    "log.cleaner.min.cleanable.ratio": "0.25",
    "log.cleaner.io.max.bytes.per.second": "1000000",
    "sparklog.vacuum.max.files.per.second": "14",
}


def test_a_round_is_asked_for_as_the_settings_say(
    start_broker: Callable[..., RunningBroker], monkeypatch: pytest.MonkeyPatch, directory: Any
) -> None:
    asked: list[RoundRequest] = []

    def noted(request: RoundRequest) -> bytes:
        asked.append(request)
        return encode_request(request)

    monkeypatch.setattr(round_process, "encode_request", noted)
    with sparklog.open(directory) as log:
        log.create_topic("t", 1)
        for number in range(256):
            log.append("t", pa.table({"value": [str(number)]}))
    start_broker({**SOON, **SETTINGS}, root=str(directory))
    until(lambda: asked)
    terms = asked[0].terms
    limits = terms.compaction_limits
    assert limits.dedupe_buffer_bytes == 2 << 20
    assert json.loads(json.dumps(dict(limits.defaults))) == {
        "retention.ms": "-1",
        "producer.id.expiration.ms": "86400000",
        "retention.bytes": "-1",
        "delete.retention.ms": "11",
        "min.compaction.lag.ms": "12",
        "max.compaction.lag.ms": "13",
        "min.cleanable.dirty.ratio": "0.25",
    }
    assert asked[0].budget == Budget(bytes_per_second=1_000_000, files_per_second=14)


def test_what_is_to_be_compacted_is_shown(
    start_broker: Callable[..., RunningBroker], directory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sparklog.open(directory) as log:
        log.create_topic("table", 1, {"cleanup.policy": "compact", "max.compaction.lag.ms": "1000000"})
        for _ in range(3):
            log.append("table", pa.table({"key": ["k"], "value": ["v"], "timestamp": [1_000]}))
    broker = start_broker({**SOON, "sparklog.http.listener": "127.0.0.1:0"}, root=str(directory))
    until(lambda: broker.broker.metrics.maintenance.rounds)
    until(lambda: value(scrape(broker), "kafka_log_logcleanermanager_max_dirty_percent") == 0)
    samples = scrape(broker)
    assert 0 < value(samples, "kafka_log_logcleaner_cleaner_recopy_percent") < 100
    assert value(samples, "kafka_log_logcleaner_max_clean_time_secs") > 0
    assert value(samples, "kafka_log_logcleaner_max_compaction_delay_secs") == 0
    assert value(samples, "kafka_log_logcleaner_deadthreadcount") == 0
