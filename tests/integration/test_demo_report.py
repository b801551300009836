from pathlib import Path

import pytest

from sparklog.demo import report
from sparklog.demo.dataset import Difference
from sparklog.demo.report import Figures, Workspace
from sparklog.demo.run import problems


def figures(lost: int = 0, duplicated: int = 0, killed_after: int = 5) -> Figures:
    rows = Difference(expected=10, found=10 - lost + duplicated, lost=lost, duplicated=duplicated)
    sums = Difference(expected=4, found=4, lost=0, duplicated=0)
    return Figures(flights=10, rows=rows, sums=sums, published_at_kill=killed_after, published_in_all=12)


def test_no_problem_when_everything_is_there_once() -> None:
    assert problems(figures()) == []


def test_every_loss_and_duplicate_is_a_problem() -> None:
    assert "flights differs" in problems(figures(lost=1))[0]
    assert "flights differs" in problems(figures(duplicated=1))[0]
    assert problems(Figures(published_at_kill=1, published_in_all=2)) != []


def test_query_that_was_done_before_the_kill_proves_nothing() -> None:
    assert problems(figures(killed_after=12)) == ["the query was not killed in its middle"]


def test_figures_tell_whether_a_micro_batch_ran_twice() -> None:
    found = figures()
    found.noted_at_kill = 4
    assert any("Spark ran 1 published micro-batch again" in how for _, _, how in report.figure_rows(found))
    found.noted_at_kill = 5
    assert any(how == "between two micro-batches" for _, _, how in report.figure_rows(found))


def test_next_steps_name_the_program_and_the_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    workspace = Workspace(output=tmp_path, root=tmp_path / "my root")
    monkeypatch.setattr("sys.argv", ["/opt/venv/bin/sparklog"])
    step = report.next_steps(workspace)[0]
    assert step == f"/opt/venv/bin/sparklog --root '{tmp_path}/my root' topics describe --topic flights"
    monkeypatch.setattr("sys.argv", ["sparklog"])
    monkeypatch.chdir(tmp_path)
    assert report.next_steps(workspace)[0].startswith("sparklog --root 'my root' ")
