"""Sweeping: nothing is found, and each safeguard that is missing is."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.models.sweeping import Sweeping
from tests.models.swept_world import Rules
from tests.models.worlds import STATES, check_found, check_nothing_is_found

SMALL: dict[str, dict[str, Any]] = {
    "two writers": {"writers": (1, 1), "sweepers": (1,)},
    "two sweepers": {"writers": (1,), "sweepers": (1, 1)},
    "requests": {"writers": (), "posters": (1, 1), "sweepers": (1,)},
    "an open file and a merger": {"live": 1, "writers": (2,), "keeps_open": True, "mergers": (1,)},
    "an open file and retention": {"writers": (2,), "keeps_open": True, "retainers": (1,), "sweepers": (2,)},
    "two mergers": {"live": 3, "writers": (), "mergers": (1, 1)},
    "a merger and a cleaner": {"live": 2, "each": 2, "writers": (), "mergers": (1,), "cleaners": (1,)},
    "an open file, retention and a retirer": {
        "writers": (2,),
        "keeps_open": True,
        "retainers": (1,),
        "retirers": (1,),
    },
    "requests in a file that is retired": {
        "writers": (),
        "posters": (2, 1),
        "keeps_open": True,
        "retainers": (1,),
        "retirers": (1,),
        "sweepers": (),
    },
    "a merger, a reader and a retirer": {
        "live": 2,
        "writers": (),
        "mergers": (1,),
        "retirers": (1,),
        "readers": 1,
    },
    "a reader": {"live": 2, "writers": (1,), "attempts": 0, "mergers": (1,), "readers": 1},
}
LARGE: dict[str, dict[str, Any]] = {
    "three writers, two sweepers": {"writers": (1, 1, 1), "sweepers": (1, 1)},
    "writers and requests": {"writers": (1,), "posters": (1, 1), "sweepers": (2,)},
    "open files, a merger and retention": {
        "writers": (2, 1),
        "keeps_open": True,
        "mergers": (1,),
        "retainers": (1,),
        "sweepers": (2,),
    },
    "an open file, a merger and retention, two sweepers": {
        "writers": (2,),
        "keeps_open": True,
        "mergers": (1,),
        "retainers": (1,),
        "sweepers": (1, 1),
    },
    "two writers, retention, a merger, a retirer and a sweeper": {
        "writers": (2, 1),
        "keeps_open": True,
        "mergers": (1,),
        "retainers": (1,),
        "retirers": (2,),
        "sweepers": (1,),
    },
    "two mergers, a cleaner and a reader": {
        "live": 2,
        "each": 2,
        "writers": (1,),
        "mergers": (1, 1),
        "cleaners": (1,),
        "sweepers": (1,),
        "readers": 1,
    },
    "all of them": {
        "live": 1,
        "each": 2,
        "writers": (1,),
        "posters": (1,),
        "mergers": (1,),
        "cleaners": (1,),
        "retainers": (1,),
        "sweepers": (2,),
        "readers": 1,
    },
}
ALONE: dict[str, Any] = {"writers": (1,), "sweepers": (1,)}
POSTED: dict[str, Any] = {"writers": (), "posters": (1,), "sweepers": (1,)}
OPEN: dict[str, Any] = {"writers": (2,), "keeps_open": True, "retainers": (1,), "sweepers": (2,)}
MERGED: dict[str, Any] = {"live": 2, "writers": (), "mergers": (1,), "sweepers": (1,)}
CLEANED: dict[str, Any] = {"live": 1, "each": 3, "writers": (), "cleaners": (2, 1), "sweepers": ()}
READ: dict[str, Any] = {**MERGED, "readers": 1}
RETIRED: dict[str, Any] = {**OPEN, "sweepers": (), "retirers": (1,)}
# What is missing; where it shows; and as what.
MUTANTS: dict[str, tuple[Rules, dict[str, Any], str]] = {
    "old segments may come to life": (Rules(refuses_old=False), ALONE, "unreadable"),
    "a writer goes by the horizon that it has seen": (Rules(refuses_by_newest=False), ALONE, "unreadable"),
    "requests are not asked": (Rules(refuses_requests=False), POSTED, "doubled"),
    "what was merged is not asked": (Rules(refuses_merged=False), MERGED, "unreadable"),
    "what was live once may come back": (Rules(exempts_live_only=False), OPEN, "unreadable"),
    "a birth is when it is published": (Rules(born_when_made=False), ALONE, "unreadable"),
    "the horizon goes back": (Rules(horizon_grows=False), {**ALONE, "sweepers": (2, 1)}, "unreadable"),
    "what is born at the horizon goes as well": (Rules(sweeps_below=False), ALONE, "unreadable"),
    "no horizon": (Rules(has_horizon=False), ALONE, "unreadable"),
    "what is dead is seen before the horizon is moved": (
        Rules(looks_after_horizon=False),
        ALONE,
        "unreadable",
    ),
    "what is live is of one image, the horizon of another": (
        Rules(by_own_horizon=False),
        {**ALONE, "sweepers": (1, 1)},
        "unreadable",
    ),
    "a replacement does not say what it removes": (Rules(compares_extents=False), CLEANED, "revived"),
    "a replacement says how much it removes": (Rules(by_checksum=False), CLEANED, "revived"),
    "a writer gives its request up by its clock": (Rules(expires_by_image=False), POSTED, "doubled"),
    "a file is removed before it is retired": (Rules(retires_first=False), RETIRED, "unreadable"),
    "a retired segment may come to life": (Rules(refuses_retired=False), RETIRED, "unreadable"),
    "a segment is retired though it is live again": (Rules(refuses_to_retire=False), RETIRED, "unreadable"),
    "a reader does not look again": (Rules(looks_again=False), READ, "fails"),
}
WORLDS = {**{f"{name}, small": sizes for name, sizes in SMALL.items()}, **(LARGE if STATES else {})}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", WORLDS)
def test_nothing_is_found(name: str, report: Callable[[str], None]) -> None:
    check_nothing_is_found(Sweeping(Rules(), **WORLDS[name]), name, report, is_large=name in LARGE)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_missing_safeguard_is_found(name: str) -> None:
    rules, sizes, promise = MUTANTS[name]
    check_found(Sweeping(rules, **sizes), promise)
