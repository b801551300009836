"""Benchmarks run by hand, and break unseen: here they are at least imported."""

import importlib
import json
import pkgutil
import re
from pathlib import Path

import pytest

import benchmarks
from benchmarks.peers import draw_published

NAMES = [
    module.name for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.") if not module.ispkg
]


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("__main__")])
def test_a_benchmark_can_be_imported(name: str) -> None:
    importlib.import_module(name)


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
