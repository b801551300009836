"""What came of a publish."""

from collections.abc import Callable
from dataclasses import dataclass, field

from sparklog.metadata.combining import Settled
from sparklog.metadata.model.actions import Action
from sparklog.metadata.model.image import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishResult:
    """What publish did: the actions as applied, in commit `commit`.

    Without actions nothing was published, and `commit` is the one that the plan looked at.

    Fields:
        planned_against: the image for which the plan, or its shared form, gave these actions; by it whoever
            publishes less than was asked for can be told why. Not always the one of the plan's last call,
            where others published for us; None if nobody can tell any more, or now. May read commits again.
    """

    commit: int
    actions: tuple[Action, ...]
    planned_against: Callable[[], Image | None] = field(compare=False, repr=False)


def result(commit: int, actions: tuple[Action, ...], planned_against: Image) -> PublishResult:
    return PublishResult(commit=commit, actions=actions, planned_against=lambda: planned_against)


def result_of(settled: Settled) -> PublishResult:
    return PublishResult(
        commit=settled.commit, actions=settled.actions, planned_against=settled.planned_against
    )
