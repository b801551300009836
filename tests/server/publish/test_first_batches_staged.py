"""A transaction's first batch in a partition that is to be sent again: none that follows takes its place."""

import dataclasses

import msgspec
import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.metadata.model import staging
from sparklog.storage import MemoryStore
from sparklog_server.publish.group_commit import GroupCommitter
from tests.server.publish.test_group_commit import offsets, values
from tests.server.publish.transactional_parts import leading, of, refused, unreachable
from tests.support.roots import opened
from tests.support.transactional_producer import TransactionalProducer


@pytest.fixture
def committer(store: MemoryStore, clock: ManualClock, log: SparkLog) -> GroupCommitter:
    return leading(log, store, clock)


@pytest.fixture
def producer(committer: GroupCommitter, log: SparkLog) -> TransactionalProducer:
    return TransactionalProducer(log).begin()


def test_what_found_no_room_is_waited_for(
    committer: GroupCommitter, producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer.add(0)
    with monkeypatch.context() as full:
        full.setattr(staging, "MAX_ROOT_WEIGHT", 0)
        assert refused(committer.write([of(producer)])) == ["TRANSACTIONS_FULL"]
    assert refused(committer.write([of(producer, 2)])) == ["OUT_OF_ORDER_SEQUENCE"]
    assert offsets(committer.write([of(producer), of(producer, 2)])) == [-1, -1]
    producer.end()
    assert len(values(producer.log)) == 4


def test_what_is_smaller_does_not_take_its_place_in_the_same_commit(
    committer: GroupCommitter, producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer.add(0, 1)
    first, second, elsewhere = of(producer, count=9), of(producer, 9), of(producer, partition=1)
    with monkeypatch.context() as full:
        full.setattr(staging, "MAX_ROOT_STAGED_BYTES", first.size_bytes - 1)
        outcomes = committer.write([first, second, elsewhere])
    assert refused(outcomes) == ["TRANSACTIONS_FULL", "OUT_OF_ORDER_SEQUENCE", ""]
    assert offsets(committer.write([first, second])) == [-1, -1]


def test_offsets_for_which_there_was_no_room_stand_in_the_way_of_no_others(
    committer: GroupCommitter, producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have no sequence of their own: whichever is first takes the first one."""
    producer.add(0)
    large, small = (msgspec.structs.replace(of(producer, count=n), base_sequence=-1) for n in (9, 1))
    with monkeypatch.context() as full:
        full.setattr(staging, "MAX_ROOT_STAGED_BYTES", large.size_bytes - 1)
        assert refused(committer.write([large, small])) == ["TRANSACTIONS_FULL", ""]


@pytest.mark.parametrize("unseen", ["all of it", "its transaction", "its partition"])
def test_what_could_not_be_judged_is_waited_for(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore, unseen: str
) -> None:
    """The image by which it was judged is older than what another broker has done for the producer."""
    with opened(store, log.clock) as other:
        producer = TransactionalProducer(other if unseen == "all of it" else log).begin()
        if unseen == "its partition":
            producer.add(1)
        producer.log = other
        producer.add(0)
        store.hook = unreachable
        assert refused(committer.write([of(producer)])) == ["TRANSACTION_UNKNOWN"]
        store.hook = None
        assert refused(committer.write([of(producer, 2)])) == ["OUT_OF_ORDER_SEQUENCE"]
        assert offsets(committer.write([of(producer), of(producer, 2)])) == [-1, -1]


def test_what_could_not_be_judged_is_not_waited_for_in_the_next_transaction(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore, producer: TransactionalProducer
) -> None:
    with opened(store, log.clock) as other:
        elsewhere = dataclasses.replace(producer, log=other)
        elsewhere.add(0)
        store.hook = unreachable
        assert refused(committer.write([of(producer)])) == ["TRANSACTION_UNKNOWN"]
        store.hook = None
        elsewhere.end(commits=False)
        elsewhere.add(0)
        log.refresh()
        assert offsets(committer.write([of(producer, 2)])) == [-1]
