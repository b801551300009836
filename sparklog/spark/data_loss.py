"""failOnDataLoss: what to do when records that a query should read are gone.

Either fail with what is missing, or warn and read on with the first record that is there.
"""

import logging

from sparklog.errors import DataLossError
from sparklog.metadata import Image
from sparklog.spark.resolve import partition_state
from sparklog.spark.stream_offset import Positions, StreamOffset

logger = logging.getLogger("sparklog.spark")


class DataLossPolicy:
    """Reports each loss once; raises when the query is to fail."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail
        self._reported: set[str] = set()

    def report(self, what: str) -> None:
        """Tell of one loss.

        Raises:
            DataLossError: failOnDataLoss is true.
        """
        if self._fail:
            raise DataLossError(
                "DATA_LOSS",
                what,
                fix="find out why (retention, a deleted or re-created topic, another root's checkpoint), "
                "and set failOnDataLoss=false to go on without them",
            )
        if what not in self._reported:
            self._reported.add(what)
            logger.warning("data loss ignored (failOnDataLoss=false): %s", what)

    def clamp_start(self, start: Positions, end: Positions, image: Image) -> Positions:
        """Starting positions moved into the log; every move is reported."""
        moved = {}
        for tp, offset in start.items():
            if tp not in end or tp[0] not in image.topics:
                continue
            low = partition_state(image, tp).log_start_offset
            if offset < low and offset < end[tp]:
                self.report(f"{tp[0]}-{tp[1]}: offsets {offset} to {low} are gone, the log starts at {low}")
            moved[tp] = max(offset, low)
        return moved

    def move_into_log(self, positions: Positions, image: Image, option: str) -> Positions:
        """Offsets that the user named, moved to the nearest in the log; every move is reported."""
        moved = {}
        for tp, offset in positions.items():
            state = partition_state(image, tp)
            low, high = state.log_start_offset, state.log_end_offset
            if not low <= offset <= high:
                side = f"starts at {low}" if offset < low else f"ends at {high}"
                self.report(f"{tp[0]}-{tp[1]}: {option} says {offset}, and the log {side}")
            moved[tp] = min(max(offset, low), high)
        return moved

    def existing(self, offset: StreamOffset, image: Image) -> Positions:
        """The positions of those topics that still exist, as the same topic; others are reported."""
        kept: Positions = {}
        for (topic, partition), position in offset.positions.items():
            current = image.topics.get(topic)
            if current is None:
                self.report(f"{topic}-{partition} was deleted after offset {position} was reached")
            elif current.topic_id != offset.topic_ids.get(topic, current.topic_id):
                self.report(f"{topic} was deleted and created again since the checkpoint was written")
            elif partition >= len(current.partitions):
                self.report(
                    f"{topic}-{partition} is gone; the topic has {len(current.partitions)} partitions"
                )
            else:
                kept[topic, partition] = position
        return kept
