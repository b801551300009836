"""UnregisterBroker (key 64), version 0.

Does: forget a broker that will not come back; others are replicas in its place, in the same commit. Any
    broker does it, in the controller's name: Kafka's admin client asks whichever it likes, and knows nothing
    to do with NOT_CONTROLLER but to fail.
Does not: stop one: a broker that runs is refused (INVALID_REQUEST), for it would join again at once.
Versions: 0 (KIP-500).
"""

from typing import Any

from sparklog.metadata import NO_NODE, Action, Image
from sparklog_server.admin.changes import Outcome, RefusedError
from sparklog_server.admin.configs import invalid_request
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.cluster.elections import plan_unregistering
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import make


@api(ApiKey.UNREGISTER_BROKER, versions=range(1))
async def handle_unregister_broker(request: Any, context: RequestContext, services: Services) -> Any:
    """One commit."""
    unregistering = _Unregistering(request.broker_id)
    outcomes: dict[int, Outcome] = await services.changes.make(
        {request.broker_id: unregistering.validate},
        completing=unregistering.plan,
        fenced=ErrorCode.request_timed_out,  # it is asked again, maybe elsewhere
    )
    outcome = outcomes[request.broker_id]
    return make(
        context.types.UnregisterBrokerResponse, error_code=outcome.code, error_message=outcome.message
    )


class _Unregistering:
    """A change of one part, of several actions."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._is_refused = True

    def validate(self, image: Image) -> Action | None:
        """Refuse it, or let `plan` do it."""
        self._is_refused = True
        broker = image.brokers.get(self._node_id)
        if broker is None:
            raise RefusedError(
                ErrorCode.broker_id_not_registered, f"Broker ID {self._node_id} is not currently registered"
            )
        if not broker.is_fenced:
            raise invalid_request(
                f"broker {self._node_id} is running: stop it, then unregister it (one that was killed is "
                "fenced after broker.session.timeout.ms)"
            )
        if image.controller.node_id == NO_NODE:
            raise RefusedError(
                ErrorCode.request_timed_out, "There is no controller at this moment: ask again."
            )
        self._is_refused = False
        return None

    def plan(self, image: Image, _actions: object) -> list[Action]:
        if self._is_refused:
            return []
        return plan_unregistering(
            image,
            self._node_id,
            image.brokers[self._node_id].broker_epoch,
            controller_epoch=image.controller.controller_epoch,
        )
