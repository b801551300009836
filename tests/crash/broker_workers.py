"""Clients of a broker that is being killed, each a process of its own; run by test_broker_kill.py.

    broker_workers.py produce BOOTSTRAP TOPIC NAME FILE    idempotent; a line per acknowledged record
    broker_workers.py consume BOOTSTRAP TOPIC GROUP FILE   as a member of a group; a line per record seen
    broker_workers.py append  ROOT      TOPIC NAME FILE    no broker: `sparklog` itself; a line per append

Each works until SIGTERM, then finishes what it has begun. Values are NAME/PARTITION/SEQUENCE: the sequence
counts per partition, from 0, without gaps. Append starts from the version that the root has.
"""

import signal
import sys
from pathlib import Path
from typing import Any

PARTITIONS = 3
IN_FLIGHT = 300
ROWS_EACH = 30
PATIENCE_S = 120


class Ending:
    """Set by SIGTERM."""

    def __init__(self) -> None:
        self.now = False
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, *_: object) -> None:
        self.now = True


def produce(bootstrap: str, topic: str, name: str, path: str) -> None:
    """An idempotent producer; every record that it ever produced is acknowledged when it ends."""
    from confluent_kafka import Producer

    ending = Ending()
    failures: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 2,
            "batch.num.messages": 20,
            "compression.type": "lz4",
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 20,
            "message.timeout.ms": PATIENCE_S * 1000,
            "log_level": 0,
        }
    )
    with Path(path).open("w", encoding="ascii") as file:

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                failures.append(str(error))
            else:
                file.write(f"{message.partition()} {message.offset()} {message.value().decode()}\n")

        number = 0
        while not ending.now and not failures:
            partition, sequence = number % PARTITIONS, number // PARTITIONS
            value = f"{name}/{partition}/{sequence}"
            producer.produce(topic, value.encode(), partition=partition, on_delivery=delivered)
            number += 1
            producer.poll(0)
            while len(producer) >= IN_FLIGHT and not failures:
                producer.poll(0.05)
                file.flush()
        left = producer.flush(PATIENCE_S)
    if failures or left:
        sys.exit(f"{left} left, {failures[:3]}")
    print(number, flush=True)


def consume(bootstrap: str, topic: str, group: str, path: str) -> None:
    """A member of a group, which commits what it has written down."""
    from confluent_kafka import Consumer, KafkaException

    ending = Ending()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 2000,
            "heartbeat.interval.ms": 500,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    with Path(path).open("w", encoding="ascii") as file:
        while not ending.now:
            messages = [one for one in consumer.consume(500, 0.1) if one.error() is None]
            file.writelines(
                f"{one.partition()} {one.offset()} {(one.value() or b'').decode()}\n" for one in messages
            )
            file.flush()
            if messages:
                try:
                    consumer.commit(asynchronous=False)
                except KafkaException as error:  # the broker is down, or another member has the partition now
                    print(error.args[0].name(), flush=True)
    consumer.close()


def append(root: str, topic: str, name: str, path: str) -> None:
    """A writer without a broker, exactly once by its versions."""
    import pyarrow as pa

    import sparklog

    ending = Ending()
    log = sparklog.open(root, create=False)
    known = log.refresh().topic(topic).writer_txns.get(name)
    version = 0 if known is None else known.version + 1
    with Path(path).open("w", encoding="ascii") as file:
        while not ending.now:
            partition = version % PARTITIONS
            first = version // PARTITIONS * ROWS_EACH
            values = [f"{name}/{partition}/{first + row}" for row in range(ROWS_EACH)]
            log.append(topic, pa.table({"value": values}), partition=partition, txn=(name, version))
            file.write(f"{version}\n")
            file.flush()
            version += 1
    log.close()


if __name__ == "__main__":
    {"produce": produce, "consume": consume, "append": append}[sys.argv[1]](*sys.argv[2:])
