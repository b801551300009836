"""What a controller has to do, as of one image: everything that is due, in one commit.

Also the commit by which a broker becomes the controller says what is due then, so that after a failure, and
when the first broker starts, nothing waits for a second commit.

Invariants: pure; each part is planned against the image after the parts before it, and one that is refused is
    left out: it holds up no failover. Nothing is due twice: what has been applied is not planned again.
Not here: the parts (elections.py, reassignment.py), who is dead (observer.py), when to look (controller.py).
Concurrency: pure functions.
Sources: the controller of Kafka before KRaft: onControllerFailover, and what elections.py names.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from sparklog.errors import SparklogError
from sparklog.metadata import (
    NO_NODE,
    Action,
    ActionRefusedError,
    Image,
    apply_actions,
    plan_elect_controller,
)
from sparklog_server.cluster.assigning import Assigning
from sparklog_server.cluster.elections import (
    plan_failover,
    plan_hand_over,
    plan_takeover,
)
from sparklog_server.cluster.reassignment import plan_completions
from sparklog_server.cluster.selectors import usable_brokers

Known = tuple[int, int]  # a registration: node id, broker epoch
Step = Callable[[Image, int], Sequence[Action]]  # from a controller epoch, too
_log = logging.getLogger("sparklog_server.controller")


def tell_refused(error: Exception) -> None:
    """For who does not try again."""
    _log.warning("a part of what is due was refused, and is left out: %s", error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Duties:
    """What a plan needs to know besides the image.

    Fields:
        registration: of the broker that does it: node id, and broker epoch.
        dead: node ids of those to be taken for dead, each with the epoch of the registration that is.
        assigning: how many replicas new partitions get.
        newcomer: a broker that joins, and was never known before.
    """

    registration: Known
    assigning: Assigning
    dead: Collection[Known] = ()
    newcomer: int = NO_NODE

    def plan(self, image: Image, on_refused: Callable[[Exception], None] = tell_refused) -> list[Action]:
        """Everything that is due; nothing, if another broker is to do it.

        Args:
            on_refused: told of each part that is left out, as it was refused.
        """
        now = (image.controller.node_id, image.controller.broker_epoch)
        if not _stands(image, self.registration):
            return []
        planned = _Planned(image)
        if now != self.registration:
            if image.controller.node_id != NO_NODE and now not in self.dead:
                return []
            planned.add([plan_elect_controller(image, *self.registration)])
        planned.add_steps(self._steps(), on_refused)
        return planned.actions

    def _steps(self) -> Iterator[Step]:
        for node_id, broker_epoch in sorted(self.dead):
            yield lambda image, epoch, dead=(node_id, broker_epoch): (  # type: ignore[misc]
                plan_failover(image, dead[0], controller_epoch=epoch) if _stands(image, dead) else []
            )
        if self.newcomer != NO_NODE:
            yield lambda image, epoch: self.assigning.growth(image, epoch, self.newcomer)
        yield self.assigning.plan
        yield lambda image, epoch: plan_hand_over(image, controller_epoch=epoch)
        yield lambda image, epoch: plan_takeover(image, controller_epoch=epoch)
        yield lambda image, epoch: plan_completions(image, controller_epoch=epoch)


def plan_entering(before: Image, after: Image, joined: Known, assigning: Assigning) -> list[Action]:
    """What goes with the commit by which a broker joins; the images without it, and with it.

    Who finds nobody becomes the controller at once, and all is led with one commit. A broker that nobody knew
    becomes a replica in the controller's name, as only this commit knows that it is new.

    What nobody leads, as the registration that led it ends with this commit, is led again, in the
    controller's name, too. So no client sees it without a leader: aiokafka's producers give a batch up then
    that has waited for long. If the controller itself ends with the commit, whoever is elected next sees to
    it, in a moment: nobody here knows which of the others are alive.
    """
    node_id, _ = joined
    newcomer = NO_NODE if node_id in before.brokers else node_id
    if after.controller.node_id != NO_NODE:
        planned = _Planned(after)
        planned.add_steps(_steps_of_entering(newcomer, assigning), tell_refused)
        return planned.actions
    if usable_brokers(after) - {node_id}:
        return []  # one of them has itself elected, without being disturbed
    return Duties(registration=joined, assigning=assigning, newcomer=newcomer).plan(after)


def _steps_of_entering(newcomer: int, assigning: Assigning) -> Iterator[Step]:
    if newcomer != NO_NODE:
        yield lambda image, epoch: assigning.growth(image, epoch, newcomer)
    yield lambda image, epoch: plan_takeover(image, controller_epoch=epoch)


class _Planned:
    """Actions, and the image with them."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self.actions: list[Action] = []

    def add(self, actions: Sequence[Action]) -> None:
        """All of them, or none if one is refused."""
        if actions:
            after = self.image.commit + 1
            self.image = apply_actions(self.image, actions, commit=after, commit_uuid="planned")
            self.actions += actions

    def add_steps(self, steps: Iterable[Step], on_refused: Callable[[Exception], None]) -> None:
        """Those that are not refused, in the epoch of the controller."""
        epoch = self.image.controller.controller_epoch
        for step in steps:
            try:
                self.add(step(self.image, epoch))
            except (SparklogError, ActionRefusedError) as error:
                on_refused(error)


def _stands(image: Image, registration: Known) -> bool:
    node_id, broker_epoch = registration
    broker = image.brokers.get(node_id)
    return broker is not None and broker.broker_epoch == broker_epoch and not broker.is_fenced
