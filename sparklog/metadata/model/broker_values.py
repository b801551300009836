"""What an image says of brokers: the one that serves a root alone, or the several that serve it together.

Invariants: values only; an image has a BrokerRegistration, or RegisteredBrokers, never both.
Not here: how they come to be (brokers.py, registry.py, controller.py, leading.py).
Concurrency: immutable.
Sources: FORMAT.md#metadata-log; adr/0026; Kafka's BrokerRegistration, PartitionRegistration.
"""

import msgspec

from sparklog.metadata.model.numbers import Int64

NO_NODE = -1  # leads, controls
NO_EPOCH = -1


class BrokerListener(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where Kafka clients reach a broker."""

    host: str
    port: Int64


class BrokerRegistration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The broker that serves the root alone: the one that registered last. Any older one is fenced."""

    node_id: Int64
    broker_epoch: Int64
    incarnation_id: str
    listeners: tuple[BrokerListener, ...]


class RegisteredBroker(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One of several brokers.

    Fields:
        broker_epoch: the number of the commit by which it joined: no two registrations have the same.
        metadata_version: up to which version of the metadata documents it reads.
        is_fenced: it may publish nothing, and leads nothing.
        in_controlled_shutdown: it leads what it leads, and is to lead nothing more.
    """

    node_id: Int64
    broker_epoch: Int64
    incarnation_id: str
    metadata_version: Int64
    listeners: tuple[BrokerListener, ...] = ()
    rack: str = ""
    is_fenced: bool = False
    in_controlled_shutdown: bool = False


class Controller(msgspec.Struct, frozen=True, array_like=True):
    """Who is controller, by which registration, and how many have been elected so far."""

    node_id: Int64 = NO_NODE
    broker_epoch: Int64 = NO_EPOCH
    controller_epoch: Int64 = 0


NO_CONTROLLER = Controller()


class PartitionLeadership(msgspec.Struct, frozen=True, array_like=True):
    """Who may lead a partition, and who does.

    Fields:
        replicas: brokers by preference; none: nobody has assigned the partition yet.
        leader: one of them, or NO_NODE.
        leader_epoch: one higher with each change of the leader. 0 is the epoch of a broker that is alone.
        adding, removing: those of the replicas that come, or go, with a reassignment that is not over.
    """

    replicas: tuple[Int64, ...] = ()
    leader: Int64 = NO_NODE
    leader_epoch: Int64 = 0
    adding: tuple[Int64, ...] = ()
    removing: tuple[Int64, ...] = ()


UNASSIGNED = PartitionLeadership()
