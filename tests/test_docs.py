"""Pages and codes that are written twice must agree."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparklog.errors import CODES

PROJECT = Path(__file__).resolve().parent.parent
PACKAGES = ("sparklog", "sparklog_server", "pyspark_sparklog")
SOURCES = [path for package in PACKAGES for path in PROJECT.glob(f"{package}/**/*.py")]


@pytest.mark.slow
def test_generated_pages_are_up_to_date() -> None:
    words = [sys.executable, "scripts/generate_docs.py", "--check"]
    result = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr + "run: make docs"


def test_no_two_decisions_have_one_number() -> None:
    numbers = [path.name[:4] for path in (PROJECT / "docs" / "adr").glob("0*.md")]
    assert sorted(set(numbers)) == sorted(numbers)
    for path in (PROJECT / "docs" / "adr").glob("0*.md"):
        assert path.read_text().startswith(f"# {path.name[:4]}: "), path.name


def test_error_codes_are_declared_in_order() -> None:
    assert list(CODES) == sorted(CODES)


def test_every_error_code_is_raised_somewhere() -> None:
    text = "\n".join(path.read_text() for path in SOURCES if path.name != "errors.py")
    unused = [code for code in CODES if f'"{code}"' not in text]
    assert not unused, f"declared and never raised: {unused}"


def test_every_raised_code_is_declared() -> None:
    pattern = re.compile(r'(?:Error)\(\s*"([A-Z][A-Z0-9_]+)"')
    raised = {code for path in SOURCES for code in pattern.findall(path.read_text())}
    assert raised <= set(CODES), raised - set(CODES)


@pytest.mark.parametrize("path", sorted(PROJECT.glob("docs/**/*.md")), ids=lambda path: path.name)
def test_tables_are_not_inside_code_blocks(path: Path) -> None:
    fenced = path.read_text().split("\n```")[1::2]
    assert not [block for block in fenced if re.search(r"^\|[-|: ]+\|$", block, re.MULTILINE)]


def sentences(path: Path) -> Iterator[str]:
    """The sentences of a page: without blocks, tables and headings, with the texts of links only."""
    text = re.sub(r"```.*?```|^[|#].*?$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        yield from re.split(r"(?<=[.!?:])\s+", " ".join(paragraph.split()))


@pytest.mark.parametrize("name", ["README.md", "docs/tutorial.md", "docs/concepts.md", "docs/comparison.md"])
def test_pages_for_newcomers_are_easy_to_read(name: str) -> None:
    page = PROJECT / name
    assert not [sentence for sentence in sentences(page) if len(sentence.split()) > 25]
    assert not [line for line in page.read_text().splitlines() if line.startswith("|") and len(line) > 300]


def test_the_readme_is_short() -> None:
    assert len((PROJECT / "README.md").read_text().splitlines()) <= 150
