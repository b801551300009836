"""A history as arrays: operations, the records they sent, the records they read.

Invariants: rows keep the order of the events; a value's record (`identity`) is one for all attempts of a
    Spark task; `version` numbers the known (key, offset) pairs so that neighbours in a log are neighbours.
Not here: judging (checker.py and what it calls).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.history.events import NO_OFFSET, Event, topic_of

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
FAIL, INFO, OK = 0, 1, 2
TYPES = {"fail": FAIL, "info": INFO, "ok": OK}
NEVER = np.iinfo(np.int64).max


class Names:
    """Texts as numbers, in order of appearance."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return found

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(slots=True)
class Rows:
    """Records sent or read: parallel columns."""

    op: Ints
    key: Ints
    value: Ints
    offset: Ints  # NO_OFFSET: not known

    def __len__(self) -> int:
        return len(self.op)

    def where(self, chosen: Bools | Ints) -> "Rows":
        return Rows(self.op[chosen], self.key[chosen], self.value[chosen], self.offset[chosen])


@dataclass(slots=True)
class History:
    """See the module's docstring."""

    keys: Names
    values: Names
    procs: Names
    op_proc: Ints
    op_number: Ints
    op_type: Ints
    op_inv: Ints
    op_done: Ints  # NEVER: it did not return
    op_commit: Ints  # when its publish was called
    op_final: Bools
    op_seeks: Ints  # how many seeks of all keys its process had made before
    sent: Rows
    read: Rows  # of ok polls
    read_seeks: Ints  # how many seeks of this key its process had made before
    value_record: Ints  # value -> the record of which it is an attempt
    truncated: Ints  # per key: the log start, as far as anybody moved it
    compacted: Bools  # per key: may records go?
    others: list[Event] = field(default_factory=list)  # neither send nor poll, done
    unit_of_op: dict[int, str] = field(default_factory=dict)

    @property
    def operations(self) -> int:
        return len(self.op_proc)

    def op_name(self, op: int) -> str:
        """For messages."""
        return f"{self.procs.texts[self.op_proc[op]]}#{self.op_number[op]}"


def record_of(value: str) -> str:
    """Without the attempt, where the value is topic/app/batch/partition/attempt/seq."""
    parts = value.split("/")
    return "/".join((*parts[:4], parts[5])) if len(parts) == 6 else value


def build_history(events: Sequence[Event], compacted: Collection[str] = ()) -> History:
    """Columns of completed events (events.completed)."""
    builder = _Builder()
    for event in events:
        builder.add(event)
    return builder.history(compacted)


class _Builder:
    def __init__(self) -> None:
        self.keys, self.values, self.procs = Names(), Names(), Names()
        self.ops: dict[tuple[str, int], int] = {}
        self.op_rows: list[tuple[int, int, int, int, int, int, bool, int]] = []
        self.columns: dict[str, tuple[list[int], ...]] = {
            "sent": ([], [], [], []),
            "read": ([], [], [], [], []),
        }
        self.seeks: dict[str, int] = {}
        self.key_seeks: dict[tuple[str, str], int] = {}
        self.truncated: dict[int, int] = {}
        self.others: list[Event] = []
        self.units: dict[int, str] = {}

    def add(self, event: Event) -> None:
        if event.f in {"send", "poll"}:
            self._add_records(event)
            return
        if event.f == "seek":
            if event.key is None:
                self.seeks[event.proc] = self.seeks.get(event.proc, 0) + 1
            else:
                where = (event.proc, event.key)
                self.key_seeks[where] = self.key_seeks.get(where, 0) + 1
            return
        # One whose outcome is not known may have moved the log start.
        if event.f == "truncate" and event.type != "fail" and event.key is not None:
            key = self.keys.number(event.key)
            assert isinstance(event.offset, int)
            self.truncated[key] = max(self.truncated.get(key, 0), event.offset)
        self.others.append(event)

    def _add_records(self, event: Event) -> None:
        op = self._op(event)
        key = self.keys.number(event.key) if event.key is not None else -1
        count = len(event.value)
        if not count or (event.f == "poll" and event.type != "ok"):
            return
        columns = self.columns["sent" if event.f == "send" else "read"]
        number = self.values.number
        columns[0].extend([op] * count)
        columns[1].extend([key] * count)
        columns[2].extend([number(value) for value in event.value])
        offsets = event.offset
        columns[3].extend(offsets if isinstance(offsets, list) else [NO_OFFSET] * count)
        if event.f == "poll":
            seeks = self.key_seeks.get((event.proc, event.key or ""), 0)
            columns[4].extend([seeks] * count)
        elif event.txn is not None:
            self.units[op] = event.txn

    def _op(self, event: Event) -> int:
        where = (event.proc, event.i)
        op = self.ops.get(where)
        if op is None:
            op = self.ops[where] = len(self.op_rows)
            commit = event.t_commit if event.t_commit is not None else event.t_inv
            done = event.t_done if event.t_done is not None else NEVER
            seeks = self.seeks.get(event.proc, 0)
            type_ = TYPES[event.type]
            proc = self.procs.number(event.proc)
            self.op_rows.append((proc, event.i, type_, event.t_inv, done, commit, event.final, seeks))
        return op

    def history(self, compacted: Collection[str]) -> History:
        table: Any = np.array(self.op_rows, np.int64).reshape(-1, 8).T
        sent = Rows(*(np.array(column, np.int64) for column in self.columns["sent"]))
        *read, read_seeks = (np.array(column, np.int64) for column in self.columns["read"])
        records = Names()
        truncated = np.zeros(len(self.keys), np.int64)
        for key, offset in self.truncated.items():
            truncated[key] = offset
        return History(
            keys=self.keys,
            values=self.values,
            procs=self.procs,
            op_proc=table[0],
            op_number=table[1],
            op_type=table[2],
            op_inv=table[3],
            op_done=table[4],
            op_commit=table[5],
            op_final=table[6].astype(bool),
            op_seeks=table[7],
            sent=sent,
            read=Rows(*read),
            read_seeks=read_seeks,
            value_record=np.array([records.number(record_of(text)) for text in self.values.texts], np.int64),
            truncated=truncated,
            compacted=np.array([topic_of(key) in compacted for key in self.keys.texts], bool),
            others=self.others,
            unit_of_op=self.units,
        )


def topics(history: History) -> tuple[Ints, Ints]:
    """The topic of every key, and the one that every value says it is for, in the same numbers."""
    names = Names()
    of_key = np.array([names.number(topic_of(key)) for key in history.keys.texts], np.int64)
    of_value = np.array([names.number(text.partition("/")[0]) for text in history.values.texts], np.int64)
    return of_key, of_value
