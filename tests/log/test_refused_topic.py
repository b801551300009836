"""The storage refuses the directory of an isolated topic: only what is written to it fails."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparklog.clock import SystemClock
from sparklog.errors import RetriableError, StorageError
from sparklog.format.encode import EncodedBatches
from sparklog.log import writer as module
from sparklog.log.config import TopicConfig
from sparklog.log.refused_topic import RefusedTopicError, refused_topic, topic_prefix
from sparklog.log.writer import LogWriter
from sparklog.metadata import DraftExtent, new_id
from sparklog.storage import MemoryStore, Store, open_store
from sparklog.storage.base import StoreTraits
from tests.support.rights import closed

Encoder = Callable[..., EncodedBatches]
ISOLATED = TopicConfig(segment_isolation=True)
OBJECTS = StoreTraits(is_remote=True, appends_after_sync=False)
REFUSED = StorageError("STORAGE_REFUSED", "cannot put: 403", fix="check the credentials")


class Writer:
    """A writer, and isolated topics; `shared` is a topic that is not."""

    def __init__(self, store: Store, clock: Any, encoder: Encoder) -> None:
        self.log = LogWriter(store, clock)
        self.encoder = encoder
        self.ids: dict[str, str] = {}

    def append(self, topic: str) -> DraftExtent:
        topic_id = self.ids.setdefault(topic, new_id())
        config = TopicConfig() if topic == "shared" else ISOLATED
        lane = self.log.lane_of(topic, topic_id, config)
        draft = self.log.append(topic_id, 0, self.encoder([b"x"]), config, lane=lane)
        assert draft is not None
        return draft


def refusing(prefix: str, operation: str, error: StorageError = REFUSED) -> Callable[[str, str], None]:
    def hook(found: str, name: str) -> None:
        if found == operation and name.startswith(prefix):
            raise error

    return hook


@pytest.fixture
def objects(memory: Any) -> MemoryStore:
    return MemoryStore("refused", traits=OBJECTS)


@pytest.fixture
def writer(objects: MemoryStore, memory: Any, encoder: Encoder) -> Writer:
    return Writer(objects, memory.clock, encoder)


def test_prefixes() -> None:
    names = [
        "isolated/orders/",
        "isolated/orders/segments/w/0.log",
        "isolated/",
        "segments/w/0.log",
        "t-0/0.log",
    ]
    assert [topic_prefix(name) for name in names] == ["isolated/orders/"] * 2 + ["isolated/", "", ""]


def test_the_error_names_the_directory_and_what_to_do() -> None:
    error = refused_topic("isolated/orders/segments/w/0.log", REFUSED)
    assert error is not None
    assert refused_topic("isolated/orders/", error) is error
    for one in (error, copy.copy(error)):  # as Spark does between its processes
        assert str(one).startswith("[SPARKLOG_STORAGE_REFUSED] isolated/orders/ is closed to this process: ")
        assert "cannot put: 403" in one.message
        assert "sparklog grants" in one.fix
        assert one.prefix == "isolated/orders/"


def test_errors_that_are_not_of_one_topic_stay_as_they_are() -> None:
    full = StorageError("STORAGE_FULL", "no space", fix="make some")
    assert refused_topic("isolated/orders/", full) is None
    assert refused_topic("segments/w/0.log", REFUSED) is None


def test_only_drafts_of_the_refused_topic_fail(objects: MemoryStore, writer: Writer) -> None:
    objects.hook = refusing("isolated/secret/", "sync")
    drafts = [writer.append(topic) for topic in ("secret", "orders", "shared", "secret")]
    found = [error and error.prefix for error in writer.log.sync_each(drafts)]
    assert found == ["isolated/secret/", None, None, "isolated/secret/"]
    with pytest.raises(RefusedTopicError, match="isolated/secret/ is closed"):
        writer.log.sync(drafts)  # a publish of several topics fails as a whole
    objects.hook = None
    again = writer.append("secret")
    writer.log.sync([again])
    assert again.segment not in {draft.segment for draft in drafts}


def test_a_sync_of_others_neither_fails_nor_hides_it(objects: MemoryStore, writer: Writer) -> None:
    """1. a thread appends to the refused topic; 2. another one's sync covers that; 3. the first one's sync
    comes too late for it."""
    objects.hook = refusing("isolated/secret/", "sync")
    mine, other = writer.append("secret"), writer.append("orders")
    writer.log.sync([other])
    writer.log.close()
    objects.hook = None
    raised = []
    for _ in range(2):
        with pytest.raises(RefusedTopicError) as caught:
            writer.log.sync([mine])
        raised.append(caught.value)
    assert raised[0] is not raised[1]  # the kept one has no frames, and so none of their buffers
    assert {one.prefix for one in raised} == {"isolated/secret/"}


def test_a_refusal_when_room_is_made_fails_only_that_topic(
    objects: MemoryStore, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_LANES", 1)
    objects.hook = refusing("isolated/secret/", "sync")
    mine, other = writer.append("secret"), writer.append("orders")
    assert [error is None for error in writer.log.sync_each([mine, other])] == [False, True]


@pytest.mark.parametrize(
    ("prefix", "error"),
    [
        ("segments/", REFUSED),
        ("isolated/secret/", StorageError("STORAGE_FULL", "no space", fix="make some")),
        ("isolated/secret/", StorageError("STORE_UNAVAILABLE", "no answer", fix="wait")),
    ],
)
def test_any_other_error_fails_everything(
    objects: MemoryStore, writer: Writer, prefix: str, error: StorageError
) -> None:
    objects.hook = refusing(prefix, "sync", error)
    drafts = [writer.append(topic) for topic in ("orders", "shared", "secret")]
    with pytest.raises(StorageError) as raised:
        writer.log.sync_each(drafts)
    assert raised.value is error


def test_what_was_durable_before_the_refusal_stays_publishable(memory: Any, encoder: Encoder) -> None:
    store = MemoryStore("files")
    writer = Writer(store, memory.clock, encoder)
    before = writer.append("secret")
    writer.log.sync([before])
    store.hook = refusing("isolated/secret/", "sync")
    after = writer.append("secret")
    assert after.segment == before.segment
    assert [error is None for error in writer.log.sync_each([before, after])] == [True, False]


def test_errors_of_old_segments_are_dropped(
    objects: MemoryStore, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker's process goes on for months, with a refused topic that producers try to write."""
    monkeypatch.setattr(module, "MAX_REFUSED", 2)
    objects.hook = refusing("isolated/secret/", "sync")
    drafts = []
    for _ in range(4):
        drafts.append(writer.append("secret"))
        writer.log.sync_each(drafts[-1:])
    assert [error is None for error in writer.log.sync_each(drafts[-2:])] == [False, False]
    with pytest.raises(RetriableError, match="STAGING_EXPIRED"):  # there is no such object
        writer.log.sync_each(drafts[:1])


# --- directories -------------------------------------------------------------------------------------


@pytest.fixture
def files(unprivileged: Path, encoder: Encoder) -> Writer:
    return Writer(open_store(unprivileged / "root", create=True), SystemClock(), encoder)


def test_a_directory_that_may_not_be_written(files: Writer, unprivileged: Path) -> None:
    (unprivileged / "root/isolated/secret").mkdir(parents=True)
    with closed(unprivileged / "root/isolated/secret", 0o500):
        drafts = [files.append("orders")]
        with pytest.raises(RefusedTopicError, match=r"root/isolated/secret/segments.*Permission denied"):
            files.append("secret")
        drafts.append(files.append("shared"))
        files.log.sync(drafts)
    files.log.sync([files.append("secret")])
    files.log.close()


def test_a_directory_whose_names_may_not_be_synced(files: Writer, unprivileged: Path) -> None:
    """A file is created, but its name might be gone after a power cut: it must not be published."""
    (unprivileged / "root/isolated/secret").mkdir(parents=True)
    with closed(unprivileged / "root/isolated/secret", 0o300):
        drafts = [files.append(topic) for topic in ("orders", "secret", "shared")]
        found = files.log.sync_each(drafts)
        assert [error is None for error in found] == [True, False, True]
        assert "cannot open for fsync" in str(found[1])
        assert files.append("orders").segment == drafts[0].segment
    files.log.close()


def test_a_shared_directory_that_may_not_be_written_fails_as_before(
    files: Writer, unprivileged: Path
) -> None:
    (unprivileged / "root/segments").mkdir()
    with closed(unprivileged / "root/segments", 0o500):
        with pytest.raises(StorageError, match="STORAGE_REFUSED") as raised:
            files.append("shared")
        assert not isinstance(raised.value, RefusedTopicError)
    assert files.append("shared").segment.startswith("segments/")
    files.log.close()
