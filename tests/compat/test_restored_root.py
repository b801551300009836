"""A root that was put back from a backup, as clients of librdkafka see it that live through that."""

import shutil
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

import sparklog
from sparklog.maintenance import restore
from tests.support.running_broker import RunningBroker


class Sending:
    """An idempotent producer, and what it was told of each record."""

    def __init__(self, broker: str) -> None:
        self._producer = Producer({"bootstrap.servers": broker, "enable.idempotence": True})
        self.told: dict[bytes, KafkaError | None] = {}

    def send(self, text: bytes) -> None:
        def told(error: KafkaError | None, _message: Message) -> None:
            self.told[text] = error

        self._producer.produce("t", text, on_delivery=told)
        assert self._producer.flush(60) == 0


class Restored:
    """A broker over a root; `put_back` puts an older copy in its place, and another broker at its port."""

    def __init__(self, path: Path) -> None:
        self.root, self._backup = path / "root", path / "backup"
        self._broker = RunningBroker(str(self.root), {"node.id": "1"})
        self.port = self._broker.port
        self.address = f"127.0.0.1:{self.port}"

    def back_up(self) -> None:
        self.stop()
        shutil.copytree(self.root, self._backup)
        self._start()

    def put_back(self) -> None:
        self.stop()
        shutil.rmtree(self.root)
        shutil.copytree(self._backup, self.root)
        with sparklog.open(str(self.root), create=False) as log:
            restore(log.metadata, log.clock)
        self._start()

    def values(self) -> list[bytes]:
        with sparklog.open(str(self.root), create=False) as log:
            found: list[bytes] = log.read("t", 0, 0)["value"].to_pylist()
            return found

    def _start(self) -> None:
        self._broker = RunningBroker(
            str(self.root), {"node.id": "1", "listeners": f"PLAINTEXT://127.0.0.1:{self.port}"}
        )

    def stop(self) -> None:
        self._broker.stop()


def test_what_is_acknowledged_after_a_restore_is_in_the_log(tmp_path: Path) -> None:
    served = Restored(tmp_path)
    try:
        with sparklog.open(str(served.root), create=False) as log:
            log.create_topic("t", 1)
        served.back_up()
        lives_on = Sending(served.address)
        lives_on.send(b"lost 0")
        lives_on.send(b"lost 1")
        served.put_back()
        new = Sending(served.address)
        for number in range(4):
            new.send(b"new %d" % number)
        lives_on.send(b"on 2")
        lives_on.send(b"on 3")
        found = served.values()
        assert set(new.told.values()) == {None}
        acknowledged = [text for text, error in {**new.told, **lives_on.told}.items() if error is None]
        assert found == [text for text in acknowledged if not text.startswith(b"lost")]
    finally:
        served.stop()


def test_a_transactional_producer_of_before_is_fenced_and_a_new_one_goes_on(tmp_path: Path) -> None:
    served = Restored(tmp_path)
    conf = {"bootstrap.servers": served.address, "transactional.id": "app"}
    try:
        with sparklog.open(str(served.root), create=False) as log:
            log.create_topic("t", 1)
        older = Producer(conf)
        older.init_transactions(60)
        served.back_up()
        newer = Producer(conf)  # fences the older one, which the backup has as the owner
        newer.init_transactions(60)
        served.put_back()
        for zombie in (older, newer):
            with pytest.raises(KafkaException):
                _commit(zombie, b"zombie")
        again = Producer(conf)
        again.init_transactions(60)
        _commit(again, b"again")
        assert served.values() == [b"again"]
    finally:
        served.stop()


def test_a_consumer_beyond_the_restored_end_notices_it(tmp_path: Path) -> None:
    """Also when the log has as many records again: by the leader epoch of what it has read last."""
    served = Restored(tmp_path)
    consumer = Consumer(
        {"bootstrap.servers": served.address, "group.id": "g", "auto.offset.reset": "earliest"}
        | {"enable.auto.commit": False}
    )
    try:
        with sparklog.open(str(served.root), create=False) as log:
            log.create_topic("t", 1)
        served.back_up()
        producer = Sending(served.address)
        for number in range(3):
            producer.send(b"lost %d" % number)
        consumer.assign([TopicPartition("t", 0, 0)])
        read = [_next(consumer) for _ in range(3)]
        assert read == [b"lost 0", b"lost 1", b"lost 2"]
        served.put_back()
        producer = Sending(served.address)
        for number in range(5):
            producer.send(b"new %d" % number)
        assert [_next(consumer) for _ in range(5)] == [b"new %d" % number for number in range(5)]
    finally:
        consumer.close()
        served.stop()


def _commit(producer: Producer, text: bytes) -> None:
    producer.begin_transaction()
    producer.produce("t", text)
    producer.commit_transaction(60)


def _next(consumer: Consumer) -> bytes | None:
    while True:
        message = consumer.poll(60)
        assert message is not None
        if message.error() is None:
            return message.value()
