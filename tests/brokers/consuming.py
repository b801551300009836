"""Members of consumer groups, who commit what they have seen: a worker (working.py), NAME is GROUP.NUMBER."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from tests.brokers.working import REQUEST_TIMEOUT_MS, TOPIC, Ending, Pace, group_of, key_of
from tests.history.recorder import HistoryWriter

POLL_SECONDS = 0.1
COMMITS_PER_SECOND = 5
DEBUG = os.environ.get(
    "SPARKLOG_RD_DEBUG", ""
)  # "cgrp,topic,fetch": why librdkafka does not get on, on stderr
# What kafka-python goes through is on stderr; with this all that it does, which makes it slow.
KP_LEVEL = logging.DEBUG if "SPARKLOG_KP_DEBUG" in os.environ else logging.INFO
Records = Mapping[int, tuple[Sequence[bytes], Sequence[int]]]  # partition -> values, offsets


class Assignment:
    """What a client said of the partitions of its member since somebody looked."""

    def __init__(self) -> None:
        self.has_changed = False
        self.given: set[int] = set()

    def change(self, given: Iterable[int] = ()) -> None:
        self.has_changed = True
        self.given.update(given)

    def taken(self) -> list[int]:
        """Look: what was given, and nothing has changed since."""
        given, self.given, self.has_changed = sorted(self.given), set(), False
        return given


class Consumer(Protocol):
    """What each client is made to look like."""

    assignment: Assignment

    def poll(self) -> Records: ...

    def commit(self, positions: Mapping[int, int]) -> None:
        """Raises: errors of the client, which leave it open whether it was done."""

    def committed(self, partition: int) -> int | None:
        """Raises: errors of the client."""

    def end(self) -> None: ...


class Librdkafka:
    """confluent-kafka. One record a poll: callbacks come before what was fetched after them."""

    def __init__(self, bootstrap: str, group: str) -> None:
        import confluent_kafka

        self._kafka = confluent_kafka
        self.assignment = Assignment()
        self._client = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 500,
                "socket.timeout.ms": REQUEST_TIMEOUT_MS,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "fetch.wait.max.ms": 100,
                "log_level": 7 if DEBUG else 0,
                **({"debug": DEBUG} if DEBUG else {}),
            }
        )
        self._client.subscribe([TOPIC], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def _on_assign(self, _: Any, partitions: Any) -> None:
        self.assignment.change(one.partition for one in partitions)

    def _on_revoke(self, _: Any, partitions: Any) -> None:
        self.assignment.change()

    def poll(self) -> Records:
        message = self._client.poll(POLL_SECONDS)
        if message is None or message.error() is not None:
            return {}
        value, offset, partition = message.value(), message.offset(), message.partition()
        assert partition is not None
        assert offset is not None
        return {partition: ([value or b""], [offset])}

    def commit(self, positions: Mapping[int, int]) -> None:
        places = [self._kafka.TopicPartition(TOPIC, one, offset) for one, offset in positions.items()]
        for place in self._client.commit(offsets=places, asynchronous=False) or ():
            if place.error is not None:
                raise self._kafka.KafkaException(place.error)

    def committed(self, partition: int) -> int | None:
        (found,) = self._client.committed([self._kafka.TopicPartition(TOPIC, partition)], timeout=5)
        if found.error is not None:
            raise self._kafka.KafkaException(found.error)
        return found.offset if found.offset >= 0 else None

    def end(self) -> None:
        self._client.close()


class KafkaPython:
    """kafka-python."""

    def __init__(self, bootstrap: str, group: str) -> None:
        import kafka

        from tests.compat.clients.kafka_python import subscribe

        logging.basicConfig(level=KP_LEVEL, format="%(asctime)s %(name)s %(message)s")
        self._kafka = kafka
        self.assignment = Assignment()
        self._client = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=500,
            request_timeout_ms=2 * REQUEST_TIMEOUT_MS + 6_000,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=200,
            fetch_max_wait_ms=100,
            retry_backoff_ms=50,
        )
        assignment = self.assignment

        class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: Any) -> None:
                assignment.change()

            def on_partitions_assigned(self, given: Any) -> None:
                assignment.change(one.partition for one in given)

        subscribe(self._client, TOPIC, Listener())

    def poll(self) -> Records:
        try:
            polled = self._client.poll(timeout_ms=int(POLL_SECONDS * 1000))
        except self._kafka.errors.KafkaConnectionError:  # told, not hidden, while there is no broker
            return {}
        return {
            place.partition: ([one.value for one in found], [one.offset for one in found])
            for place, found in polled.items()
        }

    def commit(self, positions: Mapping[int, int]) -> None:
        meta = self._kafka.OffsetAndMetadata
        self._client.commit(
            {self._kafka.TopicPartition(TOPIC, one): meta(at, "", -1) for one, at in positions.items()}
        )

    def committed(self, partition: int) -> int | None:
        found: int | None = self._client.committed(self._kafka.TopicPartition(TOPIC, partition))
        return found

    def end(self) -> None:
        self._client.close(autocommit=False)


class AioKafka:
    """aiokafka."""

    def __init__(self, bootstrap: str, group: str) -> None:
        import aiokafka

        self._kafka = aiokafka
        self.assignment = Assignment()
        self._loop = asyncio.new_event_loop()
        assignment = self.assignment

        class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
            async def on_partitions_revoked(self, revoked: Any) -> None:
                assignment.change()

            async def on_partitions_assigned(self, given: Any) -> None:
                assignment.change(one.partition for one in given)

        async def start() -> Any:
            client = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                session_timeout_ms=6_000,
                heartbeat_interval_ms=500,
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                fetch_max_wait_ms=100,
                retry_backoff_ms=50,
                metadata_max_age_ms=1_000,  # docs/kafka-clients.md
            )
            client.subscribe([TOPIC], listener=Listener())
            await client.start()
            return client

        self._client = self._loop.run_until_complete(start())

    def poll(self) -> Records:
        polled = self._loop.run_until_complete(self._client.getmany(timeout_ms=int(POLL_SECONDS * 1000)))
        return {
            place.partition: ([one.value for one in found], [one.offset for one in found])
            for place, found in polled.items()
        }

    def commit(self, positions: Mapping[int, int]) -> None:
        places = {self._kafka.TopicPartition(TOPIC, one): at for one, at in positions.items()}
        self._loop.run_until_complete(self._client.commit(places))

    def committed(self, partition: int) -> int | None:
        place = self._kafka.TopicPartition(TOPIC, partition)
        found: int | None = self._loop.run_until_complete(asyncio.wait_for(self._client.committed(place), 10))
        return found

    def end(self) -> None:
        self._loop.run_until_complete(self._client.stop())
        self._loop.close()


def _java(bootstrap: str, group: str) -> Consumer:
    from tests.brokers.java import JavaConsumer

    return JavaConsumer(bootstrap, group)


CONSUMERS: dict[str, Callable[[str, str], Consumer]] = {
    "librdkafka": Librdkafka,
    "kafka-python": KafkaPython,
    "aiokafka": AioKafka,
    "java": _java,
}


class Member:
    """Polls, commits and looks up what is committed, and writes that down."""

    def __init__(self, consumer: Consumer, group: str, history: HistoryWriter) -> None:
        self._consumer, self._group, self._history = consumer, group, history
        self._positions: dict[int, int] = {}  # what was seen, and is not committed

    def poll(self) -> None:
        polling = self._history.poll()
        found = self._consumer.poll()
        if self._consumer.assignment.has_changed:
            self._begin_anew()
        if found:
            polling.ok(
                {
                    key_of(one): ([value.decode() for value in values], offsets)
                    for one, (values, offsets) in found.items()
                }
            )
        self._positions.update({one: offsets[-1] + 1 for one, (_, offsets) in found.items()})

    def _begin_anew(self) -> None:
        """It was assigned partitions: it reads on from where the group is, and nothing else is its own."""
        assigned = self._consumer.assignment.taken()
        self._positions.clear()
        self._history.seek()
        for one in assigned:
            fetching = self._history.begin("fetch-committed", group=self._group, key=key_of(one))
            try:
                offset = self._consumer.committed(one)
            except Exception as error:  # each client has its own; without an answer there is nothing to judge
                print(f"committed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                return
            fetching.ok(offset=offset)

    def commit(self) -> None:
        """All that was seen since the last one, as far as it is this member's still."""
        if self._consumer.assignment.has_changed:
            self._begin_anew()
        positions, self._positions = self._positions, {}
        if not positions:
            return
        committing = [
            self._history.commit(self._group, key_of(one), offset) for one, offset in positions.items()
        ]
        try:
            self._consumer.commit(positions)
        except Exception as error:  # another member has them now, or nobody answered: open either way
            print(f"commit: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            for one in committing:
                one.info(error)
            self._positions = {**positions, **self._positions}
            return
        for one in committing:
            one.ok()


def main(client: str, bootstrap: str, name: str, path: str) -> None:
    """Consume until SIGTERM."""
    ending, pace, group = Ending(), Pace(COMMITS_PER_SECOND), group_of(name)
    consumer = CONSUMERS[client](bootstrap, group)
    with HistoryWriter(path, name) as history:
        member = Member(consumer, group, history)
        while not ending.now:
            member.poll()
            if not pace.left_seconds():
                member.commit()
        member.commit()
        consumer.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
