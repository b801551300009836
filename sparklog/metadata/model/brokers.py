"""Brokers: register_broker, by which one takes the root over.

Invariants: the newest registration wins, and its epoch is above any earlier one.
Not here: what a broker does that finds another registered (sparklog_server).
Sources: FORMAT.md#metadata-log; Kafka's broker registration (KIP-631).
"""

from collections.abc import Sequence

from sparklog.metadata.model.action import ActionBase, ActionRefusedError, invalid_plan, refuse
from sparklog.metadata.model.draft import ImageDraft
from sparklog.metadata.model.ids import is_id
from sparklog.metadata.model.image import BrokerListener, BrokerRegistration, Image
from sparklog.metadata.model.numbers import Int64

MAX_LISTENERS = 100
MAX_HOST_LENGTH = 255  # of a host name in DNS


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
    if len(broker.listeners) > MAX_LISTENERS:
        return f"{len(broker.listeners)} listeners, expected at most {MAX_LISTENERS}"
    for listener in broker.listeners:
        if not 1 <= len(listener.host) <= MAX_HOST_LENGTH:
            return f"a host name of {len(listener.host)} characters, expected 1 to {MAX_HOST_LENGTH}"
        if not 1 <= listener.port < 1 << 16:
            return f"port {listener.port}, expected 1 to {(1 << 16) - 1}"
    return None


def register_broker(draft: ImageDraft, action: RegisterBroker) -> None:
    """The effect: in the place of the one before."""
    refuse(why_illegal_registration(action), "broker registration")
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
    """Take the root over: the newest registration wins. `incarnation_id` from new_id()."""
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
