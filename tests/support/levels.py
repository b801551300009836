"""Three levels of tests: `--level fast`, `usual` or `all` (`make test-fast`, `make test`, `make test-all`).

fast: what runs in the process of pytest, and searches no large space. No test can start a process.
usual: all but tests marked `exhaustive`; of a function marked `sampled(n)`, n of its cases, evenly spread.
all: everything; also the default of pytest, for a few files.

fast and usual keep the files of tests in memory where there is room; all keeps them on the disk.
What is not fast is marked `slow` by its fixtures and its folder; by hand only where neither shows it.
"""

import os
import sys
from collections import defaultdict
from typing import Any

import pytest

LEVELS = ("fast", "usual", "all")
FIXTURES = {"broker_process", "s3_reserved", "server", "spark", "sparklog_broker", "start_process"}
FOLDERS = {
    *("brokers", "browser", "clusters", "compat", "crash", "models", "peers", "property"),
    *("server/maintenance", "simulation", "upgrade"),
}
_MEMORY, _MEMORY_BYTES = "/dev/shm", 4 << 30
_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}


def add_marks(item: pytest.Item) -> None:
    """Mark what starts Spark, and what is slow."""
    fixtures = set(getattr(item, "fixturenames", ()))
    in_folder = item.nodeid.startswith(tuple(f"tests/{folder}/" for folder in FOLDERS))
    if "spark" in fixtures:
        item.add_marker(pytest.mark.spark)
    if item.get_closest_marker("spark") or fixtures & FIXTURES or in_folder:
        item.add_marker(pytest.mark.slow)


def left_out(items: list[pytest.Item], level: str) -> set[pytest.Item]:
    """Items that the level does not run."""
    if level == "all":
        return set()
    barred = {"slow", "exhaustive"} if level == "fast" else {"exhaustive"}
    out = {item for item in items if any(item.get_closest_marker(mark) for mark in barred)}
    sampled: dict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if mark := item.get_closest_marker("sampled"):
            sampled[item.nodeid.partition("[")[0], mark.args[0]].append(item)
    for (_function, wanted), cases in sampled.items():
        kept = spread(len(cases), wanted)
        out.update(case for index, case in enumerate(cases) if index not in kept)
    return out


def spread(count: int, wanted: int) -> set[int]:
    """Return `wanted` evenly spread indices below `count`, the first among them."""
    return {index * count // wanted for index in range(wanted)} if wanted < count else set(range(count))


def memory_directory() -> str | None:
    """Return a directory in memory that has room for a run, if there is one: fsync takes no time there."""
    try:
        found = os.statvfs(_MEMORY)
    except OSError:
        return None
    has_room = found.f_bavail * found.f_frsize >= _MEMORY_BYTES
    return _MEMORY if has_room and not found.f_flag & os.ST_NOEXEC and os.access(_MEMORY, os.W_OK) else None


def refuse_processes(refused: list[str]) -> None:
    """Make each start of a process raise RuntimeError from now on, and note it in `refused`."""

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _STARTS:
            refused.append(f"{event}{arguments[:2]}: mark this test `slow`")
            raise RuntimeError(refused[-1])

    sys.addaudithook(audit)
