"""Which generation a group is in: its number, its state, and the protocol that its members have in common.

Invariants: states move as transitions.py says; the number only grows, until it wraps.
Not here: who the members are (roster.py), what moves a group (rebalancing.py).
Concurrency: none; owned by one group.
Sources: Kafka ClassicGroup (transitionTo, initNextGeneration).
"""

from sparklog_server.groups.messages import Instant
from sparklog_server.groups.transitions import GroupState, Trigger, next_state


class Generation:
    """See the module's docstring."""

    __slots__ = ("generation_id", "protocol", "protocol_type", "state", "state_since_ms")

    def __init__(self, now: Instant) -> None:
        self.state = GroupState.EMPTY
        self.state_since_ms = now.wall_ms
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None

    def move(self, trigger: Trigger, now: Instant) -> None:
        """Go to the state to which `trigger` leads."""
        self.state = next_state(self.state, trigger)
        self.state_since_ms = now.wall_ms

    def begin_next(self) -> None:
        """Count the next one."""
        self.generation_id = (self.generation_id + 1) & 0x7FFFFFFF
