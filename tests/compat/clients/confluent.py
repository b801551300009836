"""confluent-kafka."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import confluent_kafka

from tests.compat.clients.face import (
    DEADLINE_SECONDS,
    DEFAULTS,
    AtTime,
    ProduceOptions,
    Seen,
    Sent,
    Start,
    later,
)


class Confluent:
    """confluent-kafka, which is librdkafka."""

    name = "confluent"
    cannot: frozenset[str] = frozenset()

    def settings(self, bootstrap: str, **more: Any) -> dict[str, Any]:
        return {"bootstrap.servers": bootstrap, "log_level": 3, **more}

    def producer(self, bootstrap: str, options: ProduceOptions) -> confluent_kafka.Producer:
        more: dict[str, Any] = {} if options.acks == -1 else {"acks": options.acks}
        if options.transactional_id is not None:
            more["transactional.id"] = options.transactional_id
        return confluent_kafka.Producer(
            self.settings(
                bootstrap,
                **{
                    "compression.type": options.compression,
                    "enable.idempotence": options.idempotent and options.acks == -1,
                    "linger.ms": options.linger_ms,
                    "message.max.bytes": options.max_request_bytes,
                    "sticky.partitioning.linger.ms": 0,
                    "partitioner": "murmur2_random",
                    **more,
                    **options.extra,
                },
            )
        )

    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Sent],
        options: ProduceOptions = DEFAULTS,
    ) -> list[tuple[int, int]]:
        producer = self.producer(bootstrap, options)
        if options.transactional_id is not None:
            producer.init_transactions(DEADLINE_SECONDS)
        placed: list[tuple[int, int]] = [(-1, -1)] * len(records)
        failed: list[Exception] = []

        def report(number: int) -> Callable[[Any, Any], None]:
            def delivered(error: Any, message: Any) -> None:
                if error is not None:
                    failed.append(confluent_kafka.KafkaException(error))
                else:
                    placed[number] = (message.partition(), message.offset())

            return delivered

        for number, record in enumerate(records):
            more: dict[str, Any] = {}
            if record.partition is not None:
                more["partition"] = record.partition
            if record.timestamp_ms is not None:
                more["timestamp"] = record.timestamp_ms
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                on_delivery=report(number),
                **more,
            )
        left = producer.flush(DEADLINE_SECONDS)
        if failed:
            raise failed[0]
        assert left == 0, f"{left} records without an answer"
        return placed

    def consumer(self, bootstrap: str, **settings: Any) -> confluent_kafka.Consumer:
        return confluent_kafka.Consumer(
            self.settings(
                bootstrap,
                **{
                    "group.id": "none",
                    "enable.auto.commit": False,
                    "auto.offset.reset": "error",
                    "fetch.wait.max.ms": 100,
                    "fetch.error.backoff.ms": 50,
                    **settings,
                },
            )
        )

    def consume(
        self, bootstrap: str, topic: str, partition: int, start: Start, count: int, **settings: Any
    ) -> list[Seen]:
        consumer = self.consumer(bootstrap, **settings)
        try:
            if isinstance(start, AtTime):
                offset = self.offset_for_time(bootstrap, topic, partition, start.timestamp_ms)
                assert offset is not None
            elif isinstance(start, str):
                offset = {
                    "earliest": confluent_kafka.OFFSET_BEGINNING,
                    "latest": confluent_kafka.OFFSET_END,
                }[start]
            else:
                offset = start
            consumer.assign([confluent_kafka.TopicPartition(topic, partition, offset)])
            return self._take(consumer, count)
        finally:
            consumer.close()

    @staticmethod
    def _take(consumer: confluent_kafka.Consumer, count: int) -> list[Seen]:
        seen: list[Seen] = []
        end = later()
        while len(seen) < count:
            assert time.monotonic() < end, f"{len(seen)} of {count} records"
            for message in consumer.consume(count - len(seen), 0.2):
                if message.error() is not None:
                    raise confluent_kafka.KafkaException(message.error())
                seen.append(seen_by_confluent(message))
        return seen

    def consume_group(self, bootstrap: str, topic: str, group: str, count: int) -> list[Seen]:
        consumer = self.consumer(bootstrap, **{"group.id": group, "auto.offset.reset": "earliest"})
        try:
            consumer.subscribe([topic])
            seen = self._take(consumer, count)
            consumer.commit(asynchronous=False)
            return seen
        finally:
            consumer.close()

    def committed(self, bootstrap: str, topic: str, group: str, partition: int) -> int | None:
        consumer = self.consumer(bootstrap, **{"group.id": group})
        try:
            (found,) = consumer.committed([confluent_kafka.TopicPartition(topic, partition)], timeout=20)
            return found.offset if found.offset >= 0 else None
        finally:
            consumer.close()

    def offset_for_time(self, bootstrap: str, topic: str, partition: int, timestamp_ms: int) -> int | None:
        consumer = self.consumer(bootstrap)
        try:
            asked = confluent_kafka.TopicPartition(topic, partition, timestamp_ms)
            (found,) = consumer.offsets_for_times([asked], timeout=20)
            assert found.error is None, found.error
            return found.offset if found.offset >= 0 else None
        finally:
            consumer.close()

    def watermarks(self, bootstrap: str, topic: str, partition: int) -> tuple[int, int]:
        consumer = self.consumer(bootstrap)
        try:
            low, high = consumer.get_watermark_offsets(
                confluent_kafka.TopicPartition(topic, partition), timeout=20
            )
            return low, high
        finally:
            consumer.close()


def seen_by_confluent(message: Any) -> Seen:
    return Seen(
        partition=message.partition(),
        offset=message.offset(),
        timestamp_ms=message.timestamp()[1],
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
    )
