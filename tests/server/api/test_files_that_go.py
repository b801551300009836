"""Consumers of a broker that has not seen yet that files were merged, or have expired, and are gone."""

from typing import Any

import pytest

from sparklog.client import SparkLog
from sparklog.metadata import Image
from tests.server.api.fetching import asked, fetch, offsets, partitions_of
from tests.server.api.listing import listed
from tests.server.fetch.stored import TOPIC, StoredLog
from tests.support.removing import expire_below, remove, remove_dead
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient

FIRST_TIME = 1_000_000  # of offset 0; one millisecond per offset


@pytest.fixture
def behind(broker: RunningBroker, stored: StoredLog, monkeypatch: pytest.MonkeyPatch) -> SparkLog:
    """Two segments; from here on the broker sees what others commit only where it looks on purpose."""
    stored.append(30)
    stored.log.close()
    stored.append(30)
    log = broker.broker.root.log
    follow = log.refresh

    def refresh(*, force: bool = False) -> Image:
        return follow(force=True) if force else log.image

    monkeypatch.setattr(log, "refresh", refresh)
    stored.after_append = lambda: None
    return stored.log


def fetched(client: WireClient, offset: int) -> Any:
    return partitions_of(fetch(client, asked((0, offset))))[0]


def test_merged_segments_are_found_where_they_are_now(
    client: WireClient, stored: StoredLog, behind: SparkLog
) -> None:
    stored.merge()
    assert len(remove_dead(behind)) == 2
    found = fetched(client, 40)
    assert int(found.error_code) == 0
    assert offsets(found)[-20:] == [*range(40, 60)]


def test_times_are_looked_up_where_they_are_now(
    client: WireClient, stored: StoredLog, behind: SparkLog
) -> None:
    stored.merge()
    remove_dead(behind)
    assert listed(client, FIRST_TIME + 41) == (0, FIRST_TIME + 41, 41)


def test_the_largest_timestamp_likewise(client: WireClient, stored: StoredLog, behind: SparkLog) -> None:
    stored.merge()
    remove_dead(behind)
    assert listed(client, -3) == (0, FIRST_TIME + 59, 59)


def test_expired_offsets_are_out_of_range(client: WireClient, behind: SparkLog) -> None:
    expire_below(behind, 30, topic=TOPIC)
    remove_dead(behind)
    assert int(fetched(client, 10).error_code) == 1
    assert offsets(fetched(client, 30)) == [*range(30, 60)]


def test_a_deleted_topic_is_unknown(client: WireClient, behind: SparkLog) -> None:
    behind.delete_topic(TOPIC)
    remove_dead(behind)
    assert int(fetched(client, 10).error_code) == 3


def test_a_lost_segment_is_an_error_of_the_storage(
    client: WireClient, stored: StoredLog, behind: SparkLog
) -> None:
    remove(behind, [stored.state.extents[1].segment])
    assert int(fetched(client, 40).error_code) == 56
