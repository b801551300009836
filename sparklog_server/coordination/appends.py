"""Those who wait for records to be appended, and what they are told.

Concurrency: event loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from sparklog.errors import FencedError, InvalidRequestError, RetriableError, SparklogError
from sparklog_server.coordination.internal_topic import RecordT
from sparklog_server.protocol.errors import ErrorCode
from sparklog_server.publish.parts import NO_OFFSET, OvertakenError

_log = logging.getLogger("sparklog_server.coordinator")


@dataclass(slots=True, eq=False)
class Waiting(Generic[RecordT]):
    """One call of `append`.

    Fields:
        at_offset: the only one at which its first record may be; NO_OFFSET: any.
        surprises: how many the log had seen when this was planned.
    """

    records: Sequence[RecordT]
    encoded: list[tuple[bytes, bytes | None]]
    future: asyncio.Future[None]
    at_offset: int = NO_OFFSET
    surprises: int = 0

    @property
    def is_planned(self) -> bool:
        """Is it right only for the state by which it was planned?"""
        return self.at_offset != NO_OFFSET


def tell(future: asyncio.Future[None], error: Exception) -> None:
    """Let it fail."""
    if not future.done():
        future.set_exception(error)
        future.exception()  # seen: whoever waited may be gone


def fail(waiting: Sequence[Waiting[Any]], error: Exception) -> None:
    """Let all of them fail."""
    for one in waiting:
        tell(one.future, error)


def has_failed(appended: asyncio.Future[None]) -> bool:
    """Is it known that it is not there, or may not be?"""
    return appended.done() and (appended.cancelled() or appended.exception() is not None)


def was_overtaken(appended: asyncio.Future[None]) -> bool:
    """Was nothing appended, because others came first?"""
    return not appended.cancelled() and isinstance(appended.exception(), OvertakenError)


async def outcome_of(appended: Awaitable[None]) -> ErrorCode:
    """What to tell whoever asked for an append, once it is durable and applied, or could not be."""
    try:
        await appended
    except FencedError:
        return ErrorCode.not_coordinator
    except InvalidRequestError as error:
        _log.warning("not written: %s", error)
        return ErrorCode.unknown_server_error
    except OvertakenError as error:  # whoever planned it plans it anew, and warns if that is given up
        _log.debug("not written yet: %s", error)
        return ErrorCode.coordinator_not_available
    except SparklogError as error:
        _log.warning("not written: %s", error)
        return ErrorCode.coordinator_not_available
    return ErrorCode.none


def not_ready(name: str) -> RetriableError:
    """Why nothing can be appended to this log."""
    return RetriableError(
        "COORDINATOR_CLOSED",
        f"{name}: its coordinator loads it, stops, or starts over, and appends nothing meanwhile",
        fix="try again",
    )
