"""DeleteRecords in every version: log starts go up, and where they may not."""

import logging
from typing import Any

import pytest

from sparklog.errors import StorageError
from sparklog_server.protocol.responses import make
from tests.server.api.listing import listed
from tests.server.fetch.stored import TOPIC, StoredLog
from tests.support.running_broker import RunningBroker
from tests.support.told import Told
from tests.support.wire_client import WireClient, request_types

DELETE_RECORDS = 21


def delete(
    client: WireClient, asked: list[tuple[str, int, int]], *, version: int = 2, timeout_ms: int = 10_000
) -> list[tuple[int, int]]:
    """(error, low watermark) per partition."""
    types = request_types(DELETE_RECORDS, version)
    topics = [
        make(
            types.DeleteRecordsTopic,
            name=topic,
            partitions=[make(types.DeleteRecordsPartition, partition_index=partition, offset=offset)],
        )
        for topic, partition, offset in asked
    ]
    response = client.ask(DELETE_RECORDS, version, topics=topics, timeout=timeout_ms)
    return [(int(one.error_code), one.low_watermark) for topic in response.topics for one in topic.partitions]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_records_are_deleted_up_to_an_offset(client: WireClient, stored: StoredLog, version: int) -> None:
    stored.append(20)
    stored.append(10, partition=1)
    before = stored.log.refresh().commit
    assert delete(client, [(TOPIC, 0, 5), (TOPIC, 1, -1)], version=version) == [(0, 5), (0, 10)]
    image = stored.log.refresh()
    assert image.commit == before + 1
    assert [one.log_start_offset for one in image.topics[TOPIC].partitions] == [5, 10, 0]
    assert listed(client, -2) == (0, -1, 5)


def test_a_log_start_never_goes_back(client: WireClient, stored: StoredLog) -> None:
    stored.append(20)
    assert delete(client, [(TOPIC, 0, 8)]) == [(0, 8)]
    assert delete(client, [(TOPIC, 0, 3)]) == [(0, 8)]
    assert delete(client, [(TOPIC, 0, 0)]) == [(0, 8)]


def test_a_request_leaves_one_line_in_the_log(
    client: WireClient, stored: StoredLog, caplog: pytest.LogCaptureFixture, told: Told
) -> None:
    caplog.set_level(logging.INFO, "sparklog_server.fetch")
    assert {code for code, _ in delete(client, [("no\nsuch", number, 1) for number in range(50)])} == {3}
    (line,) = told("sparklog_server.fetch")
    assert line == "delete records: 50 refused, 'no\\nsuch'-0 first: there is no such partition"


def test_deletions_that_are_refused(client: WireClient, stored: StoredLog) -> None:
    stored.append(5)
    stored.log.create_topic("compacted", 1, {"cleanup.policy": "compact"})
    stored.log.create_topic("both", 1, {"cleanup.policy": "compact,delete"})
    stored.log.create_topic("__consumer_offsets", 1)
    stored.log.create_topic("__debezium-heartbeat", 1)
    stored.log.create_topic("kept", 1, {"cleanup.policy": ""})
    stored.after_append()
    asked = [
        (TOPIC, 0, 6),
        (TOPIC, 1, -2),
        (TOPIC, 9, 0),
        ("none", 0, 0),
        ("compacted", 0, 0),
        ("__consumer_offsets", 0, 0),
        ("__debezium-heartbeat", 0, 0),
        ("kept", 0, 0),
        ("both", 0, -1),
        (TOPIC, 2, 0),
    ]
    assert delete(client, asked) == [
        (1, -1),
        (1, -1),
        (3, -1),
        (3, -1),
        (44, -1),
        (17, -1),
        (0, 0),
        (0, 0),
        (0, 0),
        (0, 0),
    ]


def test_a_deletion_that_fails(
    client: WireClient, stored: StoredLog, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.append(5)

    def fail(plan: Any) -> Any:
        future = broker.loop.create_future()
        future.set_exception(StorageError("STORAGE_FULL", "disk: full, expected room", fix="make room"))
        return future

    monkeypatch.setattr(broker.broker.publisher, "submit_plan", fail)
    assert delete(client, [(TOPIC, 0, 5)]) == [(56, -1)]
