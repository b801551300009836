"""Members of a group and what they are assigned, as the group's coordinator knows them.

A root without brokers has no members: consumers of Spark, Python and the command line join no group there.
Invariants: a broker that does not answer delays a page by TIMEOUT_MS; it is asked again PAUSE_MS later.
    MAX_MEMBERS members are shown, each with MAX_ASSIGNED characters of its assignment.
Not here: the requests (client/group_coordinators.py).
"""

import dataclasses
from collections.abc import Collection
from typing import Final

from sparklog.client.cluster_view import describe_brokers
from sparklog.client.group_coordinators import GroupCoordinators, GroupDescription, assignment_text
from sparklog.client.groups import TopicPartition
from sparklog.console.views import Console
from sparklog.errors import InvalidRequestError, RetriableError
from sparklog.metadata import Image

TIMEOUT_MS: Final = 1_500
PAUSE_MS: Final = 10_000
CHANGE_TIMEOUT_MS: Final = 15_000
MAX_MEMBERS: Final = 200
MAX_ASSIGNED: Final = 400


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemberRow:
    """A member of a group.

    Fields:
        assignment: as Kafka's tool prints it: `orders:0,1;users:2`; its end may be cut off.
    """

    consumer_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: int
    assignment: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupMembers:
    """What a coordinator says of a group.

    Fields:
        is_served: a broker is registered; false: a group of this root has no members.
        problem: why its coordinator said nothing; empty: it answered.
        state: Kafka's name; empty: not known.
        members: MAX_MEMBERS at most, of `member_count`.
    """

    is_served: bool
    problem: str = ""
    state: str = ""
    coordinator: str = ""
    assignment_strategy: str = ""
    members: tuple[MemberRow, ...] = ()
    member_count: int = 0


def coordinators_of(console: Console, image: Image, *, timeout_ms: int) -> GroupCoordinators | None:
    """Return a client of the coordinators, through the brokers of an image; None: none is registered.

    Raises:
        InvalidRequestError: NO_BROKER_RUNS: all are fenced.
    """
    if not image.brokers:
        return None
    running = [one for one in describe_brokers(image) if not one.is_fenced and one.address]
    if not running:
        raise InvalidRequestError(
            "NO_BROKER_RUNS",
            "the brokers of this root are fenced, and only they know which members its groups have",
            fix="start a broker; if there is none any more: `sparklog brokers unregister`",
        )
    servers = ",".join(one.address for one in running if one.address)
    return GroupCoordinators(
        image.cluster_id, console.log.clock, servers, timeout_ms=timeout_ms, security=console.security
    )


def group_members(console: Console, image: Image, group: str) -> GroupMembers:
    """Ask the coordinator of a group."""
    if not image.brokers:
        return GroupMembers(is_served=False)
    problem = console.coordinator_problem(PAUSE_MS)
    if problem:
        return GroupMembers(is_served=True, problem=problem)
    try:
        asked = coordinators_of(console, image, timeout_ms=TIMEOUT_MS)
        assert asked is not None
        return _shown(asked.describe([group])[group])
    except (InvalidRequestError, RetriableError) as error:
        console.note_coordinator_problem(error.message)
        return GroupMembers(is_served=True, problem=error.message)


def groups_of_brokers(console: Console, image: Image) -> list[str]:
    """Return the groups that brokers coordinate, with those that have committed nothing yet.

    Empty if there is none, or one of them does not answer.
    """
    if not image.brokers or console.coordinator_problem(PAUSE_MS):
        return []
    try:
        asked = coordinators_of(console, image, timeout_ms=TIMEOUT_MS)
        return [] if asked is None else list(asked.list_groups())
    except (InvalidRequestError, RetriableError) as error:
        console.note_coordinator_problem(error.message)
        return []


def _shown(found: GroupDescription) -> GroupMembers:
    members = sorted(found.members, key=lambda one: (one.client_id, one.consumer_id))
    return GroupMembers(
        is_served=True,
        state=found.state,
        coordinator=found.coordinator,
        assignment_strategy=found.assignment_strategy,
        members=tuple(
            MemberRow(
                consumer_id=one.consumer_id,
                instance_id=one.instance_id,
                client_id=one.client_id,
                host=one.host,
                partitions=len(one.partitions),
                assignment=shown_assignment(one.partitions),
            )
            for one in members[:MAX_MEMBERS]
        ),
        member_count=len(members),
    )


def shown_assignment(partitions: Collection[TopicPartition]) -> str:
    """As Kafka's tool prints it, cut to MAX_ASSIGNED characters."""
    text = assignment_text(partitions)
    return text if len(text) <= MAX_ASSIGNED else f"{text[:MAX_ASSIGNED]}…"
