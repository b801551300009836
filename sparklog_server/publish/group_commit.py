"""A group commit: parts of many requests appended, synced, and published by one metadata commit.

Steps, and what a crash after each leaves:
    1. decide on the parts by the image     nothing
    2. append the batches to the segment    bytes that nothing refers to
    3. sync                                 the same, durable
    4. publish one commit                   all of the parts, or none
Clients are answered only after that. The image may move between 1 and 4 (Spark writes to the same root): then
the plan decides again, and runs that are refused then stay unreferenced. If the segment was swept before the
commit, because nothing else in it was live, the parts are appended again, to a new one: producers wait a
little longer.

Invariants:
    - an outcome without an error means: data and commit are durable;
    - a failed part only fails later parts of its partition, which would look like out-of-order ones; a failed
      write (disk full) fails the rest of the parts. But if the storage refuses the directory of an isolated
      topic, only parts of this topic fail;
    - FatalStorageError (a failed fsync) and ROOT_RESTORED go to the caller, which stops the broker; nothing
      was acknowledged. A broker that was fenced leads nothing more: each part gets that error, and the broker
      joins again.
Not here: gathering group commits, threads (publisher.py).
Concurrency: one thread.
Sources: docs/design.md; Kafka UnifiedLog.append, ReplicaManager.appendToLocalLog.
"""

import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from sparklog.client import SparkLog
from sparklog.client.publish import share_accepted
from sparklog.errors import FatalStorageError, FencedError, RetriableError, SparklogError, StorageError
from sparklog.failpoints import failpoint
from sparklog.format.encode import EncodedBatches
from sparklog.log.config import TopicConfig
from sparklog.log.past_retention import INTERVAL_MS, MAX_REMEMBERED, RetentionNotice, is_past_retention
from sparklog.log.refused_topic import RefusedTopicError
from sparklog.log.writer import Append
from sparklog.metadata import (
    AcceptedDraft,
    Action,
    AppendExtents,
    Decided,
    DraftExtent,
    Extent,
    Image,
    Plan,
    PublishResult,
    SharedPlan,
    StageExtents,
    Topic,
    plan_append,
    plan_held,
    which_hold,
)
from sparklog_server.cluster.membership import Registration
from sparklog_server.publish.decisions import (
    accepted,
    comes_again,
    decide,
    group_missing,
    may_be_early,
    not_known,
    outcome_of,
    unmapped,
)
from sparklog_server.publish.first_batches import FailedFirstBatches
from sparklog_server.publish.parts import (
    NO_OFFSET,
    AppendPart,
    OvertakenError,
    PartOutcome,
    Run,
    make_runs,
)
from sparklog_server.publish.produced_batches import UncheckedPart

# --- commit plan -------------------------------------------------------------------------------------
#
# The metadata commit: which parts are appended, as of each image that the commit may follow.
#
# On an object store another broker, or a writer, may publish it for this broker: it gets the runs with all
# inputs of the decision, and decides by the same rule. On the runs that it left out this broker decides by
# the same image, so that clients get the same answer.
#
# Invariants: pure except for the state of its last call. The rule decides by the image that the commit
#     follows: concurrent writes of others count, and the present leaders of the partitions. After a run that
#     is left out, no later run of its partition is appended, except one with a fixed offset, which takes no
#     other run's place. The commit alone defines what was appended.
# Not here: decisions (decisions.py).
# Concurrency: one thread.
# Sources: docs/adr/0026, docs/adr/0029.


class Written(msgspec.Struct, frozen=True):
    """A run whose bytes are written; nothing refers to them yet."""

    run: Run
    encoded: EncodedBatches
    draft: DraftExtent
    is_past_retention: bool  # the next expiry removes it

    @property
    def accepted(self) -> AcceptedDraft:
        """Return the run with the conditions for its append."""
        return accepted(self.run.first, self.draft)

    @property
    def place(self) -> tuple[str, int]:
        """Return the segment and position of its bytes, unique to the run."""
        return self.draft.segment, self.draft.position


class CommitPlan:
    """The plan of a commit; called again for each image that the commit may follow."""

    def __init__(
        self,
        registration: Callable[[], Registration],
        decided_by: Image,
        parts: Sequence[AppendPart],
        written: list[Written],
    ) -> None:
        """`decided_by`: the image of the decision to write the runs."""
        self._current = registration
        self._decided_by = self._last = decided_by
        self._parts = parts
        self._written = written
        self._has_places = any(one.run.first.at_offset != NO_OFFSET for one in written)
        self.registration = registration()
        self.accepted = written
        self.refused: dict[int, PartOutcome] = {}

    def __call__(self, image: Image) -> Sequence[Action]:
        registration = self.registration = self._current()
        registration.validate(image)
        self._last = image
        self.accepted, self.refused = self._written, {}
        if image is not self._decided_by:
            self._decide_again(image)
        if self._has_places:
            self._leave_out_overtaken(image)
        if not self.accepted:
            return []
        # The parts of a run have one epoch: the newest by the image of that decision.
        return registration.act(image, *plan_held(image, [one.accepted for one in self.accepted]))

    def shared(self) -> SharedPlan | None:
        """Return the plan as a request to others; None with a fixed offset, which requests cannot express."""
        if self._has_places:
            return None
        return share_accepted(
            lambda: [one.accepted for one in self._written],
            node_id=self.registration.node_id,
            broker_epoch=self.registration.broker_epoch,
        )

    def settle(self, result: PublishResult) -> list[Extent | DraftExtent]:
        """Return the extents of `accepted`, published by this broker or another; drafts if staged."""
        taken: dict[tuple[str, int], Extent | DraftExtent] = {
            (extent.segment, extent.position): extent
            for action in result.actions
            if isinstance(action, AppendExtents | StageExtents)
            for extent in action.extents
        }
        if len(taken) == len(self._written):
            self.accepted, self.refused = self._written, {}
            return [taken[one.place] for one in self.accepted]
        image = result.planned_against()
        if image is None:
            self.refused = {}
        elif image is not self._last:
            self._decide_again(image)
        self.accepted = [one for one in self._written if one.place in taken]
        for one in self._written:
            for index in one.run.indices:
                if one.place in taken:
                    self.refused.pop(index, None)
                else:
                    self.refused.setdefault(index, _again(one.run))
        return [taken[one.place] for one in self.accepted]

    def _decide_again(self, image: Image) -> None:
        """Keep the runs that are still accepted; after a refused one, no more of its partition.

        Parts that the first decision refused have their answer, and take part in no later decision.
        """
        node_id = self.registration.node_id
        held = which_hold(image, [one.accepted for one in self._written], node_id=node_id)
        self.accepted = [
            one
            for one in (self._written[number] for number in held)
            if (unmapped(image, one.run.first) or group_missing(image, one.run.first)) is None
        ]
        self.refused = {}
        if len(self.accepted) == len(self._written):
            return
        kept = {one.place for one in self.accepted}
        indices = sorted(index for one in self._written for index in one.run.indices)
        _, decided = decide(image, [self._parts[index] for index in indices], node_id)
        by_index = dict(zip(indices, decided, strict=True))
        for one in self._written:
            if one.place not in kept:
                for index, part in zip(one.run.indices, one.run.parts, strict=True):
                    found = by_index[index]
                    is_answered = not found.holds and found.repeats is None
                    self.refused[index] = outcome_of(image, part, found) if is_answered else _again(one.run)

    def _leave_out_overtaken(self, image: Image) -> None:
        """Leave out runs with a fixed offset that would get another one."""
        ends: dict[tuple[str, int], int] = {}
        kept: list[Written] = []
        for one in self.accepted:
            first = one.run.first
            if first.transaction is None:  # staged records have no offset
                place = first.topic_id, first.partition
                end = ends.get(place)
                if end is None:
                    end = image.partition_of(*place).log_end_offset
                if first.at_offset not in (NO_OFFSET, end):
                    self.refused[one.run.indices[0]] = PartOutcome(
                        error=OvertakenError(
                            f"{first.topic}-{first.partition}", end_offset=end, at_offset=first.at_offset
                        )
                    )
                    continue
                ends[place] = end + one.run.record_count
            kept.append(one)
        self.accepted = kept

    def fail(self, outcomes: dict[int, PartOutcome], error: Exception) -> None:
        """Fail all runs: none was published."""
        for one in self._written:
            fail_run(outcomes, one.run, error)


def fail_run(outcomes: dict[int, PartOutcome], run: Run, error: Exception | None) -> None:
    """Fail all parts of the run with this error."""
    for index in run.indices:
        outcomes[index] = PartOutcome(error=error)


def _again(run: Run) -> PartOutcome:
    part = run.first
    return PartOutcome(
        error=RetriableError(
            "PUBLISH_CONTENDED",
            f"{part.topic}-{part.partition}: another writer uses producer id {part.producer_id} concurrently",
            fix="send the batch again; nothing of it was published",
        )
    )


# --- group committer ---------------------------------------------------------------------------------


OnAppended = Callable[[str, int, int, EncodedBatches], None]
# From an image, and a draft of each part, to the drafts to append and the broker's actions.
DraftPlan = Callable[[Image, Sequence[DraftExtent]], tuple[Sequence[DraftExtent], Sequence[Action]]]
_log = logging.getLogger("sparklog_server.publish")
_ATTEMPTS = 3  # of a group commit whose segment was swept
MAX_RUN_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTimes:
    """Durations of the last group commit, in milliseconds."""

    sync_ms: float = 0.0
    commit_ms: float = 0.0


class GroupCommitter:
    """See the module's docstring."""

    def __init__(
        self,
        log: SparkLog,
        registration: Callable[[], Registration],
        config_of: Callable[[Topic], TopicConfig],
        on_appended: OnAppended | None = None,
    ) -> None:
        self._log = log
        self._registration = registration
        self._config_of = config_of
        self.on_appended = on_appended
        self._retention_notice = RetentionNotice(log.clock, _log)
        self._refused_told_ms: dict[str, int] = {}  # by the prefix of the topic
        self.floors = FailedFirstBatches()
        self.times = CommitTimes()

    def write(self, parts: Sequence[AppendPart]) -> list[PartOutcome]:
        """Append and publish; one outcome per part.

        Raises:
            FatalStorageError, FencedError: stop the broker; nothing was acknowledged.
            Exception: anything else, for example a bug. It is unknown whether parts were published.
        """
        try:
            return self._write(parts)
        except Exception:
            for part in parts:  # they will be sent again; later parts must not take their place
                self.refuse(part)
            raise

    def append_and_publish(self, parts: Sequence[AppendPart], plan: DraftPlan) -> PublishResult:
        """Append the parts, sync, and publish one commit that is planned with their drafts.

        The parts need no leader: the plan appends what it wants of them, to any partition, as a writer that
        is no broker does. Its other actions are this broker's.

        Raises:
            FatalStorageError, FencedError: as `write`.
            SparklogError: nothing was published, or (RetriableError, StorageError) perhaps not.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            image = self._log.image
            drafts = []
            for part in parts:
                image.partition_of(part.topic_id, part.partition)  # or UnknownTopicError
                config = self._config_of(image.topic_by_id[part.topic_id])
                one = Append(part.topic_id, part.partition, part.encoded, config)
                lane = self._log.writer.lane_of(part.topic, part.topic_id, config)
                drafts += self._log.writer.append_together([one], lane=lane)
            try:
                self._log.writer.sync(drafts)
                return self._log.metadata.publish(self._acting(plan, drafts))
            except RetriableError as error:
                if error.code != "STAGING_EXPIRED" or attempt == _ATTEMPTS:
                    raise
            self._log.refresh(force=True)
        raise AssertionError("unreachable")

    def _acting(self, plan: DraftPlan, drafts: Sequence[DraftExtent]) -> Plan:
        def acting(image: Image) -> Sequence[Action]:
            registration = self._registration()
            registration.validate(image)
            appended, actions = plan(image, drafts)
            appending = [plan_append(image, appended)] if appended else []
            return [*appending, *registration.act(image, actions)]

        return acting

    def refuse(self, part: AppendPart | UncheckedPart) -> None:
        """Record a part that is not written and will be sent again: no later part may take its place."""
        self.floors.note(self._log.image, part, failed=True)

    def _write(self, parts: Sequence[AppendPart]) -> list[PartOutcome]:
        registration = self._registration()  # before the image, which must not be older than it
        image, parts, decided = self._decided(parts, registration)
        for _ in range(_ATTEMPTS):
            outcomes: dict[int, PartOutcome] = {}
            if not self._write_once(image, parts, decided, outcomes):
                break
            _log.info("the segment was swept before the commit was published: the parts are appended again")
            try:
                self._log.refresh(force=True)  # so that the next segment gets a newer creation version
            except SparklogError as error:
                _log.warning("the log cannot be read, so producers have to send again: %s", error)
                break
        for index, one in enumerate(decided):
            if index in outcomes:
                self.floors.note(image, parts[index], failed=outcomes[index].error is not None)
            elif comes_again(one):  # later parts must not take its place, either
                self.floors.note(image, parts[index], failed=True)
        return [_outcome(index, image, parts, decided, outcomes) for index in range(len(parts))]

    def _decided(
        self, sent: Sequence[AppendPart], registration: Registration
    ) -> tuple[Image, Sequence[AppendPart], list[Decided]]:
        """Return the decisions, with their image and parts.

        Use the newest image if a decision may be early: another broker may just have initialised the
        producer, or ended or begun a transaction. That decision is final.
        """
        image, node_id = self._log.image, registration.node_id
        parts, decided = decide(image, sent, node_id, self.floors)
        early = [may_be_early(image, *one) for one in zip(parts, decided, strict=True)]
        if not any(early):
            return image, parts, decided
        try:
            image = self._log.refresh(force=True)
        except SparklogError as error:
            unknown = not_known(error)
            decided = [unknown if is_early else one for is_early, one in zip(early, decided, strict=True)]
            return image, parts, decided
        return image, *decide(image, sent, node_id, self.floors)

    def _write_once(
        self,
        image: Image,
        parts: Sequence[AppendPart],
        decided: Sequence[Decided],
        outcomes: dict[int, PartOutcome],
    ) -> bool:
        """Steps 2 to 4. Returns: True if the segment may be gone and the parts must be appended again."""
        written = self._append(image, parts, decided, outcomes)
        appended = synced = time.perf_counter()
        expired = False
        if written:
            failpoint("broker.produce.written")
            try:
                durable = self._sync(written, outcomes)
                synced = time.perf_counter()
                if durable:
                    failpoint("broker.produce.synced")
                    self._publish(CommitPlan(self._registration, image, parts, durable), outcomes)
            except RetriableError as error:
                if error.code != "STAGING_EXPIRED":
                    raise
                expired = True
                for one in written:
                    fail_run(outcomes, one.run, error)
        done = time.perf_counter()
        self.times = CommitTimes(
            sync_ms=(synced - appended) * 1000,
            commit_ms=(done - synced) * 1000,
        )
        return expired

    def _append(
        self,
        image: Image,
        parts: Sequence[AppendPart],
        decided: Sequence[Decided],
        outcomes: dict[int, PartOutcome],
    ) -> list[Written]:
        """Write the batches; return the written ones, and fail the others."""
        now_ms = self._log.clock.now_ms()
        wanted = [index for index, one in enumerate(decided) if one.holds]
        runs = make_runs(parts, wanted, MAX_RUN_BYTES)
        appends = []
        for run in runs:
            config = self._config_of(image.topic_by_id[run.first.topic_id])
            appends.append(Append(run.first.topic_id, run.first.partition, run.encoded(), config))
        lanes = [
            self._log.writer.lane_of(run.first.topic, one.topic_id, one.config)
            for run, one in zip(runs, appends, strict=True)
        ]
        written = []
        for run, one, draft in zip(runs, appends, self._append_all(lanes, appends), strict=True):
            if isinstance(draft, SparklogError):
                self._tell_of_refused(draft)
                fail_run(outcomes, run, draft)
                continue
            late = is_past_retention(one.config, draft.max_timestamp_ms, now_ms)
            written.append(Written(run, one.encoded, _with_producer(draft, run.first), late))
        return written

    def _append_all(
        self, lanes: Sequence[str], appends: Sequence[Append]
    ) -> list[DraftExtent | SparklogError]:
        """Return the draft of each run, or its error. Stop after a failure, since later parts may depend on
        earlier ones; but parts of other topics do not depend on those of a refused one.
        """
        found: list[DraftExtent | SparklogError] = []
        ended: SparklogError | None = None
        for lane, group in itertools.groupby(zip(lanes, appends, strict=True), key=lambda one: one[0]):
            of_lane = [one for _, one in group]
            drafts: list[DraftExtent] = []
            error = ended or self._append_lane(lane, of_lane, drafts)
            found += drafts
            if error is not None:
                found += [error] * (len(of_lane) - len(drafts))
                ended = None if isinstance(error, RefusedTopicError) else error
        return found

    def _append_lane(
        self, lane: str, appends: Sequence[Append], drafts: list[DraftExtent]
    ) -> SparklogError | None:
        """Append in one write. If it fails, append one by one until one fails: some of them may fit."""
        writer = self._log.writer
        if len(appends) > 1:
            try:
                drafts += writer.append_together(appends, lane=lane)
            except FatalStorageError:
                raise
            except RefusedTopicError as error:
                return error
            except (StorageError, RetriableError) as error:
                _log.info("%d appends failed together, and are tried one by one: %s", len(appends), error)
            else:
                return None
        for one in appends:
            try:
                drafts += writer.append_together([one], lane=lane)
            except FatalStorageError:
                raise
            except (StorageError, RetriableError) as error:
                return error
        return None

    def _sync(self, written: list[Written], outcomes: dict[int, PartOutcome]) -> list[Written]:
        """Return the runs to publish, and fail the others. Raises: RetriableError STAGING_EXPIRED.

        A refused topic fails as a whole: a later run of a partition, in another segment, may be durable.
        """
        try:
            found = self._log.writer.sync_each([one.draft for one in written])
        except FatalStorageError:
            raise
        except StorageError as error:
            for one in written:
                fail_run(outcomes, one.run, error)
            return []
        refused = {one.draft.topic_id: error for one, error in zip(written, found, strict=True) if error}
        for one in written:
            if (refusal := refused.get(one.draft.topic_id)) is not None:
                self._tell_of_refused(refusal)
                fail_run(outcomes, one.run, refusal)
        return [one for one in written if one.draft.topic_id not in refused]

    def _tell_of_refused(self, error: SparklogError) -> None:
        """Log the error of a refused topic, once per interval: its producers send again and again."""
        if isinstance(error, RefusedTopicError):
            now_ms = self._log.clock.monotonic_ms()
            told_ms = self._refused_told_ms.get(error.prefix)
            if told_ms is None or now_ms - told_ms >= INTERVAL_MS:
                if len(self._refused_told_ms) >= MAX_REMEMBERED:
                    self._refused_told_ms.clear()
                self._refused_told_ms[error.prefix] = now_ms
                _log.warning("%s", error)

    def _publish(self, plan: CommitPlan, outcomes: dict[int, PartOutcome]) -> None:
        try:
            result = self._log.metadata.publish(plan, shared=plan.shared())
            extents = plan.settle(result)
            failpoint("broker.produce.committed")
        except FatalStorageError:
            raise
        except FencedError as error:
            if error.code == "ROOT_RESTORED":
                raise
            plan.fail(outcomes, error)
        except SparklogError as error:
            if error.code == "STAGING_EXPIRED":
                raise
            plan.fail(outcomes, error)
        else:
            outcomes.update(plan.refused)
            self._tell_of_past_retention(plan.accepted)
            image = self._log.image
            for one, extent in zip(plan.accepted, extents, strict=True):
                if isinstance(extent, DraftExtent):  # staged: no consumer reads it yet
                    _succeed(outcomes, one.run, None, image, place=one.place)
                    continue
                if self.on_appended is not None:
                    self.on_appended(extent.topic_id, extent.partition, extent.base_offset, one.encoded)
                _succeed(outcomes, one.run, extent.base_offset, image)

    def _tell_of_past_retention(self, written: Sequence[Written]) -> None:
        found: Counter[str] = Counter()
        for one in written:
            if one.is_past_retention:
                found[one.run.first.topic] += one.run.record_count
        self._retention_notice.note(found)


def _with_producer(draft: DraftExtent, part: AppendPart) -> DraftExtent:
    if part.producer_id < 0:
        return draft
    return msgspec.structs.replace(
        draft,
        producer_id=part.producer_id,
        producer_epoch=part.producer_epoch,
        base_sequence=part.base_sequence,
    )


def _succeed(
    outcomes: dict[int, PartOutcome],
    run: Run,
    base_offset: int | None,
    image: Image,
    place: tuple[str, int] | None = None,
) -> None:
    """`base_offset`: None for staged runs."""
    topic = image.topic_by_id.get(run.first.topic_id)
    log_start = -1 if topic is None else topic.partitions[run.first.partition].log_start_offset
    for index, part, skipped in zip(run.indices, run.parts, run.skipped, strict=True):
        outcomes[index] = PartOutcome(
            base_offset=NO_OFFSET if base_offset is None else base_offset + skipped,
            log_append_time_ms=part.log_append_time_ms,
            log_start_offset=log_start,
            place=place,
        )


def _outcome(
    index: int,
    image: Image,
    parts: Sequence[AppendPart],
    decided: Sequence[Decided],
    outcomes: dict[int, PartOutcome],
) -> PartOutcome:
    if index in outcomes:
        return outcomes[index]
    one = decided[index]
    if one.repeats is None:
        assert not one.holds, "what was written has an outcome"
        return outcome_of(image, parts[index], one)
    number, skipped = one.repeats
    original = _outcome(number, image, parts, decided, outcomes)
    if original.error is not None:
        return original
    is_staged = original.base_offset == NO_OFFSET
    return PartOutcome(
        base_offset=NO_OFFSET if is_staged else original.base_offset + skipped,
        log_append_time_ms=original.log_append_time_ms,
        log_start_offset=original.log_start_offset,
        duplicate=True,
    )
