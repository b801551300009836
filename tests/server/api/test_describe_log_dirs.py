"""DescribeLogDirs: the root, and what lies under it."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog.client.brokers import find_broker_root
from sparklog.errors import InvalidRequestError
from sparklog.metadata.model.extent_list import ExtentList
from sparklog.storage.root_rules import root_rules
from sparklog_server.api import listings
from sparklog_server.protocol import wire
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


def test_a_root_that_would_make_an_answer_too_large_is_told_without_topics(
    asker: WireClient, log: sparklog.SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("t", 40)
    monkeypatch.setattr(wire, "MAX_ANSWER_BYTES", 1_000)
    for version in range(1, 5):
        (refused,) = asker.ask(35, version, topics=None).results
        assert (refused.error_code.name, refused.log_dir, refused.topics) == (
            "unknown_server_error",
            log.url,
            (),
        )
    asked = [{"_": "DescribableLogDirTopic", "topic": "t", "partitions": list(range(30))}]
    assert len(sizes(describe(asker, topics=asked))) == 30


class Counting:
    """How often something is done."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.count = 0
        function = getattr(owner, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            return function(*arguments, **named)

        patch.setattr(owner, name, counted)

    def taken(self) -> int:
        """Since it was asked last."""
        count, self.count = self.count, 0
        return count


def test_what_has_not_changed_is_neither_told_nor_added_up_anew(
    asker: WireClient, log: sparklog.SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 bytes took 0.7 s in a root of 100,000 partitions, each time."""
    log.create_topic("t", 30)
    log.append("t", pa.table({"value": ["x"]}), partition=1)
    told = Counting(monkeypatch, listings, "encode_log_dir_topic")
    added = Counting(monkeypatch, ExtentList, "column_blocks")
    first = describe(asker)
    assert (told.taken(), added.taken()) == (1, 30)
    assert sizes(describe(asker)) == sizes(first)
    assert sizes(describe(asker, version=2)) == sizes(first)
    assert sizes(describe(asker, version=1)) == sizes(first)
    assert (told.taken(), added.taken()) == (1, 0)  # version 1 is written otherwise
    log.append("t", pa.table({"value": ["y"]}), partition=1)
    added.taken()
    later = sizes(describe(asker))
    assert later["t", 1] > sizes(first)["t", 1]
    assert (told.taken(), added.taken()) == (1, 1)


@pytest.mark.slow
def test_others_have_turns_while_many_partitions_are_looked_at(
    asker: WireClient, log: sparklog.SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("t", 10_000)
    turns = Counting(monkeypatch, wire.Pace, "made")
    assert len(sizes(describe(asker))) == 10_000
    assert turns.taken() >= 10


def test_who_asks_while_it_is_made_waits_for_it(
    running_broker: RunningBroker, log: sparklog.SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("t", 10_000)
    listing = listings.LogDirListing(lambda: log.image)
    told = Counting(monkeypatch, listings, "encode_log_dir_topic")

    async def ask() -> list[tuple[int, bytes]]:
        return await asyncio.gather(*(listing.all(flexible=True) for _ in range(5)))

    (first, *others) = running_broker.call(ask())
    assert first[0] == 1
    assert all(other is first for other in others)
    assert told.taken() == 1


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
