"""aiokafka."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import aiokafka

from tests.compat.clients.face import (
    DEADLINE_SECONDS,
    DEFAULTS,
    AtTime,
    ProduceOptions,
    Seen,
    Sent,
    Start,
    later,
    seek,
    seen_in_record,
)

T = TypeVar("T")


class AioKafka:
    """aiokafka, in an event loop per call."""

    name = "aiokafka"
    cannot = frozenset({"records without key and value"})

    def run(self, work: Awaitable[T]) -> T:
        async def main() -> T:
            async with asyncio.timeout(2 * DEADLINE_SECONDS):
                return await work

        return asyncio.run(main())

    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Sent],
        options: ProduceOptions = DEFAULTS,
    ) -> list[tuple[int, int]]:
        return self.run(self._produce(bootstrap, topic, records, options))

    async def _produce(
        self, bootstrap: str, topic: str, records: Sequence[Sent], options: ProduceOptions
    ) -> list[tuple[int, int]]:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            acks="all" if options.acks == -1 else options.acks,
            compression_type=None if options.compression == "none" else options.compression,
            enable_idempotence=options.idempotent and options.acks == -1,
            linger_ms=options.linger_ms,
            max_request_size=options.max_request_bytes,
            transactional_id=options.transactional_id,
            **options.extra,
        )
        try:
            await producer.start()
            futures = [
                await producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            done = await asyncio.gather(*futures)
            return [(-1, -1) if one is None else (one.partition, one.offset) for one in done]
        finally:
            await producer.stop()

    def consumer(self, bootstrap: str, **settings: Any) -> aiokafka.AIOKafkaConsumer:
        return aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            **{
                "enable_auto_commit": False,
                "auto_offset_reset": "none",
                "fetch_max_wait_ms": 100,
                "retry_backoff_ms": 50,
                **settings,
            },
        )

    async def _with_consumer(self, bootstrap: str, work: Callable[[Any], Awaitable[T]], **settings: Any) -> T:
        consumer = self.consumer(bootstrap, **settings)
        try:
            await consumer.start()
            return await work(consumer)
        finally:
            await consumer.stop()

    def consume(
        self, bootstrap: str, topic: str, partition: int, start: Start, count: int, **settings: Any
    ) -> list[Seen]:
        if isinstance(start, AtTime):
            found = self.offset_for_time(bootstrap, topic, partition, start.timestamp_ms)
            assert found is not None
            start = found
        offset = start

        async def work(consumer: Any) -> list[Seen]:
            tp = aiokafka.TopicPartition(topic, partition)
            consumer.assign([tp])
            for step in seek(consumer, tp, offset):
                await step
            return await self._take(consumer, count)

        return self.run(self._with_consumer(bootstrap, work, **settings))

    @staticmethod
    async def _take(consumer: Any, count: int) -> list[Seen]:
        seen: list[Seen] = []
        end = later()
        while len(seen) < count:
            assert time.monotonic() < end, f"{len(seen)} of {count} records"
            polled = await consumer.getmany(timeout_ms=200, max_records=count - len(seen))
            seen += map(seen_in_record, itertools.chain.from_iterable(polled.values()))
        return seen

    def consume_group(self, bootstrap: str, topic: str, group: str, count: int) -> list[Seen]:
        async def work(consumer: Any) -> list[Seen]:
            consumer.subscribe([topic])
            seen = await self._take(consumer, count)
            await consumer.commit()
            return seen

        settings = {"group_id": group, "auto_offset_reset": "earliest"}
        return self.run(self._with_consumer(bootstrap, work, **settings))

    def committed(self, bootstrap: str, topic: str, group: str, partition: int) -> int | None:
        async def work(consumer: Any) -> int | None:
            found: int | None = await consumer.committed(aiokafka.TopicPartition(topic, partition))
            return found

        return self.run(self._with_consumer(bootstrap, work, group_id=group))

    def offset_for_time(self, bootstrap: str, topic: str, partition: int, timestamp_ms: int) -> int | None:
        async def work(consumer: Any) -> int | None:
            tp = aiokafka.TopicPartition(topic, partition)
            found = (await consumer.offsets_for_times({tp: timestamp_ms}))[tp]
            return found.offset if found is not None else None

        return self.run(self._with_consumer(bootstrap, work))

    def watermarks(self, bootstrap: str, topic: str, partition: int) -> tuple[int, int]:
        async def work(consumer: Any) -> tuple[int, int]:
            tp = aiokafka.TopicPartition(topic, partition)
            low, high = await consumer.beginning_offsets([tp]), await consumer.end_offsets([tp])
            return low[tp], high[tp]

        return self.run(self._with_consumer(bootstrap, work))
