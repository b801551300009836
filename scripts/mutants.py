"""Mutants: sparklog with one safeguard switched off; some test must notice each. `make mutants`.

    python scripts/mutants.py              all of them
    python scripts/mutants.py fsync uuid   those whose name or file contains one of the words

Every mutant (scripts/mutations/, a module for each layer) is a text that occurs once in a file, and what is
put in its place. It is applied to a copy of the tree, never to the tree itself, and the tests that should
notice run there; the one that failed runs once more without the mutant, and must pass. Exit code 1: one
survived (a test is missing), or one cannot be applied any more (the code has moved on), or what failed fails
anyway, or no mutant is meant; 2: the command is wrong.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a command's own folder is there, not the project

from scripts.mutations import MUTANTS  # noqa: E402 - found by the line above
from scripts.mutations.mutant import Mutant  # noqa: E402

TABLE = ROOT / "docs" / "mutants.md"
COPIED = ("sparklog", "sparklog_server", "pyspark_sparklog", "tests", "FORMAT.md", "pyproject.toml", "docs")
TESTS_FAILED = 1  # pytest's exit code
TIMEOUT_SECONDS = 180
NO_END = "::timeout"  # instead of a test's name
# So that nothing of a failing run is random but what a test draws itself.
PYTEST = ("-m", "pytest", "-q", "-x", "-rf", "--timeout=120", "-p", "no:cacheprovider", "-p", "no:randomly")


@dataclass(frozen=True)
class Result:
    """What became of a mutant."""

    mutant: Mutant
    outcome: str  # caught, survived, stale, broken
    by: str
    seconds: float


def main(words: list[str]) -> int:
    """Run the mutants that were asked for."""
    options = _options(words)
    known = _rows(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
    chosen = [
        one for one in MUTANTS if not options.words or any(word in _text_of(one) for word in options.words)
    ]
    if not chosen:
        print(f"no mutant's name or file contains any of: {' '.join(options.words)}")
        return 1
    if options.missing:
        chosen = [one for one in chosen if one.safeguard not in known]
    if not chosen:  # else all tests would be run, to no end
        print(f"{TABLE.name} has all of them")
        return 0
    with tempfile.TemporaryDirectory(prefix="sparklog-mutants-") as directory:
        tree = Path(directory)
        for name in COPIED:
            _copy(ROOT / name, tree / name)
        if not options.trust and not _passes(tree, chosen):
            return 1
        results = []
        for one in chosen:
            results.append(_try(tree, one))
            result = results[-1]
            print(f"{result.outcome:9}{result.seconds:6.1f} s  {one.safeguard}  [{result.by}]", flush=True)
            if options.write:
                known[one.safeguard] = (result.outcome, result.by)
                TABLE.write_text(_table(known), encoding="utf-8")
    bad = [result for result in results if result.outcome != "caught"]
    print(f"{len(results)} mutants, {len(results) - len(bad)} caught")
    return 1 if bad else 0


def _passes(tree: Path, chosen: list[Mutant]) -> bool:
    """Do the tests, as long as no mutant is applied?"""
    selection = sorted({test for one in chosen for test in one.tests.split(" -k ")[0].split()})
    began = time.monotonic()
    code, output = _run(tree, selection, 10 * TIMEOUT_SECONDS)
    if code:
        print(output, "\nThe tests fail without any mutant.", sep="")
        return False
    seconds = time.monotonic() - began
    print(f"without a mutant all {len(selection)} selections pass ({seconds:.0f} s)", flush=True)
    return True


def _options(words: list[str]) -> argparse.Namespace:
    """SystemExit for what is no option, and when help is asked for: a run of all takes hours."""
    parser = argparse.ArgumentParser(
        prog="scripts/mutants.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("words", nargs="*", type=str.lower, help="of the name or the file of those to run")
    parser.add_argument("--missing", action="store_true", help="those that docs/mutants.md does not have yet")
    parser.add_argument("--write", action="store_true", help="what came of them goes into docs/mutants.md")
    parser.add_argument("--trust", action="store_true", help="do not run the tests without any mutant first")
    return parser.parse_intermixed_args(words)


def _text_of(mutant: Mutant) -> str:
    return f"{mutant.safeguard} {mutant.path}".lower()


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def _try(tree: Path, mutant: Mutant) -> Result:
    path = tree / mutant.path
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        return Result(mutant, "stale", f"found the text {text.count(mutant.old)} times, expected once", 0)
    began = time.monotonic()
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        code, output = _run(tree, mutant.tests.split())
    finally:
        path.write_text(text, encoding="utf-8")
    seconds = time.monotonic() - began
    failed = re.search(r"^(?:FAILED|ERROR) (\S+?::\S+)", output, re.MULTILINE)
    if code == 0:
        return Result(mutant, "survived", mutant.tests, seconds)
    if code != TESTS_FAILED or not failed:
        return Result(mutant, "broken", output.strip().rpartition("\n")[2], seconds)
    by = failed[1].partition("[")[0]
    if _run(tree, mutant.tests.split() if by.endswith(NO_END) else [by])[0] == 0:
        return Result(mutant, "caught", by, seconds)
    return Result(mutant, "broken", f"{by} fails without it, too", seconds)


def _run(tree: Path, tests: list[str], timeout_seconds: int = TIMEOUT_SECONDS) -> tuple[int, str]:
    # Bytecode is looked up by a file's time in seconds and its size: a mutant may have both of the original.
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(  # noqa: S603 - our own tests
            [sys.executable, *PYTEST, *tests],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_seconds,
        )
    except subprocess.TimeoutExpired:
        return 1, f"FAILED {tests[0]}{NO_END}"
    return done.returncode, done.stdout + done.stderr


def _rows(table: str) -> dict[str, tuple[str, str]]:
    """What a table says of each safeguard: the outcome, and the test."""
    found = re.findall(r"^\|([^|]+)\|`[^|]+`\|([^|]+)\|`([^|]+)`\|$", table, re.MULTILINE)
    return {safeguard: (outcome, by) for safeguard, outcome, by in found}


def _table(rows: dict[str, tuple[str, str]]) -> str:
    """Those that have been run, in the order of MUTANTS."""
    lines = [
        "# Mutants",
        "",
        "sparklog with one safeguard switched off at a time, and the test that noticed when it was last run.",
        "Written by `make mutants`; how each is switched off: `scripts/mutations/`.",
        "",
        "|safeguard|where|outcome|first noticed by|",
        "|-|-|-|-|",
    ]
    for one in MUTANTS:
        if one.safeguard in rows:
            outcome, by = rows[one.safeguard]
            lines.append(f"|{one.safeguard}|`{one.path}`|{outcome}|`{by}`|")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
