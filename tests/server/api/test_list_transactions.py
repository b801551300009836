"""ListTransactions in every version: filters, and patterns of clients."""

import threading
from typing import Any

import pytest

from sparklog.client.cluster_view import chosen
from tests.server.api.transacting import LIST, TransactionClient, producer_of
from tests.support.running_broker import RunningBroker

BROKER_TOPICS = {"orders": 2, "returns": 1}


def test_transactions_are_listed_by_filters(transactor: TransactionClient) -> None:
    one, two = producer_of(transactor.initialise("app-1")), producer_of(transactor.initialise("app-2"))
    transactor.add(two, ("orders", 0), name="app-2")
    both = {"app-1": (one[0], "Empty"), "app-2": (two[0], "Ongoing")}
    for version in range(3):
        assert transactor.listed(version) == both
        assert transactor.listed(version, state_filters=["Ongoing"]) == {"app-2": both["app-2"]}
        assert transactor.listed(version, state_filters=["Dead"]) == {}
        assert transactor.listed(version, producer_id_filters=[one[0]]) == {"app-1": both["app-1"]}
    answer = transactor.ask(LIST, 0, state_filters=["Gone", "Ongoing", "Gone"])
    assert answer.unknown_state_filters == ("Gone",)
    assert transactor.listed(1, duration_filter=3_600_000) == {}
    assert transactor.listed(1, duration_filter=-1) == both
    assert transactor.listed(2, transactional_id_pattern="app-[2-9]") == {"app-2": both["app-2"]}
    assert transactor.listed(2, transactional_id_pattern="app") == {}
    refused = transactor.ask(LIST, 2, transactional_id_pattern="(?=app)")
    assert refused.error_code.name == "invalid_regular_expression"


@pytest.mark.parametrize("pattern", [".{0,1000}" * 40 + "b", "(a{1,100}){1,100}", r"\pL{1,1000}"])
def test_a_pattern_that_becomes_too_large_is_refused(transactor: TransactionClient, pattern: str) -> None:
    transactor.initialise("a" * 1024)
    refused = transactor.ask(LIST, 2, transactional_id_pattern=pattern)
    assert (refused.error_code.name, refused.transaction_states) == ("invalid_regular_expression", ())


def test_a_pattern_that_takes_too_long_is_refused(
    transactor: TransactionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactor.initialise("a")
    monkeypatch.setattr("sparklog_server.api.transaction_listing.PATTERN_SECONDS", -1.0)
    refused = transactor.ask(LIST, 2, transactional_id_pattern="a")
    assert (refused.error_code.name, refused.transaction_states) == ("invalid_regular_expression", ())


def test_patterns_are_searched_for_one_at_a_time(
    transactor: TransactionClient, running_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight of them had all storage threads, and others' Metadata waited for 4.4 s."""
    transactor.initialise("a")
    together: list[int] = []
    inside = 0
    enough = threading.Event()

    def counting(*arguments: Any, **more: Any) -> Any:
        nonlocal inside
        inside += 1
        together.append(inside)
        enough.wait(0.02)
        inside -= 1
        return chosen(*arguments, **more)

    monkeypatch.setattr("sparklog_server.api.transaction_listing.chosen", counting)
    others = [TransactionClient(running_broker.host, running_broker.port) for _ in range(6)]
    for one in others:
        one.send(LIST, 2, state_filters=[], producer_id_filters=[], transactional_id_pattern="a")
    for one in others:
        assert one.receive(LIST, 2)[1].error_code.name == "none"
        one.close()
    assert together == [1] * 6


def test_an_answer_that_would_be_too_large_is_refused(
    transactor: TransactionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer_of(transactor.initialise())
    monkeypatch.setattr("sparklog_server.protocol.wire.MAX_ANSWER_BYTES", 200)
    assert list(transactor.listed()) == ["app"]
    refused = transactor.ask(LIST, 0, state_filters=["x" * 30, "y" * 30])
    assert (refused.error_code.name, refused.unknown_state_filters) == ("unknown_server_error", ())
    producer_of(transactor.initialise("app-2"))
    refused = transactor.ask(LIST, 0)
    assert (refused.error_code.name, refused.transaction_states) == ("unknown_server_error", ())


@pytest.mark.parametrize(("character", "fits"), [("a", True), ("\U0001f600", False)])
def test_ids_count_as_bytes(
    transactor: TransactionClient, monkeypatch: pytest.MonkeyPatch, character: str, *, fits: bool
) -> None:
    """57 MB were counted as 31."""
    name = character * 100
    producer_of(transactor.initialise(name))
    monkeypatch.setattr("sparklog_server.protocol.wire.MAX_ANSWER_BYTES", 500)
    answer = transactor.ask(LIST, 0)
    assert [one.transactional_id for one in answer.transaction_states] == ([name] if fits else [])
    assert answer.error_code.name == ("none" if fits else "unknown_server_error")
    states = transactor.ask(LIST, 0, state_filters=[name])
    assert states.unknown_state_filters == ((name,) if fits else ())
