"""Which topics cannot wait for the machine's idle time."""

import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.client.topic_plan import OFFSETS_TOPIC
from sparklog.maintenance import choose, compact, urgent_topics


def test_internal_topics_of_many_extents_are_urgent(log: SparkLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "MOST_EXTENTS", 3)
    for number in range(4):
        assert urgent_topics(log.refresh()) == ()
        log.commit_offsets("group", {("t", 0): number})
        log.append("t", pa.table({"value": [str(number)]}))
    assert urgent_topics(log.refresh()) == (OFFSETS_TOPIC,)
    compact(log.metadata, log.clock, [OFFSETS_TOPIC])
    assert urgent_topics(log.refresh()) == ()
