"""How many replicas partitions get, and who assigns them first.

Data is on shared storage, so a replica costs nothing: the factor says among how many brokers leading moves
when one stops. So topics have three if nobody says otherwise, where Kafka has one; as many as there are
brokers, if those are fewer.

Partitions that a broker makes are assigned in the same commit, in the name of the controller, so that whoever
asked for a topic finds it led. What others make (Spark, the command line) the controller assigns when it sees
it.

Invariants: pure. What is assigned in the controller's name applies in its epoch, or the commit is void.
Not here: which brokers (elections.py).
Concurrency: pure functions.
Sources: Kafka default.replication.factor, offsets.topic.replication.factor.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from sparklog.client import OFFSETS_TOPIC
from sparklog.log.root_config import RootConfig
from sparklog.metadata import (
    NO_NODE,
    Action,
    AddPartitions,
    AssignReplicas,
    CreateTopic,
    Image,
    apply_actions,
)
from sparklog_server.cluster.elections import plan_growth, plan_new_partitions

FACTORS = ("default.replication.factor", "offsets.topic.replication.factor")  # the settings that it asks for
_MAKING = (CreateTopic, AddPartitions, AssignReplicas)


class Assigning:
    """By the settings of the root, else of this broker."""

    def __init__(self, root_config: Callable[[Image], RootConfig]) -> None:
        self._root_config = root_config

    def factor_of(self, image: Image, topic: str) -> int:
        """How many replicas a topic's new partitions get, if there are as many brokers."""
        config = self._root_config(image)
        if topic == OFFSETS_TOPIC:
            return config.offsets_topic_replication_factor
        return config.default_replication_factor

    def assignments(self, image: Image, actions: Sequence[Action]) -> Sequence[Action]:
        """What assigns the partitions that these actions make; nothing, while there is no controller."""
        if image.controller.node_id == NO_NODE:
            return ()
        making = [action for action in actions if isinstance(action, _MAKING)]
        if not any(isinstance(action, CreateTopic | AddPartitions) for action in making):
            return ()  # what is there already is assigned anew
        grown = {
            one.topic_id: image.topic_by_id[one.topic_id] for one in making if isinstance(one, AddPartitions)
        }
        theirs = replace(image, topics={one.name: one for one in grown.values()}, topic_by_id=grown)
        after = apply_actions(theirs, making, commit=image.commit + 1, commit_uuid="planned")
        return self.plan(after, after.controller.controller_epoch)

    def plan(self, image: Image, controller_epoch: int) -> list[Action]:
        """What assigns all partitions that nobody has assigned; each commit begins with another broker."""
        return plan_new_partitions(
            image,
            lambda name: self.factor_of(image, name),
            controller_epoch=controller_epoch,
            start=image.commit,
        )

    def growth(self, image: Image, controller_epoch: int, newcomer: int) -> list[Action]:
        """What makes a broker that nobody knew a replica, where there were too few."""
        return plan_growth(
            image,
            newcomer,
            lambda name: self.factor_of(image, name),
            controller_epoch=controller_epoch,
            start=image.commit,
        )
