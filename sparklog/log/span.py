"""Where bytes of a partition lie: a range of a segment, and whose it is.

Invariants: immutable, picklable; `where` begins every error about the bytes.
"""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Consecutive batches of one partition in a segment; offsets are as stored.

    Args:
        first_offset: of the batch at `position`, where it is known (at the start of an extent).
    """

    topic: str
    partition: int
    segment: str
    position: int
    size: int
    first_offset: int | None = None

    @property
    def end_position(self) -> int:
        """The byte after the last."""
        return self.position + self.size

    @property
    def where(self) -> str:
        """For error messages, before @position."""
        return f"{self.topic}-{self.partition} in {self.segment}"
