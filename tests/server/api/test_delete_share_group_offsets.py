"""DeleteShareGroupOffsets: a share group is forgotten in topics."""

import pytest

import sparklog
from tests.server.api.share_offsets import OFFSETS_SETTINGS, OFFSETS_TOPICS, begun, delete, described
from tests.server.api.share_requests import ACCEPT, Worker, beat
from tests.support.wire_client import WireClient

BROKER_SETTINGS = OFFSETS_SETTINGS
BROKER_TOPICS = OFFSETS_TOPICS


@pytest.fixture
def worker(asker: WireClient, log: sparklog.SparkLog) -> Worker:
    return begun(asker, log)


def test_deleted(worker: Worker) -> None:
    asker = worker.asker
    assert delete(asker, "orders", "returns") == ["none", "unknown_topic_or_partition"]
    assert delete(asker, "orders") == "group_id_not_found"
    assert described(asker) == "group_id_not_found"
    assert worker.acknowledge({0: [(0, 0, ACCEPT)]}) == "invalid_record_state"


def test_only_without_members(worker: Worker) -> None:
    beat(worker.asker)
    assert delete(worker.asker, "orders") == "non_empty_group"
