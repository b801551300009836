"""What looks like an anomaly and is none: clean histories give none."""

from tests.history.builder import HistoryBuilder
from tests.history.checker import check
from tests.history.events import Event


def clean_history() -> HistoryBuilder:
    h = HistoryBuilder()
    h.send("w", {"t-0": [("t/w0", 0)], "t-1": [("t/w1", 0), ("t/w2", 1)]})
    h.poll("r", {"t-0": [("t/w0", 0)]})
    h.send("v", {"t-0": [("t/v0", 1)]})
    h.send("x", {"t-0": [("t/x0", -1)]}, type="info")
    h.send("y", {"t": [("t/y0", -1), ("t/y1", -1)]}, type="info")
    h.send("z", {"t-0": [("t/z0", -1)]}, type="fail")
    h.poll("r", {"t-0": [("t/v0", 1), ("t/y0", 2)], "t-1": [("t/w1", 0), ("t/w2", 1)]})
    h.other("commit", "r", group="g", key="t-0", offset=3)
    h.other("commit", "r2", group="g", key="t-0", offset=1, type="info")
    h.other("fetch-committed", "s", group="g", key="t-0", offset=1)
    h.other("end", "r", key="t-0", offset=3)
    h.final({"t-0": [("t/w0", 0), ("t/v0", 1), ("t/y0", 2)], "t-1": [("t/w1", 0), ("t/w2", 1), ("t/y1", 2)]})
    return h


def test_a_clean_history_has_no_anomaly() -> None:
    verdict = check(clean_history().events)
    assert not verdict.names, verdict
    assert (verdict.acknowledged, verdict.read, verdict.unknown, verdict.unknown_visible) == (4, 6, 2, 2)
    assert str(verdict).startswith("no anomalies: ")


def test_an_invocation_without_end_is_of_unknown_outcome() -> None:
    for visible in (False, True):
        h = clean_history()
        h.events.append(Event(i=1, proc="q", f="send", type="invoke", key="t-0", value=["t/q"]))
        h.final({"t-0": [("t/q", 3)] if visible else []})
        verdict = check(h.events)
        assert not verdict.names, verdict
        assert verdict.unknown == 3


def test_a_retry_that_was_acknowledged_makes_its_first_attempt_good() -> None:
    h = HistoryBuilder()
    h.send("w", {"t-0": [("t/a", -1)]}, type="info")
    h.send("other", {"t-0": [("t/b", 1)]})
    h.poll("r", {"t-0": [("t/a", 0), ("t/b", 1)]})
    h.send("w.1", {"t-0": [("t/a", -1)]})
    h.final({"t-0": [("t/a", 0), ("t/b", 1)]})
    assert not check(h.events).names


def test_sends_in_flight_together_may_be_answered_in_any_order() -> None:
    """As when the first is repeated, since its answer was that it took too long."""
    h = HistoryBuilder()
    h.send("w", {"t-0": [("t/a", 0)]}, t_inv=0, t_done=20)
    h.send("w", {"t-0": [("t/b", 1)]}, t_inv=1, t_done=19)
    h.events.reverse()
    h.final({"t-0": [("t/a", 0), ("t/b", 1)]})
    assert not check(h.events).names


def test_what_retention_removed_is_not_missing() -> None:
    h = HistoryBuilder()
    h.send("w", {"t-0": [("t/a", 0), ("t/b", 1)]})
    h.send("w", {"t": [("t/c", -1), ("t/d", -1)]}, type="info")
    h.other("truncate", "admin", key="t-0", offset=3)
    h.final({"t-0": [("t/d", 3)]})
    assert not check(h.events).names


def test_a_retry_that_does_not_know_where_its_records_went_is_no_witness_against_retention() -> None:
    h = HistoryBuilder()
    h.send("w", {"t-0": [("t/a", -1)]}, type="info")
    h.send("w.1", {"t-0": [("t/a", -1)]})
    h.send("w.1", {"t-0": [("t/b", 1)]})
    h.other("truncate", "admin", key="t-0", offset=1)
    h.final({"t-0": [("t/b", 1)]})
    assert not check(h.events).names


def test_a_seek_lets_a_reader_begin_anywhere() -> None:
    h = HistoryBuilder()
    h.send("w", {"t-0": [("t/a", 0), ("t/b", 1), ("t/c", 2)], "t-1": [("t/d", 0)]})
    h.poll("r", {"t-0": [("t/a", 0), ("t/b", 1)], "t-1": [("t/d", 0)]})
    h.other("seek", "r", key="t-0")
    h.poll("r", {"t-0": [("t/a", 0)]})
    assert not check(h.events).names
    h.poll("r", {"t-1": [("t/d", 0)]})
    assert check(h.events).names == {"nonmonotonic-poll"}
    h.events.pop()
    h.other("seek", "r")
    h.poll("r", {"t-1": [("t/d", 0)]})
    assert not check(h.events).names


def test_readers_may_start_in_the_middle() -> None:
    h = HistoryBuilder()
    h.send("w", {"t-0": [("t/a", 0), ("t/b", 1)]})
    h.poll("r", {"t-0": [("t/b", 1)]})
    h.poll("s", {"t-0": [("t/a", 0), ("t/b", 1)]})
    assert not check(h.events).names


def test_others_records_between_those_of_one_send_are_tolerated_and_counted() -> None:
    h = HistoryBuilder()
    h.send("w", {"t-0": [("t/a", 0), ("t/b", 2)]}, t_inv=0, t_done=9)
    h.send("v", {"t-0": [("t/c", -1)]}, type="info", t_inv=0, t_done=9)
    h.poll("r", {"t-0": [("t/a", 0), ("t/c", 1), ("t/b", 2)]})
    verdict = check(h.events)
    assert verdict.names <= {"G0"}  # between the two: so w is before and after v
    assert verdict.int_send_skips == 1


def test_without_last_reads_unseen_records_are_a_figure_only() -> None:
    h = HistoryBuilder()
    h.send("w", {"t-0": [("t/a", 0), ("t/b", 1)]})
    h.poll("r", {"t-0": [("t/a", 0)]})
    verdict = check(h.events)
    assert not verdict.names
    assert verdict.unseen == 1


def test_lag_is_measured_from_the_acknowledgement_of_what_was_not_returned() -> None:
    h = HistoryBuilder()
    h.send("w", {"t-0": [("t/a", 0)]}, t_inv=0, t_done=1_000)
    h.send("w", {"t-0": [("t/b", 1)]}, t_inv=2_000, t_done=3_000)
    h.poll("r", {"t-0": [("t/a", 0)]}, t_inv=10_000)
    assert check(h.events).worst_lag_us == 7_000


def test_an_offset_fetched_while_it_is_committed_may_be_old_or_new() -> None:
    for offset in (5, 9):
        h = HistoryBuilder()
        h.other("commit", "r", group="g", key="t-0", offset=5)
        h.other("commit", "r", group="g", key="t-0", offset=9, t_inv=10_000, t_done=20_000)
        h.other("fetch-committed", "s", group="g", key="t-0", offset=offset, t_inv=11_000, t_done=12_000)
        h.other("fetch-committed", "u", group="h", key="t-0", offset=None)
        assert not check(h.events).names


def test_what_was_made_again_after_an_abort_is_there_once() -> None:
    h = HistoryBuilder()
    for attempt, outcome in (("a", "fail"), ("b", "ok")):
        h.other("make", "p", group="g", key="s-0", offset=0, value=[f"t/{attempt}"])
        h.send("p", {"t-0": [(f"t/{attempt}", 0 if outcome == "ok" else -1)]}, type=outcome)
    h.other("make", "p", group="g", key="s-0", offset=1, value=["t/c"])
    h.send("p", {"t-0": [("t/c", -1)]}, type="fail")
    h.other("commit", "p", group="g", key="s-0", offset=1)
    h.other("fetch-committed", "last", group="g", key="s-0", offset=1, final=True)
    h.final({"t-0": [("t/b", 0)]})
    assert not check(h.events).counts
