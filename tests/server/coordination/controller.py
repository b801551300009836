"""A controller by hand: tests say who leads what, and when; brokers hear of it when they look."""

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

import sparklog
from sparklog.clock import ManualClock
from sparklog.metadata import (
    NO_NODE,
    Action,
    Image,
    PartitionLeadership,
    plan_assign_replicas,
    plan_elect_controller,
    plan_elect_leaders,
    plan_fence_broker,
)


class Controller:
    """Of the brokers that have joined a root; the first of them is said to be it."""

    def __init__(self, url: str, clock: ManualClock, topic: str) -> None:
        self.log = sparklog.open(url, clock=clock)
        self._topic = topic
        image = self.log.refresh()
        first = min(image.brokers)
        self._publish(plan_elect_controller(image, first, image.brokers[first].broker_epoch))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.log.close()

    def assign(self, leader: int, partitions: Iterable[int] | None = None) -> None:
        """All brokers may lead these partitions (None: all), and this one does."""
        image = self.log.refresh(force=True)
        chosen = self._partitions(image, partitions)
        replicas = PartitionLeadership(tuple(sorted(image.brokers)))
        self._publish(
            plan_assign_replicas(image, dict.fromkeys(chosen, replicas), controller_epoch=self._epoch(image))
        )
        self.elect(leader, partitions)

    def elect(self, leader: int, partitions: Iterable[int] | None = None) -> None:
        """A broker leads these partitions from now on; NO_NODE: nobody does."""
        image = self.log.refresh(force=True)
        leaders = dict.fromkeys(self._partitions(image, partitions), leader)
        self._publish(plan_elect_leaders(image, leaders, controller_epoch=self._epoch(image)))

    def bounce(self, leader: int, partitions: Iterable[int] | None = None) -> None:
        """Nobody leads them, and then this broker does again: two commits between two looks of the broker."""
        chosen = None if partitions is None else list(partitions)
        self.elect(NO_NODE, chosen)
        self.elect(leader, chosen)

    def fence(self, node_id: int) -> None:
        """A broker does not live."""
        image = self.log.refresh(force=True)
        epoch = image.brokers[node_id].broker_epoch
        self._publish(plan_fence_broker(image, node_id, epoch, controller_epoch=self._epoch(image)))

    def _partitions(self, image: Image, wanted: Iterable[int] | None) -> Sequence[tuple[str, int]]:
        topic = image.topic(self._topic)
        numbers = range(len(topic.partitions)) if wanted is None else wanted
        return [(topic.topic_id, number) for number in numbers]

    @staticmethod
    def _epoch(image: Image) -> int:
        return image.controller.controller_epoch

    def _publish(self, action: Action | None) -> None:
        if action is not None:
            self.log.metadata.publish(lambda _: [action])
