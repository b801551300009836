"""How often rounds are started while they come to nothing, and afterwards."""

from sparklog.client.round_process import MAX_WAIT_MS, Pace, RoundAnswer
from sparklog.maintenance import RoundReport, StepReport
from sparklog.maintenance.rounds import Amount

NOTHING = Amount(extents=0, bytes=0)


def answer(*outcomes: str) -> RoundAnswer:
    steps = tuple(StepReport(step="optimize", outcome=outcome) for outcome in outcomes)
    report = RoundReport(steps=steps, before=NOTHING, after=NOTHING, duration_ms=1, is_stopped=False)
    return RoundAnswer(report=report)


def test_a_round_that_does_something_changes_nothing() -> None:
    pace = Pace()
    pace.note(answer("nothing", "done"), 0)
    pace.note(answer("cut"), 0)
    assert pace.wait_ms(15) == 15


def test_each_that_comes_to_nothing_doubles_the_wait() -> None:
    pace = Pace()
    for number, vain in enumerate(
        [RoundAnswer(error="killed"), answer("done", "failed"), answer("nothing"), answer("busy")]
    ):
        pace.note(vain, 0)
        assert pace.wait_ms(15) == 15 << number + 1
    pace.note(answer("done"), 0)
    assert pace.wait_ms(15) == 15


def test_waits_are_bounded_but_never_shorter_than_usual() -> None:
    pace = Pace()
    for _ in range(1000):
        pace.slow_down()
    assert pace.wait_ms(15_000) == MAX_WAIT_MS
    assert pace.wait_ms(2 * MAX_WAIT_MS) == 2 * MAX_WAIT_MS
    pace.reset()
    assert pace.wait_ms(15_000) == 15_000
