"""The commit of a bundle: what of it is appended, as of each image that the commit may follow.

Invariants: pure but for what it remembers of its last call. Whatever the image, nothing is appended that
    `judge` refuses by it: what others have written meanwhile counts, and who leads the partitions now. After
    a run that is left out, none of its partition is appended.
Not here: writing the data (bundle_writer.py), verdicts (bundle_plan.py).
Concurrency: one thread.
Sources: docs/adr/0026.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparklog.errors import RetriableError
from sparklog.format.encode import EncodedBatches
from sparklog.metadata import Action, DraftExtent, Image, plan_append
from sparklog_server.cluster.registration import Registration
from sparklog_server.publish.bundle_plan import Answer, Write, judge
from sparklog_server.publish.parts import AppendPart, PartOutcome
from sparklog_server.publish.runs import Run


@dataclass(frozen=True, slots=True)
class Written:
    """A run whose bytes are durable; nothing refers to them yet."""

    run: Run
    encoded: EncodedBatches
    draft: DraftExtent
    is_past_retention: bool  # the next expiry removes it


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
        self._judged = judged
        self._parts = parts
        self._written = written
        self.registration = registration()
        self.accepted = written
        self.refused: dict[int, PartOutcome] = {}

    def __call__(self, image: Image) -> Sequence[Action]:
        registration = self.registration = self._current()
        registration.validate(image)
        self.accepted, self.refused = self._written, {}
        if image is not self._judged:
            self._judge_again(image)
        if not self.accepted:
            return []
        append = plan_append(image, [one.draft for one in self.accepted])
        # Those of a run are of one epoch: by the image that found it to be written, they were of the newest.
        return registration.act(image, [append], [one.run.first.leader_epoch for one in self.accepted])

    def _judge_again(self, image: Image) -> None:
        """Keep the runs that are still to be written; after one that is not, none of its partition."""
        verdicts = judge(image, self._parts, self.registration)
        self.accepted = []
        broken: set[tuple[str, int]] = set()
        for one in self._written:
            key = (one.run.first.topic_id, one.run.first.partition)
            if key not in broken and all(isinstance(verdicts[index], Write) for index in one.run.indices):
                self.accepted.append(one)
                continue
            broken.add(key)
            for index in one.run.indices:
                verdict = verdicts[index]
                self.refused[index] = verdict.outcome if isinstance(verdict, Answer) else _again(one.run)

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
