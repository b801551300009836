"""Fetch as tests ask it."""

import threading
import time
from typing import Any

from sparklog_server.protocol.responses import make
from tests.server.fetch.stored import TOPIC, offsets_of
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient, request_types

FETCH = 1
FIRST_EPOCH = 1  # of a partition that was elected a leader once


def asked(
    *partitions: tuple[int, int] | tuple[int, int, int],
    topic: str = TOPIC,
    version: int = 12,
    epoch: int = -1,
    topic_id: str | None = None,
) -> list[Any]:
    """(partition, offset[, max bytes]) of one topic; since version 13 by its id."""
    types = request_types(FETCH, version)
    return [
        make(
            types.FetchTopic,
            topic=topic,
            topic_id=topic_id,
            partitions=[
                make(
                    types.FetchPartition,
                    partition=one[0],
                    fetch_offset=one[1],
                    partition_max_bytes=one[2] if len(one) == 3 else 1 << 20,
                    current_leader_epoch=epoch,
                )
                for one in partitions
            ],
        )
    ]


def fetch(client: WireClient, topics: list[Any], *, version: int = 12, **fields: Any) -> Any:
    return client.ask(FETCH, version, **request_fields(topics, **fields))


def request_fields(topics: list[Any], **fields: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 50 << 20,
        "isolation_level": 1,
        "session_id": 0,
        "session_epoch": -1,
    }
    return {**defaults, "topics": topics, **fields}


def partitions_of(response: Any) -> dict[int, Any]:
    return {one.partition_index: one for topic in response.responses for one in topic.partitions}


def offsets(partition: Any, *, leader_epoch: int = FIRST_EPOCH) -> list[int]:
    return offsets_of(bytes(partition.records), leader_epoch=leader_epoch)


def waiting(broker: RunningBroker, count: int = 1) -> None:
    """Until so many fetches wait."""
    deadline = time.monotonic() + 60
    while len(broker.broker.fetches.purgatory) != count:
        assert time.monotonic() < deadline
        threading.Event().wait(0.002)
