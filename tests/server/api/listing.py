"""ListOffsets as tests ask it: by special times and by time."""

from typing import Any

from sparklog_server.protocol.responses import make
from tests.server.api.fetching import FIRST_EPOCH
from tests.server.fetch.stored import TOPIC
from tests.support.wire_client import WireClient, request_types

LIST_OFFSETS = 2


def list_all(
    client: WireClient, asked: list[tuple[str, int, int]], *, version: int = 9, epoch: int = -1
) -> Any:
    types = request_types(LIST_OFFSETS, version)
    topics = [
        make(
            types.ListOffsetsTopic,
            name=topic,
            partitions=[
                make(
                    types.ListOffsetsPartition,
                    partition_index=partition,
                    timestamp=timestamp,
                    current_leader_epoch=epoch,
                )
            ],
        )
        for topic, partition, timestamp in asked
    ]
    response = client.ask(LIST_OFFSETS, version, replica_id=-1, isolation_level=1, topics=topics)
    return [one for topic in response.topics for one in topic.partitions]


def listed(
    client: WireClient, timestamp: int, *, version: int = 9, partition: int = 0
) -> tuple[int, int, int]:
    """(error, timestamp, offset)."""
    (one,) = list_all(client, [(TOPIC, partition, timestamp)], version=version)
    if version >= 4:
        assert one.leader_epoch == (FIRST_EPOCH if one.offset >= 0 else -1)
    return int(one.error_code), one.timestamp, one.offset
