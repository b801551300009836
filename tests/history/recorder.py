"""Records the history of one process as JSONL; what the fields mean: events.py.

    with HistoryWriter(path, "writer-1") as history:
        sending = history.send({"t-0": ["t/writer-1/0", "t/writer-1/1"]})
        try:
            result = log.append(...)
        except RetriableError as error:
            sending.info(error)              # fail() only for errors that prove nothing was appended
        else:
            sending.ok({"t-0": (["t/writer-1/0", "t/writer-1/1"], [7, 8])})
        history.poll().ok({"t-0": (values, offsets)})

Invariants: the invocation is in the file (of the kernel: it survives SIGKILL) before the operation
    begins, its outcome after it ended; after an unknown outcome the process goes on under a new name.
Concurrency: one thread per writer.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from tests.history.events import Event

# key -> values and their offsets; None: written by an earlier attempt, and not known where
Parts = Mapping[str, tuple[Sequence[str], Sequence[int] | None]]
_encoder = msgspec.json.Encoder()


def monotonic_us() -> int:
    """A clock that all processes of a machine share."""
    return time.monotonic_ns() // 1000


class Operation:
    """An operation that has been called; end it with ok, fail or info."""

    def __init__(self, history: "History", f: str, fields: dict[str, Any], intended: list[Event]) -> None:
        self._history = history
        self._f = f
        self._fields = fields
        self._intended = intended
        self.i = history.next_i()
        self.proc = history.proc
        self.t_inv = history.now_us()

    def ok(self, parts: Parts | None = None, **fields: Any) -> None:
        """Done. `parts`: where the values are; for other operations give key=, offset=, ..."""
        if parts is None and not fields and self._intended:
            self._end("ok", self._intended)
        elif parts is None:
            self._end("ok", [self._event("ok", **fields)])
        else:
            events = [
                self._event(
                    "ok",
                    key=key,
                    value=list(values),
                    offset=None if offsets is None else list(offsets),
                    **fields,
                )
                for key, (values, offsets) in parts.items()
            ]
            self._end("ok", events or [self._event("ok", **fields)])

    def fail(self, error: object) -> None:
        """It is proven that nothing was done."""
        self._end("fail", self._intended or [self._event("fail")], error)

    def info(self, error: object) -> None:
        """It is unknown whether it was done, or still will be."""
        self._end("info", self._intended or [self._event("info")], error)
        self._history.retire()

    def _event(self, type_: str, **fields: Any) -> Event:
        return Event(
            i=self.i, proc=self.proc, f=self._f, type=type_, t_inv=self.t_inv, **{**self._fields, **fields}
        )

    def invoked(self, values: Mapping[str, Sequence[str]]) -> None:
        """Write down what is about to be sent."""
        self._intended = [self._event("invoke", key=key, value=list(sent)) for key, sent in values.items()]
        self._history.write(self._intended)

    def _end(self, type_: str, events: list[Event], error: object = None) -> None:
        text = None if error is None else str(error)[:500]
        t_done = self._history.now_us()
        self._history.write(
            [msgspec.structs.replace(one, type=type_, t_done=t_done, error=text) for one in events]
        )


class History:
    """One process's history; `write` says where the events go."""

    def __init__(
        self, name: str, write: Callable[[list[Event]], None], now_us: Callable[[], int] = monotonic_us
    ) -> None:
        self.name = name
        self.proc = name
        self.now_us = now_us
        self.write = write
        self._i = -1
        self._retired = 0

    def next_i(self) -> int:
        self._i += 1
        return self._i

    def retire(self) -> None:
        """Go on under a new name: what the old one was doing may still happen."""
        self._retired += 1
        self.proc = f"{self.name}.{self._retired}"

    def send(self, values: Mapping[str, Sequence[str]], **fields: Any) -> Operation:
        """About to append: key (or topic, if the partition is not known) -> values."""
        operation = Operation(self, "send", fields, [])
        operation.invoked(values)
        return operation

    def poll(self, *, final: bool = False) -> Operation:
        """About to read."""
        return Operation(self, "poll", {"final": final} if final else {}, [])

    def begin(self, f: str, **fields: Any) -> Operation:
        """About to do anything else: commit, fetch-committed, truncate, txn, end."""
        return Operation(self, f, fields, [])

    def commit(self, group: str, key: str, offset: int) -> Operation:
        """About to store a group's offset."""
        operation = Operation(self, "commit", {"group": group, "key": key, "offset": offset}, [])
        operation._intended = [operation._event("invoke")]
        self.write(operation._intended)
        return operation

    def seek(self, key: str | None = None) -> None:
        """The next poll (of `key`) may begin anywhere."""
        self.begin("seek", key=key).ok()


class HistoryWriter(History):
    """A history that goes to a file."""

    def __init__(self, path: Path | str, proc: str) -> None:
        self._file = Path(path).open("ab", buffering=0)  # noqa: SIM115 - open as long as the history
        super().__init__(proc, self._write)

    def _write(self, events: list[Event]) -> None:
        self._file.write(b"".join(_encoder.encode(event) + b"\n" for event in events))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
