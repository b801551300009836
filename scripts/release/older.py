"""Installs the release before this tree, for `make test-upgrade`: the last tag, or another commit.

    python -m scripts.release.older FOLDER [--commit v0.1.0]

While there is no tag, it is HEAD: then the tests only show that they work.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scripts.release.building import build_wheel
from scripts.release.running import TREE, emptied, run

STAMP = "commit.txt"


def main(words: Sequence[str]) -> int:
    """Make an environment with the wheel of a commit; keep one that has it already."""
    parser = argparse.ArgumentParser(prog="python -m scripts.release.older")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--commit", help="the last tag, or HEAD while there is none")
    options = parser.parse_args(words)
    name = options.commit or _last_tag() or "HEAD"
    commit = run(["git", "rev-parse", f"{name}^{{commit}}"]).strip()
    stamp = options.folder / STAMP
    if not stamp.exists() or stamp.read_text() != commit:
        _install(commit, emptied(options.folder))
        stamp.write_text(commit)
    print(f"the older release: {name}, {commit[:12]}, in {options.folder}")
    return 0


def _last_tag() -> str:
    tags = run(["git", "tag", "--list", "v*", "--sort=-version:refname", "--merged", "HEAD"]).split()
    return tags[0] if tags else ""


def _install(commit: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="sparklog-older-") as directory:
        wheel = build_wheel(commit, Path(directory))
        run([Path(sys.base_prefix) / "bin" / "python3", "-m", "venv", folder])
        words = [folder / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        run([*words, "-c", TREE / "constraints.txt", f"{wheel}[server]"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
