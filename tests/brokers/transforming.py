"""Members of a group that write what they read into another topic, exactly once: a worker (working.py).

NAME is GROUP.NUMBER, or GROUP.NUMBER@LIFE. Each transaction has the records of one poll, in the partition
that each was read from, and the group's offsets. What cannot be committed is aborted, and read again from
where the group stands. So the other topic has the same records in the same order, whoever dies.
"""

import contextlib
import sys
from typing import Any

from tests.brokers.working import (
    PATIENCE_SECONDS,
    REQUEST_TIMEOUT_MS,
    STEP_SECONDS,
    TOPIC,
    Ending,
    initialise,
    within,
)
from tests.history.recorder import HistoryWriter

OUT = "out"
MOST_RECORDS = 100


class Member:
    """confluent-kafka: a consumer and a producer, whose transactions carry the consumer's positions."""

    def __init__(self, bootstrap: str, name: str) -> None:
        import confluent_kafka

        self._kafka = confluent_kafka
        common = {
            "bootstrap.servers": bootstrap,
            "socket.timeout.ms": REQUEST_TIMEOUT_MS,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 20,
            "log_level": 0,
        }
        self._consumer = confluent_kafka.Consumer(
            {
                **common,
                "group.id": name.partition(".")[0],
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 500,
                "fetch.wait.max.ms": 100,
            }
        )
        self._producer = confluent_kafka.Producer(
            {
                **common,
                "transactional.id": name.partition("@")[0],
                "transaction.timeout.ms": PATIENCE_SECONDS * 1000,
                "message.timeout.ms": PATIENCE_SECONDS * 1000,
                "linger.ms": 1,
            }
        )
        initialise(self._producer)
        self._consumer.subscribe([TOPIC])

    def step(self) -> int:
        """One transaction, if there is anything to read; how many records it had.

        Raises: KafkaException, begin anew.
        """
        records: list[Any] = [one for one in self._consumer.consume(MOST_RECORDS, 0.1) if one.error() is None]
        if not records:
            return 0
        self._producer.begin_transaction()
        try:
            for one in records:
                self._producer.produce(OUT, one.value(), partition=one.partition())
            ends: dict[int, int] = {}
            for one in records:
                ends[one.partition()] = one.offset() + 1
            positions = [self._kafka.TopicPartition(TOPIC, *end) for end in ends.items()]
            self._retried(
                self._producer.send_offsets_to_transaction,
                positions,
                self._consumer.consumer_group_metadata(),
            )
            self._retried(self._producer.commit_transaction)
        except self._kafka.KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._retried(self._producer.abort_transaction)
            self._read_again()
            return 0
        return len(records)

    def _retried(self, step: Any, *arguments: Any) -> None:
        while True:
            try:
                within(STEP_SECONDS + 5, lambda: step(*arguments, STEP_SECONDS))
            except self._kafka.KafkaException as error:
                if not error.args[0].retriable() or error.args[0].code() == self._kafka.KafkaError._TIMED_OUT:
                    raise
            else:
                return

    def _read_again(self) -> None:
        """From what the group has committed."""
        assigned = self._consumer.assignment()
        for one in self._consumer.committed(assigned, STEP_SECONDS) if assigned else ():
            if one.offset < 0:
                one.offset = self._kafka.OFFSET_BEGINNING
            self._consumer.seek(one)

    def end(self) -> None:
        with contextlib.suppress(Exception):
            self._producer.purge()
            self._producer.flush(1)
        with contextlib.suppress(Exception):
            self._consumer.close()


def main(_client: str, bootstrap: str, name: str, path: str) -> None:
    """Transform until SIGTERM."""
    ending = Ending()
    member: Member | None = None
    with HistoryWriter(path, name) as history:
        while not ending.now:
            try:
                if member is None:
                    member = Member(bootstrap, name)
                count = member.step()
            except Exception as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                if member is not None:
                    member.end()
                member = None
                continue
            if count:
                history.begin("transformed").ok(count=count)
        if member is not None:
            member.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
