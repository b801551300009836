"""The events of a history: what clients asked of a log, when, and what they were told.

A history is one JSONL file per process. Every operation has one line per partition it touched, all with
the same (proc, i); before that, a line of type "invoke" says what a send is about to do, so that an
operation cut short by SIGKILL is known to be open.

    field   meaning
    i       number of the operation within its process
    proc    the process, renamed after every unknown outcome ("writer", "writer.1", ...)
    f       send, poll, seek, truncate, commit, fetch-committed, make, end, txn; others are ignored
    type    invoke; ok = done; fail = proven not done; info = unknown (timeouts, resets, crashes)
    key     "topic-partition", or "topic" where the partition is not known yet
    value   the values, each unique in the whole history and beginning with "topic/";
            Spark's are topic/app/batch/partition/attempt/seq, and attempts of one record are one record
    offset  the values' offsets; for seek, truncate, commit, fetch-committed and end: one offset, or null
    t_inv   when the operation was called; integer microseconds of one clock that all processes share
    t_done  when it returned; null: never
    final   of a poll: one of the last, by fresh readers, that together read everything there is; of a
            fetch-committed: where the group is after all
    txn     of a send or txn: the atomic unit ("app/batch") it belongs to
    count   of a txn: how many records it must have
    t_commit  of a send: when its publish was called, if that was later than t_inv
    epoch, broker, group, error   where they apply

f by f: `seek` forgets a reader's position in `key` (null: in all); `truncate` moved the log start to
`offset`; `commit` and `fetch-committed` are a `group`'s offset; `end` is the log end a process saw; `make`
says that `value` is about to be sent, and was made of the record at `offset` of `key`, which `group` reads.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

NO_OFFSET = -1


class Event(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line. See the module's docstring."""

    i: int
    proc: str
    f: str
    type: str
    key: str | None = None
    value: list[str] = []
    offset: list[int] | int | None = None
    t_inv: int = 0
    t_done: int | None = None
    final: bool = False
    txn: str | None = None
    count: int | None = None
    t_commit: int | None = None
    epoch: int | None = None
    broker: int | str | None = None
    group: str | None = None
    error: str | None = None


_decoder = msgspec.json.Decoder(Event)


def read_history(paths: Iterable[Path]) -> list[Event]:
    """All events of some files. A torn last line (the process was killed) is an open operation's: skipped."""
    events: list[Event] = []
    for path in paths:
        lines = path.read_bytes().split(b"\n")
        torn = lines.pop()
        del torn
        events += [_decoder.decode(line) for line in lines if line]
    return events


def completed(events: Iterable[Event]) -> list[Event]:
    """Without the invocations: those that never returned become info."""
    invoked: dict[tuple[str, int], list[Event]] = {}
    done: list[Event] = []
    for event in events:
        if event.type == "invoke":
            invoked.setdefault((event.proc, event.i), []).append(event)
        else:
            invoked.pop((event.proc, event.i), None)
            done.append(event)
    for opened in invoked.values():
        done += [msgspec.structs.replace(event, type="info", error="never returned") for event in opened]
    return done


def topic_of(key: str) -> str:
    """The topic of "topic-partition", or of "topic"."""
    topic, dash, partition = key.rpartition("-")
    return topic if dash and partition.isdigit() else key
