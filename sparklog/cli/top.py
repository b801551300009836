"""`sparklog top`: topics, consumer groups and due maintenance, live.

Rates come from two images of the metadata, and so cost no reading of records. Only __consumer_offsets is
read, as far as it has grown, for what groups have committed.
On a terminal the view is drawn anew after each interval, until q or Ctrl-C. Elsewhere, and with --once, it is
printed a single time, after one interval.
Not here: what is due (maintenance/rounds.py), history (docs/metrics.md).
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from sparklog.cli.framework import Command, current, is_terminal
from sparklog.cli.inputs import Stop, until_signalled
from sparklog.cli.maintenance import duration_option
from sparklog.cli.output import Document, Row, cell, show_json, show_rows, tell
from sparklog.wording import human_age, human_bytes, plain

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from sparklog.client import SparkLog
    from sparklog.metadata import Image, PartitionState

TOPIC_COLUMNS = (
    "topic partitions records size_bytes:SIZE:bytes records_per_second:RECORDS/S "
    "bytes_per_second:BYTES/S:bytes"
)
GROUP_COLUMNS = "group topic lag lag_per_second:LAG/S read_per_second:READ/S behind_ms:UNREAD-SINCE:age"
SMALL_EXTENTS = 256  # are merged, as by `maintain`
LEAST_INTERVAL_MS = 100
TopicPartition = tuple[str, int]
QUIT = b"qQ\x03\x04"

# --- looks -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Look:
    """What is seen at a moment.

    Fields:
        at_s: by a monotonic clock.
        committed: next offsets, by group and partition.
    """

    image: Image
    at_s: float
    now_ms: int
    committed: Mapping[str, Mapping[TopicPartition, int]]


def look_at(log: SparkLog) -> Look:
    groups = log.groups()
    image = log.image  # not older than the groups
    committed = {group: log.committed_offsets(group, image=image) for group in groups}
    return Look(image, time.monotonic(), log.clock.now_ms(), committed)


def topic_rows(before: Look | None, now: Look) -> list[Row]:
    """A row for each topic but the internal ones, the busiest first. Rates are null without a look before."""
    from sparklog.metadata import is_internal

    rows: list[Row] = []
    for name, topic in sorted(now.image.topics.items()):
        if is_internal(name):
            continue
        states = topic.partitions
        grown = [(state, _end_before(before, name, state)) for state in states]
        records = sum(state.log_end_offset - end for state, end in grown)
        written = sum(state.extents.bytes_from(end, sys.maxsize) for state, end in grown)
        rows.append(
            {
                "topic": name,
                "partitions": len(states),
                "records": sum(state.log_end_offset - state.log_start_offset for state in states),
                "size_bytes": sum(state.extents.stored_bytes for state in states),
                "records_per_second": _per_second(before, now, records),
                "bytes_per_second": None if before is None else round(_rate(before, now, written)),
            }
        )
    return sorted(rows, key=lambda row: -(row["bytes_per_second"] or 0))  # type: ignore[operator]


def group_rows(before: Look | None, now: Look) -> list[Row]:
    """A row for each group and topic, the one that is furthest behind first."""
    rows: list[Row] = []
    for group, committed in sorted(now.committed.items()):
        for name in sorted({topic for topic, _ in committed}):
            mine = {where: offset for where, offset in committed.items() if where[0] == name}
            lag = _lag(now, mine)
            then = None if before is None else before.committed.get(group)
            lag_change, read = None, None
            if before is not None and then is not None and lag is not None:
                known = {where: then[where] for where in mine if where in then}
                read = _per_second(before, now, sum(max(0, mine[where] - known[where]) for where in known))
                lag_then = _lag(before, known)
                lag_change = None if lag_then is None else _per_second(before, now, lag - lag_then)
            rows.append(
                {
                    "group": group,
                    "topic": name,
                    "lag": lag,
                    "lag_per_second": lag_change,
                    "read_per_second": read,
                    "behind_ms": max(_behind_ms(now, *one) for one in mine.items()) if lag else None,
                }
            )
    return sorted(rows, key=lambda row: -(row["lag"] or 0))  # type: ignore[operator]


def due_steps_of(look: Look) -> list[str]:
    """The steps of maintenance that are due."""
    from sparklog.maintenance import MergeLimits, Terms, due_steps

    return list(due_steps(look.image, look.now_ms, Terms(limits=MergeLimits(fan_in=SMALL_EXTENTS))))


def _rate(before: Look, now: Look, count: float) -> float:
    return count / max(now.at_s - before.at_s, 1e-6)


def _per_second(before: Look | None, now: Look, count: float) -> float | None:
    return None if before is None else round(_rate(before, now, count), 1)


def _end_before(before: Look | None, name: str, state: PartitionState) -> int:
    """Where the partition ended then; of a topic that is new since then, where it starts."""
    if before is None:
        return state.log_end_offset
    topic = before.image.topics.get(name)
    if topic is None or topic.topic_id != state.topic_id or state.partition >= len(topic.partitions):
        return state.log_start_offset
    return max(topic.partitions[state.partition].log_end_offset, state.log_start_offset)


def _lag(look: Look, committed: Mapping[TopicPartition, int]) -> int | None:
    """The lag, as `groups describe` shows it; None: the topic, or one of the partitions, is gone."""
    total = 0
    for (name, partition), offset in committed.items():
        state = _state(look.image, name, partition)
        if state is None:
            return None
        total += state.lag(offset)
    return total


def _behind_ms(look: Look, where: TopicPartition, offset: int) -> int:
    """The age of the oldest records that are not read, by the newest timestamp of their extent."""
    state = _state(look.image, *where)
    if state is None:
        return 0
    start = max(offset, state.log_start_offset)
    index = state.extents.index_after(start)
    if start >= state.log_end_offset or index >= len(state.extents):
        return 0
    return max(0, look.now_ms - state.extents[index].max_timestamp_ms)


def _state(image: Image, name: str, partition: int) -> PartitionState | None:
    topic = image.topics.get(name)
    return topic.partitions[partition] if topic and partition < len(topic.partitions) else None


# --- top ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class View:
    """What is shown."""

    url: str
    commit: int
    commits_per_second: float | None
    topics: Sequence[Row]
    groups: Sequence[Row]
    due: Sequence[str]

    @classmethod
    def of(cls, url: str, before: Look | None, now: Look) -> View:
        commits = 0 if before is None else now.image.commit - before.image.commit
        rate = _per_second(before, now, commits)
        topics, groups = topic_rows(before, now), group_rows(before, now)
        return cls(url, now.image.commit, rate, topics, groups, due_steps_of(now))

    def heading(self) -> str:
        rate = "-" if self.commits_per_second is None else str(self.commits_per_second)
        return f"{self.url}  commit {self.commit}, {rate} commits/s, due: {', '.join(self.due) or 'nothing'}"

    def document(self) -> Document:
        return {
            "root": self.url,
            "commit": self.commit,
            "commits_per_second": self.commits_per_second,
            "topics": list(self.topics),
            "groups": list(self.groups),
            "due": list(self.due),
        }


@click.command("top", cls=Command)
@duration_option("--interval", "interval_ms", default="2s", help="Between two looks; rates are of this time.")
@click.option("--once", is_flag=True, help="Print it a single time, after one interval.")
def top(interval_ms: int, once: bool) -> None:
    """Show topics with their rates, groups with their lag, and what maintenance is due.

    Live on a terminal: q or Ctrl-C ends it. Elsewhere as --once.
    """
    if interval_ms < LEAST_INTERVAL_MS:
        raise click.UsageError(f"--interval: found {interval_ms} ms, expected at least {LEAST_INTERVAL_MS}.")
    log = current().open_log()
    with until_signalled() as stop:
        if is_terminal(sys.stdout) and not once and not current().json:
            _live(log, interval_ms / 1000, stop)
            return
        before = look_at(log)
        if stop.wait(interval_ms / 1000):
            raise click.Abort
    view = View.of(log.url, before, look_at(log))
    if current().json:
        show_json(view.document())
        return
    tell(view.heading())
    tell("")
    show_rows(TOPIC_COLUMNS, view.topics, empty="There are no topics.")
    if view.groups:
        tell("")
        show_rows(GROUP_COLUMNS, view.groups)


def _live(log: SparkLog, interval_s: float, stop: Stop) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(file=sys.stdout)
    before, now = None, look_at(log)
    with _keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_drawn(View.of(log.url, before, now), console.height), refresh=True)
            if _is_over(stop, keys, interval_s):
                return
            before, now = now, look_at(log)


@contextlib.contextmanager
def _keys() -> Iterator[list[int]]:
    """Descriptors that give keys one by one; none where stdin is no terminal."""
    if not is_terminal(sys.stdin):
        yield []
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield [descriptor]
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _is_over(stop: Stop, keys: Sequence[int], interval_s: float) -> bool:
    """Wait for an interval; True: a signal, a key that quits, or the terminal is gone."""
    end_s = time.monotonic() + interval_s
    while (left_s := end_s - time.monotonic()) > 0 and not stop.is_asked():
        for descriptor in stop.wait_or_read(left_s, keys):
            key = os.read(descriptor, 1)
            if not key or key in QUIT:
                return True
    return stop.is_asked()


def _drawn(view: View, height: int) -> RenderableType:
    """As much as there is room for."""
    from rich.console import Group
    from rich.text import Text

    room = max(2, height - 8)  # of rows; the rest are headings and empty lines
    groups = view.groups[: max(1, room - len(view.topics), room // 2)]
    topics = view.topics[: max(1, room - len(groups))]
    parts: list[Any] = [Text(plain(view.heading()), style="bold"), Text()]
    parts.append(_table(TOPIC_COLUMNS, topics, len(view.topics)))
    if groups:
        parts += [Text(), _table(GROUP_COLUMNS, groups, len(view.groups))]
    return Group(*parts, Text(), Text("q: quit", style="dim"))


def _table(columns: str, rows: Sequence[Row], count: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    more = f"and {count - len(rows)} more" if count > len(rows) else None
    table = Table(box=None, pad_edge=False, caption=more, caption_justify="left", header_style="bold")
    specs = [[*spec.split(":"), "", ""][:3] for spec in columns.split()]
    for field, heading, _ in specs:
        is_text = field in {"group", "topic"}
        table.add_column(heading or field.upper().replace("_", "-"), justify="left" if is_text else "right")
    for row in rows:
        table.add_row(*(Text(_shown(row[field], unit)) for field, _, unit in specs))
    return table


def _shown(value: object, unit: str) -> str:
    if isinstance(value, int) and unit:
        return human_bytes(value) if unit == "bytes" else human_age(value)
    return cell(value)
