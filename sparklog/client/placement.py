"""Which brokers are a new partition's replicas: in turn, over racks, so that leaders and load are spread.

Without racks, the first replicas of the partitions follow each other round the brokers, and the others of
each partition follow its first one at a distance that grows with every round: so what one broker leads is
spread over all others when it stops. With racks the brokers are put in an order in which racks take turns,
and no two replicas of a partition are in one rack before every rack has one.

Invariants: pure; each list has as many different brokers as were asked for. Each broker is the first of as
    many partitions as any other, or of one more.
Not here: whether lists that somebody names are legal, and who leads (sparklog_server).
Concurrency: pure functions.
Sources: Kafka AdminUtils.assignReplicasToBrokers (KIP-36).
"""

from collections.abc import Mapping


def spread_replicas(
    racks: Mapping[int, str], partitions: int, factor: int, *, start: int, first_partition: int = 0
) -> list[tuple[int, ...]]:
    """A list of brokers for each partition.

    Args:
        racks: of the brokers that may be chosen; "": it has none. Racks count only if each has one.
        partitions, first_partition: how many, and the number of the first: those before it are there already.
        factor: how many replicas each has: 1 to the number of brokers.
        start: any number, to begin with another broker each time.
    """
    assert 1 <= factor <= len(racks)
    has_racks = all(racks.values())
    count = len(set(racks.values())) if has_racks else 1
    order = alternating(racks) if has_racks else sorted(racks)
    return [
        _replicas(order, racks if has_racks else dict.fromkeys(racks, ""), count, number, factor, start)
        for number in range(first_partition, first_partition + partitions)
    ]


def alternating(racks: Mapping[int, str]) -> list[int]:
    """The brokers in an order in which racks take turns, as long as they have any."""
    by_rack: dict[str, list[int]] = {}
    for node_id in sorted(racks):
        by_rack.setdefault(racks[node_id], []).append(node_id)
    rows = [by_rack[rack] for rack in sorted(by_rack)]
    longest = max(map(len, rows))
    return [row[turn] for turn in range(longest) for row in rows if turn < len(row)]


def _replicas(
    order: list[int], racks: Mapping[int, str], rack_count: int, partition: int, factor: int, start: int
) -> tuple[int, ...]:
    brokers = len(order)
    first = (start + partition) % brokers
    shift = (start + partition // brokers) * rack_count
    chosen = [order[first]]
    taken = {racks[chosen[0]]}
    step = 0
    while len(chosen) < factor:
        place = (first + 1 + (shift + step) % (brokers - 1)) % brokers
        step += 1
        node_id = order[place]
        if node_id not in chosen and (racks[node_id] not in taken or len(taken) == rack_count):
            chosen.append(node_id)
            taken.add(racks[node_id])
    return tuple(chosen)
