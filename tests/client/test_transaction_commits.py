"""Transactions of Python: all or nothing over topics and groups, one process at a time for an id."""

import contextlib
from collections.abc import Iterator

import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.client import transaction as transaction_module
from sparklog.client import transaction as transaction_plans
from sparklog.clock import ManualClock
from sparklog.errors import (
    FencedError,
    InvalidRequestError,
    RetriableError,
    SparklogError,
)
from sparklog.format.batch_table import scan_batches
from sparklog.format.record_batch import TRANSACTIONAL_MASK
from sparklog.metadata import (
    ForgetTransactions,
    TransactionPhase,
)
from sparklog.metadata.model import transactions
from sparklog.metadata.model import transactions as ending
from sparklog.storage import MemoryStore
from tests.client.transacting import abort_as_a_broker, begin, phase, refused, rows, values
from tests.support.roots import opened


@pytest.fixture
def log(store: MemoryStore, clock: ManualClock) -> Iterator[SparkLog]:
    with opened(store, clock) as log:
        yield log


# --- all or nothing ----------------------------------------------------------------------------------


def test_a_commit_shows_all_topics_and_offsets_at_once(log: SparkLog, other: SparkLog) -> None:
    log.create_topic("a", 3)
    other.create_topic("b", 2)
    with log.transaction("app") as txn:
        txn.append("a", rows("1", "2", "3", "4", "5"))
        txn.append("b", rows("6"))
        txn.append("a", rows("7"), partition=2)
        txn.commit_offsets("g", {("in", 0): 7, ("in", 1): 9}, metadata="note")
        before = other.refresh(force=True)
        assert [values(other, "a"), values(other, "b"), other.committed_offsets("g")] == [[], [], {}]
    result = txn.result
    assert result is not None
    assert result.commit == before.commit + 1
    assert result.record_count == 7 + 2  # the offsets' are records as well
    assert [values(other, "a"), values(other, "b")] == [["1", "2", "3", "4", "5", "7"], ["6"]]
    assert other.committed_offsets("g") == {("in", 0): 7, ("in", 1): 9}
    assert other.describe_offsets("g")["in", 0].metadata == "note"
    assert phase(other) is TransactionPhase.COMMITTED


def test_what_is_staged_before_the_commit_is_not_seen(log: SparkLog, other: SparkLog) -> None:
    with log.transaction("app") as txn:
        txn.append("a", rows("1"))
        txn.flush()
        assert phase(other) is TransactionPhase.ONGOING
        txn.commit_offsets("g", {("in", 0): 1})
        txn.flush()
        assert other.image.transactions["app"].groups != ("g",)
        assert other.refresh().transactions["app"].groups == ("g",)
        txn.append("a", rows("2"))
        txn.append("b", rows("3"))
        assert [values(other, "a"), other.committed_offsets("g")] == [[], {}]
    assert [values(other, "a"), values(other, "b")] == [["1", "2"], ["3"]]
    assert other.committed_offsets("g") == {("in", 0): 1}


class WorkError(Exception):
    pass


@pytest.mark.parametrize("flushes", [False, True])
def test_an_exception_aborts(log: SparkLog, other: SparkLog, flushes: bool) -> None:
    txn = log.transaction("app")
    with contextlib.suppress(WorkError), txn:
        txn.append("a", rows("1"))
        txn.commit_offsets("g", {("in", 0): 1})
        if flushes:
            txn.flush()
        raise WorkError
    assert [values(other, "a"), other.committed_offsets("g"), txn.result] == [[], {}, None]
    assert phase(other) is (TransactionPhase.ABORTED if flushes else TransactionPhase.EMPTY)
    with txn:
        txn.append("a", rows("2"))
    assert values(other, "a") == ["2"]


@pytest.mark.parametrize("flushes", [False, True])
def test_an_abort_by_hand(log: SparkLog, other: SparkLog, flushes: bool) -> None:
    with log.transaction("app") as txn:
        txn.append("a", rows("1"))
        if flushes:
            txn.flush()
        txn.abort()
        with refused(InvalidRequestError, match="TRANSACTION_STATE"):
            txn.append("a", rows("2"))
    assert values(other, "a") == []
    with refused(InvalidRequestError, match="TRANSACTION_STATE"):
        txn.commit()


def test_a_small_transaction_is_one_metadata_commit(log: SparkLog) -> None:
    log.create_topic("a", 4)
    log.commit_offsets("g", {("in", 0): 0})
    txn = log.transaction("app")
    with txn:
        pass
    before = log.refresh().commit
    for turn in range(3):
        with txn:
            txn.append("a", rows("1", "2", "3", "4", "5"))
            txn.append("a", rows("6"))
            txn.commit_offsets("g", {("in", 0): turn})
    assert log.refresh().commit == before + 3
    assert len(values(log, "a")) == 18


def test_nothing_in_it_is_no_commit(log: SparkLog) -> None:
    txn = log.transaction("app")
    with txn:
        txn.append("a", rows())
        txn.commit_offsets("g", {})
    before = log.refresh().commit
    with txn:
        pass
    assert txn.result is not None
    assert (txn.result.commit, txn.result.ranges, log.refresh().commit) == (None, {}, before)


def test_sequences_go_on_within_a_transaction_and_begin_again_with_the_next(log: SparkLog) -> None:
    """As a late copy is told by them, and each transaction is an epoch."""
    log.create_topic("a", 2)
    txn = log.transaction("app")
    for _ in range(2):
        with txn:
            txn.append("a", rows("1", "2", "3"), partition=0)
            txn.append("a", rows("1"), partition=1)
            txn.append("a", rows("4"), partition=0)
            txn.flush()
            txn.append("a", rows(*"abcdefghij"))
    found = [log.image.partition("a", partition).extents for partition in range(2)]
    for extents in found:
        by_epoch: dict[int, int] = {}
        for extent in extents:
            assert extent.producer_id >= 0
            assert extent.base_sequence == by_epoch.get(extent.producer_epoch, 0)
            by_epoch[extent.producer_epoch] = extent.base_sequence + extent.record_count
        assert list(by_epoch) == [0, 1]


def test_large_rows_become_one_extent(log: SparkLog, other: SparkLog) -> None:
    """They are written as they come, behind one another."""
    log.create_topic("a", 1)
    large = pa.table({"value": ["v" * 1000] * 5_000})
    with log.transaction("app") as txn:
        for _ in range(3):
            txn.append("a", large)
        txn.flush()
        (staged,) = log.image.transactions["app"].staged_in(log.image.topic("a").topic_id, 0)
        assert (staged.record_count, staged.base_sequence) == (15_000, 0)
        txn.append("a", rows("last"))
    first, last = other.refresh().partition("a", 0).extents
    assert (first.base_sequence, last.base_sequence) == (0, 15_000)
    assert other.log_end_offset("a", 0) == 15_001


def test_batches_are_stored_as_a_transactional_producer_writes_them(log: SparkLog) -> None:
    log.create_topic("a", 2)
    with log.transaction("app") as txn:
        txn.append("a", rows(*"abcdefgh"))
        txn.flush()
        txn.append("a", rows(*"ijklmnop"))
    found = 0
    for state in log.image.topic("a").partitions:
        for extent in state.extents:
            data = log.store.read(extent.segment, extent.position, extent.size)
            table = scan_batches(data, where="test")
            assert (table.attributes & TRANSACTIONAL_MASK).all()
            assert set(table.producer_id.tolist()) == {extent.producer_id}
            assert set(table.producer_epoch.tolist()) == {extent.producer_epoch}
            assert table.base_sequence[0] == extent.base_sequence
            found += int(table.record_count.sum())
    assert found == 16


def test_large_transactions_are_staged_as_they_go(
    log: SparkLog, other: SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_module, "STAGE_BYTES", 1_000)
    log.create_topic("a", 3)
    expected = []
    with log.transaction("app") as txn:
        for number in range(20):
            some = [f"{number}/{row}" for row in range(10)]
            expected += some
            txn.append("a", rows(*some))
    assert values(other, "a") == sorted(expected)
    assert txn.result is not None
    assert txn.result.record_count == 200


def test_slow_transactions_are_staged_as_they_go(log: SparkLog, other: SparkLog, clock: ManualClock) -> None:
    with log.transaction("app") as txn:
        txn.append("a", rows("1"))
        clock.advance_ms(transaction_module.STAGE_AFTER_MS)
        txn.append("a", rows("2"))
        assert other.refresh().transactions["app"].number == 0
        clock.advance_ms(1)
        txn.append("a", rows("2"))
        assert phase(other) is TransactionPhase.ONGOING


def test_rows_go_where_those_of_an_append_go(log: SparkLog) -> None:
    for name in ("plain", "txn"):
        log.create_topic(name, 7, {"compression.type": "zstd"})
    table = pa.table({"key": [f"k{n % 50}" for n in range(500)], "value": ["v" * 50] * 500})
    log.append("plain", table)
    with log.transaction("app") as txn:
        txn.append("txn", table)
    for partition in range(7):
        one, two = (
            pa.Table.from_batches(list(log.read_batches(name, partition)))["key"].to_pylist()
            for name in ("plain", "txn")
        )
        assert one == two
    sizes = {
        name: sum(p.size_bytes for p in log.describe_topic(name).partitions) for name in ("plain", "txn")
    }
    assert abs(sizes["plain"] - sizes["txn"]) < 100


# --- who may -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("flushes", [False, True])
def test_a_second_process_fences_the_first(log: SparkLog, other: SparkLog, flushes: bool) -> None:
    old, new = log.transaction("app"), other.transaction("app")
    with refused(FencedError, match=r"PRODUCER_FENCED.*another process.*Fix: stop this process"), old:
        old.append("a", rows("old"))
        if flushes:
            old.flush()
        with new:
            new.append("a", rows("new"))
    assert values(log, "a") == ["new"]
    with refused(FencedError, match="PRODUCER_FENCED"):
        begin(old)  # and it does not fence the other one in turn
    with new:
        new.append("a", rows("newer"))
    assert values(log, "a") == ["new", "newer"]


def test_what_was_open_is_aborted_by_who_comes_next(log: SparkLog, other: SparkLog) -> None:
    old = log.transaction("app").__enter__()
    old.append("a", rows("old"))
    old.flush()
    with other.transaction("app"):
        assert other.image.transactions["app"].staged_extents == 0
    assert values(other, "a") == []
    with refused(FencedError):
        old.append("a", rows("older"))
        old.flush()


def test_a_transaction_that_a_broker_has_aborted_is_done_again(log: SparkLog, other: SparkLog) -> None:
    txn = log.transaction("app", timeout_ms=1_000)
    with (
        refused(RetriableError, match=r"TRANSACTION_ABORTED.*longer than 1000 ms.*Fix: repeat the trans"),
        txn,
    ):
        txn.append("a", rows("1"))
        txn.flush()
        abort_as_a_broker(other)
    assert values(other, "a") == []
    with txn:
        txn.append("a", rows("2"))
    assert values(other, "a") == ["2"]


def test_who_comes_after_such_an_abort_fences(log: SparkLog, other: SparkLog) -> None:
    txn = log.transaction("app")
    with refused(RetriableError, match="TRANSACTION_ABORTED"), txn:
        txn.append("a", rows("1"))
        txn.flush()
        abort_as_a_broker(other)
    with other.transaction("app"):
        pass
    with refused(FencedError):
        begin(txn)


def test_an_id_that_was_forgotten_is_taken_again(log: SparkLog) -> None:
    txn = log.transaction("app")
    with txn:
        txn.append("a", rows("1"))
    log.metadata.publish(lambda _: [ForgetTransactions(transactional_ids=("app",))])
    with txn:
        txn.append("a", rows("2"))
    with refused(RetriableError, match=r"TRANSACTION_ABORTED.*transactional\.id\.expiration\.ms"), txn:
        txn.append("a", rows("3"))
        log.metadata.publish(lambda _: [ForgetTransactions(transactional_ids=("app",))])
    assert values(log, "a") == ["1", "2"]


def test_epochs_run_out(log: SparkLog, other: SparkLog, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (transactions, ending, transaction_plans):
        monkeypatch.setattr(module, "LAST_PRODUCER_EPOCH", 2)
    log.create_topic("a", 1)
    txn, found = log.transaction("app"), []
    for number in range(7):
        with txn:
            found.append(log.image.transactions["app"])
            txn.append("a", rows(str(number)))
    producers = [(one.producer_id, one.producer_epoch) for one in found]
    first = producers[0][0]
    assert [(one - first, epoch) for one, epoch in producers] == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0),
    ]  # fmt: skip
    assert values(other, "a") == list("0123456")


def test_ids_are_independent(log: SparkLog, other: SparkLog) -> None:
    with log.transaction("one") as one:
        one.append("a", rows("1"))
        with other.transaction("two") as two:
            two.append("a", rows("2"))
    assert values(log, "a") == ["1", "2"]
    assert two.result is not None
    assert one.result is not None
    assert (two.result.partitions[0].base_offset, one.result.partitions[0].base_offset) == (0, 1)


def test_one_at_a_time(log: SparkLog) -> None:
    txn = log.transaction("app")
    with txn, refused(InvalidRequestError, match=r"TRANSACTION_STATE.*found a transaction open"):
        txn.__enter__()
    with refused(InvalidRequestError, match=r"TRANSACTION_STATE.*found none open"):
        txn.flush()


def test_arguments_that_cannot_be(log: SparkLog) -> None:
    for transactional_id, timeout_ms, code in (
        ("", 1, "INVALID_TRANSACTIONAL_ID"),
        ("app\udcff", 1, r"INVALID_TRANSACTIONAL_ID.*half of a surrogate pair"),
        ("app", 0, "INVALID_TRANSACTION_TIMEOUT"),
    ):
        with (
            refused(InvalidRequestError, match=code),
            log.transaction(transactional_id, timeout_ms=timeout_ms),
        ):
            pytest.fail("it has begun")
    for application, version in (("app", -1), ("app\ud800", 1)):
        with refused(InvalidRequestError, match="INVALID_ACTIONS"):
            log.transaction(application, version=version)
    with refused(InvalidRequestError, match=r"INVALID_ACTIONS.*half of a surrogate pair"):
        log.append("a", rows("1"), txn=("app\udcff", 1))
    with (
        refused(SparklogError, match="UNSUPPORTED_CODEC"),
        log.transaction("app", compression_type="x") as txn,
    ):
        txn.append("a", rows("1"))
