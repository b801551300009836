"""Restoring a root: nothing is found, and each safeguard of the command that is missing is."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.models.restoring import Restoring, Rules
from tests.models.worlds import check_found, check_nothing_is_found

WORLDS: dict[str, dict[str, Any]] = {
    "3 producers, restored twice": {"producers": 3, "restores": 2},
    "a producer that is half a turn ahead": {"producers": 1, "batches": 6, "restores": 2},
    "4 processes of one transactional id, restored twice": {"owners": 4, "restores": 2},
    "a producer, a process, 2 writers, restored twice": {
        "producers": 1,
        "owners": 1,
        "writers": 2,
        "restores": 2,
    },
    "leaders change, restored twice": {"elections": 3, "restores": 2},
}
# What is missing; where it shows; and as what.
MUTANTS: dict[str, tuple[Rules, dict[str, Any], str]] = {
    "producer ids are handed out again": (Rules(skips=False), {"producers": 2}, "lost"),
    "as many are skipped each time": (Rules(by_time=False), {"producers": 3, "restores": 2}, "lost"),
    "transactional ids get the next epoch": (Rules(new_owner=False), {"owners": 3}, "zombie"),
    "sequences stay known": (Rules(forgets=False), {"producers": 1, "batches": 6}, "lost"),
    "the sweep horizon stays": (Rules(moves_horizon=False), {"writers": 1}, "missing"),
    "births are numbers of commits": (
        Rules(births_ahead=False),
        {"producers": 1, "writers": 1},
        "missing",
    ),
    "leader epochs go back": (Rules(raises_leaders=False), {"elections": 2}, "repeated"),
}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", WORLDS)
def test_nothing_is_found(name: str, report: Callable[[str], None]) -> None:
    check_nothing_is_found(Restoring(Rules(), **WORLDS[name]), name, report, is_large=False)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_missing_safeguard_is_found(name: str) -> None:
    rules, sizes, promise = MUTANTS[name]
    check_found(Restoring(rules, **sizes), promise)
