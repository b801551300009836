"""Transactional producers of the three clients, behind one face: each call is a step, and waits for it."""

import asyncio
import contextlib
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import aiokafka
import confluent_kafka

from sparklog.closing import Closing
from tests.compat.clients.aio import AioKafka
from tests.compat.clients.confluent import Confluent
from tests.compat.clients.face import DEADLINE_SECONDS, Client, ProduceOptions
from tests.compat.clients.kafka_python import KafkaPython

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

Offsets = Mapping[tuple[str, int], int]


class Transactional(Closing):
    """A producer that is initialised. Each step raises the client's own error."""

    @abstractmethod
    def begin(self) -> None:
        """A transaction, of which the broker hears later."""

    @abstractmethod
    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        """Produce, and wait until all are acknowledged."""

    @abstractmethod
    def send_offsets(self, offsets: Offsets, group: str) -> None:
        """Commit offsets of a group in the transaction, as a consumer that is in none."""

    @abstractmethod
    def commit(self) -> None: ...
    @abstractmethod
    def abort(self) -> None: ...


class _Confluent(Transactional):
    def __init__(self, bootstrap: str, name: str, extra: Mapping[str, Any], timeout_ms: int) -> None:
        more = {"transaction.timeout.ms": timeout_ms, **extra}
        self._producer = Confluent().producer(
            bootstrap, ProduceOptions(transactional_id=name, linger_ms=0, extra=more)
        )
        self._producer.init_transactions(DEADLINE_SECONDS)

    def close(self) -> None:
        self._producer.purge()
        with contextlib.suppress(confluent_kafka.KafkaException):  # it is fenced, and told so again
            self._producer.flush(1)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        failed: list[Any] = []

        def delivered(error: Any, _message: Any) -> None:
            if error is not None:
                failed.append(error)

        for value in values:
            self._producer.produce(topic, value=value, partition=partition, on_delivery=delivered)
        assert self._producer.flush(DEADLINE_SECONDS) == 0
        if failed:
            raise confluent_kafka.KafkaException(failed[0])

    def send_offsets(self, offsets: Offsets, group: str) -> None:
        consumer = Confluent().consumer("unused:1", **{"group.id": group})
        try:
            positions = [confluent_kafka.TopicPartition(*where, offset) for where, offset in offsets.items()]
            metadata = consumer.consumer_group_metadata()
            self._producer.send_offsets_to_transaction(positions, metadata, DEADLINE_SECONDS)
        finally:
            consumer.close()

    def commit(self) -> None:
        self._producer.commit_transaction(DEADLINE_SECONDS)

    def abort(self) -> None:
        self._producer.abort_transaction(DEADLINE_SECONDS)


class _KafkaPython(Transactional):
    def __init__(self, bootstrap: str, name: str, extra: Mapping[str, Any], timeout_ms: int) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=name,
            transaction_timeout_ms=timeout_ms,
            acks="all",
            linger_ms=0,
            **extra,
        )
        self._producer.init_transactions()

    def close(self) -> None:
        self._producer.close(timeout=5)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        futures = [self._producer.send(topic, value=value, partition=partition) for value in values]
        self._producer.flush(DEADLINE_SECONDS)
        for future in futures:
            future.get(DEADLINE_SECONDS)

    def send_offsets(self, offsets: Offsets, group: str) -> None:
        positions = {
            kafka.TopicPartition(*where): kafka.structs.OffsetAndMetadata(offset, "", -1)
            for where, offset in offsets.items()
        }
        self._producer.send_offsets_to_transaction(positions, group)

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()


class _Aio(Transactional):
    def __init__(self, bootstrap: str, name: str, extra: Mapping[str, Any], timeout_ms: int) -> None:
        self._runner = asyncio.Runner()
        self._producer = self._runner.run(self._start(bootstrap, name, extra, timeout_ms))

    @staticmethod
    async def _start(bootstrap: str, name: str, extra: Mapping[str, Any], timeout_ms: int) -> Any:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=name,
            transaction_timeout_ms=timeout_ms,
            linger_ms=0,
            **extra,
        )
        try:
            await producer.start()
        except BaseException:
            await producer.stop()
            raise
        return producer

    def close(self) -> None:
        self._runner.run(self._producer.stop())
        self._runner.close()

    def _do(self, step: Callable[[], Any]) -> None:
        async def work() -> None:
            async with asyncio.timeout(DEADLINE_SECONDS):
                await step()

        self._runner.run(work())

    def begin(self) -> None:
        self._do(lambda: self._producer.begin_transaction())

    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        async def work() -> None:
            sent = [await self._producer.send(topic, value, partition=partition) for value in values]
            await asyncio.gather(*sent)

        self._do(work)

    def send_offsets(self, offsets: Offsets, group: str) -> None:
        positions = {aiokafka.TopicPartition(*where): offset for where, offset in offsets.items()}
        self._do(lambda: self._producer.send_offsets_to_transaction(positions, group))

    def commit(self) -> None:
        self._do(lambda: self._producer.commit_transaction())

    def abort(self) -> None:
        self._do(lambda: self._producer.abort_transaction())


_PRODUCERS: dict[str, type[_Confluent | _KafkaPython | _Aio]] = {
    Confluent.name: _Confluent,
    KafkaPython.name: _KafkaPython,
    AioKafka.name: _Aio,
}


def transactional(
    client: Client,
    bootstrap: str,
    name: str,
    extra: Mapping[str, Any] | None = None,
    *,
    timeout_ms: int = 60_000,
) -> Transactional:
    """A producer of this client, initialised with this transactional id."""
    return _PRODUCERS[client.name](bootstrap, name, extra or {}, timeout_ms)
