"""What is refused to a producer of transactions is gone when it was told so."""

import gc
from collections.abc import Callable

import pytest

from sparklog.errors import SparklogError
from tests.server.api.group_requests import GROUP_SETTINGS, commit
from tests.server.api.transacting import TransactionClient

BROKER_SETTINGS = GROUP_SETTINGS
BROKER_TOPICS = {"orders": 50}
STRANGER = (7, 0)
STAGE, ROUNDS = 28, 10


def stage(transactor: TransactionClient) -> None:
    topics = [
        {
            "_": "TxnOffsetCommitRequestTopic",
            "name": "orders",
            "partitions": [
                {
                    "_": "TxnOffsetCommitRequestPartition",
                    "partition_index": 0,
                    "committed_offset": 1,
                    "committed_leader_epoch": -1,
                    "committed_metadata": "",
                }
            ],
        }
    ]
    asked = {"member_id": "", "generation_id": -1, "group_instance_id": None, "group_id": "g"}
    answer = transactor.ask(
        STAGE, 5, transactional_id="app", producer_id=7, producer_epoch=0, topics=topics, **asked
    )
    assert answer.topics[0].partitions[0].error_code.name == "invalid_producer_id_mapping"


def add(transactor: TransactionClient) -> None:
    asked = [("orders", number) for number in range(50)]
    assert set(transactor.add(STRANGER, *asked)) == {"invalid_producer_id_mapping"}


def end(transactor: TransactionClient) -> None:
    assert transactor.end(STRANGER)[0] == "invalid_producer_id_mapping"


def initialise(transactor: TransactionClient) -> None:
    given = transactor.initialise(producer_id=7, producer_epoch=0)
    assert given[0] == "producer_fenced"


@pytest.mark.parametrize("ask", [add, end, initialise, stage])
def test_refused_requests_leave_nothing_without_a_collector(
    transactor: TransactionClient,
    caplog: pytest.LogCaptureFixture,
    ask: Callable[[TransactionClient], None],
) -> None:
    """A cycle of an error and its frames holds the request, and all that were decided with it."""
    caplog.set_level("ERROR", "sparklog_server.publish")  # pytest keeps what is logged, errors and all
    commit(transactor, {("orders", 0): 1})  # makes the topic of offsets
    assert transactor.initialise()[0] == "none"
    ask(transactor)
    gc.collect()
    of_others = len(refusals())
    gc.disable()
    try:
        for _ in range(ROUNDS):
            ask(transactor)
        left = refusals()
    finally:
        gc.enable()
    assert len(left) <= of_others + 1  # the last may still be on its way out, in the broker's thread


def refusals() -> list[SparklogError]:
    """All that there are in this process."""
    codes = {"PRODUCER_FENCED", "PRODUCER_UNMAPPED"}
    return [one for one in gc.get_objects() if isinstance(one, SparklogError) and one.code in codes]
