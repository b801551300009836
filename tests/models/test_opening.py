"""Opening a root: nothing is found, and each safeguard that is missing is."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.models.opening import Opening, Rules
from tests.models.worlds import STATES, check_found, check_nothing_is_found

ROOT: dict[str, Any] = {"commits": 5, "at_first": 2, "first": (1,), "snapshots": 2}
REMOTE: dict[str, Any] = {**ROOT, "is_remote": True}
SMALL: dict[str, dict[str, Any]] = {
    "a directory": ROOT,
    **{
        f"a directory, a damaged snapshot, hint {hint}": {**ROOT, "hint": hint, "damages": 1}
        for hint in (0, 2, 3)
    },
    **{
        f"an object store, a damaged snapshot, hint {hint}": {**REMOTE, "hint": hint, "damages": 1}
        for hint in (0, 2, 3)
    },
}
MORE: dict[str, Any] = {"commits": 7, "at_first": 2, "first": (1,), "snapshots": 3, "damages": 1}
LARGE: dict[str, dict[str, Any]] = {
    **{
        f"a directory, two damaged snapshots, hint {hint}": {**ROOT, "hint": hint, "damages": 2}
        for hint in (0, 1, 4, 5)
    },
    "a directory, two cleaners": {**ROOT, "damages": 1, "cleanings": (1, 1)},
    "a directory, seven commits, cleaned twice": {**MORE, "cleanings": (2,)},
    "an object store, two cleaners, hint 2": {**REMOTE, "hint": 2, "damages": 2, "cleanings": (1, 1)},
    "an object store, seven commits, cleaned twice, hint 3": {
        **MORE,
        "is_remote": True,
        "hint": 3,
        "cleanings": (2,),
    },
    **{
        f"an object store, two damaged snapshots, hint {hint}": {**REMOTE, "hint": hint, "damages": 2}
        for hint in (0, 1, 4, 5)
    },
}
# What is missing; where it shows; and as what.
MUTANTS: dict[str, tuple[Rules, dict[str, Any], str]] = {
    "a damaged snapshot is the end of it": (
        Rules(passes_over=False),
        {**REMOTE, "damages": 1},
        "does not open",
    ),
    "the hint is believed": (Rules(lists_all=False), {**REMOTE, "hint": 3, "damages": 1}, "older"),
    "what is missing is lost": (Rules(looks_again=False), ROOT, "does not open"),
    "only the oldest names of listings are compared": (
        Rules(compares_newest=False),
        ROOT,
        "does not open",
    ),
    "likewise, on an object store": (
        Rules(compares_newest=False),
        {**REMOTE, "hint": 2},
        "does not open",
    ),
    "the first commit that is missing is the end": (Rules(knows_end=False), REMOTE, "older"),
    "the hint is believed, in a directory": (
        Rules(lists_all=False),
        {**ROOT, "hint": 4, "damages": 1},
        "does not open",
    ),
    "a listing of a directory is believed": (Rules(asks_if_cleaned=False), ROOT, "older"),
    "likewise, from a hint on": (Rules(asks_if_cleaned=False), {**ROOT, "hint": 2}, "older"),
    "one snapshot is kept": (Rules(snapshots_kept=1), {**REMOTE, "damages": 1}, "does not open"),
    "damaged snapshots count": (Rules(counts_intact=False), {**REMOTE, "damages": 2}, "does not open"),
}
WORLDS = {**{f"{name}, small": sizes for name, sizes in SMALL.items()}, **(LARGE if STATES else {})}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", WORLDS)
def test_nothing_is_found(name: str, report: Callable[[str], None]) -> None:
    check_nothing_is_found(Opening(Rules(), **WORLDS[name]), name, report, is_large=name in LARGE)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_missing_safeguard_is_found(name: str) -> None:
    rules, sizes, promise = MUTANTS[name]
    check_found(Opening(rules, **sizes), promise)
