"""A root that is removed, or replaced, while somebody has it open: whoever goes on harms nobody."""

import shutil
from pathlib import Path

import pytest

from sparklog.clock import ManualClock
from sparklog.errors import CorruptLogError
from sparklog.metadata import MetadataLog
from sparklog.storage import LocalStore
from tests.metadata.opened_logs import opened, set_config


def commits(log: MetadataLog, *keys: str) -> MetadataLog:
    for key in keys:
        set_config(log, key)
    return log


def test_a_root_that_was_made_anew_is_not_written_to(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    before = commits(opened(LocalStore(root)), "a", "b")
    shutil.rmtree(root)
    root.mkdir()
    anew = commits(opened(LocalStore(root)), "c", "d")
    assert before.refresh().commit == anew.image.commit
    with pytest.raises(CorruptLogError, match="was the root made anew, or replaced by a copy") as raised:
        set_config(before, "lost")
    assert raised.value.code == "CORRUPT_METADATA_LOG"
    commits(anew, "e")
    assert set(opened(LocalStore(root)).image.configs) == {"c", "d", "e"}


def test_nor_one_that_went_on_from_an_older_copy(tmp_path: Path, clock: ManualClock) -> None:
    root, copy = tmp_path / "root", tmp_path / "copy"
    root.mkdir()
    before = commits(opened(LocalStore(root)), "a")
    shutil.copytree(root, copy)
    commits(before, "b")
    shutil.rmtree(root)
    copy.rename(root)
    commits(opened(LocalStore(root)), "c")
    with pytest.raises(CorruptLogError, match="which this process has seen"):
        set_config(before, "lost")
    after = MetadataLog.open(LocalStore(root), clock)
    assert set(after.image.configs) == {"a", "c"}
    assert set_config(after, "d") == 2


def test_what_others_publish_is_no_other_history(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    one, other = opened(LocalStore(root)), opened(LocalStore(root))
    for number in range(3):
        commits(one, f"a{number}")
        commits(other, f"b{number}")
    assert one.refresh().commit == 5
