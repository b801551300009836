"""What coordinators and their state logs are built on: the parts of the broker that they were given."""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sparklog.clock import Clock
from sparklog.metadata import Plan, PublishResult
from sparklog_server.cluster.leadership import Leadership
from sparklog_server.metrics import Metrics
from sparklog_server.publish.parts import AppendPart, PartOutcome
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.runtime.timer import Timer


class Role(Protocol):
    """cluster/membership.py."""

    @property
    def is_in_charge(self) -> bool:
        """May this broker answer for what it coordinates, as of an image that is new enough?"""


class Appender(Protocol):
    """publish/publisher.py; tests hold back what is appended."""

    def submit(self, parts: Sequence[AppendPart]) -> Awaitable[Sequence[PartOutcome]]:
        """Have parts appended; one outcome each. The order is that of the calls, not of the awaiting."""

    def submit_plan(self, plan: Plan) -> Awaitable[PublishResult]:
        """Publish a change of metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """See the module's docstring."""

    root: LiveRoot
    role: Role
    leadership: Leadership
    publisher: Appender
    timer: Timer
    clock: Clock
    metrics: Metrics
