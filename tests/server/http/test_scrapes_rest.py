"""Metrics of a large root take seconds: whoever asks again and again gets a share of a core, no more."""

from collections.abc import Callable
from itertools import count

import pytest

from sparklog.clock import SystemClock
from sparklog_server.observe import collector
from tests.server.http.test_endpoint import ON, get, produce
from tests.support.broker_process import until
from tests.support.running_broker import RunningBroker

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def broker(start_broker: Callable[..., RunningBroker]) -> RunningBroker:
    return start_broker(ON)


@pytest.fixture
def takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text takes 100 s of CPU, by the only clock that is asked."""
    seconds = count(step=100)
    monkeypatch.setattr(collector, "thread_time", lambda: next(seconds))


def text(broker: RunningBroker, accept: str = "") -> str:
    status, text = get(broker, "/metrics", accept)
    assert status == 200
    return text


@pytest.mark.usefixtures("takes_long")
def test_while_it_rests_the_same_is_told(broker: RunningBroker) -> None:
    first = text(broker)
    produce(broker, "orders", 1)
    assert text(broker) == first


@pytest.mark.usefixtures("takes_long")
def test_when_it_has_rested_what_is_new_is_told(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "RESTS", 1e-6)
    text(broker)
    produce(broker, "orders", 1)
    until(lambda: 'topic="orders"' in text(broker))


@pytest.mark.usefixtures("takes_long")
def test_another_format_waits_until_it_has_rested(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who asks for two in turn would get all of a core."""
    rest_ms = 300
    monkeypatch.setattr(collector, "RESTS", rest_ms / 100_000)
    clock = SystemClock()
    began_ms = clock.monotonic_ms()
    assert not text(broker).endswith("# EOF\n")
    assert text(broker, OPEN_METRICS).endswith("# EOF\n")
    assert clock.monotonic_ms() - began_ms >= rest_ms - 1


def test_what_takes_no_time_is_told_anew_each_time(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "RESTS", 1e9)
    text(broker)
    produce(broker, "orders", 1)
    assert 'topic="orders"' in text(broker)
