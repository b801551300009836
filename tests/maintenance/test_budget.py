"""What a round may still do: bounds to the byte and the millisecond."""

from sparklog.clock import ManualClock
from sparklog.maintenance import NO_LIMIT, Budget
from sparklog.maintenance.budget import Meter


def test_bytes_may_be_used_up_to_the_last() -> None:
    meter = Meter(Budget(max_bytes=10), ManualClock())
    assert meter.has_room()
    meter.spend(9)
    assert meter.has_room()  # whatever the size of what comes
    meter.spend(1)
    assert not meter.has_room()


def test_nothing_begins_when_the_time_is_up_not_even_the_first() -> None:
    clock = ManualClock()
    meter = Meter(Budget(seconds=0.5), clock)
    clock.advance_ms(499)
    assert meter.has_room()
    clock.advance_ms(1)
    assert not meter.has_room()


def test_without_a_limit_there_is_room() -> None:
    clock = ManualClock()
    meter = Meter(NO_LIMIT, clock)
    began_ms = clock.monotonic_ms()
    for _ in range(3):
        meter.spend(1 << 50)
    assert meter.has_room()
    assert clock.monotonic_ms() == began_ms
