"""Maintenance that waits for a moment in which the broker has little to do."""

import pytest

from sparklog.clock import ManualClock
from sparklog_server.maintenance.service import IdleMoments


class Broker:
    """Uses a share of a processor."""

    def __init__(self, most_ms: int = 60_000) -> None:
        self.clock = ManualClock()
        self.cpu = 0.0
        self.moments = IdleMoments(most_ms, clock=self.clock, cpu_seconds=lambda: self.cpu)

    def works(self, ms: int, share: float) -> None:
        self.clock.advance_ms(ms)
        self.cpu += ms / 1000 * share


def test_an_idle_broker_begins_at_once() -> None:
    broker = Broker()
    assert broker.moments.may_begin()  # it has just started
    broker.works(15_000, 0.05)
    assert broker.moments.may_begin()


def test_a_busy_one_waits_until_it_is_idle() -> None:
    broker = Broker()
    broker.works(15_000, 0.5)
    assert not broker.moments.may_begin()
    broker.works(15_000, 0.2)
    assert not broker.moments.may_begin()
    broker.works(15_000, 0.05)
    assert broker.moments.may_begin()


def test_not_for_ever() -> None:
    broker = Broker()
    found = []
    for _ in range(10):
        broker.works(15_000, 0.9)
        found.append(broker.moments.may_begin())
    # A minute after it was first due; what is due then is another thing, and waits for as long again.
    assert found == [False, False, False, False, True] * 2


def test_what_is_due_no_more_does_not_count() -> None:
    broker = Broker()
    for _ in range(3):
        broker.works(15_000, 0.9)
        assert not broker.moments.may_begin()
    broker.works(15_000, 0.9)
    broker.moments.nothing_due()  # somebody else has done it
    broker.works(15_000, 0.9)
    assert not broker.moments.may_begin()


def test_a_moment_is_no_measure() -> None:
    """What takes a millisecond of processor time, in a millisecond, is no load."""
    broker = Broker()
    broker.works(999, 1.0)
    assert broker.moments.may_begin()
    broker.works(1, 1.0)
    assert not broker.moments.may_begin()


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_without_waiting(share: float) -> None:
    broker = Broker(0)
    for _ in range(3):
        broker.works(15_000, share)
        assert broker.moments.may_begin()


def test_how_long_it_waits_can_change_meanwhile() -> None:
    broker = Broker()
    broker.works(15_000, 0.9)
    assert not broker.moments.may_begin()
    broker.moments.change(10_000)
    broker.works(10_000, 0.9)
    assert broker.moments.may_begin()
