"""A broker keeps its root in order in the background: merging and retention, beside its clients."""

import contextlib
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer

import sparklog
from sparklog.client import SparkLog, round_process
from sparklog.client.round_process import Pace
from sparklog.maintenance import ROUND, alone
from sparklog_server.maintenance import service
from tests.server.http.test_endpoint import scrape, value
from tests.support.broker_process import BrokerProcess, serving, until
from tests.support.prompt_rounds import hurry
from tests.support.running_broker import RunningBroker
from tests.support.told import Told

SOON = {
    "log.cleaner.backoff.ms": "50",
    "log.retention.check.interval.ms": "50",
    "sparklog.maintenance.delay.max.ms": "0",
}


DUE = 256  # small extents
CLEANER = "sparklog_server.log_cleaner"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with enough small extents in t-0 for a merge to be due."""
    root = tmp_path_factory.mktemp("filled") / "log"
    with sparklog.open(root) as log:
        log.create_topic("t", 2)
        for number in range(DUE):
            log.append("t", pa.table({"value": [f"old-{number}"]}), partition=0)
    return root


@pytest.fixture
def log(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkLog]:
    """A copy of that root; rounds of it do not wait until nobody else has anything to do."""
    (tmp_path / "prompt").mkdir()
    hurry(monkeypatch, tmp_path / "prompt")
    shutil.copytree(filled, tmp_path / "log")
    with sparklog.open(tmp_path / "log", create=False) as log:
        yield log


def root_of(log: SparkLog) -> str:
    return log.url.removeprefix("file://")


def extent_count(log: SparkLog, partition: int = 0) -> int:
    return len(log.refresh().partition("t", partition).extents)


def kept(log: SparkLog) -> int:
    return log.log_end_offset("t", 0) - log.log_start_offset("t", 0)


def rounds(server: BrokerProcess) -> list[psutil.Process]:
    """The processes that the broker has started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return list(psutil.Process(server.process.pid).children())
    return []


def test_small_extents_are_merged_while_clients_go_on_exactly(log: SparkLog) -> None:
    with serving(root_of(log), SOON) as server:
        consumer = Consumer(
            {"bootstrap.servers": server.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["t"])
        read: list[tuple[int, str]] = []
        enough = threading.Event()

        def consume() -> None:
            while len(read) < DUE + sent or not enough.is_set():
                message = consumer.poll(0.1)
                if message is not None and message.partition() == 0:
                    offset, text = message.offset(), message.value()
                    assert message.error() is None
                    assert offset is not None
                    assert text is not None
                    read.append((offset, bytes(text).decode()))

        sent = 0
        reading = threading.Thread(target=consume)
        reading.start()
        producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
        try:
            while sent < 100 or extent_count(log) >= DUE:
                producer.produce("t", f"new-{sent}", partition=0)
                assert producer.flush(30) == 0
                sent += 1
        finally:
            enough.set()
            reading.join(60)
            consumer.close()
        expected = [f"old-{number}" for number in range(DUE)] + [f"new-{number}" for number in range(sent)]
        assert read == list(enumerate(expected))
        assert log.read("t", 0, 0)["value"].cast("string").to_pylist() == expected
        until(lambda: "optimize done: merged_extents=" in server.errors())
        assert server.stop() == 0


def test_retention_of_the_brokers_own_settings(log: SparkLog) -> None:
    log.create_topic("kept", 1, {"retention.bytes": "-1"})
    log.append("kept", pa.table({"value": ["x"]}))
    with serving(root_of(log), {**SOON, "log.retention.bytes": "0", "log.cleaner.enable": "false"}):
        until(lambda: kept(log) == 0)
    assert log.log_start_offset("kept", 0) == 0


def test_without_the_cleaner_nothing_is_merged(log: SparkLog) -> None:
    log.append("t", pa.table({"value": ["x"]}), partition=1)
    log.alter_topic("t", {"retention.bytes": "100000"})
    with serving(root_of(log), {**SOON, "log.cleaner.enable": "false"}):
        log.alter_topic("t", {"retention.bytes": "1"})  # one extent of each partition stays
        until(lambda: extent_count(log) == 1)
        assert kept(log) == 1
        assert log.read("t", 0, DUE - 1)["value"].to_pylist() == [f"old-{DUE - 1}".encode()]


@pytest.mark.parametrize("kills", [True, False])
def test_a_round_ends_with_its_broker(log: SparkLog, kills: bool) -> None:
    with serving(root_of(log), {**SOON, "log.cleaner.io.max.bytes.per.second": "1"}) as server:
        (round_,) = until(lambda: rounds(server))
        until(lambda: (Path(root_of(log)) / "maintenance-round.lock").exists())
        if kills:
            server.kill()
        else:
            assert server.stop() == 0
        until(lambda: not round_.is_running() or round_.status() == psutil.STATUS_ZOMBIE)
    assert extent_count(log) == DUE


def test_rounds_that_come_to_nothing_become_rare(
    log: SparkLog, start_broker: Callable[..., RunningBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[int] = []

    class Recorded(Pace):
        def wait_ms(self, usual_ms: int) -> int:
            waits.append(super().wait_ms(usual_ms))
            return waits[-1]

    monkeypatch.setattr(service, "Pace", Recorded)
    monkeypatch.setattr(round_process, "command", lambda *, is_urgent: [sys.executable, "-c", ""])
    start_broker(SOON, root=root_of(log))
    until(lambda: len(waits) >= 4)
    assert waits[:4] == [50, 100, 200, 400]


def test_a_damaged_partition_is_named_and_the_others_are_merged_as_usual(
    log: SparkLog,
    start_broker: Callable[..., RunningBroker],
    told: Told,
    tmp_path: Path,
) -> None:
    (segment,) = tmp_path.glob("log/segments/*/*.log")
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    broker = start_broker({**SOON, "sparklog.http.listener": "127.0.0.1:0"}, root=root_of(log))
    until(lambda: any("t-0 is skipped: [SPARKLOG_CORRUPT_BATCH]" in one for one in told(CLEANER)))
    with sparklog.open(root_of(log)) as other:
        for number in range(DUE):
            other.append("t", pa.table({"value": [f"{number}"]}), partition=1)
        until(lambda: extent_count(log, 1) < 256)
    until(lambda: value(scrape(broker), "kafka_log_logcleanermanager_uncleanable_partitions_count") == 1)
    assert value(scrape(broker), "kafka_log_logcleanermanager_uncleanable_bytes") == segment.stat().st_size
    assert sum("t-0 is skipped" in one for one in told(CLEANER)) == 1
    assert extent_count(log) == 256
    log.delete_topic("t")
    until(lambda: value(scrape(broker), "kafka_log_logcleanermanager_uncleanable_partitions_count") == 0)


def test_somebody_elses_rounds_are_no_failure(
    log: SparkLog, start_broker: Callable[..., RunningBroker]
) -> None:
    with alone(log.metadata, ROUND):
        broker = start_broker(SOON, root=root_of(log))
        until(lambda: broker.broker.metrics.maintenance.rounds)
    until(lambda: extent_count(log) == 1)
    assert broker.broker.metrics.maintenance.failed_rounds == 0


def test_metrics_say_what_was_done(log: SparkLog, start_broker: Callable[..., RunningBroker]) -> None:
    broker = start_broker({**SOON, "sparklog.http.listener": "127.0.0.1:0"}, root=root_of(log))
    until(lambda: broker.broker.metrics.maintenance.rounds)
    samples = scrape(broker)
    assert value(samples, "sparklog_maintenance_rounds_total") == 1
    assert value(samples, "sparklog_maintenance_failed_rounds_total") == 0
    assert value(samples, "sparklog_maintenance_merged_extents_total") == DUE
    assert value(samples, "kafka_log_logcleanermanager_time_since_last_run_ms") >= 0
