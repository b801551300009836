"""Values as HTML: escapes, sizes, times, bars."""

import pytest
from markupsafe import Markup

from sparklog.console import pages

HOSTILE = "<b>\x1b\u202e\n'\"&"


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("retention.ms", "-1", "no limit"),
        ("flush.messages", str((1 << 63) - 1), "no limit"),
        ("retention.ms", "604800000", "7 d"),
        ("retention.ms", "90000", "90 s"),
        ("retention.ms", "1001", "1,001 ms"),
        ("retention.ms", "0", "0 ms"),
        ("segment.bytes", "1073741824", "1 GiB"),
        ("segment.bytes", "1000000000", "1 GB"),
        ("max.message.bytes", "1048588", "1,048,588 B"),
        ("num.partitions", "12000", "12,000"),
        ("num.partitions", "-1", "-1"),
        ("cleanup.policy", "", "(empty)"),
        ("cleanup.policy", "compact", "compact"),
        ("retention.ms", "9" * 30, "9" * 30),
    ],
)
def test_settings_for_people(name: str, value: str, shown: str) -> None:
    assert pages.setting_text(value, name) == shown


def test_templates_escape_all_that_is_foreign() -> None:
    template = pages.environment().from_string("{{ x }}|{{ x | prose }}|{{ bar([1], label=x) }}")
    shown = template.render(x=HOSTILE)
    first, second, third = shown.split("|")
    assert first == second == r"&lt;b&gt;\u001b\u202e\n&#39;&#34;&amp;"
    assert first in third
    assert "<b>" not in shown


def test_backticks_become_code() -> None:
    assert pages.prose("run `a <b>` now") == Markup("run <code>a &lt;b&gt;</code> now")


def test_times() -> None:
    assert ">2027-01-15 08:00:00<" in pages.moment(1_800_000_000_000)
    assert "2 m ago" in pages.ago(1_800_000_000_000, 1_800_000_120_000)
    assert "in the future" in pages.ago(1_800_000_000_000, 1_700_000_000_000)
    assert pages.ago(None, 0) == pages.moment(-1) == pages.duration(None)
    assert (pages.duration(999), pages.duration(61_000)) == ("999 ms", "1 m")
    assert pages.moment(1 << 62)  # no date


def test_links_keep_other_parameters() -> None:
    assert (
        pages.query_string({"filter": "a&b", "page": "2"}, page=None, sort="-size")
        == "?filter=a%26b&sort=-size"
    )


def test_columns_are_at_least_visible() -> None:
    shown = pages.columns([0, 1, 1000], pages.minute_labels([0, 1, 1000]))
    assert shown.count('class="col"') == 3
    assert 'height="0.00%"' in shown
    assert 'height="2.00%"' in shown
    assert "<title>1 commit 1 min ago</title>" in shown
    assert "<title>1,000 commits in this minute</title>" in shown


def test_lines_break_where_nothing_is_known() -> None:
    shown = pages.lines("Lag", [1, 2, None, 4])
    assert "Lag: now 4, at least 1, at most 4" in shown
    assert 'points="0.5,22.00 1.5,15.00"' in shown
    assert 'points="3,1.00 4,1.00"' in shown  # a value between gaps is seen, too
    assert "<polyline" not in pages.lines(HOSTILE, [None])
    assert r"&lt;b&gt;\u001b" in pages.lines(HOSTILE, [None])


def test_rates() -> None:
    assert [pages.rate(one) for one in (0, 0.25, 1234.5)] == ["0/s", "0.2/s", "1,234/s"]


def test_templates_are_loaded_before_an_upgrade_replaces_them(monkeypatch: pytest.MonkeyPatch) -> None:
    templates = pages.environment()
    monkeypatch.setattr(templates.loader, "get_source", None)
    assert templates.get_template("topics.html")
    assert templates.get_template("error.html")
