"""A whole broker, asked without a socket: what its clients repeat is repeated here."""

import asyncio

from kio.schema.errors import ErrorCode
from msgspec.structs import replace

from sparklog.errors import FencedError
from sparklog_server.broker import Broker
from sparklog_server.groups.offsets import OffsetToCommit
from sparklog_server.publish.parts import AppendPart

_NOT_NOW = (
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
)


async def produced(running: Broker, parts: list[AppendPart]) -> list[int]:
    """As an idempotent producer does: again while the broker does not lead what it is to append to."""
    while True:
        error: Exception | None = None
        led = [_led(running, one) for one in parts]
        if None not in led:
            outcomes = await running.publisher.submit([one for one in led if one is not None])
            error = next((one.error for one in outcomes if one.error is not None), None)
            if error is None:
                return [one.base_offset for one in outcomes]
        if running.lifecycle.failure is not None:
            raise running.lifecycle.failure
        if error is not None and not isinstance(error, FencedError):
            raise error
        await asyncio.sleep(0.005)


def _led(running: Broker, one: AppendPart) -> AppendPart | None:
    """The part, accepted in the epoch in which the broker leads its partition; None: it does not."""
    leader = running.leadership.leader_of(running.root.image.partition(one.topic, one.partition))
    if leader.node_id != running.config.broker.node_id:
        return None
    return replace(one, leader_epoch=leader.epoch)


async def commit_offset(running: Broker, topic: str, offset: int) -> ErrorCode:
    """As clients do: again while the groups are not answered for, or being loaded."""
    while True:
        wanted = [OffsetToCommit(topic=topic, partition=0, offset=offset)]
        error = await running.groups.commit("g-broker", wanted)
        if error not in _NOT_NOW or running.lifecycle.failure is not None:
            return error
        await asyncio.sleep(0.005)


async def fetch_offset(running: Broker) -> int:
    """The largest offset that the group has committed; -1: none."""
    while True:
        error, offsets = running.groups.fetch("g-broker")
        if error.value == 0:
            return max((value.offset for value in offsets.values()), default=-1)
        if running.lifecycle.failure is not None:
            raise running.lifecycle.failure
        await asyncio.sleep(0.005)  # it is loading
