"""A broker's registration, its right to publish: a commit made it, and another one ends it.

What the broker publishes says its node id and broker epoch, and under which leader epochs it has accepted
what it appends: a replay checks both (sparklog/metadata/model/acting.py). A publisher asks for the
registration of now, once for each plan: a broker that was fenced may have joined again, with another epoch.

Invariants: what a registration that is over has accepted is not published: `act` and `fenced` raise
    FencedError BROKER_FENCED then, and `may_append` says no.
Not here: whether the broker may answer (membership.py), who leads what (leadership.py), joining again after a
    fence (membership.py), signs of life (heartbeats.py).
Concurrency: immutable; any thread.
After a crash: the registration stands until it is fenced: by the controller, or by the node's next process.
Sources: docs/adr/0026; FORMAT.md#metadata-log; Kafka BrokerRegistration.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sparklog.errors import FencedError
from sparklog.failpoints import failpoint
from sparklog.metadata import (
    NO_EPOCH,
    Action,
    BrokerListener,
    Image,
    MetadataLog,
    Plan,
    apply_actions,
    leadership_of,
    new_id,
    plan_act_as_broker,
    plan_fence_broker,
    plan_join_broker,
    validate_broker,
)

Completing = Callable[[Image, Sequence[Action]], Sequence[Action]]

# From the images before and after the join, and the registration: node id, and broker epoch.
Entering = Callable[[Image, Image, tuple[int, int]], Sequence[Action]]


def nothing_else(_before: Image, _after: Image, _joined: tuple[int, int]) -> Sequence[Action]:
    """Whoever has to do something about it finds out by itself."""
    return ()


def nothing_more(_image: Image, _actions: Sequence[Action]) -> Sequence[Action]:
    """Whoever has to complete the change finds out by itself."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """See the module's docstring."""

    node_id: int
    broker_epoch: int
    incarnation_id: str
    completing: Completing = nothing_more

    @classmethod
    def join(
        cls,
        metadata: MetadataLog,
        node_id: int,
        listeners: Sequence[BrokerListener] = (),
        *,
        incarnation_id: str | None = None,
        rack: str = "",
        replaces: int = NO_EPOCH,
        entering: Entering = nothing_else,
        completing: Completing = nothing_more,
    ) -> "Registration":
        """Become one of the brokers of a root.

        Args:
            entering: what is to be committed with the join (duties.py).
            completing: what is to be committed with a change of metadata (assigning.py).
            incarnation_id: the same at each try, for one that failed may have arrived; None: there is one.
            replaces: the broker epoch of a registration of this node whose process is known to be dead.

        Raises:
            FencedError: DUPLICATE_BROKER, another's who is not fenced; BROKER_FENCED, again at once.
        """
        own_id = new_id() if incarnation_id is None else incarnation_id

        def plan(image: Image) -> Sequence[Action]:
            known = image.brokers.get(node_id)
            if known is not None and known.incarnation_id == own_id and not known.is_fenced:
                return []  # an earlier try has arrived
            fence = plan_fence_broker(image, node_id, replaces)
            join = plan_join_broker(
                image if fence is None else _without(image, node_id),
                node_id,
                incarnation_id=own_id,
                listeners=listeners,
                rack=rack,
            )
            actions: list[Action] = [join] if fence is None else [fence, join]
            after = apply_actions(image, actions, commit=image.commit + 1, commit_uuid="planned")
            return [*actions, *entering(image, after, (node_id, join.broker_epoch))]

        metadata.publish(plan)
        failpoint("broker.registered")
        image = metadata.image
        broker = image.brokers.get(node_id)
        if broker is None or broker.incarnation_id != own_id:
            raise FencedError(
                "BROKER_FENCED",
                f"cluster {image.cluster_id}: found broker {node_id} registered by another process at once",
                fix="give each broker a node.id of its own",
            )
        return cls(
            node_id=node_id,
            broker_epoch=broker.broker_epoch,
            incarnation_id=own_id,
            completing=completing,
        )

    def validate(self, image: Image) -> None:
        """Raise FencedError BROKER_FENCED if it is over as of this image."""
        validate_broker(image, self.node_id, self.broker_epoch)

    def fenced(self, plan: Plan) -> Plan:
        """The same plan, which applies while this registration stands. Not for appends: see `act`."""

        def acting(image: Image) -> Sequence[Action]:
            self.validate(image)
            actions = plan(image)
            return [*self.act(image, actions), *self.completing(image, actions)]

        return acting

    def act(
        self, image: Image, actions: Sequence[Action], leader_epochs: Sequence[int] = (), /
    ) -> Sequence[Action]:
        """These actions, which apply while this registration stands, and leads what they append to.

        Args:
            leader_epochs: of each extent that they append: in which epoch it was accepted. The caller has
                asked `may_append` for each.

        Raises:
            FencedError: BROKER_FENCED.
        """
        return plan_act_as_broker(
            image,
            actions,
            node_id=self.node_id,
            broker_epoch=self.broker_epoch,
            leader_epochs=leader_epochs,
        )

    def may_append(self, image: Image, topic_id: str, partition: int, leader_epoch: int, /) -> bool:
        """True if the broker leads the partition in the epoch in which it accepted records for it."""
        leadership = leadership_of(image, topic_id, partition)
        return (
            leadership is not None
            and leadership.leader == self.node_id
            and leadership.leader_epoch == leader_epoch
        )


def _without(image: Image, node_id: int) -> Image:
    """As it is for who joins after the node's fence in the same commit."""
    return replace(image, brokers={one: it for one, it in image.brokers.items() if one != node_id})
