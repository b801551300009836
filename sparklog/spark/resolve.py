"""From what the user said (OffsetSpec) to offsets in a root, for the start and end of a query.

Rules follow Kafka's connector: offsets or timestamps given per partition must name all the
partitions that are read; a timestamp no record reaches is an error for a start (unless the strategy
is latest) and the log's end for an end. A group's position outside the log is a matter of failOnDataLoss.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from sparklog.client import SparkLog
from sparklog.errors import InvalidRequestError, OffsetOutOfRangeError
from sparklog.metadata import Image, PartitionState
from sparklog.spark.offset_spec import EARLIEST_OFFSET, LATEST_OFFSET, OffsetSpec
from sparklog.spark.stream_offset import Positions

TopicPartition = tuple[str, int]
_NAMED = 10


def partition_state(image: Image, tp: TopicPartition) -> PartitionState:
    """The state of a partition that is known to exist."""
    return image.topics[tp[0]].partitions[tp[1]]


def log_starts(image: Image, tps: Sequence[TopicPartition]) -> Positions:
    """First offset kept of each."""
    return {tp: partition_state(image, tp).log_start_offset for tp in tps}


def log_ends(image: Image, tps: Sequence[TopicPartition]) -> Positions:
    """Next offset to be assigned of each."""
    return {tp: partition_state(image, tp).log_end_offset for tp in tps}


class OffsetResolver:
    """Resolves all that a query says against one image: of a topic that is written to, what two looks find
    does not fit together.
    """

    def __init__(
        self,
        log: SparkLog,
        image: Image,
        tps: Sequence[TopicPartition],
        *,
        group_id: str | None,
        report: Callable[[str], None],
    ) -> None:
        """`tps`: those that are read. `report` is told of records that are gone, and raises if the
        query is to fail (data_loss.py).
        """
        self._log = log
        self._image = image
        self._tps = tps
        self._group_id = group_id or ""
        self._report = report
        self._starts, self._ends = log_starts(image, tps), log_ends(image, tps)

    def starting(self, spec: OffsetSpec) -> Positions:
        """Where a new query starts in each partition.

        Raises:
            InvalidRequestError: partitions named by the user and those read differ; no record is late enough.
            DataLossError: by `report`.
        """
        return self._resolve(spec, side="starting")

    def ending(self, spec: OffsetSpec) -> Positions:
        """Where a batch query ends (exclusive) in each partition; raises like `starting`."""
        return self._resolve(spec, side="ending")

    def _resolve(self, spec: OffsetSpec, *, side: Literal["starting", "ending"]) -> Positions:
        starts, ends = self._starts, self._ends
        if spec.kind == "earliest":
            return starts
        if spec.kind == "latest":
            return ends
        if spec.kind == "group":
            committed = self._log.committed_offsets(self._group_id, image=self._image)
            # A partition that the group has not committed counts as not read at all.
            return {
                tp: self._of_group(tp, committed[tp], side) if tp in committed else starts[tp]
                for tp in self._tps
            }
        given = {tp: spec.by_topic[tp[0]] for tp in self._tps if tp[0] in spec.by_topic} | spec.by_partition
        if spec.timestamp_ms is None:
            _check_partitions(set(given), set(self._tps), side)
            _check_topics(set(spec.by_topic), {topic for topic, _ in self._tps}, side)
        if spec.kind == "offsets":
            special = {EARLIEST_OFFSET: starts, LATEST_OFFSET: ends}
            return {tp: special[given[tp]][tp] if given[tp] < 0 else given[tp] for tp in self._tps}
        return {tp: self._at_time(spec, tp) for tp in self._tps}

    def _of_group(self, tp: TopicPartition, committed: int, side: Literal["starting", "ending"]) -> int:
        """The group's position, inside the log."""
        start, end = self._starts[tp], self._ends[tp]
        if start <= committed <= end:
            return committed
        where = f"{tp[0]}-{tp[1]}: group {self._group_id} has committed offset {committed}"
        if committed < start:
            self._report(f"{where}, and the log starts at {start}")
            return start
        self._report(f"{where}, and the log ends at {end}; was the topic deleted and created again?")
        # Such a position is of another log. That nothing of this one was read is the only safe guess.
        return start if side == "starting" else end

    def _at_time(self, spec: OffsetSpec, tp: TopicPartition) -> int:
        timestamp_ms = spec.by_partition.get(tp, spec.timestamp_ms)
        assert timestamp_ms is not None, "a timestamp for every partition was checked"
        found = self._log.offset_for_time(*tp, timestamp_ms, image=self._image)
        if found is not None:
            # It may be of a newer image, if files have gone meanwhile: those of here have expired then.
            return min(found, self._ends[tp])
        if spec.no_match_is_latest:
            return self._ends[tp]
        raise InvalidRequestError(
            "INVALID_OPTION",
            f"{tp[0]}-{tp[1]} has no record with a timestamp of {timestamp_ms} or later",
            fix="choose an earlier timestamp, or set startingOffsetsByTimestampStrategy=latest",
        )


def _check_partitions(given: set[TopicPartition], read: set[TopicPartition], side: str) -> None:
    if given == read:
        return
    missing, extra = sorted(read - given), sorted(given - read)
    problems = [
        f"{verb} {', '.join(f'{t}-{p}' for t, p in tps)}"
        for verb, tps in (("lacks", missing), ("names also", extra))
        if tps
    ]
    raise InvalidRequestError(
        "INVALID_OPTION",
        f"{side} offsets must name exactly the partitions that are read; it {' and '.join(problems)}",
        fix='name every partition (-2: earliest, -1: latest), or a whole topic: {"topic": "earliest"}',
    )


def _check_topics(given: set[str], read: set[str], side: str) -> None:
    if extra := sorted(given - read):
        raise InvalidRequestError(
            "INVALID_OPTION",
            f"{side} offsets name topics that are not read: {', '.join(extra)}",
            fix="correct the names, or subscribe to the topics",
        )


def check_in_log(positions: Positions, image: Image, option: str) -> None:
    """Offsets that the user named must lie inside the log.

    Raises:
        OffsetOutOfRangeError: one does not.
    """
    for tp, offset in positions.items():
        state = partition_state(image, tp)
        if not state.log_start_offset <= offset <= state.log_end_offset:
            raise OffsetOutOfRangeError(
                "OFFSET_OUT_OF_RANGE",
                f"{option}: {tp[0]}-{tp[1]} has no offset {offset}; "
                f"its log reaches from {state.log_start_offset} to {state.log_end_offset}",
                fix="choose an offset inside, or earliest or latest",
            )


def check_ends_after_start(begin: Positions, end: Positions, image: Image) -> None:
    """A batch query's range must not end before it starts; Kafka's connector refuses that too.

    An end that the log has left behind is lost data, and not looked at here.

    Raises:
        InvalidRequestError: it does, in some partition.
    """
    wrong = sorted(
        tp
        for tp, offset in begin.items()
        if offset > max(end[tp], partition_state(image, tp).log_start_offset)
    )
    if not wrong:
        return
    named = ", ".join(f"{t}-{p} from {begin[t, p]} to {end[t, p]}" for t, p in wrong[:_NAMED])
    more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
    raise InvalidRequestError(
        "INVALID_OPTION",
        f"found a start after the end, expected it at or before: {named}{more} (offsets, also where "
        "timestamps or a group were given)",
        fix="choose a later end, or an earlier start",
    )
