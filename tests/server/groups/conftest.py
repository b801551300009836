"""A group coordinator on a real root, and its members."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

import sparklog
from sparklog.client.topic_plan import OFFSETS_TOPIC
from sparklog.clock import ManualClock
from sparklog_server.groups.coordinator import GroupCoordinator
from sparklog_server.groups.messages import JoinRequest, JoinResult, SyncRequest, SyncResult
from tests.server.coordination.controller import Controller
from tests.server.coordination.surroundings import Surroundings

SETTINGS = {
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "10",
}


class Host(Surroundings):
    """A coordinator, and what it is built on."""

    def __init__(
        self, url: str, clock: ManualClock, settings: dict[str, str], *, joins_as: int | None = None
    ) -> None:
        super().__init__(url, clock, {**SETTINGS, **settings}, joins_as=joins_as, takes_over=joins_as is None)
        self.groups = GroupCoordinator(self.host, self.config.groups)

    # Members

    def joins(self, group: str, member_id: str = "", **fields: Any) -> "asyncio.Task[JoinResult]":
        """A JoinGroup that waits."""
        instance_id = fields.get("instance_id")
        request = JoinRequest(
            **{
                "member_id": member_id,
                "new_member_id": self.groups.new_member_id("client", instance_id),
                "needs_member_id": False,
                "client_id": "client",
                "client_host": "/127.0.0.1",
                "rebalance_timeout_ms": 1_000,
                "session_timeout_ms": 500,
                "protocol_type": "consumer",
                "protocols": (("range", b"metadata"),),
                **fields,
            }
        )
        return asyncio.ensure_future(self.groups.join(group, request))

    async def join(self, group: str, member_id: str = "", **fields: Any) -> JoinResult:
        """A JoinGroup, answered when the initial delay of 0 ms is over."""
        task = self.joins(group, member_id, **fields)
        await self.advance(0)
        await self.advance(1)
        return await task

    async def delete_group(self, group: str) -> ErrorCode:
        """DeleteGroups of one."""
        return (await self.groups.delete_groups([group]))[group]

    def syncs(self, group: str, joined: JoinResult, **assignments: bytes) -> "asyncio.Task[SyncResult]":
        """A SyncGroup that waits; a leader gives `assignments` by position, as a0, a1, ..."""
        given = tuple(
            (one.member_id, assignments.get(f"a{number}", b"")) for number, one in enumerate(joined.members)
        )
        request = SyncRequest(
            member_id=joined.member_id, generation_id=joined.generation_id, assignments=given
        )
        return asyncio.ensure_future(self.groups.sync(group, request))

    async def stable_member(self, group: str, **fields: Any) -> JoinResult:
        """The only member of a stable group."""
        joined = await self.join(group, **fields)
        assert not joined.error
        synced = await self.syncs(group, joined, a0=b"everything")
        assert synced.assignment == b"everything"
        return joined


Scenario = Callable[[Host], Coroutine[Any, Any, None]]


class Roots:
    """Runs scenarios, one after the other, on the same root: each has a coordinator of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = ManualClock()

    def run(self, scenario: Scenario, settings: dict[str, str] | None = None, *, start: bool = True) -> None:
        async def main() -> None:
            host = Host(self.url, self.clock, settings or {})
            if start:
                await host.groups.start()
                await host.settle()
            try:
                await scenario(host)
            finally:
                await host.groups.stop()
                await host.close()

        asyncio.run(main())

    def run_two(
        self,
        scenario: Callable[[Host, Host, Controller], Coroutine[Any, Any, None]],
        settings: dict[str, str] | None = None,
    ) -> None:
        """Nodes 1 and 2 of several; 1 coordinates everything at first."""

        async def main() -> None:
            first, second = (Host(self.url, self.clock, settings or {}, joins_as=node) for node in (1, 2))
            hosts = (first, second)
            for host in hosts:
                await host.groups.start()
            assert not await first.groups.shards.ensure_topic()
            with Controller(self.url, self.clock, OFFSETS_TOPIC) as controller:
                controller.assign(1)
                for host in hosts:
                    await host.look()
                try:
                    await scenario(first, second, controller)
                finally:
                    for host in hosts:
                        await host.groups.stop()
                        await host.close()

        asyncio.run(main())


@pytest.fixture
def roots(tmp_path: Any) -> Roots:
    url = str(tmp_path / "root")
    roots = Roots(url)
    with sparklog.open(url, clock=roots.clock) as log:
        log.create_topic("orders", 4)
        log.create_topic("returns", 2)
    return roots
