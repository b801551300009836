"""With a topic goes what groups have committed for it; a topic of the same name made later begins anew."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from sparklog.client import OFFSETS_TOPIC, SparkLog
from sparklog.client.groups import ATTEMPTS
from sparklog.clock import ManualClock
from sparklog.errors import RetriableError, UnknownTopicError
from sparklog.metadata import MetadataLog, new_id, plan_join_broker
from sparklog.storage import MemoryStore
from tests.support.roots import opened


def test_a_topic_made_later_has_no_offsets_of_the_old_one(
    log: SparkLog, other: SparkLog, store: MemoryStore, clock: ManualClock
) -> None:
    log.create_topic("t", 2)
    log.create_topic("u")
    for group in ("g", "h"):
        log.commit_offsets(group, {("t", 0): 5, ("t", 1): 6, ("u", 0): 7})
    log.commit_offsets("only t", {("t", 1): 8})
    assert other.groups() == ["g", "h", "only t"]  # its table has them
    log.delete_topic("t")
    log.create_topic("t", 2)
    log.append("t", pa.table({"value": ["new"]}))
    for one in (log, other, opened(store, clock)):
        assert one.groups() == ["g", "h"]
        assert one.committed_offsets("g") == one.committed_offsets("h") == {("u", 0): 7}
        assert one.committed_offsets("only t") == {}


def test_it_is_one_commit(log: SparkLog) -> None:
    log.create_topic("t")
    log.commit_offsets("g", {("t", 0): 5})
    before = log.refresh().commit
    log.delete_topic("t")
    assert log.refresh().commit == before + 1


def test_where_a_broker_has_been_too(log: SparkLog) -> None:
    """One that starts after the topic was made again cannot tell."""
    log.metadata.publish(lambda image: [plan_join_broker(image, 7, incarnation_id=new_id())])
    log.create_topic("t")
    log.commit_offsets("g", {("t", 0): 5})
    log.delete_topic("t")
    log.create_topic("t")
    assert log.committed_offsets("g") == {}


def test_what_is_committed_meanwhile_goes_too(
    log: SparkLog, other: SparkLog, before_publish: Callable[..., list[int]]
) -> None:
    log.create_topic("t")
    log.commit_offsets("g", {("t", 0): 5})
    asked = before_publish(1, lambda: other.commit_offsets("late", {("t", 0): 3}))
    log.delete_topic("t")
    assert len(asked) == 2
    assert log.groups() == other.groups() == []


def test_others_that_commit_all_the_time_do_not_keep_it(
    log: SparkLog, other: SparkLog, before_publish: Callable[..., list[int]]
) -> None:
    log.create_topic("t")
    log.commit_offsets("g", {("t", 0): 5})
    asked = before_publish(ATTEMPTS, lambda: other.commit_offsets("g", {("t", 0): 6}))
    log.delete_topic("t")
    assert (len(asked), log.topics(), log.groups()) == (ATTEMPTS, [], [])


def test_the_offsets_topic_may_go_meanwhile(
    log: SparkLog, other: SparkLog, before_publish: Callable[..., list[int]]
) -> None:
    log.create_topic("t")
    log.commit_offsets("g", {("t", 0): 5})

    def make_anew() -> None:
        other.delete_topic(OFFSETS_TOPIC)
        other.commit_offsets("h", {("t", 0): 6, ("u", 0): 1})

    before_publish(ATTEMPTS, make_anew)
    log.delete_topic("t")
    assert log.topics() == []
    assert log.committed_offsets("h") == {("t", 0): 6, ("u", 0): 1}  # not seen, and not ours to guess


def test_tombstones_that_were_swept_are_written_again(log: SparkLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.create_topic("t")
    log.commit_offsets("g", {("t", 0): 5})
    publish = MetadataLog.publish

    def publish_in_vain(metadata: MetadataLog, plan: Any, **named: Any) -> None:
        monkeypatch.setattr(MetadataLog, "publish", publish)
        raise RetriableError("STAGING_EXPIRED", "found none", fix="stage again")

    monkeypatch.setattr(MetadataLog, "publish", publish_in_vain)
    log.delete_topic("t")
    assert (log.topics(), log.groups()) == ([], [])


def test_a_root_without_groups_gets_none(log: SparkLog) -> None:
    log.create_topic("t")
    log.delete_topic("t")
    assert log.topics(include_internal=True) == []


def test_the_offsets_topic_itself(log: SparkLog) -> None:
    log.commit_offsets("g", {(OFFSETS_TOPIC, 0): 5})
    log.delete_topic(OFFSETS_TOPIC)
    assert (log.topics(include_internal=True), log.groups()) == ([], [])


def test_a_topic_that_is_not_there(log: SparkLog) -> None:
    log.commit_offsets("g", {("t", 0): 5})
    with pytest.raises(UnknownTopicError):
        log.delete_topic("t")
    assert log.committed_offsets("g") == {("t", 0): 5}


@pytest.fixture
def before_publish(log: SparkLog, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """What somebody does while `log` is about to publish, so often; returns the numbers of the publishes."""

    def hook(times: int, act: Callable[[], None]) -> list[int]:
        asked: list[int] = []
        publish = log.metadata.publish

        def publish_later(plan: Any, **named: Any) -> Any:
            asked.append(len(asked))
            if len(asked) <= times:
                act()
            return publish(plan, **named)

        monkeypatch.setattr(log.metadata, "publish", publish_later)
        return asked

    return hook
