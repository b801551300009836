"""WriteTxnMarkers: an administrator's abort, as Kafka's admin client asks for it."""

from collections.abc import Sequence

import pytest

from sparklog.errors import SparklogError
from sparklog_server.transactions.coordinator import Marked, TransactionCoordinator
from tests.server.api.transacting import TransactionClient, producer_of

BROKER_TOPICS = {"orders": 2, "returns": 1}


@pytest.mark.parametrize("version", [1, 2])
def test_an_abort_by_kafkas_admin_client(transactor: TransactionClient, version: int) -> None:
    producer = producer_of(transactor.initialise())
    transactor.add(producer, ("orders", 0), ("returns", 0))
    mark = transactor.mark
    assert mark(producer, ("orders", 0), commits=True, version=version) == ["invalid_request"]
    assert mark(producer, ("orders", 1), version=version) == ["invalid_txn_state"]
    assert mark((producer[0], 5), ("orders", 0), version=version) == ["invalid_producer_epoch"]
    assert mark(producer, ("none", 0), version=version) == ["unknown_topic_or_partition"]
    assert transactor.listed() == {"app": (producer[0], "Ongoing")}
    assert mark(producer, ("none", 0), ("orders", 0), version=version) == [
        "unknown_topic_or_partition",
        "none",
    ]
    assert transactor.listed() == {"app": (producer[0], "CompleteAbort")}
    assert mark(producer, ("orders", 0), version=version) == ["none"]
    assert transactor.end(producer, version=4)[0] == "producer_fenced"


def test_all_markers_of_a_request_are_one_commit(
    transactor: TransactionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one request of a thousand holds up all who commit, for a thousand commits."""
    abort, decided = TransactionCoordinator.abort, []

    async def counted(
        coordinator: TransactionCoordinator, marked: Sequence[Marked]
    ) -> list[SparklogError | None]:
        decided.append(len(marked))
        return await abort(coordinator, marked)

    monkeypatch.setattr(TransactionCoordinator, "abort", counted)
    names = [f"app-{number}" for number in range(5)]
    producers = [producer_of(transactor.initialise(name)) for name in names]
    for name, producer in zip(names, producers, strict=True):
        transactor.add(producer, ("orders", 0), name=name)
    asked = [(producer, [("orders", 0)]) for producer in producers]
    asked[1] = (producers[1], [("orders", 1)])
    asked[2] = (producers[2], [("none", 0), ("orders", 0)])
    asked.append(((4_711, 0), [("orders", 0)]))
    told = transactor.mark_all(asked)
    assert told == [
        ["none"],
        ["invalid_txn_state"],
        ["unknown_topic_or_partition", "none"],
        ["none"],
        ["none"],
        ["none"],
    ]
    assert decided == [6]
    states = {name: state for name, (_, state) in transactor.listed().items()}
    expected = dict.fromkeys(names, "CompleteAbort") | {"app-1": "Ongoing"}
    assert states == expected


def test_markers_beyond_a_bound_are_refused(
    transactor: TransactionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparklog_server.api.transactions.MOST_MARKERS", 1)
    producers = [producer_of(transactor.initialise(name)) for name in ("a", "b")]
    for name, producer in zip(("a", "b"), producers, strict=True):
        transactor.add(producer, ("orders", 0), name=name)
    told = transactor.mark_all([(producer, [("orders", 0)]) for producer in producers])
    assert told == [["none"], ["invalid_request"]]
    assert [state for _, state in transactor.listed().values()] == ["CompleteAbort", "Ongoing"]
