"""publish: one commit, at most once per (application, version), planned topics become one."""

import pickle  # noqa: TID251 - Spark carries staged appends this way

import pyarrow as pa
import pytest

from sparklog.client import AppendedRange, AppliedBefore, PlannedTopic, SparkLog, StagedAppend
from sparklog.errors import InvalidRequestError, RetriableError, UnknownTopicError


def stage(log: SparkLog, topic: str, *values: str, key: str | None = None) -> StagedAppend:
    keys = pa.array([key] * len(values), pa.string())
    with log.appender(sticky_turn=0) as appender:
        appender.add(pa.table({"key": keys, "value": list(values)}), topic)
        return appender.finish()


def values(log: SparkLog, topic: str, partition: int = 0) -> list[str]:
    return [value.decode() for value in log.read(topic, partition, 0)["value"].to_pylist()]


def test_many_tasks_and_topics_are_one_commit(log: SparkLog) -> None:
    log.create_topic("a", 1)
    before = log.image.commit
    staged = [stage(log, "a", "1"), stage(log, "b", "2", "3"), stage(log, "a", "4"), stage(log, "b", "5")]
    result = log.publish(staged)
    assert (result.commit, log.image.commit) == (before + 1, before + 1)
    assert result.ranges == {
        ("a", 0): AppendedRange(base_offset=0, record_count=2),
        ("b", 0): AppendedRange(base_offset=0, record_count=3),
    }
    assert result.record_count == 5
    assert (values(log, "a"), values(log, "b")) == (["1", "4"], ["2", "3", "5"])


def test_a_version_is_applied_once(log: SparkLog, other: SparkLog) -> None:
    assert log.publish([stage(log, "t", "a")], txn=("app", 3)).duplicate is False
    for version in (3, 2):
        result = other.publish([stage(other, "t", "a")], txn=("app", version))
        assert (result.duplicate, result.commit, result.ranges) == (True, None, {})
        assert result.skipped == {"t": AppliedBefore(version=3, commit=0)}
    log.publish([stage(log, "t", "b")], txn=("app", 4))
    log.publish([stage(log, "t", "c")], txn=("other app", 3))
    assert values(log, "t") == ["a", "b", "c"]


def test_an_applied_version_is_not_even_written_again(log: SparkLog) -> None:
    log.append("t", pa.table({"value": ["a"]}), txn=("app", 1))
    files = log.store.list("segments", recursive=True)
    assert log.append("t", pa.table({"value": ["a"]}), txn=("app", 1)).duplicate
    assert log.store.list("segments", recursive=True) == files


def test_a_write_without_records_leaves_no_version(log: SparkLog) -> None:
    result = log.publish([], txn=("app", 1))
    assert (result.commit, result.duplicate, result.skipped) == (None, False, {})
    assert log.publish([stage(log, "t", "a")], txn=("app", 1)).commit is not None
    assert log.publish([StagedAppend()]).commit is None


def test_an_illegal_transaction_is_refused(log: SparkLog) -> None:
    with pytest.raises(InvalidRequestError, match="version -1"):
        log.publish([], txn=("app", -1))


def test_a_topic_planned_twice_is_created_once(log: SparkLog, other: SparkLog) -> None:
    mine, theirs = stage(log, "t", "a"), stage(other, "t", "b")
    assert mine.planned[0].topic_id != theirs.planned[0].topic_id
    log.publish([mine])
    other.publish([theirs])
    assert values(log, "t") == ["a", "b"]
    assert log.image.topics["t"].topic_id == mine.planned[0].topic_id


def test_keyed_rows_for_another_number_of_partitions_are_not_published(
    log: SparkLog, other: SparkLog
) -> None:
    keyed, unkeyed = stage(log, "t", "a", key="k"), stage(log, "t", "b")
    other.create_topic("t", 5)
    with pytest.raises(RetriableError, match=r"found 5 partitions, expected 1 as planned"):
        log.publish([keyed])
    log.publish([unkeyed])
    assert values(log, "t", 0) == ["b"]


def test_rows_for_partitions_that_never_came_to_be_are_not_published(log: SparkLog, other: SparkLog) -> None:
    log.alter_root({"num.partitions": "3"})
    table = pa.table({"value": ["a"], "partition": [2]})
    with log.appender() as appender:
        appender.add(table, "t")
        staged = appender.finish()
    other.create_topic("t", 1)
    with pytest.raises(RetriableError, match="TOPIC_CHANGED"):
        log.publish([staged])
    assert log.log_end_offset("t", 0) == 0


def test_tasks_that_planned_different_numbers_agree_on_the_largest(log: SparkLog) -> None:
    first = stage(log, "t", "a")
    log.alter_root({"num.partitions": "3"})
    second = stage(log, "t", "b", key="k")
    log.publish([first, second])
    assert log.partition_count("t") == 3


def test_append_starts_over_when_the_topic_was_created_meanwhile(
    log: SparkLog, other: SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = log.publish

    def overtaken(staged: list[StagedAppend], **options: object) -> object:
        monkeypatch.undo()
        other.create_topic("t", 5)
        return publish(staged, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(log, "publish", overtaken)
    result = log.append("t", pa.table({"key": ["21"], "value": ["a"]}))
    assert list(result.partitions) == [(-973932308 & 0x7FFFFFFF) % 5]


def test_append_gives_up_when_the_topic_changes_all_the_time(
    log: SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def overtaken(staged: object, **_: object) -> object:
        calls.append(staged)
        raise RetriableError("TOPIC_CHANGED" if len(calls) < 9 else "PUBLISH_CONTENDED", "t", fix="again")

    monkeypatch.setattr(log, "publish", overtaken)
    with pytest.raises(RetriableError, match="TOPIC_CHANGED"):
        log.append("t", pa.table({"value": ["a"]}))
    assert len(calls) == 3
    calls += [None] * 6
    with pytest.raises(RetriableError, match="PUBLISH_CONTENDED"):
        log.commit_offsets("g", {("t", 0): 1})
    assert len(calls) == 10


def test_a_deleted_topic_takes_nothing(log: SparkLog, other: SparkLog) -> None:
    log.create_topic("t", 1)
    staged = stage(log, "t", "a")
    other.delete_topic("t")
    other.create_topic("t", 1)
    with pytest.raises(UnknownTopicError, match="TOPIC_MISSING"):
        log.publish([staged])
    assert log.log_end_offset("t", 0) == 0


def test_staged_appends_can_be_carried_between_processes(log: SparkLog) -> None:
    staged = pickle.loads(pickle.dumps(stage(log, "t", "a", key="k")))
    assert staged.planned == (
        PlannedTopic(name="t", topic_id=staged.drafts[0].topic_id, partitions=1, keyed=True),
    )
    log.publish([staged])
    assert values(log, "t") == ["a"]
