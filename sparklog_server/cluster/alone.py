"""The registration of a broker that serves a root alone: of roots that have not agreed to several.

At start it registers with the next epoch. Every plan that it publishes is computed from an image, and
looks there whether the registration is still its own. A newer broker's registration is a commit before, so:

1. broker A computes a plan against commit n, and stalls;
2. broker B registers, as commit n+1;
3. A wakes up: its put of n+1 loses the race, its plan is called again with B's image, and raises.

So a deposed broker publishes nothing, whatever its clock says, and clients are never acknowledged twice
what another broker does not know.

Invariants: the newest registration wins; a fenced broker stays fenced.
Not here: refusing to start beside a running broker (root_lock.py); that is a courtesy, this is the rule.
Concurrency: immutable; any thread.
After a crash: the next start registers anew.
Sources: docs/design.md; FORMAT.md#metadata-log; Kafka BrokerRegistration (broker epoch).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sparklog.errors import FencedError
from sparklog.failpoints import failpoint
from sparklog.metadata import (
    Action,
    BrokerListener,
    Image,
    MetadataLog,
    Plan,
    new_id,
    plan_register_broker,
)
from sparklog_server.cluster.leadership import LEADER_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """A registration of this process."""

    node_id: int
    broker_epoch: int
    incarnation_id: str
    is_alone: bool = True

    @classmethod
    def register(
        cls,
        metadata: MetadataLog,
        node_id: int,
        listeners: Sequence[BrokerListener] = (),
    ) -> "Alone":
        """Take the root over from whoever had it."""
        incarnation_id = new_id()

        def plan(image: Image) -> Sequence[Action]:
            return [plan_register_broker(image, node_id, incarnation_id=incarnation_id, listeners=listeners)]

        metadata.publish(plan)
        failpoint("broker.registered")
        broker = metadata.image.broker
        if broker is None or broker.incarnation_id != incarnation_id:
            raise _fenced(incarnation_id, metadata.image)  # overtaken at once
        return cls(node_id=node_id, broker_epoch=broker.broker_epoch, incarnation_id=incarnation_id)

    def validate(self, image: Image) -> None:
        """Raise FencedError BROKER_FENCED if another broker serves the root as of this image."""
        if image.broker is None or image.broker.incarnation_id != self.incarnation_id:
            raise _fenced(self.incarnation_id, image)

    def fenced(self, plan: Plan) -> Plan:
        """The same plan, for as long as this broker is the one."""

        def checked(image: Image) -> Sequence[Action]:
            self.validate(image)
            return plan(image)

        return checked

    def act(
        self, image: Image, actions: Sequence[Action], _leader_epochs: Sequence[int] = (), /
    ) -> Sequence[Action]:
        """The same actions: documents of a broker that is alone do not say whose they are."""
        self.validate(image)
        return actions

    def may_append(self, _image: Image, _topic_id: str, _partition: int, leader_epoch: int, /) -> bool:
        """It leads everything, for as long as it is the one."""
        return leader_epoch == LEADER_EPOCH


def _fenced(incarnation_id: str, image: Image) -> FencedError:
    broker = image.broker
    now = (
        "nobody is"
        if broker is None
        else f"broker {broker.node_id} with epoch {broker.broker_epoch} is, at "
        + (", ".join(f"{one.host}:{one.port}" for one in broker.listeners) or "no address")
    )
    return FencedError(
        "BROKER_FENCED",
        f"cluster {image.cluster_id}: found incarnation {incarnation_id} not registered any more; {now}",
        fix="stop this broker; a root is served by one at a time, and the newest one wins",
    )
