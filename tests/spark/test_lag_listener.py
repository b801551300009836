"""What StreamingLagListener makes of a progress report, without Spark."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.streaming.listener import QueryProgressEvent

from sparklog.spark import StreamingLagListener, lag_listener
from tests.support.told import Told

LATEST = json.dumps({"t": {"0": 100}})


def progress(*ends: dict[str, dict[str, int]]) -> QueryProgressEvent:
    """A report of a query with one source for each of `ends`, all of the same log."""
    sources = [SimpleNamespace(endOffset=json.dumps(end), latestOffset=LATEST) for end in ends]
    fields: dict[str, Any] = {"id": "q", "name": None, "batchId": 7, "timestamp": "now", "sources": sources}
    return cast("QueryProgressEvent", SimpleNamespace(progress=SimpleNamespace(**fields)))


def test_of_two_sources_of_one_topic_the_slower_one_counts() -> None:
    behind, ahead = {"t": {"0": 10}}, {"t": {"0": 95}}
    for ends in ((behind, ahead), (ahead, behind)):
        listener = StreamingLagListener()
        listener.onQueryProgress(progress(*ends))
        lag = listener.lag("q")
        assert lag is not None
        assert lag.by_partition == {("t", 0): 90}
        assert (lag.total, lag.largest) == (90, 90)


@pytest.mark.parametrize("ours", [True, False])
def test_a_spark_that_does_not_ask_for_the_logs_end_reports_none(
    monkeypatch: pytest.MonkeyPatch, told: Told, ours: bool
) -> None:
    """Before 4.2 what it calls the latest offset of a Python source is the end of the micro-batch."""
    monkeypatch.setattr(lag_listener, "CAN_LIMIT_READS", False)
    listener = StreamingLagListener()
    end = {"t": {"0": 10}} | ({"@root": {"cluster": 1}} if ours else {})
    for _ in range(2):
        listener.onQueryProgress(progress(end))
    assert (listener.lag("q") is None) == (listener.all() == []) == ours
    assert ["the lag of query q is unknown" in text for text in told("sparklog.spark.lag")] == [True] * ours
