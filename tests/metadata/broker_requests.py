"""Brokers on a store where racing is dear: each with a log of its own, and a registration."""

from collections.abc import Sequence

from sparklog.client.publish import BrokerAsks, encode_broker_payload, share_accepted
from sparklog.metadata import (
    AcceptedDraft,
    Action,
    AppendExtents,
    DraftExtent,
    Image,
    MetadataLog,
    MetadataSettings,
    PartitionLeadership,
    PublishResult,
    new_id,
    plan_accepted,
    plan_assign_replicas,
    plan_create_topic,
    plan_elect_controller,
    plan_elect_leaders,
    plan_fence_broker,
    plan_join_broker,
)
from sparklog.metadata.requests import Posted, RequestBox
from sparklog.storage import MemoryStore
from tests.metadata.cluster_roots import FOUNDING, LISTENERS, TOPIC, epoch_of
from tests.metadata.combining_publishers import SleepyClock


def draft(
    partition: int = 0, *, producer: tuple[int, int, int] | None = None, **fields: int | str
) -> DraftExtent:
    """Of a record; `producer` is (id, epoch, base sequence)."""
    producer_id, producer_epoch, base_sequence = producer or (-1, -1, -1)
    values: dict[str, int | str] = {
        "topic_id": TOPIC,
        "segment": f"segments/{new_id()}/0.log",
        "position": 0,
        "size": 100,
        "record_count": 1,
        "max_timestamp_ms": 1_000,
        **fields,
    }
    return DraftExtent(
        partition=partition,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        **values,  # type: ignore[arg-type]
    )


def accepted(*args: int, epoch: int = 1, **fields: object) -> AcceptedDraft:
    """Arguments as of `draft`."""
    one = draft(*args, **fields)  # type: ignore[arg-type]
    return AcceptedDraft(draft=one, leader_epoch=epoch, sent_timestamp_ms=one.max_timestamp_ms)


class Broker:
    """One of those that serve a root."""

    def __init__(self, store: MemoryStore, clock: SleepyClock, node_id: int) -> None:
        self.store, self.clock, self.node_id = store, clock, node_id
        settings = MetadataSettings(snapshot_bytes=1 << 40)
        self.log = MetadataLog.open(store, clock, create=True, settings=settings)
        self.broker_epoch = -1
        self.plans = 0

    def join(self) -> None:
        """Register, whoever else is."""

        def plan(image: Image) -> list[Action]:
            values = {"incarnation_id": new_id(), "listeners": LISTENERS}
            return [plan_join_broker(image, self.node_id, **values)]  # type: ignore[arg-type]

        self.log.publish(plan)
        self.broker_epoch = epoch_of(self.log.image, self.node_id)

    def publish(self, parts: Sequence[AcceptedDraft], *, crowded: bool = True) -> PublishResult:
        """What holds of them."""

        def plan(image: Image) -> list[Action]:
            self.plans += 1
            return plan_accepted(image, parts, node_id=self.node_id, broker_epoch=self.broker_epoch)

        if crowded:
            self.log.combiner.contention.note_costly(60_000)
        shared = share_accepted(lambda: parts, node_id=self.node_id, broker_epoch=self.broker_epoch)
        return self.log.publish(plan, shared=shared)

    def leave(self, parts: Sequence[AcceptedDraft]) -> Posted:
        """A request that it has posted, right before it stood still."""
        asks = BrokerAsks(accepted=tuple(parts), node_id=self.node_id, broker_epoch=self.broker_epoch)
        box = RequestBox(self.store, self.clock, self.log.cluster_id)
        posted = Posted(publisher=new_id(), sequence=0, base=self.log.image.commit, nonce=new_id())
        box.post(posted, box.encode(posted, encode_broker_payload(asks)))
        self.clock.advance_ms(1)
        return posted

    def lead(self, **leaders: int) -> None:
        """As a controller: `p0=2` has broker 2 lead partition 0."""
        wanted = {(TOPIC, int(name[1:])): leader for name, leader in leaders.items()}

        def plan(image: Image) -> list[Action]:
            epoch = image.controller.controller_epoch
            action = plan_elect_leaders(image, wanted, controller_epoch=epoch)
            return [] if action is None else [action]

        self.log.publish(plan)

    def fence(self, node_id: int) -> None:
        """As a controller."""

        def plan(image: Image) -> list[Action]:
            epochs = epoch_of(image, node_id), image.controller.controller_epoch
            action = plan_fence_broker(image, node_id, epochs[0], controller_epoch=epochs[1])
            return [] if action is None else [action]

        self.log.publish(plan)


def cluster(store: MemoryStore, clock: SleepyClock, *leaders: int) -> list[Broker]:
    """Brokers 1, 2 and 3, of which the third is controller; each partition of a topic has its leader."""
    brokers = [Broker(store, clock, node_id) for node_id in (1, 2, 3)]
    last = brokers[-1]
    last.log.publish(lambda _: [FOUNDING])
    for broker in brokers:
        broker.join()
    replicas = PartitionLeadership((1, 2, 3))
    wanted = {(TOPIC, number): replicas for number in range(len(leaders))}

    def assign(image: Image) -> list[Action]:
        action = plan_assign_replicas(image, wanted, controller_epoch=1)
        return [] if action is None else [action]

    last.log.publish(lambda image: _some(plan_elect_controller(image, 3, epoch_of(image, 3))))
    last.log.publish(lambda image: [plan_create_topic(image, "orders", len(leaders), topic_id=TOPIC)])
    last.log.publish(assign)
    last.lead(**{f"p{number}": leader for number, leader in enumerate(leaders)})
    for broker in brokers:
        broker.log.refresh(force=True)
    return brokers


def _some(action: Action | None) -> list[Action]:
    return [] if action is None else [action]


def taken(result: PublishResult) -> list[tuple[int, int]]:
    """(partition, base offset) of what was published."""
    return [
        (extent.partition, extent.base_offset)
        for action in result.actions
        if isinstance(action, AppendExtents)
        for extent in action.extents
    ]


def ends(log: MetadataLog) -> list[int]:
    """The log end offsets, as of now."""
    return [state.log_end_offset for state in log.refresh(force=True).topic("orders").partitions]
