"""Signals that come while the same thread waits."""

import signal
import time
from collections.abc import Iterator

import pytest

from sparklog.cli.output import Stop


@pytest.fixture
def stop() -> Iterator[Stop]:
    stop = Stop()
    yield stop
    stop.close()


@pytest.fixture
def asking(stop: Stop) -> Iterator[None]:
    """An alarm asks."""
    before = signal.signal(signal.SIGALRM, lambda *_: stop.ask())
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.sampled(20)
@pytest.mark.timeout(60)
@pytest.mark.usefixtures("asking")
@pytest.mark.parametrize("microseconds", range(20, 420))
def test_a_signal_is_heard_wherever_it_comes(stop: Stop, microseconds: int) -> None:
    """Who waits in short turns, as a round does that rests, is often at the beginning or the end of one."""
    signal.setitimer(signal.ITIMER_REAL, microseconds / 1e6)
    while not stop.is_asked():
        stop.wait(0.000_01)


@pytest.mark.usefixtures("asking")
def test_who_waits_for_long_is_woken(stop: Stop) -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    began = time.monotonic()
    stop.wait(100)
    assert stop.is_asked()
    assert time.monotonic() - began < 50


def test_it_may_be_asked_more_often_than_a_pipe_holds(stop: Stop) -> None:
    for _ in range(100_000):
        stop.ask()
    stop.wait(100)
    assert stop.is_asked()


@pytest.mark.usefixtures("asking")
def test_how_long_it_may_take_is_not_bound(stop: Stop) -> None:
    stop.wait(-1)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    stop.wait(1e300)
    assert stop.is_asked()
