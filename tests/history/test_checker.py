"""Each anomaly planted in a history, and found by its name alone."""

from collections.abc import Callable

import pytest

from tests.history.builder import HistoryBuilder
from tests.history.checker import check
from tests.history.events import Event
from tests.history.verdict import Name, Verdict

PLANTED: list[tuple[str, Callable[[HistoryBuilder], None]]] = []


def planted(name: str) -> Callable[[Callable[[HistoryBuilder], None]], Callable[[HistoryBuilder], None]]:
    def add(plant: Callable[[HistoryBuilder], None]) -> Callable[[HistoryBuilder], None]:
        PLANTED.append((name, plant))
        return plant

    return add


def verdict_of(plant: Callable[[HistoryBuilder], None]) -> Verdict:
    history = HistoryBuilder()
    plant(history)
    return check(history.events)


@planted("inconsistent-offsets")
def two_readers_see_different_values(h: HistoryBuilder) -> None:
    h.send("w", {"t-0": [("t/a", -1)]}, type="info")
    h.send("v", {"t-0": [("t/b", -1)]}, type="info")
    h.poll("r", {"t-0": [("t/a", 0)]})
    h.poll("s", {"t-0": [("t/b", 0)]})


@planted("inconsistent-offsets")
def two_writers_are_given_one_offset(h: HistoryBuilder) -> None:
    h.send("w", {"t-0": [("t/a", 0)]})
    h.send("v", {"t-0": [("t/b", 0)]})


@planted("duplicate")
def a_retry_is_there_twice(h: HistoryBuilder) -> None:
    h.send("w", {"t-0": [("t/a", -1)]}, type="info")
    h.poll("r", {"t-0": [("t/a", 0), ("t/a", 1)]})


@planted("duplicate")
def two_attempts_of_a_spark_task(h: HistoryBuilder) -> None:
    h.other("txn", "driver", txn="app/0", count=1)
    h.final({"t-0": [("t/app/0/0/a1/0", 0), ("t/app/0/0/a2/0", 1)]})


@planted("lost-write")
def an_acknowledged_record_is_passed_over(h: HistoryBuilder) -> None:
    h.send("w", {"t-0": [("t/a", 0)]})
    h.send("v", {"t-0": [("t/b", 1)]})
    h.poll("r", {"t-0": [("t/b", 1)]})


@planted("unseen")
def the_end_of_the_log_is_lost(h: HistoryBuilder) -> None:
    h.send("w", {"t-0": [("t/a", 0)]})
    h.send("w", {"t-0": [("t/b", 1)]})
    h.final({"t-0": [("t/a", 0)]})


@planted("unseen")
def a_whole_batch_is_lost(h: HistoryBuilder) -> None:
    h.other("txn", "driver", txn="app/0", count=2)
    h.final({})


@planted("G1a")
def a_failed_send_is_read(h: HistoryBuilder) -> None:
    h.send("w", {"t-0": [("t/a", -1)]}, type="fail")
    h.poll("r", {"t-0": [("t/a", 0)]})


@planted("precommitted-read")
def an_operation_reads_itself(h: HistoryBuilder) -> None:
    h.send("w", {"t-0": [("t/a", 0)]}, t_inv=5, t_done=9)
    sent = h.events[-1]
    h.events.append(
        Event(
            i=sent.i, proc="w", f="poll", type="ok", key="t-0", value=["t/a"], offset=[0], t_inv=5, t_done=9
        )
    )


@planted("poll-skip")
def a_reader_jumps(h: HistoryBuilder) -> None:
    h.send("w", {"t-0": [("t/a", 0), ("t/b", 1), ("t/c", 2)]})
    h.poll("r", {"t-0": [("t/a", 0)]})
    h.poll("r", {"t-0": [("t/c", 2)]})
    h.poll("s", {"t-0": [("t/a", 0), ("t/b", 1), ("t/c", 2)]})


@planted("nonmonotonic-poll")
def a_reader_goes_back(h: HistoryBuilder) -> None:
    h.send("w", {"t-0": [("t/a", 0), ("t/b", 1)]})
    h.poll("r", {"t-0": [("t/a", 0), ("t/b", 1)]})
    h.poll("r", {"t-0": [("t/b", 1)]})


@planted("int-poll-skip")
def one_poll_jumps(h: HistoryBuilder) -> None:
    h.send("w", {"t-0": [("t/a", 0), ("t/b", 1), ("t/c", 2)]})
    h.poll("r", {"t-0": [("t/a", 0), ("t/c", 2)]})
    h.poll("s", {"t-0": [("t/a", 0), ("t/b", 1), ("t/c", 2)]})


@planted("int-nonmonotonic-poll")
def one_poll_goes_back(h: HistoryBuilder) -> None:
    h.send("w", {"t-0": [("t/a", 0), ("t/b", 1)]})
    h.poll("r", {"t-0": [("t/b", 1), ("t/a", 0)]})


@planted("nonmonotonic-send")
def a_writers_second_send_comes_first(h: HistoryBuilder) -> None:
    # The two overlap, as with requests in flight: so it contradicts the order of sending, not of time.
    h.send("w", {"t-0": [("t/a", 1)]}, t_inv=0, t_done=20)
    h.send("w", {"t-0": [("t/b", 0)]}, t_inv=1, t_done=20)


@planted("nonmonotonic-send")
def a_writers_second_send_comes_first_and_is_answered_first(h: HistoryBuilder) -> None:
    h.send("w", {"t-0": [("t/a", 1)]}, t_inv=0, t_done=20)
    h.send("w", {"t-0": [("t/b", 0)]}, t_inv=1, t_done=19)
    h.events.reverse()


@planted("int-nonmonotonic-send")
def one_send_is_turned_round(h: HistoryBuilder) -> None:
    h.send("w", {"t-0": [("t/a", 1), ("t/b", 0)]})


@planted("G0")
def two_writes_are_in_different_orders_in_two_partitions(h: HistoryBuilder) -> None:
    h.send("w", {"t-0": [("t/a", 0)], "t-1": [("t/b", 1)]}, t_inv=0, t_done=9)
    h.send("v", {"t-0": [("t/c", 1)], "t-1": [("t/d", 0)]}, t_inv=0, t_done=9)


@planted("G1c")
def a_reader_is_before_what_it_read(h: HistoryBuilder) -> None:
    """w's record follows v's, and yet v, reading and writing in one operation, has read it."""
    h.send("v", {"t-0": [("t/a", 0)]}, t_inv=0, t_done=9)
    reading = h.events[-1]
    h.send("w", {"t-0": [("t/b", 1)]}, t_inv=0, t_done=9)
    h.events.append(
        Event(
            i=reading.i,
            proc="v",
            f="poll",
            type="ok",
            key="t-0",
            value=["t/b"],
            offset=[1],
            t_inv=0,
            t_done=9,
        )
    )
    h.poll("r", {"t-0": [("t/a", 0), ("t/b", 1)]})


@planted("G1c-process")
def a_process_reads_what_it_will_write_after(h: HistoryBuilder) -> None:
    """r reads b, then writes a; but a is before b."""
    h.poll("r", {"t-0": [("t/b", 1)]}, t_inv=0, t_done=9)
    h.send("r", {"t-0": [("t/a", 0)]}, t_inv=0, t_done=9)
    h.send("w", {"t-0": [("t/b", 1)]}, t_inv=0, t_done=9)
    h.poll("s", {"t-0": [("t/a", 0), ("t/b", 1)]}, t_inv=0, t_done=9)


@planted("G1c-realtime")
def a_later_send_comes_before_an_earlier_one(h: HistoryBuilder) -> None:
    h.send("w", {"t-0": [("t/a", 1)]})
    h.send("v", {"t-0": [("t/b", 0)]})


@planted("wrong-topic")
def a_record_shows_up_in_another_topic(h: HistoryBuilder) -> None:
    h.send("w", {"t-0": [("t/a", -1)]}, type="info")
    h.poll("r", {"u-0": [("t/a", 0)]})


@planted("phantom")
def nobody_sent_it(h: HistoryBuilder) -> None:
    h.poll("r", {"t-0": [("t/a", 0)]})


@planted("offset-gap")
def an_offset_is_missing(h: HistoryBuilder) -> None:
    h.send("w", {"t-0": [("t/a", 0)]})
    h.send("w", {"t-0": [("t/b", 2)]})
    h.final({"t-0": [("t/a", 0), ("t/b", 2)]})


@planted("epoch-regression")
def a_deposed_leader_answers(h: HistoryBuilder) -> None:
    h.send("w", {"t-0": [("t/a", 0)]}, epoch=2)
    h.send("v", {"t-0": [("t/b", 1)]}, epoch=1)


@planted("committed-offset-regression")
def a_groups_offset_goes_back(h: HistoryBuilder) -> None:
    h.other("commit", "r", group="g", key="t-0", offset=5)
    h.other("commit", "r", group="g", key="t-0", offset=9)
    h.other("fetch-committed", "s", group="g", key="t-0", offset=5)


@planted("committed-offset-regression")
def a_groups_offset_vanishes(h: HistoryBuilder) -> None:
    h.other("commit", "r", group="g", key="t-0", offset=5)
    h.other("fetch-committed", "s", group="g", key="t-0", offset=None)


@planted("committed-offset-regression")
def a_commit_that_was_seen_is_gone(h: HistoryBuilder) -> None:
    h.other("commit", "r", group="g", key="t-0", offset=5)
    h.other("commit", "r", group="g", key="t-0", offset=9, type="info")
    h.other("fetch-committed", "s", group="g", key="t-0", offset=9)
    h.other("fetch-committed", "s", group="g", key="t-0", offset=5)


@planted("committed-offset-regression")
def an_offset_that_nobody_committed(h: HistoryBuilder) -> None:
    h.other("commit", "r", group="g", key="t-0", offset=5)
    h.other("fetch-committed", "s", group="g", key="t-0", offset=6)


def made(h: HistoryBuilder, *offsets: int, end: int) -> None:
    """Of source records, one after the other; the group is at `end`."""
    for offset in offsets:
        h.other("make", "p", group="g", key="s-0", offset=offset, value=[f"t/{offset}"])
        h.send("p", {"t-0": [(f"t/{offset}", offset)]})
    h.other("commit", "p", group="g", key="s-0", offset=end)
    h.other("fetch-committed", "last", group="g", key="s-0", offset=end, final=True)


@planted("offset-without-record")
def a_group_is_past_a_record_that_was_made_of_nothing(h: HistoryBuilder) -> None:
    made(h, 0, 1, end=3)
    h.final({"t-0": [("t/0", 0), ("t/1", 1)]})


@planted("offset-without-record")
def the_offset_of_an_aborted_transaction_counts(h: HistoryBuilder) -> None:
    h.other("make", "p", group="g", key="s-0", offset=2, value=["t/2"])
    h.send("p", {"t-0": [("t/2", -1)]}, type="fail")
    made(h, 0, 1, end=3)
    h.final({"t-0": [("t/0", 0), ("t/1", 1)]})


@planted("record-without-offset")
def a_record_is_there_and_its_group_is_not_past_it(h: HistoryBuilder) -> None:
    made(h, 0, 1, end=1)
    h.final({"t-0": [("t/0", 0), ("t/1", 1)]})


@planted("record-without-offset")
def nothing_is_committed_and_a_record_is_there(h: HistoryBuilder) -> None:
    h.other("make", "p", group="g", key="s-0", offset=0, value=["t/0"])
    h.send("p", {"t-0": [("t/0", 0)]})
    h.other("fetch-committed", "last", group="g", key="s-0", offset=None, final=True)
    h.final({"t-0": [("t/0", 0)]})


@planted("duplicate")
def two_members_have_made_something_of_one_record(h: HistoryBuilder) -> None:
    h.other("make", "q", group="g", key="s-0", offset=0, value=["t/again"])
    h.send("q", {"t-0": [("t/again", -1)]}, type="info")
    made(h, 0, end=1)
    h.final({"t-0": [("t/0", 0), ("t/again", 1)]})


@planted("log-end-regression")
def a_log_gets_shorter(h: HistoryBuilder) -> None:
    h.other("end", "r", key="t-0", offset=5)
    h.other("end", "r", key="t-0", offset=4)


@planted("visible-before-commit")
def staged_records_are_read_before_the_publish(h: HistoryBuilder) -> None:
    h.send("w", {"t-0": [("t/a", -1)]}, type="info", t_inv=0, t_commit=50)
    h.poll("r", {"t-0": [("t/a", 0)]}, t_inv=10, t_done=20)


@planted("partial-batch")
def half_of_an_unknown_send_is_there(h: HistoryBuilder) -> None:
    h.send("w", {"t-0": [("t/a", -1)], "t-1": [("t/b", -1)]}, type="info")
    h.final({"t-0": [("t/a", 0)]})


@planted("partial-batch")
def two_tasks_of_one_batch(h: HistoryBuilder) -> None:
    h.send("task1", {"t-0": [("t/a", -1)]}, type="info", txn="app/1")
    h.send("task2", {"t-0": [("t/b", -1)]}, type="info", txn="app/1")
    h.final({"t-0": [("t/b", 0)]})


@planted("partial-batch")
def a_spark_batch_is_incomplete(h: HistoryBuilder) -> None:
    h.other("txn", "driver", txn="app/0", count=2)
    h.final({"t-0": [("t/app/0/0/a1/0", 0)]})


def test_what_was_sent_again_says_nothing_of_the_first_attempt() -> None:
    """A send of unknown outcome, of which half is there, since somebody has sent that half again."""

    def plant(h: HistoryBuilder) -> None:
        h.send("w", {"t-0": [("t/a", -1)], "t-1": [("t/b", -1)]}, type="info", txn="app/1/0")
        h.send("w", {"t-0": [("t/a", 0)]}, txn="app/1/1")
        h.final({"t-0": [("t/a", 0)]})

    assert not verdict_of(plant).names


def test_it_makes_no_circle_either() -> None:
    """Batches of a restored checkpoint overlap with one that nothing came of; others wrote in between."""

    def plant(h: HistoryBuilder) -> None:
        h.send("w", {"t-0": [("t/a", -1)], "t-1": [("t/b", -1)]}, type="info", txn="app/1/0")
        h.send("w", {"t-0": [("t/a", 0)]}, txn="app/1/1")
        h.send("v", {"t-0": [("t/c", 1)], "t-1": [("t/d", 0)]})
        h.send("w", {"t-1": [("t/b", -1)]}, type="info", txn="app/2/1")
        h.send("w", {"t-1": [("t/b", -1)]}, txn="app/2/1")
        h.final({"t-0": [("t/a", 0), ("t/c", 1)], "t-1": [("t/d", 0), ("t/b", 1)]})

    assert not verdict_of(plant).names


@pytest.mark.parametrize(("name", "plant"), PLANTED, ids=[plant.__name__ for _, plant in PLANTED])
def test_a_planted_anomaly_is_found_by_its_name(name: str, plant: Callable[[HistoryBuilder], None]) -> None:
    verdict = verdict_of(plant)
    assert verdict.names == {name}, verdict
    assert name in str(verdict)


def test_every_name_is_planted() -> None:
    assert {name for name, _ in PLANTED} == {str(name) for name in Name}
