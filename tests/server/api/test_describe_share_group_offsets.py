"""DescribeShareGroupOffsets: where share groups are, and how many records they have not ended."""

import pytest

import sparklog
from tests.server.api.share_offsets import OFFSETS_SETTINGS, OFFSETS_TOPICS, begun, described, wanted
from tests.server.api.share_requests import Worker
from tests.support.wire_client import WireClient

BROKER_SETTINGS = OFFSETS_SETTINGS
BROKER_TOPICS = OFFSETS_TOPICS


@pytest.fixture
def worker(asker: WireClient, log: sparklog.SparkLog) -> Worker:
    return begun(asker, log)


def test_described(worker: Worker) -> None:
    assert described(worker.asker) == {("orders", 0): (0, 3, "none")}
    assert described(worker.asker, version=0) == {("orders", 0): (0, None, "none")}
    topics = [wanted("orders", 0, 1, 9), wanted("missing", 0)]
    assert described(worker.asker, topics) == {
        ("orders", 0): (0, 3, "none"),
        ("orders", 1): (-1, -1, "none"),
        ("orders", 9): (-1, -1, "unknown_topic_or_partition"),
        ("missing", 0): (-1, -1, "unknown_topic_or_partition"),
    }
    assert described(worker.asker, group="nobody") == "group_id_not_found"
