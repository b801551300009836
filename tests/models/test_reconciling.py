"""Consumer groups: nothing is found, and each safeguard that is missing is."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.models.reconciling import Reconciling, Rules
from tests.models.worlds import STATES, check_found, check_nothing_is_found

SMALL: dict[str, dict[str, Any]] = {
    "a partition moves twice": {"changes": 2, "losses": 1},
    "appends fail, the coordinator moves": {"changes": 2, "failures": 1, "moves": 1},
    "two partitions": {"partitions": 2, "changes": 2, "losses": 1},
    "three members": {"members": 3, "changes": 2, "failures": 1},
}
LARGE: dict[str, dict[str, Any]] = {
    "all of it": {"members": 3, "partitions": 2, "changes": 3, "losses": 1, "failures": 1, "moves": 1},
}
MOVED: dict[str, Any] = {"changes": 1}
FAILED: dict[str, Any] = {"changes": 2, "failures": 1}
# What is missing; where it shows; and as what.
MUTANTS: dict[str, tuple[Rules, dict[str, Any], str]] = {
    "a partition is assigned that another member has": (Rules(waits_for_release=False), MOVED, "in the log"),
    "a partition counts as given up before its owner says so": (
        Rules(waits_for_giving_up=False),
        MOVED,
        "two owners",
    ),
    "an answer does not wait for its append": (
        Rules(answers_when_durable=False),
        {"changes": 2, "moves": 1},
        "two owners",
    ),
    "appends of a group arrive in any order": (Rules(appends_one_at_a_time=False), MOVED, "in the log"),
    "what was planned after a failed append stays": (
        Rules(forgets_after_failure=False),
        FAILED,
        "in the log",
    ),
}
WORLDS = {**{f"{name}, small": sizes for name, sizes in SMALL.items()}, **(LARGE if STATES else {})}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", WORLDS)
def test_nothing_is_found(name: str, report: Callable[[str], None]) -> None:
    check_nothing_is_found(Reconciling(rules=Rules(), **WORLDS[name]), name, report, is_large=name in LARGE)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_missing_safeguard_is_found(name: str) -> None:
    rules, sizes, promise = MUTANTS[name]
    check_found(Reconciling(rules=rules, **sizes), promise)
