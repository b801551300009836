"""Fetches that wait: until when, and for whom."""

import sys
import threading
import time
from collections.abc import Callable

import pytest

from tests.server.api.fetching import FETCH, asked, fetch, offsets, partitions_of, request_fields, waiting
from tests.server.api.producing import now_batch
from tests.server.fetch.stored import TOPIC, StoredLog, value_of
from tests.server.publish.asking import ProducingClient
from tests.support.running_broker import RunningBroker
from tests.support.transactional_producer import TransactionalProducer
from tests.support.wire_client import WireClient


def test_an_empty_poll_ends_when_its_time_is_over(client: WireClient, broker: RunningBroker) -> None:
    start = time.monotonic()
    response = fetch(client, asked((0, 0)), max_wait=60)
    assert time.monotonic() - start > 0.055
    assert not partitions_of(response)[0].records
    waiting(broker, 0)


def test_a_poll_ends_when_another_process_appends(
    client: WireClient, broker: RunningBroker, stored: StoredLog
) -> None:
    client.send(FETCH, 12, **request_fields(asked((0, 0), (1, 0)), max_wait=30_000))
    waiting(broker)
    stored.append(5, partition=1)
    found = partitions_of(client.receive(FETCH, 12)[1])
    assert offsets(found[1]) == [0, 1, 2, 3, 4]
    waiting(broker, 0)


def test_min_bytes_are_waited_for(client: WireClient, broker: RunningBroker, stored: StoredLog) -> None:
    client.send(FETCH, 12, **request_fields(asked((0, 0), (1, 0)), max_wait=30_000, min_bytes=4000))
    for partition in (0, 1, 0):
        waiting(broker)
        stored.append(20, partition=partition, value_bytes=60)
    found = partitions_of(client.receive(FETCH, 12)[1])
    assert offsets(found[0]) == list(range(40))
    assert offsets(found[1]) == list(range(20))


def test_min_bytes_beyond_the_limit_do_not_wait_for_ever(client: WireClient, stored: StoredLog) -> None:
    stored.append(100, value_bytes=100)
    fields = {"min_bytes": 1 << 30, "max_bytes": 5000, "max_wait": 30_000}
    assert partitions_of(fetch(client, asked((0, 0)), **fields))[0].records


def test_appends_elsewhere_wake_nobody(client: WireClient, broker: RunningBroker, stored: StoredLog) -> None:
    client.send(FETCH, 12, **request_fields(asked((0, 0)), max_wait=30_000))
    waiting(broker)
    stored.append(5, partition=1)
    stored.log.create_topic("other", 1)
    while broker.broker.root.log.image.commit < stored.log.refresh().commit:
        threading.Event().wait(0.002)
    waiting(broker, 1)
    stored.append(1)
    assert offsets(partitions_of(client.receive(FETCH, 12)[1])[0]) == [0]


def test_deleting_the_topic_ends_the_wait(
    client: WireClient, broker: RunningBroker, stored: StoredLog
) -> None:
    client.send(FETCH, 12, **request_fields(asked((0, 0)), max_wait=30_000))
    waiting(broker)
    stored.log.delete_topic(TOPIC)
    assert partitions_of(client.receive(FETCH, 12)[1])[0].error_code == 3


@pytest.mark.slow
def test_a_client_that_leaves_stops_waiting(talk: Callable[[], WireClient], broker: RunningBroker) -> None:
    client = talk()
    client.send(FETCH, 12, **request_fields(asked((0, 0)), max_wait=30_000))
    waiting(broker)
    client.close()
    waiting(broker, 0)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody can be asked")
def test_a_client_that_leaves_in_the_middle_of_a_request_stops_waiting(
    talk: Callable[[], WireClient], broker: RunningBroker
) -> None:
    """Its room for waiting was others' only when the time was over that it had asked for: 24 days."""
    client = talk()
    client.send(FETCH, 12, **request_fields(asked((0, 0)), max_wait=2**31 - 1))
    waiting(broker)
    client.socket.sendall(b"\0")
    client.close()
    waiting(broker, 0)
    assert broker.broker.fetches.waiting_bytes == 0


def test_no_partitions_do_not_wait(client: WireClient) -> None:
    assert fetch(client, [], max_wait=30_000).responses == ()


def test_a_poll_ends_with_a_transaction_that_was_ended_elsewhere(
    client: WireClient, broker: RunningBroker, stored: StoredLog
) -> None:
    """What was staged before wakes nobody, and is in no answer."""
    producer = TransactionalProducer(stored.log).begin()
    producer.add(0, 1, topic=TOPIC)
    broker.settle()  # else the batch may be refused once: the broker must know of the transaction
    client.send(FETCH, 12, **request_fields(asked((0, 0)), max_wait=30_000))
    waiting(broker)
    with ProducingClient(broker.host, broker.port) as staging:
        for partition in (0, 1):
            batch = now_batch(
                [value_of(0), value_of(1)],
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                base_sequence=0,
                is_transactional=True,
            )
            (answer,) = staging.produce((TOPIC, partition, batch), transactional_id="app")
            assert answer.error_code.name == "none"
    waiting(broker, 1)
    producer.end()
    found = partitions_of(client.receive(FETCH, 12)[1])[0]
    assert offsets(found) == [0, 1]
    assert (found.high_watermark, found.last_stable_offset, found.aborted_transactions) == (2, 2, ())
    assert offsets(partitions_of(fetch(client, asked((1, 0))))[1]) == [0, 1]
