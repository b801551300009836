"""A writer's versions are per topic: several topics may share one, and what a topic has is left out."""

from importlib import import_module

import pyarrow as pa
import pytest

from sparklog.client import AppliedBefore, SparkLog, StagedAppend
from sparklog.client.publish import WriterVersion, encode_payload, interpret_request, plan_publish
from sparklog.errors import CorruptLogError, InvalidRequestError, RetriableError
from sparklog.metadata import WriterTxn, new_id
from sparklog.metadata.model import writers as writers_module
from tests.support.told import Told


def stage(log: SparkLog, topic: str, *values: str, key: str | None = None) -> StagedAppend:
    keys = pa.array([key] * len(values), pa.string())
    with log.appender(sticky_turn=0) as appender:
        appender.add(pa.table({"key": keys, "value": list(values)}), topic)
        return appender.finish()


def rows(*values: str) -> pa.Table:
    return pa.table({"value": list(values)})


def values(log: SparkLog, topic: str) -> list[str]:
    return [value.decode() for value in log.read(topic, 0, 0)["value"].to_pylist()]


def test_two_topics_with_the_same_version(log: SparkLog, other: SparkLog) -> None:
    """Delta's idiom: the writes of one foreachBatch share application and version."""
    for _ in range(2):
        log.append("a", rows("1"), txn=("job", 7))
        other.append("b", rows("1"), txn=("job", 7))
    log.refresh()
    assert (values(log, "a"), values(log, "b")) == (["1"], ["1"])


def test_a_rerun_leaves_out_the_topics_that_have_it(log: SparkLog) -> None:
    first = log.publish([stage(log, "a", "1")], txn=("job", 7))
    second = log.publish([stage(log, "a", "1"), stage(log, "b", "2")], txn=("job", 7))
    assert first.commit is not None
    assert second.commit == log.image.commit
    assert not second.duplicate
    assert second.ranges.keys() == {("b", 0)}
    assert second.skipped == {"a": AppliedBefore(version=7, commit=first.commit)}
    third = log.publish([stage(log, "a", "1"), stage(log, "b", "2")], txn=("job", 6))
    assert (third.commit, third.duplicate) == (None, True)
    assert third.skipped == {
        "a": AppliedBefore(version=7, commit=first.commit),
        "b": AppliedBefore(version=7, commit=second.commit),
    }
    assert (values(log, "a"), values(log, "b")) == (["1"], ["2"])


def test_append_says_what_it_skipped(log: SparkLog) -> None:
    commit = log.append("a", rows("1"), txn=("job", 7)).commit
    assert commit is not None
    assert log.append("a", rows("1"), txn=("job", 7)).skipped == {
        "a": AppliedBefore(version=7, commit=commit)
    }


def test_a_left_out_topic_cannot_fail_the_others(log: SparkLog, other: SparkLog) -> None:
    """Its rows were laid out for another number of partitions; they are not needed."""
    keyed, more = stage(log, "a", "1", key="k"), stage(log, "b", "2")
    other.create_topic("a", 5)
    with pytest.raises(RetriableError, match="TOPIC_CHANGED"):
        log.publish([keyed, more], txn=("job", 1))
    other.append("a", rows("1"), txn=("job", 1))
    assert log.publish([keyed, more], txn=("job", 1)).skipped.keys() == {"a"}
    assert values(log, "b") == ["2"]


def test_a_topic_made_anew_gets_it_again(log: SparkLog) -> None:
    log.append("a", rows("old"), txn=("job", 1))
    log.delete_topic("a")
    assert not log.append("a", rows("new"), txn=("job", 1)).duplicate
    assert values(log, "a") == ["new"]


def test_other_content_is_an_error(log: SparkLog) -> None:
    log.publish([stage(log, "a", "1")], txn=("job", 7), content="x")
    with pytest.raises(InvalidRequestError, match="TXN_CONTENT_DIFFERS"):
        log.publish([stage(log, "a", "2"), stage(log, "b", "2")], txn=("job", 7), content="y")
    assert values(log, "a") == ["1"]
    assert "b" not in log.image.topics
    again = log.publish([stage(log, "a", "1"), stage(log, "b", "2")], txn=("job", 7), content="x")
    assert again.skipped["a"].content == "x"


@pytest.mark.parametrize("content", ["", "x"])
def test_others_plan_the_same_from_a_request(log: SparkLog, content: str) -> None:
    log.append("a", rows("1"), txn=("job", 7))
    staged = [stage(log, "a", "1"), stage(log, "b", "2")]
    writer = WriterVersion(application="job", version=7, content=content)
    actions = interpret_request(encode_payload(staged, writer))(log.image)
    assert actions == plan_publish(log.image, staged, writer)
    assert [action.topics for action in actions if isinstance(action, WriterTxn)] == [
        (staged[1].drafts[0].topic_id,)
    ]
    with pytest.raises(CorruptLogError, match="CORRUPT_METADATA_REQUEST"):
        interpret_request(b'{"writer_txn":{"application":"a","version":1,"topics":["x"]}}')


def test_forgetting_is_said_once(log: SparkLog, monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    monkeypatch.setattr(writers_module, "MAX_WRITER_TXNS", 2)
    monkeypatch.setattr(import_module("sparklog.client.publish"), "MAX_WRITER_TXNS", 2)  # not the function
    topic = f"t-{new_id()}"  # of no other test: a process says it once a topic
    for name in ("a", "b"):
        log.append(topic, rows(name), txn=(name, 1))
    assert told("sparklog.client.publish") == []
    log.append(topic, rows("b"), txn=("b", 2))
    log.append(topic, rows("c"), txn=("c", 1))
    log.append(topic, rows("d"), txn=("d", 1))
    (message,) = told("sparklog.client.publish")
    assert "has just forgotten 'a'" in message
    assert log.append(topic, rows("a"), txn=("a", 1)).commit is not None
