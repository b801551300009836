"""Where transactions meet a bound: epochs that run out, and a root that takes no more of them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest

from sparklog.client import SparkLog
from sparklog.log.config import TRANSACTION_VERSION_KEY
from sparklog.metadata import LAST_PRODUCER_EPOCH
from sparklog.metadata.model import staging, transactions
from sparklog.metadata.model.transaction_values import (
    PARTITION_WEIGHT,
    STAGED_EXTENT_WEIGHT,
    STAGED_PARTITION_WEIGHT,
    TOPIC_WEIGHT,
)
from tests.compat.clients import CLIENTS, ProduceOptions
from tests.compat.clients.confluent import Confluent
from tests.compat.clients.transactional import transactional
from tests.peers.transacting import Producer, state, values
from tests.support.broker_process import BrokerProcess
from tests.support.epochs import use_up_epochs
from tests.support.running_broker import RunningBroker

LIBRDKAFKA = next(one for one in CLIENTS if one.name == "confluent")
# Of one partition.
_OF_TWO_BATCHES = TOPIC_WEIGHT + PARTITION_WEIGHT + STAGED_PARTITION_WEIGHT + 2 * STAGED_EXTENT_WEIGHT
GIVES_UP_MS = 10_000  # and no sooner: what is sent before must be through by then


@pytest.fixture
def bounded(tmp_path: Path) -> Iterator[RunningBroker]:
    """In this process, so that its bounds can be lower."""
    broker = RunningBroker(str(tmp_path / "log"))
    try:
        yield broker
    finally:
        broker.stop()


# --- epochs ------------------------------------------------------------------------------------------


def test_a_producer_whose_epochs_are_used_up_is_another_one(
    start: Callable[..., tuple[Producer, str]], log: SparkLog, new_topic: Callable[..., str], protocol: int
) -> None:
    """With the second protocol each transaction takes one: in the midst of a producer's life."""
    topic = new_topic()
    old, name = start()
    old.tell("begin")
    old.tell("send", topic, 0, "old")
    first = state(log, name).producer_id
    use_up_epochs(log, name, LAST_PRODUCER_EPOCH - 1)
    seen = []
    producer, _ = start(name)
    for number in range(3):
        producer.tell("begin")
        producer.tell("send", topic, 0, number)
        producer.tell("commit")
        one = state(log, name)
        seen.append((one.producer_id == first, one.producer_epoch))
        if protocol == 1 and number == 0:
            producer, _ = start(name)
    if protocol == 2 and seen[0][0]:  # franz-go may begin with the first protocol
        assert seen == [(True, LAST_PRODUCER_EPOCH), (False, 1), (False, 2)]
    elif protocol == 2:
        assert seen == [(False, 0), (False, 1), (False, 2)]
    else:
        assert seen == [(True, LAST_PRODUCER_EPOCH), (False, 0), (False, 0)]
    went_well, text = old.ask("commit")
    assert not went_well, text
    assert values(log, topic) == ["0", "1", "2"]
    assert state(log, name).producer_id != first


def test_and_likewise_by_librdkafka(
    server: BrokerProcess, log: SparkLog, new_topic: Callable[..., str]
) -> None:
    topic, name = new_topic(), "librdkafka-epochs"
    with transactional(LIBRDKAFKA, server.bootstrap, name) as old:
        old.begin()
        old.send(topic, [b"old"])
        first = state(log, name).producer_id
        use_up_epochs(log, name, LAST_PRODUCER_EPOCH - 1)
        seen = []
        for number in range(2):
            with transactional(LIBRDKAFKA, server.bootstrap, name) as producer:
                producer.begin()
                producer.send(topic, [b"%d" % number])
                producer.commit()
            one = state(log, name)
            seen.append((one.producer_id == first, one.producer_epoch))
        assert seen == [(True, LAST_PRODUCER_EPOCH), (False, 0)]
        with pytest.raises(confluent_kafka.KafkaException, match=r"(?i)mapping|not currently assigned"):
            old.commit()  # whose producer id is nobody's any more
    assert values(log, topic) == ["0", "1"]


# --- room --------------------------------------------------------------------------------------------


def test_what_a_root_has_no_room_for_can_be_aborted_by_librdkafka(
    bounded: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sent again, for there may be room soon, until it has taken too long."""
    log = bounded.beside()
    log.create_topic("t", 1)
    settings = {"delivery.timeout.ms": GIVES_UP_MS}
    with transactional(LIBRDKAFKA, bounded.bootstrap, "app", settings) as producer:
        monkeypatch.setattr(staging, "MAX_ROOT_WEIGHT", _OF_TWO_BATCHES)
        producer.begin()
        for value in (b"a", b"b"):
            producer.send("t", [value])
        with pytest.raises(confluent_kafka.KafkaException, match="timed out"):
            producer.send("t", [b"beyond"])
        producer.abort()
        assert values(log, "t") == []
        producer.begin()
        producer.send("t", [b"fits"])
        producer.commit()
    assert values(log, "t") == ["fits"]


@pytest.mark.parametrize("protocol_of_root", [1, 2])
def test_and_by_java(
    java_program: list[str], bounded: RunningBroker, monkeypatch: pytest.MonkeyPatch, protocol_of_root: int
) -> None:
    log = bounded.beside()
    log.create_topic("t", 1)
    log.alter_root({TRANSACTION_VERSION_KEY: str(protocol_of_root)})
    settings = (f"delivery.timeout.ms={GIVES_UP_MS}", "request.timeout.ms=5000")
    with Producer(java_program, bounded.bootstrap, "app", 60_000, *settings) as producer:
        monkeypatch.setattr(staging, "MAX_ROOT_WEIGHT", _OF_TWO_BATCHES)
        producer.tell("begin")
        for value in ("a", "b"):
            producer.tell("send", "t", 0, value)
        went_well, text = producer.ask("send", "t", 0, "beyond")
        assert not went_well
        assert "TimeoutException" in text
        went_well, text = producer.ask("commit")  # not all was delivered
        assert not went_well
        producer.tell("abort")
        assert values(log, "t") == []
        producer.tell("begin")
        producer.tell("send", "t", 0, "fits")
        producer.tell("commit")
    assert values(log, "t") == ["fits"]


def test_an_id_that_a_root_has_no_room_for_is_refused(
    java_program: list[str], bounded: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka asks again until it has taken too long, Java ends: both tell people why."""
    log = bounded.beside()
    log.create_topic("t", 1)
    with transactional(LIBRDKAFKA, bounded.bootstrap, "one") as producer:
        monkeypatch.setattr(transactions, "MAX_TRANSACTIONAL_IDS", 1)
        other = Confluent().producer(bounded.bootstrap, ProduceOptions(transactional_id="two"))
        with pytest.raises(confluent_kafka.KafkaException, match=r"(?i)policy"):
            other.init_transactions(2)
        with pytest.raises(AssertionError, match=r"(?i)policy"):
            Producer(java_program, bounded.bootstrap, "three")
        producer.begin()
        producer.send("t", [b"of the one that was there"])
        producer.commit()
    assert list(log.refresh(force=True).transactions) == ["one"]
    assert values(log, "t") == ["of the one that was there"]
