"""What depends on when: epochs, groups' offsets, log ends, and how far readers lagged."""

from collections.abc import Sequence
from itertools import groupby, pairwise
from operator import itemgetter

import numpy as np

from tests.history.columns import NEVER, History
from tests.history.events import Event
from tests.history.records import Versions
from tests.history.verdict import Name, Verdict


def _done(event: Event) -> int:
    return event.t_done if event.t_done is not None else NEVER


def check_epochs(events: Sequence[Event], verdict: Verdict) -> None:
    """An answer must not carry an older epoch than one that was known before it was asked for."""
    by_key: dict[str, list[Event]] = {}
    for event in events:
        if event.epoch is not None and event.type == "ok":
            by_key.setdefault(event.key or "", []).append(event)
    for key, answers in by_key.items():
        answers.sort(key=_done)
        done = np.array([_done(event) for event in answers], np.int64)
        epoch = np.array([event.epoch for event in answers], np.int64)
        newest = np.maximum.accumulate(epoch)
        before = done.searchsorted([event.t_inv for event in answers], "left") - 1
        for at in np.flatnonzero((before >= 0) & (newest[before] > epoch)):
            found = f"epoch {epoch[at]} after {newest[before[at]]}"
            verdict.add(Name.EPOCH_REGRESSION, f"{key}: {answers[at].proc}#{answers[at].i} got {found}")


def check_groups(history: History, verdict: Verdict) -> None:
    """A fetched offset must be one that was committed, and not overwritten before the fetch began."""
    by_place: dict[tuple[str, str], tuple[list[Event], list[Event]]] = {}
    for event in history.others:
        if event.f in {"commit", "fetch-committed"} and event.type != "fail":
            place = by_place.setdefault((event.group or "", event.key or ""), ([], []))
            place[event.f != "commit"].append(event)
    for (group, key), (commits, fetches) in by_place.items():
        _check_group(f"{group} of {key}", commits, [one for one in fetches if one.type == "ok"], verdict)


def _check_group(where: str, commits: list[Event], fetches: list[Event], verdict: Verdict) -> None:
    """The store of an offset is a register. A fetch that saw a commit shows that it was done by then."""
    offsets: list[int] = [-1, *(_offset(event) for event in commits)]
    began = [-1, *(event.t_inv for event in commits)]
    done = [-1, *(_done(event) if event.type == "ok" else NEVER for event in commits)]
    by_offset: dict[int, list[int]] = {}
    for number, offset in enumerate(offsets):
        by_offset.setdefault(offset, []).append(number)
    for fetch in fetches:
        candidates = by_offset.get(_offset(fetch), [])
        if len(candidates) == 1:
            done[candidates[0]] = min(done[candidates[0]], _done(fetch))
    order = np.argsort(np.array(done), kind="stable")
    sorted_done = np.array(done)[order]
    newest_began = np.maximum.accumulate(np.array(began)[order])
    for fetch in fetches:
        before = int(sorted_done.searchsorted(fetch.t_inv, "left")) - 1
        floor = int(newest_began[before]) if before >= 0 else -1
        fits = any(
            began[one] <= _done(fetch) and done[one] >= floor for one in by_offset.get(_offset(fetch), [])
        )
        if not fits:
            found = f"{fetch.proc}#{fetch.i} got {fetch.offset}"
            verdict.add(Name.COMMITTED_OFFSET_REGRESSION, f"{where}: {found}, overwritten or never committed")


def _offset(event: Event) -> int:
    return event.offset if isinstance(event.offset, int) else -1


def check_log_ends(history: History, verdict: Verdict) -> None:
    """No process sees a log get shorter."""
    seen = [event for event in history.others if event.f == "end" and event.type == "ok"]
    named = sorted(((event.proc, event.key or "", _offset(event)) for event in seen), key=itemgetter(0, 1))
    for (proc, key), ends in groupby(named, key=itemgetter(0, 1)):
        highest = -1
        for _, _, end in ends:
            if end < highest:
                verdict.add(Name.LOG_END_REGRESSION, f"{proc}: {key} ended at {highest}, then at {end}")
            highest = max(highest, end)


def measure_lag(history: History, versions: Versions, verdict: Verdict) -> None:
    """How long ago the oldest record was acknowledged that a poll could have returned and did not."""
    known = np.full(len(versions.key), NEVER, np.int64)
    rows = np.flatnonzero(versions.of_sent >= 0)
    np.minimum.at(known, versions.of_sent[rows], history.op_done[history.sent.op[rows]])
    if not len(history.read) or not len(known):
        return
    # The earliest acknowledgement among the later records of the same log: a minimum from the right.
    after = np.full(len(known), NEVER, np.int64)
    for start, end in _spans(versions.key):
        after[start : end - 1] = np.minimum.accumulate(known[start + 1 : end][::-1])[::-1]
    read = history.read
    is_last = np.append((np.diff(read.op) != 0) | (np.diff(read.key) != 0), True)
    asked = history.op_inv[read.op[is_last]]
    lag = asked - after[versions.of_read[is_last]]
    verdict.worst_lag_us = max(0, int(lag.max(initial=0)))


def _spans(key: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> list[tuple[int, int]]:
    borders = [0, *(np.flatnonzero(np.diff(key)) + 1).tolist(), len(key)]
    return list(pairwise(borders))
