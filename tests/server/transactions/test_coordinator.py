"""What producers are told, whichever broker they ask, and however late (tests/models/transactions.py)."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from sparklog.errors import FencedError, InvalidRequestError, RetriableError, SparklogError
from sparklog.metadata import TransactionPhase
from sparklog_server.transactions.coordinator import Marked, Producer, TransactionCoordinator
from tests.server.transactions.conftest import Root

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def begun(root: Root, **has: int) -> Producer:
    named = Producer(**has) if has else None
    return run(root.coordinator.initialise("app", 60_000, named))


def opened(root: Root, producer: Producer, coordinator: TransactionCoordinator | None = None) -> None:
    partitions = [(root.topic_id(), 0)]
    run((coordinator or root.coordinator).add_partitions("app", producer, partitions))


def ended(root: Root, producer: Producer, *, commits: bool = True, raises: bool = False) -> Producer:
    return run(root.coordinator.end("app", producer, commits=commits, raises=raises))


def test_what_is_staged_becomes_visible_by_the_end_and_not_before(root: Root) -> None:
    producer = begun(root)
    opened(root, producer)
    root.stage(producer)
    assert root.ends() == [0, 0]
    ended(root, producer)
    assert root.ends() == [3, 0]
    assert root.transaction().phase is TransactionPhase.COMMITTED


def test_what_is_aborted_is_gone_and_sequences_go_on(root: Root) -> None:
    producer = begun(root)
    opened(root, producer)
    root.stage(producer)
    assert ended(root, producer, commits=False) == producer
    opened(root, producer)
    root.stage(producer, base_sequence=3)
    ended(root, producer)
    assert root.ends() == [3, 0]


def test_a_repeated_end_is_answered_by_what_was_decided(root: Root) -> None:
    producer = begun(root)
    for commits in (True, False):
        opened(root, producer)
        ended(root, producer, commits=commits)
        before = root.commits.count
        assert ended(root, producer, commits=commits) == producer
        with pytest.raises(InvalidRequestError, match="TRANSACTION_STATE"):
            ended(root, producer, commits=not commits)
        assert root.commits.count == before
    assert (root.metrics.transactions.committed, root.metrics.transactions.aborted) == (1, 1)


def test_nothing_open_cannot_be_ended_in_the_first_protocol(root: Root) -> None:
    producer = begun(root)
    for commits in (True, False):
        with pytest.raises(InvalidRequestError, match="TRANSACTION_STATE"):
            ended(root, producer, commits=commits)


def test_each_end_of_the_second_protocol_raises_the_epoch(root: Root) -> None:
    first = begun(root)
    root.stage(first, opens=True)
    second = ended(root, first, raises=True)
    assert second == (first.producer_id, first.producer_epoch + 1)
    # Repeated, since the answer was lost: whoever has it now is told.
    assert ended(root, first, raises=True) == second
    with pytest.raises(InvalidRequestError, match="TRANSACTION_STATE"):
        ended(root, first, commits=False, raises=True)
    # An abort may have nothing to abort; a commit may not.
    with pytest.raises(InvalidRequestError, match="TRANSACTION_STATE"):
        ended(root, second, raises=True)
    third = ended(root, second, commits=False, raises=True)
    assert third.producer_epoch == second.producer_epoch + 1
    with pytest.raises(FencedError, match="PRODUCER_FENCED"):
        ended(root, first, raises=True)
    assert root.ends() == [3, 0]


def test_who_is_initialised_fences_the_others_and_aborts_what_they_have_open(root: Root) -> None:
    old = begun(root)
    opened(root, old)
    root.stage(old)
    new = begun(root)
    assert new == (old.producer_id, old.producer_epoch + 1)
    assert root.transaction().phase is TransactionPhase.EMPTY
    for refused in (
        lambda: opened(root, old),
        lambda: run(root.coordinator.add_group("app", old, "g")),
        lambda: ended(root, old),
        lambda: ended(root, old, raises=True),
        lambda: begun(root, **old._asdict()),
    ):
        with pytest.raises(FencedError, match="PRODUCER_FENCED"):
            refused()
    assert root.ends() == [0, 0]


def test_who_names_itself_gets_the_next_epoch_once(root: Root) -> None:
    first = begun(root)
    second = begun(root, **first._asdict())
    assert second.producer_epoch == first.producer_epoch + 1
    before = root.commits.count
    assert begun(root, **first._asdict()) == second  # the answer was lost
    assert root.commits.count == before
    third = begun(root, **second._asdict())
    with pytest.raises(FencedError, match="PRODUCER_FENCED"):
        begun(root, **first._asdict())
    assert begun(root, producer_id=third.producer_id, producer_epoch=third.producer_epoch)


def test_a_producer_whose_epochs_are_used_up_gets_another_id(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparklog.metadata.model.transactions.LAST_PRODUCER_EPOCH", 2)
    producer = begun(root)
    last = begun(root, **begun(root)._asdict())
    assert last == (producer.producer_id, 2)
    root.stage(last, opens=True)
    other = ended(root, last, raises=True)
    assert other.producer_id > last.producer_id
    assert other.producer_epoch == 0
    assert ended(root, last, raises=True) == other
    assert root.ends() == [3, 0]
    last = begun(root, **begun(root)._asdict())
    assert begun(root).producer_id > last.producer_id


def test_an_unknown_id_or_another_producers_is_told_from_one_that_is_fenced(root: Root) -> None:
    with pytest.raises(InvalidRequestError, match="PRODUCER_UNMAPPED"):
        opened(root, Producer(7, 0))
    producer = begun(root)
    with pytest.raises(InvalidRequestError, match="PRODUCER_UNMAPPED"):
        ended(root, Producer(producer.producer_id + 1, 0))


@pytest.mark.parametrize("timeout_ms", [-1, 0, 900_001])
def test_a_time_out_must_be_one_that_brokers_allow(root: Root, timeout_ms: int) -> None:
    with pytest.raises(InvalidRequestError, match=r"INVALID_TRANSACTION_TIMEOUT.*900000"):
        run(root.coordinator.initialise("app", timeout_ms, None))
    assert run(root.coordinator.initialise("app", 900_000, None)).producer_epoch == 0


# --- several brokers ---------------------------------------------------------------------------------


def test_a_broker_that_is_behind_refuses_nobody(root: Root) -> None:
    """What the other one has committed it has not seen yet, when it is asked."""
    other = root.elsewhere()
    producer = begun(root)
    opened(root, producer, other)
    root.stage(producer)
    assert run(other.end("app", producer, commits=True, raises=False)) == producer
    assert ended(root, producer) == producer  # a repetition, here
    opened(root, producer)
    root.stage(producer, base_sequence=3)
    # Which one is meant it cannot know; the producer is told to ask again, and by then it knows.
    with pytest.raises(RetriableError, match="TRANSACTION_CHANGED"):
        run(other.end("app", producer, commits=True, raises=False))
    assert run(other.end("app", producer, commits=True, raises=False)) == producer
    assert root.ends() == [6, 0]


@pytest.mark.parametrize("commits", [True, False])
def test_a_broker_that_is_behind_answers_no_end_by_the_one_before(root: Root, commits: bool) -> None:
    """Its image shows the same verdict, of another transaction."""
    other = root.elsewhere()
    producer = begun(root)
    opened(root, producer, other)
    run(other.end("app", producer, commits=commits, raises=False))
    opened(root, producer)
    with pytest.raises(RetriableError, match="TRANSACTION_CHANGED"):
        run(other.end("app", producer, commits=commits, raises=False))
    assert root.transaction().is_ongoing


def test_a_slow_end_does_not_end_the_next_transaction(root: Root) -> None:
    """Its coordinator took it in, and stood still; the copy that the client sent was answered elsewhere."""
    producer = begun(root)
    opened(root, producer)
    root.stage(producer)

    def meanwhile() -> None:
        with asyncio.Runner() as runner:
            other = root.elsewhere()
            root.other.refresh(force=True)
            runner.run(other.end("app", producer, commits=True, raises=False))
            runner.run(other.add_partitions("app", producer, [(root.topic_id(), 1)]))

    root.commits.before.append(lambda: in_thread(meanwhile))
    with pytest.raises(RetriableError, match="TRANSACTION_CHANGED"):
        ended(root, producer)
    assert root.transaction().number == 2
    assert root.transaction().is_ongoing
    assert root.ends() == [3, 0]


def test_nor_does_one_whose_coordinator_was_behind(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knew of no transaction yet; before it looked the first one was ended, and the next one begun."""
    places = [(root.topic_id(), 0)]
    look = root.live.look
    to_come: list[Coroutine[Any, Any, object]] = []

    def meanwhile() -> None:
        with asyncio.Runner() as runner:
            while to_come:
                runner.run(to_come.pop(0))

    async def slow_look(*, force: bool = False) -> SparklogError | OSError | None:
        in_thread(meanwhile)
        return await look(force=force)

    producer = run(root.elsewhere().initialise("app", 60_000, None))
    run(root.elsewhere().add_partitions("app", producer, places))
    assert "app" not in root.live.image.transactions
    other = root.elsewhere()
    to_come += [
        other.end("app", producer, commits=True, raises=False),
        other.add_partitions("app", producer, places),
    ]
    monkeypatch.setattr(root.live, "look", slow_look)
    root.commits.before.append(lambda: in_thread(meanwhile))
    with pytest.raises(RetriableError, match="TRANSACTION_CHANGED"):
        ended(root, producer)
    assert not to_come
    assert root.transaction().number == 2
    assert root.transaction().is_ongoing


def test_an_end_names_a_transaction_that_was_opened_elsewhere(root: Root) -> None:
    producer = begun(root)
    opened(root, producer)
    ended(root, producer)
    opened(root, producer, root.elsewhere())
    with pytest.raises(RetriableError, match="TRANSACTION_CHANGED"):
        ended(root, producer)
    assert ended(root, producer) == producer
    assert root.transaction().number == 2
    assert not root.transaction().is_ongoing


def in_thread(work: Any) -> None:
    import threading

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


# --- administrators ----------------------------------------------------------------------------------


def aborted(root: Root, *marked: tuple[Producer, int]) -> list[str | None]:
    """In a partition each; with what code each is refused."""
    asked = [Marked(producer, [(root.topic_id(), partition)]) for producer, partition in marked]
    return [None if one is None else one.code for one in run(root.coordinator.abort(asked))]


def test_an_administrator_aborts_all_of_it_and_fences_the_producer(root: Root) -> None:
    producer = begun(root)
    opened(root, producer)
    root.stage(producer)
    both = [(root.topic_id(), 1), (root.topic_id(), 0)]
    assert run(root.coordinator.abort([Marked(producer, both)])) == [None]
    assert root.transaction().phase is TransactionPhase.ABORTED
    with pytest.raises(FencedError, match="PRODUCER_FENCED"):
        ended(root, producer)
    assert root.ends() == [0, 0]
    assert root.metrics.transactions.aborted_by_administrators == 1
    before = root.commits.count
    assert aborted(root, (producer, 0)) == [None]  # it is not open any more
    assert root.commits.count == before
    assert root.metrics.transactions.aborted_by_administrators == 1


def test_an_administrator_means_one_transaction(root: Root) -> None:
    producer = begun(root)
    opened(root, producer)
    assert aborted(root, (producer, 1)) == ["TRANSACTION_STATE"]
    for epoch in (-1, 1):
        named = Producer(producer.producer_id, producer.producer_epoch + epoch)
        assert aborted(root, (named, 0)) == ["PRODUCER_FENCED"]
    assert aborted(root, (Producer(77, 0), 0)) == [None]  # whom nobody knows
    assert root.transaction().is_ongoing


def test_many_that_an_administrator_aborts_are_one_commit(root: Root) -> None:
    a, b, c = (run(root.coordinator.initialise(name, 60_000, None)) for name in ("a", "b", "c"))
    for name, producer in {"a": a, "b": b, "c": c}.items():
        run(root.coordinator.add_partitions(name, producer, [(root.topic_id(), 0)]))
    before = root.commits.count
    asked = [(a, 0), (b, 1), (a, 0), (Producer(77, 0), 0), (c, 0)]
    assert aborted(root, *asked) == [None, "TRANSACTION_STATE", None, None, None]
    assert root.commits.count == before + 1
    phases = {name: root.transaction(name).phase for name in ("a", "b", "c")}
    assert phases == {
        "a": TransactionPhase.ABORTED,
        "b": TransactionPhase.ONGOING,
        "c": TransactionPhase.ABORTED,
    }
    assert root.metrics.transactions.aborted_by_administrators == 2


def test_a_commit_that_fails_is_told_to_all_who_wait_for_it(root: Root) -> None:
    root.commits.failures.append(RetriableError("PUBLISH_CONTENDED", "busy", fix="again"))
    with pytest.raises(SparklogError, match="PUBLISH_CONTENDED"):
        begun(root)
    assert begun(root).producer_epoch == 0
