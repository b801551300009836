"""What makes a test fail by luck, and can be told from its text, is in no test."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
# What is not to be there, and who offers it instead.
RULES = {
    r"caplog\.(messages|records|record_tuples|text\.)|not in caplog": "support/told.py",
    r"\.bind\(\(": "support/ports.py",
}


def broken_rules(name: str, source: str) -> list[str]:
    """Lines that break a rule."""
    return [
        f"{name}: {found[0]}, see tests/{instead}"
        for rule, instead in RULES.items()
        if name not in (instead, Path(__file__).name)
        for found in re.finditer(rule, source)
    ]


def test_no_test_looks_at_all_loggers_or_binds_a_port_of_its_own() -> None:
    sources = {str(path.relative_to(TESTS)): path.read_text() for path in TESTS.rglob("*.py")}
    assert len(sources) > 500
    assert [one for name, source in sources.items() for one in broken_rules(name, source)] == []


@pytest.mark.parametrize(
    ("line", "breaks"),
    [
        ("assert caplog.messages == []", True),
        ("assert 'x' not in caplog.text", True),
        ("assert caplog.text.count('x') == 1", True),
        ("sock.bind(('127.0.0.1', 0))", True),
        ("assert 'x' in caplog.text", False),
        ("caplog.set_level(logging.INFO)", False),
        ("assert told('sparklog') == []", False),
    ],
)
def test_what_breaks_a_rule(line: str, breaks: bool) -> None:
    assert bool(broken_rules("a/test_b.py", line)) is breaks
