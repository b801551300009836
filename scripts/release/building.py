"""The source distribution and the wheels, from a commit and not from what happens to lie in the folder.

The wheels are built from the source distribution, which shows that it is complete. Times in them are the
commit's, so that the same commit gives the same bytes.
"""

import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scripts.release.running import TREE, ReleaseError, run, tool

TESTED = ("manylinux_2_17_x86_64", "manylinux_2_17_aarch64")
# What the cross compiler can make as well. Nobody has run them: they are kept apart, and not published.
UNTESTED = ("macosx_11_0_x86_64", "macosx_11_0_arm64")


def build(revision: str, output: Path, work: Path) -> tuple[Path, list[Path], list[Path]]:
    """Build from a commit; return the source distribution, the tested and the untested wheels."""
    environment = {
        **os.environ,
        "SOURCE_DATE_EPOCH": run(["git", "log", "-1", "--format=%ct", revision]).strip(),
    }
    exported = unpack(_archive(revision, work), work / "exported")
    run(_build("--sdist", output), cwd=exported, environment=environment)
    (sdist,) = output.glob("*.tar.gz")
    source = unpack(sdist, work / "source") / sdist.name.removesuffix(".tar.gz")
    tested = [_wheel(source, platform, output, environment) for platform in TESTED]
    untested = [_wheel(source, platform, output / "untested", environment) for platform in UNTESTED]
    again = _wheel(source, TESTED[0], work / "again", environment)
    if sha256(again) != sha256(tested[0]):
        raise ReleaseError(f"{again.name}: built twice from one commit, with different bytes")
    return sdist, tested, untested


def revision_to_build(*, allow_changes: bool) -> str:
    """Return HEAD, or, with `allow_changes`, a commit of the changed files that no branch has."""
    changed = run(["git", "stash", "create"]).strip()
    if changed and not allow_changes:
        raise ReleaseError("the work tree has changes: commit them, or try with --allow-changes")
    return changed or run(["git", "rev-parse", "HEAD"]).strip()


def sha256(path: Path) -> str:
    """Return the digest in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def build_wheel(revision: str, output: Path) -> Path:
    """Build the wheel of this machine's platform from any commit."""
    with tempfile.TemporaryDirectory(prefix="sparklog-build-") as directory:
        exported = unpack(_archive(revision, Path(directory)), Path(directory) / "exported")
        run(_build("--wheel", output), cwd=exported)
    (wheel,) = output.glob("*.whl")
    return wheel


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a tar file into a folder, and return the folder."""
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    return folder


def _archive(revision: str, work: Path) -> Path:
    archive = work / "export.tar"
    run(["git", "-C", TREE, "archive", "--format=tar", "-o", archive, revision])
    return archive


def _wheel(source: Path, platform: str, output: Path, environment: dict[str, str]) -> Path:
    before = set(output.glob("*.whl"))
    shutil.rmtree(source / "build", ignore_errors=True)  # the other platform's library
    run(
        _build("--wheel", output),
        cwd=source,
        environment={**environment, "SPARKLOG_WHEEL_PLATFORM": platform},
    )
    (wheel,) = set(output.glob("*.whl")) - before
    return wheel


def _build(kind: str, output: Path) -> Sequence[str | Path]:
    # The tools are in this environment, with known versions: nothing is fetched.
    return [tool("python"), "-m", "build", "--no-isolation", kind, "--outdir", output]
