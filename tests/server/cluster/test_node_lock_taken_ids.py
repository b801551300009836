"""A node id that another process has when a broker starts: one that is about to stop, or one that runs on."""

import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import sparklog
from sparklog.errors import FencedError
from sparklog.metadata import plan_begin_controlled_shutdown
from sparklog_server.protocol.apis import ApiKey, ErrorCode
from sparklog_server.runtime.lifecycle import BrokerState
from tests.support.broker_process import until
from tests.support.brokers import Brokers
from tests.support.ports import lasting_port
from tests.support.running_broker import RunningBroker
from tests.support.told import Told
from tests.support.wire_client import WireClient


def waits(told: Told) -> list[str]:
    """What newcomers have said of their waiting."""
    return [text for text in told("sparklog_server") if "waiting for" in text]


@pytest.fixture(params=["directory", "memory"])
def brokers(
    request: pytest.FixtureRequest, tmp_path: Path, start_broker: Callable[..., RunningBroker]
) -> Brokers:
    """Where a lock tells of the other process, and where only its registration and its heartbeats do."""
    root = str(tmp_path / "log") if request.param == "directory" else f"memory://{tmp_path.name}"
    return Brokers(root, start_broker)


class Newcomer:
    """A broker that is being started, with another one's node id."""

    def __init__(self, brokers: Brokers, told: Told) -> None:
        self.failure: BaseException | None = None
        self.port = lasting_port()
        self._brokers = brokers
        self._thread = threading.Thread(target=self._start)
        self._thread.start()
        until(lambda: waits(told) or not self.is_waiting, what="it waits, or is refused")

    def _start(self) -> None:
        try:
            listeners = f"PLAINTEXT://127.0.0.1:{self.port}"
            self._brokers.start(1, initial_broker_registration_timeout_ms="60000", listeners=listeners)
        except FencedError as error:
            self.failure = error

    @property
    def is_waiting(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> None:
        self._thread.join(60)
        assert not self.is_waiting
        if self.failure is not None:
            raise self.failure


def test_a_newcomer_waits_for_one_that_is_going(brokers: Brokers, told: Told) -> None:
    brokers.start(1, 2)
    first = brokers[1]
    registration = first.broker.membership.current()
    with sparklog.open(brokers.root, create=False) as log:
        going = plan_begin_controlled_shutdown(log.image, 1, registration.broker_epoch)
        assert going is not None
        log.metadata.publish(lambda _: [going])
    newcomer = Newcomer(brokers, told)
    assert newcomer.is_waiting
    first.stop()
    newcomer.join()
    assert brokers[1] is not first
    assert brokers[1].broker.membership.is_registered
    (text,) = waits(told)
    assert re.search(r"broker 1.*at most 6[01] s$", text)


def test_clients_of_one_that_waits_are_refused_at_once(brokers: Brokers, told: Told) -> None:
    """They go on to another broker: in the kernel's queue they would wait until their request times out."""
    brokers.start(1, 2)
    first = brokers[1]
    newcomer = Newcomer(brokers, told)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", newcomer.port), timeout=10)
    first.stop()
    newcomer.join()
    with WireClient("127.0.0.1", newcomer.port) as client:
        assert client.ask(ApiKey.API_VERSIONS, 0).error_code == ErrorCode.none


def test_a_newcomer_waits_for_one_that_is_told_to_stop_meanwhile(brokers: Brokers, told: Told) -> None:
    brokers.start(1, 2)
    first = brokers[1]
    newcomer = Newcomer(brokers, told)
    assert newcomer.is_waiting
    assert first.broker.lifecycle.state is BrokerState.RUNNING
    first.stop()
    newcomer.join()
    assert brokers[1].broker.membership.is_registered


@pytest.mark.slow
def test_one_that_runs_on_keeps_its_node_id(brokers: Brokers, told: Told) -> None:
    brokers.start(1, 2)
    epoch = brokers[1].broker.membership.current().broker_epoch
    with pytest.raises(FencedError, match="DUPLICATE_BROKER"):
        brokers.start(1, initial_broker_registration_timeout_ms="700")
    assert len(waits(told)) == 1
    assert brokers[1].broker.membership.is_registered
    assert brokers[1].broker.membership.current().broker_epoch == epoch
    assert brokers[1].broker.lifecycle.state is BrokerState.RUNNING
