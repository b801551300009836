from pathlib import Path

import pytest

from sparklog.demo.report import MARKER, bytes_below, prepare
from sparklog.errors import InvalidRequestError


def test_new_directory_is_made_and_marked(tmp_path: Path) -> None:
    workspace = prepare(tmp_path / "new" / "demo", None)
    assert (workspace.output / MARKER).is_file()
    assert workspace.work.is_dir()
    assert not workspace.root.exists()


def test_earlier_demo_is_replaced_but_other_files_in_it_stay(tmp_path: Path) -> None:
    workspace = prepare(tmp_path / "demo", None)
    (workspace.root / "segments").mkdir(parents=True)
    (workspace.output / "notes.txt").write_text("mine")
    again = prepare(tmp_path / "demo", None)
    assert not again.root.exists()
    assert (again.output / "notes.txt").read_text() == "mine"


def test_directory_of_somebody_else_is_refused_and_untouched(tmp_path: Path) -> None:
    thesis = tmp_path / "thesis.tex"
    thesis.write_text("years of work")
    with pytest.raises(InvalidRequestError, match="was not made by the demo"):
        prepare(tmp_path, None)
    with pytest.raises(InvalidRequestError, match="was not made by the demo"):
        prepare(thesis, None)
    assert list(tmp_path.iterdir()) == [thesis]


def test_root_elsewhere_must_be_empty_and_is_never_removed(tmp_path: Path) -> None:
    root = tmp_path / "log"
    root.mkdir()
    (root / "meta.properties").write_text("version=1")
    with pytest.raises(InvalidRequestError, match="not empty"):
        prepare(tmp_path / "demo", root)
    assert not (tmp_path / "demo").exists()
    assert bytes_below(root) == len("version=1")
