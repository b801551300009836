"""Whom to take for dead: brokers of whom nothing newer was seen at so many looks in a row.

Looks are counted, not time. Time passes while this process stands still, and while the storage answers
nobody; whoever goes by it then takes everybody for dead that he has not looked at. Each look that counts has
an interval of its own, and a living broker writes in each, whatever else happens:

1. the storage is away for 20 s, for this broker and for B, who writes every 2 s;
2. it is back: this one looks before B has written again, and finds what it saw 20 s ago;
3. by the clock B was silent for longer than its session, and would be fenced, with everybody else.

A look is not a moment: what an answer says was read between the question and the answer, half a minute apart
where a request hangs, and a later look's may have been read first. So a look counts against a broker if its
answer came an interval after that of the last that counted, and if it was begun after that one had come. Then

    read(n) <= answer(n) <= begin(n + 1) <= read(n + 1),  answer(n) + interval <= answer(n + 1)

and n - 1 whole intervals lie between what was seen last and the n-th look in a row that found nothing newer:
as in the model, where a look is anywhere in an interval of its own. When the answers are evaluated does not
matter. By their beginnings alone several looks would count that hung while the storage was away, and were
answered together when it came back; by their answers alone, one that was read before what was seen last.
Where answers take longer than an interval, fewer looks count: a death is noticed later, and never too early.

Being wrong costs clients a pause, and B a new registration: what B may do is decided by commits.

Invariants: a look counts against a broker as said above; a newer sign of life always counts. Registrations
    are observed from the first image on that has them, with nothing against them.
Not here: reading (heartbeats.py); what follows from a death.
Concurrency: belongs to one thread.
After a crash: whoever observes next counts from the beginning.
Sources: tests/models/liveness.py, which says how many looks it takes: 2, and 2 more for each write that lands
    late, 1 where the storage may be full; Kafka's broker.session.timeout.ms, broker.heartbeat.interval.ms.
"""

from collections.abc import Container, Mapping

from sparklog.metadata import RegisteredBroker
from sparklog_server.cluster.heartbeats import NO_BEAT, Beat

MIN_LOOKS = 2


def looks_until_dead(session_timeout_ms: int, interval_ms: int) -> int:
    """How many looks in a row mean death."""
    return max(MIN_LOOKS, session_timeout_ms // interval_ms)


class _Observed:
    """A registration, and the last look that counted for it."""

    __slots__ = ("_interval_ms", "_looked_ms", "broker_epoch", "misses", "newest")

    def __init__(self, broker_epoch: int, interval_ms: int) -> None:
        self.broker_epoch = broker_epoch
        self.newest = Beat(broker_epoch, 0)
        self.misses = -1
        self._interval_ms = interval_ms
        self._looked_ms: int | None = None  # when its answer came

    def is_next(self, began_ms: int, now_ms: int) -> bool:
        """Has a look an interval of its own that was begun then, and answered now?"""
        if self._looked_ms is not None and now_ms - self._looked_ms < self._interval_ms:
            return False
        return self._looked_ms is None or began_ms >= self._looked_ms

    def counted(self, now_ms: int) -> None:
        """A look does that was answered now."""
        self._looked_ms = now_ms


class Observer:
    """See the module's docstring."""

    def __init__(self, *, interval_ms: int, looks: int) -> None:
        """`looks`: so many without anything newer mean death; see looks_until_dead."""
        self._interval_ms = interval_ms
        self._looks = looks
        self._observed: dict[int, _Observed] = {}

    def look(
        self,
        brokers: Mapping[int, RegisteredBroker],
        found: Mapping[int, Beat],
        *,
        now_ms: int,
        answered_ms: Mapping[int, int] | None = None,
        unread: Container[int] = (),
    ) -> list[int]:
        """Take notice of what was found; returns the node ids of those to be taken for dead.

        Args:
            brokers: those to observe, by node id; the fenced ones are left out.
            found: from read_heartbeats. A look that failed is none: do not call this.
            now_ms: when the look was begun, by a monotonic clock.
            answered_ms: when what was found of each was known; the same moment, if it is not said. Whoever
                takes an interval's rest between an answer and the next look may say the end of it for both.
            unread: whose objects could not be read, though others could: they stay as they were.
        """
        before, self._observed = self._observed, {}
        dead = []
        for node_id, broker in brokers.items():
            if broker.is_fenced:
                continue
            one = before.get(node_id)
            if one is None or one.broker_epoch != broker.broker_epoch:
                one = _Observed(broker.broker_epoch, self._interval_ms)
            self._observed[node_id] = one
            if node_id in unread:
                continue
            answered = now_ms if answered_ms is None else answered_ms.get(node_id, now_ms)
            beat = found.get(node_id, NO_BEAT)
            if beat > one.newest:
                one.newest, one.misses = beat, 0
                one.counted(answered)
            elif one.is_next(now_ms, answered):
                one.misses += 1
                one.counted(answered)
                if one.misses >= self._looks:
                    dead.append(node_id)
        return dead
