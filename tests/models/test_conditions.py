"""Requests with conditions: nothing is found, and each safeguard that is missing is."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.models.conditions import Conditions
from tests.models.conditions_world import Batch, Rules
from tests.models.worlds import STATES, check_found, check_nothing_is_found

TWO = (Batch(0, 0), Batch(0, 1))
PLAIN = (Batch(0, -1),)  # of no idempotent producer
APART = (Batch(0, 0), Batch(1, 0))
MIXED = (Batch(0, 0), Batch(0, 1), Batch(1, -1))
SMALL: dict[str, dict[str, Any]] = {
    "pipelined batches, a leadership moves": {"batches": TWO, "sends": 3, "moves": 2, "commits": 4},
    "both brokers post": {"batches": APART, "leaders": (0, 1), "sends": 3, "moves": 1},
    "a PUT lands late": {"batches": TWO, "sends": 3, "moves": 1, "lates": 1, "commits": 4},
    "a broker crashes between post and commit": {"batches": TWO, "sends": 3, "moves": 1, "crashes": 1},
    "no idempotent producer": {"batches": PLAIN, "sends": 3, "moves": 2, "commits": 4},
}
LARGE: dict[str, dict[str, Any]] = {
    "all of it": {
        "batches": MIXED,
        "leaders": (0, 1),
        "sends": 4,
        "moves": 2,
        "crashes": 1,
        "lates": 1,
        "commits": 5,
    },
    "three brokers": {
        "batches": (Batch(0, 0), Batch(1, 0), Batch(2, 0)),
        "leaders": (0, 1, 2),
        "brokers": 3,
        "sends": 4,
        "moves": 2,
        "commits": 4,
    },
    "requests of three parts": {"batches": MIXED, "sends": 5, "sizes": 3, "moves": 2, "commits": 4},
}
MOVED: dict[str, Any] = {"batches": TWO, "sends": 3, "moves": 2, "commits": 4}
COMBINED: dict[str, Any] = {"batches": APART, "leaders": (0, 1), "sends": 3, "moves": 1}
PARTIAL: dict[str, Any] = {"batches": APART, "sends": 3, "moves": 1, "commits": 3}
# What is missing; where it shows; and as what.
MUTANTS: dict[str, tuple[Rules, dict[str, Any], str]] = {
    "a registration is not asked": (
        Rules(checks_registration=False, checks_leader=False),
        {**MOVED, "without": ("move",)},
        "fenced",
    ),
    "a leader is not asked": (Rules(checks_leader=False), MOVED, "deposed"),
    "a leader is asked, and not since when": (Rules(checks_epoch=False), MOVED, "deposed"),
    "a sequence is not asked": (Rules(checks_sequence=False), COMBINED, "twice"),
    "a part is taken without the one before it": (
        Rules(keeps_order=False),
        {"batches": PLAIN, "sends": 2, "moves": 2},
        "order",
    ),
    "all requests of a commit are judged by the image before it": (
        Rules(against_draft=False),
        COMBINED,
        "twice",
    ),
    "an older combiner takes it, and none of its conditions": (Rules(has_version=False), COMBINED, "deposed"),
    "a request applies again": (
        Rules(is_settled_once=False),
        {"batches": PLAIN, "sends": 2, "moves": 1, "lates": 1, "commits": 4},
        "twice",
    ),
    "a request that was applied was taken whole": (Rules(looks_for_parts=False), PARTIAL, "not there"),
    "what was refused is judged by the newest image": (
        Rules(judged_by="newest"),
        {
            "batches": (*APART, Batch(2, 0)),
            "leaders": (0, 0, 1),
            "sends": 4,
            "moves": 1,
            "commits": 2,
            "without": ("fence",),
        },
        "verdict",
    ),
    "somebody else's batch is taken for ours": (
        Rules(judged_by="newest", leader_first=False),
        PARTIAL,
        "verdict",
    ),
}
WORLDS = {**{f"{name}, small": sizes for name, sizes in SMALL.items()}, **(LARGE if STATES else {})}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", WORLDS)
def test_nothing_is_found(name: str, report: Callable[[str], None]) -> None:
    check_nothing_is_found(Conditions(Rules(), **WORLDS[name]), name, report, is_large=name in LARGE)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_missing_safeguard_is_found(name: str) -> None:
    rules, sizes, promise = MUTANTS[name]
    check_found(Conditions(rules, **sizes), promise)
