"""Transactions as tools ask for them: filters, patterns that clients send, and who coordinates."""

import dataclasses
from typing import Any

import pytest

from sparklog.client.cluster_view import (
    Wanted,
    chosen,
    coordinated,
    coordinator_of,
    coordinators,
    running_ms,
)
from sparklog.client.patterns import MOST_CHARACTERS, matching
from sparklog.clock import ManualClock
from sparklog.errors import InvalidRequestError
from sparklog.metadata import NO_NODE, RegisteredBroker, Transaction, TransactionPhase, plan_begin_producer
from sparklog.storage import MemoryStore
from tests.support.roots import opened
from tests.support.several_brokers import SeveralBrokers


def transaction(name: str, phase: TransactionPhase, producer_id: int = 0, started_ms: int = 0) -> Transaction:
    return Transaction(
        transactional_id=name,
        producer_id=producer_id,
        producer_epoch=0,
        timeout_ms=10,
        changed_ms=0,
        phase=phase,
        started_ms=started_ms,
    )


KNOWN = [
    transaction("b", TransactionPhase.ONGOING, 1, started_ms=100),
    transaction("a", TransactionPhase.EMPTY, 2),
    transaction("c", TransactionPhase.COMMITTED, 3, started_ms=1),
    transaction("d", TransactionPhase.ABORTED, 4, started_ms=1),
]


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (Wanted(), "abcd"),
        (Wanted(states=["Ongoing"]), "b"),
        (Wanted(states=["Empty", "CompleteCommit", "CompleteAbort"]), "acd"),
        (Wanted(states=["PrepareCommit"]), ""),
        (Wanted(states=["ongoing"]), ""),
        (Wanted(producer_ids=[2, 3, 9]), "ac"),
        (Wanted(running_ms=899), "b"),
        (Wanted(running_ms=900), ""),
        (Wanted(pattern="[ab]"), "ab"),
        (Wanted(pattern=""), "abcd"),
        (Wanted(pattern="[ab]", states=["Ongoing"]), "b"),
    ],
)
def test_filters(wanted: Wanted, names: str) -> None:
    found = chosen(KNOWN, wanted, now_ms=1000)
    assert "".join(one.transactional_id for one in found) == names


def test_only_what_is_open_has_a_duration() -> None:
    assert [running_ms(one, 1000) for one in KNOWN] == [900, None, None, None]
    assert running_ms(KNOWN[0], 50) == 0  # by a clock that is behind


def test_names_that_are_no_states() -> None:
    wanted = Wanted(states=["Dead", "x", "Ongoing", "y", "x"])
    assert wanted.unknown_states == ["x", "y"]


# --- patterns -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("app-.*", ["app-1", "app-22"]),
        ("app-.", ["app-1"]),
        ("(?i)APP-1", ["app-1"]),
        ("app-1|x", ["app-1"]),
        (r"\d", []),
        ("pp-1", []),
        (r"a\nb", ["a\nb"]),
    ],
)
def test_a_pattern_matches_whole_ids(pattern: str, matched: list[str]) -> None:
    ids = ["app-1", "app-22", "xapp-1", "a\nb"]
    assert [one for one, found in zip(ids, matching(pattern, ids), strict=True) if found] == matched


@pytest.mark.parametrize(
    "pattern",
    ["[", "a)|(b", "(?=x)", r"(a)\1", "(a{1,1000}){1,1000}", "x" * (MOST_CHARACTERS + 1), "(?P<n"],
)
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRequestError, match="INVALID_PATTERN"):
        matching(pattern, ["x"])


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(a|aa)+b", "(.*)(.*)(.*)(.*)(.*)b"])
def test_no_pattern_takes_longer_than_its_text(pattern: str) -> None:
    """Backtracking engines take 2**1000 steps for these: the test would not end."""
    assert matching(pattern, ["a" * 1000] * 100) == [False] * 100


# --- who coordinates ----------------------------------------------------------------------------------


def test_brokers_that_live_share_the_ids() -> None:
    clock = ManualClock()
    several = SeveralBrokers(MemoryStore("view", clock=clock), clock)
    several.fence(100)
    names = [f"app-{number}" for number in range(200)]
    assert {coordinator_of(name, several.log.image) for name in names} == {NO_NODE}
    for node_id in (1, 2, 3):
        several.join(node_id)
    image = several.log.refresh()
    found = [coordinator_of(name, image) for name in names]
    assert all(40 < found.count(node_id) < 90 for node_id in (1, 2, 3))
    assert coordinator_of("app", image) == coordinator_of("app", several.log.refresh())


def test_which_brokers_there_are_is_found_once_for_many_ids() -> None:
    """12,000 ids in a request had the brokers sorted 12,000 times."""

    class Brokers(dict[int, RegisteredBroker]):
        looked_at = 0

        def items(self) -> Any:
            self.looked_at += 1
            return super().items()

    clock = ManualClock()
    several = SeveralBrokers(MemoryStore("view", clock=clock), clock)
    for node_id in (1, 2, 3):
        several.join(node_id)
    image = several.log.refresh()
    names = [f"app-{number}" for number in range(200)]
    each = [coordinator_of(name, image) for name in names]
    brokers = Brokers(image.brokers)
    assert list(map(coordinators(dataclasses.replace(image, brokers=brokers)), names)) == each
    assert brokers.looked_at == 1


def test_each_id_is_told_of_by_one_broker() -> None:
    clock = ManualClock()
    store = MemoryStore("view", clock=clock)
    several = SeveralBrokers(store, clock)
    several.join(1)
    with opened(store, clock) as log:
        for number in range(20):
            log.metadata.publish(
                lambda image, name=f"app-{number}": (
                    plan_begin_producer(  # type: ignore[misc]
                        image, name, timeout_ms=1, now_ms=0
                    ).actions
                )
            )
        image = log.image
        parts = [
            sorted(one.transactional_id for one in coordinated(image, node_id)) for node_id in (1, 100, 7)
        ]
    assert sorted(parts[0] + parts[1]) == sorted(image.transactions)
    assert parts[0]
    assert parts[1]
    assert parts[2] == []
