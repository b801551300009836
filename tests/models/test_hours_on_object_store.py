"""Publishing and cleaning on an object store: nothing is found, and each safeguard that is missing is."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.models.hours_on_object_store import Hours, Rules
from tests.models.worlds import STATES, check_found, check_nothing_is_found

SMALL: dict[str, dict[str, Any]] = {
    "three commits": {"commits": 3},
    "two calls, a PUT delivered twice": {"calls": (2,), "commits": 3, "doubles": 1},
    "a clock that is set": {"commits": 2, "clock_settings": 1},
    "two hours of trust": {"commits": 2, "rules": Rules(trust=2, grace=3)},
    "a PUT lives for two hours": {"commits": 2, "rules": Rules(lifetime=2, grace=3)},
}
LARGE: dict[str, dict[str, Any]] = {
    "a clock that is set twice": {"commits": 2, "clock_settings": 2},
    "three commits, a clock that is set": {"commits": 3, "clock_settings": 1},
    "two hours of trust, three commits": {"commits": 3, "rules": Rules(trust=2, grace=3)},
    "two processes": {"calls": (1, 1), "commits": 2},
    "two processes, three commits": {"calls": (1, 1), "commits": 3},
}
# What is missing; where it shows; and as what.
MUTANTS: dict[str, tuple[Rules, dict[str, Any], str]] = {
    "grace is less than trust and a PUT's life": (Rules(grace=1), {}, "used twice"),
    "likewise, with more trust": (Rules(trust=2, grace=2), {"commits": 2}, "used twice"),
    "likewise, with a longer life": (Rules(lifetime=2, grace=2), {"commits": 3}, "used twice"),
    "the store takes PUTs of any date": (Rules(refuses_old_dates=False), {}, "used twice"),
    "no guard": (Rules(has_guard=False), {}, "used twice"),
    "the guard is asked before signing": (Rules(guards_after_signing=False), {}, "used twice"),
    "only the successor is asked for": (Rules(asks_both=False), {}, "older"),
    "the questions are asked in reverse": (Rules(asks_successor_first=False), {}, "older"),
    "a moment is taken after the answer": (Rules(asks_before=False), {}, "used twice"),
    "the monotonic clock alone": (Rules(asks_wall=False), {}, "used twice"),
    "a clock that was ahead is believed": (
        Rules(earlier_counts=False),
        {"clock_settings": 2},
        "used twice",
    ),
    "a clock that was ahead is believed until the look is over": (
        Rules(rereads_between=False),
        {"clock_settings": 2},
        "used twice",
    ),
    "what exists is always somebody else's": (Rules(knows_itself=False), {}, "twice"),
    "a PUT without an answer is left alone": (Rules(stays_with_number=False), {}, "twice"),
}
WORLDS = {**{f"{name}, small": sizes for name, sizes in SMALL.items()}, **(LARGE if STATES else {})}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", WORLDS)
def test_nothing_is_found(name: str, report: Callable[[str], None]) -> None:
    sizes = dict(WORLDS[name])
    model = Hours(sizes.pop("rules", Rules()), **sizes)
    check_nothing_is_found(model, name, report, is_large=name in LARGE)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_missing_safeguard_is_found(name: str) -> None:
    rules, sizes, promise = MUTANTS[name]
    check_found(Hours(rules, **sizes), promise)
