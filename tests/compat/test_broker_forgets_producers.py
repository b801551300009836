"""Long-lived idempotent producers that a partition has forgotten for their silence: they go on without
noticing if their records are of now. Else librdkafka and Java begin a new epoch by themselves, as after any
loss of their state; kafka-python and aiokafka leave it to the application. Nothing is there twice.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import aiokafka.errors
import kafka.errors
import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError, Message, Producer
from kafka import KafkaProducer

import sparklog
from sparklog.client import SparkLog
from sparklog.maintenance import MergeLimits, optimize
from sparklog.metadata import ExpireProducers
from tests.compat.embedded import stored_records
from tests.support.broker_process import serving

OLD_MS = 1_300_000_000_000
Send = Callable[[bytes, int | None], None]
TIMEOUT = 30


@pytest.fixture
def root(tmp_path: Path) -> Iterator[tuple[str, SparkLog]]:
    with serving(tmp_path / "log") as server, sparklog.open(str(server.root), create=False) as log:
        log.create_topic("t", 1)
        yield server.bootstrap, log


def forget_all(log: SparkLog) -> None:
    """As two rounds do, a day apart; and merge what shows who has written it."""
    log.metadata.publish(lambda _: [ExpireProducers(time_ms=0, marks_only=True)])
    log.metadata.publish(lambda _: [ExpireProducers(time_ms=1)])
    optimize(log.metadata, log.clock, limits=MergeLimits(fan_in=None))
    state = log.refresh().partition("t", 0)
    assert not state.producers
    assert [extent.producer_id for extent in state.extents] == [-1]


def with_confluent(bootstrap: str, use: Callable[[Send], None]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    failed: list[object] = []

    def told(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failed.append(error)

    def send(value: bytes, time_ms: int | None) -> None:
        producer.produce("t", value, partition=0, on_delivery=told, timestamp=time_ms or 0)  # 0: now
        assert producer.flush(TIMEOUT) == 0
        assert not failed

    use(send)


def with_kafka_python(bootstrap: str, use: Callable[[Send], None]) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
    try:
        use(lambda value, time_ms: producer.send("t", value, partition=0, timestamp_ms=time_ms).get(TIMEOUT))
    finally:
        producer.close()


def with_aiokafka(bootstrap: str, use: Callable[[Send], None]) -> None:
    loop = asyncio.new_event_loop()

    async def make() -> AIOKafkaProducer:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
        await producer.start()
        return producer

    producer = loop.run_until_complete(make())
    try:
        use(
            lambda value, time_ms: loop.run_until_complete(
                producer.send_and_wait("t", value, partition=0, timestamp_ms=time_ms)
            )
        )
    finally:
        loop.run_until_complete(producer.stop())
        loop.close()


@pytest.mark.parametrize("using", [with_confluent, with_kafka_python, with_aiokafka])
def test_a_producer_of_records_of_now_does_not_notice(
    root: tuple[str, SparkLog], using: Callable[[str, Callable[[Send], None]], None]
) -> None:
    bootstrap, log = root

    def use(send: Send) -> None:
        send(b"0", None)
        send(b"1", None)
        forget_all(log)
        send(b"2", None)
        (known,) = log.refresh().partition("t", 0).producers.values()
        assert (known.producer_epoch, known.last_sequence) == (0, 2)
        send(b"3", None)

    using(bootstrap, use)
    assert [one.value for one in stored_records(log, "t")] == [b"0", b"1", b"2", b"3"]


def test_librdkafka_goes_on_with_event_times(root: tuple[str, SparkLog]) -> None:
    bootstrap, log = root

    def use(send: Send) -> None:
        send(b"0", OLD_MS)
        send(b"1", OLD_MS)
        forget_all(log)
        send(b"2", OLD_MS)
        send(b"3", OLD_MS)

    with_confluent(bootstrap, use)
    assert [one.value for one in stored_records(log, "t")] == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("using", "error"),
    [
        (with_kafka_python, kafka.errors.UnknownProducerIdError),
        (with_aiokafka, aiokafka.errors.UnknownProducerId),
    ],
)
def test_other_clients_leave_event_times_to_the_application(
    root: tuple[str, SparkLog],
    using: Callable[[str, Callable[[Send], None]], None],
    error: type[Exception],
) -> None:
    bootstrap, log = root

    def use(send: Send) -> None:
        send(b"0", OLD_MS)
        send(b"1", OLD_MS)
        forget_all(log)
        with pytest.raises(error):
            send(b"2", OLD_MS)

    using(bootstrap, use)
    assert [one.value for one in stored_records(log, "t")] == [b"0", b"1"]
    using(bootstrap, lambda send: send(b"2", OLD_MS))  # another producer
    assert [one.value for one in stored_records(log, "t")] == [b"0", b"1", b"2"]
