"""Run mutants, and print which no test notices. `make mutants`.

    python -m scripts.mutants                            files that differ from main (on main: from HEAD~1)
    python -m scripts.mutants sparklog/format/codec.py   these files
    python -m scripts.mutants --rules                    all written mutants, and none of operators
    python -m scripts.mutants --rules fsync epoch        those whose loss or file contains one of the words

For each file: its written mutants (scripts/mutants/), then a random sample of those that the operators of
cosmic-ray make, as many as the time allows. A written mutant names its tests; for operators they are the
test modules of the file's name, or else the folder of its layer. Exit code 1: a mutant survived, a written
one does not apply any more, or its tests fail without it.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from scripts.mutants import MUTANTS
from scripts.mutants.mutant import PATCH_VARIABLE, Edit, Mutant
from scripts.mutants.operators import run_operators, tests_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("sparklog", "sparklog_server", "pyspark_sparklog")
COPIED = (*PACKAGES, "tests", "scripts", "docs", "FORMAT.md", "pyproject.toml")
# Nothing of a run is random but what a test draws itself.
PYTEST = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly")
TESTS_FAILED = 1  # pytest's exit code
TEST_SECONDS = 120
RUN_SECONDS = 300


def main(words: Sequence[str]) -> int:
    """Run what was asked for; return the exit code."""
    options = _options(words)
    stale = [(mutant, why) for mutant in MUTANTS if (why := mutant.why_stale(ROOT)) is not None]
    for mutant, why in stale:
        print(f"does not apply: {mutant.loss}\n    {why}")
    applicable = [mutant for mutant in MUTANTS if mutant not in [found for found, _ in stale]]
    files = [] if options.rules is not None else options.files or _changed_files()
    end = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="sparklog-mutants-") as directory:
        tree = Path(directory)
        for name in COPIED:
            _copy(ROOT / name, tree / name)
        bad = _run_written(tree, _chosen(applicable, files, options.rules), end)
        for number, path in enumerate(files):
            if (tests := tests_of(tree, path)) is None:
                print(f"{path}: no tests of its own; no operators")
                continue
            command = [*PYTEST, f"--timeout={TEST_SECONDS}", *tests]
            seconds = (end - time.monotonic()) / (len(files) - number)
            bad += run_operators(tree, path, command, seconds, _environment(tree))
    return 1 if bad or stale else 0


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("files", nargs="*", help="source files, as seen from the root of the repository")
    parser.add_argument("--rules", nargs="*", type=str.lower, metavar="WORD", help="written mutants only")
    parser.add_argument("--minutes", type=float, default=15, help="begin no mutant after that time")
    options = parser.parse_args(words)
    for path in options.files:
        if not (ROOT / path).is_file():
            parser.error(f"{path}: no such file")
    return options


def _changed_files() -> list[str]:
    git = shutil.which("git") or "git"

    def output(*arguments: str) -> str:
        return subprocess.run(  # noqa: S603 - git, with our own arguments
            [git, *arguments], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout

    base = output("merge-base", "main", "HEAD").strip()
    if base == output("rev-parse", "HEAD").strip():
        base = "HEAD~1"
    changed = output("diff", "--name-only", base, "--", *PACKAGES).split()
    return [path for path in changed if path.endswith(".py") and (ROOT / path).is_file()]


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def _chosen(mutants: Sequence[Mutant], files: Sequence[str], words: Sequence[str] | None) -> list[Mutant]:
    if words is None:
        return [mutant for mutant in mutants if mutant.change.path in files]
    return [mutant for mutant in mutants if not words or any(word in _text_of(mutant) for word in words)]


def _text_of(mutant: Mutant) -> str:
    return f"{mutant.loss} {mutant.change.path}".lower()


def _run_written(tree: Path, mutants: Sequence[Mutant], end: float) -> int:
    """Return how many survived, or could not be judged."""
    bad = 0
    passes: dict[str, bool] = {}  # tests, without a mutant
    for number, mutant in enumerate(mutants):
        if time.monotonic() > end:
            print(f"the time is over: {len(mutants) - number} of {len(mutants)} written mutants were not run")
            break
        if mutant.tests not in passes:
            passes[mutant.tests] = _run(tree, mutant.tests) == 0
        began = time.monotonic()
        outcome = _try(tree, mutant) if passes[mutant.tests] else "its tests fail without it"
        bad += outcome != "caught"
        print(
            f"{outcome:9}{time.monotonic() - began:6.1f} s  {mutant.loss}  [{mutant.change.path}]", flush=True
        )
    return bad


def _try(tree: Path, mutant: Mutant) -> str:
    if not isinstance(mutant.change, Edit):
        code = _run(tree, mutant.tests, {PATCH_VARIABLE: str(MUTANTS.index(mutant))})
    else:
        path = tree / mutant.change.path
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(mutant.change.old, mutant.change.new), encoding="utf-8")
        try:
            code = _run(tree, mutant.tests)
        finally:
            path.write_text(text, encoding="utf-8")
    return {0: "survived", TESTS_FAILED: "caught"}.get(code, "broken")


def _run(tree: Path, tests: str, more: dict[str, str] | None = None) -> int:
    """Return pytest's exit code; that of failed tests if it does not end in time."""
    command = [*PYTEST, "-p", "scripts.mutants.plugin", f"--timeout={TEST_SECONDS}", *tests.split()]
    try:
        return subprocess.run(  # noqa: S603 - our own tests
            command,
            cwd=tree,
            env={**_environment(tree), **(more or {})},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=RUN_SECONDS,
        ).returncode
    except subprocess.TimeoutExpired:
        return TESTS_FAILED


def _environment(tree: Path) -> dict[str, str]:
    # Bytecode is looked up by a file's time in seconds and its size: a mutant may have both of the original.
    return {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
