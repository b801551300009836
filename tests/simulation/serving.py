"""Brokers of a simulated history: nodes, of which each has one process after the other.

A node's process opens the root, and lives (broker_life.py). One that is stopped hands over first, or not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sparklog.client import SparkLog
from sparklog.client.topic_plan import OFFSETS_TOPIC
from sparklog.errors import FatalStorageError, FencedError, RetriableError, StorageError
from sparklog.metadata import (
    Action,
    Image,
    new_id,
    plan_create_topic,
)
from tests.simulation.broker_life import Life, Node
from tests.simulation.coordinators import OFFSETS_PARTITIONS
from tests.simulation.setting import TOPICS
from tests.simulation.world import SimProcess

_STEPS_OF_A_REST = 10
_CONFIGS = {TOPICS[1]: {"sparklog.segment.isolation": "true"}}


@dataclass
class ServingBroker(Node):
    """See the module's docstring."""

    def live(self, process: SimProcess) -> None:
        self.lives += 1
        self.inbox = []
        try:
            log = self.opened(process)
            self._prepare(log)
        except (RetriableError, StorageError):
            return
        self.log, self.process, self.is_up = log, process, True
        life = Life(self, log, process)
        try:
            self._go_on(life, process)
        finally:
            self.is_up = False
            life.end()

    def _go_on(self, life: Life, process: SimProcess) -> None:
        while not self.setting.is_over:
            process.think_ms(self._think_ms())
            try:
                if life.go_on():
                    return
            except FatalStorageError:
                return
            except FencedError:
                self.setting.world.met["a role that was over already"] += 1
                life.lose_what_is_over()
            except (RetriableError, StorageError):
                continue

    def _think_ms(self) -> float:
        """It rests while all do, and is never gone for longer than they are."""
        rests_us = self.setting.idle_until_us - self.setting.world.now_us
        idle_ms = 0.0 if self.done_before is not None else max(0, rests_us) / 1000
        return idle_ms / _STEPS_OF_A_REST + self.setting.dice.choice((0, 1, 5, 20, 100))

    def _prepare(self, log: SparkLog) -> None:
        """What the first one finds missing."""

        def plan(image: Image) -> Sequence[Action]:
            partitions = {TOPICS[0]: self.setting.partitions}
            if self.setting.members:
                partitions |= {TOPICS[1]: self.setting.partitions, OFFSETS_TOPIC: OFFSETS_PARTITIONS}
            return [
                plan_create_topic(image, topic, count, topic_id=new_id(), configs=_CONFIGS.get(topic))
                for topic, count in partitions.items()
                if topic not in image.topics
            ]

        log.metadata.publish(plan)
