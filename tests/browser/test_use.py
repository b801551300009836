"""What a user does in a real browser: with the keyboard alone, without scripts, and with what scripts add."""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from tests.browser.conftest import Open
from tests.browser.made_roots import busy_log, console
from tests.browser.watched_page import TIMEOUT_MS

FOCUSED = """() => {
    const one = document.activeElement, style = getComputedStyle(one);
    const box = one.getBoundingClientRect();
    return {
        tag: one.tagName, name: one.name ? `field ${one.name}` : "",
        text: (one.innerText || one.value || "").trim().slice(0, 60),
        outline: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0,
        isShown: box.width > 0 && box.height > 0,
    };
}"""


@pytest.fixture
def root() -> Iterator[tuple[SparkLog, str]]:
    log, history = busy_log()
    with log, console(log, history=history) as base:
        yield log, base


def tab_to(page: Any, wanted: str, *, most: int = 120) -> dict[str, Any]:
    """Press Tab until what has this text, or `field NAME`, has the focus; all stops can be seen."""
    for _ in range(most):
        page.keyboard.press("Tab")
        found: dict[str, Any] = page.evaluate(FOCUSED)
        if found["tag"] == "BODY":
            continue
        assert found["outline"], found
        assert found["isShown"], found
        if wanted in {found["text"], found["name"]}:
            return found
    raise AssertionError(f"Tab does not lead to {wanted!r}")


def test_settings_are_changed_by_keyboard_alone(open_page: Open, root: tuple[SparkLog, str]) -> None:
    log, base = root
    page = open_page(base, "/topics").page
    page.keyboard.press("Tab")
    assert page.evaluate(FOCUSED)["text"] == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    tab_to(page, "orders")
    page.keyboard.press("Enter")
    page.wait_for_url("**/topics/orders")
    tab_to(page, "Edit settings")
    page.keyboard.press("Enter")
    page.wait_for_url("**/settings")
    tab_to(page, "field retention.ms")
    page.keyboard.press("Control+a")
    page.keyboard.type("7200000")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Settings of orders").wait_for()
    assert log.refresh(force=True).topic("orders").configs == {"retention.ms": "86400000"}
    assert "7200000 = 2 h (topic)" in page.locator("main").inner_text()
    tab_to(page, "Change orders")
    page.keyboard.press("Enter")
    page.wait_for_url("**/topics/orders")
    assert log.refresh(force=True).topic("orders").configs == {"retention.ms": "7200000"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("scripts", [True, False], ids=["with scripts", "without scripts"])
def test_all_changes_by_their_forms(scripts: bool, open_page: Open, root: tuple[SparkLog, str]) -> None:
    log, base = root
    page = open_page(base, "/topics", java_script_enabled=scripts).page

    def confirm(button: str) -> None:
        page.get_by_role("button", name="Preview").click()
        page.get_by_role("button", name=button).click()
        page.wait_for_load_state()

    page.get_by_role("link", name="Create a topic").click()
    page.get_by_label("Name").fill("made")
    page.get_by_label("Partitions").fill("2")
    confirm("Create made")
    assert page.url == f"{base}/topics/made"
    page.get_by_role("link", name="Write a record").click()
    page.get_by_label("Value", exact=True).fill("<b>one</b>\ntwo")
    page.get_by_label("Headers").fill("trace: 7")
    page.get_by_label("Partition").fill("1")
    confirm("Write it to made-1")
    assert page.url == f"{base}/topics/made/messages/1/0"
    assert page.locator("#value").inner_text() == "<b>one</b>\ntwo"
    (found,) = log.read("made", 1, 0, include_headers=True).to_pylist()
    assert (found["value"], found["headers"]) == (b"<b>one</b>\ntwo", [{"key": "trace", "value": b"7"}])
    page.goto(f"{base}/topics/made")
    page.get_by_role("link", name="Delete records").click()
    page.get_by_label("New log start").fill("-1")
    confirm("Delete 1 record")
    assert log.log_start_offset("made", 1) == 1
    page.get_by_role("link", name="Delete topic").click()
    page.get_by_label("Type the topic").fill("made")
    confirm("Delete made and all its records")
    assert page.url == f"{base}/topics"
    assert "made" not in log.topics()


@pytest.mark.exhaustive
def test_a_filter_takes_effect_while_it_is_typed(open_page: Open, root: tuple[SparkLog, str]) -> None:
    _, base = root
    page = open_page(base, "/topics").page
    page.locator("input[type=search]").press_sequentially("qui")
    page.wait_for_url("**filter=qui*")
    page.get_by_text("1 topic match").wait_for()
    assert page.locator("tbody tr").count() == 1
    assert page.evaluate("document.activeElement.name") == "filter"


@pytest.mark.exhaustive
def test_charts_are_drawn(open_page: Open, root: tuple[SparkLog, str]) -> None:
    _, base = root
    page = open_page(base, "/group?group=spark-etl").page
    page.wait_for_function("document.querySelectorAll('#history canvas').length === 2")
    page.goto(f"{base}/")
    page.wait_for_selector("#commits-chart canvas")


@pytest.mark.exhaustive
def test_a_search_and_a_tail_show_records_as_they_come(open_page: Open, root: tuple[SparkLog, str]) -> None:
    log, base = root
    watched = open_page(base, "/topics/hostile/messages")
    page = watched.page
    page.get_by_role("button", name="Search").click()
    page.locator("#results .running").wait_for(state="detached")
    assert page.locator("#results tbody tr").count() > 5
    page.goto(f"{base}/topics/hostile/tail")
    page.get_by_text("Following.").wait_for()
    log.append("hostile", pa.table({"value": ["<img src=x onerror=hacked=1>new", json.dumps({"a": 1})]}))
    page.get_by_text("<img src=x onerror=hacked=1>new").wait_for(timeout=TIMEOUT_MS)
    assert page.evaluate("window.hacked") is None
    assert watched.axe() == []


@pytest.mark.exhaustive
def test_a_record_of_fifty_megabytes_is_a_page(open_page: Open) -> None:
    from sparklog.clock import ManualClock
    from tests.browser.made_roots import NOW_MS, fill_hostile, opened

    with opened(ManualClock(NOW_MS)) as log:
        fill_hostile(log, large=50_000_000)
        with console(log) as base:
            for path in ("/topics/hostile/messages", "/topics/hostile/messages/0/11"):
                page = open_page(base, path)
                assert page.axe() == []
                assert page.page.evaluate("document.documentElement.outerHTML.length") < 1_000_000
                page.page.close()


@pytest.mark.exhaustive
def test_forms_of_another_site_change_nothing(open_page: Open, root: tuple[SparkLog, str]) -> None:
    """A page of another origin submits the form, and fetches, as an attacker would."""
    log, base = root
    before = log.refresh(force=True).commit
    other = base.replace("127.0.0.1", "localhost")  # another origin, and another site
    action = f"{base}/topics/orders/settings"
    form = f'<form method="post" action="{action}"><input name="retention.ms" value="1"></form>'
    watched = open_page(other, "/static/icon.svg")
    watched.problems.clear()
    page = watched.page
    page.route("**/evil", lambda route: route.fulfill(body=form, content_type="text/html"))
    page.goto(f"{other}/evil")
    with page.expect_navigation():
        page.evaluate("document.querySelector('form').submit()")
    assert "Only pages of the console may change something" in page.content()
    page.goto(f"{other}/evil")
    refused = page.evaluate(
        """async (address) => {
            const options = {method: "POST", headers: {"content-type": "application/json"}, body: "{}"};
            try { return (await fetch(address, options)).status; } catch (error) { return "refused"; }
        }""",
        f"{base}/api/v1/topics/orders/settings",
    )
    assert refused == "refused"
    watched.problems.clear()  # the browser reports what it was refused
    assert log.refresh(force=True).commit == before
