"""OffsetForLeaderEpoch in every version: every epoch ends with the log."""

import pytest

from sparklog.errors import StorageError
from sparklog_server.protocol.responses import make
from tests.server.fetch.stored import TOPIC, StoredLog
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient, request_types

LEADER_EPOCH = 23
BROKER_SETTINGS = {"sparklog.metadata.poll.ms": "8000"}  # what is found is looked for by the request


def asked(
    client: WireClient, topic: str, partition: int, epoch: int, current: int = -1, version: int = 4
) -> tuple[int, int, int]:
    """Error, epoch, end offset."""
    types = request_types(LEADER_EPOCH, version)
    response = client.ask(
        LEADER_EPOCH,
        version,
        replica_id=-1,
        topics=[
            make(
                types.OffsetForLeaderTopic,
                topic=topic,
                partitions=[
                    make(
                        types.OffsetForLeaderPartition,
                        partition=partition,
                        current_leader_epoch=current,
                        leader_epoch=epoch,
                    )
                ],
            )
        ],
    )
    (one,) = response.topics[0].partitions
    assert (response.topics[0].topic, one.partition) == (topic, partition)
    return int(one.error_code), one.leader_epoch, one.end_offset


@pytest.mark.parametrize("version", [2, 3, 4])
def test_every_epoch_so_far_ends_with_the_log(client: WireClient, stored: StoredLog, version: int) -> None:
    stored.append(12)

    def ask(topic: str, partition: int, epoch: int, current: int = -1) -> tuple[int, int, int]:
        return asked(client, topic, partition, epoch, current, version)

    assert ask(TOPIC, 0, 0) == (0, 0, 12)
    assert ask(TOPIC, 0, 1) == (0, 1, 12)
    assert ask(TOPIC, 0, 1, current=1) == (0, 1, 12)
    assert ask(TOPIC, 0, 2) == (0, -1, -1)
    assert ask(TOPIC, 0, -1) == (0, -1, -1)
    assert ask(TOPIC, 0, 0, current=2) == (75, -1, -1)
    assert ask(TOPIC, 0, 0, current=0) == (74, -1, -1)
    assert ask(TOPIC, 0, 0, current=-3) == (74, -1, -1)
    assert ask(TOPIC, 7, 0) == (3, -1, -1)
    assert ask("none", 0, 0) == (3, -1, -1)


def test_an_end_that_is_over_is_not_told(client: WireClient, stored: StoredLog) -> None:
    """To a consumer that has read on, at another broker, it would be a truncation."""
    stored.after_append = lambda: None
    stored.append(12)
    assert asked(client, TOPIC, 0, 0) == (0, 0, 12)


def test_no_end_is_told_while_the_log_cannot_be_looked_at(
    client: WireClient, stored: StoredLog, running_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refresh(*, force: bool = False) -> None:
        raise StorageError("STORE_UNAVAILABLE", "found no storage", fix="wait for it")

    stored.append(12)
    monkeypatch.setattr(running_broker.broker.root.log, "refresh", refresh)
    assert asked(client, TOPIC, 0, 0) == (56, -1, -1)
    monkeypatch.undo()
