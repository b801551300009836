"""What a command is given: durations, moments of a log, and signals to stop."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
import select
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from sparklog.cli.framework import note

if TYPE_CHECKING:
    from sparklog.client import OpenedRoot
    from sparklog.metadata import Image

# --- durations ---------------------------------------------------------------------------------------

DURATION = "DURATION"
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_MOST_MS = 36_500 * _UNITS_MS["d"]  # a hundred years; no clock waits for much longer
_WORDS = {"millisecond": "ms", "second": "s", "minute": "m", "hour": "h", "day": "d", "week": "w"}
_PATTERN = re.compile(
    rf"(\d{{1,12}})\s*(?:({'|'.join(_UNITS_MS)})|({'|'.join(_WORDS)})s?)", re.ASCII | re.IGNORECASE
)


def parse_duration(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    """Callback of an option: `7d`, `30s`, `'168 hours'` or `0`, in milliseconds."""
    if value is None or value == "0":
        return None if value is None else 0
    match = _PATTERN.fullmatch(value.strip())
    if match is None:
        raise click.BadParameter(
            f"found {value!r}, expected a number with ms, s, m, h, d or w, such as 7d, or '7 days'."
        )
    unit = match[2] or _WORDS[match[3].lower()]
    if unit == "M":  # months for many people; taken for minutes, too much would be removed
        raise click.BadParameter(f"found {value!r}: write {match[1]}m for minutes; for months, days.")
    found_ms = int(match[1]) * _UNITS_MS[unit.lower()]
    if found_ms > _MOST_MS:
        raise click.BadParameter(f"found {value!r}, expected at most {_MOST_MS // _UNITS_MS['d']:,}d.")
    return found_ms


def parse_numbers(text: str) -> list[int]:
    """`0,3` as [0, 3]."""
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch(r"\d{1,9}", word, re.ASCII) for word in words):
        raise click.UsageError(f"found partitions {text[:100]!r}, expected numbers separated by commas.")
    return list(map(int, words))


_JAVA_DURATION = re.compile(
    r"P(?=.)(?:(\d{1,12})D)?(?:T(?=.)(?:(\d{1,12})H)?(?:(\d{1,12})M)?(?:(\d{1,12}(?:\.\d{1,9})?)S)?)?",
    re.ASCII | re.IGNORECASE,
)


def parse_java_duration(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Callback of an option: Kafka's `PnDTnHnMnS`, such as P1DT12H; or as `parse_duration`."""
    if value is None:
        return None
    match = _JAVA_DURATION.fullmatch(value.strip())
    if match is None:
        return parse_duration(ctx, parameter, value)
    days, hours, minutes, seconds = (float(word or 0) for word in match.groups())
    found_ms = round(1000 * (seconds + 60 * (minutes + 60 * (hours + 24 * days))))
    if found_ms > _MOST_MS:
        raise click.BadParameter(f"found {value!r}, expected at most {_MOST_MS // _UNITS_MS['d']:,}d.")
    return found_ms


# --- moments -----------------------------------------------------------------------------------------


class Moment(NamedTuple):
    """A commit's number, a time, or how long ago: one of the three."""

    commit: int | None = None
    time_ms: int | None = None
    ago_ms: int | None = None


def parse_moment(ctx: click.Context, parameter: click.Parameter, value: str | None) -> Moment | None:
    """Callback of an option: `42`, `2026-11-22T18:00` (UTC unless it has a zone) or `1d`."""
    if value is None:
        return None
    text = value.strip()
    if (commit := commit_number(text)) is not None:
        return Moment(commit=commit)
    if (time_ms := iso_time_ms(text)) is not None:
        return Moment(time_ms=time_ms)
    try:
        return Moment(ago_ms=parse_duration(ctx, parameter, text))
    except click.BadParameter:
        raise click.BadParameter(
            f"found {value!r}, expected a commit's number, a time such as 2026-11-22T18:00 (UTC), "
            "or how long ago, such as 1d.",
            ctx=ctx,
            param=parameter,
        ) from None


def parse_datetime(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    """Callback of an option: `2026-11-22T18:00:00.000`, UTC unless it has a zone; ms since 1970."""
    if value is None:
        return None
    found = iso_time_ms(value.strip())
    if found is None:
        raise click.BadParameter(f"found {value!r}, expected a time such as 2026-11-22T18:00:00.000 (UTC).")
    return found


def iso_time_ms(text: str) -> int | None:
    """A time of ISO 8601, UTC unless it has a zone, in ms since 1970; None: it is none."""
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    zoned = found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)
    return round(zoned.timestamp() * 1000)


def commit_number(text: str) -> int | None:
    """The number, if the text is one (at most 20 digits, as in names of commits)."""
    return int(text) if re.fullmatch(r"\d{1,20}", text, re.ASCII) else None


at_option = click.option(
    "--at",
    "moment",
    callback=parse_moment,
    metavar="COMMIT|TIME|DURATION",
    help="As of then: after a commit, at a time (2026-11-22T18:00, UTC), or so long ago (1d).",
)


def image_of(log: OpenedRoot, moment: Moment | None) -> Image:
    """The metadata of a moment; without one, of now.

    Raises:
        InvalidRequestError: COMMIT_MISSING.
    """
    from sparklog.metadata.loading import load_image_at, newest_commit_before

    image = log.refresh(force=True)
    if moment is None:
        return image
    commit = moment.commit
    if commit is None:
        until_ms = moment.time_ms if moment.ago_ms is None else log.clock.now_ms() - moment.ago_ms
        assert until_ms is not None
        commit = newest_commit_before(log.store, image, until_ms)
        note(f"Commit {commit} was the newest then.")
    return load_image_at(log.store, image, commit)


# --- stopping ----------------------------------------------------------------------------------------

LONGEST_WAIT_S = 86_400.0 * 365  # select takes no infinity


class Stop:
    """A request to stop, made by a signal handler while the same thread may be waiting for it.

    Not a threading.Event: its `set` takes a lock that `wait` holds for moments. A handler that runs in such a
    moment, in the waiting thread, would deadlock. Here a byte in a pipe ends the wait.
    """

    def __init__(self) -> None:
        self._is_asked = False
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    def ask(self) -> None:
        self._is_asked = True
        with contextlib.suppress(OSError):  # the pipe is full: the thread is awake
            os.write(self._writer, b"\0")

    def is_asked(self) -> bool:
        return self._is_asked

    def wait(self, seconds: float) -> bool:
        """Wait until asked, or for so long; True if asked."""
        end_s = time.monotonic() + seconds
        while not self._is_asked and (left_s := end_s - time.monotonic()) > 0:
            self.wait_or_read(left_s, ())
        return self._is_asked

    def wait_or_read(self, seconds: float | None, descriptors: Sequence[int]) -> list[int]:
        """Wait until asked, for so long (None: no limit), or until a descriptor can be read; return those.

        Any signal that Python handles may end it early.
        """
        seconds = seconds if seconds is None else min(max(0.0, seconds), LONGEST_WAIT_S)
        ready, _, _ = select.select([self._reader, *descriptors], [], [], seconds)
        if self._reader in ready and not self._is_asked:  # another signal's byte; who asks writes one, too
            with contextlib.suppress(BlockingIOError):
                os.read(self._reader, 1 << 16)
        return [descriptor for descriptor in descriptors if descriptor in ready]

    @contextlib.contextmanager
    def woken_by_signals(self) -> Iterator[None]:
        """Let the arrival of a signal end a wait; only in the main thread.

        Python runs a handler between two of its own instructions. A signal that arrives after the last of
        them, but before the system call of a wait, would be heard only after the wait, which may take hours.
        """
        before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)


@contextlib.contextmanager
def until_signalled() -> Iterator[Stop]:
    """Let SIGTERM and SIGINT ask the Stop; a second signal has its usual effect."""
    with contextlib.closing(Stop()) as stop:
        if threading.current_thread() is not threading.main_thread():
            yield stop  # only the main thread may set handlers
            return

        def ask(_number: int, _frame: object) -> None:
            stop.ask()
            restore()

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        with stop.woken_by_signals():
            try:
                for number in before:
                    signal.signal(number, ask)
                yield stop
            finally:
                restore()
