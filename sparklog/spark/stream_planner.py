"""Plans the micro-batches of one streaming query, on the driver.

Invariants: the end is never before the start, unless the log is shorter, which is data loss; planning
[start, end) again gives the same records; after a crash in the first micro-batch its start is taken from its
end (stream_offset.py). An idle call costs one existence check in the metadata log, since Spark calls about a
hundred times a second.
Concurrency: one process, one thread, called by Spark's runner.
Sources: KafkaMicroBatchStream.
"""

import functools
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, Concatenate, ParamSpec, TypeVar

from pyspark.sql.datasource import InputPartition

from sparklog.client import SparkLog, is_internal
from sparklog.clock import Clock
from sparklog.errors import DataLossError, InvalidRequestError, OffsetOutOfRangeError, SparklogError
from sparklog.metadata import Image
from sparklog.spark.input_partitions import plan_input_partitions
from sparklog.spark.options import SourceOptions
from sparklog.spark.ranges import (
    DataLossPolicy,
    OffsetResolver,
    backlog,
    check_in_log,
    limit_bytes,
    limit_records,
    log_ends,
    log_starts,
    ranges_between,
    retrying,
)
from sparklog.spark.roots import open_root
from sparklog.spark.stream_offset import Positions, StreamOffset

logger = logging.getLogger("sparklog.spark")
# Errors of a start: invalid options, or a log that has changed since the query began.
UNRESOLVED = (InvalidRequestError, OffsetOutOfRangeError, DataLossError)
P = ParamSpec("P")
T = TypeVar("T")


def _retried(
    method: Callable[Concatenate["StreamPlanner", P], T],
) -> Callable[Concatenate["StreamPlanner", P], T]:
    """Retry the whole method, since any part of a plan may access the storage."""

    @functools.wraps(method)
    def call(self: "StreamPlanner", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return retrying(self._options, self._clock, lambda: method(self, *args, **kwargs))

    return call


class StreamPlanner:
    """The driver's side of the streaming source."""

    def __init__(self, options: SourceOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._loss = DataLossPolicy(fail=options.fail_on_data_loss)
        self._last_trigger_ms: int | None = None
        self._frozen_end: dict[tuple[str, int], int] | None = None  # by topic id and partition
        self._recorded: dict[str, Any] | None = None
        # The arguments and commit of the last idle `latest_offset`: Spark polls with the same arguments.
        self._idle_at: tuple[dict[str, Any], bool, int] | None = None

    @_retried
    def initial_offset(self) -> dict[str, Any]:
        """Return the start of a new query.

        Spark also calls it after a first micro-batch was planned and did not finish. Then the planned end has
        the start (stream_offset.py). So an error is only raised by the next call, if that needs the start.
        """
        log = self._open()
        try:
            start = self._initial(log)
        except UNRESOLVED as error:
            logger.info("cannot resolve the query's start: %s", error)
            start = StreamOffset(cluster_id=log.cluster_id, topic_ids={}, positions={}, unresolved=True)
        return start.to_json()

    def _initial(self, log: SparkLog) -> StreamOffset:
        """Resolve the query's start; raise if a subscribed topic is missing, or as ranges.py does."""
        options, image = self._options, log.image
        tps = options.subscription.resolve(image, must_exist=True)
        resolver = OffsetResolver(log, image, tps, group_id=options.group_id, report=self._loss.report)
        positions = resolver.starting(options.starting)
        if options.starting.kind == "offsets":
            if options.fail_on_data_loss:
                check_in_log(positions, image, "startingOffsets")
            positions = self._loss.move_into_log(positions, image, "startingOffsets")
        return offset_at(image, positions, initial=positions)

    @_retried
    def freeze_end(self) -> None:
        """Read only up to the log's current end, for Trigger.AvailableNow.

        A topic that is deleted and created again later is not read: if that happened with each micro-batch,
        the query would never end.
        """
        image = self._open().image
        ends = log_ends(image, self._partitions(image))
        self._frozen_end = {(image.topics[t].topic_id, p): offset for (t, p), offset in ends.items()}

    @_retried
    def latest_offset(self, start_json: dict[str, Any] | None, *, limited: bool) -> dict[str, Any]:
        """Return the end of the next micro-batch, or `start_json` itself if none is due."""
        if start_json is None:
            start_json = self.initial_offset()
        log = self._open()
        if self._idle_at == (start_json, limited, log.image.commit) and not self._may_delay():
            return start_json
        start = self._parse(start_json, log)
        if start.unresolved:
            start = self._initial(log)
            start_json = start.to_json()
        self._record_progress(start_json, start)
        now = continue_with(
            start, self._loss.existing(start, log.image), self._partitions(log.image), log.image
        )
        self._report_dropped(now.dropped)
        positions = now.positions
        end = self._available(log, positions)
        begin = {**log_starts(log.image, list(end)), **positions}
        if limited:
            end = self._limited(begin, end, log.image)
        # A topic that was created again may have the same end offset as the old one: compare positions too.
        if end == start.positions == positions and now.kept == start.kept:
            self._idle_at = (start_json, limited, log.image.commit)
            return start_json
        # Not the old start: the end has the new topic's id, and an old topic's offset with it would be taken
        # for one of the new topic.
        initial = positions if start.is_initial else None
        return offset_at(log.image, end, initial=initial, kept=now.kept).to_json()

    @_retried
    def log_end(self, initial_json: dict[str, Any] | None) -> dict[str, Any]:
        """Return the log's end, as the end of a micro-batch whose start is unknown.

        Args:
            initial_json: the start, if the query is new.
        """
        log = self._open()
        initial = None
        if initial_json is not None:
            start = self._parse(initial_json, log)
            initial = None if start.unresolved else self._loss.existing(start, log.image)
        end = log_ends(log.image, self._partitions(log.image))
        self._last_trigger_ms = self._clock.monotonic_ms()
        return offset_at(log.image, end, initial=initial).to_json()

    @_retried
    def report_left_out(self, start_json: dict[str, Any], end_json: dict[str, Any]) -> None:
        """Report partitions of `start_json` that the end of `log_end` does not include.

        The micro-batch is already in the checkpoint, so the positions of these partitions are lost.
        """
        log = self._open()
        start, end = self._parse(start_json, log), self._parse(end_json, log)
        now = continue_with(start, self._loss.existing(start, log.image), end.positions, log.image)
        lost = {tp: offset for tp, offset in now.kept.items() if tp not in end.kept}
        self._report_dropped(lost, restart=True)

    @_retried
    def report_latest_offset(self) -> dict[str, Any] | None:
        """Return the end of the log as of the last refresh."""
        log = self._open(refresh=False)
        return offset_at(log.image, log_ends(log.image, self._partitions(log.image)), initial=None).to_json()

    @_retried
    def input_partitions(self, start_json: dict[str, Any], end_json: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks that read [start, end)."""
        log = self._open()
        image = log.image
        start, end = self._parse(start_json, log), self._parse(end_json, log)
        if end.initial is not None and (start.is_initial or start.unresolved):
            start = replace(
                start, positions=end.initial, topic_ids=end.topic_ids, initial=None, unresolved=False
            )
        elif start.unresolved:
            start = self._initial(log)
        wanted = self._loss.existing(end, image)
        positions = self._loss.existing(start, image)
        # New partitions are read from the beginning; those subscribed to again, from their kept position.
        positions = {**dict.fromkeys(wanted, 0), **still_kept(start, image), **positions}
        begin = self._loss.clamp_start(positions, wanted, image)
        ends = log_ends(image, list(wanted))
        for (topic, partition), offset in wanted.items():
            if offset > ends[topic, partition]:
                known = ends[topic, partition]
                self._loss.report(
                    f"{topic}-{partition}: offset {offset} was reached, and the log ends at {known}"
                )
        wanted = {tp: min(offset, ends[tp]) for tp, offset in wanted.items()}
        return plan_input_partitions(log, image, ranges_between(begin, wanted), self._options)

    def commit(self, end_json: dict[str, Any]) -> None:
        """Record the group's offsets: Spark has finished everything before this offset."""
        if self._options.group_id is not None:
            self._record_progress(end_json, StreamOffset.from_json(end_json))

    # -- parts -------------------------------------------------------------------------------------

    def _open(self, *, refresh: bool = True) -> SparkLog:
        options = self._options
        return open_root(
            options.root, create=False, refresh=refresh, storage=options.storage, rules=options.rules
        )

    def _partitions(self, image: Image) -> list[tuple[str, int]]:
        return self._options.subscription.resolve(image, must_exist=False)

    def _report_dropped(self, dropped: Positions, *, restart: bool = False) -> None:
        by_pattern = self._options.subscription.pattern is not None
        lost = drop_text(dropped, by_pattern=by_pattern, restart=restart)
        if lost is not None:
            self._loss.report(lost)

    def _available(self, log: SparkLog, positions: Positions) -> Positions:
        """Return the log's end of every partition to read, at least the query's position.

        A log that ends before that position is data loss. If the query may continue, it does so at the log's
        end, and reads the records that are appended from now on.
        """
        tps = self._partitions(log.image)
        log_end = log_ends(log.image, tps)
        end = dict(log_end)
        if self._frozen_end is not None:
            ids = {tp: (log.image.topics[tp[0]].topic_id, tp[1]) for tp in end}
            frozen = self._frozen_end
            end = {tp: min(offset, frozen[ids[tp]]) for tp, offset in end.items() if ids[tp] in frozen}
            # Partitions that were created after the freeze and already read from keep their position.
            end.update({tp: positions[tp] for tp in positions if tp not in end and tp in tps})
        for tp, position in positions.items():
            if tp in log_end and position > log_end[tp]:  # a position past the frozen end alone is no loss
                self._loss.report(
                    f"{tp[0]}-{tp[1]}: offset {position} was reached, and the log ends at {log_end[tp]}"
                )
                if tp in end:
                    end[tp] = log_end[tp]
            elif tp in end:
                end[tp] = max(end[tp], position)
        return end

    def _limited(self, begin: Positions, end: Positions, image: Image) -> Positions:
        options = self._options
        low = options.min_offsets_per_trigger
        if low is not None:
            now_ms, last_ms = self._clock.monotonic_ms(), self._last_trigger_ms
            # The first micro-batch after a start is never delayed, as in Kafka's connector: it is unknown for
            # how long its records have been waiting.
            early = last_ms is not None and now_ms - last_ms < options.max_trigger_delay_ms
            # AvailableNow reads up to a fixed end, so it does not wait for more.
            if early and sum(backlog(begin, end).values()) < low:
                if self._frozen_end is None:
                    return begin if not begin.keys() - end.keys() else {tp: begin[tp] for tp in end}
            else:
                self._last_trigger_ms = now_ms
        if options.max_offsets_per_trigger is not None:
            end = limit_records(begin, end, options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            end = limit_bytes(begin, end, image, options.max_bytes_per_trigger)
        return end

    def _may_delay(self) -> bool:
        return self._options.min_offsets_per_trigger is not None

    def _parse(self, document: dict[str, Any], log: SparkLog) -> StreamOffset:
        offset = StreamOffset.from_json(document)
        if offset.cluster_id != log.cluster_id:
            raise InvalidRequestError(
                "WRONG_ROOT",
                f"the checkpoint belongs to the root with cluster id {offset.cluster_id}, and "
                f"{log.url} is {log.cluster_id}",
                fix="set path to the root that the query was started on, or start with another checkpoint",
            )
        return offset

    def _record_progress(self, document: dict[str, Any], offset: StreamOffset) -> None:
        """Commit the group's offsets, once per position.

        The start of the next micro-batch is the end of a finished one. Spark calls commit() only when it
        plans a further one, so a stopped query would stay one batch behind.
        """
        group_id = self._options.group_id
        if group_id is None or document == self._recorded or offset.is_initial:
            return
        try:
            self._open(refresh=False).commit_offsets(group_id, offset.positions)
        except SparklogError as error:
            # Not an error: the query uses its checkpoint; the group's offsets only show its progress.
            logger.warning("progress of group %s was not recorded: %s", group_id, error)
        self._recorded = document


def offset_at(
    image: Image, positions: Positions, *, initial: Positions | None, kept: Positions | None = None
) -> StreamOffset:
    """Return the offset of these positions, with the ids of their topics in the image."""
    kept = kept or {}
    topics = {topic for topic, _ in (*positions, *kept)}
    return StreamOffset(
        cluster_id=image.cluster_id,
        topic_ids={t: image.topics[t].topic_id for t in topics if t in image.topics},
        positions=positions,
        initial=initial,
        kept=kept,
    )


# --- unsubscribed ------------------------------------------------------------------------------------
#
# Keeps the positions of topics that are no longer in a query's subscription.
#
# Kafka's connector reports such a drop as data loss, and forgets the positions; if the topic is subscribed to
# again, it is read from its beginning. Here the positions stay in the query's offsets while the topic exists,
# and reading continues from them.
#
# Invariants: a drop is reported once, with the first micro-batch without the topic.
# Not here: topics that were deleted (ranges.py).


_NAMED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """A query's positions by its current subscription.

    Fields:
        positions: of subscribed partitions, including those subscribed to again.
        kept: of partitions that it no longer reads.
        dropped: the part of `kept` that it has been reading until now.
    """

    positions: Positions
    kept: Positions
    dropped: Positions


def continue_with(
    start: StreamOffset, positions: Positions, subscribed: Collection[tuple[str, int]], image: Image
) -> Continued:
    """Split the positions of `start`; `positions` are those of existing topics."""
    subscribed = set(subscribed)
    known = {**still_kept(start, image), **positions}
    kept = {tp: offset for tp, offset in known.items() if tp not in subscribed}
    return Continued(
        positions={tp: offset for tp, offset in known.items() if tp in subscribed},
        kept=kept,
        dropped={tp: offset for tp, offset in kept.items() if tp in positions},
    )


def still_kept(offset: StreamOffset, image: Image) -> Positions:
    """Return the kept positions of topics that still exist, with the same id."""
    return {
        (topic, partition): position
        for (topic, partition), position in offset.kept.items()
        if topic in image.topics
        and image.topics[topic].topic_id == offset.topic_ids.get(topic)
        and partition < len(image.topics[topic].partitions)
    }


def drop_text(dropped: Positions, *, by_pattern: bool, restart: bool = False) -> str | None:
    """Return the loss to report; None if there is none. Internal topics never match a pattern.

    Args:
        restart: the micro-batch was planned without them, by a Spark that does not pass its start.
    """
    lost = [
        f"{topic}-{partition} at offset {offset}"
        for (topic, partition), offset in sorted(dropped.items())
        if not (by_pattern and is_internal(topic))
    ]
    if not lost:
        return None
    names = ", ".join(lost[:_NAMED]) + (f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else "")
    if restart:
        return (
            f"{names}: not among the topics and partitions to read when this micro-batch was planned. Later "
            "records are not read; with a new subscription they are read from the beginning, since a Spark "
            "before 4.2 cannot keep positions. To continue from these positions, subscribe to them again, "
            "and remove this micro-batch before it has run: the newest file in the directory offsets of the "
            "checkpoint"
        )
    return (
        f"{names}: no longer among the topics and partitions to read, so later records are not read. The "
        "positions are kept while the topic exists, in case it is subscribed to again"
    )
