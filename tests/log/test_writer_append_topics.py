"""Appending to partitions of several topics at once leaves what appending to each would."""

from collections.abc import Sequence
from typing import Any

import pytest

from sparklog.clock import ManualClock
from sparklog.errors import StorageError
from sparklog.format.encode import EncodedBatches
from sparklog.log.config import TopicConfig
from sparklog.log.writer import Append, LogWriter
from sparklog.metadata import DraftExtent
from sparklog.storage import MemoryStore
from tests.log.test_writer_append_partitions import encode

TOPICS = ["A" * 22, "B" * 22, "C" * 22]


def batches(sizes: Sequence[int]) -> list[EncodedBatches]:
    return list(encode(sizes, batch_bytes=700).split())


class Writing:
    """One writer's steps, and what they leave."""

    def __init__(self, *, together: bool) -> None:
        self.store = MemoryStore()
        self.clock = ManualClock()
        self.writer = LogWriter(self.store, self.clock, writer_id="w" * 32, segment_bytes=20_000)
        self.together = together
        self.drafts: list[DraftExtent] = []
        self.writes: list[str] = []
        self.store.hook = self._on_call

    def append(self, sizes: Sequence[int], configs: Sequence[TopicConfig]) -> None:
        """One partition after the other, each of the next topic."""
        appends = [
            Append(TOPICS[number % len(configs)], number, one, configs[number % len(configs)])
            for number, one in enumerate(batches(sizes))
        ]
        for some in [appends] if self.together else [[one] for one in appends]:
            self.drafts += self.writer.append_together(some)

    def left(self) -> Any:
        self.writer.sync(self.drafts)
        names = sorted(file.name for file in self.store.list("segments", recursive=True))
        return self.drafts, {name: self.store.read(name) for name in names}

    def _on_call(self, operation: str, name: str) -> None:
        if operation == "write" and name.endswith(".log"):
            self.writes.append(name)


@pytest.mark.parametrize(
    "configs",
    [
        [TopicConfig()],
        [TopicConfig(index_interval_bytes=1), TopicConfig(index_interval_bytes=500)],
        [TopicConfig(index_interval_bytes=300), TopicConfig(index_interval_bytes=1, segment_bytes=9_000)],
        [TopicConfig(segment_bytes=9_000), TopicConfig(), TopicConfig(index_interval_bytes=100)],
        [TopicConfig(index_interval_bytes=1), TopicConfig(index_interval_bytes=1, segment_index_bytes=80)],
        [TopicConfig(), TopicConfig(segment_bytes=14)],
        [TopicConfig(index_interval_bytes=500), TopicConfig(segment_ms=1_000)],
    ],
)
def test_it_is_as_if_each_partition_had_been_appended_to(configs: list[TopicConfig]) -> None:
    left = []
    for together in (True, False):
        one = Writing(together=together)
        for sizes in [(10, 20, 30), (100, 1, 500, 7), (900,) * 5, (5,) * 40, (3_000,) * 2]:
            one.append(sizes, configs)
            one.clock.advance_ms(400)
        left.append(one.left())
    assert left[0] == left[1]


def test_where_they_fit_they_are_one_write() -> None:
    one = Writing(together=True)
    configs = [TopicConfig(), TopicConfig(segment_bytes=15_000)]
    one.append([10] * 30, configs)
    one.append([10] * 10, configs)
    assert len(one.writes) == 2
    assert len({draft.segment for draft in one.drafts}) == 1
    assert [draft.partition for draft in one.drafts] == [*range(30), *range(10)]


def test_the_strictest_flush_interval_counts() -> None:
    one = Writing(together=True)
    synced = 0

    def hook(operation: str, name: str) -> None:
        nonlocal synced
        synced += operation == "sync" and name.endswith(".log")

    one.store.hook = hook
    one.append([10] * 4, [TopicConfig(), TopicConfig(flush_messages=2)])
    assert synced == 1
    one.append([10] * 4, [TopicConfig()])
    assert synced == 1


def test_a_failed_write_leaves_no_drafts_and_a_segment_that_nothing_is_added_to() -> None:
    one = Writing(together=True)
    one.append([10] * 3, [TopicConfig()])
    failed = False

    def hook(operation: str, name: str) -> None:
        nonlocal failed
        if operation == "write" and not failed:
            failed = True
            raise StorageError("STORAGE_FULL", f"{name}: no space", fix="free space")

    one.store.hook = hook
    with pytest.raises(StorageError, match="STORAGE_FULL"):
        one.append([10] * 3, [TopicConfig()])
    assert len(one.drafts) == 3
    one.append([10] * 3, [TopicConfig()])
    assert [draft.segment[-12:] for draft in one.drafts] == ["00000000.log"] * 3 + ["00000001.log"] * 3
