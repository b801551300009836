"""Roots that several brokers serve: who is registered, who is controller, who leads."""

from collections.abc import Mapping, Sequence

from sparklog.metadata import (
    Action,
    BrokerListener,
    Image,
    PartitionLeadership,
    SetConfigs,
    apply_actions,
    empty_image,
    new_id,
    plan_act_as_broker,
    plan_assign_replicas,
    plan_create_topic,
    plan_elect_controller,
    plan_elect_leaders,
    plan_fence_broker,
    plan_join_broker,
)

TOPIC = "A" * 22
LISTENERS = (BrokerListener(host="localhost", port=9092),)
FOUNDING = SetConfigs(configs={"num.partitions": "1"})  # commit 0, so that broker 1 joins by commit 1


def applied(image: Image, *actions: Action | None) -> Image:
    """After one more commit."""
    done = [action for action in actions if action is not None]
    return apply_actions(image, done, commit=image.commit + 1, commit_uuid=new_id())


def joined(image: Image, *nodes: int, **fields: object) -> Image:
    """Each by a commit of its own."""
    for node in nodes:
        values: dict[str, object] = {"listeners": LISTENERS, **fields}
        action = plan_join_broker(image, node, incarnation_id=new_id(), **values)  # type: ignore[arg-type]
        image = applied(image, action)
    return image


def epoch_of(image: Image, node: int) -> int:
    """The broker epoch of a node's registration."""
    return image.brokers[node].broker_epoch


def elected(image: Image, node: int) -> Image:
    """The node is controller."""
    return applied(image, plan_elect_controller(image, node, epoch_of(image, node)))


def led(image: Image, leaders: Mapping[int, int] | Sequence[int], topic_id: str = TOPIC) -> Image:
    """Partitions of a topic have these leaders, by partition."""
    pairs = leaders.items() if isinstance(leaders, Mapping) else enumerate(leaders)
    wanted = {(topic_id, partition): leader for partition, leader in pairs}
    epoch = image.controller.controller_epoch
    return applied(image, plan_elect_leaders(image, wanted, controller_epoch=epoch))


def fenced(image: Image, node: int) -> Image:
    """By the controller."""
    epoch = image.controller.controller_epoch
    return applied(image, plan_fence_broker(image, node, epoch_of(image, node), controller_epoch=epoch))


def cluster(nodes: Sequence[int] = (1, 2, 3), partitions: int = 3, controller: int = 1) -> Image:
    """Every partition may be led by each of them, and none is."""
    image = applied(empty_image("C" * 22), FOUNDING)
    image = elected(joined(image, *nodes), controller)
    image = applied(image, plan_create_topic(image, "orders", partitions, topic_id=TOPIC))
    replicas = PartitionLeadership(tuple(nodes))
    assigned = {(TOPIC, partition): replicas for partition in range(partitions)}
    return applied(image, plan_assign_replicas(image, assigned, controller_epoch=1))


def leadership(image: Image, partition: int = 0) -> PartitionLeadership:
    """Who may lead a partition of the topic, and who does."""
    return image.topic("orders").partitions[partition].leadership


def as_broker(image: Image, node: int, actions: Sequence[Action], epochs: Sequence[int] = ()) -> list[Action]:
    """By the node's registration as of this image."""
    return list(
        plan_act_as_broker(
            image, actions, node_id=node, broker_epoch=epoch_of(image, node), leader_epochs=epochs
        )
    )
