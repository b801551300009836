"""DescribeLogDirs: the root, and what lies under it."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog.client.broker_root import find_broker_root
from sparklog.errors import InvalidRequestError
from sparklog.storage.root_rules import root_rules
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient


def describe(asker: WireClient, version: int = 4, topics: Any = None) -> Any:
    answer = asker.ask(35, version, topics=topics)
    (result,) = answer.results
    assert result.error_code.name == "none"
    return result


def sizes(result: Any) -> dict[tuple[str, int], int]:
    return {(one.name, p.partition_index): p.partition_size for one in result.topics for p in one.partitions}


@pytest.mark.parametrize("version", range(1, 5))
def test_every_version_tells_root_and_sizes(asker: WireClient, log: sparklog.SparkLog, version: int) -> None:
    log.create_topic("t", 2)
    log.create_topic("empty")
    log.append("t", pa.table({"value": ["x" * 1000] * 5}), partition=1)
    result = describe(asker, version)
    assert result.log_dir == log.url
    stored = log.describe_topic("t").partitions[1].size_bytes
    assert stored > 5000
    assert sizes(result) == {("t", 0): 0, ("t", 1): stored, ("empty", 0): 0}
    if version >= 4:
        found = os.statvfs(log.url.removeprefix("file://"))
        assert result.total_bytes == found.f_frsize * found.f_blocks
        assert 0 < result.usable_bytes <= result.total_bytes


def test_only_what_is_asked_for(asker: WireClient, log: sparklog.SparkLog) -> None:
    log.create_topic("t", 3)
    log.create_topic("u")
    asked = [
        {"_": "DescribableLogDirTopic", "topic": "t", "partitions": [2, 5, -1]},
        {"_": "DescribableLogDirTopic", "topic": "missing", "partitions": [0]},
        {"_": "DescribableLogDirTopic", "topic": "u", "partitions": [9]},
    ]
    assert sizes(describe(asker, topics=asked)) == {("t", 2): 0}
    assert sizes(describe(asker, topics=[])) == {}


def test_spark_finds_the_root_of_a_real_broker(running_broker: RunningBroker, log: sparklog.SparkLog) -> None:
    found = find_broker_root(running_broker.bootstrap)
    assert (found.root, found.cluster_id) == (log.url, log.cluster_id)


def test_the_answer_of_a_real_broker_is_judged(
    running_broker: RunningBroker, log: sparklog.SparkLog, tmp_path: Path
) -> None:
    for cluster_id, allowed, code in (
        (log.cluster_id, log.url, None),
        ("x" * 22, None, "WRONG_ROOT"),
        (None, f"{log.url}x,{tmp_path}/elsewhere,s3://b", "ROOT_NOT_ALLOWED"),
    ):
        rules = root_rules(cluster_id, allowed, {})
        if code is None:
            assert find_broker_root(running_broker.bootstrap, rules=rules).root == log.url
            continue
        with pytest.raises(InvalidRequestError, match=code) as refused:
            find_broker_root(running_broker.bootstrap, rules=rules)
        assert (log.cluster_id if cluster_id else log.url) in str(refused.value)
