"""Roots that other sparklogs made: they open, read as they did then, and go on; newer ones are refused.

The roots and what they held are in tests/golden/roots; golden/README.md says which commit made which.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

import sparklog
from sparklog.clock import ManualClock
from sparklog.errors import UnsupportedVersionError
from sparklog.metadata import MetadataLog, new_id, plan_join_broker
from sparklog.metadata.documents.document import VERSION, CommitBody, Header, encode_document
from sparklog.metadata.documents.properties import DIRECTORY, commit_name, manifest_name
from sparklog.metadata.model import settings
from sparklog.storage import open_store
from tests.golden.make_roots import READERS, WRITERS, contents, rows

ROOTS = Path(__file__).parent.parent / "golden" / "roots"
NAMES = sorted(path.name for path in ROOTS.iterdir())


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The features that the roots name are known."""
    monkeypatch.setattr(settings, "READER_FEATURES", frozenset(READERS))
    monkeypatch.setattr(settings, "WRITER_FEATURES", frozenset(WRITERS))


@pytest.fixture(params=NAMES)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A copy of an old root, and what it held."""
    shutil.copytree(ROOTS / request.param / "root", tmp_path / "root")
    expected = json.loads((ROOTS / request.param / "expected.json").read_text("utf-8"))
    return tmp_path / "root", expected


def held(log: sparklog.SparkLog) -> Any:
    return json.loads(json.dumps(contents(log)))


def test_an_old_root_reads_as_it_did(old: tuple[Path, dict[str, Any]]) -> None:
    root, expected = old
    with sparklog.open(root, create=False) as log:
        assert held(log) == expected
        assert log.committed_offsets("group-1") == {("orders", 0): 4, ("orders", 1): 2}


def test_without_its_snapshot_it_reads_the_same(old: tuple[Path, dict[str, Any]]) -> None:
    root, expected = old
    (snapshot,) = (root / DIRECTORY).glob("*.snapshot")
    shutil.rmtree(snapshot)
    with sparklog.open(root, create=False) as log:
        assert held(log) == expected


def test_an_old_root_goes_on(old: tuple[Path, dict[str, Any]]) -> None:
    root, expected = old
    before = {
        (topic, number): partition["records"]
        for topic, found in expected["topics"].items()
        for number, partition in enumerate(found["partitions"])
    }
    with sparklog.open(root, create=False) as log:
        assert log.append("orders", rows(10, 5), partition=1, txn=("query-1", 4)).duplicate
        end = log.log_end_offset("orders", 0)
        result = log.append("orders", rows(70, 2), partition=0, txn=("query-1", 5))
        assert result.ranges[("orders", 0)].base_offset == end
        log.metadata.publish(lambda image: [plan_join_broker(image, 8, incarnation_id=new_id())])
        snapshot = log.metadata.write_snapshot()
        assert snapshot == expected["commit"] + 2
    for path in root.joinpath(DIRECTORY).glob("0*.json"):
        if 0 < int(path.stem) < snapshot:
            path.unlink()  # so that it must be the new snapshot
    with sparklog.open(root, create=False) as log:
        after = held(log)
    assert after["brokers"][:-1] == expected["brokers"]
    assert after["brokers"][-1]["node_id"] == 8
    assert after["leaderships"] == expected["leaderships"]
    for topic, found in after["topics"].items():
        for number, partition in enumerate(found["partitions"]):
            records = partition["records"]
            old_records = before[topic, number]
            assert records[: len(old_records)] == old_records
            assert len(records) - len(old_records) == (2 if (topic, number) == ("orders", 0) else 0)


class Unheard(msgspec.Struct, tag="unheard_of", tag_field="type"):
    """An action of the future."""

    topic_id: str


NEWER = f"found version {VERSION + 1}, expected {VERSION}"


@pytest.mark.parametrize(
    ("kind", "version", "action", "message"),
    [
        ("commit", VERSION + 1, None, NEWER),
        ("snapshot", VERSION + 1, None, NEWER),
        ("commit", VERSION, Unheard("A" * 22), "unknown type 'unheard_of'"),
    ],
)
def test_a_newer_root_is_refused_by_name(
    kind: str, version: int, action: Unheard | None, message: str, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    shutil.copytree(ROOTS / NAMES[-1] / "root", root)
    store = open_store(root)
    log = MetadataLog.open(store, ManualClock())
    image = log.image
    commit = image.commit + (kind == "commit")
    body: Any = CommitBody(actions=()) if action is None else {"actions": [action]}
    header = Header(
        version=version,
        kind=kind,
        commit=commit,
        cluster_id=image.cluster_id,
        uuid=new_id(),
        previous=image.commit_uuid,
        timestamp_ms=0,
        length=0,
    )
    name = commit_name(commit) if kind == "commit" else manifest_name(commit)
    store.put_if_absent(name, encode_document(header, body))
    with pytest.raises(UnsupportedVersionError, match=message) as caught:
        sparklog.open(root, create=False)
    assert caught.value.code == "UNSUPPORTED_METADATA"
    assert name in str(caught.value)
    if kind == "commit":
        with pytest.raises(UnsupportedVersionError, match=message):
            log.refresh(force=True)
        assert log.image is image


def test_a_root_that_needs_unknown_features_is_refused_by_their_names(
    old: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "READER_FEATURES", frozenset())
    with pytest.raises(UnsupportedVersionError, match=r"reading it needs the features golden\.read, which"):
        sparklog.open(old[0], create=False)
