"""Two brokers on a root: each does the coordinator's work for any id, and knows no more than the root."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import sparklog
from tests.server.api.group_requests import commit, fetch
from tests.server.api.test_txn_offset_commit import stage
from tests.server.api.transacting import TransactionClient, producer_of
from tests.server.publish.batches import batch
from tests.support.broker_process import until
from tests.support.running_broker import RunningBroker

FIND = 10
# They hear of each other's commits when they look: nobody is refused for what is not known here yet.
SLOW = {"sparklog.metadata.poll.ms": "60000", "broker.session.timeout.ms": "120000"}


@pytest.fixture
def brokers(start_broker: Callable[..., RunningBroker]) -> dict[int, RunningBroker]:
    made = {node: start_broker({**SLOW, "node.id": str(node)}) for node in (1, 2)}
    with sparklog.open(made[1].root, create=False) as log:
        log.create_topic("orders", 4)
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


# --- a leader, or a coordinator of groups, that is slow -------------------------------------------------


@contextmanager
def held_up(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """The broker's publisher hangs in the storage with one group commit; what is read meanwhile waits.

    Yields: wait until so many requests wait, that group commit's among them.
    """
    go, reached = threading.Event(), threading.Event()
    publisher, writer = broker.broker.publisher, broker.broker.root.log.writer
    append_together = writer.append_together

    def hang(*args: Any, **fields: Any) -> Any:
        reached.set()
        assert go.wait(60)
        return append_together(*args, **fields)

    def wait_for(waiting: int) -> None:
        until(lambda: publisher.pending_submissions >= waiting)

    with monkeypatch.context() as patch, ThreadPoolExecutor(1) as pool, client_of(broker) as client:
        patch.setattr(writer, "append_together", hang)
        first = pool.submit(client.produce, ("orders", led_by(broker), batch()))
        assert reached.wait(60)
        try:
            yield wait_for
        finally:
            go.set()
            assert first.result(60)[0].error_code.name == "none"


def client_of(broker: RunningBroker) -> TransactionClient:
    return TransactionClient(broker.host, broker.port)


def led_by(broker: RunningBroker) -> int:
    """A partition of `orders`."""
    node_id = broker.broker.membership.node_id
    partitions = broker.broker.root.image.topic("orders").partitions
    return next(one.partition for one in partitions if one.leadership.leader == node_id)


def data(producer: tuple[int, int], text: bytes, sequence: int = 0) -> bytes:
    producer_id, producer_epoch = producer
    return batch(
        [text],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        is_transactional=True,
    )


def errors(found: list[Any]) -> list[str]:
    return [one.error_code.name for one in found]


@pytest.mark.parametrize("closes", [True, False])
def test_records_of_an_aborted_transaction_are_not_committed_by_the_next_one(
    brokers: dict[int, RunningBroker],
    two: tuple[TransactionClient, TransactionClient],
    monkeypatch: pytest.MonkeyPatch,
    *,
    closes: bool,
) -> None:
    """The leader is slow, and its client aborts at another broker and begins again, in the same epoch."""
    leader, (_, other), place = brokers[1], two, ("orders", led_by(brokers[1]))
    producer = producer_of(other.initialise())
    assert other.add(producer, place) == ["none"]
    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        first, second = (stack.enter_context(client_of(leader)) for _ in range(2))
        with held_up(leader, monkeypatch) as wait_for:
            first.send_produce((*place, data(producer, b"old")), transactional_id="app")
            wait_for(2)
            if closes:
                first.close()
            assert other.end(producer, commits=False, version=3)[0] == "none"
            assert other.add(producer, place) == ["none"]
            sent = pool.submit(second.produce, (*place, data(producer, b"new")), transactional_id="app")
            wait_for(3)
        if not closes:
            _, answer = first.receive(0, 9)
            assert errors(answer.responses[0].partition_responses) == ["not_enough_replicas"]
        assert errors(sent.result(60)) == ["none"]
    assert other.end(producer, version=3)[0] == "none"
    with leader.beside() as log:
        assert b"new" in log.read(*place, 0)["value"].to_pylist()
        assert b"old" not in log.read(*place, 0)["value"].to_pylist()


def test_offsets_of_an_aborted_transaction_are_not_committed_by_the_next_one(
    brokers: dict[int, RunningBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group's coordinator is slow; and its client abandons the offsets, as above."""
    with ExitStack() as stack:
        clients = {node: stack.enter_context(client_of(one)) for node, one in brokers.items()}

        def coordinator() -> int:
            (found,) = clients[1].ask(FIND, 4, key_type=0, coordinator_keys=["g"]).coordinators
            for one in brokers.values():
                one.settle()
            return max(0, int(found.node_id))

        node = until(coordinator)
        slow, other = brokers[node], clients[3 - node]
        first, second = clients[node], stack.enter_context(client_of(slow))
        producer = producer_of(other.initialise())
        until(lambda: set(commit(first, {("orders", 0): 10}).values()) == {"none"})
        assert other.add_offsets(producer) == "none"
        pool = stack.enter_context(ThreadPoolExecutor(2))
        with held_up(slow, monkeypatch) as wait_for:
            old = pool.submit(stage, first, producer, {("orders", 0): 20}, 3)
            wait_for(2)
            assert other.end(producer, commits=False, version=3)[0] == "none"
            assert other.add_offsets(producer) == "none"
            new = pool.submit(stage, second, producer, {("orders", 1): 7}, 3)
            wait_for(3)
        assert old.result(60) == {("orders", 0): "coordinator_not_available"}
        assert new.result(60) == {("orders", 1): "none"}
        assert other.end(producer, version=3)[0] == "none"
        slow.settle()
        found = until(lambda: _stable(fetch(first, {"orders": [0, 1]})))
        assert (found["orders", 0][0], found["orders", 1][0]) == (10, 7)


def _stable(found: dict[tuple[str, int], Any]) -> dict[tuple[str, int], Any] | None:
    return found if found["orders", 1][0] == 7 and {one[2] for one in found.values()} == {"none"} else None


def test_a_broker_that_is_behind_reads_what_is_of_a_transaction_after_a_look(
    brokers: dict[int, RunningBroker], two: tuple[TransactionClient, TransactionClient]
) -> None:
    one, other = two
    place = "orders", led_by(brokers[1])
    producer = producer_of(other.initialise())
    for number in range(3):
        assert other.add(producer, place) == ["none"]
        assert errors(one.produce((*place, data(producer, b"x", number)), transactional_id="app")) == ["none"]
        assert other.end(producer, version=3)[0] == "none"


def test_batches_that_wait_for_a_look_keep_their_order(
    brokers: dict[int, RunningBroker],
    two: tuple[TransactionClient, TransactionClient],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go, reached = threading.Event(), threading.Event()
    log = brokers[1].broker.root.log
    refresh = log.refresh

    def slow(*, force: bool = False) -> Any:
        reached.set()
        assert go.wait(60)
        return refresh(force=force)

    one, _ = two
    place = "orders", led_by(brokers[1])
    producer = producer_of(one.initialise())
    assert one.add(producer, place) == ["none"]
    monkeypatch.setattr(log, "refresh", slow)
    for number in range(5):
        one.send_produce((*place, data(producer, b"x", number)), transactional_id="app")
    assert reached.wait(60)
    go.set()
    answers = [one.receive(0, 9)[1] for _ in range(5)]
    assert [errors(answer.responses[0].partition_responses) for answer in answers] == [["none"]] * 5


def test_where_that_look_takes_long_the_client_sends_again_once(
    brokers: dict[int, RunningBroker],
    two: tuple[TransactionClient, TransactionClient],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def no_look(*, seconds: float) -> None:
        """It takes longer."""

    monkeypatch.setattr(brokers[1].broker.root, "refresh_in_order", no_look)
    one, other = two
    place = "orders", led_by(brokers[1])
    producer = producer_of(other.initialise())
    for number in range(2):
        assert other.add(producer, place) == ["none"]
        part = (*place, data(producer, b"x", number))
        assert errors(one.produce(part, transactional_id="app")) == ["not_enough_replicas"]
        assert errors(one.produce(part, transactional_id="app")) == ["none"]
        assert other.end(producer, version=3)[0] == "none"
