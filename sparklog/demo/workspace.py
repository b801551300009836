"""The demo's directory: what is in it, and when it may be replaced.

<output>/.sparklog-demo      marks the directory as ours; without it nothing is ever removed
<output>/root/               the log (elsewhere with --root, a directory or s3://bucket/prefix)
<output>/delays.png          the plot
<output>/logs/               what the Spark jobs printed
<output>/work/               the unpacked CSV and the query's checkpoint (removed at the end)
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from sparklog.errors import InvalidRequestError
from sparklog.storage import open_store

MARKER = ".sparklog-demo"
_URL = re.compile(r"[A-Za-z0-9]+://")
MARKER_TEXT = "Made by `sparklog demo`, which replaces this directory when it runs again.\n"


@dataclass(frozen=True, slots=True)
class Workspace:
    """The places of one run."""

    output: Path
    root: Path
    url: str | None = None  # of a root in an object store, in place of `root`

    @property
    def location(self) -> str:
        """The root as users write it."""
        return self.url or str(self.root)

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


def prepare(output: Path, root: Path | str | None) -> Workspace:
    """Make an empty workspace; replace an earlier demo's, refuse anybody else's directory."""
    output = output.absolute()
    url = str(root) if root is not None and _URL.match(str(root)) else None
    workspace = Workspace(
        output=output, root=Path(root).absolute() if root and not url else output / "root", url=url
    )
    if _occupied(output) and not (output / MARKER).is_file():
        raise InvalidRequestError(
            "DEMO_DIRECTORY_TAKEN",
            f"{output} is not empty and was not made by the demo",
            fix="name another directory with --output-dir DIR, or empty this one yourself",
        )
    if root is not None and (_holds_objects(url) if url else _occupied(workspace.root)):
        raise InvalidRequestError(
            "DEMO_DIRECTORY_TAKEN",
            f"the root {workspace.location} is not empty, and the demo writes only to a log of its own",
            fix="name an empty directory or prefix with --root, or leave --root out",
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


def _holds_objects(url: str) -> bool:
    return bool(open_store(url).list("", recursive=True))


def bytes_below(root: Path | str) -> int:
    """How much the files or objects under a root hold."""
    if isinstance(root, str) and _URL.match(root):
        return sum(file.size for file in open_store(root).list("", recursive=True))
    return sum(path.stat().st_size for path in Path(root).rglob("*") if path.is_file())
