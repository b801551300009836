"""Benchmarks run by hand, and break unseen: here they are at least imported."""

import importlib
import json
import pkgutil
import re
from pathlib import Path

import pytest

import benchmarks
from benchmarks.peers import draw_published
from benchmarks.peers.results import Results
from benchmarks.peers.warming import is_level, warm_up

NAMES = [
    module.name for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.") if not module.ispkg
]


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("__main__")])
def test_a_benchmark_can_be_imported(name: str) -> None:
    importlib.import_module(name)


@pytest.mark.slow
def test_the_figures_that_are_drawn_are_those_of_the_text(tmp_path: Path) -> None:
    text = (draw_published.PROJECT / "benchmarks" / "README.md").read_text()
    said = {
        (float(median), float(least), float(most))
        for median, least, most in re.findall(r"([\d.]+)\*{0,2}\s\[([\d.]+),\s([\d.]+)\]", text)
    }
    rows = json.loads(draw_published.PUBLISHED.read_text())
    drawn = {tuple(row[name]) for row in rows for name in draw_published.SERIES if name in row}
    assert len(drawn) > 20
    assert drawn <= said
    draw_published.draw(rows, tmp_path / "again.svg")
    assert draw_published.PICTURE.read_text().count("<use") == (tmp_path / "again.svg").read_text().count(
        "<use"
    )


@pytest.mark.parametrize(
    ("costs", "level"),
    [
        ([], False),
        ([5.5, 3.8], False),
        ([2.0, 2.0], False),
        ([5.5, 3.8, 2.3], False),
        ([5.5, 3.8, 2.3, 2.25], False),  # against 3.8
        ([5.5, 3.8, 2.3, 2.25, 2.3], True),
        ([2.0, 2.0, 2.0], True),
        ([2.0, 2.0, 4.0, 1.0], False),  # one was disturbed, and the last is a gain
    ],
)
def test_level_is_what_gains_nothing_any_more(costs: list[float], level: bool) -> None:
    assert is_level(costs) is level


def test_all_warm_up_in_turns_until_the_slowest_is_level() -> None:
    results = Results(quiet=True)
    costs = {"ours": [1.0] * 9, "theirs": [5.5, 3.8, 2.3, 2.25, 2.3, 2.3, 2.3, 2.3, 2.3]}
    asked = []

    def run(turn: int, position: int) -> float:
        asked.append((turn, position))
        return list(costs.values())[position][turn]

    warm_up("it", list(costs), run, results)
    assert asked == [(turn, position) for turn in range(5) for position in (0, 1)]
    assert [note.rsplit(": ", 1)[1] for note in results.notes] == ["level", "level"]
    warm_up("it", ["one"], lambda turn, _: 8.0 - turn, results, most=4)
    warm_up("it", ["failing"], lambda *_: None, results, most=2)
    assert [note.rsplit(": ", 1)[1] for note in results.notes[2:]] == [
        "not level after 4",
        "not level after 0",
    ]
