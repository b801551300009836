"""From what the user said (OffsetSpec) to offsets in a root, for the start and end of a query.

Rules follow Kafka's connector: offsets or timestamps given per partition must name all the
partitions that are read; a timestamp no record reaches is an error for a start (unless the strategy
is latest) and the log's end for an end.
"""

from collections.abc import Sequence

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


def resolve_starting(
    spec: OffsetSpec, log: SparkLog, tps: Sequence[TopicPartition], *, group_id: str | None
) -> Positions:
    """Where a new query starts in each partition.

    Raises:
        InvalidRequestError: partitions named by the user and those read differ; no record is late enough.
        OffsetOutOfRangeError: an offset given is outside the log.
    """
    return _resolve(spec, log, tps, side="starting", group_id=group_id)


def resolve_ending(
    spec: OffsetSpec, log: SparkLog, tps: Sequence[TopicPartition], *, group_id: str | None
) -> Positions:
    """Where a batch query ends (exclusive) in each partition; raises like `resolve_starting`."""
    return _resolve(spec, log, tps, side="ending", group_id=group_id)


def _resolve(
    spec: OffsetSpec, log: SparkLog, tps: Sequence[TopicPartition], *, side: str, group_id: str | None
) -> Positions:
    image = log.image
    starts, ends = log_starts(image, tps), log_ends(image, tps)
    if spec.kind == "earliest":
        return starts
    if spec.kind == "latest":
        return ends
    if spec.kind == "group":
        # A partition that the group has not committed counts as not read at all.
        committed = log.committed_offsets(group_id or "")
        return {tp: min(max(committed.get(tp, starts[tp]), starts[tp]), ends[tp]) for tp in tps}
    if spec.by_partition:
        _check_partitions(set(spec.by_partition), set(tps), side)
    if spec.kind == "offsets":
        special = {EARLIEST_OFFSET: starts, LATEST_OFFSET: ends}
        given = spec.by_partition
        return {tp: special[given[tp]][tp] if given[tp] < 0 else given[tp] for tp in tps}
    return {tp: _at_time(spec, log, tp, ends[tp]) for tp in tps}


def _at_time(spec: OffsetSpec, log: SparkLog, tp: TopicPartition, end: int) -> int:
    timestamp_ms = spec.by_partition.get(tp, spec.timestamp_ms)
    assert timestamp_ms is not None, "a timestamp for every partition was checked"
    found = log.offset_for_time(*tp, timestamp_ms)
    if found is not None:
        return found
    if spec.no_match_is_latest:
        return end
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
        fix="name every partition (-2: earliest, -1: latest)",
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
