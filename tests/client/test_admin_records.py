"""Records before an offset are deleted: in one commit, where Kafka allows it."""

import pyarrow as pa
import pytest

from sparklog.client import OFFSETS_TOPIC, SparkLog
from sparklog.client.admin import LOG_END, DeletedRecords, delete_records
from sparklog.errors import InvalidRequestError, UnknownTopicError


@pytest.fixture
def filled(log: SparkLog) -> SparkLog:
    log.create_topic("t", 2)
    for partition in range(2):
        log.append("t", pa.table({"value": [b"v"] * 10}), partition=partition)
    return log


def test_the_log_starts_later(filled: SparkLog, other: SparkLog) -> None:
    expected = {
        ("t", 0): DeletedRecords(log_start_offset=0, new_log_start_offset=4),
        ("t", 1): DeletedRecords(log_start_offset=0, new_log_start_offset=10),
    }
    before = {("t", 0): 4, ("t", 1): LOG_END}
    assert delete_records(filled.metadata, before, dry_run=True) == expected
    assert filled.log_start_offset("t", 0) == 0
    commit = filled.image.commit
    assert delete_records(filled.metadata, before) == expected
    assert filled.refresh().commit == commit + 1
    assert [other.log_start_offset("t", partition) for partition in range(2)] == [4, 10]
    assert other.read("t", 0, 4).column("offset").to_pylist() == list(range(4, 10))
    again = delete_records(filled.metadata, {("t", 0): 2})
    assert again == {("t", 0): DeletedRecords(log_start_offset=4, new_log_start_offset=4)}


def test_what_may_not_be_deleted_keeps_everything(filled: SparkLog) -> None:
    filled.create_topic("compacted", 1, {"cleanup.policy": "compact"})
    filled.commit_offsets("g", {("t", 0): 1})
    for at, offset, code in (
        (("t", 1), 11, "OFFSET_OUT_OF_RANGE"),
        (("compacted", 0), 0, "COMPACTED_TOPIC"),
        ((OFFSETS_TOPIC, 0), 0, "INTERNAL_TOPIC"),
    ):
        with pytest.raises(InvalidRequestError) as raised:
            delete_records(filled.metadata, {("t", 0): 5, at: offset})
        assert raised.value.code == code
    for missing in (("t", 2), ("nowhere", 0)):
        with pytest.raises(UnknownTopicError):
            delete_records(filled.metadata, {("t", 0): 5, missing: 0})
    assert filled.log_start_offset("t", 0) == 0
