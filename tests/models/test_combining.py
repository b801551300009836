"""Publishing for each other: nothing is found, and each safeguard that is missing is."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.models.combining import Combining, Rules
from tests.models.worlds import STATES, check_found, check_nothing_is_found

SMALL: dict[str, dict[str, Any]] = {
    "two processes, five commits": {"calls": (1, 1), "commits": 5},
    "a PUT that lands late": {"calls": (1, 1), "commits": 4, "lates": 1},
    "two calls": {"calls": (2, 1), "commits": 2},
    "clones": {"calls": (1, 2), "publishers": (0, 0), "commits": 5, "without": ("give_up",)},
}
LARGE: dict[str, dict[str, Any]] = {
    "a PUT that lands late": {"calls": (1, 1), "commits": 6, "lates": 1},
    "two calls each": {"calls": (2, 2), "commits": 4},
    "three calls": {"calls": (3, 1), "commits": 3},
    "a window of three": {"calls": (1, 1), "commits": 8, "window": 3, "lates": 1},
    "a clone at any time": {"calls": (2,), "commits": 5, "clones": 1},
    "clones, and another": {"calls": (1, 1, 1), "publishers": (0, 0, 1), "commits": 4, "lates": 1},
}
# What is missing; where it shows; and as what.
MUTANTS: dict[str, tuple[Rules, dict[str, Any], str]] = {
    "requests live forever": (Rules(is_bounded=False), {"commits": 5}, "applied twice"),
    "requests live forever, and publishers are counted": (
        Rules(is_bounded=False, memory=1 << 30, remembered=1),
        {"commits": 5},
        "applied twice",
    ),
    "a late owner tries once more": (Rules(owner_is_bounded=False), {"commits": 3}, "applied twice"),
    "publishers are forgotten a commit early": (Rules(memory=1), {"commits": 4}, "applied twice"),
    "publishers are forgotten at once": (Rules(memory=-1), {"commits": 3}, "applied twice"),
    "a sequence applies again": (Rules(refuses_sequences=False), {"commits": 2}, "applied twice"),
    "what is forgotten was never applied": (Rules(reads_back=False), {"commits": 5}, "applied twice"),
    "a call without a commit drops the fence": (
        Rules(keeps_fence=False),
        {"calls": (3, 1), "commits": 2},
        "after a later publish",
    ),
    "no fence": (Rules(fences=False), {"calls": (2, 1), "commits": 2}, "after a later publish"),
    "an error is told while the request is out": (Rules(takes_back=False), {"commits": 2}, "after an error"),
    "any other error, likewise": (Rules(errors_are_unresolved=False), {"commits": 2}, "after an error"),
    "what was given up is applied with the next": (
        Rules(passes_over_given_up=False),
        {"calls": (2, 1), "commits": 2},
        "given up",
    ),
    "no nonce": (
        Rules(has_nonce=False),
        {"calls": (1, 1), "publishers": (0, 0), "commits": 2},
        "not there",
    ),
    "a clone posts a number that is settled already": (
        Rules(notices_clone=False),
        {"calls": (1, 2), "publishers": (0, 0), "commits": 5, "without": ("give_up", "nothing_to_do")},
        "applied twice",
    ),
}
LARGE_MUTANTS: dict[str, tuple[Rules, dict[str, Any], str]] = {
    "settled by a later number was not applied": (
        Rules(searches_window=False),
        {
            "calls": (2, 1, 1),
            "publishers": (0, 0, 1),
            "commits": 3,
            "without": ("filler", "nothing_to_do"),
        },
        "applied twice",
    ),
}


WORLDS = {**{f"{name}, small": sizes for name, sizes in SMALL.items()}, **(LARGE if STATES else {})}
ALL_MUTANTS = {**MUTANTS, **(LARGE_MUTANTS if STATES else {})}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", WORLDS)
def test_nothing_is_found(name: str, report: Callable[[str], None]) -> None:
    sizes = dict(WORLDS[name])
    model = Combining(Rules(window=sizes.pop("window", 2)), **sizes)
    check_nothing_is_found(model, name, report, is_large=name in LARGE)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ALL_MUTANTS)
def test_a_missing_safeguard_is_found(name: str) -> None:
    rules, sizes, promise = ALL_MUTANTS[name]
    check_found(Combining(rules, **sizes), promise)
