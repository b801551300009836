"""Every page in a real browser: nothing fails, nothing is asked of other hosts, and axe-core finds nothing.

The short path at the usual level is the pages of a busy root; `make test-console` adds the other roots.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from sparklog.clock import ManualClock
from sparklog.console.app import CHANGES, SUBJECTS
from sparklog.console.message_pages import VIEWS as MESSAGE_VIEWS
from tests.browser.conftest import Open
from tests.browser.made_roots import (
    HOSTILE,
    NOW_MS,
    big_log,
    busy_log,
    console,
    damage_newest_commit,
    damaged_log,
    opened,
)

FOREIGN = quote(HOSTILE, safe="")
WINDOWS: dict[str, dict[str, Any]] = {
    "dark": {"color_scheme": "dark"},
    "narrow": {"viewport": {"width": 360, "height": 740}},
    "without scripts": {"java_script_enabled": False},
}
LISTS = tuple(subject.views[0].path for subject in SUBJECTS)
BUSY = (
    *LISTS,
    *("/topics/orders", "/topics/hostile", "/group?group=spark-etl", f"/group?group={FOREIGN}"),
    *("/commits/3", "/commits/9", "/commits/3/state", "/diff?from=1&to=9"),
    *("/transaction?id=etl", f"/transaction?id={FOREIGN}"),
    *("/topics/orders/messages", "/topics/hostile/messages", "/topics/hostile/tail"),
    *("/topics/orders/messages/0/0", "/topics/hostile/messages/0/0", "/topics/hostile/messages/0/10"),
    *("/create-topic", "/topics/orders/settings", "/topics/orders/produce", "/topics/orders/delete"),
    *("/topics/orders/delete-records", f"/group/reset?group={FOREIGN}", f"/group/delete?group={FOREIGN}"),
)


@pytest.fixture(scope="module")
def busy() -> Iterator[str]:
    log, history = busy_log()
    with log, console(log, history=history) as base:
        yield base


def visit(open_page: Open, base: str, path: str, *, status: int = 200) -> str:
    """Open a page, which nothing may be wrong with, and close it; return its text."""
    page = open_page(base)
    page.expects_failure = status != 200
    assert page.go(path) == status, path
    assert page.axe() == []
    assert page.overflow() <= 0
    assert page.page.evaluate("window.hacked") is None
    assert page.page.locator("h1").count() == 1
    text: str = page.page.locator("main").inner_text()
    page.page.close()
    return text


def test_all_pages_are_visited() -> None:
    def shape(path: str) -> str:
        return path.partition("?")[0].replace("/orders", "/{topic}").replace("/hostile", "/{topic}")

    views = [view.path for subject in SUBJECTS for view in subject.views if view.template]
    views += [view.path for view in MESSAGE_VIEWS if view.template]
    views += [one.path for one in CHANGES]
    visited = {shape(path) for path in BUSY}
    for one in views:
        shown = one.replace("{commit}", "3").replace("{partition}/{offset}", "0/0")
        assert shown in visited, one


@pytest.mark.sampled(6)
@pytest.mark.parametrize("path", BUSY)
def test_pages_of_a_busy_root(path: str, open_page: Open, busy: str) -> None:
    visit(open_page, busy, path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", BUSY)
@pytest.mark.parametrize("window", WINDOWS)
def test_pages_in_other_windows(path: str, window: str, open_page: Open, busy: str) -> None:
    page = open_page(busy, path, **WINDOWS[window])
    assert page.page.locator("h1").count() == 1
    if window == "without scripts":
        assert page.page.locator("noscript").count() == ("/tail" in path)
    else:
        assert page.axe() == []
        assert page.overflow() <= 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", [*LISTS, "/create-topic"])
def test_pages_of_an_empty_root(path: str, open_page: Open) -> None:
    with opened(ManualClock(NOW_MS)) as log, console(log) as base:
        visit(open_page, base, path)


@pytest.mark.exhaustive
def test_pages_of_a_damaged_root(open_page: Open, tmp_path: Path) -> None:
    """Lost and overwritten segments, then a commit that is none: pages say so, and none fails otherwise."""
    paths = [path for path in (*LISTS, "/topics/orders", "/topics/lost", "/commits/3") if path != "/groups"]
    with damaged_log(tmp_path / "root") as log, console(log) as base:
        for path in paths:
            visit(open_page, base, path)
        for topic in ("orders", "lost"):
            assert "cannot be read" in visit(open_page, base, f"/topics/{topic}/messages")
        for path in ("/topics/orders/messages/0/0", "/groups", "/group?group=spark-etl"):
            assert "This did not work" in visit(open_page, base, path, status=503)
        damage_newest_commit(log, tmp_path / "root")
        for path in (*paths, "/topics/orders/settings"):
            assert "CORRUPT_METADATA_COMMIT" in visit(open_page, base, path, status=503)


LARGE = (
    *LISTS,
    *("/topics/topic-00042", "/topics?sort=-size&page=20", "/group?group=group-7", "/commits/3"),
    *("/diff?from=1&to=5", "/topics/topic-00042/settings"),
)


@pytest.fixture(scope="module")
def large() -> Iterator[str]:
    with big_log() as log, console(log) as base:
        yield base


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", LARGE)
def test_pages_of_a_large_root(path: str, open_page: Open, large: str) -> None:
    """5,000 topics, 200 groups, 100 million records. Figures: benchmarks/bench_console.py."""
    visit(open_page, large, path)
