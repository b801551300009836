"""What all connections of a broker share: settings, limits, and what requests are given to.

Concurrency: event loop only.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sparklog.clock import Clock
from sparklog_server.metrics import Metrics
from sparklog_server.network.limits import ByteBudget, ConnectionQuota
from sparklog_server.protocol.api_entry import ApiEntry
from sparklog_server.settings.network import NetworkSettings

RunBlocking = Callable[..., Awaitable[Any]]


@dataclass(slots=True, kw_only=True)
class Shared:
    """See the module's docstring."""

    settings: NetworkSettings
    apis: Mapping[int, ApiEntry]
    clock: Clock
    metrics: Metrics
    run_blocking: RunBlocking  # work that would hold up the loop
    budget: ByteBudget  # bytes of requests
    answers: ByteBudget  # bytes of large answers
    work: ByteBudget  # bytes of what requests become while they are worked on
    slots: asyncio.Semaphore  # requests being worked on
    quota: ConnectionQuota
