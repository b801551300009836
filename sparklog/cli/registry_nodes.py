"""An image as a registry of paths and values: what Kafka kept in ZooKeeper, under the same names.

    /admin/reassign_partitions                  reassignments that are not over; only while there are any
    /brokers/ids/N                              a broker that is registered and not fenced
    /brokers/fenced/N                           one that is fenced, and has not been unregistered (ours)
    /brokers/topics/T                           the replicas of its partitions
    /brokers/topics/T/partitions/P/state        who leads it, in which epoch, and who could
    /cluster/id                                 the root's
    /config/brokers/<default>                   the settings of the root, and those of all brokers
    /config/brokers/N                           a broker's own
    /config/topics/T                            a topic's overrides
    /controller, /controller_epoch              who controls the brokers, and how many have been elected

A value is a JSON document with Kafka's fields, and with ours beside them where we know more.

Invariants: pure; paths come in the order of their names, numbers among themselves by value.
Not here: where an image comes from (sparklog/metadata/past.py), how it is printed (metadata.py).
Sources: Kafka's ZkData: BrokerIdZNode, TopicZNode, TopicPartitionStateZNode, ControllerZNode,
    ReassignPartitionsZNode, ConfigEntityZNode, ClusterIdZNode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from sparklog.cli.near_names import did_you_mean
from sparklog.errors import InvalidRequestError

if TYPE_CHECKING:
    from sparklog.metadata import Image, RegisteredBroker, Topic

ALWAYS = (
    "/admin",
    "/brokers",
    "/brokers/fenced",
    "/brokers/ids",
    "/brokers/topics",
    "/cluster",
    "/config",
    "/config/brokers",
    "/config/topics",
)
DEFAULT_BROKER = "<default>"
_VERSION = 1
_BROKER_VERSION = 5  # of Kafka's document, the one with endpoints, rack and features


class Node(NamedTuple):
    """A path that has a value; the value is made when it is asked for."""

    path: str
    make: Callable[[], object]


def nodes(image: Image, path: str = "/") -> Iterator[Node]:
    """Those at and below a path, in order.

    Raises:
        InvalidRequestError: NODE_MISSING, there is no such path.
    """
    wanted = _normal(path)
    below = f"{wanted.rstrip('/')}/"
    is_known = wanted == "/" or wanted in ALWAYS
    for node in _all(image):
        if node.path == wanted or node.path.startswith(below):
            is_known = True
            yield node
    if not is_known:
        raise _missing(image, wanted)


def value_at(image: Image, path: str) -> object:
    """The value of one path, or the names below one that has none.

    Raises:
        InvalidRequestError: NODE_MISSING, there is no such path.
    """
    wanted = _normal(path)
    below = f"{wanted.rstrip('/')}/"
    names: dict[str, None] = {}
    for node in nodes(image, wanted):
        if node.path == wanted:
            return node.make()
        names[node.path.removeprefix(below).partition("/")[0]] = None
    return list(names) or [one.removeprefix(below) for one in ALWAYS if one.startswith(below)]


def _normal(path: str) -> str:
    words = [word for word in path.split("/") if word]
    return "/" + "/".join(words)


def _missing(image: Image, path: str) -> InvalidRequestError:
    known = [*ALWAYS, *(f"/brokers/topics/{name}" for name in image.topics)]
    return InvalidRequestError(
        "NODE_MISSING",
        f"commit {image.commit}: found no {path}{did_you_mean(path, known)}",
        fix="`sparklog metadata tree` shows what there is; name a path of it",
    )


def _all(image: Image) -> Iterator[Node]:
    yield from _reassignments(image)
    yield from _brokers(image)
    for name in sorted(image.topics):
        yield from _topic(image, image.topics[name])
    yield Node("/cluster/id", lambda: {"version": "1", "id": image.cluster_id})
    yield from _broker_configs(image.configs)
    for name in sorted(image.topics):
        topic = image.topics[name]
        if topic.configs:
            yield Node(f"/config/topics/{name}", lambda topic=topic: _config(topic.configs))  # type: ignore[misc]
    yield from _controller(image)


def _reassignments(image: Image) -> Iterator[Node]:
    def value() -> object:
        return {
            "version": _VERSION,
            "partitions": [
                {
                    "topic": name,
                    "partition": state.partition,
                    "replicas": [
                        one for one in state.leadership.replicas if one not in state.leadership.removing
                    ],
                    "adding_replicas": list(state.leadership.adding),
                    "removing_replicas": list(state.leadership.removing),
                }
                for name in sorted(image.topics)
                for state in image.topics[name].partitions
                if state.leadership.adding or state.leadership.removing
            ],
        }

    if any(
        state.leadership.adding or state.leadership.removing
        for topic in image.topics.values()
        for state in topic.partitions
    ):
        yield Node("/admin/reassign_partitions", value)


def _brokers(image: Image) -> Iterator[Node]:
    for directory, is_fenced in (("fenced", True), ("ids", False)):
        for node_id, one in sorted(image.brokers.items()):
            if one.is_fenced is is_fenced:
                yield Node(f"/brokers/{directory}/{node_id}", lambda one=one: _broker(one))  # type: ignore[misc]


def _endpoints(listeners: list[tuple[str, int]]) -> dict[str, object]:
    host, port = listeners[0] if listeners else (None, -1)
    return {
        "host": host,
        "port": port,
        "endpoints": [f"PLAINTEXT://{one}:{number}" for one, number in listeners],
    }


def _broker(one: RegisteredBroker) -> object:
    return {
        "version": _BROKER_VERSION,
        **_endpoints([(at.host, at.port) for at in one.listeners]),
        "rack": one.rack or None,
        "broker_epoch": one.broker_epoch,
        "incarnation_id": one.incarnation_id,
        "in_controlled_shutdown": one.in_controlled_shutdown,
    }


def _topic(image: Image, topic: Topic) -> Iterator[Node]:
    from sparklog.client.cluster_view import describe_partition

    def replicas() -> object:
        found = [state.leadership for state in topic.partitions]
        return {
            "version": 3,
            "topic_id": topic.topic_id,
            "partitions": {str(number): list(one.replicas) for number, one in enumerate(found)},
            "adding_replicas": {
                str(number): list(one.adding) for number, one in enumerate(found) if one.adding
            },
            "removing_replicas": {
                str(number): list(one.removing) for number, one in enumerate(found) if one.removing
            },
        }

    def state_of(partition: int) -> object:
        found = describe_partition(image, topic.name, topic.partitions[partition])
        return {
            "version": _VERSION,
            "controller_epoch": image.controller.controller_epoch,
            "leader": found.leader,
            "leader_epoch": found.leader_epoch,
            "isr": list(found.isr),
        }

    yield Node(f"/brokers/topics/{topic.name}", replicas)
    for number in range(len(topic.partitions)):
        path = f"/brokers/topics/{topic.name}/partitions/{number}/state"
        yield Node(path, lambda number=number: state_of(number))  # type: ignore[misc]


def _config(configs: object) -> object:
    return {"version": _VERSION, "config": configs}


def _broker_configs(configs: Mapping[str, str]) -> Iterator[Node]:
    from sparklog.log.broker_keys import broker_configs, is_broker_key, nodes_with_configs

    of_root = {key: value for key, value in configs.items() if not is_broker_key(key)}
    for node_id in nodes_with_configs(configs):
        own = broker_configs(configs, node_id)
        yield Node(f"/config/brokers/{node_id}", lambda own=own: _config(own))  # type: ignore[misc]
    of_all = of_root | broker_configs(configs, None)
    yield Node(f"/config/brokers/{DEFAULT_BROKER}", lambda: _config(of_all))


def _controller(image: Image) -> Iterator[Node]:
    from sparklog.client.cluster_view import describe_controller
    from sparklog.metadata import NO_NODE

    found = describe_controller(image)
    if found.node_id != NO_NODE:
        yield Node(
            "/controller",
            lambda: {
                "version": _VERSION,
                "brokerid": found.node_id,
                "broker_epoch": found.broker_epoch,
            },
        )
    yield Node("/controller_epoch", lambda: found.controller_epoch)
