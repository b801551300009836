"""What commands are given: moments, and signals that come while the same thread waits."""

import signal
import threading
import time
from collections.abc import Iterator

import click
import pytest

from sparklog.cli.inputs import (
    Moment,
    Stop,
    parse_datetime,
    parse_java_duration,
    parse_moment,
    until_signalled,
)
from sparklog.wording import shown_time

# --- inputs ----------------------------------------------------------------------------------------


CONTEXT = click.Context(click.Command("x"))
PARAMETER = click.Option(["--at"])
SIX_UTC = 1_795_370_400_000


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("42", Moment(commit=42)),
        ("00000000000000000042", Moment(commit=42)),
        ("2026-11-22T18:00", Moment(time_ms=SIX_UTC)),
        ("2026-11-22 18:00:00.25", Moment(time_ms=SIX_UTC + 250)),
        ("2026-11-22T18:00Z", Moment(time_ms=SIX_UTC)),
        ("2026-11-22T19:00+01:00", Moment(time_ms=SIX_UTC)),
        ("2026-11-22", Moment(time_ms=SIX_UTC - 18 * 3_600_000)),
        ("1d", Moment(ago_ms=86_400_000)),
        ("90 minutes", Moment(ago_ms=5_400_000)),
        ("0s", Moment(ago_ms=0)),
    ],
)
def test_a_moment_is_a_commit_a_time_or_how_long_ago(text: str, moment: Moment) -> None:
    assert parse_moment(CONTEXT, PARAMETER, text) == moment


@pytest.mark.parametrize(
    ("text", "found_ms"),
    [
        ("P1D", 86_400_000),
        ("pt1h", 3_600_000),
        ("P1DT2H3M4.5S", 93_784_500),
        ("PT0S", 0),
        ("90m", 5_400_000),
        ("7 days", 7 * 86_400_000),
    ],
)
def test_a_duration_is_javas_or_ours(text: str, found_ms: int) -> None:
    assert parse_java_duration(CONTEXT, PARAMETER, text) == found_ms


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P1DT", "P1H", "PT1D", "-PT1H", "P1W", "P99999D", "PT\u0661S"]
)
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        parse_java_duration(CONTEXT, PARAMETER, text)


def test_a_time_is_utc_unless_it_has_a_zone() -> None:
    for text in ("2026-11-22T18:00:00.000", "2026-11-22T18:00:00.000Z", "2026-11-22T19:00:00+01:00"):
        assert parse_datetime(CONTEXT, PARAMETER, text) == SIX_UTC
    with pytest.raises(click.BadParameter):
        parse_datetime(CONTEXT, PARAMETER, "1d")


@pytest.mark.parametrize("text", ["", "-1", "soon", "1e3", "2026-13-01", "0" * 21, "\u0661", "1 fortnight"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected a commit's number, a time"):
        parse_moment(CONTEXT, PARAMETER, text)


def test_none_is_now() -> None:
    assert parse_moment(CONTEXT, PARAMETER, None) is None


def test_times_are_shown_in_utc() -> None:
    assert shown_time(SIX_UTC + 7) == "2026-11-22T18:00:00.007Z"
    assert shown_time(10**18) == str(10**18)


# --- stopping --------------------------------------------------------------------------------------


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


@pytest.mark.timeout(60)
@pytest.mark.parametrize("is_reading", [False, True])
def test_a_signal_just_before_the_wait_ends_it(is_reading: bool) -> None:
    """A system call that begins after the signal has arrived is not interrupted by it.

    Here another thread takes the signal while this one already waits, which comes to the same.
    """
    with until_signalled() as stop:
        other = threading.Timer(0.1, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM))
        other.start()
        while is_reading and not stop.is_asked():
            assert stop.wait_or_read(None, ()) == []
        assert stop.wait(3600)
        other.join()


@pytest.mark.timeout(60)
def test_another_signal_does_not_shorten_a_wait() -> None:
    heard = []
    before = signal.signal(signal.SIGALRM, lambda number, _: heard.append(number))
    try:
        with until_signalled() as stop:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            began = time.monotonic()
            assert not stop.wait(0.1)
            assert time.monotonic() - began >= 0.1
            assert heard == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, before)
