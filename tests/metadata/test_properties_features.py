"""Features that a root needs: who does not know them reads nothing, or publishes nothing; by name."""

from collections.abc import Callable

import msgspec
import pyarrow as pa
import pytest

from sparklog.clock import ManualClock
from sparklog.errors import InvalidRequestError, UnsupportedVersionError
from sparklog.metadata import Action, Image, MetadataLog, RequireFeatures, SharedPlan, empty_image
from sparklog.metadata.documents.document import checksum, encode_document
from sparklog.metadata.documents.properties import DIRECTORY, REQUESTS, manifest_name, snapshot_directory
from sparklog.metadata.documents.snapshot import read_manifest, read_snapshot
from sparklog.metadata.model import settings
from sparklog.metadata.model.action import ActionRefusedError
from sparklog.storage import MemoryStore
from tests.metadata.cluster_roots import applied
from tests.metadata.opened_logs import opened, replace_file, set_config
from tests.metadata.remote_logs import REMOTE
from tests.support.roots import opened as open_root

UNREADABLE = r"SPARKLOG_UNSUPPORTED_METADATA.*reading it needs the features new-read, which .*Fix: Upgrade"
UNWRITABLE = (
    r"SPARKLOG_UNSUPPORTED_METADATA.*writing to it needs the features new-write, which .*Fix: Upgrade"
)


def require(log: MetadataLog, *actions: Action) -> None:
    """As software that knows all of them does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "READER_FEATURES", frozenset({"new-read", "known"}))
        patch.setattr(settings, "WRITER_FEATURES", frozenset({"new-write", "known"}))
        log.publish(lambda _: actions)


@pytest.fixture
def elsewhere(memory: MemoryStore) -> MetadataLog:
    """Another process, whose software is newer, and may name features."""
    return opened(memory)


def test_a_root_without_features_needs_none(memory: MemoryStore) -> None:
    image = opened(memory).image
    assert (image.reader_features, image.writer_features) == (frozenset(), frozenset())


def test_an_unknown_feature_of_readers_stops_opening_and_following(
    memory: MemoryStore, elsewhere: MetadataLog
) -> None:
    log = opened(memory)
    set_config(log, "before")
    require(elsewhere, RequireFeatures(readers=("new-read", "known")))
    with pytest.raises(UnsupportedVersionError, match="features known, new-read, which"):
        log.refresh()
    assert log.image.configs == {"before": "x"}
    with pytest.raises(UnsupportedVersionError, match="features known, new-read, which"):
        set_config(log, "after")
    with pytest.raises(UnsupportedVersionError, match="features known, new-read, which"):
        opened(memory)


def test_it_stops_opening_from_a_snapshot(
    memory: MemoryStore, elsewhere: MetadataLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(elsewhere, RequireFeatures(readers=("new-read",)))
    set_config(elsewhere, "after")
    commit = elsewhere.write_snapshot()
    memory.delete(f"{DIRECTORY}/{0:020d}.json")
    with pytest.raises(UnsupportedVersionError, match=UNREADABLE):
        opened(memory)
    with pytest.raises(UnsupportedVersionError, match=UNREADABLE):
        read_snapshot(memory, commit, cluster_id=elsewhere.cluster_id)
    monkeypatch.setattr(settings, "READER_FEATURES", frozenset({"new-read"}))
    assert opened(memory).image == elsewhere.image
    assert elsewhere.image.reader_features == {"new-read"}


def test_a_snapshot_that_cannot_be_decoded_for_want_of_a_feature_names_it(
    memory: MemoryStore, elsewhere: MetadataLog
) -> None:
    require(elsewhere, RequireFeatures(readers=("new-read",)))
    commit = elsewhere.write_snapshot()
    header, body = read_manifest(memory, commit, cluster_id=elsewhere.cluster_id)
    name = f"{snapshot_directory(commit)}/{body.state.name}"
    data = msgspec.json.encode({**msgspec.json.decode(memory.read(name)), "new_field": 1})
    replace_file(memory, name, data)
    part = msgspec.structs.replace(body.state, size=len(data), crc32c=checksum(data))
    new = encode_document(header, msgspec.structs.replace(body, state=part))
    replace_file(memory, manifest_name(commit), new)
    with pytest.raises(UnsupportedVersionError, match=UNREADABLE):
        read_snapshot(memory, commit, cluster_id=elsewhere.cluster_id)


def test_an_unknown_feature_of_writers_lets_read_and_publishes_nothing(
    memory: MemoryStore, elsewhere: MetadataLog
) -> None:
    log = opened(memory)
    require(elsewhere, RequireFeatures(writers=("known",)), RequireFeatures(writers=("new-write", "known")))
    assert log.refresh().writer_features == {"known", "new-write"}
    before = {file.name for file in memory.list("", recursive=True)}
    attempts: list[Callable[[], object]] = [lambda: set_config(log, "after"), log.write_snapshot, log.clean]
    for attempt in attempts:
        with pytest.raises(UnsupportedVersionError, match=r"features known, new-write, which"):
            attempt()
    assert {file.name for file in memory.list("", recursive=True)} == before
    assert opened(memory).image == log.image


def test_an_append_of_the_embedded_client_is_refused(memory: MemoryStore, elsewhere: MetadataLog) -> None:
    with open_root(memory, ManualClock()) as log:
        log.append("t", pa.table({"value": ["before"]}))
        require(elsewhere, RequireFeatures(writers=("new-write",)))
        with pytest.raises(UnsupportedVersionError, match=UNWRITABLE):
            log.append("t", pa.table({"value": ["after"]}))
        assert log.read("t", 0, 0)["value"].to_pylist() == [b"before"]


def test_it_survives_a_snapshot(
    memory: MemoryStore, elsewhere: MetadataLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(elsewhere, RequireFeatures(writers=("new-write",)))
    with monkeypatch.context() as patch:
        patch.setattr(settings, "WRITER_FEATURES", frozenset({"new-write"}))
        set_config(elsewhere, "after")
        elsewhere.write_snapshot()
    memory.delete(f"{DIRECTORY}/{0:020d}.json")
    log = opened(memory)
    assert log.image == elsewhere.image
    with pytest.raises(UnsupportedVersionError, match=UNWRITABLE):
        set_config(log, "x")


def test_nothing_is_posted_for_others_to_publish() -> None:
    store = MemoryStore("features", clock=ManualClock(), traits=REMOTE)
    log = opened(store)
    require(opened(store), RequireFeatures(writers=("new-write",)))
    puts: list[str] = []
    store.hook = lambda operation, name: puts.append(name) if operation.startswith("put") else None
    log.combiner.contention.note()

    def plan(_image: Image) -> list[Action]:
        return [RequireFeatures(writers=("known",))]

    with pytest.raises(UnsupportedVersionError, match=UNWRITABLE):
        log.publish(plan, shared=SharedPlan(payload=lambda: b"{}", interpret=lambda _: plan))
    assert puts == []
    assert store.list(REQUESTS) == []


def test_features_are_never_given_up() -> None:
    image = applied(empty_image("C" * 22), RequireFeatures(writers=("a",)), RequireFeatures(writers=("b",)))
    image = applied(image, RequireFeatures())
    assert image.writer_features == {"a", "b"}


@pytest.mark.parametrize("name", ["", "A", "1a", "a b", "a\n", "\u00e4", "a" * 64, "a/b"])
def test_illegal_names_are_refused(name: str, memory: MemoryStore) -> None:
    for action in (RequireFeatures(readers=(name,)), RequireFeatures(writers=(name,))):
        with pytest.raises(ActionRefusedError, match=r"features: feature .* expected"):
            applied(empty_image("C" * 22), action)
    with pytest.raises(InvalidRequestError, match="would not apply"):
        opened(memory).publish(lambda _: [RequireFeatures(writers=(name,))])


def test_more_features_than_there_may_be_are_refused() -> None:
    names = tuple(f"f{number}" for number in range(101))
    image = applied(empty_image("C" * 22), RequireFeatures(writers=names[:100]))
    with pytest.raises(ActionRefusedError, match="101 features, expected at most 100"):
        applied(image, RequireFeatures(writers=names))
