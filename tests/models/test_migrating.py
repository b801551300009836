"""A group that changes its protocol: nothing is found, and each safeguard that is missing is."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.models.migrating import COOPERATIVE, EAGER, NEW, Migrating, Rules
from tests.models.worlds import STATES, check_found, check_nothing_is_found

THREE = (COOPERATIVE, COOPERATIVE, NEW)
SMALL: dict[str, dict[str, Any]] = {
    "there and back, and there again": {"joins": 2, "changes": 2},
    "appends fail, the coordinator moves": {"joins": 2, "changes": 1, "failures": 1, "moves": 1},
    "answers are lost": {"changes": 2, "losses": 2},
    "in a rebalance": {"members": THREE, "rebalances": 2},
    "in a rebalance of eager members": {"members": (EAGER, EAGER, NEW), "rebalances": 2},
    "two of the new protocol": {"members": (COOPERATIVE, NEW, NEW), "joins": 2},
}
LARGE: dict[str, dict[str, Any]] = {
    "all of it": {
        "members": THREE,
        "partitions": 2,
        "rebalances": 3,
        "changes": 2,
        "joins": 2,
        "losses": 1,
        "failures": 1,
        "moves": 1,
    },
}
# What is missing; where it shows; and as what.
MUTANTS: dict[str, tuple[Rules, dict[str, Any], str]] = {
    "what members keep while they rebalance counts as free": (
        Rules(counts_what_members_keep=False),
        {"members": THREE},
        "two owners",
    ),
    "a classic group is left with what its members were to have": (
        Rules(leaves_what_members_use=False),
        {"joins": 2},
        "two owners",
    ),
    "partitions of a classic member are free before it joins": (
        Rules(waits_for_joins=False),
        {},
        "two owners",
    ),
    "a group ends in one append and begins in the next": (
        Rules(converts_in_one_append=False),
        {"moves": 1},
        "no group",
    ),
    "an answer does not wait for its append": (
        Rules(answers_when_durable=False),
        {"members": THREE, "moves": 1, "joins": 2},
        "two owners",
    ),
}
WORLDS = {**{f"{name}, small": sizes for name, sizes in SMALL.items()}, **(LARGE if STATES else {})}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", WORLDS)
def test_nothing_is_found(name: str, report: Callable[[str], None]) -> None:
    check_nothing_is_found(Migrating(rules=Rules(), **WORLDS[name]), name, report, is_large=name in LARGE)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_missing_safeguard_is_found(name: str) -> None:
    rules, sizes, promise = MUTANTS[name]
    check_found(Migrating(rules=rules, **sizes), promise)
