"""The controller: elect_controller, and what its actions have in common.

Two brokers may both take themselves for the controller, for as long as one of them does not look. What either
does is computed from the newest image, and says in which controller epoch: it applies in that epoch only. So
the older one's first action after the other's election is refused, whatever clocks said.

Invariants: a controller epoch is one registration's, elected once; an action of an older epoch does not
    apply; nor does one of a controller that is fenced.
Not here: when to have oneself elected (sparklog_server/cluster).
Sources: FORMAT.md#metadata-log; adr/0026; tests/models/cluster.py.
"""

from sparklog.errors import FencedError
from sparklog.metadata.model.action import ActionBase, ActionRefusedError
from sparklog.metadata.model.broker_values import NO_NODE, Controller
from sparklog.metadata.model.draft import ImageDraft
from sparklog.metadata.model.image import Image
from sparklog.metadata.model.numbers import Int64


class ElectController(ActionBase, tag="elect_controller", frozen=True, kw_only=True):
    """A broker is controller from now on."""

    node_id: Int64
    broker_epoch: Int64
    controller_epoch: Int64


def elect_controller(draft: ImageDraft, action: ElectController) -> None:
    """The effect, if nobody has been elected since."""
    expected = draft.controller.controller_epoch + 1
    if action.controller_epoch != expected:
        raise ActionRefusedError(f"controller epoch {action.controller_epoch}, expected {expected}")
    broker = draft.brokers.get(action.node_id)
    if broker is None or broker.broker_epoch != action.broker_epoch or broker.is_fenced:
        raise ActionRefusedError(
            f"broker {action.node_id} of epoch {action.broker_epoch} is fenced: {broker}"
        )
    draft.controller = Controller(action.node_id, action.broker_epoch, action.controller_epoch)


def require_controller(draft: ImageDraft, controller_epoch: int) -> None:
    """ActionRefusedError unless this is the epoch of the controller, and there is one."""
    now = draft.controller
    if controller_epoch != now.controller_epoch or now.node_id == NO_NODE:
        raise ActionRefusedError(f"controller epoch {controller_epoch} is over: {now}")


def plan_elect_controller(image: Image, node_id: int, broker_epoch: int) -> ElectController:
    """Take over from whoever is controller. The epoch that it is in then is the action's."""
    return ElectController(
        node_id=node_id,
        broker_epoch=broker_epoch,
        controller_epoch=image.controller.controller_epoch + 1,
    )


def validate_controller(image: Image, controller_epoch: int) -> None:
    """Raise FencedError CONTROLLER_FENCED unless this is the epoch of the controller."""
    now = image.controller
    if controller_epoch != now.controller_epoch or now.node_id == NO_NODE:
        raise FencedError(
            "CONTROLLER_FENCED",
            f"cluster {image.cluster_id}: found controller epoch {now.controller_epoch} of broker "
            f"{now.node_id}, expected {controller_epoch}",
            fix="let the controller of the newer epoch decide; nothing was changed",
        )
