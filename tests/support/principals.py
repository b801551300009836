"""Clients as principals: the client id of a connection is its principal, without any authentication."""

import dataclasses
from collections.abc import Awaitable
from typing import Any

import msgspec

from sparklog_server.protocol.apis import Handle, RequestContext
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient


def trust_client_ids(running: RunningBroker) -> None:
    """Take client ids such as `User:alice` for principals from now on."""
    apis: Any = running.broker.dispatcher.apis
    for key, entry in list(apis.items()):
        apis[key] = dataclasses.replace(entry, handle=_as_principal(entry.handle))


def _as_principal(handle: Handle) -> Handle:
    def handle_as(body: Any, context: RequestContext) -> Awaitable[Any]:
        if context.client_id.startswith("User:"):
            context = msgspec.structs.replace(context, principal=context.client_id)
        return handle(body, context)

    return handle_as


def client_of(running: RunningBroker, principal: str) -> WireClient:
    """Return a connection of the principal."""
    return WireClient(running.host, running.port, client_id=principal)
