"""Topics and partitions while commits are being applied to them: what they share is copied once.

Not here: what an action does (apply.py).
Concurrency: of one ImageBuilder.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sparklog.metadata.actions import Extent
from sparklog.metadata.image import PartitionState, ProducerState, WriterTxnState

# Applications of writer transactions that a topic remembers. Their names are the users': one that makes up
# a new one for each write must not fill the image.
MAX_WRITER_TXNS = 10_000


@dataclass(slots=True)
class PartitionDraft:
    """A partition, and what has been appended to it since."""

    state: PartitionState
    log_end_offset: int
    pending: list[Extent]
    producers: dict[int, ProducerState] | None = None

    def flushed(self) -> PartitionState:
        """With everything that was appended."""
        if self.pending:
            self.state = replace(
                self.state,
                log_end_offset=self.log_end_offset,
                extents=self.state.extents.appended(self.pending),
                producers=self.state.producers if self.producers is None else self.producers,
            )
            self.pending, self.producers = [], None
        return self.state


@dataclass(slots=True)
class TopicDraft:
    """A topic that is being changed."""

    topic_id: str
    name: str
    partitions: list[PartitionState]
    configs: dict[str, str]
    writer_txns: Mapping[str, WriterTxnState]
    own_writer_txns: dict[str, WriterTxnState] | None = None  # a copy, made with the first change

    def note(self, application: str, state: WriterTxnState) -> None:
        """As the most recent one; the least recent of too many is forgotten."""
        if self.own_writer_txns is None:
            self.writer_txns = self.own_writer_txns = dict(self.writer_txns)
        self.own_writer_txns.pop(application, None)
        self.own_writer_txns[application] = state
        if len(self.own_writer_txns) > MAX_WRITER_TXNS:
            del self.own_writer_txns[next(iter(self.own_writer_txns))]
