"""Several brokers over a root, and a controller beside them that does what a test tells it."""

from collections.abc import Mapping, Sequence

from sparklog.client import SparkLog
from sparklog.clock import Clock
from sparklog.log.config import RootConfig
from sparklog.metadata import (
    NO_EPOCH,
    NO_NODE,
    Action,
    BrokerListener,
    Image,
    PartitionLeadership,
    new_id,
    plan_assign_replicas,
    plan_create_topic,
    plan_elect_controller,
    plan_elect_leaders,
    plan_fence_broker,
)
from sparklog.storage import Store
from sparklog_server.cluster.elections import Assigning, plan_entering
from sparklog_server.cluster.membership import Registration
from tests.support.roots import opened

CONTROLLER = 100


class SeveralBrokers:
    """See the module's docstring. Every partition may be led by everybody who has joined by then."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self.log = opened(store, clock)
        broker_epoch = self.join(CONTROLLER, self.log).broker_epoch
        self._publish(plan_elect_controller(self.log.image, CONTROLLER, broker_epoch))

    def join(
        self, node_id: int, log: SparkLog | None = None, *, port: int = 9092, rack: str = ""
    ) -> Registration:
        """The node's registration, made through its own log or that of the controller."""
        metadata = (log or self.log).metadata
        listeners = [BrokerListener(host=f"broker-{node_id}", port=port)]
        registration = Registration.join(metadata, node_id, listeners, rack=rack)
        self.log.refresh()
        return registration

    def assign(self, replicas: Sequence[int], topic: str = "orders", partition: int = 0) -> None:
        """Give a partition its replicas."""
        image = self.log.refresh()
        leader = image.partition(topic, partition).leadership.leader
        wanted = {(image.topic(topic).topic_id, partition): PartitionLeadership(tuple(replicas), leader)}
        self._publish(plan_assign_replicas(image, wanted, controller_epoch=self._epoch(image)))

    def lead(self, node_id: int, topic: str = "orders", partition: int = 0) -> int:
        """Make it the leader; NO_NODE: nobody. Returns the leader epoch."""
        image = self.log.refresh()
        replicas = image.partition(topic, partition).leadership.replicas
        if node_id not in (NO_NODE, *replicas):
            self.assign((*replicas, node_id), topic, partition)
            image = self.log.image
        wanted = {(image.topic(topic).topic_id, partition): node_id}
        self._publish(plan_elect_leaders(image, wanted, controller_epoch=self._epoch(image)))
        return self.log.image.partition(topic, partition).leadership.leader_epoch

    def fence(self, node_id: int) -> None:
        """End its registration."""
        image = self.log.refresh()
        broker_epoch = image.brokers[node_id].broker_epoch
        self._publish(plan_fence_broker(image, node_id, broker_epoch, controller_epoch=self._epoch(image)))

    def _publish(self, action: Action | None) -> None:
        assert action is not None, "a test asks for what is so already"
        self.log.metadata.publish(lambda _image: [action])

    @staticmethod
    def _epoch(image: Image) -> int:
        return image.controller.controller_epoch


def take_over(
    log: SparkLog, node_id: int = 1, listeners: Sequence[BrokerListener] = (), *, rack: str = ""
) -> Registration:
    """The registration of a broker that is controller, and leads every partition; all others are fenced.

    Topics that it makes are led by it, too (`create_led`).
    """

    def fence_others(image: Image) -> list[Action]:
        others = [one for one in image.brokers.values() if one.node_id != node_id]
        fences = (plan_fence_broker(image, one.node_id, one.broker_epoch) for one in others)
        return [one for one in fences if one is not None]

    log.metadata.publish(fence_others)
    before = log.image.brokers.get(node_id)
    assigning = Assigning(lambda image: RootConfig.parse(image.configs))
    registration = Registration.join(
        log.metadata,
        node_id,
        listeners,
        rack=rack,
        replaces=NO_EPOCH if before is None else before.broker_epoch,
        entering=lambda before, after, joined: plan_entering(before, after, joined, assigning),
        completing=assigning.assignments,
    )
    log.refresh()
    return registration


def create_led(
    log: SparkLog,
    registration: Registration,
    name: str,
    partitions: int = 1,
    configs: Mapping[str, str] | None = None,
) -> None:
    """A topic that the broker makes, and so leads, in its first leader epoch."""
    topic_id = new_id()

    def plan(image: Image) -> list[Action]:
        return [plan_create_topic(image, name, partitions, topic_id=topic_id, configs=configs or {})]

    log.metadata.publish(registration.fenced(plan))
