"""A root that three brokers serve, as its commits say it: no broker runs."""

from collections.abc import Mapping, Sequence

from sparklog.client import SparkLog
from sparklog.metadata import (
    NO_COMMIT,
    NO_NODE,
    Action,
    BrokerListener,
    Image,
    PartitionLeadership,
    new_id,
    plan_assign_replicas,
    plan_begin_controlled_shutdown,
    plan_elect_controller,
    plan_elect_leaders,
    plan_fence_broker,
    plan_join_broker,
)

NODES = (1, 2, 3)


class ClusterRoot:
    """Each method is one commit, as a broker or the controller would publish it."""

    def __init__(
        self,
        log: SparkLog,
        nodes: Sequence[int] = NODES,
        *,
        controller: int = 1,
        ports: Mapping[int, int] | None = None,
        racks: Mapping[int, str] | None = None,
    ) -> None:
        self.log = log
        if log.image.commit == NO_COMMIT:
            log.alter_root(set={"num.partitions": "1"})  # broker 1 joins by commit 1
        for node in nodes:
            self.join(node, (ports or {}).get(node, 9090 + node), rack=(racks or {}).get(node, ""))
        self.elect(controller)

    @property
    def image(self) -> Image:
        return self.log.refresh(force=True)

    def publish(self, *actions: Action | None) -> int:
        """One commit; its number."""
        done = [action for action in actions if action is not None]
        return self.log.metadata.publish(lambda _: done).commit

    def join(self, node: int, port: int = 9092, *, rack: str = "") -> int:
        listener = BrokerListener(host="localhost", port=port)
        return self.log.metadata.publish(
            lambda image: [
                plan_join_broker(
                    image,
                    node,
                    incarnation_id=new_id(),
                    listeners=[listener],
                    rack=rack,
                )
            ]
        ).commit

    def elect(self, node: int) -> int:
        image = self.image
        return self.publish(plan_elect_controller(image, node, image.brokers[node].broker_epoch))

    def fence(self, node: int) -> int:
        """By the controller, or by itself if that is it, or there is none."""
        image = self.image
        is_own = image.controller.node_id in {node, NO_NODE}
        epoch = {} if is_own else {"controller_epoch": self.epoch}
        return self.publish(plan_fence_broker(image, node, image.brokers[node].broker_epoch, **epoch))

    def begin_shutdown(self, node: int) -> int:
        image = self.image
        return self.publish(plan_begin_controlled_shutdown(image, node, image.brokers[node].broker_epoch))

    def assign(self, topic: str, *replicas: PartitionLeadership | Sequence[int]) -> int:
        """To the partitions from 0 on."""
        image = self.image
        topic_id = image.topic(topic).topic_id
        wanted = {
            (topic_id, number): one
            if isinstance(one, PartitionLeadership)
            else PartitionLeadership(tuple(one))
            for number, one in enumerate(replicas)
        }
        return self.publish(plan_assign_replicas(image, wanted, controller_epoch=self.epoch))

    def lead(self, topic: str, *leaders: int) -> int:
        """The partitions from 0 on."""
        image = self.image
        topic_id = image.topic(topic).topic_id
        wanted = {(topic_id, number): leader for number, leader in enumerate(leaders)}
        return self.publish(plan_elect_leaders(image, wanted, controller_epoch=self.epoch))

    @property
    def epoch(self) -> int:
        """The controller's."""
        return self.log.image.controller.controller_epoch
