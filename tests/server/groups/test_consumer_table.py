"""Consumer groups (KIP-848) on a root: what is durable, what is answered, what a restart finds."""

import asyncio
import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from sparklog.errors import RetriableError
from sparklog.log.config import group_key
from sparklog.metadata import Action, Image, plan_set_configs
from sparklog_server.groups.consumer_members import HeartbeatAnswer, HeartbeatRequest
from sparklog_server.groups.consumer_table import Catalogs
from sparklog_server.groups.messages import Leaving
from tests.server.coordination.controller import Controller
from tests.server.groups.consumers import places
from tests.server.groups.test_coordinator import DAY_MS, offsets, to_commit
from tests.server.groups.test_coordinator_moving import move

if TYPE_CHECKING:
    from tests.server.groups.conftest import Host, Roots
else:
    Host = Roots = Any

NONE = ErrorCode.none


def request(member_id: str, epoch: int = 0, **fields: Any) -> HeartbeatRequest:
    joins = {"topics": ("orders",), "rebalance_timeout_ms": 10_000, "owned": {}} if epoch == 0 else {}
    return HeartbeatRequest(**{"member_id": member_id, "member_epoch": epoch, **joins, **fields})


def beats(host: Host, member_id: str, epoch: int = 0, **fields: Any) -> "asyncio.Task[HeartbeatAnswer]":
    asked = request(member_id, epoch, **fields)
    return asyncio.ensure_future(host.groups.consumer_heartbeat("g", asked, makes_ids=False))


def listed(host: Host) -> dict[str, tuple[str, str]]:
    return {one.group_id: (one.group_type, str(one.state)) for one in host.groups.list_groups()[1]}


def owned(answer: HeartbeatAnswer) -> int:
    assert not answer.error, answer
    return len(places(answer.assigned or {}))


def configure(host: Host, configs: dict[str, str]) -> None:
    """Settings that brokers keep in the root."""

    def plan(image: Image) -> list[Action]:
        action = plan_set_configs(image, None, configs)
        return [] if action is None else [action]

    host.log.metadata.publish(plan)


def busy() -> RetriableError:
    return RetriableError("PUBLISH_CONTENDED", "busy", fix="try again")


def test_an_answer_is_sent_when_it_is_durable_and_a_restart_finds_the_group(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await host.groups.ensure_topic()
        host.publisher.hold = True
        joins = beats(host, "a")
        await host.settle()
        assert not joins.done()
        host.publisher.release()
        assert owned(await joins) == 4
        host.publisher.hold = False
        assert listed(host) == {"g": ("consumer", "Stable")}

    async def after_restart(host: Host) -> None:
        assert listed(host) == {"g": ("consumer", "Stable")}
        answer = await beats(host, "a", 1)
        assert (answer.error, answer.member_epoch, answer.assigned) == (NONE, 1, None)
        assert owned(await beats(host, "a")) == 4

    roots.run(scenario)
    roots.run(after_restart)


def test_an_idle_heartbeat_does_not_write(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await beats(host, "a")
        before = len(host.publisher.submissions)
        assert (await beats(host, "a", 1)).error is NONE
        assert len(host.publisher.submissions) == before

    roots.run(scenario)


def test_what_comes_while_a_group_writes_shares_the_next_append(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await beats(host, "a")
        before = len(host.publisher.submissions)
        host.publisher.hold = True
        joins = [beats(host, name) for name in "bcdef"]
        await host.settle()
        later = [beats(host, name) for name in "hij"]
        await host.settle()
        host.publisher.release()
        await host.settle()
        host.publisher.release()
        assert all(not one.error for one in await asyncio.gather(*joins, *later))
        assert len(host.publisher.submissions) - before == 2

    roots.run(scenario)


def test_a_group_that_could_not_write_is_as_it_was_in_the_log(roots: Roots) -> None:
    """Else a partition that was given up in a failed append could have two owners in the log."""

    async def scenario(host: Host) -> None:
        assert owned(await beats(host, "a")) == 4
        host.publisher.error = busy()
        assert (await beats(host, "b")).error is ErrorCode.coordinator_not_available
        host.publisher.error = None
        await host.settle()
        group = host.groups.find_consumers("g")
        assert group is not None
        assert (set(group.members), group.epoch, len(group.owners)) == ({"a"}, 1, 4)
        assert (await beats(host, "a", 1)).error is NONE
        assert (await beats(host, "b")).error is NONE

    roots.run(scenario)


def test_an_append_that_arrives_although_it_failed_counts(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await beats(host, "a")
        host.publisher.error, host.publisher.loses_answers = busy(), True
        assert (await beats(host, "b")).error is ErrorCode.coordinator_not_available
        host.publisher.error = None
        await host.look()
        await host.settle()
        group = host.groups.find_consumers("g")
        await host.settle()
        group = host.groups.find_consumers("g")
        assert group is not None
        assert set(group.members) == {"a", "b"}
        assert (await beats(host, "b")).error is NONE

    roots.run(scenario)


def test_members_go_on_at_the_next_coordinator(roots: Roots) -> None:
    async def scenario(first: Host, second: Host, controller: Controller) -> None:
        assert owned(await beats(first, "a")) == 4
        assert (await beats(second, "a", 1)).error is ErrorCode.not_coordinator
        await move(controller, "g", second, first)
        assert (await beats(first, "a", 1)).error is ErrorCode.not_coordinator
        assert (await beats(second, "a", 1)).error is NONE
        assert (await beats(second, "b")).member_epoch == 2
        await move(controller, "g", first, second)
        answer = await beats(first, "a", 1)
        assert (answer.member_epoch, owned(answer)) == (1, 2)

    roots.run_two(scenario)


def test_a_session_ends(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await beats(host, "a")
        await host.advance(45_000)
        assert (await beats(host, "a", 1)).error is ErrorCode.unknown_member_id
        assert listed(host) == {"g": ("consumer", "Empty")}

    roots.run(scenario)


def test_topics_that_change_are_assigned_anew(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        assert owned(await beats(host, "a", topics=("orders", "later"))) == 4
        host.log.create_topic("later", 3)
        await host.look()
        answer = await beats(host, "a", 1)
        assert answer.assigned is None  # one assignment a second
        await host.advance(1_000)
        answer = await beats(host, "a", 1)
        assert (answer.member_epoch, owned(answer)) == (2, 7)

    roots.run(scenario)


# --- the other protocol ------------------------------------------------------------------------------


def test_an_empty_group_changes_its_protocol_and_keeps_its_offsets(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        classic = await host.stable_member("g")
        assert await host.groups.commit("g", to_commit(5), **_identity(classic)) is NONE
        answer = await beats(host, "a")
        assert answer.error is ErrorCode.group_id_not_found  # it has a member
        await host.groups.leave("g", [Leaving(member_id=classic.member_id)])
        await host.settle()
        assert owned(await beats(host, "a")) == 4
        assert listed(host) == {"g": ("consumer", "Stable")}
        assert offsets(host, "g") == {("orders", 0): 5}

        joined = await host.joins("g", needs_member_id=True)
        assert joined.error is ErrorCode.inconsistent_group_protocol
        assert host.groups.heartbeat("g", "a", None, 1) is ErrorCode.unknown_member_id
        assert (await beats(host, "a", -1)).member_epoch == -1
        joined = await host.stable_member("g")
        assert listed(host) == {"g": ("classic", "Stable")}
        assert offsets(host, "g") == {("orders", 0): 5}

    async def after_restart(host: Host) -> None:
        assert listed(host) == {"g": ("classic", "Stable")}

    roots.run(scenario, {"group.consumer.migration.policy": "disabled"})
    roots.run(after_restart)


def _identity(member: Any) -> dict[str, Any]:
    return {"member_id": member.member_id, "generation_id": member.generation_id}


# --- offsets and deletion ----------------------------------------------------------------------------


def test_commits_need_the_members_epoch(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await beats(host, "a")

        async def commit(member_id: str, epoch: int, *, knows: bool = True) -> ErrorCode:
            me: dict[str, Any] = {"member_id": member_id, "generation_id": epoch}
            return await host.groups.commit("g", to_commit(5), **me, knows_epochs=knows)

        assert await commit("a", 1) is NONE
        assert await commit("a", 2) is ErrorCode.stale_member_epoch
        assert await commit("b", 1) is ErrorCode.unknown_member_id
        assert await commit("", -1) is ErrorCode.unknown_member_id  # an administrator's, or an embedded one
        assert await commit("a", 1, knows=False) is ErrorCode.unsupported_version
        assert host.groups.refuse_fetch("g", "a", 1) is NONE
        assert host.groups.refuse_fetch("g", "a", 2) is ErrorCode.stale_member_epoch
        assert host.groups.refuse_fetch("g", "b", 1) is ErrorCode.unknown_member_id
        assert host.groups.refuse_fetch("g", None, -1) is NONE
        await beats(host, "a", -1)
        assert await commit("", -1) is NONE
        assert await host.groups.commit("none", to_commit(5), generation_id=1, knows_epochs=True) is (
            ErrorCode.group_id_not_found
        )

    roots.run(scenario)


def test_a_group_with_members_is_not_deleted_and_an_empty_one_is(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await beats(host, "a")
        assert await host.delete_group("g") is ErrorCode.non_empty_group
        _, errors = await host.groups.delete_offsets("g", [("orders", 0), ("returns", 0)])
        assert errors == {("orders", 0): ErrorCode.group_subscribed_to_topic, ("returns", 0): NONE}
        host.publisher.hold = True
        leaves, deleted = beats(host, "a", -1), asyncio.ensure_future(host.delete_group("g"))
        for _ in range(4):
            await host.settle()
            host.publisher.release()
        assert (await leaves).error is NONE
        assert await deleted is NONE
        host.publisher.hold = False
        assert listed(host) == {}
        assert (await beats(host, "a", 1)).error is ErrorCode.group_id_not_found

    async def after_restart(host: Host) -> None:
        assert listed(host) == {}

    roots.run(scenario)
    roots.run(after_restart)


def test_offsets_of_subscribed_topics_do_not_expire_and_those_of_an_empty_group_do(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await beats(host, "a")
        me: dict[str, Any] = {"member_id": "a", "generation_id": 1, "knows_epochs": True}
        assert await host.groups.commit("g", [*to_commit(5), *to_commit(1, "returns")], **me) is NONE
        for _ in range(8):
            host.clock.sleep_ms(DAY_MS)
            assert not (await beats(host, "a")).error
        await host.groups.expire()
        assert offsets(host, "g") == {("orders", 0): 5}
        await beats(host, "a", -1)
        await host.groups.expire()
        assert offsets(host, "g") == {("orders", 0): 5}  # it has become empty just now
        host.clock.sleep_ms(8 * DAY_MS)
        await host.groups.expire()
        assert listed(host) == {}

    roots.run(
        scenario,
        {
            "group.consumer.max.session.timeout.ms": "700000000",
            "group.consumer.session.timeout.ms": "700000000",
        },
    )


# --- bounds ------------------------------------------------------------------------------------------


def test_members_beyond_the_bounds_are_refused(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        for number in range(3):
            assert not (await beats(host, f"m{number}")).error
        assert (await beats(host, "one too many")).error is ErrorCode.group_max_size_reached
        names = tuple(f"{number:0200}" for number in range(6_000))
        assert (await beats(host, "m0", topics=names)).error is ErrorCode.group_max_size_reached
        assert (await beats(host, "x" * 250)).error is ErrorCode.invalid_request

    roots.run(scenario, {"group.consumer.max.size": "3", "sparklog.group.max.bytes": str(1 << 20)})


def test_what_is_assigned_to_members_counts(roots: Roots) -> None:
    """A name of a topic stands for thousands of partitions, and a pattern for thousands of names."""

    async def scenario(host: Host) -> None:
        host.log.create_topic("wide", 3_000)
        for number in range(1, 10):
            host.log.create_topic(f"wide-{number}", 1_000)
        await host.look()

        def joins(group: str, member_id: str = "a", **fields: Any) -> "asyncio.Task[HeartbeatAnswer]":
            asked = request(member_id, **fields)
            return asyncio.ensure_future(host.groups.consumer_heartbeat(group, asked, makes_ids=False))

        assert owned(await joins("g", topics=("wide",))) == 3_000
        assert host.groups.consumers.held_bytes > 3_000 * 200
        assert (await joins("h", topics=("wide",))).error is ErrorCode.group_max_size_reached
        for regex in ("wide", "wide-.*", "wide-[1-9]"):
            answer = await joins("h", topics=None, regex=regex)
            assert answer.error is ErrorCode.group_max_size_reached
        assert not (await joins("g", "b", topics=("wide",))).error
        assert not (await joins("h")).error
        assert (await joins("h", topics=("wide",))).error is ErrorCode.group_max_size_reached

    roots.run(scenario, {"sparklog.group.max.bytes": str(1 << 20)})


def test_groups_beyond_the_bound_are_refused(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        assert not (await beats(host, "a")).error
        answer = await host.groups.consumer_heartbeat("h", request("a"), makes_ids=False)
        assert answer.error is ErrorCode.group_max_size_reached

    roots.run(scenario, {"sparklog.group.max.groups": "1"})


@pytest.mark.parametrize("regex", ["(", "a{0,1000}" * 40, "x" * 2_000, "(?=a)"])
def test_a_regular_expression_that_cannot_be_is_refused(roots: Roots, regex: str) -> None:
    async def scenario(host: Host) -> None:
        answer = await beats(host, "a", topics=None, regex=regex)
        assert answer.error is ErrorCode.invalid_regular_expression
        assert answer.message
        assert listed(host) == {}

    roots.run(scenario)


def test_a_regular_expression_finds_topics_and_later_ones_and_no_internal_ones(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        assert owned(await beats(host, "a", topics=None, regex=".*")) == 6
        host.log.create_topic("later", 3)
        await host.look()
        assert (await beats(host, "a", 1)).assigned is None
        await host.advance(1_000)  # a pattern is searched once a second at most
        answer = await beats(host, "a", 1)
        assert (answer.member_epoch, owned(answer)) == (2, 9)

    async def after_restart(host: Host) -> None:
        assert owned(await beats(host, "a", topics=None, regex=".*")) == 9

    roots.run(scenario)
    roots.run(after_restart)


def test_a_group_has_so_many_regular_expressions(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        for number in range(100):
            assert not (await beats(host, f"m{number}", topics=None, regex=f"orders{number}?")).error
        answer = await beats(host, "m100", topics=None, regex="orders")
        assert answer.error is ErrorCode.invalid_regular_expression

    roots.run(scenario)


def test_requests_beyond_those_that_wait_for_a_search_are_to_come_again(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await host.groups.ensure_topic()
        host.root.reads = asyncio.Event()
        joins = [beats(host, f"m{number}", topics=None, regex=f"orders{number}?") for number in range(60)]
        await host.settle()
        refused = [one.result().error for one in joins if one.done()]
        assert refused == [ErrorCode.coordinator_not_available] * 10
        host.root.reads.set()
        answers = await asyncio.gather(*joins)
        assert sum(not one.error for one in answers) == 50

    roots.run(scenario)


class Name(str):
    """A name that says when nobody has it any more."""

    __slots__ = ("__weakref__",)


def test_names_of_topics_that_there_are_not_are_not_kept(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        catalogs, name = Catalogs(host.host), Name("nobody")
        is_kept = weakref.ref(name)
        assert catalogs.current().find(name) is None
        assert catalogs.current().find("orders") is not None
        del name
        assert is_kept() is None

    roots.run(scenario)


def test_a_regular_expression_that_is_too_long_is_not_kept(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await host.groups.ensure_topic()
        regex = Name("o" * 100_000)
        is_kept = weakref.ref(regex)
        answer = await beats(host, "a", topics=None, regex=regex)
        assert answer.error is ErrorCode.invalid_regular_expression
        del regex
        gc.collect()
        assert is_kept() is None

    roots.run(scenario)


def test_requests_that_were_refused_for_their_regular_expression_are_not_kept(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await host.groups.ensure_topic()
        topics = [Name(f"t{number}") for number in range(3)]
        are_kept = [weakref.ref(topic) for topic in topics]
        while topics:
            answer = await beats(host, "a", topics=(topics.pop(),), regex="(")
            assert answer.error is ErrorCode.invalid_regular_expression
        gc.collect()
        assert [kept() for kept in are_kept] == [None] * 3

    roots.run(scenario)


def test_a_group_has_its_own_session(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        configure(host, {group_key("g", "consumer.session.timeout.ms"): "60000"})
        await host.look()
        await beats(host, "a")
        await host.advance(59_000)
        assert (await beats(host, "a", 1)).error is NONE
        assert host.groups.consumers.heartbeat_interval_ms("g") == 5_000

    roots.run(scenario)
