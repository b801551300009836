"""Where clients are told that brokers are."""

import types
from collections.abc import Sequence
from typing import Any

from sparklog.metadata import BrokerListener, Image, empty_image, plan_join_broker
from sparklog_server.api.cluster import hint_of, node_of, nodes_of, nodes_of_leaders
from sparklog_server.cluster.leadership import Leadership
from sparklog_server.protocol.metadata_response import LeaderHint, Node
from sparklog_server.settings.network import AdvertisedListener
from tests.metadata.cluster_roots import FOUNDING, applied, cluster, elected, fenced, led

INSIDE, OUTSIDE = AdvertisedListener("inside-1", 9092), AdvertisedListener("outside-1", 19092)


def services(image: Image, node_id: int = 1, *, is_registered: bool = True) -> Any:
    root = types.SimpleNamespace(image=image)
    membership = types.SimpleNamespace(is_registered=is_registered)
    return types.SimpleNamespace(
        node_id=node_id, root=root, membership=membership, leadership=Leadership(node_id, root)
    )


def listeners(*addresses: tuple[str, int]) -> Sequence[BrokerListener]:
    return tuple(BrokerListener(host=host, port=port) for host, port in addresses)


def brokers() -> Image:
    """1 and 2 with two listeners, 3 with one, 4 with none."""
    image = applied(empty_image("C" * 22), FOUNDING)
    for node_id, rack, addresses in (
        (1, "a", [("inside-1", 9092), ("outside-1", 19092)]),
        (2, "b", [("inside-2", 9092), ("outside-2", 19092)]),
        (3, "", [("inside-3", 9092)]),
        (4, "a", []),
    ):
        joining = plan_join_broker(
            image,
            node_id,
            incarnation_id=f"{node_id}" * 21 + "A",
            listeners=listeners(*addresses),
            rack=rack,
        )
        image = applied(image, joining)
    return elected(image, 1)


def test_others_are_told_where_the_same_listener_is() -> None:
    asked = services(brokers())
    assert nodes_of(asked, OUTSIDE) == [
        Node(1, "outside-1", 19092, "a"),
        Node(2, "outside-2", 19092, "b"),
        Node(3, "inside-3", 9092, None),  # it has no other
        Node(4, "", -1, "a"),
    ]
    assert nodes_of(asked, INSIDE)[1] == Node(2, "inside-2", 9092, "b")
    # A client sees this broker as it is connected to it, whatever was registered.
    elsewhere = AdvertisedListener("elsewhere", 1)
    assert nodes_of(asked, elsewhere)[:2] == [Node(1, "elsewhere", 1, "a"), Node(2, "inside-2", 9092, "b")]


def test_fenced_brokers_are_told_to_those_who_ask() -> None:
    asked = services(fenced(brokers(), 2))
    assert [node.node_id for node in nodes_of(asked, INSIDE)] == [1, 3, 4]
    assert nodes_of(asked, INSIDE, fenced=True) == [Node(2, "inside-2", 9092, "b")]
    assert node_of(asked, INSIDE, 2) is None
    assert node_of(asked, INSIDE, 9) is None


def test_who_leads_is_told_with_where_it_is() -> None:
    image = led(cluster(), [2, 3, 2])
    asked = services(image)
    partitions = image.topic("orders").partitions
    hints = [hint_of(asked, partition) for partition in partitions]
    assert hints == [LeaderHint(2, 1), LeaderHint(3, 1), LeaderHint(2, 1)]
    assert [node.node_id for node in nodes_of_leaders(asked, INSIDE, hints)] == [2, 3]
    nobody = services(fenced(image, 2))
    hint = hint_of(nobody, nobody.root.image.topic("orders").partitions[0])
    assert hint == LeaderHint(-1, 2)
    assert list(nodes_of_leaders(nobody, INSIDE, [hint])) == []
