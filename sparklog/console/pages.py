"""Values as HTML: the templates, and the words for sizes, times and ages.

Invariants: everything is escaped, and characters that no reader sees are shown as escapes (wording.py); only
    this module makes Markup. No style and no script stands in a page, so the Content-Security-Policy can
    forbid them; bars and charts are SVG, whose attributes it allows.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
from markupsafe import Markup, escape

from sparklog.log.setting import LONG_MAX
from sparklog.wording import counted, human_age, human_bytes, plain, shown_time

_S_MS, _M_MS, _H_MS, _D_MS = 1_000, 60_000, 3_600_000, 86_400_000
_MAX_DIGITS = 18
_EXACT_BELOW = 100
_UNITS = {
    ".ms": (("ms", 1), ("s", _S_MS), ("min", _M_MS), ("h", _H_MS), ("d", _D_MS)),
    ".bytes": (
        *(("B", 1), ("kB", 10**3), ("MB", 10**6), ("GB", 10**9)),
        *(("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)),
    ),
}


@functools.cache
def environment() -> jinja2.Environment:
    """The templates of sparklog/console/templates, all loaded: an upgrade may replace the files later."""
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("sparklog.console"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
        auto_reload=False,
    )
    found.filters.update(
        bytes=human_bytes,
        count=lambda number: f"{number:,}",
        time=moment,
        ago=ago,
        duration=duration,
        rate=rate,
        setting=setting_text,
        prose=prose,
        segment=lambda name: name.rpartition("/")[2].removesuffix(".log"),
        lines=lambda text: Markup("\n").join(plain(line) for line in text.split("\n")),
        minute_labels=minute_labels,
        part=lambda text: quote(text, safe=""),
    )
    found.globals.update(query_string=query_string, bar=bar, columns=columns, lines=lines)
    for name in found.list_templates():
        found.get_template(name)
    return found


def _visible(value: Any) -> Any:
    if isinstance(value, str) and not isinstance(value, Markup):
        return plain(value)
    return "" if value is None else value


def moment(time_ms: int | None) -> Markup | str:
    """A time in UTC, to the second."""
    if time_ms is None or time_ms < 0:
        return "–"  # noqa: RUF001
    text = shown_time(time_ms)
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(text, text[:19].replace("T", " "))


def ago(time_ms: int | None, now_ms: int) -> Markup | str:
    """How long ago a time was, with the time as its title."""
    if time_ms is None or time_ms < 0:
        return "–"  # noqa: RUF001
    shown = "in the future" if time_ms > now_ms + _M_MS else human_age(max(0, now_ms - time_ms))
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(shown_time(time_ms), shown)


def duration(ms: int | None) -> str:
    """1,234 -> '1.2 s'; days are the largest unit."""
    if ms is None:
        return "–"  # noqa: RUF001
    return f"{ms} ms" if ms < _S_MS else human_age(ms).removesuffix(" ago")


def rate(per_second: float | None) -> str:
    """1234.5 -> '1,234/s'; small ones with a digit after the point."""
    if per_second is None:
        return "–"  # noqa: RUF001
    digits = 1 if 0 < per_second < _EXACT_BELOW else 0
    return f"{per_second:,.{digits}f}/s"


def setting_text(value: str, name: str) -> str:
    """A value of a setting for people: `7 d`, `1 GiB`, `no limit`; others as they are."""
    if value == str(LONG_MAX) or (value == "-1" and name.endswith((".ms", ".bytes"))):
        return "no limit"
    if not value.isdecimal() or len(value) > _MAX_DIGITS:
        return value or "(empty)"
    number = int(value)
    for end, units in _UNITS.items():
        if name.endswith(end):
            found = [(unit, size) for unit, size in units if number and number % size == 0]
            unit, size = max(found, key=lambda one: one[1], default=(units[0][0], 1))
            return f"{number // size:,} {unit}"
    return f"{number:,}"


def prose(text: str) -> Markup:
    """A message, with what stands in backticks as code."""
    parts = plain(text).split("`")
    shown = [
        Markup("<code>{}</code>").format(part) if at % 2 else escape(part) for at, part in enumerate(parts)
    ]
    return Markup().join(shown)


def query_string(given: Mapping[str, str], **changes: object) -> str:
    """The query of a link to the same page with some parameters changed; None and "" remove one."""
    merged = {**given, **changes}
    return "?" + urlencode({key: str(value) for key, value in merged.items() if value not in (None, "")})


def bar(shares: Iterable[float], *, label: str = "", width: float = 100.0) -> Markup:
    """A row of boxes, each as wide as its share of `width` percent; neighbours differ in shade.

    `label`: what a reader hears; nothing without, since the number stands next to it.
    """
    boxes, x = [], 0.0
    for number, share in enumerate(shares):
        size = max(0.0, share) * width
        box = Markup('<rect class="b{0}" x="{1:.3f}%" width="{2:.3f}%" height="100%"/>')
        boxes.append(box.format(number % 2, x, size))
        x += size
    spoken = (
        Markup('role="img" aria-label="{0}"').format(plain(label)) if label else Markup('aria-hidden="true"')
    )
    return Markup('<svg class="bar" {0}>{1}</svg>').format(spoken, Markup().join(boxes))


def columns(values: Sequence[int | None], labels: Sequence[str]) -> Markup:
    """A small column chart; each column has a title, and null no column."""
    most = max([value or 0 for value in values] + [1])
    step = 100 / max(1, len(values))
    boxes = []
    for number, (value, label) in enumerate(zip(values, labels, strict=True)):
        height = 0 if not value else max(2.0, 100 * value / most)
        box = Markup(
            '<g><title>{0}</title><rect class="hit" x="{1:.3f}%" width="{2:.3f}%" height="100%"/>'
            '<rect class="col" x="{1:.3f}%" y="{3:.2f}%" width="{4:.3f}%" height="{5:.2f}%"/></g>'
        )
        boxes.append(box.format(plain(label), number * step, step, 100 - height, step * 0.8, height))
    return Markup('<svg class="columns" role="img" aria-label="{0}">{1}</svg>').format(
        f"at most {most}", Markup().join(boxes)
    )


def lines(label: str, *series: Sequence[float | None]) -> Markup:
    """A line for each series of values, from the left to the right; null is a gap. `label`: what a reader
    hears. Of a single series the least, the largest and the last value are added to it.
    """
    known = [one for values in series for one in values if one is not None]
    if len(series) == 1 and known:
        label += f": now {known[-1]:,}, at least {min(known):,}, at most {max(known):,}"
    top = max([*known, 1])
    width = max([1, *map(len, series)])
    paths = []
    for number, values in enumerate(series):
        for run in _runs(values):
            points = [(at + 0.5, 29 - 28 * value / top) for at, value in run]
            if len(points) == 1:
                points = [(run[0][0], points[0][1]), (run[0][0] + 1, points[0][1])]
            text = " ".join(f"{x:g},{y:.2f}" for x, y in points)
            if len(series) == 1:
                under = Markup('<polygon class="under" points="{0:g},30 {1} {2:g},30"/>')
                paths.append(under.format(points[0][0], text, points[-1][0]))
            line = Markup('<polyline class="l{0}" vector-effect="non-scaling-stroke" points="{1}"/>')
            paths.append(line.format(number, text))
    figure = Markup(
        '<svg class="lines" viewBox="0 0 {0} 30" preserveAspectRatio="none" role="img" aria-label="{1}">'
        "<title>{1}</title>{2}</svg>"
    )
    return figure.format(width, plain(label if known else f"{label}: nothing yet"), Markup().join(paths))


def _runs(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """Values that follow each other, with their places."""
    found: list[list[tuple[int, float]]] = []
    before: float | None = None
    for at, value in enumerate(values):
        if value is not None:
            if before is None:
                found.append([])
            found[-1].append((at, value))
        before = value
    return found


def minute_labels(counts: Sequence[int | None]) -> list[str]:
    """Titles for numbers of commits in consecutive minutes, the current one last; null: not kept."""
    last = len(counts) - 1
    texts = ["no longer kept" if count is None else counted(count, "commit") for count in counts]
    return [
        f"{text} {'in this minute' if at == last else f'{last - at} min ago'}"
        for at, text in enumerate(texts)
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """An entry of the navigation."""

    title: str
    path: str
    is_current: bool
