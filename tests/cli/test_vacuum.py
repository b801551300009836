"""`sparklog vacuum`: what it shows, what it asks, and what it takes."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run

WEEK_S = 7 * 86_400


@pytest.fixture
def garbage(run: Run, root: Path) -> Path:
    """A root with live data, and more than a week old; of what is in it, the file of a deleted topic."""
    run("topics", "create", "--topic", "gone")
    run("produce", "--topic", "gone", stdin="x\n" * 100)
    run("topics", "create", "--topic", "kept")
    run("produce", "--topic", "kept", stdin="a\nb\n")
    (garbage,) = [path for path in root.glob("segments/*/*.log") if path.stat().st_size > 100]
    run("topics", "delete", "--topic", "gone", "--yes")
    for path in root.rglob("*"):
        if path.is_file():
            os.utime(path, (path.stat().st_mtime - WEEK_S - 60,) * 2)
    return garbage


def test_a_dry_run_shows_and_a_run_removes(garbage: Path, run: Run, root: Path) -> None:
    shown = run("vacuum", "--dry-run")
    name = str(garbage.relative_to(root))
    size = garbage.stat().st_size
    assert [line.split() for line in shown.stdout.splitlines()][:2] == [
        ["FILE", "SIZE", "BORN"],
        [name, str(size), "B", name.split(".")[1]],
    ]
    assert ["would", "go", "1", str(size), "B"] in [line.split() for line in shown.stdout.splitlines()]
    assert garbage.exists()
    done = run("vacuum")
    assert ["removed", "1", str(size), "B"] in [line.split() for line in done.stdout.splitlines()]
    assert "FILE " not in done.stdout
    assert not garbage.exists()
    assert run("consume", "--topic", "kept", "--exit-at-end").stdout == "a\nb\n"
    assert ["removed", "0", "0", "B"] in [line.split() for line in run("vacuum").stdout.splitlines()]


def test_json(garbage: Path, run_json: Callable[..., Any], root: Path) -> None:
    name, size = str(garbage.relative_to(root)), garbage.stat().st_size
    told = run_json("vacuum", "--dry-run", "--retain", "168h")
    assert told["dry_run"] is True
    assert told["retain_ms"] == WEEK_S * 1000
    assert (told["dead"], told["horizon_before"]) == ({"files": 1, "size_bytes": size}, -1)
    (named,) = told["named"]
    assert (named["name"], named["size_bytes"], named["born"]) == (name, size, int(name.split(".")[1]))
    assert run_json("vacuum") == {**told, "dry_run": False, "named": []}


@pytest.mark.parametrize("retain", ["0", "6d", "167h", "10000m", "604799s", "604799999ms"])
def test_less_than_a_week_needs_force(garbage: Path, run: Run, retain: str) -> None:
    found = run("vacuum", "--retain", retain, exit_code=2)
    assert "nobody can be asked without a terminal: give --yes" in found.stderr
    assert "STAGING_EXPIRED" in found.stderr
    assert garbage.exists()
    run("vacuum", "--retain", retain, "--dry-run")
    assert garbage.exists()
    run("vacuum", "--retain", retain, "--force")
    assert not garbage.exists()


@pytest.mark.parametrize("answer", ["y", "n"])
def test_on_a_terminal_it_asks(garbage: Path, run: Run, answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparklog.cli.framework.sys", _Terminal)
    found = run("vacuum", "--retain", "0", stdin=f"{answer}\n", exit_code=0 if answer == "y" else 1)
    assert "Go on?" in found.stderr
    assert garbage.exists() is (answer == "n")


class _Terminal:
    class stdin:
        @staticmethod
        def isatty() -> bool:
            return True

    stderr = sys.stderr


@pytest.mark.parametrize("retain", ["", "7", "7 dayz", "-7 days", "-1d", "1.5d", "d", "7dd"])
def test_a_time_that_is_none(run: Run, retain: str) -> None:
    assert "such as 7d" in run("vacuum", f"--retain={retain}", exit_code=2).stderr


@pytest.mark.parametrize("words", [["events"], ["RETAIN", "168", "HOURS"], ["--retain", "168h", "events"]])
def test_it_is_for_a_whole_root(run: Run, words: list[str]) -> None:
    told = " ".join(run("vacuum", *words, exit_code=2).stderr.split())
    assert words[-1] in told
    assert "expected no topic" in told
    assert "--retain 168h" in told


def test_what_stays_is_told(garbage: Path, run: Run, root: Path) -> None:
    os.utime(garbage)  # it was written to just now, by somebody who has not committed
    later = garbage.with_name(f"00000009.{10**6}.log")
    (garbage.parent / "notes.txt").write_text("mine")
    found = run("vacuum", "--dry-run")
    assert ["other", "1", "4", "B"] in [line.split() for line in found.stdout.splitlines()]
    assert "their names" not in found.stdout
    assert "names are not sparklog's" in found.stderr
    later.touch()
    refused = run("vacuum", exit_code=1)
    assert "older copy" in refused.stderr
    assert garbage.exists()


@pytest.mark.parametrize(
    "retain", ["168h", "168 HOURS", "168 hours", "1 week", "7 Days", "10080 minutes", " 7 d "]
)
def test_times_as_sql_has_them(garbage: Path, run_json: Callable[..., Any], retain: str) -> None:
    assert run_json("vacuum", "--dry-run", "--retain", retain)["retain_ms"] == WEEK_S * 1000
