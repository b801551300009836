"""Where a consumer group goes on after a reset: the plan of `groups reset-offsets`, and Kafka's CSV of it.

`plan_reset` is pure: it turns committed offsets, log starts and ends, and lookups by time into new offsets.
`propose_reset` collects these of a log. Nothing is written here.

Invariants: an offset that is given (`--to-offset`, `--shift-by`, a file) is kept within the log's start and
    end, with a note. A time after the last record means the log's end. The committed offset itself
    (`--to-current`) stays as it is, even if the log has moved on.
Not here: writing the offsets, and whether the group has members (SparkLog, group_coordinators.py).
Concurrency: `propose_reset` goes by one image; any thread.
Sources: Kafka's ConsumerGroupCommand, OffsetsUtils (KIP-122).
"""

import csv
import enum
import io
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sparklog.client.groups import MAX_OFFSET, MAX_PARTITION, TopicPartition
from sparklog.client.log import SparkLog
from sparklog.client.share_groups import share_offsets
from sparklog.errors import InvalidRequestError
from sparklog.metadata import Image


class Mode(enum.Enum):
    """The option of Kafka's tool that says where to."""

    EARLIEST = "--to-earliest"
    LATEST = "--to-latest"
    CURRENT = "--to-current"
    OFFSET = "--to-offset"
    SHIFT = "--shift-by"
    TIME = "--to-datetime"  # --by-duration is a time, too
    FILE = "--from-file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """Where to.

    Fields:
        value: OFFSET: the offset. SHIFT: by how many. TIME: milliseconds since 1970.
        offsets: FILE: one for each partition.
    """

    mode: Mode
    value: int = 0
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)


class Bounds(NamedTuple):
    """Log start offset and log end offset of a partition."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetPlan:
    """The new offsets of a group, and where they are not exactly what was asked for."""

    group: str
    offsets: Mapping[TopicPartition, int]
    notes: tuple[str, ...] = ()


# --- the plan ----------------------------------------------------------------------------------------


def plan_reset(
    group: str,
    reset: Reset,
    bounds: Mapping[TopicPartition, Bounds],
    *,
    committed: Mapping[TopicPartition, int],
    found_by_time: Mapping[TopicPartition, int | None],
) -> ResetPlan:
    """Return the new offset of each partition in `bounds`.

    Args:
        found_by_time: TIME: the first offset at or after the time; None: no record is that new.

    Raises:
        InvalidRequestError: INVALID_OPTION, SHIFT of a partition without a committed offset.
    """
    offsets: dict[TopicPartition, int] = {}
    notes = []
    for (topic, partition), (start, end) in sorted(bounds.items()):
        at, where = (topic, partition), f"{topic}-{partition}"
        match reset.mode:
            case Mode.EARLIEST:
                offsets[at] = start
                continue
            case Mode.LATEST:
                offsets[at] = end
                continue
            case Mode.CURRENT:
                if at not in committed:
                    notes.append(f"{where}: the group has committed no offset; taken is the log end {end}")
                offsets[at] = committed.get(at, end)
                continue
            case Mode.TIME:
                found = found_by_time[at]
                if found is None:
                    notes.append(f"{where}: no record is that new; taken is the log end {end}")
                offsets[at] = end if found is None else found
                continue
            case Mode.SHIFT:
                wanted = _committed_offset(group, at, committed) + reset.value
            case Mode.OFFSET:
                wanted = reset.value
            case Mode.FILE:
                wanted = reset.offsets[at]
        offsets[at] = min(max(wanted, start), end)
        if offsets[at] != wanted:
            what = "lower than the log start" if wanted < start else "higher than the log end"
            notes.append(f"{where}: offset {wanted} is {what}; taken is {offsets[at]}")
    return ResetPlan(group=group, offsets=offsets, notes=tuple(notes))


def _committed_offset(group: str, at: TopicPartition, committed: Mapping[TopicPartition, int]) -> int:
    if at not in committed:
        raise InvalidRequestError(
            "INVALID_OPTION",
            f"{at[0]}-{at[1]}: group {group!r} has committed no offset that could be shifted",
            fix="reset this partition in another way, such as --to-earliest, or name the others",
        )
    return committed[at]


def propose_reset(
    log: SparkLog,
    group: str,
    reset: Reset,
    partitions: Collection[TopicPartition] | None = None,
    *,
    image: Image | None = None,
) -> ResetPlan:
    """Return the plan as of `image`, or of now; nothing is written.

    Args:
        partitions: None: those that the group has committed for and that still exist; of FILE: all in it.

    Raises:
        UnknownTopicError: a partition that there is none of.
        InvalidRequestError: as `plan_reset`.
    """
    image = log.refresh(force=True) if image is None else image
    committed = current_offsets(log, group, image)
    if partitions is None:
        partitions = reset.offsets if reset.mode is Mode.FILE else _existing(image, committed)
    states = {at: image.partition(*at) for at in partitions}
    found_by_time = {
        at: log.offset_for_time(*at, reset.value, image=image)
        for at in (partitions if reset.mode is Mode.TIME else ())
    }
    bounds = {at: Bounds(state.log_start_offset, state.log_end_offset) for at, state in states.items()}
    return plan_reset(group, reset, bounds, committed=committed, found_by_time=found_by_time)


def current_offsets(log: SparkLog, group: str, image: Image) -> Mapping[TopicPartition, int]:
    """Return the offsets that a group has committed, or at which a share group starts."""
    if group in image.shares:
        return {at: one.start_offset for at, one in share_offsets(image, group).items()}
    return log.committed_offsets(group, image=image)


def _existing(image: Image, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
    return [
        (topic, partition)
        for topic, partition in partitions
        if (found := image.topics.get(topic)) is not None and partition < len(found.partitions)
    ]


# --- Kafka's file ------------------------------------------------------------------------------------
#
# Lines `topic,partition,offset`, or `group,topic,partition,offset` for several groups; no heading.


def plan_csv(plans: Collection[ResetPlan], *, with_group: bool) -> str:
    """The plans as Kafka's `--export` prints them, and `parse_plan_csv` reads them."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for plan in plans:
        for (topic, partition), offset in sorted(plan.offsets.items()):
            writer.writerow([*([plan.group] if with_group else []), topic, partition, offset])
    return text.getvalue()


def parse_plan_csv(text: str, groups: Collection[str]) -> dict[str, dict[TopicPartition, int]]:
    """Offsets by group and partition; a line without a group is for the only one of `groups`.

    Raises:
        InvalidRequestError: INVALID_PARTITION_FILE.
    """
    found: dict[str, dict[TopicPartition, int]] = {}
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff")))
    try:
        for row in reader:
            if not row:
                continue
            words = [word.strip() for word in row]
            if len(words) == 3 and len(groups) == 1:
                words = [*groups, *words]
            if len(words) != 4 or not all(word.isdecimal() for word in words[2:]):
                raise _invalid_file(reader.line_num, f"found {','.join(row)[:100]!r}")
            if not (_is_at_most(words[2], MAX_PARTITION) and _is_at_most(words[3], MAX_OFFSET)):
                raise _invalid_file(reader.line_num, "found too large a number")
            group, at = words[0], (words[1], int(words[2]))
            if at in found.setdefault(group, {}):
                raise _invalid_file(reader.line_num, f"found {at[0]}-{at[1]} of group {group!r} again")
            found[group][at] = int(words[3])
    except csv.Error as error:
        raise _invalid_file(reader.line_num, str(error)) from None
    missing = [group for group in groups if group not in found]
    if missing:
        raise _invalid_file(reader.line_num, f"found nothing for group {missing[0]!r}")
    return {group: found[group] for group in groups}


def _is_at_most(digits: str, most: int) -> bool:
    return len(digits) <= len(str(most)) and int(digits) <= most  # int() refuses 4,300 digits


def _invalid_file(line: int, problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        "INVALID_PARTITION_FILE",
        f"line {line}: {problem}, expected topic,partition,offset (of one group) or "
        "group,topic,partition,offset",
        fix="write the file as `sparklog groups reset-offsets --export` does",
    )
