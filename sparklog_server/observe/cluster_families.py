"""Brokers, the controller and leaders: what Kafka's questions about replicas are answered with here.

All replicas of a partition are the same bytes, on storage that all brokers share. So a replica is in sync if
its broker lives, none can be lost with a disk, and a broker that does not see the root has lost all at once.
Invariants: as Kafka has it, a broker counts the replicas that it has, how many of those it leads lack a
    follower, and, as controller, how many partitions nobody leads. So that sums over brokers are right, a
    partition is told of by one broker: by its leader, or by the controller if it has none.
Not here: what partitions hold, and groups (log_families.py).
Concurrency: pure functions of an observation, in the thread of a scrape.
Sources: Kafka ReplicaManager, KafkaController, kafka_exporter.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import Metric

from sparklog.metadata import NO_NODE, PartitionState, in_sync
from sparklog_server.observe.families import Labels, gauge, gauges, quantiles
from sparklog_server.observe.observation import Observation


@dataclass(frozen=True, slots=True)
class Told:
    """A partition that this broker tells of; `in_sync` counts its replicas that are, whatever is seen of the
    root.
    """

    topic: str
    state: PartitionState
    leader: int
    replicas: tuple[int, ...]
    in_sync: int

    @property
    def labels(self) -> Labels:
        return {"topic": self.topic, "partition": str(self.state.partition)}


@dataclass(frozen=True, slots=True)
class Standing:
    """A broker among others.

    Fields:
        replicas: how many it has.
        led: partitions that it leads.
        unled: partitions that nobody leads.
        not_preferred: partitions that another one leads than the first of their replicas.
        told: those that it leads; and those that nobody does, if it is controller.
    """

    replicas: int
    led: int
    unled: int
    not_preferred: int
    told: tuple[Told, ...]

    @property
    def under_replicated(self) -> int:
        """Of those that it leads: which lack one."""
        return sum(one.leader != NO_NODE and one.in_sync < len(one.replicas) for one in self.told)


def standing_of(seen: Observation) -> Standing:
    """As of the image that was seen."""
    image, node_id = seen.image, seen.node_id
    replicas = led = unled = not_preferred = 0
    told: list[Told] = []
    for name, topic in image.topics.items():
        for state in topic.partitions:
            leadership = state.leadership
            replicas += node_id in leadership.replicas
            is_unled = leadership.leader == NO_NODE
            led += leadership.leader == node_id
            unled += is_unled
            not_preferred += not is_unled and leadership.leader != leadership.replicas[0]
            if leadership.leader == node_id or (is_unled and seen.is_controller):
                live = len(in_sync(leadership, image))
                told.append(Told(name, state, leadership.leader, leadership.replicas, live))
    return Standing(replicas, led, unled, not_preferred, tuple(told))


def cluster_families(seen: Observation, standing: Standing) -> Iterator[Metric]:
    """Counts of brokers, partitions and leaders."""
    lost = 0 if seen.partitions_available else 1
    brokers = [one for one in seen.image.brokers.values() if not one.is_fenced]
    unled = standing.unled if seen.is_controller else 0
    yield gauge(
        "kafka_controller_kafkacontroller_activecontrollercount",
        "1 if this broker is the controller.",
        int(seen.is_controller),
    )
    yield gauge(
        "kafka_controller_kafkacontroller_offlinepartitionscount",
        "Partitions that cannot be written: on the controller those that nobody leads; on every broker those "
        "that it leads, when it does not serve or does not see its root.",
        len(standing.told) if lost else unled,
    )
    yield from _controller_families(seen, standing)
    yield gauge(
        "kafka_server_replicamanager_partitioncount",
        "Partitions of which this broker is a replica.",
        standing.replicas,
    )
    yield gauge("kafka_server_replicamanager_leadercount", "Partitions led by this broker.", standing.led)
    yield gauge(
        "kafka_server_replicamanager_underreplicatedpartitions",
        "Partitions led by this broker of which another replica is fenced; all of which it is one, when it "
        "does not serve or does not see its root.",
        standing.replicas if lost else standing.under_replicated,
    )
    yield gauge(
        "kafka_server_replicamanager_underminisrpartitioncount",
        "Partitions to which nobody can write through this broker: all, when it does not serve or does not "
        "see its root.",
        lost * standing.replicas,
    )
    yield gauge(
        "kafka_server_replicamanager_offlinereplicacount",
        "Partitions of which this broker is a replica, when it does not see its root.",
        0 if seen.root_visible else standing.replicas,
    )
    yield gauge(
        "kafka_log_logmanager_offlinelogdirectorycount",
        "1 if the root is not visible.",
        int(not seen.root_visible),
    )
    yield gauge(
        "kafka_brokers",
        "Brokers that are registered, and not fenced.",
        len(brokers),
    )


def _controller_families(seen: Observation, standing: Standing) -> Iterator[Metric]:
    """What every controller tells of the whole, and so does every broker here: all have the same image."""
    brokers = seen.image.brokers.values()
    fenced = sum(one.is_fenced for one in brokers)
    for name, text, value in (
        ("globaltopiccount", "Topics.", len(seen.image.topics)),
        ("globalpartitioncount", "Partitions.", seen.image.partition_count),
        ("activebrokercount", "Brokers that are registered, and not fenced.", len(brokers) - fenced),
        ("fencedbrokercount", "Brokers that are registered and fenced: stopped, or dead.", fenced),
        (
            "preferredreplicaimbalancecount",
            "Partitions that another broker leads than the first of their replicas.",
            standing.not_preferred,
        ),
    ):
        yield gauge(f"kafka_controller_kafkacontroller_{name}", text, value)
    yield from quantiles(
        "kafka_controller_controllerstats_leaderelectionrateandtimems",
        "Commits of this broker, as controller, that gave partitions leaders.",
        [({}, seen.metrics.elections)],
    )


def replica_families(seen: Observation, standing: Standing) -> Iterator[Metric]:
    """Leaders and replicas of each partition."""
    available, told = seen.partitions_available, standing.told

    def live(one: Told) -> int:
        return one.in_sync if available else 0

    yield gauges(
        "kafka_topic_partition_leader",
        "The broker that leads it; -1: none does.",
        ((one.labels, one.leader) for one in told),
    )
    yield gauges(
        "kafka_topic_partition_replicas",
        "Brokers that may lead and serve it.",
        ((one.labels, len(one.replicas)) for one in told),
    )
    yield gauges(
        "kafka_topic_partition_in_sync_replica",
        "Those of them that are not fenced; 0 if this broker does not serve, or does not see its root.",
        ((one.labels, live(one)) for one in told),
    )
    yield gauges(
        "kafka_topic_partition_under_replicated_partition",
        "1 if these are fewer.",
        ((one.labels, int(live(one) < len(one.replicas))) for one in told),
    )
