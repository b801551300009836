"""Other programs, and what the release's steps say."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
SECONDS = 1200


class ReleaseError(Exception):
    """A check that failed: the release is not to be published."""


def run(
    words: Sequence[object],
    *,
    cwd: Path = TREE,
    environment: Mapping[str, str] | None = None,
    text: str = "",
) -> str:
    """Run a program to its end and return its stdout.

    Args:
        environment: of the program; None: this process's.
        text: its standard input.

    Raises: ReleaseError with the end of its output if it fails.
    """
    result = subprocess.run(  # noqa: S603 - our own words
        [str(word) for word in words],
        cwd=cwd,
        env=environment,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    if result.returncode != 0:
        shown = " ".join(str(word) for word in words)[:300]
        raise ReleaseError(f"{shown}: exit {result.returncode}\n{(result.stdout + result.stderr)[-3000:]}")
    return result.stdout


def tool(name: str) -> Path:
    """Return a program of .venv-release, in which this runs."""
    return Path(sys.executable).with_name(name)


def without_compiler(venv: Path) -> dict[str, str]:
    """Return an environment in which an installation can compile nothing, and finds no other Python."""
    hidden = {"CC", "CXX", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "SPARK_HOME"}
    kept = {key: value for key, value in os.environ.items() if key not in hidden}
    return kept | {"PATH": str(venv / "bin")}


def folder_bytes(folder: Path) -> int:
    """Return the bytes of the files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def megabytes(size: int) -> str:
    """Return a size as people read it."""
    return f"{size / 1e6:.1f} MB" if size < 100e6 else f"{size / 1e6:.0f} MB"


def emptied(folder: Path) -> Path:
    """Return the folder, which is empty now."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
