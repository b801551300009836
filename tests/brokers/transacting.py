"""Transactional producers: a worker (working.py). NAME is ID or ID@LIFE: a later life of the same process.

Each transaction is one atomic send of the history, over several partitions. One that was aborted is proven
not to be done, one whose end is not known is open: the next life aborts it, or it is there.
"""

import contextlib
import itertools
import random
import sys
from collections.abc import Callable
from typing import Any, Protocol

from tests.brokers.working import (
    PARTITIONS,
    PATIENCE_SECONDS,
    REQUEST_TIMEOUT_MS,
    STEP_SECONDS,
    TOPIC,
    Ending,
    Pace,
    initialise,
    key_of,
)
from tests.history.recorder import HistoryWriter

PER_SECOND = 5
Values = dict[int, list[str]]


class Ended(Exception):
    """It was aborted for certain; anything else that is raised leaves it open."""


class Producer(Protocol):
    """What each client is made to look like."""

    def begin(self) -> None: ...
    def send(self, values: Values) -> None:
        """Until all is acknowledged. Raises Ended after aborting what could not be sent."""

    def commit(self) -> None:
        """Raises Ended likewise."""

    def abort(self) -> None: ...
    def end(self) -> None: ...


class Librdkafka:
    """confluent-kafka."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        import confluent_kafka

        self._kafka = confluent_kafka
        self._client = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "linger.ms": 1,
                "socket.timeout.ms": REQUEST_TIMEOUT_MS,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                "transaction.timeout.ms": PATIENCE_SECONDS * 1000,
                "message.timeout.ms": PATIENCE_SECONDS * 1000,
                "log_level": 0,
            }
        )
        initialise(self._client)

    def begin(self) -> None:
        self._client.begin_transaction()

    def send(self, values: Values) -> None:
        failed: list[Any] = []

        def told(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(error)

        for partition, texts in values.items():
            for text in texts:
                self._client.produce(TOPIC, text.encode(), partition=partition, on_delivery=told)
        left = self._client.flush(STEP_SECONDS)
        if failed or left:
            self.abort()
            raise Ended(str(failed[:1]))

    def commit(self) -> None:
        try:
            self._step(lambda: self._client.commit_transaction(STEP_SECONDS))
        except self._kafka.KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self.abort()
            raise Ended(str(error)) from None

    def abort(self) -> None:
        self._step(lambda: self._client.abort_transaction(STEP_SECONDS))

    def _step(self, step: Callable[[], None]) -> None:
        while True:
            try:
                return step()
            except self._kafka.KafkaException as error:
                if not error.args[0].retriable() or error.args[0].code() == self._kafka.KafkaError._TIMED_OUT:
                    raise

    def end(self) -> None:
        self._client.purge()
        self._client.flush(1)


PRODUCERS: dict[str, Callable[[str, str], Producer]] = {"librdkafka": Librdkafka}


def main(client: str, bootstrap: str, name: str, path: str) -> None:
    """Commit and abort until SIGTERM."""
    ending, pace, dice = Ending(), Pace(PER_SECOND), random.Random(name)
    transactional_id = name.partition("@")[0]
    producer: Producer | None = None
    with HistoryWriter(path, name) as history:
        for number in itertools.count():
            while left := pace.left_seconds():
                ending.sleep(left)
            if ending.now:
                break
            if producer is None:
                producer = PRODUCERS[client](bootstrap, transactional_id)
            values: Values = {}
            for row in range(dice.randrange(1, 30)):
                partition = dice.randrange(PARTITIONS)
                values.setdefault(partition, []).append(f"{TOPIC}/{name}/{number}/{partition}/{row}")
            sending = history.send(
                {key_of(partition): texts for partition, texts in values.items()}, txn=f"{name}/{number}"
            )
            try:
                producer.begin()
                producer.send(values)
                if dice.random() < 0.25:
                    producer.abort()
                    sending.fail("aborted")
                else:
                    producer.commit()
                    sending.ok()
            except Ended as error:
                sending.fail(error)
            except Exception as error:
                sending.info(f"{type(error).__name__}: {error}")
                with contextlib.suppress(Exception):
                    producer.end()
                producer = None
        if producer is not None:
            producer.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
