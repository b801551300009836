"""Share groups: nothing is found, and each safeguard that is missing is."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.models.sharing import Rules, Sharing
from tests.models.worlds import check_found, check_nothing_is_found

WORLDS: dict[str, dict[str, Any]] = {
    "a message, 3 workers, the leader moves twice": {"workers": 3, "crashes": 0},
    "a message, 2 workers, a crash": {"workers": 2, "moves": 1},
    "2 messages, 2 workers": {"messages": 2, "moves": 0, "crashes": 0},
    "a message, 2 workers, a reset": {"moves": 1, "crashes": 0, "resets": 1},
}
# What is missing; where it shows; and as what.
MUTANTS: dict[str, tuple[Rules, dict[str, Any], str]] = {
    "a leader of an older epoch commits": (Rules(commit_checks_epoch=False), {}, "twice"),
    "a write carries the epoch in which it is sent": (Rules(carries_epoch=False), {"crashes": 0}, "twice"),
    "a worker is answered before the commit": (Rules(durable_first=False), {}, "twice"),
    "a worker that had it before acknowledges": (
        Rules(checks_holder=False),
        {"moves": 0, "crashes": 0},
        "stolen",
    ),
    "a lock expires while its acknowledgement is written": (
        Rules(writing_is_busy=False),
        {"moves": 0},
        "twice",
    ),
    "the dead letter is a commit of its own": (Rules(letter_in_commit=False), {"limit": 1}, "both"),
    "deliveries count from zero": (Rules(counts_on=False), {"limit": 3}, "backwards"),
    "a write from before a reset applies": (
        Rules(commit_checks_life=False),
        {"moves": 0, "crashes": 0, "resets": 1},
        "lost",
    ),
}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", WORLDS)
def test_nothing_is_found(name: str, report: Callable[[str], None]) -> None:
    check_nothing_is_found(Sharing(Rules(), **WORLDS[name]), name, report, is_large=False)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_missing_safeguard_is_found(name: str) -> None:
    rules, sizes, promise = MUTANTS[name]
    check_found(Sharing(rules, **sizes), promise)
