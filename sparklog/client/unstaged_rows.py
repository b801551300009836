"""Rows of a transaction that are not staged yet: they gather in an appender, and can be written once more.

Staging is a metadata commit; rows of several appends share one, or the end's. What was written before may
have been swept by then (STAGING_EXPIRED), so the rows are kept until they are staged.

Invariants: each row is in the drafts of the last `finish` once, with the sequence numbers that follow those
    of what was staged before.
Memory: the caller's Arrow data, `held_bytes` of it; whoever uses it stages in time.
Not here: the commit (transaction.py), which topics there are.
Concurrency: one thread.
"""

from collections.abc import Callable

import pyarrow as pa

from sparklog.client.appender import PartitionedAppender
from sparklog.client.sequencer import Sequencer
from sparklog.metadata import DraftExtent, Topic, is_internal

NewAppender = Callable[[Sequencer], PartitionedAppender]


class UnstagedRows:
    """See the module's docstring."""

    def __init__(self, new_appender: NewAppender, sequencer: Sequencer) -> None:
        """`new_appender`: for topics as they are when it is called."""
        self._new_appender = new_appender
        self._sequencer = sequencer
        self._sequences = dict(sequencer.next_sequence)  # as of what is staged
        self._given: list[tuple[str, pa.Table | pa.RecordBatch]] = []
        self._appender: PartitionedAppender | None = None
        self._drafts: list[DraftExtent] = []
        self.held_bytes = 0

    def __len__(self) -> int:
        """How often something was appended."""
        return len(self._given)

    def append(self, topic: str, rows: pa.Table | pa.RecordBatch) -> None:
        """Take rows of a topic that exists; whether rows may be there was asked before."""
        if not rows.num_rows:
            return
        self._given.append((topic, rows))
        self.held_bytes += int(rows.nbytes)
        self._write(topic, rows)

    def expect(self, topic: Topic) -> None:
        """Rows of this topic come next. It may have been made, by anybody, since the first rows came."""
        if self._appender is not None and not self._appender.topics.knows(topic):
            self._begin_anew()

    def _begin_anew(self) -> None:
        if self._appender is not None:
            self._drafts += self._appender.finish().drafts
            self._appender = None

    def finish(self) -> list[DraftExtent]:
        """Make all rows durable; the same again if nothing was appended since."""
        self._begin_anew()
        return self._drafts

    def write_again(self) -> None:
        """What was written is gone, or not to be used."""
        self._drop()
        self._sequencer.go_back(self._sequences)
        for topic, rows in self._given:
            self._write(topic, rows)

    def staged(self) -> None:
        """What `finish` has returned is staged, and no longer looked after here."""
        self._given.clear()
        self._drafts = []
        self._sequences = dict(self._sequencer.next_sequence)
        self.held_bytes = 0

    def clear(self) -> None:
        """Forget all rows."""
        self._drop()
        self.staged()

    def _write(self, topic: str, rows: pa.Table | pa.RecordBatch) -> None:
        if self._appender is None:
            self._appender = self._new_appender(self._sequencer)
        self._appender.add(rows, topic, state=is_internal(topic))

    def _drop(self) -> None:
        if self._appender is not None:
            self._appender.abort()
        self._appender = None
        self._drafts = []
