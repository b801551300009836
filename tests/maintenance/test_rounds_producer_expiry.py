"""Rounds forget silent producers, and a partition that had too many of them is merged and compacted again."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.format.encode import EncodeOptions, encode_batches
from sparklog.format.schema import RecordColumns
from sparklog.log.config import PRODUCER_ID_EXPIRATION_KEY
from sparklog.maintenance import (
    CompactionLimits,
    MergeLimits,
    StepReport,
    Terms,
    compact,
    due_steps,
    maintain,
    optimize,
)
from sparklog.metadata import plan_append
from tests.maintenance.conftest import extents, records

ALL = MergeLimits(fan_in=None)
DAY_MS = 86_400_000
MANY = 2_100  # more than may have merged batches at once
OLD_MS = 1_300_000_000_000


def produce(
    log: SparkLog,
    producer_ids: Sequence[int],
    *,
    topic: str = "t",
    key: bytes | None = None,
    sequence: int = 0,
) -> None:
    """A record of each producer, with an event time of years ago; one commit."""
    config = log.describe_topic(topic).config
    drafts = []
    for producer_id in producer_ids:
        columns = RecordColumns(
            key=None if key is None else pa.array([key], pa.binary()),
            value=pa.array([b"of %d" % producer_id], pa.binary()),
            timestamp_ms=np.full(1, OLD_MS, np.int64),
        )
        ids = EncodeOptions(producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        draft = log.writer.append(log.image.topic(topic).topic_id, 0, encode_batches(columns, ids), config)
        assert draft is not None
        drafts.append(
            msgspec.structs.replace(draft, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        )
    log.writer.sync(drafts)
    log.metadata.publish(lambda image: [plan_append(image, drafts)])


def round_of(log: SparkLog, terms: Terms | None = None, *, dry_run: bool = False) -> StepReport:
    """Of this step alone."""
    report = maintain(log.metadata, log.clock, terms, steps=["producers"], dry_run=dry_run)
    (step,) = report.steps
    return step


def is_due(log: SparkLog, terms: Terms | None = None) -> bool:
    return "producers" in due_steps(log.refresh(), log.clock.now_ms(), terms)


def known(log: SparkLog, topic: str = "t") -> int:
    return len(log.refresh().partition(topic, 0).producers)


def test_a_round_a_day_forgets_who_was_silent(log: SparkLog, clock: ManualClock) -> None:
    assert round_of(log).outcome == "nothing"
    produce(log, range(5))
    assert is_due(log)
    assert round_of(log).outcome == "done"  # marked
    assert not is_due(log)
    produce(log, [4], sequence=1)
    clock.advance_ms(DAY_MS)
    assert round_of(log, dry_run=True).outcome == "due"
    assert known(log) == 5
    step = round_of(log)
    assert (step.outcome, dict(step.figures)) == ("done", {"forgotten_producers": 4, "known_producers": 1})
    assert round_of(log).outcome == "nothing"


def test_the_root_says_how_long_and_else_the_broker(log: SparkLog, clock: ManualClock) -> None:
    brokers = Terms(defaults={PRODUCER_ID_EXPIRATION_KEY: "1000"})
    produce(log, [1])
    round_of(log)
    clock.advance_ms(1000)
    assert is_due(log, brokers)
    assert not is_due(log)
    log.alter_root({PRODUCER_ID_EXPIRATION_KEY: "2000"})
    assert not is_due(log, brokers)
    clock.advance_ms(1000)
    assert is_due(log, brokers)
    assert is_due(log)


def test_it_is_for_whole_roots(log: SparkLog) -> None:
    produce(log, [1])
    assert not is_due(log, Terms(topics=["t"]))
    assert round_of(log, Terms(topics=["t"])).outcome == "nothing"


@pytest.mark.slow
def test_a_partition_of_too_many_producers_is_merged_once_their_time_is_over(
    log: SparkLog, clock: ManualClock
) -> None:
    produce(log, range(MANY // 2))
    optimize(log.metadata, log.clock, limits=ALL)
    produce(log, range(MANY // 2, MANY))
    before = records(log)
    optimize(log.metadata, log.clock, limits=ALL)
    assert len(extents(log)) > MANY // 2  # half of 4,096 would have merged batches
    round_of(log)
    clock.advance_ms(DAY_MS)
    assert round_of(log).figures["forgotten_producers"] == MANY
    optimize(log.metadata, log.clock, limits=ALL)
    assert len(extents(log)) == 1
    assert dict(log.image.partition("t", 0).merged_batches) == {}
    assert records(log) == before


def test_a_partition_of_too_many_producers_is_compacted_once_their_time_is_over(
    log: SparkLog, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparklog.metadata.model.sequences.MAX_PRODUCERS", 6)
    log.create_topic("table", 1, {"cleanup.policy": "compact"})
    produce(log, range(10), topic="table", key=b"k")
    compact(log.metadata, log.clock, ["table"], CompactionLimits())
    assert len(records(log, "table")) == 10
    round_of(log)
    clock.advance_ms(DAY_MS)
    round_of(log)
    compact(log.metadata, log.clock, ["table"], CompactionLimits())
    assert [value for _, value, _ in records(log, "table")] == [b"of 9"]
