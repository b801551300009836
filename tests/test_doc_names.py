"""What the prose names is there: links of the pages, and file names in docstrings and comments."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md", "tests/**/*.md")
    for path in PROJECT.glob(pattern)
)
PACKAGES = ("sparklog", "sparklog_server", "pyspark_sparklog", "tests", "benchmarks", "scripts")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NAME = re.compile(r"(?<![\w./*<$-])((?:[\w-]+/)*[\w-]+\.(?:py|md|c|toml|ipynb))(?![\w*])")
# Files of others, or that are made while running.
ELSEWHERE = {"peers.md", "bench-output/report.md", "bench-output/peers.md", "bench_NAME.py", "job.py", "b.c"}


def anchors_of(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    found = set()
    for title in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE):
        text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", title).strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in LINK.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists() or (anchor and anchor not in anchors_of(path)):
            broken.append(target)
    assert not broken


def test_files_and_folders_named_by_pages_for_contributors_are_there() -> None:
    docs = PROJECT / "docs"
    pages = [docs / "design.md", docs / "architecture.md", docs / "models.md", *docs.glob("internals/*.md")]
    names = [
        name
        for page in pages
        for name in re.findall(r"`((?:[\w-]+/)+(?:[\w-]+\.(?:py|c|md))?)`", page.read_text())
    ]
    assert len(names) > 150
    assert not [name for name in names if not (PROJECT / name).exists()]


def names_in_prose(path: Path) -> Iterator[str]:
    """File names in docstrings and comments."""
    text = path.read_text(encoding="utf-8")
    for prose in re.findall(r'"""(.*?)"""', text, re.DOTALL) + re.findall(r"#(.*)$", text, re.MULTILINE):
        yield from NAME.findall(prose)


def test_files_named_in_the_code_are_there() -> None:
    sources = [path for package in PACKAGES for path in sorted((PROJECT / package).rglob("*.py"))]
    others = [*PAGES, *PROJECT.glob("*.toml"), *PROJECT.glob("notebooks/*")]
    others += [path for package in PACKAGES for path in (PROJECT / package).rglob("*.c")]
    there = {f"/{path.relative_to(PROJECT)}" for path in (*sources, *others)}
    missing = [
        f"{path.relative_to(PROJECT)}: {name}"
        for path in sources
        for name in names_in_prose(path)
        if name not in ELSEWHERE
        and not name.startswith("pyspark/")
        and not any(one.endswith(f"/{name}") for one in there)
    ]
    assert not missing, "\n".join(missing)
