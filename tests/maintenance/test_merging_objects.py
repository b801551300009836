"""Merging fetches small extents by object, not each by itself."""

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.maintenance import MergeLimits, Terms, maintain, optimize
from sparklog.storage.s3 import S3Store
from tests.seaweed import SeaweedServer
from tests.storage.s3_proxy import Fault, FaultyProxy

PARTITIONS, PUBLISHES = 16, 5


def read_all(log: SparkLog) -> list[list[bytes]]:
    return [log.read("t", p, 0)["value"].to_pylist() for p in range(PARTITIONS)]


def test_merging_asks_for_each_object_once(s3_root: str) -> None:
    with sparklog.open(s3_root) as log:
        log.create_topic("t", PARTITIONS)
        for number in range(PUBLISHES):
            values = [b"%d/%d" % (number, p) for p in range(PARTITIONS)]
            log.append("t", pa.table({"value": values, "partition": list(range(PARTITIONS))}))
        before = read_all(log)
    with sparklog.open(s3_root, create=False) as log:
        assert isinstance(log.store, S3Store)
        asked = log.store.requests["get_object"]
        assert optimize(log.metadata, log.clock).topics["t"].merged_extents == PUBLISHES * PARTITIONS
        # The objects, and following the log.
        assert log.store.requests["get_object"] - asked <= 2 * PUBLISHES
        assert read_all(log) == before


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [((403, "InvalidObjectState"), "done"), ((500, "InternalError"), "cut")],
    ids=["archived", "lost by the store"],
)
def test_one_object_that_is_not_given_keeps_no_other_from_being_merged(
    s3_server: SeaweedServer, s3_root: str, answer: tuple[int, str], outcome: str
) -> None:
    with FaultyProxy(s3_server.endpoint_url) as proxy:
        options = {**s3_server.storage_options, "endpoint_url": proxy.endpoint_url, "retry_timeout": 1}
        with sparklog.open(s3_root, storage_options=options) as log:
            for topic in ("a", "t", "z"):
                log.create_topic(topic, PARTITIONS)
                for _ in range(3):
                    rows = {"value": ["x"] * PARTITIONS, "partition": list(range(PARTITIONS))}
                    log.append(topic, pa.table(rows))
            bad = next(iter(log.image.partition("t", 0).extents)).segment
            terms = Terms(limits=MergeLimits(fan_in=3))
            proxy.fault = lambda one: Fault(forward=0, answer=answer) if bad in one.path else None
            report = maintain(log.metadata, log.clock, terms, steps=["optimize"])
            assert report.steps[0].outcome == outcome
            assert {one.topic for one in report.skipped} == {"t"}
            assert len(report.skipped) == PARTITIONS
            assert bad in report.skipped[0].message
            again = Terms(limits=terms.limits, skip=frozenset(one.key for one in report.skipped))
            assert maintain(log.metadata, log.clock, again, steps=["optimize"]).skipped == ()
            found = [len(log.image.partition(topic, 0).extents) for topic in ("a", "t", "z")]
            assert found == [1, 3, 1]
