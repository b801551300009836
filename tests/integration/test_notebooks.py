"""The notebooks run from top to bottom, and are kept with the outputs that they then have."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

PROJECT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((PROJECT / "notebooks").glob("*.ipynb"))


def code_cells(path: Path) -> list[Any]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def printed(path: Path) -> str:
    return "".join(out.get("text", "") for cell in code_cells(path) for out in cell.outputs)


@pytest.mark.exhaustive
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_from_top_to_bottom(notebook: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(notebook, tmp_path))
    command = [sys.executable, str(PROJECT / "scripts" / "run_notebooks.py"), str(copy)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    if notebook.stem.endswith("exactly_once"):
        assert "doubled: 0, lost: 0, in order per key: True" in printed(copy)
    if notebook.stem.endswith("kafka_clients"):
        assert "acknowledged: 3,000, doubled: 0, lost: 0, in order: True" in printed(copy)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_kept_with_its_outputs_and_nothing_of_the_machine(notebook: Path) -> None:
    cells = code_cells(notebook)
    assert all(cell.execution_count for cell in cells), "run: make notebooks"
    assert any("image/png" in out.get("data", {}) for cell in cells for out in cell.outputs), "no plot"
    assert not [out for cell in cells for out in cell.outputs if out.get("name") == "stderr"]


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["01_quickstart", "02_exactly_once", "03_kafka_clients"]
