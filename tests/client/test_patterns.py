"""Patterns of clients: how large they become, and what searching with them may take."""

import subprocess
import sys

import pytest

from sparklog.client.patterns import (
    MOST_CHARACTERS,
    MOST_STATES,
    SLICE_STEPS,
    UNICODE_CLASS,
    CpuBudget,
    compiled_size,
    matching,
)
from sparklog.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("pattern", "least", "most"),
    [
        ("", 0, 0),
        ("app-.*", 6, 6),
        ("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", 36, 300),
        ("a{0,100}", 100, 100),
        ("a{100}", 100, 100),
        ("a{100,}", 100, 101),
        ("ab{100}", 101, 101),
        ("(ab){100}", 200, 300),
        ("(?:a{10}b*){10}", 110, 150),
        ("((a{10}){10}){10}", 1000, 1200),
        ("(a{10}|b{10}){10}", 200, 220),
        ("((a{10}){10}", 100, 120),
        (".{0,1000}" * 40 + "b", 40_001, 40_001),
        ("a{1}b{2}c{3}", 6, 6),
        ("a{x}", 4, 4),
        (r"\{100}", 5, 5),
        (r"\.{100}", 100, 100),
        (r"\x{41}{100}", 100, 100),
        (r"\x41{100}", 100, 110),
        (r"\Q[\E.{100}", 101, 101),
        (r"\Q(a{9}\E{100}", 100, 110),
        (r"\Qa{100}", 6, 6),
        ("[]{9}(]{100}", 100, 600),
        ("[^]{9}(]{100}", 100, 600),
        (r"[\]{9}(]{100}", 100, 700),
        ("[[:alpha:]{9}(]{100}", 100, 600),
        (r"\pL{10}", 10 * UNICODE_CLASS, 10 * UNICODE_CLASS),
        (r"\p{Greek}{10}", 10 * UNICODE_CLASS, 10 * UNICODE_CLASS),
        (r"[\pL\PN]{10}", 20 * UNICODE_CLASS, 20 * UNICODE_CLASS + 100),
        ("x)y{10}", 11, 13),
    ],
)
def test_repetitions_are_written_out(pattern: str, least: int, most: int) -> None:
    assert least <= compiled_size(pattern) <= most


def test_a_text_of_as_many_characters_as_a_pattern_may_have_is_one() -> None:
    longest = "x" * MOST_CHARACTERS
    assert matching(longest, [longest, "x"]) == [True, False]


@pytest.mark.parametrize(
    "pattern",
    [".{0,1000}" * 2, "(a{1,100}){1,100}", r"\pL{0,100}", "[a-z]{0,1000}!{30}", r"\Q[\E.{0,1000}.{0,1000}"],
)
def test_what_becomes_too_large_is_refused_before_it_is_compiled(pattern: str) -> None:
    """Forty times `.{0,1000}` took 6.6 s of CPU for four ids."""
    with pytest.raises(InvalidRequestError, match=f"states .* at most {MOST_STATES}") as refused:
        matching(pattern, ["x"])
    assert ".*" in str(refused.value)


def test_a_search_ends_with_its_budget() -> None:
    """And is made in slices, so that it can: each as long as states and characters allow."""
    texts, pattern = ["a" * 1000] * 100, "(a|b)*a[ab]{190}"
    asked = 0

    def clock() -> float:
        nonlocal asked
        asked += 1
        return asked - 1

    slices = len(texts) * 1000 * compiled_size(pattern) // SLICE_STEPS
    assert slices > 20
    assert matching(pattern, texts, budget=CpuBudget(1000, clock)) == [True] * 100
    assert slices <= asked <= 2 * slices + 3
    asked = 0
    with pytest.raises(InvalidRequestError, match="too much CPU time to search 100 of them"):
        matching(pattern, texts, budget=CpuBudget(5, clock))
    assert asked == 7
    asked = 0
    assert matching("a.*", texts, budget=CpuBudget(1, clock)) == [True] * 100


def test_slices_are_put_together_in_their_order() -> None:
    texts = ["ä" * (number % 7) + "b" * (number % 2) for number in range(1000)]
    found = matching("ä*b{1,900}", texts, budget=CpuBudget(60))
    assert found == [number % 2 == 1 for number in range(1000)]
    assert found == matching("ä*b{1,900}", texts)
    assert matching("x", [], budget=CpuBudget(60)) == []


@pytest.mark.slow
def test_the_first_of_a_process_brings_nothing_along() -> None:
    """Arrow imports pandas when it is first given a list of strings: 375 ms and 42 MB for a first request."""
    code = (
        "import sys; from sparklog.client.patterns import matching as m; m('a', ['a']); print(*sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pandas" not in out.split()
