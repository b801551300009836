"""What producers wait for at this broker, so that they need not go on waiting when others lead.

A publish may hang in the storage for as long as that is away from here, and a producer waits for its answer
for as long as its request may take: half a minute by default, with all batches of a partition behind it.

1. broker A is cut off from the storage; what producers have sent it is accepted, and not published;
2. a session later others have taken A for dead, and lead what it led;
3. producers would find out when their requests time out. A knows as soon that it may not lead any more
   (cluster/membership.py), and tells them to look for who does.

What was accepted may be published all the same, as after a time-out: it is fenced by the leader epoch under
which it was accepted. Idempotent producers are told at the next leader, or here again.

Concurrency: event loop.
Sources: docs/adr/0026; Kafka's producers look for the leader after NOT_LEADER_OR_FOLLOWER, and not after
    REQUEST_TIMED_OUT.
"""

import asyncio

from sparklog.errors import FencedError
from sparklog_server.publish.parts import PartOutcome


class Awaited:
    """The answers that producers wait for."""

    def __init__(self) -> None:
        self._futures: set[asyncio.Future[list[PartOutcome]]] = set()

    def add(self, future: "asyncio.Future[list[PartOutcome]]") -> None:
        """A producer waits for it."""
        self._futures.add(future)

    def discard(self, future: "asyncio.Future[list[PartOutcome]]") -> None:
        """Nobody waits for it any more."""
        self._futures.discard(future)

    def let_go(self) -> None:
        """Send all away: this broker may not lead any more."""
        for future in self._futures:
            if not future.done():
                future.set_exception(
                    FencedError(
                        "BROKER_FENCED",
                        "found this broker fenced, or without a look at the metadata log for "
                        "broker.session.timeout.ms, before what was sent is known to be published",
                        fix="send it again, to whoever leads the partition now",
                    )
                )
