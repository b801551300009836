"""The assignors: every partition has one member, numbers are equal, and little moves."""

from collections.abc import Mapping
from random import Random

import pytest

from sparklog_server.groups.assignors import (
    ASSIGNORS,
    AssignedMember,
    Assignment,
    TopicShape,
    assign_range,
    assign_uniform,
)

Owners = dict[tuple[str, int], str]


def shapes(**partitions: int) -> dict[str, TopicShape]:
    return {name: TopicShape(topic_id=name, partitions=count) for name, count in partitions.items()}


def owners(assignment: Assignment) -> Owners:
    found: Owners = {}
    for member_id, topics in assignment.items():
        for topic, partitions in topics.items():
            for partition in partitions:
                assert found.setdefault((topic, partition), member_id) == member_id
    return found


def loads(assignment: Assignment) -> list[int]:
    return sorted(sum(map(len, topics.values())) for topics in assignment.values())


def after(members: Mapping[str, AssignedMember], assignment: Assignment) -> dict[str, AssignedMember]:
    return {
        name: AssignedMember(topics=one.topics, target=assignment.get(name, {}), rack_id=one.rack_id)
        for name, one in members.items()
    }


@pytest.mark.parametrize("name", ASSIGNORS)
def test_all_partitions_of_subscribed_topics_are_assigned_to_subscribers(name: str) -> None:
    random = Random(7)
    for _ in range(200):
        topics = shapes(**{f"t{n}": random.randrange(6) for n in range(random.randrange(1, 6))})
        members = {
            f"m{n}": AssignedMember(
                topics=frozenset(random.sample(sorted(topics), random.randint(0, len(topics))))
            )
            for n in range(random.randrange(6))
        }
        assignment: Assignment = {}
        for _ in range(2):
            assignment = ASSIGNORS[name](after(members, assignment), topics)
            found = owners(assignment)
            assert set(assignment) == set(members)
            assert all(topic in members[member].topics for (topic, _), member in found.items())
            subscribed = {topic for one in members.values() for topic in one.topics}
            assert set(found) == {(topic, p) for topic in subscribed for p in range(topics[topic].partitions)}
            assert ASSIGNORS[name](after(members, assignment), topics) == assignment  # nothing moves


def test_uniform_gives_equal_numbers_and_moves_few() -> None:
    topics = shapes(t=10, u=7)
    members = {f"m{n}": AssignedMember(topics=frozenset(topics)) for n in range(4)}
    first = assign_uniform(members, topics)
    assert loads(first) == [4, 4, 4, 5]
    grown = {**after(members, first), "new": AssignedMember(topics=frozenset(topics))}
    second = assign_uniform(grown, topics)
    assert loads(second) == [3, 3, 3, 4, 4]
    before, now = owners(first), owners(second)
    assert sum(before[place] != now[place] for place in before) == sum(map(len, second["new"].values()))


def test_uniform_balances_members_with_different_topics() -> None:
    topics = shapes(t=6, u=6, v=6)
    members = {
        "a": AssignedMember(topics=frozenset("tu")),
        "b": AssignedMember(topics=frozenset("uv")),
        "c": AssignedMember(topics=frozenset("vt")),
    }
    # All are at a and b; balance takes from both for c, and from nothing else.
    unequal: Assignment = {
        "a": {"t": frozenset(range(6)), "u": frozenset(range(6))},
        "b": {"v": frozenset(range(6))},
    }
    assert loads(assign_uniform(after(members, unequal), topics)) == [6, 6, 6]


def test_uniform_prefers_a_replica_in_the_members_rack() -> None:
    racks = tuple(frozenset({"east" if number % 2 else "west"}) for number in range(6))
    topics = {"t": TopicShape(topic_id="t", partitions=6, racks=racks)}
    members = {
        "a": AssignedMember(topics=frozenset("t"), rack_id="east"),
        "b": AssignedMember(topics=frozenset("t"), rack_id="west"),
    }
    assert assign_uniform(members, topics) == {
        "a": {"t": frozenset({1, 3, 5})},
        "b": {"t": frozenset({0, 2, 4})},
    }


def test_range_assigns_runs_alike_in_all_topics() -> None:
    topics = shapes(t=5, u=5)
    members = {name: AssignedMember(topics=frozenset(topics)) for name in "ab"}
    first = assign_range(members, topics)
    assert first == {
        "a": {topic: frozenset({0, 1, 2}) for topic in topics},
        "b": {topic: frozenset({3, 4}) for topic in topics},
    }
    # A new member comes last, whatever its name.
    grown = {**after(members, first), "0": AssignedMember(topics=frozenset(topics))}
    assert assign_range(grown, topics)["0"] == {topic: frozenset({4}) for topic in topics}
