"""The demo's directory: what is in it, and when it may be replaced.

<output>/.sparklog-demo      marks the directory as ours; without it nothing is ever removed
<output>/root/               the log (elsewhere with --root)
<output>/delays.png          the plot
<output>/logs/               what the Spark jobs printed
<output>/work/               the unpacked CSV and the query's checkpoint (removed at the end)
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from sparklog.errors import InvalidRequestError

MARKER = ".sparklog-demo"
MARKER_TEXT = "Made by `sparklog demo`, which replaces this directory when it runs again.\n"


@dataclass(frozen=True, slots=True)
class Workspace:
    """The places of one run."""

    output: Path
    root: Path

    @property
    def plot(self) -> Path:
        return self.output / "delays.png"

    @property
    def logs(self) -> Path:
        return self.output / "logs"

    @property
    def work(self) -> Path:
        return self.output / "work"

    @property
    def checkpoint(self) -> Path:
        return self.work / "checkpoint"

    def remove_work(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)


def prepare(output: Path, root: Path | None) -> Workspace:
    """Make an empty workspace; replace an earlier demo's, refuse anybody else's directory."""
    output = output.absolute()
    workspace = Workspace(output=output, root=root.absolute() if root else output / "root")
    if _occupied(output) and not (output / MARKER).is_file():
        raise InvalidRequestError(
            "DEMO_DIRECTORY_TAKEN",
            f"{output} is not empty and was not made by the demo",
            fix="name another directory with --output-dir DIR, or empty this one yourself",
        )
    if root is not None and _occupied(workspace.root):
        raise InvalidRequestError(
            "DEMO_DIRECTORY_TAKEN",
            f"the root {workspace.root} is not empty, and the demo writes only to a log of its own",
            fix="name an empty directory with --root DIR, or leave --root out",
        )
    if output.is_dir():
        for entry in (workspace.output / "root", workspace.logs, workspace.work):
            shutil.rmtree(entry, ignore_errors=True)
        workspace.plot.unlink(missing_ok=True)
    for directory in (output, workspace.logs, workspace.work):
        directory.mkdir(parents=True, exist_ok=True)
    (output / MARKER).write_text(MARKER_TEXT)
    return workspace


def _occupied(path: Path) -> bool:
    if path.is_dir():
        return any(path.iterdir())
    return path.exists() or path.is_symlink()


def bytes_below(directory: Path) -> int:
    """How much the files under `directory` hold."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
