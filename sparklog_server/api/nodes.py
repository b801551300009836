"""Where clients reach the brokers of a root, and who leads a partition that was asked for at the wrong one.

A client reaches this broker as the listener says that it is connected to. Others have registered their
listeners in the order of their settings, which all brokers of a root should have alike: theirs in the same
place is told, or the first one where they have fewer.

Invariants: as of one image; fenced brokers are told only to those who ask for them.
Not here: who leads (cluster/leadership.py), the bytes (protocol/metadata_response.py).
Concurrency: event loop only.
"""

from collections.abc import Iterable, Iterator, Sequence

from sparklog.metadata import NO_NODE, BrokerListener, Image, PartitionState
from sparklog_server.api.services import Services
from sparklog_server.protocol.metadata_response import LeaderHint, Node
from sparklog_server.settings.network import AdvertisedListener

NOWHERE = "", -1


def nodes_of(services: Services, listener: AdvertisedListener, *, fenced: bool = False) -> list[Node]:
    """The brokers that clients may go to, by node id; or those that they may not go to."""
    image = services.root.image
    return [
        _registered(services, image, listener, node_id)
        for node_id, broker in sorted(image.brokers.items())
        if broker.is_fenced is fenced
    ]


def node_of(services: Services, listener: AdvertisedListener, node_id: int) -> Node | None:
    """Where a broker is, if it is registered, and not fenced."""
    image = services.root.image
    broker = image.brokers.get(node_id)
    if broker is None or broker.is_fenced:
        return None
    return _registered(services, image, listener, node_id)


def hint_of(services: Services, partition: PartitionState) -> LeaderHint:
    """Who leads a partition, for a client that has asked the wrong broker."""
    leader = services.leadership.leader_of(partition)
    return LeaderHint(leader.node_id, leader.epoch)


def nodes_of_leaders(
    services: Services, listener: AdvertisedListener, hints: Iterable[LeaderHint]
) -> Iterator[Node]:
    """Where they are, each once."""
    for node_id in dict.fromkeys(hint.node_id for hint in hints if hint.node_id != NO_NODE):
        node = node_of(services, listener, node_id)
        if node is not None:
            yield node


def _registered(services: Services, image: Image, listener: AdvertisedListener, node_id: int) -> Node:
    broker = image.brokers[node_id]
    rack = broker.rack or None
    if node_id == services.node_id:
        return Node(node_id, listener.host, listener.port, rack)
    own = image.brokers.get(services.node_id)
    place = 0 if own is None else _place(own.listeners, listener)
    return Node(node_id, *_address(broker.listeners, place), rack)


def _place(listeners: Sequence[BrokerListener], listener: AdvertisedListener) -> int:
    for place, one in enumerate(listeners):
        if (one.host, one.port) == (listener.host, listener.port):
            return place
    return 0


def _address(listeners: Sequence[BrokerListener], place: int) -> tuple[str, int]:
    if not listeners:
        return NOWHERE
    one = listeners[place] if place < len(listeners) else listeners[0]
    return one.host, one.port
