"""Writing what follows from a state: tombstones for what has expired, is deleted, or lost its topic.

It is right for that state only:
1. an offset has expired, and its deletion is on its way; 2. a Spark query commits 77 in its place; 3. the
deletion arrives, and 77 is gone. So it says at which offset it must be, which is the end of all that it was
planned by, and is planned anew where others came first.
Offsets alone do not tell: what was counted on may fail, and as many records of others take its place; or it
was read already, with what others have appended, and is counted twice. So it is handed over only when all
that it was planned by has arrived, and nothing else has; what is appended behind it waits as long.
Invariants: what is appended was planned by everything before it in the log. Where nothing is to be appended,
    that is told only when everything that was counted on is durable.
Concurrency: event loop.
Sources: Kafka CoordinatorRuntime, where a write that makes no records waits for those before it.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from sparklog_server.coordination.appends import outcome_of, was_overtaken
from sparklog_server.coordination.internal_topic import RecordT
from sparklog_server.coordination.state import StateT
from sparklog_server.coordination.state_log import StateLog
from sparklog_server.protocol.errors import ErrorCode

_log = logging.getLogger("sparklog_server.coordinator")
PLANNED_AT_MOST: Final = 5  # times, while others append


async def write_planned(
    log: StateLog[RecordT, StateT], plan: Callable[[], Sequence[RecordT] | ErrorCode]
) -> ErrorCode:
    """Append what follows from a log's state; what to tell whoever asked for it.

    Args:
        plan: called again whenever the state has turned out to be another one before the records were there.
            An error: nothing is to be appended, and this is why.
    """
    for _ in range(PLANNED_AT_MOST):
        if not await log.catch_up():
            return ErrorCode.coordinator_not_available
        records = plan()
        if isinstance(records, ErrorCode):
            return records
        if not records:
            if await log.own.arrived():
                return ErrorCode.none
            continue
        appended = log.append(records, planned=True)
        error = await outcome_of(appended)
        if not was_overtaken(appended):
            return error
    _log.warning(
        "%s: not written, since other records came first %d times; ask for it again",
        log.name,
        PLANNED_AT_MOST,
    )
    return ErrorCode.coordinator_not_available
