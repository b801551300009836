"""A byte range: batches of one partition in one segment, and which of their records are wanted."""

import dataclasses

from sparklog.log.span import Span


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ByteRange:
    """Batches of one partition in one segment, and which of their records are wanted."""

    topic: str
    partition: int
    segment: str
    position: int
    size: int
    offset_delta: int  # stored offset + offset_delta = offset
    start_offset: int
    end_offset: int

    @property
    def span(self) -> Span:
        """The bytes, without the offsets."""
        return Span(
            topic=self.topic,
            partition=self.partition,
            segment=self.segment,
            position=self.position,
            size=self.size,
        )
