"""DescribeShareGroupOffsets: where share groups are, and how many records they have not ended."""

import pytest

import sparklog
from tests.server.api.share_offsets import OFFSETS_SETTINGS, OFFSETS_TOPICS, begun, described, wanted
from tests.server.api.share_requests import DESCRIBE_OFFSETS, Worker
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


def test_a_large_answer_leaves_groups_out(worker: Worker, log: sparklog.SparkLog) -> None:
    """A group that is named a thousand times has a thousand times its partitions."""
    log.create_topic("wide", 300)
    wide = Worker(worker.asker, log.image.topic("wide").topic_id, partitions=range(300), member="w")
    assert wide.fetch() == []
    asked = {"_": "DescribeShareGroupOffsetsRequestGroup", "group_id": "workers", "topics": None}
    answer = worker.asker.ask(DESCRIBE_OFFSETS, 1, groups=[asked] * 1_000)
    errors = [one.error_code.name for one in answer.groups]
    fitting = errors.count("none")
    assert 100 < fitting < 300
    assert errors == ["none"] * fitting + ["unknown_server_error"] * (1_000 - fitting)
