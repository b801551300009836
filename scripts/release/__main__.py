"""Build the packages of a release, check them, install them, and stop: nothing is published. `make release`.

    python -m scripts.release                          HEAD, with the Pythons on the PATH
    python -m scripts.release --allow-changes          what the work tree has now
    python -m scripts.release --python /opt/python3.14/bin/python3.14 --aarch64 /opt/debian-arm64
    python -m scripts.release --without-installing     build, and check what can be seen from outside

What it makes is in dist/: source distribution, wheels, a bill of materials, SHA256SUMS, and REPORT.txt.
Exit code 1: a check has failed.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from scripts.release.building import build, revision_to_build, sha256
from scripts.release.checks import check_packages, check_versions, left_to_decide
from scripts.release.installing import (
    VERSIONS,
    Installed,
    find_pythons,
    try_crossed,
    try_server,
    try_spark,
)
from scripts.release.licences import check_licences, write_bill
from scripts.release.running import TREE, ReleaseError, emptied, megabytes, run

DIST = TREE / "dist"


def main(words: Sequence[str]) -> int:
    """Run all steps; return the exit code."""
    options = _options(words)
    try:
        version = check_versions()
        pythons = find_pythons(options.python)
        with tempfile.TemporaryDirectory(prefix="sparklog-release-") as directory:
            report = _release(version, pythons, options, Path(directory))
    except ReleaseError as error:
        print(f"\nnot a release: {error}", file=sys.stderr)
        return 1
    (DIST / "REPORT.txt").write_text("\n".join(report) + "\n")
    print("\n" + "\n".join(report))
    return 0


def _release(version: str, pythons: dict[str, Path], options: argparse.Namespace, work: Path) -> list[str]:
    revision = revision_to_build(allow_changes=options.allow_changes)
    with _Step("build"):
        sdist, tested, untested = build(revision, emptied(DIST), work)
    with _Step("check metadata, contents, platforms"):
        check_packages(sdist, [*tested, *untested])
    installed: list[Installed] = []
    notes: list[str] = []
    if not options.without_installing:
        for name, python in pythons.items():
            with _Step(f"install on Python {name}"):
                installed += try_server(name, python, tested[0], work)
        if options.aarch64 is not None:
            with _Step("run on aarch64, emulated"):
                installed.append(try_crossed(tested[1], options.aarch64, work))
        with _Step("install with Spark, run README's example"):
            with_spark, python = _with_spark(pythons, options.spark_python, tested[0], work)
            installed.append(with_spark)
        with _Step("bill of materials, licences"):
            notes = check_licences(write_bill(python, DIST / f"sparklog-{version}.cdx.json"))
    files = sorted(path for path in DIST.rglob("*") if path.is_file())
    (DIST / "SHA256SUMS").write_text("".join(f"{sha256(path)}  {path.relative_to(DIST)}\n" for path in files))
    missing = [name for name in VERSIONS if name not in pythons]
    return _report(version, run(["git", "rev-parse", revision]).strip(), files, installed, missing, notes)


def _with_spark(
    pythons: dict[str, Path], wanted: str | None, wheel: Path, work: Path
) -> tuple[Installed, Path]:
    version = wanted or next(iter(pythons))
    if version not in pythons:
        raise ReleaseError(f"--spark-python {version}: no such interpreter among {', '.join(pythons)}")
    return try_spark(version, pythons[version], wheel, work)


def _report(
    version: str,
    commit: str,
    files: list[Path],
    installed: list[Installed],
    missing: list[str],
    notes: list[str],
) -> list[str]:
    lines = [f"# sparklog {version}, built from {commit[:12]}", "", "|file|size|", "|-|-|"]
    lines += [f"|{path.relative_to(DIST)}|{megabytes(path.stat().st_size)}|" for path in files]
    if installed:
        lines += ["", "|installed|Python|seconds|size|tried|", "|-|-|-|-|-|"]
        lines += [
            f"|{one.what}|{one.python}|{one.seconds:.0f}|{megabytes(one.size_bytes)}|{one.tried}|"
            for one in installed
        ]
    lines += ["", *(f"- licence noted: {note}" for note in notes)]
    lines += [f"- not tried: Python {name}, which this machine lacks" for name in missing]
    lines += ["- not tried: the wheels in untested/, which nobody has run"]
    lines += [f"- to decide before publishing: {what}" for what in left_to_decide()]
    lines += ["", "Nothing has been published. What comes next: docs/internals/releasing.md."]
    return lines


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.release", description="Build and check a release."
    )
    parser.add_argument("--allow-changes", action="store_true", help="build the work tree as it is now")
    parser.add_argument("--without-installing", action="store_true", help="only build and check")
    parser.add_argument("--python", action="append", default=[], metavar="PATH", help="one more interpreter")
    parser.add_argument("--spark-python", metavar="3.X", help="the one of the Spark check (the oldest)")
    parser.add_argument("--aarch64", type=Path, metavar="DIR", help="made by scripts/release/aarch64.sh")
    return parser.parse_args(words)


class _Step:
    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        print(f"{self._name} ...", flush=True)
        self._started = time.monotonic()

    def __exit__(self, *error: object) -> None:
        print(f"    {time.monotonic() - self._started:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
