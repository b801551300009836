"""Several brokers over one root, in this process.

Sessions are long, so that nobody is fenced by a busy machine; where one is to be found dead: MORTAL.
"""

from collections.abc import Callable
from typing import Any

import sparklog
from sparklog.metadata import NO_NODE, Image, PartitionLeadership
from tests.support.broker_process import until
from tests.support.running_broker import RunningBroker

QUICK = {
    "broker.heartbeat.interval.ms": "50",
    "broker.session.timeout.ms": "60000",
    "initial.broker.registration.timeout.ms": "0",
    "sparklog.metadata.poll.ms": "2",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "2",
}
MORTAL = {"broker_session_timeout_ms": "2000"}


class Brokers:
    """Brokers by node id; `start` is the fixture start_broker."""

    def __init__(self, root: str, start: Callable[..., RunningBroker]) -> None:
        self.root = root
        self._start = start
        self.by_id: dict[int, RunningBroker] = {}

    def start(self, *node_ids: int, **settings: str) -> None:
        """One after the other."""
        named = {key.replace("_", "."): value for key, value in settings.items()}
        for node_id in node_ids:
            self.by_id[node_id] = self._start({"node.id": str(node_id), **QUICK, **named}, root=self.root)

    def __getitem__(self, node_id: int) -> RunningBroker:
        return self.by_id[node_id]

    def image(self, node_id: int) -> Image:
        """As a broker sees it now."""
        return self.by_id[node_id].broker.root.image

    def create(self, topic: str, partitions: int) -> None:
        """By another process."""
        with sparklog.open(self.root) as log:
            log.create_topic(topic, partitions)

    def leaders(self, node_id: int, topic: str) -> list[int]:
        """As a broker sees them."""
        return [one.leader for one in self.leaderships(node_id, topic)]

    def leaderships(self, node_id: int, topic: str) -> list[PartitionLeadership]:
        """As a broker sees them."""
        found = self.image(node_id).topics.get(topic)
        return [] if found is None else [state.leadership for state in found.partitions]

    def until_led(self, node_id: int, topic: str, by: set[int]) -> None:
        """Until the broker sees that exactly these lead the topic's partitions."""
        until(lambda: set(self.leaders(node_id, topic)) == by, what=f"{topic} is led by {by}")

    def until_controller(self, node_id: int, controller: int) -> None:
        """Until the broker sees who is controller."""
        until(
            lambda: self.image(node_id).controller.node_id == controller, what=f"{controller} is controller"
        )

    def until_fenced(self, node_id: int, fenced: int) -> None:
        """Until the broker sees that another one is fenced."""
        until(lambda: self.image(node_id).brokers[fenced].is_fenced, what=f"{fenced} is fenced")

    def silence(self, node_id: int) -> None:
        """No more signs of life, as of a process that stands still; the rest goes on."""
        heart: Any = self.by_id[node_id].broker.membership.heart
        heart.stop()


LEADERLESS = {NO_NODE}
