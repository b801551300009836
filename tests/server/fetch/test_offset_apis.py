"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords over a socket."""

from typing import Any

import pytest

from sparklog.errors import StorageError
from sparklog.metadata import plan_advance_log_start
from sparklog_server.api import delete_records, list_offsets, offset_for_leader_epoch
from sparklog_server.fetch.offsets import offset_of_max_timestamp
from sparklog_server.protocol.entities import make
from tests.server.fetch.stored import TOPIC, StoredLog, stored_log
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient, request_types

LIST_OFFSETS, DELETE_RECORDS, LEADER_EPOCH = 2, 21, 23
FIRST_TIME = 1_000_000  # of offset 0; one millisecond per offset


def advance_log_start(stored: StoredLog, offset: int, partition: int = 0) -> None:
    image = stored.log.refresh()
    action = plan_advance_log_start(image, image.topics[TOPIC].topic_id, partition, offset)
    assert action is not None
    stored.log.metadata.publish(lambda _: [action])
    stored.after_append()


# --- ListOffsets -------------------------------------------------------------------------------------


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
        assert one.leader_epoch == (0 if one.offset >= 0 else -1)
    return int(one.error_code), one.timestamp, one.offset


@pytest.mark.parametrize("version", range(1, 10))
def test_first_last_and_by_time_in_every_version(client: WireClient, stored: StoredLog, version: int) -> None:
    stored.append(30)
    stored.append(30)
    advance_log_start(stored, 7)
    assert listed(client, -1, version=version) == (0, -1, 60)
    assert listed(client, -2, version=version) == (0, -1, 7)
    assert listed(client, FIRST_TIME + 41, version=version) == (0, FIRST_TIME + 41, 41)
    assert listed(client, 0, version=version) == (0, FIRST_TIME + 7, 7)
    assert listed(client, FIRST_TIME + 60, version=version) == (0, -1, -1)


@pytest.mark.parametrize(
    ("timestamp", "first_version"), [(-3, 7), (-4, 8), (-5, 9), (-6, 99), (-(2**63), 99)]
)
def test_special_times_belong_to_versions(
    client: WireClient, stored: StoredLog, timestamp: int, first_version: int
) -> None:
    stored.append(5)
    errors = [listed(client, timestamp, version=version)[0] for version in range(1, 10)]
    assert errors == [35 if version < first_version else 0 for version in range(1, 10)]


def test_special_times(client: WireClient, stored: StoredLog) -> None:
    assert listed(client, -3) == (0, -1, -1)
    stored.append(20)
    advance_log_start(stored, 3)
    assert listed(client, -3) == (0, FIRST_TIME + 19, 19)
    assert listed(client, -4) == (0, -1, 3)
    assert listed(client, -5) == (0, -1, -1)


def test_an_empty_partition(client: WireClient) -> None:
    assert listed(client, -1, partition=1) == (0, -1, 0)
    assert listed(client, 5, partition=1) == (0, -1, -1)


def test_list_offsets_of_what_is_not_there(client: WireClient, stored: StoredLog) -> None:
    found = list_all(client, [("none", 0, -1), (TOPIC, 3, -1), (TOPIC, -1, -1), (TOPIC, 0, -1)])
    assert [int(one.error_code) for one in found] == [3, 3, 3, 0]
    assert [one.offset for one in found] == [-1, -1, -1, 0]


def test_a_partition_that_is_named_twice(client: WireClient) -> None:
    found = list_all(client, [(TOPIC, 0, -1), (TOPIC, 1, -1), (TOPIC, 0, -2)])
    assert [int(one.error_code) for one in found] == [42, 0, 42]


def test_list_offsets_checks_leader_epochs(client: WireClient) -> None:
    errors = [int(list_all(client, [(TOPIC, 0, -1)], epoch=epoch)[0].error_code) for epoch in (-1, 0, 5, -2)]
    assert errors == [0, 0, 75, 74]


def test_a_lookup_in_a_damaged_segment(
    client: WireClient, stored: StoredLog, caplog: pytest.LogCaptureFixture
) -> None:
    stored.append(5)
    segment = stored.state.extents[0].segment
    stored.log.store.delete(segment)
    assert listed(client, 5) == (56, -1, -1)
    assert listed(client, -3) == (56, -1, -1)
    assert listed(client, -1) == (0, -1, 5)
    assert any(segment in record.getMessage() for record in caplog.records)


def test_the_largest_timestamp_of_what_is_left() -> None:
    """Times descend, so the largest is that of the first record, until it is deleted."""
    with stored_log(None) as stored:
        state = stored.state
        assert offset_of_max_timestamp(stored.log.store, state, TOPIC) is None
        for first_time in (9000, 5000, 7000):
            stored.append(20, first_time=first_time, time_step=-10)
        found = {}
        for start in (0, 5, 19, 20, 21, 40, 59, 60):
            if start:
                advance_log_start(stored, start)
            found[start] = offset_of_max_timestamp(stored.log.store, stored.state, TOPIC)
        assert found == {
            0: (0, 9000),
            5: (5, 8950),
            19: (19, 8810),
            20: (40, 7000),
            21: (40, 7000),
            40: (40, 7000),
            59: (59, 6810),
            60: None,
        }


# --- OffsetForLeaderEpoch ----------------------------------------------------------------------------


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


# --- DeleteRecords -----------------------------------------------------------------------------------


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


def test_deletions_that_are_refused(client: WireClient, stored: StoredLog) -> None:
    stored.append(5)
    stored.log.create_topic("compacted", 1, {"cleanup.policy": "compact"})
    stored.log.create_topic("both", 1, {"cleanup.policy": "compact,delete"})
    stored.log.create_topic("__transaction_state", 1)
    stored.log.create_topic("__debezium-heartbeat", 1)
    stored.log.create_topic("kept", 1, {"cleanup.policy": ""})
    stored.after_append()
    asked = [
        (TOPIC, 0, 6),
        (TOPIC, 1, -2),
        (TOPIC, 9, 0),
        ("none", 0, 0),
        ("compacted", 0, 0),
        ("__transaction_state", 0, 0),
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


def test_the_docstrings_name_the_versions() -> None:
    assert "versions 1-9" in (list_offsets.__doc__ or "")
    assert "versions 2-4" in (offset_for_leader_epoch.__doc__ or "")
    assert "versions 0-2" in (delete_records.__doc__ or "")
