"""Whom to take for dead: brokers of whom nothing newer was seen at so many looks in a row.

Looks are counted, not time. Time passes while this process stands still, and while the storage answers
nobody; whoever goes by it then takes everybody for dead that he has not looked at. Two looks have a write of
a living broker between them, whatever else happens, as long as they are an interval apart:

1. the storage is away for 20 s, for this broker and for B, who writes every 2 s;
2. it is back: this one looks before B has written again, and finds what it saw 20 s ago;
3. by the clock B was silent for longer than its session, and would be fenced, with everybody else.

Being wrong costs clients a pause, and B a new registration: what B may do is decided by commits.

Invariants: a look is counted if it is an interval after the one before; registrations are observed from the
    first image on that has them, with nothing against them.
Not here: reading (heartbeats.py); what follows from a death.
Concurrency: belongs to one thread.
After a crash: whoever observes next counts from the beginning.
Sources: tests/models/liveness.py, which says how many looks it takes: 2, and 2 more for each write that lands
    late, 1 where the storage may be full; Kafka's broker.session.timeout.ms, broker.heartbeat.interval.ms.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass

from sparklog.metadata import RegisteredBroker
from sparklog_server.cluster.heartbeats import NO_BEAT, Beat

MIN_LOOKS = 2


def looks_until_dead(session_timeout_ms: int, interval_ms: int) -> int:
    """How many looks in a row mean death."""
    return max(MIN_LOOKS, session_timeout_ms // interval_ms)


@dataclass(slots=True)
class _Observed:
    broker_epoch: int
    newest: Beat
    misses: int = 0


class Observer:
    """See the module's docstring."""

    def __init__(self, *, interval_ms: int, looks: int) -> None:
        """`looks`: so many without anything newer mean death; see looks_until_dead."""
        self._interval_ms = interval_ms
        self._looks = looks
        self._looked_ms: int | None = None
        self._observed: dict[int, _Observed] = {}

    def look(
        self,
        brokers: Mapping[int, RegisteredBroker],
        found: Mapping[int, Beat],
        *,
        now_ms: int,
        unread: Container[int] = (),
    ) -> list[int]:
        """Take notice of what was found just now; returns the node ids of those to be taken for dead.

        Args:
            brokers: those to observe, by node id; the fenced ones are left out.
            found: from read_heartbeats. A look that failed is none: do not call this.
            now_ms: by a monotonic clock.
            unread: whose objects could not be read, though others could: they stay as they were.
        """
        if self._looked_ms is not None and now_ms - self._looked_ms < self._interval_ms:
            return []
        self._looked_ms = now_ms
        before, self._observed = self._observed, {}
        dead = []
        for node_id, broker in brokers.items():
            if broker.is_fenced:
                continue
            one = before.get(node_id)
            if one is None or one.broker_epoch != broker.broker_epoch:
                one = _Observed(broker.broker_epoch, Beat(broker.broker_epoch, 0), misses=-1)
            self._observed[node_id] = one
            if node_id in unread:
                continue
            beat = found.get(node_id, NO_BEAT)
            if beat > one.newest:
                one.newest, one.misses = beat, 0
            else:
                one.misses += 1
            if one.misses >= self._looks:
                dead.append(node_id)
        return dead
