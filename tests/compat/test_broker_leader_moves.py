"""A healthy cluster whose leaders move all the time, while idempotent producers of real clients send.

What Jepsen has found in other brokers over object storage, with no fault at all or next to none: clients
that get stuck, offsets of 0 that are none, acknowledged records that are lost. Here every acknowledgement
names the place where its record is, each record is there once, in the order in which it was sent, and a
consumer that followed the leaders reads all of them.
Sources: jepsen.io, analysis of Bufstream 0.1.0.
"""

import contextlib
import itertools
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import sparklog
from sparklog.errors import FencedError, InvalidRequestError
from sparklog.metadata import Action, Image, plan_elect_leaders
from tests.compat.clients import CLIENTS, Client
from tests.compat.clients.face import ProduceOptions, Sent
from tests.compat.embedded import stored_records
from tests.compat.group_members import joined
from tests.compat.test_broker_coordinators import PARTITIONS, PATIENCE_S, TOPIC, serving
from tests.support.broker_process import until

ROUNDS, RECORDS = 4, 200
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::SyntaxWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:aiokafka"),
]


@contextlib.contextmanager
def moving_leaders(root: Path) -> Iterator[list[int]]:
    """Every moment another partition is led by the other broker, in the name of the controller; how often."""
    ending, moves = threading.Event(), [0]

    def plan(image: Image, partition: int) -> list[Action]:
        topic = image.topic(TOPIC)
        now = topic.partitions[partition].leadership
        (other,) = set(now.replicas) - {now.leader}
        wanted = {(topic.topic_id, partition): other}
        action = plan_elect_leaders(image, wanted, controller_epoch=image.controller.controller_epoch)
        return [] if action is None else [action]

    def move() -> None:
        with sparklog.open(str(root), create=False) as log:
            for partition in itertools.cycle(range(PARTITIONS)):
                # A broker that was slow is fenced.
                with contextlib.suppress(FencedError, InvalidRequestError):
                    log.metadata.publish(partial(plan, partition=partition))
                    moves[0] += 1
                if ending.wait(0.15):
                    return

    thread = threading.Thread(target=move)
    thread.start()
    try:
        yield moves
    finally:
        ending.set()
        thread.join()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_what_was_acknowledged_is_where_it_was_said_to_be(tmp_path: Path, client: Client) -> None:
    options = ProduceOptions(compression="lz4")
    acknowledged: dict[tuple[int, int], bytes] = {}
    with serving(tmp_path / "log", 2) as brokers:
        with joined(client.name, brokers.bootstrap, "readers", TOPIC, "range") as reader:
            with moving_leaders(brokers.root) as moves:
                for turn in itertools.count():
                    if turn >= ROUNDS and moves[0] > 2 * PARTITIONS:
                        break
                    records = [
                        Sent(value=b"%d" % (turn * RECORDS + number), partition=number % PARTITIONS)
                        for number in range(RECORDS)
                    ]
                    places = client.produce(brokers.bootstrap, TOPIC, records, options)
                    for place, record in zip(places, records, strict=True):
                        assert place not in acknowledged, f"{place} was told twice"
                        acknowledged[place] = record.value or b""
            # Not while they move: a partition is led anew before some clients have got over the last time.
            until(
                lambda: set(reader.seen) >= acknowledged.keys(), PATIENCE_S, "the consumer reads everything"
            )
        found = {
            (partition, one.offset): one.value
            for partition in range(PARTITIONS)
            for one in stored_records(brokers.log, TOPIC, partition)
        }
        assert found == acknowledged
        for partition in range(PARTITIONS):
            sent = [int(value or b"") for (where, _), value in sorted(found.items()) if where == partition]
            assert sent == sorted(sent)
