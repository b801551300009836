"""Idempotent producers with five requests in flight: a worker (working.py).

Values are TOPIC/NAME/PARTITION/SEQUENCE: the sequence counts per partition, from 0, without gaps, so that the
log itself says in which order they were sent. Each record is an operation of the history.
"""

import asyncio
import queue
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from tests.brokers.working import (
    PARTITIONS,
    PATIENCE_SECONDS,
    RECORDS_PER_SECOND,
    REQUEST_TIMEOUT_MS,
    TOPIC,
    Ending,
    Pace,
    key_of,
)
from tests.history.recorder import HistoryWriter, Operation

MOST_PENDING = 2_000
# An error, or None and the offset. Of a batch whose answer was lost, and behind which a later one arrived,
# librdkafka knows only that it is there: None.
Told = Callable[[BaseException | None, int | None], None]


class Producer(Protocol):
    """What each client is made to look like. `told` is called in `wait` and `end` alone."""

    def send(self, partition: int, value: bytes, told: Told) -> None: ...

    def wait(self, seconds: float) -> None:
        """Let it work; may return early."""

    def end(self) -> None:
        """Until everything is acknowledged, or given up."""


class Librdkafka:
    """confluent-kafka."""

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka import Producer as Client

        self._client = Client(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                # Several requests for what has gathered in an outage, but not so many that a slow store,
                # which answers five a broker at a time, takes longer for them than they may wait.
                "batch.num.messages": 200,
                "compression.type": "lz4",
                "socket.timeout.ms": REQUEST_TIMEOUT_MS,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                "message.timeout.ms": PATIENCE_SECONDS * 1000,
                "log_level": 0,
            }
        )

    def send(self, partition: int, value: bytes, told: Told) -> None:
        def delivered(error: Any, message: Any) -> None:
            told(None if error is None else RuntimeError(str(error)), message.offset())

        self._client.produce(TOPIC, value, partition=partition, on_delivery=delivered)

    def wait(self, seconds: float) -> None:
        self._client.poll(seconds)

    def end(self) -> None:
        self._client.flush(PATIENCE_SECONDS)


class KafkaPython:
    """kafka-python, whose callbacks come from a thread of its own."""

    def __init__(self, bootstrap: str) -> None:
        import kafka

        self._told: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._client = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            enable_idempotence=True,
            linger_ms=2,
            max_in_flight_requests_per_connection=5,
            # It ends for good if its first request, for a producer id, is not answered in this time.
            request_timeout_ms=3 * REQUEST_TIMEOUT_MS,
            delivery_timeout_ms=PATIENCE_SECONDS * 1000,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=200,
            retry_backoff_ms=50,
        )

    def send(self, partition: int, value: bytes, told: Told) -> None:
        future = self._client.send(TOPIC, value, partition=partition)
        future.add_callback(lambda one: self._told.put(lambda: told(None, one.offset)))
        future.add_errback(lambda error: self._told.put(lambda: told(error, -1)))

    def wait(self, seconds: float) -> None:
        try:
            self._told.get(timeout=seconds)()
        except queue.Empty:
            return

    def end(self) -> None:
        self._client.flush(PATIENCE_SECONDS)
        while not self._told.empty():
            self._told.get()()
        self._client.close(5)


class AioKafka:
    """aiokafka: one request in flight for each partition, by its own rule."""

    def __init__(self, bootstrap: str) -> None:
        import aiokafka

        self._loop = asyncio.new_event_loop()
        self._pending: set[asyncio.Future[Any]] = set()

        async def start() -> Any:
            client = aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                enable_idempotence=True,
                linger_ms=2,
                # Also how long a batch may wait for its partition to have a leader.
                request_timeout_ms=PATIENCE_SECONDS * 1000 // 3,
                retry_backoff_ms=50,
            )
            await client.start()
            return client

        self._client = self._loop.run_until_complete(start())

    def send(self, partition: int, value: bytes, told: Told) -> None:
        future = self._loop.run_until_complete(self._client.send(TOPIC, value, partition=partition))
        self._pending.add(future)

        def done(one: Any) -> None:
            self._pending.discard(one)
            error = one.exception()
            told(error, -1 if error is not None else one.result().offset)

        future.add_done_callback(done)

    def wait(self, seconds: float) -> None:
        self._loop.run_until_complete(asyncio.sleep(seconds))

    def end(self) -> None:
        async def finish() -> None:
            if self._pending:
                await asyncio.wait(self._pending, timeout=PATIENCE_SECONDS)
            await self._client.stop()

        self._loop.run_until_complete(finish())
        self._loop.close()


def _java(bootstrap: str) -> Producer:
    from tests.brokers.java import JavaProducer

    return JavaProducer(bootstrap)


PRODUCERS: dict[str, Callable[[str], Producer]] = {
    "librdkafka": Librdkafka,
    "kafka-python": KafkaPython,
    "aiokafka": AioKafka,
    "java": _java,
}


class _Acknowledged:
    """Turns what a client is told into a history."""

    def __init__(self) -> None:
        self.pending = 0
        self.failures: list[str] = []

    def told(
        self, operation: Operation, key: str, value: str, error: BaseException | None, offset: int | None
    ) -> None:
        self.pending -= 1
        if error is not None:
            self.failures.append(f"{value}: {type(error).__name__}: {error}")
            operation.info(error)
        else:
            operation.ok({key: ([value], None if offset is None else [offset])})


def main(client: str, bootstrap: str, name: str, path: str) -> None:
    """Produce until SIGTERM; what is given up is a failure, since nothing has to be."""
    ending, pace, state = Ending(), Pace(RECORDS_PER_SECOND), _Acknowledged()
    producer = PRODUCERS[client](bootstrap)
    number = 0
    with HistoryWriter(path, name) as history:
        while not ending.now and not state.failures:
            left = pace.left_seconds()
            if left > 0 or state.pending >= MOST_PENDING:
                producer.wait(max(left, 0.001))
                continue
            partition, sequence = number % PARTITIONS, number // PARTITIONS
            key, value = key_of(partition), f"{TOPIC}/{name}/{partition}/{sequence}"
            operation = history.send({key: [value]})
            state.pending += 1
            producer.send(partition, value.encode(), partial(state.told, operation, key, value))
            number += 1
        producer.end()
    if state.failures or state.pending:
        sys.exit(
            f"{state.pending} of {number} without an answer, {len(state.failures)}: {state.failures[:3]}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
