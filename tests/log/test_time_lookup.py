"""offset_for_time: Kafka's ListOffsets, also where timestamps do not ascend."""

from typing import Any

import numpy as np
import pytest

from sparklog.log.time_lookup import offset_for_time
from sparklog.metadata import plan_advance_log_start
from sparklog.storage import MemoryStore


def at(partition: Any, timestamp_ms: int) -> tuple[int, int] | None:
    return offset_for_time(partition.store, partition.state, timestamp_ms, topic="t")


def test_the_earliest_offset_at_or_after_the_time(memory: Any) -> None:
    memory.append([b"a", b"b", b"c"], timestamps_ms=[100, 300, 200])
    memory.append([b"d", b"e"], timestamps_ms=[250, 400])
    assert at(memory, 0) == (0, 100)
    assert at(memory, 101) == (1, 300)
    assert at(memory, 300) == (1, 300)
    assert at(memory, 301) == (4, 400)
    assert at(memory, 401) is None


def test_records_below_the_log_start_do_not_count(memory: Any) -> None:
    memory.append([b"a", b"b", b"c"], timestamps_ms=[500, 300, 200])
    memory.append([b"d"], timestamps_ms=[100])
    action = plan_advance_log_start(memory.metadata.image, memory.topic_id, 0, 1)
    assert action is not None
    memory.metadata.publish(lambda _: [action])
    assert at(memory, 100) == (1, 300)
    assert at(memory, 301) is None


@pytest.mark.parametrize("seed", range(5))
def test_agrees_with_a_scan_of_all_records(memory: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    times: list[int] = []
    for _ in range(10):
        part = rng.integers(0, 1000, rng.integers(1, 50)).tolist()
        times += part
        memory.append([b"x" * 20] * len(part), timestamps_ms=part, batch_bytes=200)
    for timestamp_ms in rng.integers(0, 1010, 60).tolist():
        expected = next(((o, t) for o, t in enumerate(times) if t >= timestamp_ms), None)
        assert at(memory, timestamp_ms) == expected


def test_older_extents_are_not_opened(memory: Any, memory_store: MemoryStore) -> None:
    for number in range(5):
        memory.append([b"x"], timestamps_ms=[number * 100])
        memory.writer.close()
    opened: list[str] = []
    memory_store.hook = lambda called, name: opened.append(name) if called == "open_read" else None
    assert at(memory, 400) == (4, 400)
    assert {name for name in opened if name.endswith(".log")} == {memory.state.extents[4].segment}
