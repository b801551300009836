"""Two brokers on a root: each does the coordinator's work for any id, and knows no more than the root."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import sparklog
from tests.server.api.transacting import TransactionClient, producer_of
from tests.support.broker_process import until
from tests.support.running_broker import RunningBroker

FIND = 10
# They hear of each other's commits when they look: nobody is refused for what is not known here yet.
SLOW = {"sparklog.metadata.poll.ms": "60000", "broker.session.timeout.ms": "120000"}


@pytest.fixture
def brokers(start_broker: Callable[..., RunningBroker]) -> dict[int, RunningBroker]:
    made = {node: start_broker({**SLOW, "node.id": str(node)}) for node in (1, 2)}
    with sparklog.open(made[1].root, create=False) as log:
        log.create_topic("orders", 2)
    for one in made.values():
        one.settle()
    return made


@pytest.fixture
def two(brokers: dict[int, RunningBroker]) -> Iterator[tuple[TransactionClient, TransactionClient]]:
    with ExitStack() as stack:
        one, other = (
            stack.enter_context(TransactionClient(broker.host, broker.port)) for broker in brokers.values()
        )
        yield one, other


def test_a_producer_may_ask_each_of_them_in_turn(two: tuple[TransactionClient, TransactionClient]) -> None:
    one, other = two
    first = producer_of(one.initialise())
    assert other.add(first, ("orders", 0)) == ["none"]
    assert one.add_offsets(first) == "none"
    assert other.end(first, version=4)[0] == "none"
    assert one.end(first, version=4)[0] == "none"  # repeated
    assert one.end(first, commits=False, version=4)[0] == "invalid_txn_state"
    assert one.add(first, ("orders", 1)) == ["none"]
    # Which transaction is meant the other one cannot know, before it has heard of this one.
    assert other.end(first, commits=False, version=4)[0] == "concurrent_transactions"
    assert other.end(first, commits=False, version=4)[0] == "none"
    second = producer_of(other.initialise())
    assert second == (first[0], first[1] + 1)
    assert one.add(first, ("orders", 0)) == ["producer_fenced"]
    assert one.add(second, ("orders", 0)) == ["none"]
    third = producer_of(other.end(second))
    assert one.end(second) == ("none", *third)


def test_both_name_one_coordinator_and_each_tells_of_its_own(
    two: tuple[TransactionClient, TransactionClient],
) -> None:
    names = [f"app-{number}" for number in range(12)]
    for number, name in enumerate(names):
        producer_of(two[number % 2].initialise(name))
    found = [
        {one.key: one.node_id for one in client.ask(FIND, 4, key_type=1, coordinator_keys=names).coordinators}
        for client in two
    ]
    assert found[0] == found[1]
    assert set(found[0].values()) == {1, 2}
    for node, client in enumerate(two, start=1):
        assert set(client.listed()) == {name for name, at in found[0].items() if at == node}


def test_the_other_one_goes_on_when_one_has_gone(
    brokers: dict[int, RunningBroker], two: tuple[TransactionClient, TransactionClient]
) -> None:
    one, other = two
    producer = producer_of(one.initialise())
    assert one.add(producer, ("orders", 0)) == ["none"]
    brokers[1].stop()
    until(lambda: other.end(producer, version=4)[0] == "none")  # asked again, if it has not heard of it yet
    until(lambda: set(other.listed()) == {"app"})  # as soon as it is the only one that lives
