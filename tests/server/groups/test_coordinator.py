"""The coordinator on a root: what is durable, what is shown, what a restart finds."""

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

import sparklog
from sparklog.errors import FencedError, RetriableError
from sparklog.format.consumer_offsets import OffsetKey, encode_offset_key
from sparklog_server.groups.messages import GroupState, Leaving
from sparklog_server.groups.offsets import OffsetToCommit
from tests.foreign_records import append_foreign, damage

if TYPE_CHECKING:
    from tests.server.groups.conftest import Host, Roots
else:
    Host = Roots = Any

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS


def to_commit(offset: int, topic: str = "orders", partition: int = 0, **fields: Any) -> list[OffsetToCommit]:
    return [OffsetToCommit(topic=topic, partition=partition, offset=offset, **fields)]


def offsets(host: Host, group: str) -> dict[tuple[str, int], int]:
    error, committed = host.groups.fetch(group)
    assert not error
    return {tp: value.offset for tp, value in committed.items()}


def state(host: Host, group: str) -> GroupState | None:
    found = host.groups.find(group)
    return None if found is None else found.state


def busy() -> RetriableError:
    return RetriableError("PUBLISH_CONTENDED", "busy", fix="try again")


def test_an_assignment_is_shown_after_it_is_durable(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        joined = await host.join("g")
        assert (joined.error, joined.generation_id, joined.leader) == (0, 1, joined.member_id)
        host.publisher.hold = True
        synced = host.syncs("g", joined, a0=b"mine")
        await host.settle()
        assert not synced.done()
        assert state(host, "g") is GroupState.COMPLETING_REBALANCE
        host.publisher.release()
        await host.settle()
        assert (await synced).assignment == b"mine"
        assert state(host, "g") is GroupState.STABLE

    roots.run(scenario)


def test_an_assignment_that_cannot_be_stored_is_not_shown(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        joined = await host.join("g")
        host.publisher.error = busy()
        synced = await host.syncs("g", joined, a0=b"mine")
        assert synced.error == ErrorCode.coordinator_not_available
        assert state(host, "g") is GroupState.PREPARING_REBALANCE
        host.publisher.error = None
        again = await host.join("g", joined.member_id)
        assert again.generation_id == 2
        assert (await host.syncs("g", again, a0=b"mine")).assignment == b"mine"

    roots.run(scenario)


def test_a_commit_is_shown_after_it_is_durable(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        assert await host.groups.commit("g", to_commit(5)) == 0
        host.publisher.hold = True
        commit = asyncio.ensure_future(host.groups.commit("g", to_commit(6)))
        await host.settle()
        assert not commit.done()
        assert offsets(host, "g") == {("orders", 0): 5}
        host.publisher.release()
        assert await commit == 0
        assert offsets(host, "g") == {("orders", 0): 6}

    roots.run(scenario)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (busy(), ErrorCode.coordinator_not_available),
        (FencedError("PRODUCER_FENCED", "fenced", fix="reopen"), ErrorCode.not_coordinator),
    ],
)
def test_a_commit_that_fails_changes_nothing(roots: Roots, error: Exception, code: ErrorCode) -> None:
    async def scenario(host: Host) -> None:
        assert await host.groups.commit("g", to_commit(5)) == 0
        host.publisher.error = error
        assert await host.groups.commit("g", to_commit(6)) == code
        assert offsets(host, "g") == {("orders", 0): 5}

    roots.run(scenario)


def test_commits_of_one_turn_share_a_batch(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await host.groups.ensure_topic()
        errors = await asyncio.gather(
            *(host.groups.commit("g", to_commit(number, partition=number % 4)) for number in range(40))
        )
        assert set(errors) == {ErrorCode.none}
        assert host.publisher.submissions == [40]
        assert offsets(host, "g") == {("orders", number): 36 + number for number in range(4)}

    roots.run(scenario)


def test_offsets_and_members_survive_a_restart(roots: Roots) -> None:
    before: dict[str, Any] = {}

    async def first(host: Host) -> None:
        dynamic = await host.stable_member("dynamic")
        static = await host.stable_member("static", instance_id="i1")
        before.update(dynamic=dynamic, static=static)
        member: dict[str, Any] = {"member_id": dynamic.member_id, "generation_id": dynamic.generation_id}
        assert await host.groups.commit("dynamic", to_commit(7, metadata="note"), **member) == 0

    async def second(host: Host) -> None:
        assert offsets(host, "dynamic") == {("orders", 0): 7}
        for group, joined in before.items():
            restored = host.groups.find(group)
            assert restored is not None
            assert restored.state is GroupState.STABLE
            assert restored.generation_id == joined.generation_id
            error = host.groups.heartbeat(group, joined.member_id, None, joined.generation_id)
            assert error == ErrorCode.none
            assert (await host.syncs(group, joined)).assignment == b"everything"
        # A static member that restarts as well takes its place without a rebalance.
        again = await host.join("static", instance_id="i1")
        assert again.generation_id == before["static"].generation_id
        assert again.member_id != before["static"].member_id
        # Sessions are fresh, not eternal.
        await host.advance(501)
        assert state(host, "dynamic") is GroupState.EMPTY

    roots.run(first)
    roots.run(second)


def test_a_replaced_static_member_survives_a_restart(roots: Roots) -> None:
    ids: list[str] = []

    async def first(host: Host) -> None:
        await host.stable_member("g", instance_id="i1")
        host.publisher.hold = True
        again = host.joins("g", instance_id="i1")
        await host.settle()
        assert not again.done()  # nobody is told the new id before it is durable
        host.publisher.release()
        ids.append((await again).member_id)

    async def second(host: Host) -> None:
        assert host.groups.heartbeat("g", ids[0], "i1", 1) == ErrorCode.none
        assert host.groups.heartbeat("g", "other", "i1", 1) == ErrorCode.fenced_instance_id

    roots.run(first)
    roots.run(second)


def test_requests_are_put_off_while_loading(roots: Roots) -> None:
    async def fill(host: Host) -> None:
        await host.stable_member("g")
        await host.groups.commit("simple", to_commit(3))

    async def scenario(host: Host) -> None:
        host.root.reads = asyncio.Event()
        await host.groups.start()
        await host.settle()
        loading = ErrorCode.coordinator_load_in_progress
        assert (await host.join("g")).error == loading
        assert await host.groups.commit("g", to_commit(1)) == loading
        assert host.groups.fetch("g")[0] == loading
        assert (await host.groups.leave("g", [Leaving(member_id="m")]))[0] == loading
        assert await host.delete_group("g") == loading
        assert (await host.groups.delete_offsets("g", []))[0] == loading
        assert host.groups.describe_error("g") == loading
        assert host.groups.list_groups()[0] == loading
        # Older clients know no such error here.
        assert host.groups.heartbeat("g", "m", None, 1) == ErrorCode.none
        joined = await host.join("g")
        assert (await host.syncs("g", joined)).error == ErrorCode.rebalance_in_progress
        host.root.reads.set()
        await host.settle()
        assert host.groups.list_groups()[0] == ErrorCode.none
        assert {one.group_id for one in host.groups.list_groups()[1]} == {"g", "simple"}

    roots.run(fill)
    roots.run(scenario, start=False)


def test_offsets_of_others_are_followed(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        assert not await host.groups.shards.ensure_topic()
        # A Spark query with a group id: no broker in between.
        host.log.commit_offsets("query", {("orders", 0): 10, ("orders", 1): 11})
        host.root.show()
        await host.settle()
        assert offsets(host, "query") == {("orders", 0): 10, ("orders", 1): 11}
        (listed,) = host.groups.list_groups()[1]
        assert (listed.group_id, listed.state, listed.protocol_type) == ("query", GroupState.EMPTY, "")
        host.log.commit_offsets("query", {("orders", 0): 20, ("orders", 1): None})
        host.root.show()
        await host.settle()
        assert offsets(host, "query") == {("orders", 0): 20}

    roots.run(scenario)


def test_own_and_foreign_offsets_count_in_the_order_of_the_log(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await host.groups.commit("g", to_commit(1))
        host.publisher.hold = True
        own = asyncio.ensure_future(host.groups.commit("g", to_commit(3)))
        await host.settle()
        host.log.commit_offsets("g", {("orders", 0): 2})  # before ours in the log
        host.publisher.release()
        assert await own == 0
        assert offsets(host, "g") == {("orders", 0): 3}
        host.log.commit_offsets("g", {("orders", 0): 4})  # behind ours
        host.root.show()
        await host.settle()
        assert offsets(host, "g") == {("orders", 0): 4}

    roots.run(scenario)


def test_an_own_commit_waits_for_what_is_before_it(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await host.groups.commit("g", to_commit(1))
        host.root.reads = asyncio.Event()
        host.log.commit_offsets("g", {("orders", 1): 2})
        host.root.show()  # reading begins, and takes long
        own = asyncio.ensure_future(host.groups.commit("g", to_commit(3)))
        await host.settle()
        assert not own.done()
        host.root.reads.set()
        assert await own == 0
        assert offsets(host, "g") == {("orders", 0): 3, ("orders", 1): 2}

    roots.run(scenario)


def test_who_may_commit(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        commit = host.groups.commit
        assert await commit("unknown", to_commit(1), generation_id=3) == ErrorCode.illegal_generation
        member = await host.stable_member("g")
        assert await commit("g", to_commit(1)) == ErrorCode.unknown_member_id
        assert await commit("g", to_commit(1), member_id="x", generation_id=1) == ErrorCode.unknown_member_id
        me = member.member_id
        assert await commit("g", to_commit(1), member_id=me, generation_id=2) == ErrorCode.illegal_generation
        assert await commit("g", to_commit(1), member_id=me, generation_id=1) == ErrorCode.none
        await host.groups.leave("g", [Leaving(member_id=me)])
        assert await commit("g", to_commit(2)) == ErrorCode.none
        assert await commit("", to_commit(2)) == ErrorCode.none  # the nameless group, as in Kafka

    roots.run(scenario)


def test_stopping_sends_away_whoever_waits(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        first = await host.stable_member("g")
        waiting = host.joins("g")
        await host.settle()
        written = len(host.publisher.submissions)
        host.groups.release()
        assert (await waiting).error == ErrorCode.not_coordinator
        assert len(host.publisher.submissions) == written
        error = host.groups.heartbeat("g", first.member_id, None, first.generation_id)
        assert error == ErrorCode.coordinator_not_available
        assert host.groups.list_groups()[0] == ErrorCode.coordinator_not_available

    async def after_restart(host: Host) -> None:
        assert state(host, "g") is GroupState.STABLE

    roots.run(scenario)
    roots.run(after_restart)


def test_what_others_did_while_a_coordinator_had_resigned_is_found(roots: Roots) -> None:
    """Another broker may have had the groups: nothing that is only in memory counts after that."""

    async def scenario(host: Host) -> None:
        joined = await host.stable_member("g")
        assert await host.groups.commit("h", to_commit(5)) == 0
        host.publisher.hold = True
        unsure = asyncio.ensure_future(host.groups.commit("h", to_commit(6)))
        await host.settle()
        host.is_in_charge = False
        host.groups.release()
        host.publisher.release()  # it was on its way
        await host.settle()
        assert host.groups.heartbeat("g", joined.member_id, None, 1) == ErrorCode.not_coordinator
        with sparklog.open(roots.url, clock=roots.clock) as other:
            other.commit_offsets("h", {("orders", 1): 7})
        host.publisher.hold = False
        host.is_in_charge = True
        host.log.refresh()
        host.groups.resume()
        host.root.show()
        assert host.groups.fetch("h")[0] == ErrorCode.coordinator_load_in_progress
        await host.settle()
        assert await unsure == ErrorCode.none
        assert offsets(host, "h") == {("orders", 0): 6, ("orders", 1): 7}
        assert host.groups.heartbeat("g", joined.member_id, None, 1) == ErrorCode.none
        await host.advance(500)
        assert state(host, "g") is GroupState.EMPTY  # its session had begun anew, and is over

    roots.run(scenario)


@pytest.mark.parametrize("request_of", ["joins", "syncs"])
def test_nobody_is_told_of_a_generation_by_one_who_is_not_in_charge(roots: Roots, request_of: str) -> None:
    """It was, when the request came; what ends the waiting is a timer, or a write that arrives."""

    async def scenario(host: Host) -> None:
        waiting: asyncio.Task[Any]
        if request_of == "joins":
            waiting = host.joins("g")
            await host.settle()
            host.is_in_charge = False
            await host.advance(50)
        else:
            joining = host.joins("g")
            await host.settle()
            await host.advance(50)
            joined = await joining
            host.publisher.hold = True
            waiting = host.syncs("g", joined, a0=b"mine")
            await host.settle()
            host.is_in_charge = False
            host.publisher.release()
        assert (await waiting).error == ErrorCode.not_coordinator

    roots.run(scenario, {"group.initial.rebalance.delay.ms": "50"})


def test_a_damaged_partition_closes_its_groups(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await host.groups.commit("g", to_commit(1))
        partition = host.groups.shards.of("g").partition
        await host.groups.stop()
        damage(host.log, "__consumer_offsets", partition)

    async def later(host: Host) -> None:
        assert host.groups.fetch("g")[0] == ErrorCode.coordinator_not_available
        assert (await host.join("g")).error == ErrorCode.coordinator_not_available
        others = [f"g{number}" for number in range(20)]
        assert any(not host.groups.fetch(group)[0] for group in others)

    roots.run(scenario)
    roots.run(later)


KEY = encode_offset_key(OffsetKey(group="g", topic="other", partition=0))


@pytest.mark.parametrize(
    "garbage",
    [(b"\x00\x63", b"x"), (b"", b"x"), (b"\x00\x01\x7f", None), (KEY, b"\x00\x63"), (KEY, b"\x00\x03?")],
    ids=["unknown key", "empty key", "malformed key", "unknown value", "malformed value"],
)
def test_garbage_closes_nobodys_groups(roots: Roots, garbage: tuple[bytes, bytes | None]) -> None:
    """It is passed over, and counted, by the loader, by the follower and by the embedded client."""

    async def scenario(host: Host) -> None:
        assert await host.groups.commit("g", to_commit(1)) == 0
        append_foreign(host.log, "__consumer_offsets", host.groups.shards.of("g").partition, [garbage])
        host.root.show()
        await host.settle()
        assert host.metrics.state_records_skipped["__consumer_offsets"] == 1  # followed
        assert await host.groups.commit("g", to_commit(2)) == 0
        assert host.log.committed_offsets("g") == {("orders", 0): 2}

    async def later(host: Host) -> None:
        assert offsets(host, "g") == {("orders", 0): 2}
        assert host.metrics.state_records_skipped["__consumer_offsets"] == 1  # loaded
        assert await host.groups.commit("g", to_commit(3)) == 0

    roots.run(scenario)
    roots.run(later)


def test_a_record_without_a_key_closes_nobodys_groups(roots: Roots) -> None:
    """It is passed over, and counted, by the loader, by the follower and by the embedded client."""

    def offsets_partition(host: Host) -> int:
        return host.groups.shards.of("g").partition

    async def scenario(host: Host) -> None:
        assert await host.groups.commit("g", to_commit(1)) == 0
        partition = offsets_partition(host)
        append_foreign(host.log, "__consumer_offsets", partition, [(None, b"x"), (None, None)])
        host.root.show()
        await host.settle()
        assert host.metrics.state_records_skipped["__consumer_offsets"] == 2  # followed
        assert await host.groups.commit("g", to_commit(2)) == 0
        assert host.log.committed_offsets("g") == {("orders", 0): 2}

    async def later(host: Host) -> None:
        assert offsets(host, "g") == {("orders", 0): 2}
        assert host.metrics.state_records_skipped["__consumer_offsets"] == 2  # loaded
        assert await host.groups.commit("g", to_commit(3)) == 0

    roots.run(scenario)
    roots.run(later)
