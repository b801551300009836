"""The order in which processes read and wrote, and circles among operations."""

from collections.abc import Iterator

import numpy as np

from tests.history.columns import FAIL, NEVER, OK, Bools, History, Ints
from tests.history.records import Versions, Writers
from tests.history.verdict import Name, Verdict


def check_polls(history: History, versions: Versions, verdict: Verdict) -> None:
    """Each process must read each log's known records one after the other; a seek starts anew."""
    read = history.read
    proc = history.op_proc[read.op]
    group = np.stack((proc, read.key, history.op_seeks[read.op], history.read_seeks))
    order = np.lexsort((np.arange(len(read)), *group[::-1]))
    version, op = versions.of_read[order], read.op[order]
    step, same = _steps(group[:, order], version)
    inner = op[1:] == op[:-1]
    skips = (step > 1) & ~history.compacted[read.key[order]][1:]
    for name, bad in (
        (Name.POLL_SKIP, same & ~inner & skips),
        (Name.NONMONOTONIC_POLL, same & ~inner & (step < 1)),
        (Name.INT_POLL_SKIP, same & inner & skips),
        (Name.INT_NONMONOTONIC_POLL, same & inner & (step < 1)),
    ):
        _report(history, versions, verdict, name, version, op, bad)


def check_sends(history: History, versions: Versions, verdict: Verdict) -> None:
    """A process's acknowledged records of one log must be in the order in which it sent them, in whichever it
    was answered.
    """
    sent = history.sent
    rows = np.flatnonzero(versions.of_sent >= 0)
    group = np.stack((history.op_proc[sent.op[rows]], sent.key[rows]))
    order = np.lexsort((np.arange(len(rows)), history.op_number[sent.op[rows]], *group[::-1]))
    version, op = versions.of_sent[rows[order]], sent.op[rows[order]]
    step, same = _steps(group[:, order], version)
    inner = op[1:] == op[:-1]
    _report(history, versions, verdict, Name.NONMONOTONIC_SEND, version, op, same & ~inner & (step < 1))
    _report(history, versions, verdict, Name.INT_NONMONOTONIC_SEND, version, op, same & inner & (step < 1))
    verdict.int_send_skips = int((same & inner & (step > 1)).sum())


def _steps(group: Ints, version: Ints) -> tuple[Ints, Bools]:
    return np.diff(version), (group[:, 1:] == group[:, :-1]).all(axis=0)


def _report(
    history: History, versions: Versions, verdict: Verdict, name: Name, version: Ints, op: Ints, bad: Bools
) -> None:
    found = np.flatnonzero(bad)
    for at in found[: Verdict.EXAMPLES]:
        key = history.keys.texts[versions.key[version[at]]]
        first, second = versions.offset[version[at]], versions.offset[version[at + 1]]
        who = history.op_name(op[at + 1])
        verdict.add(name, f"{who}: {key}@{second} after {key}@{first}")
    verdict.add_more(name, len(found))


def check_cycles(history: History, writers: Writers, versions: Versions, verdict: Verdict) -> None:
    """Look for a circle of any edges; one that there is, is named by the fewest kinds of edges it needs."""
    own = history.read.op == writers.op[history.read.value]
    for row in np.flatnonzero(own):
        value = history.values.texts[history.read.value[row]]
        verdict.add(Name.PRECOMMITTED_READ, f"{history.op_name(history.read.op[row])}: {value}")
    kinds = (
        (Name.G0, _ww(versions, writers)),
        (Name.G1C, _wr(history, writers)),
        (Name.G1C_PROCESS, _process(history)),
        (Name.G1C_REALTIME, _realtime(history)),
    )
    if not _circle(np.concatenate([edges for _, edges in kinds], axis=1)):
        return
    chosen: list[Ints] = []
    for name, edges in kinds:
        chosen.append(edges)
        circle = _circle(np.concatenate(chosen, axis=1))
        if circle:
            ops = [history.op_name(node) for node in circle if node < history.operations]
            verdict.add(name, " < ".join(ops[:20]))
            return


def _ww(versions: Versions, writers: Writers) -> Ints:
    writer = writers.certain[versions.value]
    before, after = writer[:-1], writer[1:]
    fits = (versions.key[1:] == versions.key[:-1]) & (before >= 0) & (after >= 0) & (before != after)
    return np.stack((before[fits], after[fits]))


def _wr(history: History, writers: Writers) -> Ints:
    writer = writers.certain[history.read.value]
    fits = (writer >= 0) & (writer != history.read.op)
    return np.unique(np.stack((writer[fits], history.read.op[fits])), axis=1)


def _process(history: History) -> Ints:
    """Not between two sends, which may be in flight together: their order is nonmonotonic-send's."""
    order = np.lexsort((np.arange(history.operations), history.op_proc))
    sends = np.zeros(history.operations, bool)
    sends[history.sent.op] = True
    same = history.op_proc[order][1:] == history.op_proc[order][:-1]
    same &= ~(sends[order][1:] & sends[order][:-1])
    return np.stack((order[:-1][same], order[1:][same]))


def _realtime(history: History) -> Ints:
    """Through a chain of moments, one for each return: linear, where pairs of operations would not be."""
    done = np.flatnonzero((history.op_type == OK) & (history.op_done != NEVER))
    done = done[np.argsort(history.op_done[done], kind="stable")]
    moments = history.operations + np.arange(len(done), dtype=np.int64)
    began = np.flatnonzero(history.op_type != FAIL)
    last = history.op_done[done].searchsorted(history.op_inv[began], "left") - 1
    after = last >= 0
    return np.concatenate(
        (
            np.stack((done, moments)),
            np.stack((moments[:-1], moments[1:])),
            np.stack((moments[last[after]], began[after])),
        ),
        axis=1,
    )


def _circle(edges: Ints) -> list[int]:
    """Nodes of one circle, or none: remove what nothing points to until nothing can be removed."""
    if not edges.size:
        return []
    nodes = int(edges.max()) + 1
    degree = np.bincount(edges[1], minlength=nodes).tolist()
    order = np.argsort(edges[0], kind="stable")
    targets = edges[1][order].tolist()
    starts = np.searchsorted(edges[0][order], np.arange(nodes + 1)).tolist()
    ready = [node for node in range(nodes) if not degree[node]]
    removed = 0
    while ready:
        node = ready.pop()
        removed += 1
        for target in targets[starts[node] : starts[node + 1]]:
            degree[target] -= 1
            if not degree[target]:
                ready.append(target)
    return [] if removed == nodes else list(_walk_back(edges, np.array(degree) > 0))


def _walk_back(edges: Ints, left: Bools) -> Iterator[int]:
    """Every node that is left has one before it that is left too: going back ends in a circle."""
    inside = left[edges[0]] & left[edges[1]]
    before = np.full(len(left), -1, np.int64)
    before[edges[1][inside]] = edges[0][inside]
    at, path, seen = int(np.flatnonzero(left)[0]), [], set[int]()
    while at not in seen:
        seen.add(at)
        path.append(at)
        at = int(before[at])
    circle = path[path.index(at) :]
    yield from reversed(circle)
