"""Builds synthetic histories: one operation after the other, unless told otherwise."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.history.events import Event

At = Mapping[str, Sequence[tuple[str, int]]]  # key -> values with their offsets (-1: not known)


class HistoryBuilder:
    """Adds events; `now` is the time of the next operation, each takes one millisecond."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.now = 0
        self._i = 0

    def send(self, proc: str, at: At, *, type: str = "ok", **fields: Any) -> None:  # noqa: A002
        self._records("send", proc, at, type, fields)

    def poll(self, proc: str, at: At, *, type: str = "ok", **fields: Any) -> None:  # noqa: A002
        self._records("poll", proc, at, type, fields)

    def other(self, f: str, proc: str, *, type: str = "ok", **fields: Any) -> None:  # noqa: A002
        inv, done = self._times(fields)
        self.events.append(Event(i=self._i, proc=proc, f=f, type=type, t_inv=inv, t_done=done, **fields))

    def final(self, at: At) -> None:
        """The last reads, by a fresh process."""
        self.poll("last", at, final=True)

    def _times(self, fields: dict[str, Any]) -> tuple[int, int]:
        self._i += 1
        inv = fields.pop("t_inv", self.now)
        done = fields.pop("t_done", inv + 1_000)
        self.now = max(self.now, done) + 1_000
        return inv, done

    def _records(self, f: str, proc: str, at: At, type_: str, fields: dict[str, Any]) -> None:
        inv, done = self._times(fields)
        if not at:
            self.events.append(Event(i=self._i, proc=proc, f=f, type=type_, t_inv=inv, t_done=done, **fields))
        for key, records in at.items():
            offsets = [offset for _, offset in records]
            self.events.append(
                Event(
                    i=self._i,
                    proc=proc,
                    f=f,
                    type=type_,
                    key=key,
                    value=[value for value, _ in records],
                    offset=None if -1 in offsets else offsets,
                    t_inv=inv,
                    t_done=None if type_ == "info" else done,
                    **fields,
                )
            )
