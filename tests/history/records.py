"""What became of each record: lost, doubled, changed, from nowhere, in pieces.

Version order (which record follows which) rests on all records read and on those whose send was ok.
"""

from dataclasses import dataclass

import numpy as np

from tests.history.columns import FAIL, NEVER, OK, Bools, History, Ints, Rows, topics
from tests.history.verdict import Name, Verdict

_OFFSET_BITS = 43


@dataclass(slots=True)
class Writers:
    """Per value: who sent it."""

    op: Ints  # the first operation that may have written it; -1: nobody
    certain: Ints  # likewise; -1 also where it may have been another unit's operation
    acknowledged: Bools
    refused: Bools  # all that sent it were told that they failed
    commit: Ints  # when the first publish of it was called; NEVER: nobody


@dataclass(slots=True)
class Versions:
    """The known records of all logs, in order of key and offset."""

    key: Ints
    offset: Ints
    value: Ints
    of_sent: Ints  # row of sent -> its version, -1 where its offset is not known
    of_read: Ints


def find_writers(history: History) -> Writers:
    """Who wrote what."""
    count, sent = len(history.values), history.sent
    type_ = history.op_type[sent.op]
    acknowledged, possible = np.zeros(count, bool), np.zeros(count, bool)
    acknowledged[sent.value[type_ == OK]] = True
    possible[sent.value[type_ != FAIL]] = True
    op = np.full(count, -1, np.int64)
    first = np.full(count, NEVER, np.int64)
    np.minimum.at(first, sent.value, history.op_commit[sent.op])
    # The first attempt of several with an unknown outcome may be the one that counted.
    for chosen in (type_ == FAIL, type_ != FAIL):
        rows = np.flatnonzero(chosen)
        rows = rows[np.argsort(history.op_inv[sent.op[rows]], kind="stable")[::-1]]
        op[sent.value[rows]] = sent.op[rows]
    return Writers(op, _certain(history, op), acknowledged, ~possible & (op >= 0), first)


def _certain(history: History, op: Ints) -> Ints:
    """Of a value that several units have sent, only an answer that says where it is tells whose it was."""
    certain, sent = op.copy(), history.sent
    several = _sent_by_several(history)
    certain[list(several)] = -1
    told = (history.op_type[sent.op] == OK) & (sent.offset >= 0) & np.isin(sent.value, list(several))
    certain[sent.value[told]] = sent.op[told]
    return certain


def find_versions(history: History, verdict: Verdict) -> Versions:
    """The order of the known records; on the way: one value an offset, one offset a record."""
    sent, read = history.sent, history.read
    known = np.flatnonzero((history.op_type[sent.op] == OK) & (sent.offset >= 0))
    place = np.concatenate((_place(sent.where(known)), _place(read)))
    value = np.concatenate((sent.value[known], read.value))
    pairs = np.unique(np.stack((place, value)), axis=1) if len(place) else np.zeros((2, 0), np.int64)
    places, index = np.unique(place, return_inverse=True)
    chosen = np.zeros(len(places), np.int64)
    chosen[index] = value
    clashing = pairs[0, 1:][pairs[0, 1:] == pairs[0, :-1]]
    for at in clashing[: Verdict.EXAMPLES]:
        texts = [history.values.texts[one] for one in pairs[1][pairs[0] == at]]
        verdict.add(Name.INCONSISTENT_OFFSETS, f"{_name_place(history, int(at))} holds {texts}")
    verdict.add_more(Name.INCONSISTENT_OFFSETS, len(clashing))
    _find_duplicates(history, pairs, verdict)
    of_sent = np.full(len(sent), -1, np.int64)
    of_sent[known] = index[: len(known)]
    mask = (1 << _OFFSET_BITS) - 1
    return Versions(places >> _OFFSET_BITS, places & mask, chosen, of_sent, index[len(known) :])


def _find_duplicates(history: History, pairs: Ints, verdict: Verdict) -> None:
    record_places = np.stack((history.value_record[pairs[1]], pairs[0]))
    record_places = np.unique(record_places, axis=1) if record_places.size else record_places
    record = record_places[0]
    doubled = np.flatnonzero(record[1:] == record[:-1]) + 1
    for at in doubled[: Verdict.EXAMPLES]:
        value = history.values.texts[int(np.flatnonzero(history.value_record == record[at])[0])]
        places = [_name_place(history, int(one)) for one in record_places[1, at - 1 : at + 1]]
        verdict.add(Name.DUPLICATE, f"{value} at {places}")
    verdict.add_more(Name.DUPLICATE, len(doubled))


def check_records(history: History, writers: Writers, versions: Versions, verdict: Verdict) -> None:
    """Lost, unseen, aborted, phantom and misplaced records; what was read too early."""
    read = history.read
    values = history.values.texts
    _each(verdict, Name.G1A, read, writers.refused[read.value], history)
    _each(verdict, Name.VISIBLE_BEFORE_COMMIT, read, _too_early(history, writers), history)
    key_topic, value_topic = topics(history)
    _each(verdict, Name.WRONG_TOPIC, read, key_topic[read.key] != value_topic[read.value], history)
    declared = {event.txn for event in history.others if event.f == "txn"}
    unwritten = np.flatnonzero(writers.op[read.value] < 0)
    for row in unwritten:
        value = values[read.value[row]]
        if unit_of(value) not in declared:
            verdict.add(Name.PHANTOM, f"{value}, read by {history.op_name(read.op[row])}")
    _find_lost(history, writers, versions, verdict)


def _too_early(history: History, writers: Writers) -> Bools:
    read = history.read
    commit = writers.commit[read.value]
    early: Bools = (commit != NEVER) & (history.op_done[read.op] < commit)
    return early


def _find_lost(history: History, writers: Writers, versions: Versions, verdict: Verdict) -> None:
    seen = np.zeros(len(history.values), bool)
    seen[history.read.value] = True
    records_seen = np.zeros(int(history.value_record.max(initial=-1)) + 1, bool)
    records_seen[history.value_record[history.read.value]] = True
    verdict.acknowledged = int(writers.acknowledged.sum())
    verdict.read = int(records_seen.sum())
    bound = np.full(len(history.keys), -1, np.int64)
    np.maximum.at(bound, history.read.key, history.read.offset)
    # Records that a truncation may have removed before anybody read them are not missing.
    sent, known = history.sent, history.sent.offset >= 0
    whole = ~_may_be_truncated(history)[sent.key]
    kept = np.where(known, sent.offset >= history.truncated[sent.key], whole)
    kept &= ~history.compacted[sent.key]
    missing = (history.op_type[sent.op] == OK) & ~records_seen[history.value_record[sent.value]] & kept
    lost = missing & known & (sent.offset <= bound[sent.key])
    _each(verdict, Name.LOST_WRITE, sent, lost, history)
    unseen = missing & ~lost
    verdict.unseen = int(unseen.sum())
    if history.op_final.any():
        _each(verdict, Name.UNSEEN, sent, unseen, history)
        _find_gaps(history, verdict)
        _find_partial(history, records_seen, verdict)
    open_rows = (history.op_type[sent.op] != OK) & (history.op_type[sent.op] != FAIL)
    verdict.unknown = len(np.unique(sent.op[open_rows]))
    verdict.unknown_visible = int(seen[np.unique(sent.value[open_rows])].sum())


def _find_gaps(history: History, verdict: Verdict) -> None:
    final = history.read.where(history.op_final[history.read.op])
    places = np.unique(_place(final.where(~history.compacted[final.key])))
    jumps = np.flatnonzero((np.diff(places) != 1) & (np.diff(places >> _OFFSET_BITS) == 0))
    for at in jumps:
        first, second = (_name_place(history, int(one)) for one in places[at : at + 2])
        verdict.add(Name.OFFSET_GAP, f"after {first} comes {second}")


def _find_partial(history: History, records_seen: Bools, verdict: Verdict) -> None:
    """Atomic units of unknown outcome that are there in part, and declared ones that are incomplete."""
    sent = history.sent
    may_be_gone = _may_be_truncated(history) | history.compacted
    open_rows = np.flatnonzero((history.op_type[sent.op] != OK) & ~may_be_gone[sent.key])
    acknowledged = {history.unit_of_op.get(int(op), int(op)) for op in np.unique(sent.op)
                    if history.op_type[op] == OK}  # fmt: skip
    visible: dict[str | int, set[bool]] = {}
    ambiguous = _sent_by_several(history)
    for row in open_rows:
        op = int(sent.op[row])
        if int(sent.value[row]) in ambiguous:
            continue
        there = bool(records_seen[history.value_record[sent.value[row]]])
        visible.setdefault(history.unit_of_op.get(op, op), set()).add(there)
    for unit, outcomes in visible.items():
        if len(outcomes) == 2 and unit not in acknowledged:
            name = unit if isinstance(unit, str) else history.op_name(unit)
            verdict.add(Name.PARTIAL_BATCH, f"{name}: some of its records are visible, others are not")
    _check_declared(history, verdict)


def _sent_by_several(history: History) -> set[int]:
    """Values that more than one unit has tried to write: that they are there says nothing of either."""
    unit_of_value: dict[int, str | int] = {}
    several: set[int] = set()
    for op, value in zip(history.sent.op.tolist(), history.sent.value.tolist(), strict=True):
        unit = history.unit_of_op.get(op, op)
        if unit_of_value.setdefault(value, unit) != unit:
            several.add(value)
    return several


def _check_declared(history: History, verdict: Verdict) -> None:
    expected: dict[str, tuple[int, bool]] = {}
    for event in history.others:
        if event.f == "txn" and event.txn is not None and event.count is not None:
            done = expected.get(event.txn, (0, False))[1] or event.type == "ok"
            expected[event.txn] = event.count, done
    if not expected:
        return
    found: dict[str, set[int]] = {}
    for value in np.unique(history.read.value):
        unit = unit_of(history.values.texts[value])
        if unit in expected:
            found.setdefault(unit, set()).add(int(history.value_record[value]))
    for unit, (count, done) in expected.items():
        there = len(found.get(unit, ()))
        if there == 0 and done:
            verdict.add(Name.UNSEEN, f"{unit}: none of {count} records")
        elif there not in {0, count}:
            verdict.add(Name.PARTIAL_BATCH, f"{unit}: {there} of {count} records")


def unit_of(value: str) -> str | None:
    """ "app/batch" of a Spark value."""
    parts = value.split("/")
    return f"{parts[1]}/{parts[2]}" if len(parts) == 6 else None


def _may_be_truncated(history: History) -> Bools:
    """Per key; a key that is a topic without partition stands for all of them."""
    of_key, _ = topics(history)
    hit = np.unique(of_key[history.truncated > 0])
    whole = np.array([not text.rpartition("-")[2].isdigit() for text in history.keys.texts], bool)
    return (history.truncated > 0) | (whole & np.isin(of_key, hit))


def _place(rows: Rows) -> Ints:
    return (rows.key << _OFFSET_BITS) | rows.offset


def _name_place(history: History, place: int) -> str:
    return f"{history.keys.texts[place >> _OFFSET_BITS]}@{place & ((1 << _OFFSET_BITS) - 1)}"


def _each(verdict: Verdict, name: Name, rows: Rows, bad: Bools, history: History) -> None:
    found = np.flatnonzero(bad)
    for row in found[: Verdict.EXAMPLES]:
        value, key = history.values.texts[rows.value[row]], history.keys.texts[rows.key[row]]
        verdict.add(name, f"{value} of {key}@{rows.offset[row]} ({history.op_name(rows.op[row])})")
    verdict.add_more(name, len(found))
