"""The directory of an isolated topic is closed to a round: the other topics are merged and compacted."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog, open_log
from sparklog.log.refused_topic import RefusedTopicError
from sparklog.maintenance import MergeLimits, Terms, compact, maintain, optimize, vacuum
from tests.maintenance.conftest import extents, records
from tests.maintenance.rounds_told import step
from tests.seaweed import MOST_KEY, MOST_ROOTS, MOST_SECRET, SeaweedServer
from tests.support.rights import closed, read_only

ISOLATED = {"sparklog.segment.isolation": "true"}
COMPACTED = {"cleanup.policy": "compact"}
ALL = MergeLimits(fan_in=None)
APART = MergeLimits(fan_in=None, shared_bytes=0)
BOTH = pytest.mark.parametrize("limits", [ALL, APART], ids=["shared", "apart"])
TOPICS = ("orders", "secret", "shared")


def put(log: SparkLog, topic: str, value: bytes, partition: int = 0) -> None:
    log.append(topic, pa.table({"key": [b"k"], "value": [value]}), partition=partition)


@pytest.fixture
def root(unprivileged: Path) -> Path:
    return unprivileged / "log"


@pytest.fixture
def log(root: Path) -> Iterator[SparkLog]:
    """Two isolated topics and one that is not, two partitions each, with three extents in each."""
    with open_log(root) as log:
        for topic in TOPICS:
            log.create_topic(topic, 2, ISOLATED if topic != "shared" else {})
            for number in range(3):
                for partition in range(2):
                    put(log, topic, b"%d" % number, partition)
        log.close()
        yield log


def counts(log: SparkLog) -> dict[str, list[int]]:
    return {topic: [len(extents(log, topic, partition)) for partition in range(2)] for topic in TOPICS}


@BOTH
def test_a_round_leaves_out_what_it_may_not_write_and_says_so(
    log: SparkLog, root: Path, limits: MergeLimits
) -> None:
    with read_only(root / "isolated/secret"):
        report = maintain(log.metadata, log.clock, Terms(limits=limits), steps=["optimize"])
    found = step(report, "optimize")
    assert counts(log) == {"orders": [1, 1], "secret": [3, 3], "shared": [1, 1]}
    assert found.outcome == "done"
    assert {(one.topic, one.partition, one.code) for one in found.skipped} == {
        ("secret", partition, "STORAGE_REFUSED") for partition in range(2)
    }
    assert "isolated/secret/ is closed to this process" in found.message
    assert report.has_failed
    assert not report.is_fruitless
    again = maintain(log.metadata, log.clock, Terms(limits=limits), steps=["optimize"])
    assert not again.has_failed
    assert counts(log)["secret"] == [1, 1]
    for topic in TOPICS:
        assert [value for _, value, _ in records(log, topic, 1)] == [b"0", b"1", b"2"]


@BOTH
def test_a_round_leaves_out_what_it_may_not_read(log: SparkLog, root: Path, limits: MergeLimits) -> None:
    with closed(root / "isolated/secret"):
        report = maintain(log.metadata, log.clock, Terms(limits=limits), steps=["optimize"])
    assert counts(log) == {"orders": [1, 1], "secret": [3, 3], "shared": [1, 1]}
    assert {one.topic for one in report.skipped} == {"secret"}


def test_an_order_ends_with_the_error(log: SparkLog, root: Path) -> None:
    with (
        read_only(root / "isolated/secret"),
        pytest.raises(RefusedTopicError, match="isolated/secret/ is closed"),
    ):
        optimize(log.metadata, log.clock)
    assert counts(log) == {"orders": [1, 1], "secret": [3, 3], "shared": [1, 1]}


def test_what_was_written_elsewhere_before_stays_there(log: SparkLog, root: Path) -> None:
    """The one topic may be moved into its directory, the other may not."""
    for topic in ("late", "later"):
        log.create_topic(topic, 1)
        put(log, topic, b"x")
        log.alter_topic(topic, ISOLATED)
    (root / "isolated/late").mkdir()
    with read_only(root / "isolated/late"):
        report = maintain(log.metadata, log.clock, steps=["optimize"])
    inside = [extents(log, topic)[0].segment.startswith("isolated/") for topic in ("late", "later")]
    assert inside == [False, True]
    assert {one.topic for one in report.skipped} == {"late"}


def test_compaction_leaves_the_topic_out(log: SparkLog, root: Path) -> None:
    for topic in TOPICS:
        log.alter_topic(topic, COMPACTED)
    with (
        read_only(root / "isolated/secret"),
        pytest.raises(RefusedTopicError, match="isolated/secret/ is closed"),
    ):
        compact(log.metadata, log.clock)
    assert {topic: len(records(log, topic)) for topic in TOPICS} == {"orders": 1, "secret": 3, "shared": 1}


def test_a_bucket_that_refuses_a_topic(s3_server: SeaweedServer) -> None:
    with sparklog.open(MOST_ROOTS[1]) as owner:
        for topic in TOPICS:
            owner.create_topic(topic, 1, ISOLATED if topic != "shared" else {})
            for number in range(3):
                put(owner, topic, b"%d" % number)
    options = {"key": MOST_KEY, "secret": MOST_SECRET, "endpoint_url": s3_server.endpoint_url}
    with sparklog.open(MOST_ROOTS[1], create=False, storage_options=options) as log:
        report = maintain(log.metadata, log.clock, Terms(limits=ALL), steps=["optimize"])
        assert {one.topic for one in report.skipped} == {"secret"}
        assert {topic: len(extents(log, topic)) for topic in TOPICS} == {
            "orders": 1,
            "secret": 3,
            "shared": 1,
        }
        swept = vacuum(log.metadata, log.clock, retain_ms=0, force=True)
        assert swept.refused == []  # nothing of it is dead
        log.delete_topic("secret")
        swept = vacuum(log.metadata, log.clock, retain_ms=0, force=True)
        assert (len(swept.refused), swept.waiting.files) == (1, 3)
        assert [log.read(topic, 0, 0).num_rows for topic in ("orders", "shared")] == [3, 3]
