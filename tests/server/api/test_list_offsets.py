"""ListOffsets in every version: first, last, by time."""

from typing import Any

import pytest

from sparklog.log.time_lookup import offset_of_max_timestamp
from sparklog.metadata import plan_advance_log_start
from sparklog_server.api import log_offsets
from sparklog_server.root.live_root import LiveRoot
from tests.server.api.listing import list_all, listed
from tests.server.fetch.stored import TOPIC, StoredLog, stored_log
from tests.support.told import Told
from tests.support.wire_client import WireClient

FIRST_TIME = 1_000_000  # of offset 0; one millisecond per offset


def advance_log_start(stored: StoredLog, offset: int, partition: int = 0) -> None:
    image = stored.log.refresh()
    action = plan_advance_log_start(image, image.topics[TOPIC].topic_id, partition, offset)
    assert action is not None
    stored.log.metadata.publish(lambda _: [action])
    stored.after_append()


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
    assert errors == [0, 74, 75, 74]


@pytest.mark.parametrize(("turn_ms", "turns"), [(log_offsets.TURN_MS, 2), (0, 3)])
def test_large_batches_are_looked_into_in_turns(
    client: WireClient, stored: StoredLog, monkeypatch: pytest.MonkeyPatch, turn_ms: int, turns: int
) -> None:
    """Those of thousands of partitions take seconds, in which others ask, too."""
    for partition in (0, 1):
        stored.append(20, partition=partition, value_bytes=1_000, batch_bytes=100_000)
    monkeypatch.setattr(log_offsets, "TURN_MS", turn_ms)
    begun = []
    run_at_length = LiveRoot.run_at_length

    async def counting(root: LiveRoot, *work: Any) -> Any:
        begun.append(work)
        return await run_at_length(root, *work)

    monkeypatch.setattr(LiveRoot, "run_at_length", counting)
    found = list_all(client, [(TOPIC, 1, FIRST_TIME + 7), (TOPIC, 0, FIRST_TIME + 11)])
    assert [(one.partition_index, one.offset) for one in found] == [(1, 7), (0, 11)]
    assert len(begun) == turns


def test_a_lookup_in_a_damaged_segment(client: WireClient, stored: StoredLog, told: Told) -> None:
    stored.append(5)
    segment = stored.state.extents[0].segment
    stored.log.store.delete(segment)
    assert listed(client, 5) == (56, -1, -1)
    assert listed(client, -3) == (56, -1, -1)
    assert listed(client, -1) == (0, -1, 5)
    assert any(segment in message for message in told("sparklog_server.fetch"))


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
