"""What one client may have of a root's transactions, so that the others have room."""

import asyncio
from collections.abc import Iterator

import pytest

from sparklog.errors import RetriableError, SparklogError
from sparklog.metadata import MAX_ROOT_WEIGHT, PARTITION_WEIGHT, TOPIC_WEIGHT
from sparklog.metadata.model import transactions as model
from sparklog_server.transactions.coordinator import ClientShares, Producer
from tests.server.api.producing import now_batch
from tests.server.api.transacting import TransactionClient, producer_of
from tests.server.transactions.conftest import Root
from tests.server.transactions.test_coordinator import run
from tests.support.running_broker import RunningBroker

BROKER_TOPICS = {"orders": 3}
GREEDY, OTHER = "10.0.0.1", "10.0.0.2"


def begun(root: Root, name: str, client: str) -> Producer:
    return run(root.coordinator.initialise(name, 1000, None, client))


def added(root: Root, name: str, producer: Producer, client: str, *groups: str) -> None:
    for group in groups:
        run(root.coordinator.add_group(name, producer, group, client))


def test_ids_of_one_client_beyond_its_share_replace_its_own(root: Root) -> None:
    root.coordinator.shares.max_ids = 4
    begun(root, "theirs", OTHER)
    for number in range(20):
        begun(root, f"mine {number}", GREEDY)
    left = set(root.log.image.transactions)
    assert len(left) == 5
    assert {"theirs", "mine 19", "mine 18"} <= left
    begun(root, "theirs as well", OTHER)


def test_a_client_whose_ids_are_all_open_waits(root: Root) -> None:
    root.coordinator.shares.max_ids = 2
    producers = [begun(root, f"mine {number}", GREEDY) for number in range(2)]
    for number, producer in enumerate(producers):
        added(root, f"mine {number}", producer, GREEDY, "g")
    with pytest.raises(RetriableError) as raised:
        begun(root, "one more", GREEDY)
    assert raised.value.code == "TRANSACTIONS_FULL"
    begun(root, "theirs", OTHER)
    for number, producer in enumerate(producers):  # the last is recent, and stays
        run(root.coordinator.end(f"mine {number}", producer, commits=True, raises=False))
    begun(root, "one more", GREEDY)
    assert set(root.log.image.transactions) == {"mine 1", "theirs", "one more"}


def test_open_transactions_of_one_client_leave_room_for_others(root: Root) -> None:
    """64 ids with 16,384 partitions each had everybody else answered COORDINATOR_NOT_AVAILABLE."""
    group = TOPIC_WEIGHT + 1
    root.coordinator.shares.max_weight = 40 * group
    mine = begun(root, "mine", GREEDY)
    with pytest.raises(SparklogError, match="a third of what is free") as raised:
        added(root, "mine", mine, GREEDY, *"abcdefghijklmnopq")
    assert raised.value.code == "TRANSACTIONS_FULL"
    assert len(root.log.image.transactions["mine"].groups) == 10  # a quarter
    theirs = begun(root, "theirs", OTHER)
    added(root, "theirs", theirs, OTHER, *"abcdefg")  # a quarter of what is left
    with pytest.raises(RetriableError):
        added(root, "theirs", theirs, OTHER, "h")
    added(root, "mine", mine, GREEDY, "a")  # it has that already
    run(root.coordinator.end("mine", mine, commits=True, raises=False))
    added(root, "theirs", theirs, OTHER, "h")


def test_an_id_is_of_the_client_that_has_used_it_last(root: Root) -> None:
    shares = ClientShares(max_ids=1, max_weight=1 << 20)
    begun(root, "a", "")
    image = root.log.image
    shares.note("a", GREEDY, image)
    assert list(shares.ids_to_replace(GREEDY, image)) == ["a"]
    shares.note("a", OTHER, image)
    assert shares.ids_to_replace(GREEDY, image) == ()
    assert list(shares.ids_to_replace(OTHER, image)) == ["a"]
    for number in range(5_000):  # that are not there any more
        shares.note(f"gone {number}", GREEDY, image)
    assert shares.ids_to_replace(GREEDY, image) == ()
    assert shares.known < 1_100


def test_several_ids_that_need_room_in_one_commit(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(8):
        begun(root, f"old {number}", OTHER)
    monkeypatch.setattr(model, "MAX_TRANSACTIONAL_IDS", 8)

    async def together() -> None:
        names = [f"new {number}" for number in range(3)]
        before = root.commits.count
        await asyncio.gather(*(root.coordinator.initialise(one, 1000, None, OTHER) for one in names))
        assert root.commits.count <= before + 2

    run(together())
    assert {f"new {number}" for number in range(3)} <= set(root.log.image.transactions)
    begun(root, "later", OTHER)  # and makes room for what was too much
    assert len(root.log.image.transactions) <= 8


@pytest.fixture
def held(running_broker: RunningBroker) -> Iterator[TransactionClient]:
    """A client that has one partition in its transaction, and may have no more."""
    running_broker.settle()
    shares = running_broker.broker.transactions.shares
    with TransactionClient(running_broker.host, running_broker.port) as client:
        assert client.add(producer_of(client.initialise()), ("orders", 0)) == ["none"]
        most, shares.max_weight = shares.max_weight, 4 * (TOPIC_WEIGHT + PARTITION_WEIGHT)
        yield client
        shares.max_weight = most
        producer = producer_of(client.initialise())
        assert client.add(producer, ("orders", 1)) == ["none"]
        assert client.add_offsets(producer) == "none"


def test_a_client_with_its_share_adds_no_more(held: TransactionClient) -> None:
    assert held.add((0, 0), ("orders", 1)) == ["coordinator_not_available"]
    assert held.add_offsets((0, 0)) == "coordinator_not_available"
    assert held.add((0, 0), ("orders", 0)) == ["none"]


@pytest.mark.parametrize("version", [9, 12])
def test_a_client_with_its_share_stages_no_more(
    held: TransactionClient, running_broker: RunningBroker, version: int
) -> None:
    """Its batch is sent again: what it sends behind it does not take its place."""
    first, second = (
        now_batch([b"x"], producer_id=0, producer_epoch=0, base_sequence=sequence, is_transactional=True)
        for sequence in (0, 1)
    )
    (answer,) = held.produce(("orders", 0, first), version=version, transactional_id="app")
    assert answer.error_code.name == "not_enough_replicas"
    running_broker.broker.transactions.shares.max_weight = MAX_ROOT_WEIGHT
    (answer,) = held.produce(("orders", 0, second), version=version, transactional_id="app")
    assert answer.error_code.name != "none"
    for batch in (first, second):
        (answer,) = held.produce(("orders", 0, batch), version=version, transactional_id="app")
        assert answer.error_code.name == "none"
