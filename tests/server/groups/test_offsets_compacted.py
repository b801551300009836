"""Groups over a compacted __consumer_offsets: they are loaded as before, also by who commits meanwhile."""

import asyncio
from typing import Any

from kio.schema.errors import ErrorCode

import sparklog
from sparklog.client.groups import partition_for_group
from sparklog.client.topic_plan import OFFSETS_TOPIC
from sparklog.clock import SystemClock
from sparklog.maintenance import CompactionLimits, compact
from tests.server.groups.conftest import Host, Roots
from tests.server.groups.test_coordinator import offsets, to_commit

DAY_MS = 86_400_000


def compacted(roots: Roots, buffer_bytes: int = 1 << 20) -> tuple[int, int]:
    """Compact everything by another process's root; (bytes before, after)."""
    with sparklog.open(roots.url, create=False) as log:
        limits = CompactionLimits(dedupe_buffer_bytes=buffer_bytes)
        report = compact(log.metadata, roots.clock, limits=limits)
        one = report.topics["__consumer_offsets"]
        assert one.left_out == 0
        return one.bytes_before, one.bytes_after


def shown(host: Host, *groups: str) -> dict[str, Any]:
    """What a coordinator knows of groups."""
    found: dict[str, Any] = {}
    for name in groups:
        group = host.groups.find(name)
        members = None if group is None else (group.state, group.generation_id)
        found[name] = (offsets(host, name), members)
    return found


def test_groups_are_loaded_as_before(roots: Roots) -> None:
    before: dict[str, Any] = {}
    names = [f"g{number}" for number in range(5)]

    async def fill(host: Host) -> None:
        before["member"] = await host.stable_member("g0")
        for round_ in range(20):
            for name in names[1:]:
                for partition in range(4):
                    error = await host.groups.commit(name, to_commit(round_, partition=partition))
                    assert error == ErrorCode.none
        assert await host.delete_group("g4") == ErrorCode.none
        assert await host.groups.commit("g3", to_commit(77, metadata="note")) == ErrorCode.none

    async def look(host: Host) -> None:
        before["shown"] = shown(host, *names)

    async def again(host: Host) -> None:
        assert shown(host, *names) == before["shown"]
        joined = before["member"]
        error = host.groups.heartbeat("g0", joined.member_id, None, joined.generation_id)
        assert error == ErrorCode.none
        assert await host.groups.commit("g1", to_commit(before["next"])) == ErrorCode.none
        before["next"] += 1
        before["shown"] = shown(host, *names)

    before["next"] = 100
    roots.run(fill)
    roots.run(look)
    assert before["shown"]["g4"][0] == {}
    assert before["shown"]["g1"][0] == {("orders", partition): 19 for partition in range(4)}
    was, now = compacted(roots)
    assert now < was / 4
    roots.run(again)
    roots.clock.advance_ms(1)
    compacted(roots, buffer_bytes=400)
    roots.run(again)


def test_commits_beside_a_compaction(roots: Roots) -> None:
    async def commit(host: Host) -> None:
        await host.groups.ensure_topic()
        for number in range(30):
            committing = asyncio.create_task(host.groups.commit("g", to_commit(number)))
            if number % 3 == 0:
                await asyncio.to_thread(compacted, roots)
            assert await committing == ErrorCode.none
        assert offsets(host, "g") == {("orders", 0): 29}

    async def look(host: Host) -> None:
        assert offsets(host, "g") == {("orders", 0): 29}

    roots.run(commit)
    compacted(roots)
    roots.run(look)


def test_a_tombstone_that_was_compacted_away_before_it_was_followed_has_deleted(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        assert await host.groups.commit("g", to_commit(1000) + to_commit(5, partition=1)) == ErrorCode.none
        with sparklog.open(roots.url, clock=roots.clock) as other:
            other.alter_topic("__consumer_offsets", {"delete.retention.ms": "0"})
            await host.look()
            other.commit_offsets("g", {("orders", 0): None})
            for _ in range(4):
                # A tombstone's time is over when both clocks say so, ours and the storage's.
                roots.clock.advance_ms(max(0, SystemClock().now_ms() - roots.clock.now_ms()))
                compacted(roots)
            other.refresh(force=True)
            assert other.committed_offsets("g") == {("orders", 1): 5}
            partition = partition_for_group("g", len(other.image.topic(OFFSETS_TOPIC).partitions))
            left = other.read(OFFSETS_TOPIC, partition, 0)
            assert left.column("offset").to_pylist() == [1], "the tombstone is gone, too"
        late = asyncio.create_task(host.groups.commit("g", to_commit(7, partition=2)))
        await host.look()
        assert await late == ErrorCode.none
        assert offsets(host, "g") == {("orders", 1): 5, ("orders", 2): 7}

    roots.run(scenario)
