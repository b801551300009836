"""What an image says of the brokers that serve a root.

Invariants: values only.
Not here: how they come to be (registry.py, controller.py, leading.py).
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


class RegisteredBroker(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A broker.

    Fields:
        broker_epoch: the number of the commit by which it joined: no two registrations have the same.
        is_fenced: it may publish nothing, and leads nothing.
        in_controlled_shutdown: it leads what it leads, and is to lead nothing more.
    """

    node_id: Int64
    broker_epoch: Int64
    incarnation_id: str
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
        leader_epoch: one higher with each change of the leader.
        adding, removing: those of the replicas that come, or go, with a reassignment that is not over.
    """

    replicas: tuple[Int64, ...] = ()
    leader: Int64 = NO_NODE
    leader_epoch: Int64 = 0
    adding: tuple[Int64, ...] = ()
    removing: tuple[Int64, ...] = ()


UNASSIGNED = PartitionLeadership()
