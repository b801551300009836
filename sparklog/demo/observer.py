"""What the demo sees of the log and of Spark's checkpoint, from outside of both.

It reads with the embedded client: no Spark, no server, while Spark writes to the same root.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from sparklog.client import open_log

READ_RECORDS = 50_000


class Observer:
    """A reader of one root and one checkpoint."""

    def __init__(self, root: Path | str, checkpoint: Path) -> None:
        self._log = open_log(root, create=True)
        self._checkpoint = checkpoint

    def create_topic(self, topic: str, partitions: int) -> None:
        # The flights are of 2013: with the default retention they would be old on arrival.
        self._log.create_topic(topic, partitions=partitions, configs={"retention.ms": "-1"})

    def records(self, topic: str) -> int:
        """How many records are visible."""
        return sum(
            self._log.log_end_offset(topic, partition) - self._log.log_start_offset(topic, partition)
            for partition in self._partitions(topic)
        )

    def published(self, topic: str) -> int:
        """How many micro-batches the log has, of a query that writes rows to the topic with each of them.

        The log notes the last one's number, so that none is missed however rarely somebody looks.
        """
        image = self._log.refresh()
        found = image.topics[topic].writer_txns.values() if topic in image.topics else ()
        return max((state.version for state in found), default=-1) + 1

    def noted_by_spark(self) -> int:
        """How many micro-batches the query's checkpoint says are committed."""
        return sum(1 for path in (self._checkpoint / "commits").glob("*") if path.name.isdigit())

    def values(self, topic: str) -> pa.ChunkedArray:
        """All values of a topic."""
        chunks: list[pa.Array] = []
        for partition in self._partitions(topic):
            offset = self._log.log_start_offset(topic, partition)
            end_offset = self._log.log_end_offset(topic, partition)
            while offset < end_offset:
                table = self._log.read(topic, partition, offset, max_records=READ_RECORDS)
                chunks += table["value"].chunks
                offset = table["offset"][-1].as_py() + 1
        return pa.chunked_array(chunks, pa.binary())

    def lag(self, group: str, topic: str) -> int:
        """How many records of the topic a group has still to commit; all of a partition that it never has."""
        committed = self._log.committed_offsets(group)
        return sum(
            self._log.log_end_offset(topic, partition)
            - committed.get((topic, partition), self._log.log_start_offset(topic, partition))
            for partition in self._partitions(topic)
        )

    def _partitions(self, topic: str) -> range:
        return range(len(self._log.describe_topic(topic).partitions))
