"""Several brokers: nothing is found, and each safeguard that is missing is."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.models.cluster import Cluster
from tests.models.cluster_world import Rules
from tests.models.worlds import STATES, check_found, check_nothing_is_found

SMALL: dict[str, dict[str, Any]] = {
    "leaderships move, and the controller": {"records": 2, "moves": 3, "elections": 2},
    "groups of two partitions": {"partitions": 2, "records": 3, "moves": 2},
    "an older process of a node": {"nodes": (0, 0, 1), "joins": (0, 1, 1), "records": 2, "moves": 2},
    "brokers come back": {"joins": (1, 1), "records": 2, "moves": 3, "elections": 1},
    "coordinators": {"records": 2, "moves": 3, "reads": True, "sleeps": True},
    "coordinators, an older process": {
        "nodes": (0, 0, 1),
        "joins": (0, 1, 0),
        "records": 1,
        "moves": 2,
        "reads": True,
    },
}
LARGE: dict[str, dict[str, Any]] = {
    "three brokers, three controllers": {"nodes": (0, 1, 2), "records": 2, "moves": 3, "elections": 3},
    "three brokers that come back": {"nodes": (0, 1, 2), "joins": (1, 1, 1), "records": 2, "moves": 3},
    "groups of two partitions, brokers come back": {
        "joins": (1, 1),
        "partitions": 2,
        "records": 4,
        "moves": 4,
        "elections": 1,
    },
    "two older processes of a node": {
        "nodes": (0, 0, 0, 1),
        "joins": (1, 1, 1, 0),
        "records": 2,
        "moves": 2,
        "elections": 1,
    },
    "coordinators of two partitions": {
        "joins": (1, 1),
        "partitions": 2,
        "records": 2,
        "moves": 3,
        "reads": True,
        "sleeps": True,
    },
    "all of it": {
        "nodes": (0, 0, 1, 2),
        "joins": (1, 1, 1, 0),
        "records": 2,
        "moves": 3,
        "elections": 2,
        "reads": True,
        "sleeps": True,
    },
}
MOVED: dict[str, Any] = {"records": 2, "moves": 3, "elections": 1}
GROUPED: dict[str, Any] = {"partitions": 2, "records": 2, "moves": 1}
RESTARTED: dict[str, Any] = {"nodes": (0, 0, 1), "joins": (0, 1, 0), "records": 2, "moves": 2}
READ: dict[str, Any] = {"records": 1, "moves": 3, "reads": True, "sleeps": True}
# What is missing; where it shows; and as what.
MUTANTS: dict[str, tuple[Rules, dict[str, Any], str]] = {
    "a registration is not asked": (Rules(checks_registration=False), {"moves": 1}, "fenced"),
    "a registration is not asked, and who is fenced goes on leading": (
        Rules(checks_registration=False, fence_ends_leading=False),
        {"nodes": (0, 1), "records": 1, "moves": 2},
        "fenced",
    ),
    "a leader is not asked": (Rules(checks_leader=False, checks_epoch=False), MOVED, "deposed"),
    "a leader is asked, and not since when": (Rules(checks_epoch=False), MOVED, "deposed"),
    "who is fenced goes on leading": (Rules(fence_ends_leading=False), RESTARTED, "two leaders"),
    "leader epochs stay": (Rules(epoch_rises=False), MOVED, "two leaders"),
    "a controller counts leader epochs by what it has seen": (
        Rules(epoch_of_newest=False),
        {"nodes": (0, 1, 1), "joins": (0, 0, 1), "moves": 2},
        "two leaders",
    ),
    "a controller's epoch is not asked": (Rules(checks_controller=False), MOVED, "two controllers"),
    "an election goes by what was seen": (
        Rules(elected_once=False),
        {"nodes": (0, 1, 2), "moves": 0, "elections": 2},
        "two controllers",
    ),
    "a group is published as a whole": (Rules(drops_lost_parts=False), GROUPED, "deposed"),
    "a group is answered as a whole": (Rules(answers_each_part=False), GROUPED, "lost"),
    "a group is refused as a whole": (Rules(keeps_the_rest=False), GROUPED, "refused"),
    "a coordinator does not load": (Rules(loads=False), READ, "forgets"),
    "a coordinator loads once": (Rules(loads_each_epoch=False), READ, "forgets"),
    "a coordinator answers until it is told": (Rules(resigns_at_image=False), READ, "after"),
    "an image may be of any age": (Rules(bounds_age=False), READ, "stale"),
    "an age is by a clock that stands still": (Rules(by_boot_time=False), READ, "stale"),
}
WORLDS = {**{f"{name}, small": sizes for name, sizes in SMALL.items()}, **(LARGE if STATES else {})}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", WORLDS)
def test_nothing_is_found(name: str, report: Callable[[str], None]) -> None:
    check_nothing_is_found(Cluster(Rules(), **WORLDS[name]), name, report, is_large=name in LARGE)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_missing_safeguard_is_found(name: str) -> None:
    rules, sizes, promise = MUTANTS[name]
    check_found(Cluster(rules, **sizes), promise)
