"""The broker's life: states, components, following the log, failing."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.clock import SystemClock
from sparklog.errors import FatalStorageError
from sparklog.metadata import Image
from sparklog_server.broker import Broker
from sparklog_server.runtime.lifecycle import BrokerState
from sparklog_server.settings.config import ServerConfig
from tests.support.broker_process import BrokerProcess
from tests.support.running_broker import RunningBroker
from tests.support.told import Told

CONFIGS = {"listeners": "PLAINTEXT://127.0.0.1:0", "sparklog.metadata.poll.ms": "1"}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - there is no event for what tests look at
            await asyncio.sleep(0.001)


def with_broker(root: str, scenario: Callable[[Broker], Any]) -> Broker:
    """Run a scenario with a broker that is not started yet, and stop it."""

    async def main() -> Broker:
        with sparklog.open(root) as log:
            broker = Broker(ServerConfig.parse(CONFIGS), log, SystemClock())
            try:
                await scenario(broker)
            finally:
                await broker.stop(1000)
            return broker

    return asyncio.run(main())


def test_states_in_their_order(root: str, caplog: pytest.LogCaptureFixture, told: Told) -> None:
    caplog.set_level(logging.INFO, "sparklog_server.state_change")

    async def scenario(broker: Broker) -> None:
        await broker.start()
        with pytest.raises(RuntimeError, match=r"from .*RUNNING to .*STARTING"):
            await broker.start()

    assert with_broker(root, scenario).lifecycle.state is BrokerState.NOT_RUNNING
    records = told.records("sparklog_server.state_change")
    states = [record.getMessage().partition(" -> ")[2] for record in records if "->" in record.msg]
    assert states == [
        "STARTING",
        "RECOVERY",
        "RUNNING",
        "PENDING_CONTROLLED_SHUTDOWN",
        "SHUTTING_DOWN",
        "NOT_RUNNING",
    ]


def test_commits_of_others_are_seen_and_told(root: str, caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[int, int]] = []

    def broken(_old: Image, _new: Image) -> None:
        raise KeyError("broken")

    async def scenario(broker: Broker) -> None:
        broker.root.on_image(broken)
        broker.root.on_image(lambda old, new: told.append((old.commit, new.commit)))
        await broker.start()
        with sparklog.open(root) as other:
            await broker.root.run(other.create_topic, "a")
        await until(lambda: "a" in broker.root.image.topics and told[-1][1] == broker.root.image.commit)

    with_broker(root, scenario)
    assert all(old < new for old, new in told)
    assert [new for _, new in told][:-1] == [old for old, _ in told][1:]
    assert "broken" in caplog.text


def test_components_stop_in_reverse_whatever_one_does(root: str, caplog: pytest.LogCaptureFixture) -> None:
    events: list[str] = []

    class Recorder:
        def __init__(self, name: str) -> None:
            self._name = name

        async def start(self) -> None:
            events.append(f"start {self._name}")
            if self._name == "third":
                raise FatalStorageError("STORAGE_FAILED", "third", fix="no")

        async def stop(self) -> None:
            events.append(f"stop {self._name}")
            if self._name == "second":
                raise KeyError(self._name)

    async def scenario(broker: Broker) -> None:
        broker.components = [Recorder(name) for name in ("first", "second", "third", "fourth")]
        with pytest.raises(FatalStorageError):
            await broker.start()

    assert with_broker(root, scenario).lifecycle.state is BrokerState.NOT_RUNNING
    assert events == ["start first", "start second", "start third", "stop second", "stop first"]
    assert "stopping Recorder failed" in caplog.text


def test_a_damaged_commit_stops_the_broker(root: str) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.start()
        name = f"{broker.root.image.commit + 1:020d}.json"
        (Path(root) / "__cluster_metadata" / name).write_bytes(b"{}\n{}\n")
        async with asyncio.timeout(60):
            await broker.lifecycle.wait_for_stop()

    broker = with_broker(root, scenario)
    assert broker.lifecycle.state is BrokerState.FAILED
    assert "CORRUPT_METADATA_COMMIT" in str(broker.lifecycle.failure)


def test_failing_while_it_stops(root: str) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.start()
        stop = broker.network.stop

        async def fail_meanwhile(timeout_ms: int) -> None:
            broker.lifecycle.fail(FatalStorageError("DURABILITY_UNKNOWN", "fsync", fix="stop"))
            broker.lifecycle.fail(FatalStorageError("DURABILITY_UNKNOWN", "again", fix="stop"))
            await stop(timeout_ms)

        broker.network.stop = fail_meanwhile  # type: ignore[method-assign]

    broker = with_broker(root, scenario)
    assert broker.lifecycle.state is BrokerState.FAILED
    assert "fsync" in str(broker.lifecycle.failure)


def test_a_failed_broker_ends_with_1(start_process: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    broker = start_process(root=str(tmp_path / "log"))
    with sparklog.open(str(tmp_path / "log")) as log:
        commit = log.image.commit
    path = tmp_path / "log" / "__cluster_metadata" / f"{commit + 1:020d}.json"
    path.write_bytes(b"{}\n{}\n")
    assert broker.wait() == 1
    assert "CRITICAL the broker stops" in broker.errors()


def test_settings_of_root_topic_and_broker(start_broker: Callable[..., RunningBroker]) -> None:
    running = start_broker({"message.max.bytes": "1000", "num.partitions": "3", **CONFIGS})
    broker = running.broker
    with sparklog.open(running.root) as log:
        log.create_topic("plain")
        log.create_topic("own", configs={"max.message.bytes": "2000"})

        def limits() -> tuple[int, int, int]:
            running.call(broker.root.run(log.metadata.refresh))
            running.call(broker.root.run(broker.root.log.refresh))
            topics = broker.root.image.topics
            return (
                broker.root.topic_config(topics["plain"]).max_message_bytes,
                broker.root.topic_config(topics["own"]).max_message_bytes,
                broker.root.root_config().num_partitions,
            )

        assert limits() == (1000, 2000, 3)
        log.alter_root({"max.message.bytes": "3000", "num.partitions": "5"})
        assert limits() == (3000, 2000, 5)
