"""Which partitions are to have which replicas, as far as the root says it: proposals, and how far they are.

Invariants: pure functions of an image.
Not here: options and sentences (reassign.py), how replicas are spread (sparklog/client/placement.py), what
    the controller says to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sparklog.cli.reassignment_files import TopicPartition
from sparklog.errors import InvalidRequestError

if TYPE_CHECKING:
    from sparklog.client.cluster_view import PartitionView
    from sparklog.metadata import Image

Document = dict[str, object]


def of_topic(
    image: Image, topic: str, numbers: Sequence[int], replicas: tuple[int, ...]
) -> dict[TopicPartition, tuple[int, ...]]:
    """These replicas for partitions of a topic, or for all of them."""
    chosen = numbers or range(len(image.topic(topic).partitions))
    return {(topic, number): replicas for number in sorted(set(chosen))}


def propose(
    image: Image,
    topics: Sequence[str],
    brokers: Sequence[int],
    factor: int | None,
    *,
    racks: bool,
    start: int = 0,
) -> dict[TopicPartition, tuple[int, ...]]:
    """Replicas for all partitions of these topics, in turn over the brokers; as many as they have.

    Args:
        start: any number, to begin with another broker each time.

    Raises:
        InvalidRequestError: BROKER_MISSING; INVALID_OPTION, more replicas than brokers.
    """
    from sparklog.cli.brokers import require_broker
    from sparklog.client.placement import spread_replicas

    rack_of = {node_id: require_broker(image, node_id).rack if racks else "" for node_id in brokers}
    found: dict[TopicPartition, tuple[int, ...]] = {}
    for topic in topics:
        states = image.topic(topic).partitions
        wanted = factor or max(1, len(states[0].leadership.replicas))
        if wanted > len(rack_of):
            raise InvalidRequestError(
                "INVALID_OPTION",
                f"topic {topic!r}: found {len(rack_of)} brokers, expected {wanted} for as many replicas",
                fix="name more brokers, or give --replication-factor",
            )
        lists = spread_replicas(rack_of, len(states), wanted, start=start + len(found))
        found.update({(topic, number): one for number, one in enumerate(lists)})
    return found


def progress(image: Image, wanted: Mapping[TopicPartition, tuple[int, ...]]) -> list[Document]:
    """Of each partition that a file names: whether it is as the file says."""
    from sparklog.client.cluster_view import describe_partitions

    known = {(one.topic, one.partition): one for one in describe_partitions(image)}
    return [_progress(known.get(key), *key, replicas) for key, replicas in sorted(wanted.items())]


def _progress(one: PartitionView | None, topic: str, partition: int, wanted: tuple[int, ...]) -> Document:
    found: tuple[int, ...] | None = None
    if one is None:
        state = "missing"
    elif one.adding or one.removing:
        state, found = "in progress", one.replicas
    else:
        state, found = ("completed" if one.replicas == wanted else "different"), one.replicas
    return {
        "topic": topic,
        "partition": partition,
        "state": state,
        "replicas": None if found is None else list(found),
        "wanted": list(wanted),
    }


def reassigning(image: Image) -> list[PartitionView]:
    """Those that are begun, and not over."""
    from sparklog.client.cluster_view import describe_partitions

    return [one for one in describe_partitions(image) if one.adding or one.removing]
