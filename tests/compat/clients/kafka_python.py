"""kafka-python."""

import itertools
import socket
import time
import warnings
from collections.abc import Sequence
from typing import Any

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

with warnings.catch_warnings():  # it reads its schemas with a function that Python deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka.net import inet


class _ClosedSocket(socket.socket):
    """kafka-python leaves the sockets of failed connections to the garbage collector, which would complain of
    them in whatever test runs by then; they are closed before that.
    """

    def __del__(self) -> None:
        self.close()


def _new_socket(_self: object, family: int, kind: int, protocol: int) -> socket.socket:
    return _ClosedSocket(family, kind, protocol)


inet.KafkaNetSocket.socket = _new_socket


def subscribe(
    consumer: kafka.KafkaConsumer, topic: str, listener: kafka.ConsumerRebalanceListener | None = None
) -> None:
    """Subscribe, and wait until the client has looked at the topic because of it.

    Else its JoinGroup may be answered before that Metadata. Then it assigns nothing and joins again, for the
    one reason that what it assigned from is stale; that reason is gone as soon as it assigns anew, before
    SyncGroup is answered. Should a poll end in between, nobody ever takes what SyncGroup answers: no
    partitions, no heartbeats, no error, forever (kafka-python 3.0.12, ConsumerCoordinator.need_rejoin).
    """
    consumer.subscribe([topic], listener=listener)
    consumer.topics()


class KafkaPython:
    """kafka-python 3."""

    name = "kafka-python"
    cannot = frozenset({"null header values", "records without key and value"})

    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Sent],
        options: ProduceOptions = DEFAULTS,
    ) -> list[tuple[int, int]]:
        more: dict[str, Any] = {}
        if options.transactional_id is not None:
            more["transactional_id"] = options.transactional_id
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            acks="all" if options.acks == -1 else options.acks,
            compression_type=None if options.compression == "none" else options.compression,
            enable_idempotence=options.idempotent and options.acks == -1,
            linger_ms=options.linger_ms,
            max_request_size=options.max_request_bytes,
            **more,
            **options.extra,
        )
        try:
            if options.transactional_id is not None:
                producer.init_transactions()
            futures = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            producer.flush(DEADLINE_SECONDS)
            done = [future.get(DEADLINE_SECONDS) for future in futures]
            return [(one.partition, one.offset) for one in done]
        finally:
            producer.close(timeout=5)

    def consumer(self, bootstrap: str, **settings: Any) -> kafka.KafkaConsumer:
        return kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            **{
                "enable_auto_commit": False,
                "auto_offset_reset": "none",
                "fetch_max_wait_ms": 100,
                "retry_backoff_ms": 50,
                **settings,
            },
        )

    def consume(
        self, bootstrap: str, topic: str, partition: int, start: Start, count: int, **settings: Any
    ) -> list[Seen]:
        if isinstance(start, AtTime):
            found = self.offset_for_time(bootstrap, topic, partition, start.timestamp_ms)
            assert found is not None
            start = found
        consumer = self.consumer(bootstrap, **settings)
        try:
            tp = kafka.TopicPartition(topic, partition)
            consumer.assign([tp])
            for _ in seek(consumer, tp, start):
                pass
            return self._take(consumer, count)
        finally:
            consumer.close()

    @staticmethod
    def _take(consumer: Any, count: int) -> list[Seen]:
        seen: list[Seen] = []
        end = later()
        while len(seen) < count:
            assert time.monotonic() < end, f"{len(seen)} of {count} records"
            polled = consumer.poll(timeout_ms=200, max_records=count - len(seen))
            seen += map(seen_in_record, itertools.chain.from_iterable(polled.values()))
        return seen

    def consume_group(self, bootstrap: str, topic: str, group: str, count: int) -> list[Seen]:
        consumer = self.consumer(bootstrap, group_id=group, auto_offset_reset="earliest")
        try:
            subscribe(consumer, topic)
            seen = self._take(consumer, count)
            consumer.commit()
            return seen
        finally:
            consumer.close()

    def committed(self, bootstrap: str, topic: str, group: str, partition: int) -> int | None:
        consumer = self.consumer(bootstrap, group_id=group)
        try:
            found: int | None = consumer.committed(kafka.TopicPartition(topic, partition))
            return found
        finally:
            consumer.close()

    def offset_for_time(self, bootstrap: str, topic: str, partition: int, timestamp_ms: int) -> int | None:
        consumer = self.consumer(bootstrap)
        try:
            tp = kafka.TopicPartition(topic, partition)
            found = consumer.offsets_for_times({tp: timestamp_ms})[tp]
            return found.offset if found is not None else None
        finally:
            consumer.close()

    def watermarks(self, bootstrap: str, topic: str, partition: int) -> tuple[int, int]:
        consumer = self.consumer(bootstrap)
        try:
            tp = kafka.TopicPartition(topic, partition)
            return consumer.beginning_offsets([tp])[tp], consumer.end_offsets([tp])[tp]
        finally:
            consumer.close()
