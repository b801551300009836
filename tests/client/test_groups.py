"""Consumer offsets: Kafka's partition and schema, latest wins, tombstones delete, cheap to follow."""

import pyarrow as pa
import pytest

from sparklog.client import OFFSETS_TOPIC, AppendOptions, SparkLog, partition_for_group
from sparklog.clock import ManualClock
from sparklog.errors import InvalidRequestError
from sparklog.format.consumer_group_records import (
    ConsumerGroupKey,
    RecordKind,
    encode_consumer_group_key,
)
from sparklog.format.consumer_offsets import OffsetKey, decode_key, decode_offset_value
from sparklog.storage import MemoryStore
from tests.foreign_records import append_foreign


@pytest.mark.parametrize(
    ("group", "code"),
    [
        ("", 0),
        ("a", 97),
        ("console-consumer-1", None),
        ("polygenelubricants", -(1 << 31)),
        ("\U0001f600", 1772899),
    ],
)
def test_groups_live_where_kafka_puts_them(group: str, code: int | None) -> None:
    if code is not None:
        expected = 0 if code == -(1 << 31) else abs(code) % 50
        assert partition_for_group(group, 50) == expected
    assert 0 <= partition_for_group(group, 50) < 50


def test_what_is_committed_is_found_by_everybody(log: SparkLog, other: SparkLog) -> None:
    assert other.committed_offsets("g") == {}
    assert other.groups() == []
    log.commit_offsets("g", {("t", 0): 5, ("u", 1): 7}, metadata="note")
    log.commit_offsets("h", {("t", 0): 1})
    log.commit_offsets("g", {("t", 0): 6})
    for one in (log, other):
        assert one.committed_offsets("g") == {("t", 0): 6, ("u", 1): 7}
        assert one.groups() == ["g", "h"]
    assert other.describe_offsets("g")["u", 1].metadata == "note"


def test_the_topic_is_kafkas(log: SparkLog, clock: ManualClock) -> None:
    log.commit_offsets("g", {("t", 3): 5}, metadata="note")
    described = log.describe_topic(OFFSETS_TOPIC)
    assert len(described.partitions) == 50
    assert described.configs == {"cleanup.policy": "compact"}
    record = log.read(OFFSETS_TOPIC, partition_for_group("g", 50), 0).to_pylist()[0]
    assert decode_key(record["key"]) == OffsetKey(group="g", topic="t", partition=3)
    value = decode_offset_value(record["value"])
    assert (value.offset, value.metadata, value.commit_timestamp_ms) == (5, "note", clock.now_ms())


def test_whoever_makes_the_topic_it_is_a_coordinators(log: SparkLog) -> None:
    record = pa.table({"key": [b"k"], "value": [b"v"]})

    def by_a_commit() -> None:
        log.commit_offsets("g", {("t", 0): 1})

    def by_a_writer_of_other_topics() -> None:
        options = AppendOptions(num_partitions=2, topic_configs={"cleanup.policy": "delete"})
        with log.appender(options) as appender:
            appender.add(record, OFFSETS_TOPIC, state=True)
            log.publish([appender.finish()])

    def by_name() -> None:
        log.create_topic(OFFSETS_TOPIC)

    for make in (by_a_commit, by_a_writer_of_other_topics, by_name):
        make()
        assert log.describe_topic(OFFSETS_TOPIC).configs == {"cleanup.policy": "compact"}
        assert log.partition_count(OFFSETS_TOPIC) == 50
        log.delete_topic(OFFSETS_TOPIC)


@pytest.mark.parametrize("policy", ["delete", "compact,delete", ""])
def test_the_topic_is_made_with_no_retention(log: SparkLog, policy: str) -> None:
    with pytest.raises(InvalidRequestError, match="offsets would be lost"):
        log.create_topic(OFFSETS_TOPIC, 1, {"cleanup.policy": policy})
    assert log.create_topic(OFFSETS_TOPIC, 7, {"cleanup.policy": "compact", "segment.bytes": "1000000"})
    assert log.partition_count(OFFSETS_TOPIC) == 7


def test_the_number_of_partitions_is_the_roots(log: SparkLog) -> None:
    log.alter_root({"offsets.topic.num.partitions": "3", "auto.create.topics.enable": "false"})
    log.commit_offsets("g", {("t", 0): 5})
    assert log.partition_count(OFFSETS_TOPIC) == 3
    assert log.committed_offsets("g") == {("t", 0): 5}


def test_none_deletes(log: SparkLog, other: SparkLog) -> None:
    log.commit_offsets("g", {("t", 0): 5, ("t", 1): 6})
    assert other.groups() == ["g"]
    log.commit_offsets("g", {("t", 0): None})
    assert other.committed_offsets("g") == {("t", 1): 6}
    log.commit_offsets("g", {("t", 1): None})
    assert other.groups() == []


def test_offsets_and_records_can_be_one_commit(log: SparkLog) -> None:
    before = log.image.commit
    with log.appender() as appender:
        appender.add(pa.table({"value": ["a"]}), "out")
        staged = appender.finish()
    log.publish([staged, log.stage_offsets("g", {("in", 0): 9})], txn=("app", 1))
    assert log.image.commit == before + 1
    assert log.log_end_offset("out", 0) == 1
    assert log.committed_offsets("g") == {("in", 0): 9}


def test_following_reads_only_new_records(log: SparkLog, other: SparkLog, store: MemoryStore) -> None:
    for offset in range(20):
        log.commit_offsets("g", {("t", 0): offset})
    assert other.committed_offsets("g") == {("t", 0): 19}
    reads: list[str] = []
    store.hook = lambda operation, name: reads.append(name) if name.endswith(".log") else None
    assert other.committed_offsets("g") == {("t", 0): 19}
    assert reads == []


def test_a_commit_is_one_append_and_one_metadata_commit(log: SparkLog, store: MemoryStore) -> None:
    log.commit_offsets("g", {("t", 0): 1})
    calls: list[str] = []
    store.hook = lambda operation, name: calls.append(operation)
    log.commit_offsets("g", {("t", number): 2 for number in range(10)})
    assert calls.count("write") == calls.count("sync") == calls.count("put_if_absent") == 1


def test_a_topic_that_was_created_anew_starts_anew(log: SparkLog, other: SparkLog) -> None:
    log.commit_offsets("g", {("t", 0): 1})
    assert other.groups() == ["g"]
    log.delete_topic(OFFSETS_TOPIC)
    assert other.groups() == []
    log.commit_offsets("h", {("t", 0): 1})
    assert other.groups() == ["h"]


def test_groups_of_the_consumer_protocol_are_known_by_their_records(log: SparkLog, other: SparkLog) -> None:
    """What a broker writes of them is nothing else to the embedded client, and no damage."""
    log.commit_offsets("g", {("t", 0): 5})
    partition = partition_for_group("g", log.partition_count(OFFSETS_TOPIC))
    group = encode_consumer_group_key(ConsumerGroupKey(RecordKind.GROUP, "g"))
    member = encode_consumer_group_key(ConsumerGroupKey(RecordKind.MEMBER, "g", "m"))
    append_foreign(log, OFFSETS_TOPIC, partition, [(group, b"any"), (member, b"any")])
    for one in (log, other):
        assert one.consumer_groups() == {"g"}
        assert one.committed_offsets("g") == {("t", 0): 5}
    append_foreign(log, OFFSETS_TOPIC, partition, [(member, None), (group, None)])
    for one in (log, other):
        assert one.consumer_groups() == set()
        assert one.groups() == ["g"]


def test_nothing_committed_changes_nothing(log: SparkLog) -> None:
    log.commit_offsets("g", {})
    assert log.topics(include_internal=True) == []


def test_wrong_offsets_are_refused(log: SparkLog) -> None:
    with pytest.raises(InvalidRequestError, match="INVALID_GROUP"):
        log.commit_offsets("", {("t", 0): 1})
    with pytest.raises(InvalidRequestError, match="found offset -1 to commit"):
        log.commit_offsets("g", {("t", 0): -1})
    with pytest.raises(InvalidRequestError, match="found 5000 bytes, expected at most 4096"):
        log.commit_offsets("g", {("t", 0): 1}, metadata="x" * 5000)
    with pytest.raises(InvalidRequestError, match="INVALID_GROUP"):
        log.committed_offsets("g" * 40_000)


@pytest.mark.parametrize("text", ["g\udcff", "\ud800"])
def test_what_utf8_cannot_write_is_refused(log: SparkLog, text: str) -> None:
    """A byte of a command line that is not UTF-8, and half of a surrogate pair."""
    log.commit_offsets("g", {("t", 0): 1})
    before = log.image.commit
    with pytest.raises(InvalidRequestError, match=r"INVALID_GROUP.*'g?\\ud[89abcdef]"):
        log.commit_offsets(text, {("t", 0): 1})
    with pytest.raises(InvalidRequestError, match="INVALID_GROUP"):
        log.committed_offsets(text)
    with pytest.raises(InvalidRequestError, match=r"INVALID_TOPIC_NAME.*half of a surrogate pair"):
        log.commit_offsets("g", {(text, 0): 1})
    with pytest.raises(InvalidRequestError, match=r"INVALID_OPTION.*metadata.*half of a surrogate pair"):
        log.commit_offsets("g", {("t", 0): 1}, metadata=text)
    assert log.refresh().commit == before
    assert partition_for_group(text, 50) in range(50)  # as Java's hash has it


@pytest.mark.parametrize("length", [1, 2, 3, 31, 1000, 32_767])
def test_long_names_are_hashed_as_java_does(length: int) -> None:
    """Whole arrays at a time: the broker's event loop waits for it."""
    name = "".join(chr(97 + (7 * at) % 600) for at in range(length))
    code = 0
    for character in name:
        code = (31 * code + ord(character)) % (1 << 32)
    signed = code - (1 << 32) if code >= 1 << 31 else code
    assert partition_for_group(name, 1009) == abs(signed) % 1009


@pytest.mark.parametrize(
    ("place", "offset", "code"),
    [
        (("t", 0), 1 << 63, "OFFSET_OUT_OF_RANGE"),
        (("t", 1 << 31), 1, "INVALID_OPTION"),
        (("t", -1), 1, "INVALID_OPTION"),
        (("t", 1 << 31), None, "INVALID_OPTION"),
    ],
)
def test_what_no_offset_can_be_is_refused(
    place: tuple[str, int], offset: int | None, code: str, log: SparkLog
) -> None:
    with pytest.raises(InvalidRequestError, match=code):
        log.commit_offsets("g", {place: offset})
    log.commit_offsets("g", {("t", (1 << 31) - 1): (1 << 63) - 1})
    assert log.committed_offsets("g") == {("t", (1 << 31) - 1): (1 << 63) - 1}


@pytest.mark.parametrize("partition", [1.5, True, "1"])
def test_a_partition_is_an_integer(log: SparkLog, partition: int) -> None:
    log.create_topic("t", 3)
    with pytest.raises(InvalidRequestError, match="expected an integer"):
        log.append("t", pa.table({"value": ["a"]}), partition=partition)
