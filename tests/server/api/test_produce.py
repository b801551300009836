"""Produce, over a socket, in every version."""

import asyncio
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

import sparklog
from sparklog.errors import RetriableError, UnsupportedVersionError
from sparklog.format.codec import Codec
from sparklog.metadata import BrokerListener, RequireFeatures
from sparklog_server.protocol.responses import topic_uuid
from tests.server.api.producing import ONE, now_batch, sequenced
from tests.server.publish.asking import ProducingClient
from tests.server.publish.batches import batch
from tests.support.broker_process import BrokerProcess
from tests.support.running_broker import RunningBroker
from tests.support.several_brokers import take_over

VERSIONS = range(3, 14)


@pytest.fixture
def broker(running_broker: RunningBroker) -> RunningBroker:
    log = running_broker.broker.root.log
    log.create_topic("orders", 3)
    log.create_topic("compacted", 1, {"cleanup.policy": "compact"})
    log.create_topic("stamped", 1, {"message.timestamp.type": "LogAppendTime"})
    log.create_topic("__consumer_offsets", 1)
    running_broker.settle()
    return running_broker


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[ProducingClient]:
    with ProducingClient(broker.host, broker.port) as client:
        yield client


def stored(broker: RunningBroker, topic: str = "orders", partition: int = 0) -> list[bytes]:
    found: list[bytes] = broker.broker.root.log.read(topic, partition, 0).column("value").to_pylist()
    return found


def asked_for(broker: RunningBroker, topic: str, version: int) -> str | uuid.UUID:
    """A topic as requests of the version name it."""
    if version < 13:
        return topic
    found = broker.broker.root.image.topics.get(topic)
    return uuid.UUID(int=7) if found is None else topic_uuid(found.topic_id)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [-1, 1])
def test_every_version(client: ProducingClient, broker: RunningBroker, version: int, acks: int) -> None:
    orders = asked_for(broker, "orders", version)
    responses = client.produce(
        (orders, 0, ONE), (orders, 2, ONE), (orders, 0, ONE), version=version, acks=acks
    )
    assert [(one.index, one.error_code, one.base_offset) for one in responses] == [
        (0, ErrorCode.none, 0),
        (2, ErrorCode.none, 0),
        (0, ErrorCode.none, 2),
    ]
    if version >= 5:
        assert {one.log_start_offset for one in responses} == {0}
    if version >= 8:
        assert {(one.record_errors, one.error_message) for one in responses} == {((), None)}
    assert stored(broker) == [b"one", b"two"] * 2


def test_parts_say_where_they_come_from(
    client: ProducingClient, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = broker.broker.publisher
    told: list[str] = []
    submit = publisher.submit

    def note(parts: Any, **options: Any) -> Any:
        told.extend(part.check().client for part in parts)
        return submit(parts, **options)

    monkeypatch.setattr(publisher, "submit", note)
    client.produce(("orders", 0, ONE))
    assert told == ["127.0.0.1"]


@pytest.mark.parametrize("codec", list(Codec))
def test_stored_as_it_came(client: ProducingClient, broker: RunningBroker, codec: Codec) -> None:
    data = batch([b"value" * 20] * 30, codec=codec)
    (response,) = client.produce(("orders", 1, data))
    assert response.error_code is ErrorCode.none
    (extent,) = broker.broker.root.log.refresh().partition("orders", 1).extents
    assert broker.broker.root.store.read(extent.segment, extent.position, extent.size) == data


@pytest.mark.parametrize("version", VERSIONS)
def test_one_bad_partition_harms_no_other(
    client: ProducingClient, broker: RunningBroker, version: int
) -> None:
    damaged = bytearray(ONE)
    damaged[-1] ^= 1
    responses = client.produce(
        (asked_for(broker, "orders", version), 0, ONE),
        (asked_for(broker, "orders", version), 1, bytes(damaged)),
        (asked_for(broker, "orders", version), 3, ONE),
        (asked_for(broker, "orders", version), 2, None),
        (asked_for(broker, "missing", version), 0, ONE),
        (asked_for(broker, "__consumer_offsets", version), 0, ONE),
        (asked_for(broker, "compacted", version), 0, ONE),
        version=version,
    )
    assert [one.error_code for one in responses] == [
        ErrorCode.none,
        ErrorCode.corrupt_message,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_record,
        ErrorCode.unknown_topic_or_partition if version < 13 else ErrorCode.unknown_topic_id,
        ErrorCode.invalid_topic_exception,
        ErrorCode.invalid_record,
    ]
    assert [one.base_offset for one in responses] == [0] + [-1] * 6
    if version >= 8:
        assert "CRC-32C" in responses[1].error_message
        assert [error.batch_index for error in responses[6].record_errors] == [0, 1]
        assert "without key" in responses[6].record_errors[0].batch_index_error_message


def test_nobody_writes_to_internal_topics(broker: RunningBroker) -> None:
    """Kafka lets in whoever takes this name, and whoever does can close all groups of a partition."""
    with ProducingClient(broker.host, broker.port, "__admin_client") as admin:
        (response,) = admin.produce(("__consumer_offsets", 0, batch([b"v"], keys=[b"k"])))
    assert response.error_code is ErrorCode.invalid_topic_exception
    assert stored(broker, "__consumer_offsets") == []


def test_log_append_time_is_told(client: ProducingClient) -> None:
    (stamped,) = client.produce(("stamped", 0, ONE))
    (created,) = client.produce(("orders", 0, ONE))
    assert stamped.log_append_time is not None
    assert created.log_append_time is None


def test_acks_that_do_not_exist(client: ProducingClient) -> None:
    for acks in (2, -2):
        (response,) = client.produce(("orders", 0, ONE), acks=acks)
        assert response.error_code is ErrorCode.invalid_required_acks


def test_acks_0_is_not_answered(client: ProducingClient, broker: RunningBroker) -> None:
    client.send_produce(("orders", 0, ONE), acks=0)
    (response,) = client.produce(("orders", 0, ONE))  # the first answer is this one's
    assert response.base_offset == 2
    assert len(stored(broker)) == 4


def test_acks_0_with_an_error_closes_the_connection(
    client: ProducingClient, broker: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    client.send_produce(("missing", 0, ONE), acks=0)
    assert client.is_closed()


def test_answers_before_the_close_are_sent(client: ProducingClient) -> None:
    first = client.send_produce(("orders", 0, ONE))
    client.send_produce(("missing", 0, ONE), acks=0)
    assert client.receive(0, 9)[0] == first
    assert client.is_closed()


def test_a_batch_does_not_take_the_place_of_a_first_one_that_found_the_backlog_full(
    client: ProducingClient, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = broker.broker.publisher
    submit = publisher.submit

    def full(_parts: Any, **_options: Any) -> "asyncio.Future[Any]":
        refused: asyncio.Future[Any] = broker.loop.create_future()
        refused.set_exception(RetriableError("PUBLISH_BACKLOG_FULL", "too many", fix="wait"))
        monkeypatch.setattr(publisher, "submit", submit)  # the next one finds room
        return refused

    monkeypatch.setattr(publisher, "submit", full)
    batches = [sequenced(0, 0), sequenced(0, 2)]
    found = []
    for _ in range(2):
        for one in batches:
            client.send_produce(("orders", 0, one))
        for _ in batches:
            _, response = client.receive(0, 9)
            (part,) = response.responses[0].partition_responses
            found.append((bool(part.error_code), part.base_offset))
    assert found == [(True, -1), (True, -1), (False, 0), (False, 2)]


def test_pipelined_requests_are_answered_in_order(client: ProducingClient, broker: RunningBroker) -> None:
    numbers = [
        client.send_produce(("orders", n % 2, now_batch([b"%d" % n] * (1 + 200 * (n % 3)))))
        for n in range(60)
    ]
    assert [client.receive(0, 9)[0] for _ in numbers] == numbers
    for partition in range(2):
        found = [int(value) for value in stored(broker, partition=partition)]
        assert found == sorted(found)


def test_timeout(client: ProducingClient, broker: RunningBroker) -> None:
    """The publisher hangs in its commit: the client hears of it, and the records come all the same."""
    import threading

    gate = threading.Event()
    metadata = broker.broker.root.log.metadata
    publish = metadata.publish

    def slow(plan, **options):  # type: ignore[no-untyped-def]
        assert gate.wait(60)
        return publish(plan, **options)

    metadata.publish = slow  # type: ignore[method-assign]
    (response,) = client.produce(("orders", 0, ONE), timeout=20)
    assert response.error_code is ErrorCode.request_timed_out
    metadata.publish = publish  # type: ignore[method-assign]
    gate.set()
    (response,) = client.produce(("orders", 0, ONE))
    assert response.base_offset == 2


def test_idempotent_producer(client: ProducingClient, broker: RunningBroker) -> None:
    def send(sequence: int, epoch: int = 0) -> tuple[ErrorCode, int]:
        (response,) = client.produce(("orders", 0, sequenced(9, sequence, epoch)))
        return response.error_code, response.base_offset

    assert [send(number) for number in (0, 2, 4)] == [(ErrorCode.none, number) for number in (0, 2, 4)]
    assert [send(number) for number in (0, 4, 2)] == [(ErrorCode.none, number) for number in (0, 4, 2)]
    assert send(8) == (ErrorCode.out_of_order_sequence_number, -1)
    assert send(3, epoch=1) == (ErrorCode.out_of_order_sequence_number, -1)
    assert send(0, epoch=1) == (ErrorCode.none, 6)
    assert send(6) == (ErrorCode.invalid_producer_epoch, -1)
    assert len(stored(broker)) == 8


def test_duplicates_over_a_restart(start_broker: Callable[..., RunningBroker], tmp_path: Path) -> None:
    first = start_broker()
    first.broker.root.log.create_topic("orders", 1)
    first.settle()
    with ProducingClient(first.host, first.port) as client:
        producer_id = client.init_producer_id().producer_id
        for sequence in range(0, 20, 2):
            client.produce(("orders", 0, sequenced(producer_id, sequence)))
    first.stop()
    second = start_broker()
    with ProducingClient(second.host, second.port) as client:
        assert client.init_producer_id().producer_id == producer_id + 1000  # never the same again
        for sequence in (18, 0, 20):
            (response,) = client.produce(("orders", 0, sequenced(producer_id, sequence)))
            assert (response.error_code, response.base_offset) == (ErrorCode.none, sequence)
    assert len(stored(second)) == 22


def test_fenced_broker_answers_who_leads_now(start_broker: Callable[..., RunningBroker]) -> None:
    # It looks by itself so seldom that the refused commit is what tells it.
    broker = start_broker({"sparklog.metadata.poll.ms": "8000"})
    with sparklog.open(broker.root) as log:
        log.create_topic("orders", 1)
        broker.settle()
        take_over(log, 8, [BrokerListener(host="elsewhere", port=1234)])
    with ProducingClient(broker.host, broker.port) as client:
        client.send_produce(("orders", 0, ONE), version=12)
        _, response = client.receive(0, 12)
    (one,) = response.responses[0].partition_responses
    assert one.error_code is ErrorCode.not_leader_or_follower
    (endpoint,) = response.node_endpoints
    assert (endpoint.node_id, endpoint.host, endpoint.port) == (8, "elsewhere", 1234)
    assert one.current_leader.leader_id == 8


def test_a_root_that_needs_a_feature_of_writers_takes_nothing(
    start_broker: Callable[..., RunningBroker],
) -> None:
    broker = start_broker()
    with sparklog.open(broker.root) as log, ProducingClient(broker.host, broker.port) as client:
        log.create_topic("orders", 1)
        broker.settle()
        needed = RequireFeatures(writers=("new-write",))
        commit = log.metadata.publish(lambda _: [needed]).commit
        (response,) = client.produce(("orders", 0, ONE))
        assert response.error_code is ErrorCode.kafka_storage_error
        assert "features new-write, which this sparklog does not support" in response.error_message
        assert (log.refresh().commit, log.log_end_offset("orders", 0)) == (commit, 0)
    with pytest.raises(UnsupportedVersionError, match=r"UNSUPPORTED_METADATA.*features new-write"):
        start_broker({"node.id": "2"})


def test_second_broker_of_a_node_id_is_refused(
    running_broker: RunningBroker, start_process: Callable[..., BrokerProcess]
) -> None:
    with pytest.raises(
        RuntimeError, match=rf"DUPLICATE_BROKER.*listening at 127.0.0.1:{running_broker.port}"
    ):
        start_process("--override", "initial.broker.registration.timeout.ms=0")
