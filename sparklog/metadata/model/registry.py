"""Brokers: join_broker, fence_broker, begin_controlled_shutdown, unregister_broker.

A registration is a node id and a broker epoch, which is the number of the commit by which the broker joined.
Whatever a broker publishes says its epoch (acting.py), and applies while that registration stands and is not
fenced. Who is fenced joins again, and has another epoch then.

Invariants:
    no two registrations ever have the same epoch; a node has one at most;
    a broker that is fenced leads nothing, and is not controller, from that commit on: its leaderships end
    there, each with a leader epoch of nobody's, so that no registration ever acts in another's.
Not here: which broker is to be fenced (sparklog_server/cluster), who leads next (leading.py).
Sources: FORMAT.md#metadata-log; adr/0026; tests/models/cluster.py; KIP-631.
"""

from collections.abc import Sequence

import msgspec

from sparklog.errors import FencedError
from sparklog.metadata.model.action import ActionBase, ActionRefusedError, invalid_plan, refuse
from sparklog.metadata.model.broker_values import (
    NO_EPOCH,
    NO_NODE,
    BrokerListener,
    Controller,
    PartitionLeadership,
    RegisteredBroker,
)
from sparklog.metadata.model.controller import require_controller, validate_controller
from sparklog.metadata.model.draft import ImageDraft
from sparklog.metadata.model.ids import is_id
from sparklog.metadata.model.image import Image
from sparklog.metadata.model.numbers import Int64

MAX_BROKERS = 1_000
MAX_NODE_ID = (1 << 31) - 1
MAX_LISTENERS = 100
MAX_HOST_LENGTH = 255  # of a host name in DNS
MAX_RACK_LENGTH = 255


class JoinBroker(ActionBase, tag="join_broker", frozen=True, kw_only=True):
    """A broker is one of those that serve the root."""

    node_id: Int64
    broker_epoch: Int64
    incarnation_id: str
    listeners: tuple[BrokerListener, ...] = ()
    rack: str = ""


class FenceBroker(ActionBase, tag="fence_broker", frozen=True, kw_only=True):
    """A registration is over: by the controller, or by the node itself, which ends or begins anew."""

    node_id: Int64
    broker_epoch: Int64
    controller_epoch: Int64 = NO_EPOCH


class BeginControlledShutdown(ActionBase, tag="begin_controlled_shutdown", frozen=True, kw_only=True):
    """The broker wants to stop, and is to lead nothing any more."""

    node_id: Int64
    broker_epoch: Int64


class UnregisterBroker(ActionBase, tag="unregister_broker", frozen=True, kw_only=True):
    """A broker that is fenced will not come back."""

    node_id: Int64
    broker_epoch: Int64
    controller_epoch: Int64


# --- rules -------------------------------------------------------------------------------------------


def why_illegal_listeners(listeners: Sequence[BrokerListener]) -> str | None:
    """Bounds of what clients are told."""
    if len(listeners) > MAX_LISTENERS:
        return f"{len(listeners)} listeners, expected at most {MAX_LISTENERS}"
    for listener in listeners:
        if not 1 <= len(listener.host) <= MAX_HOST_LENGTH:
            return f"a host name of {len(listener.host)} characters, expected 1 to {MAX_HOST_LENGTH}"
        if not 1 <= listener.port < 1 << 16:
            return f"port {listener.port}, expected 1 to {(1 << 16) - 1}"
    return None


def _why_illegal(action: JoinBroker) -> str | None:
    if not 0 <= action.node_id <= MAX_NODE_ID:
        return f"node id {action.node_id}, expected 0 to {MAX_NODE_ID}"
    if not is_id(action.incarnation_id):
        return f"incarnation id {action.incarnation_id!r} is malformed"
    if len(action.rack) > MAX_RACK_LENGTH:
        return f"a rack of {len(action.rack)} characters, expected at most {MAX_RACK_LENGTH}"
    return why_illegal_listeners(action.listeners)


# --- effects -----------------------------------------------------------------------------------------


def join_broker(draft: ImageDraft, action: JoinBroker) -> None:
    """It registers alongside the others."""
    refuse(_why_illegal(action), "broker")
    known = draft.brokers.get(action.node_id)
    if known is not None and not known.is_fenced:
        raise ActionRefusedError(
            f"node id {action.node_id} is registered with epoch {known.broker_epoch}, and not fenced"
        )
    if action.broker_epoch != draft.commit:
        raise ActionRefusedError(f"broker epoch {action.broker_epoch}, expected {draft.commit}, the commit's")
    if known is None and len(draft.brokers) >= MAX_BROKERS:
        raise ActionRefusedError(f"more than {MAX_BROKERS:,} brokers")
    joined = RegisteredBroker(
        node_id=action.node_id,
        broker_epoch=action.broker_epoch,
        incarnation_id=action.incarnation_id,
        listeners=action.listeners,
        rack=action.rack,
    )
    draft.brokers[joined.node_id] = joined


def fence_broker(draft: ImageDraft, action: FenceBroker) -> None:
    """It leads nothing from here on, and controls nothing."""
    broker = require_broker(draft, action.node_id, action.broker_epoch)
    if action.controller_epoch != NO_EPOCH:
        require_controller(draft, action.controller_epoch)
    draft.brokers[broker.node_id] = msgspec.structs.replace(
        broker, is_fenced=True, in_controlled_shutdown=False
    )
    if draft.controller.node_id == broker.node_id:
        draft.controller = Controller(controller_epoch=draft.controller.controller_epoch)
    for partition in draft.led_by(broker.node_id):
        before = partition.leadership
        partition.lead(_leaderless(before))


def begin_controlled_shutdown(draft: ImageDraft, action: BeginControlledShutdown) -> None:
    """The controller gives its leaderships to others."""
    broker = require_broker(draft, action.node_id, action.broker_epoch)
    draft.brokers[broker.node_id] = msgspec.structs.replace(broker, in_controlled_shutdown=True)


def unregister_broker(draft: ImageDraft, action: UnregisterBroker) -> None:
    """Its id may be in lists of replicas still."""
    require_controller(draft, action.controller_epoch)
    broker = draft.brokers.get(action.node_id)
    if broker is None or broker.broker_epoch != action.broker_epoch or not broker.is_fenced:
        raise ActionRefusedError(
            f"broker {action.node_id} of epoch {action.broker_epoch} is not registered and fenced: {broker}"
        )
    del draft.brokers[action.node_id]


def require_broker(draft: ImageDraft, node_id: int, broker_epoch: int) -> RegisteredBroker:
    """The registration; ActionRefusedError unless it stands, and is not fenced."""
    broker = draft.brokers.get(node_id)
    if broker is None or broker.broker_epoch != broker_epoch or broker.is_fenced:
        raise ActionRefusedError(f"broker {node_id} of epoch {broker_epoch} is fenced: {broker}")
    return broker


def _leaderless(before: PartitionLeadership) -> PartitionLeadership:
    return PartitionLeadership(
        before.replicas, NO_NODE, before.leader_epoch + 1, before.adding, before.removing
    )


# --- plans -------------------------------------------------------------------------------------------


def plan_join_broker(
    image: Image,
    node_id: int,
    *,
    incarnation_id: str,
    listeners: Sequence[BrokerListener] = (),
    rack: str = "",
) -> JoinBroker:
    """Become one of the brokers of a root. `incarnation_id` from new_id().

    Raises:
        FencedError: DUPLICATE_BROKER, the node id is another's who is not fenced.
        InvalidRequestError: INVALID_ACTIONS, a malformed argument.
    """
    known = image.brokers.get(node_id)
    if known is not None and not known.is_fenced:
        where = ", ".join(f"{one.host}:{one.port}" for one in known.listeners) or "no address"
        raise FencedError(
            "DUPLICATE_BROKER",
            f"cluster {image.cluster_id}: found broker {node_id} registered with epoch "
            f"{known.broker_epoch}, at {where}, expected no running broker of this node id",
            fix="choose another broker.id; or wait until that broker, if it is dead, is fenced",
        )
    action = JoinBroker(
        node_id=node_id,
        broker_epoch=image.commit + 1,
        incarnation_id=incarnation_id,
        listeners=tuple(listeners),
        rack=rack,
    )
    reason = _why_illegal(action)
    if reason is not None:
        raise invalid_plan(reason)
    return action


def plan_fence_broker(
    image: Image, node_id: int, broker_epoch: int, *, controller_epoch: int = NO_EPOCH
) -> FenceBroker | None:
    """End a registration; None when it is over already."""
    broker = image.brokers.get(node_id)
    if broker is None or broker.broker_epoch != broker_epoch or broker.is_fenced:
        return None
    return FenceBroker(node_id=node_id, broker_epoch=broker_epoch, controller_epoch=controller_epoch)


def plan_unregister_broker(
    image: Image, node_id: int, broker_epoch: int, *, controller_epoch: int
) -> UnregisterBroker | None:
    """Forget a broker that is fenced; None when that is done already.

    Raises:
        FencedError: CONTROLLER_FENCED.
        InvalidRequestError: INVALID_ACTIONS, it is not fenced.
    """
    validate_controller(image, controller_epoch)
    broker = image.brokers.get(node_id)
    if broker is None or broker.broker_epoch != broker_epoch:
        return None
    if not broker.is_fenced:
        raise invalid_plan(f"broker {node_id} is not fenced")
    return UnregisterBroker(node_id=node_id, broker_epoch=broker_epoch, controller_epoch=controller_epoch)


def plan_begin_controlled_shutdown(
    image: Image, node_id: int, broker_epoch: int
) -> BeginControlledShutdown | None:
    """Announce the end; None when it is announced already. FencedError BROKER_FENCED when it is over."""
    if validate_broker(image, node_id, broker_epoch).in_controlled_shutdown:
        return None
    return BeginControlledShutdown(node_id=node_id, broker_epoch=broker_epoch)


def validate_broker(image: Image, node_id: int, broker_epoch: int) -> RegisteredBroker:
    """The registration; FencedError BROKER_FENCED unless it stands, and is not fenced."""
    broker = image.brokers.get(node_id)
    if broker is None or broker.broker_epoch != broker_epoch or broker.is_fenced:
        now = "not registered" if broker is None else f"of epoch {broker.broker_epoch}"
        if broker is not None and broker.is_fenced:
            now += ", and fenced"
        raise FencedError(
            "BROKER_FENCED",
            f"cluster {image.cluster_id}: found broker {node_id} {now}, expected epoch {broker_epoch}",
            fix="register again; of what this registration had accepted nothing more is published",
        )
    return broker
