"""The commit of a bundle: what of it is appended, as of each image that the commit may follow.

On an object store another broker, or a writer, may publish it for us: it is given the runs, with all that its
judgement takes, and decides by the same function as we do. What it left out is judged here by the image that
it had, so that clients are told what they would have been told.

Invariants: pure but for what it remembers of its last call. Whatever the image, nothing is appended that
    `judge` refuses by it: what others have written meanwhile counts, and who leads the partitions now. After
    a run that is left out, none of its partition is appended; but for one that may be at one offset only,
    which takes nobody's place. What was appended is what the commit says.
Not here: writing the data (bundle_writer.py), verdicts (bundle_plan.py).
Concurrency: one thread.
Sources: docs/adr/0026, docs/adr/0029.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from sparklog.client.publish import share_accepted
from sparklog.errors import RetriableError
from sparklog.format.encode import EncodedBatches
from sparklog.metadata import (
    NEVER_OPENS,
    NO_NUMBER,
    AcceptedDraft,
    Action,
    AppendExtents,
    DraftExtent,
    Extent,
    Image,
    PublishResult,
    SharedPlan,
    StageExtents,
    plan_append,
    plan_held,
    which_hold,
)
from sparklog_server.cluster.registration import Registration
from sparklog_server.publish.bundle_plan import Answer, Verdict, Write, judge
from sparklog_server.publish.parts import (
    NO_OFFSET,
    NO_TIMESTAMP_MS,
    AppendPart,
    OvertakenError,
    PartOutcome,
)
from sparklog_server.publish.runs import Run


class Written(msgspec.Struct, frozen=True):
    """A run whose bytes are durable; nothing refers to them yet."""

    run: Run
    encoded: EncodedBatches
    draft: DraftExtent
    is_past_retention: bool  # the next expiry removes it

    @property
    def accepted(self) -> AcceptedDraft:
        """With what must hold for it."""
        first, transaction = self.run.first, self.run.first.transaction
        is_stamped = first.log_append_time_ms != NO_TIMESTAMP_MS
        return AcceptedDraft(
            draft=self.draft,
            leader_epoch=first.leader_epoch,
            sent_timestamp_ms=None if is_stamped else first.encoded.max_timestamp_ms,
            transactional=transaction is not None,
            opens_ms=NEVER_OPENS if transaction is None else transaction.opens_ms,
            number=NO_NUMBER if transaction is None else transaction.number,
        )

    @property
    def place(self) -> tuple[str, int]:
        """Where its bytes are, which no other run's are."""
        return self.draft.segment, self.draft.position


class BundleCommit:
    """The plan; called again with each image that it has to follow."""

    def __init__(
        self,
        registration: Callable[[], Registration],
        judged: Image,
        parts: Sequence[AppendPart],
        written: list[Written],
    ) -> None:
        """`judged`: the image by which the runs were found to be written."""
        self._current = registration
        self._judged = self._last = judged
        self._parts = parts
        self._written = written
        self._stages = any(one.run.first.transaction is not None for one in written)
        self._has_places = any(one.run.first.at_offset != NO_OFFSET for one in written)
        self.registration = registration()
        self.accepted = written
        self.refused: dict[int, PartOutcome] = {}

    def __call__(self, image: Image) -> Sequence[Action]:
        registration = self.registration = self._current()
        registration.validate(image)
        self._last = image
        self.accepted, self.refused = self._written, {}
        if image is not self._judged:
            self._judge_again(image)
        if self._has_places:
            self._leave_out_overtaken(image)
        if not self.accepted:
            return []
        # Those of a run are of one epoch: by the image that found it to be written, they were of the newest.
        if self._stages:
            return registration.act(image, *plan_held(image, [one.accepted for one in self.accepted]))
        append = plan_append(image, [one.draft for one in self.accepted])
        return registration.act(image, [append], [one.run.first.leader_epoch for one in self.accepted])

    def shared(self) -> SharedPlan | None:
        """The same, as a request to others; None of what must be at an offset, which requests cannot say."""
        if self._has_places:
            return None
        return share_accepted(
            lambda: [one.accepted for one in self._written],
            node_id=self.registration.node_id,
            broker_epoch=self.registration.broker_epoch,
        )

    def settle(self, result: PublishResult) -> list[Extent | DraftExtent]:
        """The extents of `accepted`, now that this is published, perhaps by somebody else; drafts of what is
        staged.
        """
        extents: list[Extent | DraftExtent] = [
            extent
            for action in result.actions
            if isinstance(action, AppendExtents | StageExtents)
            for extent in action.extents
        ]
        if len(extents) == len(self._written):
            self.accepted, self.refused = self._written, {}
            if not self._stages:
                return extents
        taken = {(extent.segment, extent.position): extent for extent in extents}
        if len(extents) == len(self._written):
            return [taken[one.place] for one in self.accepted]
        image = result.planned_against()
        if image is None:
            self.refused = {}
        elif image is not self._last:
            self._judge_again(image)
        self.accepted = [one for one in self._written if one.place in taken]
        for one in self._written:
            for index in one.run.indices:
                if one.place in taken:
                    self.refused.pop(index, None)
                else:
                    self.refused.setdefault(index, _again(one.run))
        return [taken[one.place] for one in self.accepted]

    def _judge_again(self, image: Image) -> None:
        """Keep the runs that are still to be written; after one that is not, none of its partition.

        What was not written by the first judgement has its answer, and takes part in no later one.
        """
        indices = sorted(index for one in self._written for index in one.run.indices)
        parts = [self._parts[index] for index in indices]
        verdicts = dict(zip(indices, judge(image, parts, self.registration), strict=True))
        self.accepted, self.refused = self._holding(image, verdicts), {}
        held = {one.place for one in self.accepted}
        for one in self._written:
            if one.place not in held:
                for index in one.run.indices:
                    verdict = verdicts[index]
                    self.refused[index] = verdict.outcome if isinstance(verdict, Answer) else _again(one.run)

    def _leave_out_overtaken(self, image: Image) -> None:
        """What may be at one offset only, and would be at another."""
        ends: dict[tuple[str, int], int] = {}
        kept: list[Written] = []
        for one in self.accepted:
            first = one.run.first
            if first.transaction is None:  # what is staged has no offset
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

    def _holding(self, image: Image, verdicts: Mapping[int, Verdict]) -> list[Written]:
        """By the rule that whoever publishes it for us goes by; the verdicts say the same, but that a group's
        offsets need the group to be added.
        """
        accepted = [one.accepted for one in self._written]
        held = which_hold(image, accepted, node_id=self.registration.node_id)
        return [
            one
            for one in (self._written[index] for index in held)
            if one.run.first.transaction is None or isinstance(verdicts[one.run.indices[0]], Write)
        ]

    def fail(self, outcomes: dict[int, PartOutcome], error: Exception) -> None:
        """None of it was published."""
        for one in self._written:
            fail_run(outcomes, one.run, error)


def fail_run(outcomes: dict[int, PartOutcome], run: Run, error: Exception | None) -> None:
    """So it is told to whoever sent one of its parts."""
    for index in run.indices:
        outcomes[index] = PartOutcome(error=error)


def _again(run: Run) -> PartOutcome:
    part = run.first
    return PartOutcome(
        error=RetriableError(
            "PUBLISH_CONTENDED",
            f"{part.topic}-{part.partition}: another writer used producer id {part.producer_id} meanwhile",
            fix="send the batch again; nothing of it was published",
        )
    )
