"""Maps that share what did not change with those that they were made of."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.metadata.model.transaction_values import BUCKETS, SharedMap, SharedMapDraft

KEYS = st.sampled_from([f"key-{number}" for number in range(20)] + ["", "\ud800", "ä"])
STEPS = st.lists(st.tuples(KEYS, st.none() | st.integers()), max_size=40)


def changed(before: SharedMap[str, int], steps: list[tuple[str, int | None]]) -> SharedMap[str, int]:
    draft = SharedMapDraft(before)
    for key, value in steps:
        if value is not None:
            draft[key] = value
        elif draft.get(key) is not None:
            draft.remove(key)
    return draft.done()


@given(st.lists(STEPS, max_size=4))
def test_it_is_a_dictionary_of_each_moment(rounds: list[list[tuple[str, int | None]]]) -> None:
    found: SharedMap[str, int] = SharedMap()
    expected: dict[str, int] = {}
    moments = []
    for steps in rounds:
        found = changed(found, steps)
        for key, value in steps:
            if value is None:
                expected.pop(key, None)
            else:
                expected[key] = value
        moments.append((found, dict(expected)))
    for one, then in moments:  # what came later has changed none of them
        assert dict(one) == dict(one.items()) == then
        assert sorted(one.values()) == sorted(then.values())
        assert len(one) == len(then) == len(one.values())
        assert list(one) == [key for key, _ in one.items()]
        for key in ["key-1", "absent", *then]:
            assert (key in one, one.get(key)) == (key in then, then.get(key))
        assert one == then


def test_what_is_not_there() -> None:
    found = SharedMap([("a", 1)])
    with pytest.raises(KeyError):
        found["b"]
    with pytest.raises(KeyError):
        SharedMapDraft(found).remove("b")
    assert found.get("b", 7) == 7
    assert None not in found


def test_nothing_is_copied_where_nothing_changes() -> None:
    found = SharedMap([(number, number) for number in range(BUCKETS)])
    draft = SharedMapDraft(found)
    assert draft.get(3) == 3
    assert draft.done() is found


@pytest.mark.slow
def test_the_order_is_the_same_in_all_processes() -> None:
    program = (
        "from sparklog.metadata.model.transaction_values import SharedMap;"
        "print(list(SharedMap((f'k{n}', n) for n in range(300))))"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1
    assert len(next(iter(told))) > 1_000
