"""Rounds of maintenance at the priority of everybody else.

Their priority is the lowest (round_process.py): next to other tests a second becomes a minute. That has a
test of its own.
"""

import os
from pathlib import Path

import pytest

# Python runs a module of this name at its start, wherever it is on the path.
_MODULE = "sitecustomize.py"
_TEXT = "import os\nos.nice = lambda _increment: 0\n"


def hurry(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """For processes that are started from here on, and by them."""
    (directory / _MODULE).write_text(_TEXT)
    before = os.environ.get("PYTHONPATH")
    path = str(directory) if before is None else f"{directory}{os.pathsep}{before}"
    monkeypatch.setenv("PYTHONPATH", path)  # of a broker's process
    monkeypatch.syspath_prepend(directory)  # of a round's, that a broker of this process starts
