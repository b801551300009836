"""A round of maintenance: the steps that are due, in their order, within a budget.

Invariants: a step that fails does not keep the others from their turn, however it fails, unless it is unknown
    what is durable; nor does one partition keep others from theirs (uncleanable.py).
Not here: the steps (steps.py); who runs rounds, when, and one at a time (alone.py): `sparklog maintain`, a
    broker, a streaming sink.
Concurrency: any process and machine; one thread.
After a crash: what was published stays, the rest is due again.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from sparklog.clock import Clock
from sparklog.errors import FatalStorageError, SparklogError
from sparklog.maintenance.budget import NO_LIMIT, Budget, Meter, StoppedError
from sparklog.maintenance.round_step import Round, Step, StepReport, Terms
from sparklog.maintenance.run import Progress
from sparklog.maintenance.steps import STEPS
from sparklog.maintenance.uncleanable import Uncleanable, failure_of
from sparklog.metadata import NUMBER_COLUMNS, Image, MetadataLog

MAX_MESSAGE = 2_000  # of a step
_SIZE = NUMBER_COLUMNS.index("size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How much there is of a root: extents, and their stored bytes."""

    extents: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReport:
    """What a round did.

    Fields:
        steps: those that were looked at, in order.
        before, after: of the topics that were looked at.
        is_stopped: somebody asked for an end.
    """

    steps: tuple[StepReport, ...]
    before: Amount
    after: Amount
    duration_ms: int
    is_stopped: bool

    @property
    def has_failed(self) -> bool:
        """Did any step, or was anything left as it is that cannot be read?"""
        return any(one.outcome == "failed" or one.uncleanable for one in self.steps)

    @property
    def is_in_vain(self) -> bool:
        """Will the next one meet the same? Not if partitions are known that are to be left out."""
        return any(one.outcome == "failed" and not one.uncleanable for one in self.steps) or not (
            self.has_done_anything or self.uncleanable
        )

    @property
    def uncleanable(self) -> tuple[Uncleanable, ...]:
        """Each partition once."""
        return tuple({one.key: one for step in self.steps for one in step.uncleanable}.values())

    @property
    def has_done_anything(self) -> bool:
        """Was anything published?"""
        return any(one.outcome in {"done", "cut"} for one in self.steps)


def due_steps(
    image: Image, now_ms: int, terms: Terms | None = None, *, but: Collection[str] = ()
) -> Iterator[str]:
    """The names of the steps that are due, in order, one after the other is looked for; `but` some. Pure.

    Cost where nothing is due: a microsecond for each partition, and a hundred for each with a retention.
    """
    terms = terms or Terms()
    for step in STEPS:
        if step.name not in but and step.is_due(image, now_ms, terms):
            yield step.name


def maintain(
    metadata: MetadataLog,
    clock: Clock,
    terms: Terms | None = None,
    *,
    steps: Collection[str] = (),
    budget: Budget = NO_LIMIT,
    dry_run: bool = False,
    is_stopped: Callable[[], bool] = lambda: False,
    rest_ms: Callable[[float], None] | None = None,
    progress: Callable[[Progress], None] = lambda _progress: None,
) -> RoundReport:
    """One round.

    Args:
        steps: names of those to look at; empty: all.
        dry_run: only say what is due.
        is_stopped: asked between pieces of work, and within them: is the round to end?
        rest_ms: how to wait when the budget's rate asks for it; by default the clock's sleep.

    Raises:
        UnknownTopicError: TOPIC_MISSING. FatalStorageError: it is not known what is durable.
        StorageError, CorruptLogError: the metadata cannot be read.
    """
    began_ms = clock.monotonic_ms()
    terms = terms or Terms()
    image = metadata.refresh(force=True)
    for topic in terms.topics or ():
        image.topic(topic)
    meter = Meter(budget, clock, is_stopped=is_stopped, rest_ms=rest_ms)
    round_ = Round(
        metadata=metadata, clock=clock, terms=terms, meter=meter, dry_run=dry_run, progress=progress
    )
    before = _measured(image, terms)
    reports: list[StepReport] = []
    was_stopped = False
    for step in STEPS:
        if steps and step.name not in steps:
            continue
        step_began_ms = clock.monotonic_ms()
        report = _run_step(step, round_)
        if report is None:
            was_stopped = True
            break
        reports.append(replace(report, duration_ms=clock.monotonic_ms() - step_began_ms))
    if not dry_run:
        metadata.store.restore_reserve()
    return RoundReport(
        steps=tuple(reports),
        before=before,
        after=_measured(metadata.image, terms),
        duration_ms=clock.monotonic_ms() - began_ms,
        is_stopped=was_stopped or is_stopped(),
    )


def _run_step(step: Step, round_: Round) -> StepReport | None:
    """None: the round is to end, and the step has not begun."""
    try:
        round_.meter.check()
        return step.run(round_)
    except StoppedError:
        return None
    except FatalStorageError:
        raise
    except SparklogError as error:
        outcome = "busy" if error.code == "MAINTENANCE_RUNNING" else "failed"
        return StepReport(step=step.name, outcome=outcome, message=str(error)[:MAX_MESSAGE])
    except Exception as error:  # noqa: BLE001 - a bug in one step
        message = str(failure_of(f"step {step.name}", error))[:MAX_MESSAGE]
        return StepReport(step=step.name, outcome="failed", message=message)


def _measured(image: Image, terms: Terms) -> Amount:
    extents = size = 0
    for name, topic in image.topics.items():
        if terms.topics is None or name in terms.topics:
            for state in topic.partitions:
                extents += len(state.extents)
                size += sum(int(block.numbers[_SIZE].sum()) for _, block in state.extents.column_blocks())
    return Amount(extents=extents, bytes=size)
