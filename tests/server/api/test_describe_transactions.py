"""DescribeTransactions: states, partitions, and what is unknown."""

import struct

import pytest

from tests.server.api.transacting import DESCRIBE, TransactionClient, producer_of

BROKER_TOPICS = {"orders": 2, "returns": 1}


def test_a_transaction_is_described(transactor: TransactionClient) -> None:
    producer = producer_of(transactor.initialise(timeout_ms=5_000))
    asked = ("", "none", "none")
    illegal, unknown = transactor.ask(DESCRIBE, 0, transactional_ids=asked).transaction_states
    assert (illegal.error_code.name, unknown.error_code.name) == (
        "invalid_request",
        "transactional_id_not_found",
    )
    transactor.add(producer, ("returns", 0), ("orders", 1), ("orders", 0))
    (found,) = transactor.ask(DESCRIBE, 0, transactional_ids=["app"]).transaction_states
    assert (found.error_code.name, found.transaction_state) == ("none", "Ongoing")
    assert (found.producer_id, found.producer_epoch) == producer
    assert found.transaction_timeout.total_seconds() == 5
    assert found.transaction_start_time.year > 2000
    assert [(one.topic, one.partitions) for one in found.topics] == [("returns", (0,)), ("orders", (0, 1))]


def test_what_is_not_open_has_no_start(transactor: TransactionClient) -> None:
    """-1, as in Kafka; kio does not read it."""
    producer_id, epoch = producer_of(transactor.initialise(timeout_ms=5_000))
    number = transactor.send(DESCRIBE, 0, transactional_ids=["app"])
    head = struct.pack(">iBiB", number, 0, 0, 2)
    state = b"\x00\x00\x04app\x06Empty" + struct.pack(">iqqhBB", 5_000, -1, producer_id, epoch, 1, 0)
    assert transactor.receive_frame() == head + state + b"\x00"


def test_what_would_make_an_answer_too_large_is_refused(
    transactor: TransactionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("app", "app-2"):
        transactor.add(producer_of(transactor.initialise(name)), ("orders", 0), name=name)
    monkeypatch.setattr("sparklog_server.protocol.wire.MAX_ANSWER_BYTES", 800)
    one, two = transactor.ask(DESCRIBE, 0, transactional_ids=["app", "app-2"]).transaction_states
    assert (one.error_code.name, len(one.topics)) == ("none", 1)
    assert (two.error_code.name, two.topics) == ("unknown_server_error", ())


def test_names_count_as_bytes_and_topics_beside_their_partitions(
    transactor: TransactionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic was counted as a partition, and a character, which takes up to four bytes, as one."""
    narrow, wide = "a" * 100, "\U0001f600" * 100
    both = producer_of(transactor.initialise("both"))
    transactor.add(both, ("orders", 0), ("returns", 0), name="both")
    one = producer_of(transactor.initialise("one"))
    transactor.add(one, ("orders", 0), ("orders", 1), name="one")
    for name in (narrow, wide):
        transactor.add(producer_of(transactor.initialise(name)), ("orders", 0), name=name)

    def fitting(most: int, *names: str) -> list[str]:
        monkeypatch.setattr("sparklog_server.protocol.wire.MAX_ANSWER_BYTES", most)
        told = transactor.ask(DESCRIBE, 0, transactional_ids=names).transaction_states
        return [one.transactional_id for one in told if one.error_code.name == "none"]

    assert fitting(750, narrow) == [narrow]
    assert fitting(750, wide) == []
    assert fitting(600, "one") == ["one"]
    assert fitting(600, "both") == []
