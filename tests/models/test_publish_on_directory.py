"""Publishing and cleaning in a directory: nothing is found, and each safeguard that is missing is."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.models.publish_on_directory import Directory, Rules
from tests.models.worlds import STATES, check_found, check_nothing_is_found

SMALL: dict[str, dict[str, Any]] = {
    "three publishers": {"publishers": (2, 2, 1)},
    "a cleaner twice": {"commits": 1, "publishers": (1, 2), "cleaners": (2,)},
    "two cleaners": {"commits": 2, "publishers": (1, 1), "cleaners": (1, 1)},
    "a reader": {"commits": 1, "publishers": (2,), "cleaners": (1,), "readers": (2,)},
    "a power cut and a cleaner": {"commits": 2, "publishers": (1, 1), "cleaners": (1,), "cuts": 1},
    "a power cut and two cleaners": {"commits": 3, "publishers": (1,), "cleaners": (1, 1), "cuts": 1},
    "a power cut and a sweep": {"publishers": (1, 1), "readers": (1,), "sweepers": 1, "cuts": 1},
    "two power cuts": {"publishers": (1, 1, 1), "cuts": 2},
}
LARGE: dict[str, dict[str, Any]] = {
    "three publishers, a cleaner twice": {"commits": 1, "publishers": (2, 2, 1), "cleaners": (2,)},
    "two publishers, a reader": {"commits": 1, "publishers": (1, 2), "cleaners": (1,), "readers": (2,)},
    "two publishers, a power cut": {"commits": 1, "publishers": (1, 2), "cleaners": (1,), "cuts": 1},
    "a reader and a power cut": {
        "commits": 1,
        "publishers": (2, 1),
        "cleaners": (1,),
        "readers": (1,),
        "cuts": 1,
    },
    "two power cuts and a cleaner": {"commits": 2, "publishers": (1, 1), "cleaners": (1,), "cuts": 2},
    "all of them": {
        "commits": 2,
        "publishers": (1, 1),
        "cleaners": (1,),
        "readers": (1,),
        "sweepers": 1,
        "cuts": 1,
    },
}
CLEANED: dict[str, Any] = {"commits": 1, "publishers": (1, 2), "cleaners": (1,)}
READ: dict[str, Any] = {"commits": 1, "publishers": (2,), "cleaners": (1,), "readers": (2,)}
CUT: dict[str, Any] = {"publishers": (1, 1), "cuts": 1}
SWEPT: dict[str, Any] = {**CUT, "sweepers": 1}
# What is missing; where it shows; and as what.
MUTANTS: dict[str, tuple[Rules, dict[str, Any], str]] = {
    "no guard": (Rules(has_guard=False), CLEANED, "used twice"),
    "the guard is asked before there is a temporary file": (
        Rules(guards_after_temporary=False),
        CLEANED,
        "used twice",
    ),
    "puts are not aborted": (Rules(aborts=False), CLEANED, "used twice"),
    "puts are aborted after the removal": (Rules(aborts_first=False), CLEANED, "used twice"),
    "the newest commits are removed first": (Rules(ascends=False), {**CLEANED, "commits": 2}, "older"),
    "no marker": (Rules(has_marker=False), CLEANED, "older"),
    "the questions are asked in reverse": (Rules(asks_successor_first=False), READ, "older"),
    "no snapshot is loaded by who fell behind": (Rules(reloads=False), READ, "older"),
    "a link is not synced": (Rules(syncs_link=False), {"publishers": (1,), "cuts": 1}, "lost"),
    "a commit is shown before it is durable": (
        Rules(syncs_before_showing=False),
        {"publishers": (1,), "readers": (1,), "cuts": 1},
        "lost",
    ),
    "a commit is linked behind one that is not durable": (
        Rules(syncs_before_linking=False),
        CUT,
        "does not open",
    ),
    "the temporary file is unlinked before the sync": (
        Rules(unlinks_after_sync=False),
        CUT,
        "does not open",
    ),
    "a sweep unlinks what is linked meanwhile": (Rules(sweeps_aside=False), SWEPT, "does not open"),
    "a sweep unlinks what is not durable": (Rules(syncs_before_sweeping=False), SWEPT, "does not open"),
    "commits are removed before their snapshot is durable": (
        Rules(syncs_before_removing=False),
        {"commits": 3, "publishers": (), "cleaners": (1, 1), "cuts": 1},
        "does not open",
    ),
    "the newest commit is removed": (
        Rules(keeps_newest=False),
        {"commits": 3, "publishers": (), "readers": (1,), "cleaners": (1,)},
        "does not open",
    ),
}
WORLDS = {**{f"{name}, small": sizes for name, sizes in SMALL.items()}, **(LARGE if STATES else {})}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", WORLDS)
def test_nothing_is_found(name: str, report: Callable[[str], None]) -> None:
    check_nothing_is_found(Directory(Rules(), **WORLDS[name]), name, report, is_large=name in LARGE)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_missing_safeguard_is_found(name: str) -> None:
    rules, sizes, promise = MUTANTS[name]
    check_found(Directory(rules, **sizes), promise)
