"""Writers and the sweep horizon: names say births, old files are left, and what expired is appended again."""

from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.errors import RetriableError
from sparklog.metadata import Action, Image, born_of, plan_advance_log_start, plan_move_sweep_horizon
from sparklog.storage import MemoryStore


def rows(*values: str) -> pa.Table:
    return pa.table({"value": list(values)})


def move_horizon(log: SparkLog, horizon: int) -> None:
    def plan(image: Image) -> Sequence[Action]:
        action = plan_move_sweep_horizon(image, horizon)
        return [] if action is None else [action]

    log.metadata.publish(plan)


def expire(log: SparkLog, offset: int) -> None:
    topic_id = log.image.topic("t").topic_id

    def plan(image: Image) -> Sequence[Action]:
        action = plan_advance_log_start(image, topic_id, 0, offset)
        return [] if action is None else [action]

    log.metadata.publish(plan)


def segments(log: SparkLog) -> list[str]:
    return [extent.segment for extent in log.refresh().partition("t", 0).extents]


@pytest.fixture
def log_of_t(log: SparkLog) -> SparkLog:
    log.create_topic("t", 1)
    return log


def test_a_segment_is_born_at_the_commit_that_its_writer_had_seen(log_of_t: SparkLog) -> None:
    log = log_of_t
    seen = log.image.commit
    log.append("t", rows("a"))
    log.append("t", rows("b"))
    born = [born_of(segment) for segment in segments(log)]
    if log.store.traits.appends_after_sync:
        assert born == [seen, seen]
    else:
        assert born == [seen, seen + 1]  # an object for each


def test_a_writer_leaves_a_segment_that_is_older_than_the_horizon(log_of_t: SparkLog) -> None:
    """It could append there while something in it is live; once nothing is, it is too late to notice."""
    log = log_of_t
    log.append("t", rows("a"))
    move_horizon(log, log.image.commit + 1)
    horizon = log.image.commit
    log.append("t", rows("b"))
    log.append("t", rows("c"))
    born = [born_of(segment) for segment in segments(log)]
    assert born[0] < horizon <= born[1]
    assert log.read("t", 0, 0).column("value").to_pylist() == [b"a", b"b", b"c"]


def test_what_was_staged_before_the_horizon_is_not_published(log_of_t: SparkLog, other: SparkLog) -> None:
    log = log_of_t
    with log.appender() as appender:
        appender.add(rows("a"), "t")
        staged = appender.finish()
    other.refresh()
    move_horizon(other, other.image.commit + 1)
    with pytest.raises(RetriableError, match="Append the rows again") as raised:
        log.publish([staged])
    assert raised.value.code == "STAGING_EXPIRED"
    assert log.log_end_offset("t", 0) == 0


def test_append_appends_again(log_of_t: SparkLog, other: SparkLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The horizon moved between its data and its commit."""
    log = log_of_t
    original: Callable[..., object] = log.publish
    calls: list[int] = []

    def publish(*args: object, **options: object) -> object:
        calls.append(1)
        if len(calls) == 1:
            other.refresh()
            move_horizon(other, other.image.commit + 1)
        return original(*args, **options)

    monkeypatch.setattr(log, "publish", publish)
    log.append("t", rows("a"), txn=("job", 1))
    assert len(calls) == 2
    assert log.read("t", 0, 0).column("value").to_pylist() == [b"a"]


def test_a_writer_goes_on_after_its_open_segment_died(log_of_t: SparkLog, other: SparkLog) -> None:
    """Retention took all that was in it, and a sweep its file."""
    log = log_of_t
    log.append("t", rows("a"))
    (gone,) = segments(log)
    other.refresh()
    expire(other, 1)
    move_horizon(other, other.image.commit + 1)
    other.store.delete(gone)
    log.append("t", rows("b"))
    assert log.read("t", 0, 1).column("value").to_pylist() == [b"b"]
    assert gone not in segments(log)
    assert isinstance(log.store, MemoryStore)
