import io

import pytest

from sparklog.clock import ManualClock
from sparklog.demo.run import Reporter


def test_off_a_terminal_events_are_lines_and_updates_are_thinned() -> None:
    clock, stream = ManualClock(), io.StringIO()
    reporter = Reporter(clock, stream)
    with reporter.step("Stream", 10) as step:
        for done in range(10):
            step.update(done, "batch")
            clock.advance_ms(1_250)
        step.result = "10 batches"
    lines = stream.getvalue().splitlines()
    assert lines[0] == "[  0.0 s] Stream ..."
    assert lines[1] == "[  5.0 s]   Stream: 4 of 10, batch"
    assert lines[-1] == "[ 12.5 s] done: Stream: 10 batches (12.5 s)"
    assert len(lines) == 4


def test_on_a_terminal_a_bar_is_drawn_and_removed() -> None:
    stream = io.StringIO()
    with Reporter(ManualClock(), stream, live=True).step("Stream", 10) as step:
        step.update(5, "half")
        step.result = "ok"
    assert stream.getvalue().endswith("\N{CHECK MARK} Stream: ok (0.0 s)\n")


def test_failed_step_is_not_reported_as_done() -> None:
    stream = io.StringIO()

    def fail() -> None:
        with Reporter(ManualClock(), stream).step("Stream"):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert "done" not in stream.getvalue()
