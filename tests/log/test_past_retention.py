"""Records that are past their retention when they are appended: counted as they will go, and told of."""

import logging

import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.log.config import TopicConfig
from sparklog.log.past_retention import INTERVAL_MS, RetentionNotice, is_past_retention, past_retention_text
from sparklog.maintenance import expire
from sparklog.metadata import MetadataLog
from sparklog.storage import MemoryStore
from tests.support.told import Told

HOUR_MS = 3_600_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(clock: ManualClock) -> SparkLog:
    store = MemoryStore("retention", clock=clock)
    return SparkLog(store, MetadataLog.open(store, clock, create=True), clock)


def rows(clock: ManualClock, *ages_ms: int) -> pa.Table:
    times = [clock.now_ms() - age_ms for age_ms in ages_ms]
    return pa.table({"value": ["v"] * len(times), "timestamp": pa.array(times, pa.timestamp("ms"))})


@pytest.mark.parametrize(
    ("configs", "age_ms", "past"),
    [
        ({}, 10_000 * HOUR_MS, False),
        ({"retention.ms": "3600000"}, HOUR_MS, False),
        ({"retention.ms": "3600000"}, HOUR_MS + 1, True),
        ({"retention.ms": "3600000"}, -HOUR_MS, False),
        ({"retention.ms": "0"}, 1, True),
        ({"retention.ms": "0", "cleanup.policy": "compact"}, HOUR_MS, False),
        ({"retention.ms": "0", "cleanup.policy": "compact,delete"}, HOUR_MS, True),
    ],
)
def test_past_is_what_the_next_expiry_removes(
    log: SparkLog, clock: ManualClock, configs: dict[str, str], age_ms: int, past: bool
) -> None:
    now_ms = clock.now_ms()
    assert is_past_retention(TopicConfig.parse(configs, {}), now_ms - age_ms, now_ms) is past
    log.create_topic("t", 1, {"message.timestamp.after.max.ms": str(2**62), **configs})
    keyed = rows(clock, age_ms, age_ms).append_column("key", pa.array(["a", "b"]))
    result = log.append("t", keyed)
    assert result.past_retention == ({"t": 2} if past else {})
    assert [one.offsets for one in expire(log.metadata, now_ms)] == ([2] if past else [])


def test_an_extent_without_timestamps_stays() -> None:
    assert not is_past_retention(TopicConfig(retention_ms=0), -1, 5)


def test_at_least_so_many_of_each_topic(log: SparkLog, clock: ManualClock) -> None:
    """A younger record keeps its extent, and all that is in it."""
    log.alter_root({"retention.ms": str(HOUR_MS)})
    log.create_topic("t", 3)
    log.create_topic("kept", 1, {"retention.ms": "-1"})
    old = 2 * HOUR_MS
    with log.appender() as appender:
        for partition, ages in enumerate([(old, old), (old, 0), (old,)]):
            table = rows(clock, *ages).append_column("partition", pa.array([partition] * len(ages)))
            appender.add(table, "t")
        appender.add(rows(clock, old), "kept")
        staged = appender.finish()
    assert log.publish([staged]).past_retention == {"t": 3}


def test_what_was_written_before_is_not_told_of(log: SparkLog, clock: ManualClock) -> None:
    log.create_topic("t", 1, {"retention.ms": "0"})
    for duplicate in (False, True):
        result = log.append("t", rows(clock, HOUR_MS), txn=("job", 1))
        assert (result.duplicate, result.past_retention) == (duplicate, {} if duplicate else {"t": 1})


def test_appends_are_told_of_at_once_and_then_in_intervals(
    log: SparkLog, clock: ManualClock, told: Told
) -> None:
    log.alter_root({"retention.ms": "0"})
    told.forget()
    for topic in ("t", "t", "u", "t"):
        log.append(topic, rows(clock, HOUR_MS, HOUR_MS))
    assert told("sparklog.client") == [past_retention_text({"t": 2}), past_retention_text({"u": 2})]
    assert "past their topic's retention.ms already" in told("sparklog.client")[0]
    assert "at least 2 of topic 't';" in told("sparklog.client")[0]
    clock.advance_ms(INTERVAL_MS)
    log.append("t", rows(clock, HOUR_MS))
    assert told("sparklog.client")[2:] == [past_retention_text({"t": 5})]  # those of the meantime are in it


def test_what_is_remembered_of_topics_is_bounded(
    clock: ManualClock, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparklog.log.past_retention.MAX_REMEMBERED", 3)
    notice = RetentionNotice(clock, logging.getLogger("tests.retention"))
    for number in range(5):
        notice.note({f"t{number}": 1})
    assert len(told("tests.retention")) == 5
    notice.note({"t4": 1})
    assert len(told("tests.retention")) == 5
    notice.note({"t0": 1})  # forgotten, so told again
    assert len(told("tests.retention")) == 6


def test_a_text_names_few_of_many_topics() -> None:
    text = past_retention_text({f"t{number:02}": 7 for number in range(30)})
    assert "at least 7 of topic 't09', and some of 20 more topics;" in text
    assert "t10" not in text
