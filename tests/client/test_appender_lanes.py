"""Which topics share segments: what is kept for as long, so that a file goes as a whole."""

import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.log.config import TopicConfig
from sparklog.log.writer import MAX_LANES
from sparklog.metadata import is_internal
from sparklog.storage import MemoryStore
from sparklog.storage.base import StoreTraits
from tests.support.removing import dead_segments, expire_below
from tests.support.roots import opened

ONE = pa.table({"key": [b"k"], "value": [b"x"]})
APART = {"sparklog.segment.apart": "true"}
REMOTE = StoreTraits(is_remote=True, appends_after_sync=False)


def log_on(traits: StoreTraits | None = None) -> SparkLog:
    return opened(MemoryStore("lanes", traits=traits), ManualClock())


def segments(log: SparkLog, topic: str) -> set[str]:
    return {extent.segment for state in log.refresh().topic(topic).partitions for extent in state.extents}


def test_committed_offsets_have_segments_of_their_own() -> None:
    log = log_on()
    log.create_topic("t", 1)
    for offset in range(3):
        log.append("t", ONE)
        log.commit_offsets("g", {("t", 0): offset})
    assert len(segments(log, "t")) == len(segments(log, "__consumer_offsets")) == 1
    assert segments(log, "t").isdisjoint(segments(log, "__consumer_offsets"))
    expire_below(log, 3)
    assert len(dead_segments(log)) == 1


def in_one_flush(log: SparkLog, topics: list[str]) -> None:
    with log.appender() as appender:
        for topic in topics:
            appender.add(ONE, topic, state=is_internal(topic))
        log.publish([appender.finish()])


def test_an_object_for_each_flush_is_enough() -> None:
    log = log_on(REMOTE)
    log.create_topic("t", 1)
    log.create_topic("__consumer_offsets", 1)
    in_one_flush(log, ["t", "__consumer_offsets"])
    assert segments(log, "t") == segments(log, "__consumer_offsets")


@pytest.mark.parametrize("traits", [None, REMOTE])
def test_topics_that_want_to_share_with_those_that_are_kept_as_long(traits: StoreTraits | None) -> None:
    log = log_on(traits)
    day, week = {"retention.ms": "86400000"}, {"retention.ms": "604800000"}
    topics = {"a": day, "b": day | APART, "c": day | APART, "d": week | APART, "e": week, "f": APART}
    for topic, configs in topics.items():
        log.create_topic(topic, 1, configs)
    in_one_flush(log, list(topics))
    found = {topic: segments(log, topic).pop() for topic in topics}
    assert found["a"] == found["e"]
    assert found["b"] == found["c"]
    assert len(set(found.values())) == 4


def test_by_the_root_for_all_topics() -> None:
    log = log_on()
    log.alter_root(APART)
    log.create_topic("a", 1, {"retention.ms": "5"})
    log.create_topic("b", 1)
    in_one_flush(log, ["a", "b"])
    assert segments(log, "a").isdisjoint(segments(log, "b"))


def test_a_process_has_so_many_segments_open() -> None:
    log = log_on()
    topics = [f"t{number}" for number in range(2 * MAX_LANES)]
    for number, topic in enumerate(topics):
        log.create_topic(topic, 1, APART | {"retention.ms": str(1000 + number)})
    for _ in range(3):
        in_one_flush(log, topics)
    found = [segments(log, topic) for topic in topics]
    assert all(len(one) == 1 for one in found)
    assert len(set.union(*found)) == MAX_LANES + 1
    assert [log.read(topic, 0, 0).num_rows for topic in topics] == [3] * len(topics)


def test_drafts_are_continued_within_their_lane() -> None:
    log = log_on()
    log.create_topic("t", 1)
    log.create_topic("__consumer_offsets", 1)
    with log.appender() as appender:
        for topic in ("t", "__consumer_offsets"):
            appender.add(ONE, topic, state=is_internal(topic))
        drafts = appender.finish().drafts
    assert [log.writer.is_end(draft) for draft in drafts] == [True, True]
    assert log.writer.lane_of("t", "T" * 22, TopicConfig()) == ""
