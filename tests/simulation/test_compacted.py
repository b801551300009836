"""Each promise of compaction, broken by hand, and found; and what is allowed, not."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.history.events import Event
from tests.simulation.compacted import Look, Reading, Rules, State, Witness, problems_of
from tests.simulation.keyed import parsed, text_of

KEY = "c-0"


@dataclass
class Told:
    """A history of one partition: microseconds are milliseconds here."""

    rules: Rules = field(default_factory=lambda: Rules(delete_retention_ms=100, min_compaction_lag_ms=0))
    lags: bool = False
    is_clean_part_held_up: bool = False

    def __post_init__(self) -> None:
        self.witness = Witness(self.rules)
        self.events: list[Event] = []
        self.sent = 0

    def put(
        self, key: str, *, at: int, deletes: bool = False, outcome: str = "ok", offset: int | None = None
    ) -> str:
        """A record at the next offset, or one whose place is not known."""
        text = text_of("w", self.sent, key, is_tombstone=deletes)
        self.witness.stamps[text] = at
        offsets = None if outcome != "ok" else [self.sent if offset is None else offset]
        self.sent += outcome == "ok"
        self.events.append(
            Event(
                i=len(self.events), proc="w", f="send", type=outcome, key=KEY, value=[text], offset=offsets,
                t_inv=at, t_done=at + 1,
            )
        )  # fmt: skip
        return text

    def round(self, at: int, now_ms: int | None = None) -> None:
        self.witness.readings.append(Reading(at, at if now_ms is None else now_ms))

    def truncate(self, offset: int, at: int) -> None:
        self.events.append(
            Event(
                i=len(self.events),
                proc="k",
                f="truncate",
                type="ok",
                key=KEY,
                offset=offset,
                t_inv=at,
                t_done=at,
            )
        )

    def look(self, at: int, found: dict[int, str], *, start: int = 0, end: int | None = None) -> Look:
        end = self.sent if end is None else end
        look = Look(who="r", key=KEY, start=start, end=end, began_us=at, done_us=at + 1, found=found)
        self.witness.looks.append(look)
        return look

    def state(
        self, at: int, found: dict[int, str], *, dirty: int, start: int = 0, stored: int | None = None
    ) -> State:
        look = self.look(at, found, start=start)
        self.witness.looks.remove(look)
        return State(
            look=look,
            log_start=start,
            log_end=self.sent,
            first_dirty_offset=dirty,
            is_held_up=False,
            is_clean_part_held_up=self.is_clean_part_held_up,
            stored_end=self.sent if stored is None else stored,
        )

    def last(
        self, at: int, found: dict[int, str], *, dirty: int, start: int = 0, stored: int | None = None
    ) -> None:
        self.witness.last.append(self.state(at, found, dirty=dirty, start=start, stored=stored))

    def settled(
        self, at: int, found: dict[int, str], *, dirty: int | None = None, stored: int | None = None
    ) -> None:
        dirty = self.sent if dirty is None else dirty
        self.witness.settled.append(self.state(at, found, dirty=dirty, stored=stored))

    def problems(self) -> set[str]:
        """By their names."""
        found = problems_of(self.witness, self.events, lags=self.lags)
        return {problem.partition(":")[0] for problem in found}


def test_a_superseded_record_may_go_once_a_round_could_see_both() -> None:
    for round_at, found in ((25, set()), (15, {"lost"})):
        told = Told()
        told.put("k", at=10)
        later = told.put("k", at=20)
        told.round(round_at)
        told.look(30, {1: later})
        assert told.problems() == found


def test_what_is_below_a_look_or_beyond_it_is_not_missing() -> None:
    told = Told()
    told.put("k", at=10)
    middle = told.put("l", at=11)
    told.put("m", at=12)
    told.look(30, {1: middle}, start=1, end=2)
    assert told.problems() == set()


def test_a_key_is_never_gone_without_a_later_record() -> None:
    told = Told()
    told.put("k", at=10)
    other = told.put("l", at=20)
    told.round(25)
    told.look(30, {1: other})
    assert told.problems() == {"lost"}


def test_what_was_sent_together_lies_together() -> None:
    """One record of a send of unknown outcome was read, the other one superseded an older one meanwhile."""
    for later_key, found in (("k", set()), ("other", {"lost"})):
        told = Told()
        told.put("k", at=10)
        read, unread = (
            text_of("w", 1, "l", is_tombstone=False),
            text_of("w", 2, later_key, is_tombstone=False),
        )
        told.witness.stamps |= {read: 20, unread: 20}
        told.events.append(
            Event(
                i=len(told.events), proc="w", f="send", type="info", key=KEY, value=[read, unread],
                t_inv=20, t_done=21,
            )
        )  # fmt: skip
        told.sent = 3
        told.round(25)
        told.look(30, {1: read}, end=2)
        assert told.problems() == found


def test_a_tombstone_that_nobody_knows_the_place_of_explains_what_is_missing() -> None:
    for outcome, found in (("info", set()), ("fail", {"lost"})):
        told = Told()
        told.put("k", at=10)
        told.put("k", at=20, deletes=True, outcome=outcome)
        told.round(25)
        told.look(30, {})
        assert told.problems() == found


def test_the_lag_goes_by_the_clock_of_who_compacts() -> None:
    for now_ms, found in ((69, {"lost"}), (70, set())):
        told = Told(Rules(delete_retention_ms=100, min_compaction_lag_ms=50))
        told.put("k", at=10)
        later = told.put("k", at=20)
        told.round(25, now_ms=now_ms)
        told.look(30, {1: later})
        assert told.problems() == found


def test_a_tombstone_goes_by_the_second_round_that_sees_it() -> None:
    for second, found in ((None, {"lost"}), (119, {"lost"}), (120, set())):
        told = Told()
        told.put("k", at=10, deletes=True)
        told.round(5, now_ms=-1_000)  # had not seen it
        told.round(20)
        if second is not None:
            told.round(30, now_ms=second)
        told.look(40, {})
        assert told.problems() == found


def test_a_record_without_a_key_may_go() -> None:
    for rounds, found in (([], {"lost"}), ([20], set())):
        told = Told()
        told.put("", at=10)
        for at in rounds:
            told.round(at)
        told.look(30, {})
        assert told.problems() == found


def test_what_is_below_the_log_start_is_not_missing() -> None:
    told = Told()
    told.put("k", at=10)
    other = told.put("l", at=11)
    told.truncate(1, at=15)
    told.look(30, {1: other})
    told.last(40, {1: other}, dirty=1, start=1)
    assert told.problems() == set()


def test_what_was_gone_does_not_come_back() -> None:
    for lags, found in ((False, {"seen again"}), (True, set())):
        told = Told(lags=lags)
        early = told.put("k", at=10)
        later = told.put("k", at=20)
        told.round(25)
        told.look(30, {1: later})
        told.look(32, {0: early, 1: later})  # began when the other had ended
        told.look(29, {0: early, 1: later})
        assert told.problems() == found


def compacted() -> tuple[Told, str, str]:
    told = Told()
    told.put("k", at=10)
    later, other = told.put("k", at=20), told.put("l", at=21)
    told.round(25)
    return told, later, other


def test_a_compacted_partition_is_as_it_should_be() -> None:
    told, later, other = compacted()
    told.last(30, {1: later, 2: other}, dirty=3)
    told.settled(900, {1: later, 2: other})
    assert told.problems() == set()


BROKEN: dict[str, Callable[[Told, str, str], None]] = {
    "above the dirty point": lambda told, later, other: told.last(30, {1: later, 2: other}, dirty=0),
    "went for what is above the dirty point": lambda told, later, other: told.last(
        30, {1: later, 2: other}, dirty=1
    ),
    "log start": lambda told, later, other: told.last(30, {1: later, 2: other}, dirty=3, start=1),
    "end": lambda told, later, other: told.last(30, {1: later, 2: other}, dirty=3, stored=2),
}


@pytest.mark.parametrize("name", BROKEN)
def test_in_the_end_it_is_found(name: str) -> None:
    told, later, other = compacted()
    BROKEN[name](told, later, other)
    assert told.problems() == {name}


def test_below_the_dirty_point_keys_are_there_once() -> None:
    told = Told()
    found = {0: told.put("k", at=10), 1: told.put("k", at=20), 2: told.put("", at=21)}
    told.last(30, found, dirty=3)
    assert told.problems() == {"not compacted"}
    assert len(problems_of(told.witness, told.events, lags=False)) == 2
    told.witness.last.clear()
    told.last(30, found, dirty=1)
    assert told.problems() == set()


def test_a_key_is_not_revived_by_its_tombstones_end() -> None:
    told = Told()
    hidden = told.put("k", at=10)
    told.put("k", at=20, deletes=True)
    told.round(25)
    told.round(125)
    told.last(130, {0: hidden}, dirty=2)
    assert told.problems() == {"revived"}


def test_a_tombstone_that_no_round_sees_may_stay() -> None:
    for is_held_up, found in ((True, set()), (False, {"not compacted"})):
        told = Told(is_clean_part_held_up=is_held_up)
        tombstone = told.put("k", at=20, deletes=True)
        told.last(30, {0: tombstone}, dirty=1)
        told.settled(900, {0: tombstone})
        assert told.problems() == found


@pytest.mark.parametrize("left", ["tombstone", "dirty", "lost", "end"])
def test_at_last_nothing_is_left_to_do(left: str) -> None:
    told = Told()
    kept, gone = told.put("l", at=10), told.put("k", at=20, deletes=True)
    told.last(30, {0: kept, 1: gone}, dirty=2)
    assert parsed(gone).is_tombstone
    if left == "tombstone":
        told.settled(900, {0: kept, 1: gone})
    elif left == "dirty":
        told.settled(900, {0: kept}, dirty=1)
    elif left == "lost":
        told.settled(900, {})
    else:
        told.settled(900, {0: kept}, stored=1)
    names = {"tombstone": "not compacted", "dirty": "not compacted", "lost": "lost in the end", "end": "end"}
    assert told.problems() == {names[left]}
