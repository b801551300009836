"""Having the controller decide what clients ask for, and waiting for it.

Invariants: only the controller's broker decides; others answer NOT_CONTROLLER, by which clients look up who
    it is. What was refused for that reason was not done.
Not here: what is decided (admin/), in which order (cluster/controller.py).
Concurrency: event loop.
Sources: Kafka KafkaController's events, before KRaft.
"""

import asyncio
from collections.abc import Callable, Sequence

from sparklog.errors import FencedError, SparklogError, as_value
from sparklog.metadata import Action, Image, PublishResult
from sparklog_server.admin.changes import Outcome, outcome_of
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ErrorCode

Order = Callable[[Image, int], Sequence[Action]]
_DONE = Outcome()
_ELSEWHERE = Outcome(ErrorCode.not_controller, "This is not the correct controller for this cluster.")


async def decide(services: Services, order: Order, *, timeout_ms: int) -> Outcome:
    """Have it committed; whether it was, or why not."""
    if not services.controller.is_controller:
        return _ELSEWHERE
    deciding = services.controller.submit(order)
    done, _ = await asyncio.wait({deciding}, timeout=max(timeout_ms, 1) / 1000)
    if not done:
        deciding.add_done_callback(_look_at)
        message = "the controller did not get to it in time; it may still be done: look again"
        return Outcome(ErrorCode.request_timed_out, message)
    try:
        deciding.result()
    except (FencedError, asyncio.CancelledError):
        return _ELSEWHERE  # another one is controller by now, or this one stops
    except SparklogError as error:
        return outcome_of(as_value(error))  # the future keeps it
    return _DONE


def _look_at(deciding: "asyncio.Future[PublishResult]") -> None:
    """Nobody waits any more; asyncio must not complain then."""
    if not deciding.cancelled():
        deciding.exception()
