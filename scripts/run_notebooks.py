"""Execute every notebook in notebooks/ in place, so that its saved outputs are this code's.

Each runs in its own temporary working directory, with this interpreter, and stops at the first
cell that fails. usage: python scripts/run_notebooks.py [notebooks/01_quickstart.ipynb ...]
"""

import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
CELL_TIMEOUT_S = 600


def run(path: Path) -> float:
    """Execute `path`, save it with its outputs, return the seconds it took."""
    notebook = nbformat.read(path, as_version=4)
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sparklog-notebook-") as directory:
        client = NotebookClient(
            notebook,
            timeout=CELL_TIMEOUT_S,
            kernel_name="python3",
            resources={"metadata": {"path": directory}},
        )
        client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran would change every diff
        if cell.cell_type == "code":
            # The JVM's start-up messages: they name the machine, and say nothing about the notebook.
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    nbformat.write(notebook, path)
    return time.monotonic() - started_s


def main(arguments: list[str]) -> int:
    paths = [Path(argument) for argument in arguments] or sorted(NOTEBOOKS.glob("*.ipynb"))
    for path in paths:
        print(f"{path.name}: executing", flush=True)
        print(f"{path.name}: {run(path):.1f} s", flush=True)
    print(f"{len(paths)} notebooks executed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
