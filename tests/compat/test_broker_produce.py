"""Real clients produce in every way there is; what arrived is read by `sparklog`, from the segments."""

from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.format.codec import Codec
from tests.compat.clients import CLIENTS, Client, ProduceOptions, Seen, Sent
from tests.compat.embedded import stored_headers, stored_records
from tests.support.broker_process import BrokerProcess, until

START_MS = 1_700_000_000_000
SETTINGS = {"num.partitions": "3"}
CODECS = [codec.label for codec in Codec]
BATCH_OVERHEAD = 61 + 20  # the batch's header, and what one record adds to its value at most
pytestmark = pytest.mark.usefixtures("server")


def records(client: Client, count: int = 20) -> list[Sent]:
    """Records of all shapes that the client can send."""
    made = []
    for n in range(count):
        value = None if n % 5 == 3 else f"value {n} ".encode() * 40
        key = f"key-{n % 4}".encode() if n % 3 or value is None else None
        last = ("last", b"\x00\xff") if "null header values" in client.cannot else ("none", None)
        headers = () if n % 2 else (("name", f"{n}".encode()), ("name", b"again"), ("empty", b""), last)
        made.append(Sent(value=value, key=key, headers=headers, timestamp_ms=START_MS + n * 10, partition=0))
    if "records without key and value" not in client.cannot:
        made.append(Sent(value=None, timestamp_ms=START_MS, partition=0))
    return made


def as_seen(sent: list[Sent]) -> list[Seen]:
    """What must be read back from partition 0."""
    return [
        Seen(
            partition=0,
            offset=offset,
            timestamp_ms=one.timestamp_ms or 0,
            key=one.key,
            value=one.value,
            headers=one.headers,
        )
        for offset, one in enumerate(sent)
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_arrives_compressed_and_whole(
    client: Client, server: BrokerProcess, log: SparkLog, topic: str, codec: str
) -> None:
    sent = records(client)
    placed = client.produce(server.bootstrap, topic, sent, ProduceOptions(compression=codec))
    assert placed == [(0, n) for n in range(len(sent))]
    assert stored_records(log, topic) == as_seen(sent)
    headers = stored_headers(log, topic)
    assert {header.codec.label for header in headers} == {codec}
    size, plain = sum(header.size for header in headers), sum(len(one.value or b"") for one in sent)
    assert size > plain if codec == "none" else size < plain / 2


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("acks", [0, 1, -1])
def test_every_kind_of_acknowledgement(
    client: Client, server: BrokerProcess, log: SparkLog, topic: str, acks: int, idempotent: bool
) -> None:
    sent = records(client)
    options = ProduceOptions(acks=acks, idempotent=idempotent and acks == -1)
    placed = client.produce(server.bootstrap, topic, sent, options)
    if acks == 0:
        until(lambda: log.log_end_offset(topic, 0) == len(sent))
    else:
        assert placed == [(0, n) for n in range(len(sent))]
    assert stored_records(log, topic) == as_seen(sent)
    has_producer_id = {header.producer_id >= 0 for header in stored_headers(log, topic)}
    assert has_producer_id == {options.idempotent}


def test_keys_go_to_the_partition_that_sparklog_chooses(
    client: Client, server: BrokerProcess, log: SparkLog, new_topic: Callable[..., str]
) -> None:
    produced, appended = new_topic(7), new_topic(7)
    keys = [f"key-{n}-é".encode() for n in range(50)]
    client.produce(server.bootstrap, produced, [Sent(key=key, value=key) for key in keys])
    log.append(appended, pa.table({"key": pa.array(keys), "value": pa.array(keys)}))
    for partition in range(7):
        there = [one.key for one in stored_records(log, produced, partition)]
        assert there == [one.key for one in stored_records(log, appended, partition)]


def test_records_without_key_are_spread(
    client: Client, server: BrokerProcess, log: SparkLog, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(4)
    small_batches = {
        "confluent": {"batch.num.messages": 4},
        "kafka-python": {"batch_size": 100},
        "aiokafka": {"max_batch_size": 100},
    }[client.name]
    options = ProduceOptions(extra=small_batches)
    placed = client.produce(server.bootstrap, topic, [Sent(value=b"%d" % n) for n in range(200)], options)
    spread = Counter(partition for partition, _ in placed)
    assert len(spread) == 4
    assert {p: log.log_end_offset(topic, p) for p in range(4)} == spread
    values = [one.value for p in range(4) for one in stored_records(log, topic, p)]
    assert sorted(values, key=lambda value: int(value or b"-1")) == [b"%d" % n for n in range(200)]


def test_a_record_of_the_greatest_size_is_taken_and_a_larger_one_is_refused(
    client: Client, server: BrokerProcess, log: SparkLog, new_topic: Callable[..., str]
) -> None:
    limit = 300_000
    topic = new_topic(1, {"max.message.bytes": str(limit)})
    options = ProduceOptions(max_request_bytes=2 << 20)
    value = bytes(limit - BATCH_OVERHEAD)
    assert client.produce(server.bootstrap, topic, [Sent(value=value)], options) == [(0, 0)]
    (header,) = stored_headers(log, topic)
    assert limit - 10 <= header.size <= limit
    with pytest.raises(Exception, match=r"(?i)too.?large|MSG_SIZE"):
        client.produce(server.bootstrap, topic, [Sent(value=bytes(limit))], options)
    assert log.log_end_offset(topic, 0) == 1


def test_the_limit_is_on_compressed_batches(
    client: Client, server: BrokerProcess, log: SparkLog, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1, {"max.message.bytes": "100000"})
    options = ProduceOptions(max_request_bytes=2 << 20, compression="zstd")
    assert client.produce(server.bootstrap, topic, [Sent(value=bytes(900_000))], options) == [(0, 0)]
    assert stored_records(log, topic)[0].value == bytes(900_000)


def test_many_batches_at_once_stay_in_order(
    client: Client, server: BrokerProcess, log: SparkLog, topic: str
) -> None:
    sent = [Sent(value=b"%06d" % n + bytes(200), partition=0) for n in range(3000)]
    small_batches = {
        "confluent": {"batch.size": 4096},
        "kafka-python": {"batch_size": 4096},
        "aiokafka": {"max_batch_size": 4096},
    }[client.name]
    options = ProduceOptions(linger_ms=0, extra=small_batches)
    placed = client.produce(server.bootstrap, topic, sent, options)
    assert placed == [(0, n) for n in range(3000)]
    assert [one.value for one in stored_records(log, topic)] == [one.value for one in sent]


def test_a_missing_topic_is_created(client: Client, server: BrokerProcess, log: SparkLog) -> None:
    topic = f"made-by-{client.name}"
    placed = client.produce(server.bootstrap, topic, [Sent(value=b"first", partition=2)])
    assert placed == [(2, 0)]
    assert log.partition_count(topic) == 3


def test_the_time_of_appending_replaces_the_clients(
    client: Client, server: BrokerProcess, log: SparkLog, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1, {"message.timestamp.type": "LogAppendTime"})
    options = ProduceOptions(compression="lz4")
    client.produce(server.bootstrap, topic, [Sent(value=b"a", timestamp_ms=START_MS)] * 3, options)
    embedded = stored_records(log, topic)
    assert min(one.timestamp_ms for one in embedded) > START_MS + 86_400_000
    assert client.consume(server.bootstrap, topic, 0, "earliest", 3) == embedded


@pytest.mark.sampled(5)
@pytest.mark.parametrize("codec", CODECS)
def test_all_clients_read_what_each_wrote(
    client: Client, server: BrokerProcess, log: SparkLog, topic: str, codec: str
) -> None:
    sent = records(client)
    client.produce(server.bootstrap, topic, sent, ProduceOptions(compression=codec))
    for reader in CLIENTS:
        assert reader.consume(server.bootstrap, topic, 0, "earliest", len(sent)) == as_seen(sent), reader.name
