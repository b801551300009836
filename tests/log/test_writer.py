"""LogWriter: segments roll, drafts continue, nothing torn or undurable is ever referred to."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from sparklog.errors import AlreadyExistsError, FatalStorageError, InvalidRequestError, StorageError
from sparklog.format.encode import EncodedBatches
from sparklog.format.index import parse_offset_entries
from sparklog.log import writer as synced_module
from sparklog.log.config import TopicConfig
from sparklog.log.segment_file import index_name
from sparklog.log.writer import LogWriter, OpenSegment
from sparklog.metadata import DraftExtent
from sparklog.storage import MemoryStore, StoreTraits
from tests.log.conftest import OnePartition
from tests.support.interrupts import is_free

Encoder = Callable[..., EncodedBatches]
VALUE = b"v" * 100


def full(operation: str) -> Callable[[str, str], None]:
    def hook(called: str, name: str) -> None:
        if called == operation and name.endswith(".log"):
            raise StorageError("STORAGE_FULL", f"{name}: no space", fix="free space")

    return hook


def test_drafts_lie_one_after_the_other_in_one_segment(memory: Any, encoder: Encoder) -> None:
    first = memory.draft(encoder([VALUE] * 3))
    second = memory.draft(encoder([VALUE] * 2, timestamps_ms=[7, 5]))
    assert first.segment == second.segment == f"segments/{memory.writer.writer_id}/00000000.log"
    assert (first.position, second.position) == (0, first.size)
    assert (second.record_count, second.max_timestamp_ms) == (2, 7)


def clone_of(memory: Any) -> LogWriter:
    """A writer with the same id: a machine's image was resumed twice."""
    return LogWriter(memory.store, memory.clock, writer_id=memory.writer.writer_id)


def test_a_clone_writes_under_a_name_of_its_own_when_it_finds_out(memory: Any, encoder: Encoder) -> None:
    clone = clone_of(memory)
    ours = [memory.append([b"%d" % number]) for number in range(3)]
    found, failures = [], 0
    for number in range(3):
        draft = clone.append(memory.topic_id, 0, encoder([b"clone %d" % number]), memory.config)
        assert draft is not None
        try:
            clone.sync([draft])
        except AlreadyExistsError:  # of a store that learns it from its PUT alone
            failures += 1
            continue
        found.append(draft)
    assert failures <= 1
    assert clone.writer_id != memory.writer.writer_id
    assert not {draft.segment for draft in ours} & {draft.segment for draft in found}
    assert all(clone.writer_id in draft.segment for draft in found)


def test_no_file_is_made_before_the_first_append(memory: Any, memory_store: MemoryStore) -> None:
    memory.writer.sync()
    memory.writer.close()
    assert memory_store.list("segments", recursive=True) == []


def test_an_append_that_would_exceed_segment_bytes_rolls(memory: Any, encoder: Encoder) -> None:
    encoded = encoder([VALUE] * 3)
    memory.config = TopicConfig(segment_bytes=encoded.size_bytes * 2)
    names = [memory.draft(encoded).segment[-12:] for _ in range(5)]
    assert names == ["00000000.log"] * 2 + ["00000001.log"] * 2 + ["00000002.log"]


def test_an_append_larger_than_segment_bytes_gets_a_segment_of_its_own(memory: Any, encoder: Encoder) -> None:
    memory.config = TopicConfig(segment_bytes=14)
    assert [memory.draft(encoder([VALUE])).position for _ in range(3)] == [0, 0, 0]


def test_the_strictest_topic_in_a_segment_counts(memory: Any, encoder: Encoder) -> None:
    strict = TopicConfig(segment_ms=1_000)
    writer: LogWriter = memory.writer
    first = writer.append("a", 0, encoder([VALUE]), strict)
    second = writer.append("b", 0, encoder([VALUE]), TopicConfig())
    memory.clock.advance_ms(1_001)
    third = writer.append("b", 0, encoder([VALUE]), TopicConfig())
    assert first
    assert second
    assert third
    assert first.segment == second.segment != third.segment
    memory.clock.advance_ms(1_001)
    fourth = writer.append("b", 0, encoder([VALUE]), TopicConfig())
    assert fourth
    assert fourth.segment == third.segment


@pytest.mark.usefixtures("growing_files")
def test_a_full_index_rolls(memory: Any, encoder: Encoder) -> None:
    memory.config = TopicConfig(segment_index_bytes=16, index_interval_bytes=1)
    segments = {memory.draft(encoder([VALUE])).segment for _ in range(9)}
    assert len(segments) == 3
    memory.writer.sync()
    for name in segments:
        assert len(memory.store.read(index_name(name))) <= 16


def test_writer_limits_bound_those_of_topics(memory: Any, encoder: Encoder) -> None:
    writer = LogWriter(memory.store, memory.clock, segment_bytes=200, segment_ms=10)
    drafts = [writer.append("a", 0, encoder([VALUE]), TopicConfig()) for _ in range(2)]
    assert drafts[0]
    assert drafts[1]
    assert drafts[0].segment != drafts[1].segment


@pytest.mark.usefixtures("growing_files")
def test_index_entries_name_offset_and_position_of_batches(memory: Any, encoder: Encoder) -> None:
    encoded = encoder([VALUE] * 400, batch_bytes=1000)
    memory.append([b"before"])
    draft = memory.draft(encoded)
    stored = memory.store.list("segments", recursive=True)
    assert not [file for file in stored if file.name.endswith(".index")], "nothing is durable yet"
    memory.writer.sync()
    index = parse_offset_entries(memory.store.read(index_name(draft.segment)), "index")
    offsets, positions = index.relative_offset.astype(int), index.position.astype(int) - draft.position
    assert len(index) == draft.size // 4096
    at = np.searchsorted(encoded.position, positions)
    assert (encoded.position[at] == positions).all()
    assert (encoded.base_offset[at] == offsets).all()
    assert (np.diff(positions) >= 4096 - 1100).all()


@pytest.mark.usefixtures("growing_files")
def test_small_appends_share_index_intervals(memory: Any, encoder: Encoder) -> None:
    drafts = [memory.draft(encoder([VALUE])) for _ in range(200)]
    memory.writer.sync()
    size = drafts[-1].position + drafts[-1].size
    index = parse_offset_entries(memory.store.read(index_name(drafts[0].segment)), "index")
    assert abs(len(index) - size // 4096) <= 1


def test_an_index_that_cannot_be_written_fails_nothing(
    memory: Any, memory_store: MemoryStore, encoder: Encoder
) -> None:
    def hook(called: str, name: str) -> None:
        if called in {"append_file", "write"} and name.endswith(".index"):
            raise StorageError("STORAGE_FULL", f"{name}: no space", fix="free space")

    memory_store.hook = hook
    drafts = [memory.draft(encoder([VALUE] * 100)) for _ in range(2)]
    memory.publish(drafts)
    assert not [file for file in memory_store.list("segments", recursive=True) if "index" in file.name]


def test_a_draft_is_continued_only_at_the_end_of_the_active_segment(memory: Any, encoder: Encoder) -> None:
    writer: LogWriter = memory.writer
    first = memory.draft(encoder([VALUE] * 2))
    more = encoder([VALUE] * 3, base_offset=2, timestamps_ms=[1, 1, 1])
    longer = writer.append(memory.topic_id, 0, more, memory.config, extends=first)
    assert longer is not None
    assert (longer.position, longer.size) == (0, first.size + more.size_bytes)
    assert (longer.record_count, longer.max_timestamp_ms) == (5, first.max_timestamp_ms)
    assert not writer.is_end(first)
    assert writer.append(memory.topic_id, 0, more, memory.config, extends=first) is None
    memory.config = TopicConfig(segment_bytes=longer.size)
    assert writer.append(memory.topic_id, 0, more, memory.config, extends=longer) is None  # rolled
    memory.publish([longer])


def test_a_failed_append_is_never_appended_to(
    memory: Any, memory_store: MemoryStore, encoder: Encoder
) -> None:
    before = memory.draft(encoder([VALUE]))
    memory_store.hook = full("write")
    with pytest.raises(StorageError, match="STORAGE_FULL"):
        memory.draft(encoder([VALUE]))
    memory_store.hook = None
    after = memory.draft(encoder([VALUE]))
    assert after.segment != before.segment
    memory.publish([before, after])  # what was written before the failure is still good
    assert memory.state.log_end_offset == 2


def test_a_failed_sync_is_reported_to_every_draft_it_concerns(
    memory: Any, memory_store: MemoryStore, encoder: Encoder
) -> None:
    lost = memory.draft(encoder([VALUE]))
    memory_store.hook = full("sync")
    with pytest.raises(StorageError, match="STORAGE_FULL"):
        memory.writer.sync()
    memory_store.hook = None
    good = memory.draft(encoder([VALUE]))
    assert good.segment != lost.segment
    with pytest.raises(FatalStorageError, match=r"are not durable.*a sync of this segment failed"):
        memory.writer.sync([good, lost])
    memory.writer.sync([good])


def test_nobody_begins_or_ends_a_segment_while_they_are_looked_through(
    memory: Any, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = memory.draft(encoder([VALUE]))
    found = []

    def is_end(_segment: OpenSegment, _draft: DraftExtent) -> bool:
        found.append(is_free(memory.writer._lock))
        return True

    monkeypatch.setattr(OpenSegment, "is_end", is_end)
    assert memory.writer.is_end(draft)
    assert found == [False]


@pytest.mark.parametrize("rolls", [False, True])
@pytest.mark.parametrize("grows", [False, True])
def test_an_interrupted_sync_fails_nothing_that_comes_later(
    grows: bool, rolls: bool, encoder: Encoder
) -> None:
    """A file that ends with its sync takes no other; one that grows is synced once more."""
    store = MemoryStore(traits=StoreTraits(appends_after_sync=grows))
    one = OnePartition(store)
    one.config = TopicConfig(segment_bytes=14 if rolls else 1 << 20)
    drafts = [one.draft(encoder([VALUE])) for _ in range(3)]
    interrupted = drafts[1].segment

    def interrupt(called: str, name: str) -> None:
        if called == "sync" and name == interrupted:
            store.hook = None
            raise KeyboardInterrupt

    store.hook = interrupt
    with pytest.raises(KeyboardInterrupt):
        one.writer.sync()
    good = [draft for draft in drafts if grows or draft.segment != interrupted]
    if good:
        one.publish(good)
    for _ in range(2):
        one.append([VALUE])
    assert one.state.log_end_offset == len(good) + 2


def test_a_segment_in_use_is_not_forgotten_for_older_than_others(
    memory: Any, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its draft waits, and is looked at before each attempt to publish it."""
    monkeypatch.setattr(synced_module, "MAX_SYNCED", 3)
    memory.config = TopicConfig(segment_bytes=14)
    waiting, others = memory.draft(encoder([VALUE])), []
    for _ in range(5):
        others.append(memory.draft(encoder([VALUE])))
        memory.writer.sync([waiting, others[-1]])
    assert [memory.is_remembered(draft) for draft in others] == [False, False, False, True, True]


def test_a_publish_may_lie_in_more_segments_than_are_remembered(
    memory: Any, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synced_module, "MAX_SYNCED", 3)
    memory.config = TopicConfig(segment_bytes=14)
    drafts = [memory.draft(encoder([VALUE])) for _ in range(5)]
    memory.writer.sync(drafts)
    assert [memory.is_remembered(draft) for draft in drafts] == [False, False, True, True, True]


def test_rolled_segments_are_synced_too(memory: Any, memory_store: MemoryStore, encoder: Encoder) -> None:
    memory.config = TopicConfig(segment_bytes=14)
    drafts = [memory.draft(encoder([VALUE])) for _ in range(3)]
    memory.writer.sync(drafts)
    memory_store.crash()
    assert [memory_store.exists(draft.segment) for draft in drafts] == [True] * 3


@pytest.mark.usefixtures("growing_files")
def test_flush_messages_and_flush_ms_sync_early(
    memory: Any, memory_store: MemoryStore, encoder: Encoder
) -> None:
    synced: list[str] = []
    memory_store.hook = lambda called, name: synced.append(name) if called == "sync" else None
    memory.config = TopicConfig(flush_messages=3)
    for _ in range(4):
        memory.draft(encoder([VALUE] * 2))
    assert len(synced) == 2
    memory.config = dataclasses.replace(TopicConfig(), flush_ms=500)
    memory.draft(encoder([VALUE]))
    memory.clock.advance_ms(500)
    memory.draft(encoder([VALUE]))
    assert len(synced) == 3


def test_closing_syncs_and_the_writer_can_be_used_again(memory: Any, encoder: Encoder) -> None:
    first = memory.draft(encoder([VALUE]))
    memory.writer.close()
    second = memory.draft(encoder([VALUE]))
    assert first.segment != second.segment
    memory.publish([first, second])


def test_an_absurdly_large_append_is_refused(memory: Any, encoder: Encoder) -> None:
    huge = msgspec.structs.replace(encoder([VALUE]), size_bytes=1 << 31)
    with pytest.raises(InvalidRequestError, match="APPEND_TOO_LARGE"):
        memory.draft(huge)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
def test_a_forked_child_writes_to_segments_of_its_own(local: Any, encoder: Encoder) -> None:
    mine = local.draft(encoder([b"parent"]))
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            draft = local.draft(encoder([b"child"]))
            local.writer.sync([draft])
            os.write(writer, draft.segment.encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    _, status = os.waitpid(pid, 0)
    with os.fdopen(reader) as pipe:
        childs = pipe.read()
    assert status == 0
    assert childs.split("/")[1] != local.writer.writer_id
    local.publish([mine, local.draft(encoder([b"parent again"]))])
    assert (
        local.store.open_read(mine.segment).size
        == local.state.extents[-1].position + local.state.extents[-1].size
    )
