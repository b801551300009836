"""Sequence numbers of a producer's records: what makes a batch that is staged twice one batch.

Invariants: in each partition they count from 0, without gaps, in the order in which batches are written.
Not here: who gives out producer ids and epochs (metadata), what a sequence means there.
Concurrency: one thread.
Sources: FORMAT.md#record-batch; Kafka TransactionManager; KIP-890: each transaction begins with 0.
"""

import dataclasses
from collections.abc import Mapping

import msgspec

from sparklog.format.encode import EncodeOptions
from sparklog.metadata import SEQUENCES, DraftExtent

TopicPartition = tuple[str, int]  # topic id, partition


@dataclasses.dataclass(slots=True, kw_only=True)
class Sequencer:
    """A transactional producer in one epoch, and the next sequence of each partition."""

    producer_id: int
    producer_epoch: int
    next_sequence: dict[TopicPartition, int] = dataclasses.field(default_factory=dict)

    def following(self, topic_id: str, partition: int) -> int:
        """The sequence of the partition's next record."""
        return self.next_sequence.get((topic_id, partition), 0)

    def options(self, options: EncodeOptions, base_sequence: int) -> EncodeOptions:
        """To encode batches as this producer's, in a transaction."""
        return dataclasses.replace(
            options,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=base_sequence,
            is_transactional=True,
        )

    def written(self, draft: DraftExtent, extends: DraftExtent | None = None) -> DraftExtent:
        """The draft of batches that were written with the partition's next sequences, as this producer's."""
        place = draft.topic_id, draft.partition
        before = 0 if extends is None else extends.record_count
        sequence = self.following(*place)
        self.next_sequence[place] = (sequence + draft.record_count - before) % SEQUENCES
        return msgspec.structs.replace(
            draft,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=sequence if extends is None else extends.base_sequence,
        )

    def go_back(self, next_sequence: Mapping[TopicPartition, int]) -> None:
        """What was written since these were the next ones is going to be written again."""
        self.next_sequence = dict(next_sequence)
