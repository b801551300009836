"""JoinGroup to the pure group: ids, joining again, and how many may."""

from typing import Any

from kio.schema.errors import ErrorCode

from sparklog_server.groups.rebalancing import NEW_MEMBER_JOIN_TIMEOUT_MS
from tests.server.groups.members import NONE, C, E, Members, P, S, value_of


class TestMemberIds:
    def test_a_dynamic_member_is_sent_back_for_its_id(self) -> None:
        members = Members()
        answer = members.join("a", needs_member_id=True)
        assert (answer.error, members.state) == (ErrorCode.member_id_required, E)
        assert members.join("a", member_id=answer.member_id) is None
        members.advance(1)
        assert members.answer("a").member_id == answer.member_id

    def test_an_id_that_is_not_used_expires(self) -> None:
        members = Members()
        answer = members.join("a", needs_member_id=True)
        members.advance(100)
        assert members.join("a", member_id=answer.member_id).error == ErrorCode.unknown_member_id

    def test_a_rebalance_waits_for_ids_given_out(self) -> None:
        members = Members().stable("a")
        pending = members.join("b", needs_member_id=True)
        assert members.join("a") is None  # the leader rejoins
        assert members.state is P
        members.join("b", member_id=pending.member_id)
        assert members.state is C

    def test_a_pending_member_may_leave(self) -> None:
        members = Members().stable("a")
        members.ids["b"] = members.join("b", needs_member_id=True).member_id
        assert members.join("a") is None
        assert members.leave("b") == [NONE]
        assert members.state is C

    def test_a_pending_id_is_not_a_static_member(self) -> None:
        members = Members()
        answer = members.join("a", needs_member_id=True)
        refused = members.join("a", member_id=answer.member_id, instance_id="i")
        assert refused.error == ErrorCode.unknown_member_id

    def test_unknown_ids_are_refused_everywhere(self) -> None:
        members = Members().stable("a")
        assert members.join("x", member_id="x").error == ErrorCode.unknown_member_id
        assert members.sync("x").error == ErrorCode.unknown_member_id
        assert members.heartbeat("x") == ErrorCode.unknown_member_id
        assert members.commit("x") == ErrorCode.unknown_member_id
        assert members.leave("x") == [ErrorCode.unknown_member_id]


class TestRejoining:
    def test_a_follower_with_nothing_new_is_told_the_generation(self) -> None:
        members = Members().stable("a", "b")
        answer = members.join("b")
        assert (answer.generation_id, members.state) == (1, S)

    def test_a_follower_with_something_new_makes_a_rebalance(self) -> None:
        members = Members().stable("a", "b")
        assert members.join("b", protocols=(("range", b"new"),)) is None
        assert members.state is P

    def test_a_leader_makes_a_rebalance(self) -> None:
        members = Members().stable("a", "b")
        assert members.join("a") is None
        assert members.state is P

    def test_an_answer_that_was_lost_is_given_again(self) -> None:
        members = Members()
        members.join("a")
        members.advance(1)
        first = members.answer("a")
        assert members.join("a") == first
        assert members.state is C

    def test_the_older_of_two_requests_is_answered(self) -> None:
        members = Members().stable("a", "b")
        assert members.join("a") is None
        assert members.join("a", ticket="a:2") is None
        assert members.answer("a").error == ErrorCode.rebalance_in_progress
        members.join("b")
        assert members.answer("a:2").generation_id == 2

    def test_a_new_member_that_never_asks_again_is_given_up(self) -> None:
        members = Members().stable("a", rebalance_timeout_ms=10**9, session_timeout_ms=10**9)
        assert members.join("b") is None
        members.advance(NEW_MEMBER_JOIN_TIMEOUT_MS)
        gone = members.answer("b")
        assert (gone.error, gone.member_id) == (ErrorCode.unknown_member_id, "")


class TestSize:
    def test_a_full_group_takes_nobody(self) -> None:
        members = Members(max_size=2).stable("a", "b")
        assert members.join("c").error == ErrorCode.group_max_size_reached
        assert members.join("c", needs_member_id=True).error == ErrorCode.group_max_size_reached
        assert members.join("b").generation_id == 1

    def test_ids_given_out_count(self) -> None:
        members = Members(max_size=2).stable("a")
        pending = members.join("b", needs_member_id=True)
        assert members.join("c", needs_member_id=True).error == ErrorCode.group_max_size_reached
        assert members.join("b", member_id=pending.member_id) is None

    def test_the_last_to_join_have_to_go_when_it_was_lowered(self) -> None:
        value = Members().stable("a", "b", "c")
        members = Members(max_size=2)
        members.ids = value.ids
        join: Any = {"protocols": (("range", b"m"),)}
        members.group.restore(value_of(value), members.now)
        assert members.state is P
        assert members.join("a", **join) is None
        assert members.join("b", **join) is None
        assert members.join("c", **join).error == ErrorCode.group_max_size_reached
        assert members.answer("a").generation_id == 2


def test_ids_that_nobody_comes_with_drive_no_member_out() -> None:
    members = Members(max_size=2)
    members.stable("a", "b")
    members.leave("a")
    assert members.state is P
    for name in ("c", "d"):
        asked = members.join(name, member_id="", needs_member_id=True)
        assert asked.error == ErrorCode.member_id_required
    assert members.join("e", member_id="").error == ErrorCode.group_max_size_reached
    back = members.join("b")
    assert back is None or not back.error
    assert len(members.group.members) == 1
