"""Mutants that cosmic-ray's operators make of one file, a random sample of them within a bound of time."""

import contextlib
import random
import shlex
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_COSMIC_RAY = str(Path(sys.executable).parent / "cosmic-ray")
_SESSION = "mutants.sqlite"
_LEAST_SECONDS = 60  # before a mutant's tests count as hanging
# Of `|` nearly all are types: those mutants fail as the module is imported, and show nothing.
_LEFT_OUT = "core/ReplaceBinaryOperator_BitOr"


def tests_of(tree: Path, path: str) -> list[str] | None:
    """Return the test modules of a source file's name, else its layer's folder; None: it has neither."""
    source = Path(path)
    parts = ("server", *source.parts[1:-1]) if source.parts[0] == "sparklog_server" else source.parts[1:-1]
    while parts and not (tree / "tests").joinpath(*parts).is_dir():
        parts = parts[:-1]
    folder = (tree / "tests").joinpath(*parts)
    own = sorted(str(test.relative_to(tree)) for test in folder.glob(f"**/test_{source.stem}*.py"))
    return own or ([str(folder.relative_to(tree))] if parts else None)


def run_operators(
    tree: Path, path: str, command: Sequence[str], seconds: float, environment: dict[str, str]
) -> int:
    """Print the survivors among the mutants of `path`, for about `seconds`; return how many there are."""
    began = time.monotonic()
    done = subprocess.run(  # noqa: S603 - our own tests
        command, cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"{path}: its tests fail without a mutant\n{done.stdout[-2000:]}")
        return 1
    test_seconds = time.monotonic() - began
    (tree / "cosmic-ray.toml").write_text(
        f'[cosmic-ray]\nmodule-path = "{path}"\ntimeout = {max(_LEAST_SECONDS, 4 * test_seconds)}\n'
        f'excluded-modules = []\ntest-command = "{shlex.join(command)}"\n'
        '[cosmic-ray.distributor]\nname = "local"\n',
        encoding="utf-8",
    )
    (tree / _SESSION).unlink(missing_ok=True)
    _cosmic_ray(tree, environment, "init")
    with sqlite3.connect(tree / _SESSION) as session:
        made, sampled = _sample(session, random.Random(path))
    _cosmic_ray(tree, environment, "exec", seconds=began + seconds - time.monotonic())
    with sqlite3.connect(tree / _SESSION) as session:
        return _report(session, path, made, sampled)


def _sample(session: sqlite3.Connection, draw: random.Random) -> tuple[int, int]:
    """Keep one mutant of each kind at each place; return how many there were, and are."""
    found = session.execute(
        "SELECT job_id, start_pos_row, start_pos_col, operator_name FROM mutation_specs ORDER BY 2, 3, 4, 1"
    ).fetchall()
    kinds: dict[tuple[int, int, str], list[str]] = {}
    for job, row, column, operator in found:
        if not operator.startswith(_LEFT_OUT):
            kinds.setdefault((row, column, operator.split("_")[0]), []).append(job)
    kept = {draw.choice(jobs) for jobs in kinds.values()}
    gone = [(job,) for job, *_ in found if job not in kept]
    for table in ("mutation_specs", "work_items"):
        session.executemany(f"DELETE FROM {table} WHERE job_id = ?", gone)  # noqa: S608 - our own names
    return len(found), len(kept)


def _cosmic_ray(
    tree: Path, environment: dict[str, str], command: str, *, seconds: float | None = None
) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):  # what was done is in the session
        subprocess.run(  # noqa: S603 - the version that `make mutants` installs
            [_COSMIC_RAY, command, "cosmic-ray.toml", _SESSION],
            cwd=tree,
            env=environment,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=None if seconds is None else max(1.0, seconds),
        )


def _report(session: sqlite3.Connection, path: str, made: int, sampled: int) -> int:
    results = session.execute(
        "SELECT start_pos_row, operator_name, test_outcome, diff FROM work_results"
        " JOIN mutation_specs USING (job_id) ORDER BY 1, 2"
    ).fetchall()
    survivors = [result for result in results if result[2].lower() == "survived"]
    for row, operator, _, diff in survivors:
        changed = [line for line in diff.splitlines() if line[:1] in {"+", "-"}][3:]
        print(f"{path}:{row}: survived {operator.removeprefix('core/')}")
        print("\n".join(f"    {line}" for line in changed if line.strip("+- ")))
    print(
        f"{path}: ran {len(results)} mutants of a sample of {sampled} ({made} are possible),"
        f" {len(survivors)} survived"
    )
    return len(survivors)
