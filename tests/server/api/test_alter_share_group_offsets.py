"""AlterShareGroupOffsets: a share group begins anew."""

import pytest

import sparklog
from tests.server.api.share_offsets import OFFSETS_SETTINGS, OFFSETS_TOPICS, alter, begun, described
from tests.server.api.share_requests import Got, Worker, beat
from tests.support.wire_client import WireClient

BROKER_SETTINGS = OFFSETS_SETTINGS
BROKER_TOPICS = OFFSETS_TOPICS


@pytest.fixture
def worker(asker: WireClient, log: sparklog.SparkLog) -> Worker:
    return begun(asker, log)


def test_altered(worker: Worker) -> None:
    asker = worker.asker
    assert alter(asker, {("orders", 0): 4, ("orders", 7): 0}) == ["none", "unknown_topic_or_partition"]
    assert described(asker) == {("orders", 0): (4, 1, "none")}
    assert worker.fetch(max_wait=10_000) == [Got(4, 4, 1)]
    assert alter(asker, {("orders", 0): 99, ("returns", 0): 0}) == ["none", "none"]
    assert described(asker) == {("orders", 0): (5, 0, "none"), ("returns", 0): (0, 0, "none")}


def test_only_without_members(worker: Worker) -> None:
    beat(worker.asker)
    assert alter(worker.asker, {("orders", 0): 0}) == "non_empty_group"
    assert alter(worker.asker, {("orders", 0): 0}, group="") == "invalid_group_id"
