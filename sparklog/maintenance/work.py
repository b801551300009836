"""What is to be done, as values: they can be pickled, and done by whoever has the store.

Invariants: a piece is consecutive extents of one partition as one image has them. Whether they still are
    there when the work is done is found out by who publishes (publish.py).
"""

from dataclasses import dataclass

from sparklog.log.config import TopicConfig
from sparklog.metadata import ExtentColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Extents of one partition that are to become one, or as few as segment.bytes allows.

    Fields:
        born: the birth of what replaces them, by the image that they were found in.
        topic: its name, for the names of files and for messages.
        config: the topic's settings, as of the choice.
        is_shared: its batches go to a segment that others share.
    """

    born: int
    topic: str
    topic_id: str
    partition: int
    config: TopicConfig
    extents: ExtentColumns
    is_shared: bool

    @property
    def size(self) -> int:
        """Stored bytes."""
        return int(self.extents.column("size").sum())

    @property
    def start_offset(self) -> int:
        return int(self.extents.base_offset[0])

    @property
    def end_offset(self) -> int:
        """Exclusive."""
        return int(self.extents.end_offset[-1])


@dataclass(frozen=True, slots=True)
class MergeWork:
    """Pieces that are done together, and published together: small ones share a segment."""

    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """Stored bytes."""
        return sum(piece.size for piece in self.pieces)

    @property
    def extent_count(self) -> int:
        """How many are to be replaced."""
        return sum(len(piece.extents) for piece in self.pieces)
