"""meta.properties: agreed on by racing creators, refused when damaged or newer."""

import threading

import pytest

from sparklog.clock import ManualClock
from sparklog.errors import CorruptLogError, InvalidRequestError, UnsupportedVersionError
from sparklog.metadata import MetadataLog, SetConfigs
from sparklog.metadata.documents.document import checksum
from sparklog.metadata.documents.properties import decode_properties, encode_properties, open_properties
from sparklog.metadata.model.action import is_id, new_id
from sparklog.storage import LocalStore, MemoryStore, Store

CLUSTER = "CCCCCCCCCCCCCCCCCCCCCC"


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest) -> Store:
    found: Store = request.getfixturevalue(request.param)
    return found


def with_checksum(text: str) -> bytes:
    return text.encode() + f"crc32c={checksum(text.encode())}\n".encode()


def test_the_file_is_readable_text() -> None:
    assert encode_properties(CLUSTER) == b"version=1\ncluster.id=CCCCCCCCCCCCCCCCCCCCCC\ncrc32c=dca81286\n"
    assert decode_properties(encode_properties(CLUSTER), "here") == CLUSTER


def test_opening_what_is_no_root(memory: MemoryStore) -> None:
    with pytest.raises(InvalidRequestError, match=r"meta.properties: not found.*create=True") as raised:
        MetadataLog.open(memory, ManualClock())
    assert raised.value.code == "ROOT_NOT_FOUND"
    assert memory.list("", recursive=True) == []


def test_created_once_and_kept(memory: MemoryStore) -> None:
    first = MetadataLog.open(memory, ManualClock(), create=True)
    assert is_id(first.cluster_id)
    assert MetadataLog.open(memory, ManualClock(), create=True).cluster_id == first.cluster_id
    assert MetadataLog.open(memory, ManualClock()).cluster_id == first.cluster_id


def test_racing_creators_agree(local: LocalStore) -> None:
    found: list[str] = []
    barrier = threading.Barrier(8)

    def create() -> None:
        barrier.wait()
        found.append(open_properties(local, create=True, new_cluster_id=new_id()))

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


@pytest.mark.parametrize(
    "name", ["data.csv", "year=2024/part-0.parquet", "_delta_log/0.json", ".hoodie/x", "segments/w/0.log"]
)
def test_no_root_is_made_among_other_things(store: Store, name: str) -> None:
    store.put_if_absent(name, b"somebody's")
    with pytest.raises(
        InvalidRequestError, match=rf"{name.partition('/')[0]}.*expected a root, or an empty"
    ) as error:
        MetadataLog.open(store, ManualClock(), create=True)
    assert error.value.code == "ROOT_NOT_EMPTY"
    assert [one.name for one in store.list("", recursive=True)] == [name]


@pytest.mark.parametrize("name", ["_checkpoints/query/metadata", ".snapshot/x", "lost+found/x", "_SUCCESS"])
def test_what_says_nothing_may_stand_beside_a_root(store: Store, name: str) -> None:
    store.put_if_absent(name, b"")
    assert MetadataLog.open(store, ManualClock(), create=True).cluster_id
    assert store.exists(name)


def test_the_names_of_a_full_directory_are_not_all_told(store: Store) -> None:
    for number in range(9):
        store.put_if_absent(f"file{number}", b"")
    with pytest.raises(
        InvalidRequestError, match=r"found file0, file1, file2 and more, and no meta.properties"
    ):
        MetadataLog.open(store, ManualClock(), create=True)


def test_a_root_made_between_two_looks_is_not_taken_for_other_things() -> None:
    class Raced(MemoryStore):
        def top_names(self, limit: int) -> list[str]:
            if not self.exists("meta.properties"):
                MetadataLog.open(other, ManualClock(), create=True)
                for file in other.list("", recursive=True):
                    self.put_if_absent(file.name, other.read(file.name))
                self.put_if_absent("segments/w/0.log", b"")
            return super().top_names(limit)

    other = MemoryStore("other")
    assert MetadataLog.open(Raced("raced"), ManualClock(), create=True).cluster_id == (
        MetadataLog.open(other, ManualClock()).cluster_id
    )


@pytest.mark.parametrize("version", ["2", "99999999999999999999"])
def test_newer_version_is_refused(version: str) -> None:
    with pytest.raises(UnsupportedVersionError, match=f"found version {version}.*Upgrade"):
        decode_properties(with_checksum(f"version={version}\ncluster.id={CLUSTER}\n"), "here")


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"cluster.id={CLUSTER}\n",
        "version=1\n",
        f"version=1\ncluster.id={CLUSTER}\nnode.id=1\n",
        f"version=1\ncluster.id={CLUSTER}x\n",
        "version=1\ncluster.id=../../../../../../../..\n",
        f"version=0\ncluster.id={CLUSTER}\n",
        f"version=\u00b2\ncluster.id={CLUSTER}\n",
        f"version=1\nversion=1\ncluster.id={CLUSTER}\n",
        f"version=1\ncluster.id={CLUSTER}\nnonsense\n",
    ],
)
def test_intact_nonsense_is_refused(text: str) -> None:
    with pytest.raises(CorruptLogError, match="here"):
        decode_properties(with_checksum(text), "here")


def test_every_bit_flip_and_truncation_is_detected() -> None:
    data = encode_properties(CLUSTER)
    damaged = [data[:size] for size in range(len(data))]
    damaged += [
        data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]
        for position in range(len(data))
        for bit in range(8)
    ]
    for bad in damaged:
        with pytest.raises(CorruptLogError):
            decode_properties(bad, "here")


def test_missing_file_beside_commits_is_not_made_anew(memory: MemoryStore) -> None:
    """A new cluster id would make every commit there a stranger's."""
    log = MetadataLog.open(memory, ManualClock(), create=True)
    log.publish(lambda image: [SetConfigs(configs={"a": "1"})])
    memory.delete("meta.properties")
    for create in (False, True):
        with pytest.raises(CorruptLogError, match="missing, but the root has metadata"):
            MetadataLog.open(memory, ManualClock(), create=create)


def test_a_root_that_is_made_and_used_between_two_looks(memory: MemoryStore) -> None:
    """Its file is missed, its commits are seen: that alone does not mean that the file is missing."""

    def hook(operation: str, name: str) -> None:
        if operation == "list":
            memory.hook = None
            other = MetadataLog.open(memory, ManualClock(), create=True)
            other.publish(lambda image: [SetConfigs(configs={"a": "b"})])

    memory.hook = hook
    log = MetadataLog.open(memory, ManualClock(), create=True)
    assert log.image.configs == {"a": "b"}


@pytest.mark.parametrize("done", [False, True])
def test_creating_with_a_lost_answer(memory: MemoryStore, done: bool) -> None:
    from sparklog.storage import IndefinitePutError

    lost: list[str] = []

    def hook(operation: str, name: str) -> None:
        if operation == ("put_if_absent:done" if done else "put_if_absent") and len(lost) < 2:
            lost.append(name)
            raise IndefinitePutError("PUT_INDEFINITE", "no answer", fix="repeat")

    memory.hook = hook
    assert open_properties(memory, create=True, new_cluster_id=CLUSTER) == CLUSTER
    assert lost
