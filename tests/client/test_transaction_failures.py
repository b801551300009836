"""Transactions of Python when something fails, is repeated, or its outcome is not known."""

import copy
import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import (
    FencedError,
    InvalidRequestError,
    RetriableError,
    SparklogError,
    StorageError,
    UnknownTopicError,
)
from sparklog.metadata import (
    ExpireProducers,
    Image,
    MoveSweepHorizon,
    plan_expire_producers,
    plan_move_sweep_horizon,
)
from sparklog.storage import MemoryStore
from tests.client.transacting import abort_as_a_broker, begin, refused, rows, values
from tests.support.roots import opened


@pytest.fixture
def log(store: MemoryStore, clock: ManualClock) -> Iterator[SparkLog]:
    with opened(store, clock) as log:
        yield log


# --- what goes wrong ---------------------------------------------------------------------------------


def test_after_an_append_that_failed_nothing_is_committed(log: SparkLog) -> None:
    log.create_topic("a", 1, {"max.message.bytes": "200"})
    txn = log.transaction("app")
    with refused(InvalidRequestError, match=r"TRANSACTION_STATE.*found an append that failed"), txn:
        txn.append("a", rows("1"))
        with refused(UnknownTopicError):
            log.alter_root({"auto.create.topics.enable": "false"})
            txn.append("missing", rows("2"))
    assert values(log, "a") == []
    with refused(InvalidRequestError, match="RECORD_TOO_LARGE"), txn:
        txn.append("a", rows("x" * 1000))
    with refused(InvalidRequestError, match="pyarrow"), txn:
        txn.append("a", [{"value": "1"}])
    with refused(InvalidRequestError, match="INVALID_GROUP"), txn:
        txn.commit_offsets("", {("a", 0): 1})
    with txn:
        txn.append("a", rows("3"))
    assert values(log, "a") == ["3"]


def test_topics_that_are_missing_are_made_as_by_an_append(log: SparkLog, other: SparkLog) -> None:
    log.alter_root({"num.partitions": "3", "offsets.topic.num.partitions": "7"})
    with log.transaction("app") as txn:
        txn.append("a", rows("1"))
        txn.append("b", rows("2"))
        other.create_topic("c", 2)
        txn.append("c", rows("3"))
        txn.append("a", rows("4"))
        txn.commit_offsets("g", {("a", 0): 1})
    assert [log.partition_count(topic) for topic in ("a", "b", "c", "__consumer_offsets")] == [3, 3, 2, 7]
    assert log.describe_topic("__consumer_offsets").configs == {"cleanup.policy": "compact"}
    assert [values(other, topic) for topic in ("a", "b", "c")] == [["1", "4"], ["2"], ["3"]]
    assert other.groups() == ["g"]


def test_topics_that_come_to_exist_meanwhile(log: SparkLog, other: SparkLog) -> None:
    """Whoever makes them, and however this process learns of them."""
    log.create_topic("a")
    log.create_topic("b")
    with log.transaction("app") as txn:
        txn.append("a", rows("1"))
        log.create_topic("c")
        txn.append("c", rows("2"))
        other.create_topic("d", 2)
        other.commit_offsets("h", {("a", 0): 1})
        log.refresh(force=True)
        txn.commit_offsets("g", {("a", 0): 1})
        txn.append("d", rows("3"))
        other.delete_topic("b")
        other.create_topic("b")
        log.refresh(force=True)
        txn.append("b", rows("4"))
        txn.append("a", rows("5"))
    assert [values(other, topic) for topic in "abcd"] == [["1", "5"], ["4"], ["2"], ["3"]]
    assert other.groups() == ["g", "h"]


def test_a_topic_that_is_deleted_meanwhile(log: SparkLog, other: SparkLog) -> None:
    txn = log.transaction("app")
    with refused(UnknownTopicError), txn:
        txn.append("a", rows("1"))
        txn.append("b", rows("2"))
        other.refresh()
        other.delete_topic("a")
    assert values(log, "b") == []
    with txn:  # staged already: that part is dropped, as in Kafka
        txn.append("a", rows("1"))
        txn.append("b", rows("2"))
        txn.flush()
        other.refresh()
        other.delete_topic("a")
    assert [values(log, "a"), values(log, "b")] == [[], ["2"]]
    assert txn.result is not None
    assert list(txn.result.ranges) == [("b", 0)]


def test_rows_that_were_swept_before_they_were_staged_are_written_again(
    log: SparkLog, other: SparkLog, store: MemoryStore
) -> None:
    def swept(image: Image) -> list[MoveSweepHorizon]:
        move = plan_move_sweep_horizon(image, image.commit - 1)
        assert move is not None
        return [move]

    log.create_topic("a", 3)
    with log.transaction("app") as txn:
        txn.append("a", rows(*"abcdefgh"))
        txn.append("b", rows("9"))  # that makes a topic, so what was before it is written by now
        for _ in range(3):
            other.commit_offsets("g", {("x", 0): 1})
        other.metadata.publish(swept)
    assert [values(other, "a"), values(other, "b")] == [[*"abcdefgh"], ["9"]]


def test_a_partition_that_has_forgotten_the_producer_takes_old_timestamps(
    log: SparkLog, other: SparkLog, clock: ManualClock
) -> None:
    """Nothing of a transaction that is open can be a repetition of what another one has written."""
    day_ms = 86_400_000

    def expired(image: Image) -> list[ExpireProducers]:
        action = plan_expire_producers(image, clock.now_ms(), day_ms)
        return [] if action is None else [action]

    log.create_topic("a", 1)
    job, hot = log.transaction("job"), other.transaction("hot")
    for txn in (job, hot, hot, hot):
        with txn:
            txn.append("a", rows("new"))
    for _ in range(3):
        clock.advance_ms(2 * day_ms)
        log.metadata.publish(expired)
    assert log.refresh().partition("a", 0).forgotten.producer_id > 0
    with log.transaction("job") as again:
        again.append("a", pa.table({"value": ["old"], "timestamp": [1]}))
    assert "old" in values(log, "a")


# --- unknown outcomes --------------------------------------------------------------------------------


class LostAnswers:
    """A metadata log whose answers get lost: of the n-th publish and `count` more."""

    def __init__(self, log: SparkLog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.applied = True
        self.left = 0
        publish = log.metadata.publish

        def losing(plan: Callable[..., object], **options: object) -> object:
            if not self.left:
                return publish(plan, **options)  # type: ignore[arg-type]
            self.left -= 1
            if self.applied:
                publish(plan, **options)  # type: ignore[arg-type]
            raise StorageError("PUBLISH_UNRESOLVED", "the answer is lost", fix="look")

        monkeypatch.setattr(log.metadata, "publish", losing)

    def lose(self, count: int, *, applied: bool) -> None:
        self.left, self.applied = count, applied


@pytest.fixture
def lost(log: SparkLog, monkeypatch: pytest.MonkeyPatch) -> LostAnswers:
    return LostAnswers(log, monkeypatch)


@pytest.mark.parametrize("applied", [True, False])
def test_a_commit_whose_answer_was_lost_is_found(
    log: SparkLog, other: SparkLog, lost: LostAnswers, applied: bool
) -> None:
    txn = log.transaction("app")
    for turn in range(2):
        with txn:
            txn.append("a", rows(str(turn)))
            lost.lose(1, applied=applied)
        assert txn.result is not None
        assert txn.result.commit == log.image.commit
        assert txn.result.partitions[0].base_offset == turn
    assert values(other, "a") == ["0", "1"]


@pytest.mark.parametrize("applied", [True, False])
def test_staging_whose_answer_was_lost_is_found(
    log: SparkLog, other: SparkLog, lost: LostAnswers, applied: bool
) -> None:
    with log.transaction("app") as txn:
        for turn in range(3):
            txn.append("a", rows(str(turn)))
            txn.commit_offsets("g", {("in", 0): turn})
            lost.lose(1, applied=applied)
            txn.flush()
    assert values(other, "a") == ["0", "1", "2"]
    assert other.committed_offsets("g") == {("in", 0): 2}


def test_staging_whose_answer_was_lost_and_that_a_broker_has_aborted_is_done_again(
    log: SparkLog, other: SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process does not know the transaction that it has opened, and nobody has taken its id."""
    publish = log.metadata.publish

    def losing(plan: Callable[..., object], **options: object) -> object:
        monkeypatch.undo()
        publish(plan, **options)  # type: ignore[arg-type]
        abort_as_a_broker(other)
        raise StorageError("PUBLISH_UNRESOLVED", "the answer is lost", fix="look")

    txn = log.transaction("app")
    with refused(RetriableError, match="TRANSACTION_ABORTED"), txn:
        txn.append("a", rows("1"))
        monkeypatch.setattr(log.metadata, "publish", losing)
        txn.flush()
    with txn:
        txn.append("a", rows("2"))
    assert values(other, "a") == ["2"]


@pytest.mark.parametrize("applied", [True, False])
def test_an_abort_whose_answer_was_lost(
    log: SparkLog, other: SparkLog, lost: LostAnswers, applied: bool
) -> None:
    txn = log.transaction("app")
    with txn:
        txn.append("a", rows("0"))
        txn.flush()
        lost.lose(1, applied=applied)
        txn.abort()
    with txn:
        txn.append("a", rows("1"))
    assert values(other, "a") == ["1"]


@pytest.mark.parametrize("applied", [True, False])
def test_taking_an_id_whose_answer_was_lost(
    log: SparkLog, other: SparkLog, lost: LostAnswers, applied: bool
) -> None:
    lost.lose(1, applied=applied)
    with log.transaction("app") as txn:
        txn.append("a", rows("1"))
    assert values(other, "a") == ["1"]


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("flushes", [False, True])
def test_what_stays_unknown_is_told_and_found_out_by_the_next(
    log: SparkLog, other: SparkLog, lost: LostAnswers, applied: bool, flushes: bool
) -> None:
    txn = log.transaction("app")
    with refused(StorageError, match="PUBLISH_UNRESOLVED"), txn:
        txn.append("a", rows("1"))
        if flushes:
            txn.flush()
        lost.lose(3, applied=applied)
    assert values(other, "a") == (["1"] if applied else [])
    with txn:
        txn.append("a", rows("2"))
    assert values(other, "a") == (["1", "2"] if applied else ["2"])


def test_who_did_not_commit_is_not_told_so(log: SparkLog, other: SparkLog) -> None:
    """A clone of the machine goes on with the same producer, in the same epoch."""
    log.create_topic("a", 2)
    one = log.transaction("app")
    with one:
        one.append("a", rows("0"))
    clone, idle = copy.copy(one), copy.copy(one)
    with one, refused(FencedError, match="PRODUCER_FENCED"), clone:
        one.append("a", rows("1"), partition=0)
        clone.append("a", rows("2"), partition=1)
        one.commit()
    assert values(other, "a") == ["0", "1"]
    for late in (clone, idle):
        with refused(FencedError, match="PRODUCER_FENCED"):
            begin(late)


def test_clones_do_not_commit_each_others_rows(log: SparkLog, other: SparkLog) -> None:
    log.create_topic("a", 2)
    one = log.transaction("app")
    with one:
        one.append("a", rows("0"))
    clone = copy.copy(one)
    with refused(FencedError, match="PRODUCER_FENCED"), one, clone:
        one.append("a", rows("1"), partition=0)
        one.flush()
        clone.append("a", rows("2"), partition=1)
        clone.flush()
    assert values(other, "a") == ["0"]


@pytest.mark.slow
def test_a_forked_child_cannot_commit(log: SparkLog) -> None:
    txn = log.transaction("app")
    here, there = multiprocessing.Pipe()

    def child(answers: Connection) -> None:
        try:
            txn.commit()
        except SparklogError as error:
            answers.send(error.code)

    with txn:
        txn.append("a", rows("1"))
        process = multiprocessing.get_context("fork").Process(target=child, args=(there,))
        process.start()
        assert here.poll(30)
        assert here.recv() == "TRANSACTION_FORKED"
        process.join(60)
    assert values(log, "a") == ["1"]


# --- versions ----------------------------------------------------------------------------------------


def test_a_version_is_committed_once(log: SparkLog, other: SparkLog) -> None:
    for client, duplicate in ((log, False), (other, True)):
        for flushes in (False, True):
            with client.transaction("query", version=3) as txn:
                txn.append("a", rows("1"))
                txn.append("b", rows("2"))
                txn.commit_offsets("g", {("in", 0): 1})
                if flushes:
                    txn.flush()
            assert txn.result is not None
            assert txn.result.duplicate is (duplicate or flushes)
    assert [values(log, "a"), values(log, "b")] == [["1"], ["2"]]
    with log.transaction("query", version=4) as txn:
        txn.append("b", rows("3"))
    assert values(log, "b") == ["2", "3"]


def test_an_older_version_is_refused(log: SparkLog) -> None:
    with log.transaction("query", version=3) as txn:
        txn.append("a", rows("1"))
    older = log.transaction("query", version=2)
    with refused(InvalidRequestError, match=r"VERSION_OUTDATED.*found version 2, and version 3 is"), older:
        older.append("a", rows("0"))
        older.commit_offsets("g", {("in", 0): 0})
    assert values(log, "a") == ["1"]
    assert log.committed_offsets("g") == {}


def test_a_version_of_offsets_alone(log: SparkLog) -> None:
    with log.transaction("query", version=1) as txn:
        txn.commit_offsets("g", {("in", 0): 1})
    with log.transaction("query", version=1) as txn:
        txn.commit_offsets("g", {("in", 0): 9})
    assert txn.result is not None
    assert txn.result.duplicate
    assert log.committed_offsets("g") == {("in", 0): 1}
