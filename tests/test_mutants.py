"""Mutants fit the code and its tests: a text that is gone, or a test that has moved, is noticed at once."""

import subprocess
from pathlib import Path

import pytest

from scripts import mutants
from scripts.mutations import MUTANTS
from scripts.mutations.mutant import Mutant

PROJECT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("path", sorted({one.path for one in MUTANTS}))
def test_each_text_occurs_once(path: str) -> None:
    text = (PROJECT / path).read_text()
    assert [one.safeguard for one in MUTANTS if one.path == path and text.count(one.old) != 1] == []
    assert [one.safeguard for one in MUTANTS if one.path == path and one.old == one.new] == []


@pytest.mark.parametrize("path", sorted({one.path for one in MUTANTS if one.path.endswith(".py")}))
def test_each_is_code(path: str) -> None:
    """What does not compile is noticed by every test, and says nothing of this one."""
    text = (PROJECT / path).read_text()
    for one in MUTANTS:
        if one.path == path:
            compile(text.replace(one.old, one.new), one.safeguard, "exec")


def test_what_should_notice_is_there() -> None:
    named = {(one.safeguard, test) for one in MUTANTS for test in _tests(one)}
    assert {(safeguard, test) for safeguard, test in named if not _is_there(test)} == set()


def test_a_safeguard_has_one_name() -> None:
    names = [one.safeguard for one in MUTANTS]
    assert sorted(names) == sorted(set(names))


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run takes hours."""

    def run(*_: object, **__: object) -> None:
        raise AssertionError("tests would have been run")

    monkeypatch.setattr(subprocess, "run", run)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--help"], 0, "--missing"),
        (["--hlep"], 2, "unrecognized arguments: --hlep"),
        (["--trust", "fsync", "--hlep"], 2, "unrecognized arguments: --hlep"),
        (["--tru"], 2, "unrecognized arguments: --tru"),
    ],
)
def test_nothing_runs_but_what_was_asked_for(
    words: list[str], code: int, says: str, nothing_runs: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        mutants.main(words)
    output = capsys.readouterr()
    assert (ended.value.code, says in output.out + output.err) == (code, True)


def test_words_that_mean_no_mutant_run_nothing(
    nothing_runs: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mutants.main(["no such safeguard", "--trust", "nor this"]) == 1
    assert "no such safeguard nor this" in capsys.readouterr().out


@pytest.mark.parametrize(("anyway", "code", "says"), [(False, 0, "caught"), (True, 1, "fails without it")])
@pytest.mark.parametrize("hangs", [False, True])
def test_a_test_that_fails_anyway_has_noticed_nothing(
    anyway: bool,
    code: int,
    says: str,
    hangs: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = next(one for one in MUTANTS if one.safeguard == "doctor: settings that nothing acts on")

    def run(command: list[str], *, cwd: Path, **_: object) -> subprocess.CompletedProcess[str]:
        fails = anyway or one.old not in (cwd / one.path).read_text()
        if fails and hangs:
            raise subprocess.TimeoutExpired(command, 1)
        output = "FAILED tests/cli/test_doctor.py::test_settings[a] - no" if fails else "1 passed"
        return subprocess.CompletedProcess(command, int(fails), output, "")

    monkeypatch.setattr(subprocess, "run", run)
    assert mutants.main(["--trust", one.safeguard]) == code
    assert says in capsys.readouterr().out


def _tests(mutant: Mutant) -> list[str]:
    return mutant.tests.split(" -k ")[0].split()


def _is_there(test: str) -> bool:
    path, _, name = test.partition("::")
    module = PROJECT / path
    return module.exists() and (not name or f"def {name.partition('[')[0]}(" in module.read_text())
