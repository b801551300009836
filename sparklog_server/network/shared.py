"""What all connections of a broker share: settings, limits, and what requests are given to.

Concurrency: event loop only.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from sparklog.clock import Clock
from sparklog_server.metrics import Metrics
from sparklog_server.network.exchange import Dispatch
from sparklog_server.network.limits import ByteBudget, ConnectionQuota
from sparklog_server.settings.network import NetworkSettings

RunBlocking = Callable[..., Awaitable[Any]]


@dataclass(slots=True, kw_only=True)
class Shared:
    """See the module's docstring."""

    settings: NetworkSettings
    dispatch: Dispatch
    clock: Clock
    metrics: Metrics
    run_blocking: RunBlocking  # work that would hold up the loop
    budget: ByteBudget  # bytes of requests
    quota: ConnectionQuota
