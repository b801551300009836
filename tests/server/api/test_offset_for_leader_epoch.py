"""OffsetForLeaderEpoch in every version: the only epoch ends with the log."""

import pytest

from sparklog_server.protocol.entities import make
from tests.server.fetch.stored import TOPIC, StoredLog
from tests.support.wire_client import WireClient, request_types

LEADER_EPOCH = 23


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_only_epoch_ends_with_the_log(client: WireClient, stored: StoredLog, version: int) -> None:
    stored.append(12)
    types = request_types(LEADER_EPOCH, version)

    def ask(topic: str, partition: int, epoch: int, current: int = -1) -> tuple[int, int, int]:
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

    assert ask(TOPIC, 0, 0) == (0, 0, 12)
    assert ask(TOPIC, 0, 0, current=0) == (0, 0, 12)
    assert ask(TOPIC, 0, 1) == (0, -1, -1)
    assert ask(TOPIC, 0, -1) == (0, -1, -1)
    assert ask(TOPIC, 0, 0, current=1) == (75, -1, -1)
    assert ask(TOPIC, 0, 0, current=-3) == (74, -1, -1)
    assert ask(TOPIC, 7, 0) == (3, -1, -1)
    assert ask("none", 0, 0) == (3, -1, -1)
