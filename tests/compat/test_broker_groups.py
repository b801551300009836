"""Consumer groups of real clients over a socket: joining, leaving, being killed; offsets; administration."""

import contextlib
import itertools
from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from tests.compat.clients import CLIENTS, Client
from tests.compat.group_members import ASSIGNORS, COOPERATIVE, KillableMember, Member, joined
from tests.support.broker_process import BrokerProcess, serving, until

SETTINGS = {
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "500",
    "offsets.topic.num.partitions": "3",
}
# The clients' own: sockets left to the garbage collector, escapes that Python no longer likes.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::SyntaxWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:aiokafka"),
]
PARTITIONS = 6
_numbers = itertools.count(1)


@pytest.fixture
def group() -> str:
    return f"group-{next(_numbers)}"


@pytest.fixture
def topic(new_topic: Callable[..., str]) -> str:
    return new_topic(PARTITIONS)


def produce(log: SparkLog, topic: str, count: int) -> None:
    """The same number of records to every partition."""
    rows = pa.table({"value": [f"{n}".encode() for n in range(count)]})
    for partition in range(PARTITIONS):
        log.append(topic, rows, partition=partition)


def shares(members: Sequence[Member]) -> list[int]:
    """How many partitions each has, if every partition is with exactly one of them; else nothing."""
    assigned = [member.assigned() for member in members]
    everything = sorted(itertools.chain.from_iterable(assigned))
    return sorted(map(len, assigned)) if everything == list(range(PARTITIONS)) else []


def shared_among(members: Sequence[Member], expected: list[int]) -> None:
    until(lambda: shares(members) == expected, 60, f"{expected} partitions each")


COMBINATIONS = [(client, assignor) for client, assignors in ASSIGNORS.items() for assignor in assignors]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "assignor"), COMBINATIONS)
def test_two_and_five_members_come_and_go(
    name: str, assignor: str, server: BrokerProcess, log: SparkLog, topic: str, group: str
) -> None:
    produce(log, topic, 20)
    with contextlib.ExitStack() as stack:

        def join() -> Member:
            return stack.enter_context(joined(name, server.bootstrap, group, topic, assignor))

        members = [join(), join()]
        shared_among(members, [3, 3])
        members += [join(), join(), join()]
        shared_among(members, [1, 1, 1, 1, 2])
        produce(log, topic, 20)
        leaving = members.pop(1)
        leaving.end()
        shared_among(members, [1, 1, 2, 2])
        produce(log, topic, 20)
        everything = {(partition, offset) for partition in range(PARTITIONS) for offset in range(60)}

        def seen() -> set[tuple[int, int]]:
            return {one for member in [*members, leaving] for one in member.seen}

        until(lambda: seen() == everything, 60, "all records")
    # Whatever was committed is a position that somebody has read up to.
    committed = log.committed_offsets(group)
    assert committed == {(topic, partition): 60 for partition in range(PARTITIONS)}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ASSIGNORS)
def test_a_killed_member_is_replaced_when_its_session_ends(
    name: str, server: BrokerProcess, topic: str, group: str
) -> None:
    with joined(name, server.bootstrap, group, topic, "range") as survivor:
        shared_among([survivor], [6])
        killed = KillableMember(name, server.bootstrap, group, topic, "range")
        try:
            assert len(killed.wait_until_assigned()) == 3
            until(lambda: len(survivor.assigned()) == 3)
        finally:
            killed.kill()
        shared_among([survivor], [6])


@pytest.mark.parametrize("name", ["confluent", "kafka-python"])
def test_cooperative_members_keep_what_they_keep(
    name: str, server: BrokerProcess, topic: str, group: str
) -> None:
    with contextlib.ExitStack() as stack:

        def join() -> Member:
            return stack.enter_context(joined(name, server.bootstrap, group, topic, COOPERATIVE))

        first = join()
        shared_among([first], [6])
        before = first.assigned()
        second = join()
        shared_among([first, second], [3, 3])
        assert first.assigned() < before
        assert first.revocations == 1  # three went; never all of them


@pytest.mark.parametrize("name", ASSIGNORS)
def test_a_static_member_comes_back_without_a_rebalance(
    name: str, server: BrokerProcess, topic: str, group: str
) -> None:
    def join(instance_id: str) -> contextlib.AbstractContextManager[Member]:
        return joined(name, server.bootstrap, group, topic, "range", instance_id=instance_id)

    with join("other") as other, contextlib.ExitStack() as stack:
        restarting = stack.enter_context(join("restarting"))
        shared_among([other, restarting], [3, 3])
        mine, revocations = restarting.assigned(), other.revocations
        restarting.end()  # static members do not leave
        again = stack.enter_context(join("restarting"))
        shared_among([other, again], [3, 3])
        assert again.assigned() == mine
        assert other.revocations == revocations


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ASSIGNORS)
def test_groups_go_on_after_a_restart_of_the_broker(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with (
        serving(tmp_path_factory.mktemp("restart") / "log", SETTINGS) as server,
        sparklog.open(str(server.root), create=False) as log,
        contextlib.ExitStack() as stack,
    ):
        log.create_topic("orders", PARTITIONS)
        members = [
            stack.enter_context(joined(name, server.bootstrap, "g", "orders", "range", session_ms=20_000))
            for _ in range(2)
        ]
        shared_among(members, [3, 3])
        produce(log, "orders", 10)
        until(lambda: sum(len(member.seen) for member in members) >= 60, 60)
        before = [member.assigned() for member in members]
        server.kill()
        server.start()
        produce(log, "orders", 10)
        everything = {(partition, offset) for partition in range(PARTITIONS) for offset in range(20)}
        until(lambda: {one for member in members for one in member.seen} == everything, 60)
        shared_among(members, [3, 3])
        # The broker knew its members: nobody had to join again.
        assert [member.assigned() for member in members] == before


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_group_is_as_it_was_for_the_next_consumer(
    client: Client, server: BrokerProcess, log: SparkLog, topic: str, group: str
) -> None:
    produce(log, topic, 10)
    with joined(_member_name(client), server.bootstrap, group, topic, "range") as member:
        until(lambda: len(member.seen) == 60, 60)
    produce(log, topic, 5)
    with joined(_member_name(client), server.bootstrap, group, topic, "range") as member:
        until(lambda: len(member.seen) >= 30, 60)
    assert sorted(member.seen) == [(partition, 10 + n) for partition in range(PARTITIONS) for n in range(5)]


def _member_name(client: Client) -> str:
    return next(name for name in ASSIGNORS if name in client.name or client.name in name)
