"""A broker that serves a root alone: register_broker, by which it takes the root over.

Invariants: the newest registration wins, and its epoch is above any earlier one. A root that several brokers
    have served (registry.py) is never one broker's again: its leader epochs must not fall.
Not here: what a broker does that finds another registered (sparklog_server).
Sources: FORMAT.md#metadata-log; Kafka's broker registration (KIP-631).
"""

from collections.abc import Sequence

from sparklog.errors import FencedError
from sparklog.metadata.model.action import ActionBase, ActionRefusedError, invalid_plan, refuse
from sparklog.metadata.model.broker_values import NO_CONTROLLER, BrokerListener, BrokerRegistration
from sparklog.metadata.model.draft import ImageDraft
from sparklog.metadata.model.ids import is_id
from sparklog.metadata.model.image import Image
from sparklog.metadata.model.numbers import Int64
from sparklog.metadata.model.registry import why_illegal_listeners


class RegisterBroker(ActionBase, tag="register_broker", frozen=True, kw_only=True):
    """A broker serves the root from now on; whoever was registered before it is fenced."""

    node_id: Int64
    broker_epoch: Int64
    incarnation_id: str
    listeners: tuple[BrokerListener, ...] = ()

    @property
    def document_version(self) -> int:
        """Roots that never saw a broker stay at version 1."""
        return 2


def why_illegal_registration(broker: RegisterBroker) -> str | None:
    """Bounds of every field; whether the epoch is new is for the effect."""
    if not 0 <= broker.node_id < 1 << 31:
        return f"node id {broker.node_id}, expected 0 to {(1 << 31) - 1}"
    if broker.broker_epoch < 0:
        return f"broker epoch {broker.broker_epoch} is negative"
    if not is_id(broker.incarnation_id):
        return f"incarnation id {broker.incarnation_id!r} is malformed"
    return why_illegal_listeners(broker.listeners)


def register_broker(draft: ImageDraft, action: RegisterBroker) -> None:
    """The effect: in the place of the one before."""
    refuse(why_illegal_registration(action), "broker registration")
    if draft.brokers or draft.controller != NO_CONTROLLER:
        raise ActionRefusedError("a broker that would be alone, in a root of several")
    if draft.broker is not None and action.broker_epoch <= draft.broker.broker_epoch:
        raise ActionRefusedError(
            f"broker epoch {action.broker_epoch}, expected one above {draft.broker.broker_epoch}"
        )
    draft.broker = BrokerRegistration(
        node_id=action.node_id,
        broker_epoch=action.broker_epoch,
        incarnation_id=action.incarnation_id,
        listeners=action.listeners,
    )


def plan_register_broker(
    image: Image, node_id: int, *, incarnation_id: str, listeners: Sequence[BrokerListener] = ()
) -> RegisterBroker:
    """Take the root over: the newest registration wins. `incarnation_id` from new_id().

    Raises:
        FencedError: BROKER_FENCED, several brokers serve the root, or did.
    """
    if image.brokers or image.controller != NO_CONTROLLER:
        nodes = ", ".join(map(str, sorted(image.brokers))) or "none now"
        raise FencedError(
            "BROKER_FENCED",
            f"cluster {image.cluster_id}: found a root of several brokers ({nodes}), expected one that "
            "a broker serves alone",
            fix="start this broker as one of several",
        )
    action = RegisterBroker(
        node_id=node_id,
        broker_epoch=0 if image.broker is None else image.broker.broker_epoch + 1,
        incarnation_id=incarnation_id,
        listeners=tuple(listeners),
    )
    reason = why_illegal_registration(action)
    if reason is not None:
        raise invalid_plan(reason)
    return action
