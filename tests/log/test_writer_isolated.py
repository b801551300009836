"""The writer's segments of isolated topics: never shared, and so many open at most."""

from collections.abc import Callable
from typing import Any

import pytest

from sparklog.errors import StorageError
from sparklog.format.encode import EncodedBatches
from sparklog.log import writer as module
from sparklog.log.config import TopicConfig
from sparklog.log.writer import MAX_ISOLATED, MAX_LANES, Append, LogWriter, isolated_lane, lane_of
from sparklog.metadata import DraftExtent, isolated_prefix, new_id
from sparklog.storage import LocalStore, MemoryStore
from sparklog.storage.base import StoreTraits

Encoder = Callable[..., EncodedBatches]
CONFIG = TopicConfig(segment_isolation=True)
REMOTE = StoreTraits(is_remote=True, appends_after_sync=False)


class Topics:
    """A writer, and isolated topics t0, t1, ... that it appends to."""

    def __init__(self, store: MemoryStore | LocalStore, clock: Any, encoder: Encoder) -> None:
        self.writer = LogWriter(store, clock)
        self.encoder = encoder
        self.ids: dict[str, str] = {}

    def append(self, topic: str) -> DraftExtent:
        topic_id = self.ids.setdefault(topic, new_id())
        lane = self.writer.lane_of(topic, topic_id, CONFIG)
        draft = self.writer.append(topic_id, 0, self.encoder([b"x"]), CONFIG, lane=lane)
        assert draft is not None
        return draft


@pytest.fixture(params=[None, REMOTE], ids=["files", "objects"])
def topics(request: Any, memory: Any, encoder: Encoder) -> Topics:
    return Topics(MemoryStore("isolated", traits=request.param), memory.clock, encoder)


def limit_of(topics: Topics) -> int:
    is_shared = topics.writer.lane_of("__consumer_offsets", new_id(), TopicConfig()) == ""
    return MAX_LANES if is_shared else MAX_ISOLATED  # on object stores committed offsets share a segment


def test_a_lane_is_the_prefix_and_the_id() -> None:
    topic_id = new_id()
    for traits in (REMOTE, StoreTraits()):
        for topic in ("a", "__consumer_offsets"):
            lane = lane_of(topic, topic_id, CONFIG, traits)
            assert lane == isolated_lane(topic, topic_id) == f"isolated/{topic}/{topic_id}"


def test_more_topics_than_open_segments_never_share_one(topics: Topics) -> None:
    names = [f"t{number}" for number in range(2 * MAX_ISOLATED)]
    drafts: list[DraftExtent] = []
    for _ in range(2):
        for name in names:
            draft = topics.append(name)
            assert draft.segment.startswith(isolated_prefix(name))
            drafts.append(draft)
            assert sum(map(topics.writer.is_end, drafts)) <= limit_of(topics)
    topics.writer.sync(drafts)
    owners = {(draft.segment, draft.topic_id) for draft in drafts}
    assert len(owners) == len({segment for segment, _ in owners})


def test_the_least_recently_used_one_makes_room(topics: Topics) -> None:
    drafts = {f"t{number}": topics.append(f"t{number}") for number in range(limit_of(topics))}
    drafts["t0"] = topics.append("t0")
    topics.append("one more")
    open_ones = [name for name, draft in drafts.items() if topics.writer.is_end(draft)]
    assert open_ones == ["t0", *[f"t{number}" for number in range(2, limit_of(topics))]]
    topics.writer.sync(list(drafts.values()))


def test_lanes_of_other_topics_do_not_give_way(memory: Any, topics: Topics, encoder: Encoder) -> None:
    for number in range(limit_of(topics)):
        topics.append(f"t{number}")
    topic_id, segments = new_id(), set()
    for number in range(MAX_LANES):
        draft = topics.writer.append(topic_id, 0, encoder([b"x"]), TopicConfig(), lane=f"delete {number} -1")
        assert draft is not None
        segments.add(draft.segment)
    assert len(segments) == MAX_LANES


def test_a_topic_that_is_created_again_has_a_segment_of_its_own(topics: Topics) -> None:
    before = topics.append("t")
    topics.ids.clear()
    after = topics.append("t")
    assert before.segment != after.segment
    assert before.segment.rpartition("/")[0] == after.segment.rpartition("/")[0]


def test_batches_of_another_topic_are_refused(topics: Topics, encoder: Encoder) -> None:
    """Who may read the one topic would read the other's."""
    mine, other = new_id(), new_id()
    lane = isolated_lane("t", mine)
    appends = [Append(one, 0, encoder([b"x"]), CONFIG) for one in (mine, other)]
    with pytest.raises(AssertionError, match="another topic's"):
        topics.writer.append_together(appends, lane=lane)
    with pytest.raises(AssertionError, match="another topic's"):
        topics.writer.append(other, 0, encoder([b"x"]), CONFIG, lane=lane)


def test_a_failure_to_make_room_is_reported_before_anything_is_published(
    memory: Any, encoder: Encoder
) -> None:
    """1. t0's segment is synced and closed for another topic's, which fails; 2. that append goes on;
    3. the sync before the publish raises, so that no draft of t0 is published without its bytes."""
    store = MemoryStore("isolated")
    topics = Topics(store, memory.clock, encoder)
    first = topics.append("t0")
    for number in range(1, MAX_ISOLATED):
        topics.append(f"t{number}")

    def fails(operation: str, name: str) -> None:
        if operation == "sync" and name == first.segment:
            raise StorageError("STORAGE_FULL", f"{name}: no space", fix="free space")

    store.hook = fails
    more = topics.append("one more")
    store.hook = None
    with pytest.raises(StorageError, match="STORAGE_FULL"):
        topics.writer.sync([more])
    topics.writer.sync([more])
    again = topics.append("t0")
    topics.writer.sync([again])
    assert again.segment != first.segment


def test_the_segment_of_a_deleted_topic_is_closed_by_the_next_sync(local: Any, encoder: Encoder) -> None:
    """An open file keeps its space on the disk, and no append to a deleted topic would find out."""
    topics = Topics(local.store, local.clock, encoder)
    gone, kept = topics.append("gone"), topics.append("kept")
    topics.writer.sync([gone, kept])
    local.store.delete(gone.segment)
    topics.writer.sync()
    assert not topics.writer.is_end(gone)
    assert topics.writer.is_end(kept)


def test_a_writer_whose_numbers_are_used_up_begins_anew(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name of nine digits would be nobody's: never swept, and refused after a sweep."""
    monkeypatch.setattr(module, "MAX_NUMBER", 2)
    drafts = [topics.append(f"t{number}") for number in range(7)]
    topics.writer.sync(drafts)
    names = [draft.segment.rpartition("/")[2] for draft in drafts]
    assert names == [f"{number % 3:08d}.log" for number in range(7)]
    assert len({draft.segment.split("/")[-2] for draft in drafts}) == 3
