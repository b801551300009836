"""Work in turns: nothing is left out, and no turn is longer than it may be."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sparklog_server.runtime.lifecycle import in_turns


@given(st.lists(st.integers(0, 9)), st.integers(0, 20))
def test_all_come_in_order_and_no_turn_has_more_than_it_may(weights: list[int], most: int) -> None:
    turns = list(in_turns(weights, lambda one: one, most))
    assert [one for turn in turns for one in turn] == weights
    assert all(sum(turn) <= most or len(turn) == 1 for turn in turns)
    # None could have been longer.
    assert all(sum(turn) + after[0] > most for turn, after in itertools.pairwise(turns))


def test_a_piece_is_weighed_when_its_turn_comes() -> None:
    weights = {"a": 3, "b": 1, "c": 1}
    turns = in_turns(weights, weights.__getitem__, 3)
    assert next(turns) == ["a"]
    weights["c"] = 3
    assert list(turns) == [["b"], ["c"]]
