"""ListTransactions in every version: filters, and patterns of clients."""

import pytest

from tests.server.api.transacting import LIST, TransactionClient, producer_of

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


def test_an_answer_that_would_be_too_large_is_refused(
    transactor: TransactionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer_of(transactor.initialise())
    monkeypatch.setattr("sparklog_server.protocol.answers.MAX_ANSWER_BYTES", 200)
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
    monkeypatch.setattr("sparklog_server.protocol.answers.MAX_ANSWER_BYTES", 500)
    answer = transactor.ask(LIST, 0)
    assert [one.transactional_id for one in answer.transaction_states] == ([name] if fits else [])
    assert answer.error_code.name == ("none" if fits else "unknown_server_error")
    states = transactor.ask(LIST, 0, state_filters=[name])
    assert states.unknown_state_filters == ((name,) if fits else ())
