"""Clients as principals: the client id of a connection is its principal, without any authentication."""

from typing import Any

import msgspec

from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient


def trust_client_ids(running: RunningBroker) -> None:
    """Take client ids such as `User:alice` for principals from now on."""
    shared = running.broker.network.shared
    begin = shared.dispatch

    async def begin_as(*args: Any) -> Any:
        request: Any = await begin(*args)
        if request.context.client_id.startswith("User:"):
            request.context = msgspec.structs.replace(request.context, principal=request.context.client_id)
        return request

    shared.dispatch = begin_as


def client_of(running: RunningBroker, principal: str) -> WireClient:
    """Return a connection of the principal."""
    return WireClient(running.host, running.port, client_id=principal)
