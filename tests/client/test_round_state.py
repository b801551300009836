"""What is known on a machine of a root's rounds: kept between processes, and trusted for nothing."""

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sparklog.client.rounds import (
    MAX_WAIT_MS,
    PATIENCE_MS,
    UNKNOWN,
    RoundAnswer,
    RoundState,
    RoundStates,
    begun,
    ended,
    found_nothing,
    may_look,
)
from sparklog.clock import ManualClock
from sparklog.maintenance import RoundReport, StepReport, Uncleanable
from sparklog.maintenance.maintain import Amount

URL, CLUSTER = "s3://bucket/log", "C" * 22
FOUND = Uncleanable(
    topic="t", topic_id="T" * 22, partition=3, size_bytes=9, code="CORRUPT_BATCH", message="m"
)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def states() -> RoundStates:
    return RoundStates(URL, CLUSTER)


def answer(outcome: str, *found: Uncleanable) -> RoundAnswer:
    nothing = Amount(extents=0, bytes=0)
    step = StepReport(step="optimize", outcome=outcome, uncleanable=found)
    return RoundAnswer(
        report=RoundReport(steps=(step,), before=nothing, after=nothing, duration_ms=1, is_stopped=False)
    )


def test_it_outlives_who_has_written_it() -> None:
    changed = states().change(lambda state: ended(state, answer("done", FOUND), 1_000, 15))
    assert states().outlives_us
    assert states().read() == changed
    assert [one.found for one in changed.uncleanable] == [FOUND]
    assert RoundStates(URL, "D" * 22).read() == UNKNOWN
    assert RoundStates("s3://bucket/other", CLUSTER).read() == UNKNOWN


def test_it_may_become_shorter() -> None:
    states().change(lambda state: ended(state, answer("done", FOUND), 1_000, 15))
    states().change(lambda _: RoundState(in_vain=3))
    assert states().read() == RoundState(in_vain=3)


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff", b"[]", b'{"in_vain":"x"}'])
def test_a_damaged_file_is_as_none(temporary: Path, damage: bytes) -> None:
    states().change(lambda _: RoundState(in_vain=3))
    (path,) = temporary.glob("sparklog-*/*.json")
    path.write_bytes(damage)
    assert states().read() == UNKNOWN
    states().change(lambda _: RoundState(in_vain=4))
    assert states().read().in_vain == 4


@contextmanager
def locked(temporary: Path) -> Iterator[Callable[[], None]]:
    """By somebody who was stopped in the midst of a change; until the function is called."""
    (path,) = temporary.glob("sparklog-*/*.json")
    with path.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield lambda: fcntl.flock(file, fcntl.LOCK_UN)


@pytest.mark.timeout(30)
def test_a_sink_waits_for_nobody(temporary: Path) -> None:
    """Who has the file may have been stopped with it."""
    mine, other = states(), states()
    mine.change(lambda _: RoundState(in_vain=3))
    with locked(temporary) as release:
        assert other.read() == UNKNOWN  # nothing known
        assert mine.read() == RoundState(in_vain=3)  # what it knew last
        assert mine.change(lambda _: RoundState(in_vain=4)).in_vain == 4
        assert mine.read().in_vain == 4
        release()
    assert [one.read().in_vain for one in (mine, other)] == [3, 3]


def test_a_round_waits_for_a_while(temporary: Path) -> None:
    states().change(lambda _: RoundState(in_vain=3))

    class Patience(ManualClock):
        def sleep_ms(self, duration_ms: float) -> None:
            super().sleep_ms(duration_ms)
            if self.monotonic_ms() >= until_ms:
                release()

    for until_ms, noted in ((100, True), (10 * PATIENCE_MS, False)):
        with locked(temporary) as release:
            clock = Patience()
            patient = RoundStates(URL, CLUSTER, patience=clock)
            assert patient.change(lambda _: RoundState(in_vain=7)).in_vain == 7
            assert clock.monotonic_ms() == min(until_ms, PATIENCE_MS)
        assert (states().read().in_vain == 7) == noted
        states().change(lambda _: RoundState(in_vain=3))


def test_it_is_nobody_elses_to_read_or_write(temporary: Path) -> None:
    states().change(lambda _: RoundState(in_vain=3))
    (directory,) = temporary.iterdir()
    (path,) = directory.glob("*.json")
    assert (directory.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)


@pytest.mark.parametrize("trap", ["link", "open", "file"])
def test_what_somebody_else_has_put_there_is_not_used(temporary: Path, trap: str) -> None:
    place, elsewhere = temporary / f"sparklog-{os.geteuid()}", temporary / "elsewhere"
    elsewhere.mkdir()
    if trap == "link":
        place.symlink_to(elsewhere)
    elif trap == "file":
        place.write_text("x")
    else:
        place.mkdir()
        place.chmod(0o777)
    mine = states()
    assert not mine.outlives_us
    assert mine.change(lambda _: RoundState(in_vain=2)).in_vain == 2
    assert mine.read().in_vain == 2  # in memory
    assert mine.hold_round().holder is None
    assert list(elsewhere.iterdir()) == []
    assert states().read() == UNKNOWN


def test_a_link_in_the_place_of_the_file_is_not_followed(temporary: Path) -> None:
    states().change(lambda _: RoundState(in_vain=2))
    (path,) = temporary.glob("sparklog-*/*.json")
    target = temporary / "target"
    target.write_bytes(b"precious")
    path.unlink()
    path.symlink_to(target)
    states().change(lambda _: RoundState(in_vain=3))
    assert target.read_bytes() == b"precious"


def test_one_round_at_a_time_whatever_the_store() -> None:
    held = states().hold_round()
    assert held.holder is None
    assert states().hold_round().holder == b"process %d" % os.getpid()
    held.release()
    assert states().hold_round().holder is None


def test_a_round_is_in_vain_until_it_says_otherwise() -> None:
    first = begun(UNKNOWN, 0, 15)
    assert (first.in_vain, first.look_ms) == (1, 30)
    second = begun(first, 30, 15)  # the first has not come back
    assert (second.in_vain, second.look_ms) == (2, 30 + 60)
    assert ended(second, answer("nothing"), 50, 15).look_ms == 50 + 60
    well = ended(second, answer("done"), 50, 15)
    assert (well.in_vain, well.look_ms) == (0, 65)
    assert ended(second, answer("failed", FOUND), 50, 15).in_vain == 0  # it is left out from now on
    assert found_nothing(second, 50, 15).in_vain == 0


def test_nobody_waits_for_a_time_that_cannot_be() -> None:
    state = RoundState(look_ms=1_000_000)
    assert not may_look(state, 1_000_000 - 1)
    assert not may_look(state, 1_000_000 - MAX_WAIT_MS)
    assert may_look(state, 1_000_000)
    assert may_look(state, 1_000_000 - MAX_WAIT_MS - 1)  # the clock was set back
