"""Liveness: nothing is found, each safeguard that is missing is, and so are too few looks."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.models.liveness import Liveness, Rules
from tests.models.worlds import STATES, check_found, check_nothing_is_found

SMALL: dict[str, dict[str, Any]] = {
    "no late PUT, 2 looks": {"misses": 2, "dies": True},
    "storage goes away, and the observer, 2 looks": {"outages": 2, "stops": 2, "dies": True},
    "storage is full, 3 looks": {"misses": 3, "full": 3, "outages": 1, "dies": True},
    "a late PUT, 4 looks": {"misses": 4, "repeats": 1, "outages": 1, "dies": True},
    "replaced, as it could not be read, 4 looks": {
        "misses": 4,
        "replacements": 1,
        "outages": 1,
        "dies": True,
    },
    "started anew, a late PUT, 4 looks": {"misses": 4, "repeats": 1, "restarts": 1},
}
LARGE: dict[str, dict[str, Any]] = {
    "2 late PUTs, 6 looks": {"misses": 6, "repeats": 2, "dies": True},
    "all of it, 6 looks": {
        "misses": 6,
        "repeats": 2,
        "outages": 2,
        "stops": 1,
        "restarts": 2,
        "dies": True,
    },
}
# What is missing; where it shows; and as what.
MUTANTS: dict[str, tuple[Rules, dict[str, Any], str]] = {
    "one look means death": (Rules(), {"misses": 1}, "killed"),
    "three looks mean death, and a PUT is late": (Rules(), {"misses": 3, "repeats": 1}, "killed"),
    "three looks mean death, and it is replaced": (Rules(), {"misses": 3, "replacements": 1}, "killed"),
    "whatever is different is a sign of life": (
        Rules(newer_only=False),
        {"misses": 4, "repeats": 1, "dies": True},
        "unnoticed",
    ),
    "a counter alone is compared": (Rules(by_epoch=False), {"restarts": 1}, "killed"),
    "time counts in which nobody looked": (Rules(counts_looks=False), {"outages": 1}, "killed"),
    "silence counts that is shared": (Rules(counts_own=False), {"misses": 3, "full": 3}, "killed"),
    "two looks mean death, and the storage is full": (Rules(), {"misses": 2, "full": 1}, "killed"),
    "looks are made up for": (Rules(spaced=False), {"outages": 1}, "killed"),
}
WORLDS = {**{f"{name}, small": sizes for name, sizes in SMALL.items()}, **(LARGE if STATES else {})}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", WORLDS)
def test_nothing_is_found(name: str, report: Callable[[str], None]) -> None:
    check_nothing_is_found(Liveness(Rules(), **WORLDS[name]), name, report, is_large=name in LARGE)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_missing_safeguard_is_found(name: str) -> None:
    rules, sizes, promise = MUTANTS[name]
    check_found(Liveness(rules, **sizes), promise)
