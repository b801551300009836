"""Metrics of a large root take seconds: whoever asks again and again gets a share of a core, no more."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

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
    monkeypatch.setattr(collector, "CACHED_FACTOR", 1e-6)
    text(broker)
    produce(broker, "orders", 1)
    until(lambda: 'topic="orders"' in text(broker))


@pytest.mark.usefixtures("takes_long")
def test_also_to_those_who_prefer_another_format(broker: RunningBroker) -> None:
    """Else who asks for two in turn would get all of a core, or whoever prefers the other had to wait."""
    first = text(broker)
    assert not first.endswith("# EOF\n")
    produce(broker, "orders", 1)
    assert text(broker, OPEN_METRICS) == first


def test_who_waited_for_one_is_told_it(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else as many as may wait would have one made for each."""
    go_on = threading.Event()
    seconds = count(step=100)

    def thread_time() -> int:
        assert go_on.wait(30)
        return next(seconds)

    monkeypatch.setattr(collector, "thread_time", thread_time)
    with ThreadPoolExecutor() as others:
        asked = [others.submit(text, broker) for _ in range(3)]
        until(lambda: broker.call_soon(lambda: broker.broker.http.connection_count) == len(asked))
        produce(broker, "orders", 1)
        go_on.set()
        assert len({one.result() for one in asked}) == 1


def test_what_takes_no_time_is_told_anew_each_time(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "CACHED_FACTOR", 1e9)
    text(broker)
    produce(broker, "orders", 1)
    assert 'topic="orders"' in text(broker)
