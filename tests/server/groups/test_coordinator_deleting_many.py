"""DeleteGroups of many: their tombstones share appends, and each group has an answer of its own."""

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from sparklog.format.consumer_offsets import OffsetKey
from sparklog_server.coordination.state_log import PLANNED_AT_MOST
from sparklog_server.groups import coordinator
from sparklog_server.groups.offsets import GroupsState, OffsetRecord
from tests.server.groups.test_coordinator import busy, offsets, to_commit
from tests.server.groups.test_coordinator_tombstones import arrive, commit_elsewhere
from tests.server.groups.test_offsets_staged import begun, by
from tests.support.told import Told

if TYPE_CHECKING:
    from tests.server.groups.conftest import Host, Roots
else:
    Host = Roots = Any

NONE = ErrorCode.none
IN_ONE = {"offsets.topic.num.partitions": "1"}


async def commit_all(host: Host, *groups: str) -> None:
    for group in groups:
        assert await host.groups.commit(group, to_commit(1)) == NONE


def test_groups_share_an_append_for_each_partition(roots: Roots) -> None:
    """3,000 of them, named in 12 KB, were as many commits one after the other: 31 s."""
    groups = [f"g{number}" for number in range(30)]

    async def scenario(host: Host) -> None:
        await commit_all(host, *groups)
        before = len(host.publisher.submissions)
        assert await host.groups.delete_groups(groups) == dict.fromkeys(groups, NONE)
        made = host.publisher.submissions[before:]
        assert (len(made), sum(made)) == (3, 30)
        assert host.groups.list_groups() == (NONE, [])

    async def after_restart(host: Host) -> None:
        assert host.groups.list_groups() == (NONE, [])

    roots.run(scenario)
    roots.run(after_restart)


def test_so_many_are_deleted_at_once(roots: Roots, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "DELETED_AT_ONCE", 4)
    groups = [f"g{number}" for number in range(5)]

    async def scenario(host: Host) -> None:
        await commit_all(host, *groups)
        before = len(host.publisher.submissions)
        assert await host.groups.delete_groups(groups) == dict.fromkeys(groups, NONE)
        assert host.publisher.submissions[before:] == [2, 2, 1]

    roots.run(scenario, IN_ONE)


def test_what_is_deleted_at_once_is_of_few_partitions(roots: Roots, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append to each of 50 partitions for every 500 groups was most of what they cost."""
    monkeypatch.setattr(coordinator, "DELETED_AT_ONCE", 8)
    groups = [f"g{number}" for number in range(32)]

    async def scenario(host: Host) -> None:
        await commit_all(host, *groups)
        before = len(host.publisher.submissions)
        assert await host.groups.delete_groups(groups) == dict.fromkeys(groups, NONE)
        made = host.publisher.submissions[before:]
        assert sum(made) == 32
        assert len(made) <= 8 + 3

    roots.run(scenario)


def test_tombstones_on_their_way_need_no_room() -> None:
    """What each would add was a fifth of what deleting a large group costs."""
    shard = GroupsState()
    tombstone = OffsetRecord(OffsetKey(group="g", topic="orders", partition=0), None)
    shard.begin(tombstone)
    assert shard.held_bytes == 0
    shard.end(tombstone)
    assert not shard.has_offsets("g")


def test_each_has_its_own_error(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await host.stable_member("members")
        await commit_all(host, "a", "staged", "b")
        staged = host.groups.stage("staged", to_commit(5), by(begun(host)))
        assert await staged == NONE
        asked = ["a", "members", "nobody", "g" * 40_000, "staged", "b", ""]
        assert await host.groups.delete_groups(asked) == {
            "a": NONE,
            "members": ErrorCode.non_empty_group,
            "nobody": ErrorCode.group_id_not_found,
            "g" * 40_000: ErrorCode.invalid_group_id,
            "staged": ErrorCode.non_empty_group,
            "b": NONE,
            "": ErrorCode.group_id_not_found,
        }
        assert {one.group_id for one in host.groups.list_groups()[1]} == {"members", "staged"}

    roots.run(scenario, IN_ONE)


def test_what_cannot_be_written_deletes_none_of_them(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await commit_all(host, "a", "b")
        host.publisher.error = busy()
        assert await host.groups.delete_groups(["a", "nobody", "b"]) == {
            "a": ErrorCode.coordinator_not_available,
            "nobody": ErrorCode.group_id_not_found,
            "b": ErrorCode.coordinator_not_available,
        }
        host.publisher.error = None
        assert offsets(host, "a") == offsets(host, "b") == {("orders", 0): 1}

    roots.run(scenario, IN_ONE)


def test_all_are_planned_anew_where_others_come_first(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await commit_all(host, "a", "b", "c")
        host.publisher.hold = True
        deleting = asyncio.ensure_future(host.groups.delete_groups(["a", "b", "c"]))
        await host.settle()
        commit_elsewhere(roots, "a", {("orders", 1): 5, ("returns", 0): 6})
        joining = host.joins("b")
        await host.advance(0)
        await arrive(host)
        assert await deleting == {"a": NONE, "b": ErrorCode.non_empty_group, "c": NONE}
        assert not (await joining).error
        assert (offsets(host, "a"), offsets(host, "c")) == ({}, {})
        assert offsets(host, "b") == {("orders", 0): 1}

    roots.run(scenario, IN_ONE)


def test_that_is_no_news_until_it_is_given_up(roots: Roots, told: Told) -> None:
    """Others come first a few times, and then each time."""

    async def scenario(host: Host) -> None:
        await commit_all(host, "a", "b")
        for name, overtaken in (("a", 2), ("b", PLANNED_AT_MOST)):
            host.publisher.hold = True
            deleting = asyncio.ensure_future(host.groups.delete_groups([name]))
            await host.settle()
            for number in range(overtaken):
                commit_elsewhere(roots, name, {("orders", 1): number})
                host.publisher.release()
                await host.settle()
            await arrive(host)
            given_up = overtaken == PLANNED_AT_MOST
            assert await deleting == {name: ErrorCode.coordinator_not_available if given_up else NONE}
            messages = [one for one in told("sparklog_server.coordinator") if "not written" in one]
            assert len(messages) == given_up, messages

    roots.run(scenario, IN_ONE)
